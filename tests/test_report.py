"""Whole reports of synthetic runs with known answers, as a person or a script would ask for them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import synthetic

from analysis.report import main

ROOT = Path(__file__).parent.parent
LADDER = (1, 5, 10, 20, 40, 64, 80, 100)


def call(*args: object, module: str = "analysis.report", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", module, *map(str, args)], cwd=ROOT, capture_output=True, text=True,
                          timeout=60, env={**os.environ, **env})  # fmt: skip


def report(run: Path, code: int = 0) -> tuple[str, dict[str, Any]]:
    """Text and summary.json of a run, from the command's own main()."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([str(run)]) == code
    summary = json.loads((run / "summary.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert (run / "report.md").read_text().splitlines()[2] == out.getvalue().splitlines()[0]
    return out.getvalue(), summary


def test_sixteen_slots(tmp_path: Path) -> None:
    text, summary = report(synthetic.ramp(tmp_path / "20261201T023000Z-ramp"))
    assert text.splitlines()[0] == (
        "20261201T023000Z-ramp: complete, 2,280 requests, 0 failed, simulated server (--slots 16)"
    )
    limits = summary["endpoints"]["llm"]["limits"]
    for name in ("saturation", "knee", "queue_onset", "soft_limit"):
        low, high = limits[name]["bracket"]
        assert low <= 16 <= high and limits[name]["state"] == "confirmed" and limits[name]["confidence"] > 0.9
    assert limits["slo_capacity"]["users"] == 16 and limits["slo_capacity"]["first_fail"] == 32
    assert "Saturation between 8 and 16 users (confirmed, confidence" in text
    assert "No hard limit up to 48 users (0 errors; error rate there below 0.31 % with 95 % confidence)" in text
    stage = summary["endpoints"]["llm"]["stages"][3]
    assert stage["users"] == 16 and stage["rps"] == pytest.approx(8, rel=0.02)
    assert (
        stage["output_tps"] == pytest.approx(800, rel=0.02) and stage["valid"] and stage["little"]["state"] == "valid"
    )
    assert stage["ttft_ms"]["p50"] == pytest.approx(100) and stage["ttft_ms"]["n"] == 304
    assert summary["endpoints"]["llm"]["stages"][0]["ttft_ms"]["p99"] is None
    assert (tmp_path / "20261201T023000Z-ramp" / "knee.png").stat().st_size > 20_000


def test_slots_between_two_steps(tmp_path: Path) -> None:
    text, summary = report(synthetic.ramp(tmp_path / "run", LADDER, slots=24))
    limits = summary["endpoints"]["llm"]["limits"]
    assert limits["saturation"]["bracket"] == [20, 40] and limits["queue_onset"]["bracket"] == [20, 40]
    assert limits["saturation"]["estimate"] == pytest.approx(24, abs=1.5)
    assert "Soft limit between 20 and 40 users" in text


def test_no_limit_is_said_plainly(tmp_path: Path) -> None:
    text, summary = report(synthetic.ramp(tmp_path / "run", slots=1000))
    for name in ("saturation", "knee", "queue_onset", "soft_limit", "hard_limit"):
        assert summary["endpoints"]["llm"]["limits"][name]["state"] == "none"
    assert "No saturation found up to 48 users" in text and "SLO capacity at least 48 users" in text


def test_errors_limit_before_throughput_does(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run", LADDER, slots=1000, errors={64: 0.01, 80: 0.05, 100: 0.4},
                         info={"simulated": False})  # fmt: skip
    text, summary = report(run)
    data = summary["endpoints"]["llm"]
    assert data["limits"]["hard_limit"]["confirmed"] == 64 and data["limits"]["hard_limit"]["bracket"] == [40, 64]
    last = data["stages"][-1]
    assert last["broken"] and "succeeded" in last["unusable"] and last["errors"] == {"http_503": last["failures"]}
    assert last["e2e_ms"]["n"] + last["failures"] <= last["requests"]
    assert last["e2e_ms"]["p50"] > 1500, "a 3 ms refusal must not enter the latencies"
    assert last["e2e_with_failures_ms"]["p95"] is None
    assert data["limits"]["saturation"]["tested_to"] == 80
    assert text.splitlines()[0].endswith("llm sim-llm at http://127.0.0.1:16000")


def test_steps_after_a_broken_one_decide_nothing(tmp_path: Path) -> None:
    _, summary = report(synthetic.ramp(tmp_path / "run", LADDER, slots=1000, errors={20: 0.9}))
    assert summary["endpoints"]["llm"]["limits"]["saturation"]["tested_to"] == 10


def test_all_failed_and_one_step_claim_nothing(tmp_path: Path) -> None:
    text, summary = report(synthetic.ramp(tmp_path / "failed", (1, 4, 8), errors={1: 1, 4: 1, 8: 1}))
    limits = summary["endpoints"]["llm"]["limits"]
    assert limits["saturation"]["state"] == "insufficient" and limits["slo_capacity"]["state"] == "below_lowest"
    assert "360 requests, 360 failed" in text.splitlines()[0] and "the lowest tested" in text
    text, summary = report(synthetic.ramp(tmp_path / "one", (8,)))
    assert "Saturation: cannot be told, 1 usable step, at least 3 are needed" in text


def test_failures_on_our_own_side_are_no_hard_limit(tmp_path: Path) -> None:
    rows = synthetic.stage_rows("u008", 8, 160, synthetic.START, random.Random(1))
    for row in rows[50:55]:
        row.error, row.status, row.ttft_ms = "client", 0, None
    _, summary = report(synthetic.write(tmp_path / "run", rows, []))
    stage = summary["endpoints"]["llm"]["stages"][0]
    assert (stage["failures"], stage["client_faults"]) == (5, 5)
    assert summary["endpoints"]["llm"]["limits"]["hard_limit"]["state"] == "none"
    assert any("our own side (5 client)" in w["seen"] for w in summary["warnings"])


@pytest.mark.parametrize("endpoint", ["embedding", "rerank"])
def test_kinds_without_tokens(tmp_path: Path, endpoint: str) -> None:
    text, summary = report(synthetic.ramp(tmp_path / "run", endpoint=endpoint, slots=8, service=0.2))
    data = summary["endpoints"][endpoint]
    assert (
        data["limits"]["saturation"]["bracket"] == [4, 8] and data["limits"]["queue_onset"]["state"] == "insufficient"
    )
    assert data["stages"][2]["items_ps"] == pytest.approx(8 * data["stages"][2]["rps"], rel=1e-4)
    assert data["stages"][2]["goodput_rps"] is None
    assert "items/s" in text and "TTFT P50" not in text and "Queue onset" not in text


def test_guard_of_one_token_is_judged_on_ttft(tmp_path: Path) -> None:
    text, summary = report(synthetic.ramp(tmp_path / "run", endpoint="guard", slots=8, service=0.2, tokens=1))
    stages = summary["endpoints"]["guard"]["stages"]
    assert stages[0]["tpot_ms"]["n"] == 0 and stages[0]["goodput_share"] == 1.0
    assert summary["endpoints"]["guard"]["limits"]["tpot_knee"]["reason"] == "not measured"
    assert "TPOT P50" not in text


def test_killed_run_is_incomplete_and_its_last_stage_unused(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run", info={"state": "running", "stages": [], "ended": None, "workers": None})
    data = (run / "requests.csv").read_bytes()
    (run / "requests.csv").write_bytes(data[: int(len(data) * 0.9)])
    _, summary = report(run)
    assert summary["state"] == "incomplete" and summary["reasons"] == ["the run was killed before its end"]
    assert summary["endpoints"]["llm"]["stages"][-1]["unusable"] == "stage was not finished"
    assert summary["endpoints"]["llm"]["limits"]["saturation"]["tested_to"] == 32


def test_missing_run_json_still_reports(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "20261201T023000Z-ramp", (1, 4, 8))
    (run / "run.json").unlink()
    text, summary = report(run)
    assert summary["state"] == "incomplete" and "run.json is missing" in text and summary["phase"] == "ramp"


def test_no_data_is_one_line_and_code_4(tmp_path: Path) -> None:
    run = synthetic.write(tmp_path / "run", [], [])
    text, summary = report(run, 4)
    assert summary["state"] == "invalid" and "no data: requests.csv has a header and no rows" in text


def test_lost_records_make_the_run_invalid(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run", (1, 4, 8))
    lines = (run / "requests.csv").read_bytes().splitlines(keepends=True)
    (run / "requests.csv").write_bytes(b"".join(lines[:100] + lines[105:]))
    text, summary = report(run, 4)
    assert "5 of 360 records of worker box:1 are missing" in text and summary["state"] == "invalid"
    assert any("rows, 100 were planned" in w["seen"] for w in summary["warnings"])


@pytest.mark.parametrize(("worker", "state", "code"), [
    ({"cpu_max_pct": 60.0, "lag_p99_ms": 1.0}, "valid", 0), ({"cpu_max_pct": 75.0, "lag_p99_ms": 1.0}, "warned", 0),
    ({"cpu_max_pct": 95.0, "lag_p99_ms": 1.0}, "invalid", 4), ({"cpu_max_pct": 10.0, "lag_p99_ms": 60.0}, "invalid", 4),
    ({"cpu_max_pct": 10.0, "lag_p99_ms": 12.0}, "warned", 0), ({}, "unknown", 0),
])  # fmt: skip
def test_an_overloaded_client_makes_the_run_invalid(tmp_path: Path, worker: dict, state: str, code: int) -> None:
    run = synthetic.ramp(tmp_path / "run", (1, 4, 8), info={"workers": [{"worker": "box:1", "rows": 360} | worker]})
    text, summary = report(run, code)
    assert summary["meter"]["state"] == state
    assert ("busiest client process" in text) == (state in ("warned", "invalid"))


def test_one_busy_second_is_no_overload(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run", (1, 4, 8))
    cpu = [20, 99, 20, 30, 30, 30]
    lines = "".join(f"{i},box:1,cpu_pct,{value}\n" for i, value in enumerate(cpu))
    (run / "host.csv").write_text("time,source,metric,value\n" + lines)
    assert report(run)[1]["meter"] == {"state": "valid", "cpu_max_pct": pytest.approx(49.6667), "lag_p99_ms": 0.4,
                                       "lag_share_of_ttft": None}  # fmt: skip


def test_warnings_name_what_was_seen(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run", (4, 8, 16))
    rows = (run / "requests.csv").read_text().splitlines()
    names = rows[0].split(",")
    changes = [("tokens_source", "chunks"), ("clock", "user"), ("outcome", "length"), ("cached_tokens", "50"),
               ("bad_events", "1"), ("connect_ms", "3.0"), ("lag_max_ms", "20.0"), ("chunks", "25")]  # fmt: skip
    for i in range(1, len(rows)):
        cells = rows[i].split(",")
        for name, value in changes:
            cells[names.index(name)] = value
        rows[i] = ",".join(cells)
    (run / "requests.csv").write_text("\n".join(rows) + "\n")
    _, summary = report(run)
    seen = " | ".join(w["seen"] for w in summary["warnings"])
    for words in (
        "counted as chunks", "program's clock", "token limit", "25.0% of the prompt tokens", "could not be read",
        "only 0% of the requests reused", "waited up to 20.0 ms", "a chunk holds 4.0 tokens",
    ):  # fmt: skip
        assert words in seen
    assert all(w["why"] and w["try"] for w in summary["warnings"])


def test_many_equal_longest_times_are_a_timeout(tmp_path: Path) -> None:
    rows = synthetic.stage_rows("u064", 64, 640, synthetic.START, random.Random(1), slots=8)
    for row in rows:
        if row.e2e_ms > 12000:
            row.e2e_ms, row.error, row.status = 12000.0, "disconnect", 0
    _, summary = report(synthetic.write(tmp_path / "run", rows, []))
    assert any("same longest time, 12 s" in w["seen"] for w in summary["warnings"])


def test_a_transient_longer_than_the_first_wave_is_told(tmp_path: Path) -> None:
    rows = synthetic.stage_rows("u004", 4, 160, synthetic.START, random.Random(1))
    for row in rows[:30]:
        row.ttft_ms = 1500.0
    _, summary = report(synthetic.write(tmp_path / "run", rows, []))
    assert any("settles only after 30 requests" in w["seen"] for w in summary["warnings"])


def test_idle_users_make_a_stage_invalid_but_short_requests_do_not(tmp_path: Path) -> None:
    thinking = synthetic.stage_rows("u040", 40, 800, synthetic.START, random.Random(1), slots=1000)
    for row in thinking:
        row.e2e_ms *= 0.75  # users rest a quarter of the time
    _, summary = report(synthetic.write(tmp_path / "thinking", thinking, []), 4)
    stage = summary["endpoints"]["llm"]["stages"][0]
    assert (
        stage["little"]["state"] == "invalid" and not stage["valid"] and "in flight instead of 40" in stage["unusable"]
    )
    assert summary["state"] == "invalid" and "Little's law" in summary["reasons"][0], "no stage is left: exit code 4"
    for row in thinking:
        row.status, row.error, row.e2e_ms = 503, "http_503", 2.0
    _, summary = report(synthetic.write(tmp_path / "refused", thinking, []))
    assert summary["state"] == "complete", "a server that refuses at once is not the client's fault"
    thinking = synthetic.stage_rows("u040", 40, 800, synthetic.START, random.Random(1), slots=1000)
    for row in thinking:
        row.e2e_ms *= 0.75
        row.connect_ms = 500.0  # the same rests, but spent on opening a connection each time
    _, summary = report(synthetic.write(tmp_path / "connecting", thinking, []))
    assert summary["endpoints"]["llm"]["stages"][0]["valid"]
    quick = synthetic.ramp(tmp_path / "quick", endpoint="embedding", slots=8, service=0.004)
    _, summary = report(quick)
    assert summary["endpoints"]["embedding"]["client_idle_ms"] == pytest.approx(0.5, abs=0.02)
    low, high = summary["endpoints"]["embedding"]["limits"]["saturation"]["bracket"]
    assert low <= 9 <= high, "8 slots are kept busy by 9 users that rest 0.5 ms after every 4 ms"


def test_report_tells_the_method_and_where_numbers_come_from(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run")
    report(run)
    text = (run / "report.md").read_text()
    page = (run / "report.html").read_text()
    assert page.count("<table>") == text.count("| ---: |\n") and "data:image/png;base64," in page
    for words in ("closed loop, 1 to 48 users, zero think time; latency at this concurrency, not at an arrival rate of",
                  "**TPOT**: time per output token = (E2E - TTFT) / (output tokens - 1)", "git abc123", "seed 1",
                  "sha256 0000000000000000", "locust 2.47.0", "![llm](knee.png)", "## Warnings",
                  "Universal Scalability Law"):  # fmt: skip
        assert words in text, words


def test_the_same_run_gives_the_same_files(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run")
    report(run)
    before = {name: (run / name).read_bytes() for name in ("summary.json", "report.md", "knee.png")}
    report(run)
    assert before == {name: (run / name).read_bytes() for name in before}


def test_json_to_stdout_and_knee_script(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run")
    assert json.loads(call(run, "--json").stdout) == json.loads((run / "summary.json").read_text())
    (run / "knee.png").unlink()
    done = call(run, module="analysis.knee")
    assert done.returncode == 0 and (run / "knee.png").is_file() and "Saturation between 8 and 16 users" in done.stdout


def test_no_such_run_is_one_line_and_code_2(tmp_path: Path) -> None:
    done = call("nowhere", REPORTS=str(tmp_path))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "no run 'nowhere'" in done.stderr
    assert call("a", "b").returncode == 2
    done = call("nowhere", module="analysis.knee", REPORTS=str(tmp_path))
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_full_ramp_is_reported_within_five_seconds(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run", LADDER, slots=32)
    start = time.monotonic()
    done = call(run)
    assert done.returncode == 0 and "6,480 requests" in done.stdout and done.stderr == ""
    assert time.monotonic() - start < 15, "5 s on an idle machine; 15 leaves room for a busy one"


def test_a_run_without_verified_certificates_says_so_loudly(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run", (4, 8), info={"options": {"insecure": True}})
    assert "NOT verified" in report(run)[0]


def test_load_shedding_is_told_apart_from_failures(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run", (4, 8, 16), errors={16: 0.3})
    text = report(run)[0]
    assert "refused by the server to shed load (http_503)" in text


def test_a_step_that_the_run_marked_invalid_decides_no_slo_capacity(tmp_path: Path) -> None:
    run = synthetic.ramp(tmp_path / "run", (4, 8, 12), least=400)
    info = json.loads((run / "run.json").read_text())
    sure = report(run)[1]["endpoints"]["llm"]["limits"]["slo_capacity"]
    info["stages"][-1] |= {"valid": False, "reasons": ["worker box:1 lost"]}
    (run / "run.json").write_text(json.dumps(info))
    less = report(run)[1]["endpoints"]["llm"]["limits"]["slo_capacity"]
    assert (sure["users"], less["users"]) == (12, 8)
