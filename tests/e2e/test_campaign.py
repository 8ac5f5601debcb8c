"""The phases end to end against the simulator, whose truth is known; short holds."""

import csv
import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

# llm and guard share a card: both are slowed down when they run together
SHARED = "--slots 4 --output-tokens 16 --step-ms 12 --seed 7 --cards llm+guard,embedding+rerank,vlm"
PLAN = {
    "SIM": SHARED, "KINDS": "llm,guard", "SHARED": "llm,guard", "STEPS": "2,4,8,16", "REQUESTS_PER_USER": "6",
    "MIN_REQUESTS": "40", "HOLD": "5", "COOLDOWN": "0", "LLM_USERS": "4", "GUARD_USERS": "3", "CANARY_EVERY": "1.5",
}  # fmt: skip


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One reports folder for the file: later phases build on earlier ones."""
    made = Shell(tmp_path_factory.mktemp("phases") / "reports")
    yield made
    made.close()


def newest(shell: Shell, phase: str) -> Path:
    return max(shell.reports.glob(f"2*-{phase}"))


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "requests.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def most_at_once(requests: list[dict[str, str]]) -> int:
    spans = [(float(r["start_time"]), float(r["start_time"]) + float(r["e2e_ms"]) / 1000) for r in requests]
    return max(sum(a <= start < b for a, b in spans) for start, _ in spans)


def wait_for(shell: Shell, child: subprocess.Popen[str], phase: str, lines: int, seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and child.poll() is None:
        found = list(shell.reports.glob(f"2*-{phase}/requests.csv"))
        if found and found[-1].read_bytes().count(b"\n") > lines:
            return
        time.sleep(0.2)
    raise AssertionError(f"{phase} did not begin: {child.communicate() if child.poll() is not None else 'too slow'}")


def test_a_campaign_is_interrupted_in_the_soak_and_reports(reports: Shell) -> None:
    child = reports.start("tokenswarm.launch", "campaign", **PLAN)
    wait_for(reports, child, "soak", 20)
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, out + err
    assert "Traceback" not in out + err
    state = json.loads((newest(reports, "campaign") / "campaign.json").read_text(encoding="utf-8"))
    assert [(p["phase"], p["code"]) for p in state["phases"]] == [("baseline", 0), ("ramp", 0), ("soak", 130)]
    text = (newest(reports, "campaign") / "campaign.md").read_text(encoding="utf-8")
    assert "## soak: interrupted" in text and "## mixed: not run" in text and "SIMULATED" in text


def test_the_baseline_and_the_ramp_of_the_campaign(reports: Shell) -> None:
    baseline = summary(newest(reports, "baseline"))
    assert baseline["baseline"]["passed"]
    assert [s["stage"] for s in baseline["baseline"]["stages"]] == ["llm-chat", "llm-code", "llm-rag", "guard"]
    assert {s["requests"] for s in baseline["baseline"]["stages"]} == {6}
    warm = [row for row in rows(newest(reports, "baseline")) if row["stage"].endswith("-warmup")]
    assert len(warm) == 2 * 4
    low, high = summary(newest(reports, "ramp"))["endpoints"]["llm"]["limits"]["soft_limit"]["bracket"]
    assert low <= 4 <= high


def test_the_campaign_goes_on_where_it_stopped(reports: Shell) -> None:
    before = set(reports.reports.glob("2*"))
    done = reports.run("tokenswarm.launch", "campaign", **PLAN, RESUME="1", timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.name.partition("-")[2] for path in set(reports.reports.glob("2*")) - before}
    assert made == {"soak", "mixed"}, "passed phases are not run again, and it is the same campaign"
    page = (newest(reports, "campaign") / "campaign.html").read_text(encoding="utf-8")
    assert [page.count(f": {word}</h2>") for word in ("passed", "done")] == [2, 2]
    assert page.count("data:image/png;base64,") == 3, "knee, soak and mixed are inside"
    assert not reports.left_over()


def test_the_soak_held_the_ramps_limit(reports: Shell) -> None:
    assert summary(newest(reports, "soak"))["headlines"][0].startswith("Too short to judge drift")
    found = summary(newest(reports, "soak"))["soak"]
    (stage,) = found["stages"]
    ramp = summary(newest(reports, "ramp"))["endpoints"]["llm"]["limits"]
    wanted = [limit for limit in (ramp["slo_capacity"]["users"], ramp["soft_limit"]["users"]) if limit]
    assert stage["users"] == min(wanted)
    assert stage["errors"]["verdict"] == "none"
    assert {m["verdict"] for m in found["memory"]} <= {"flat", "cannot judge"}


def test_the_shared_card_interferes(reports: Shell) -> None:
    run = newest(reports, "mixed")
    found = summary(run)["mixed"]
    verdicts = {s["kind"]: s["verdict"] for s in found["services"]}
    assert verdicts["llm"] == "strong" and verdicts["guard"] in ("interference", "strong")
    info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    counts = {s["stage"]: s.get("counts", {}) for s in info["stages"]}
    assert counts["together"] == {"llm": 4, "guard": 3} and counts["idle"] == {}
    loads = [row for row in rows(run) if row["profile"] != "canary"]
    together = [row for row in loads if row["stage"] == "together"]
    assert {(r["endpoint"], r["users"]) for r in together} == {("llm", "4"), ("guard", "3")}
    assert {kind: most_at_once([r for r in together if r["endpoint"] == kind]) for kind in ("llm", "guard")} == {
        "llm": 4,
        "guard": 3,
    }
    ends = {s["stage"]: (s["start"], s["end"]) for s in info["stages"]}
    for row in rows(run):  # drained to zero: nothing of a stage is under way when the next begins
        assert float(row["start_time"]) + float(row["e2e_ms"]) / 1000 <= ends[row["stage"]][1]
    assert {r["stage"] for r in rows(run) if r["profile"] == "canary"} == set(ends)


def test_poisson_shows_the_waiting_that_the_closed_loop_hid(reports: Shell) -> None:
    best = max(s["rps"] for s in summary(newest(reports, "ramp"))["endpoints"]["llm"]["stages"] if s["users"] <= 4)
    plan = PLAN | {"RATES": f"{0.9 * best:.2f}", "HOLD": "12", "PROCESSES": "2"}
    done = reports.run("tokenswarm.launch", "poisson", **plan)
    run = newest(reports, "poisson")
    (stage,) = summary(run)["poisson"]["stages"]
    assert stage["dispersion_ok"]
    assert done.returncode in (0, 4), done.stdout + done.stderr  # 4: a busy test machine sent late, and it says so
    assert (done.returncode == 4) == bool(stage["reasons"])
    closed = [float(r["ttft_ms"]) for r in rows(newest(reports, "soak")) if not r["error"] and r["profile"] != "canary"]
    waited = [float(r["ttft_ms"]) + float(r["scheduled_ms"]) for r in rows(run) if not r["error"]]
    assert statistics.quantiles(waited, n=20)[-1] > 1.5 * statistics.quantiles(closed, n=20)[-1]
    assert len({r["worker"] for r in rows(run)}) == 2


def test_a_rate_beyond_the_server_is_seen_and_the_stage_ended(reports: Shell) -> None:
    done = reports.run(
        "tokenswarm.launch",
        "poisson",
        **PLAN | {"RATES": "70,80", "HOLD": "15", "SIM": SHARED.replace("--step-ms 12", "--step-ms 24")},
    )
    info = json.loads((newest(reports, "poisson") / "run.json").read_text(encoding="utf-8"))
    assert [s["end_reason"] for s in info["stages"]] == ["oversaturated"], done.stdout + done.stderr
    assert "OVERSATURATED" in done.stdout
    assert any(row["error"] == "cancelled" for row in rows(newest(reports, "poisson")))


def test_a_soak_without_a_ramp_says_what_to_do(reports: Shell) -> None:
    before = set(reports.reports.glob("2*"))
    done = reports.run("tokenswarm.launch", "soak", **PLAN | {"SIM": "--slots 3"})
    assert done.returncode == 2, done.stdout + done.stderr
    assert "make ramp" in done.stderr and "USERS=" in done.stderr and "Traceback" not in done.stderr
    assert set(reports.reports.glob("2*")) == before
