"""Every kind of endpoint through the whole pipe, each with its own right columns; and a sixth kind from the docs."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from shell import ROOT, Shell

QUICK = {"STEPS": "1,4,8", "REQUESTS_PER_USER": "8", "MIN_REQUESTS": "20", "COOLDOWN": "0", "WATCH": "0"}
SIM = "--slots 8 --output-tokens 8 --seed 3"


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "requests.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("kind", "filled", "blank"),
    [
        ("llm", ["ttft_ms", "output_tokens", "chunks"], ["items", "labels"]),
        ("vlm", ["ttft_ms", "output_tokens", "items"], ["labels"]),
        ("guard", ["ttft_ms", "outcome"], ["items"]),
        ("embedding", ["e2e_ms", "input_tokens", "items"], ["ttft_ms", "output_tokens", "chunks", "outcome"]),
        ("rerank", ["e2e_ms", "input_tokens", "items"], ["ttft_ms", "output_tokens", "chunks", "outcome"]),
    ],
)
def test_a_kind_fills_its_own_columns(shell: Shell, kind: str, filled: list[str], blank: list[str]) -> None:
    done = shell.run("tokenswarm.launch", "ramp", ENDPOINT=kind, SIM=SIM, **QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = rows(shell.latest())
    assert len(kept) == 20 + 32 + 64 and not [row for row in kept if row["error"]]
    assert all(row[name] for row in kept for name in filled)
    assert not any(row[name] for row in kept for name in blank)
    stage = json.loads((shell.latest() / "summary.json").read_text(encoding="utf-8"))["endpoints"][kind]["stages"][-1]
    has_tokens = "ttft_ms" in filled
    assert (stage["ttft_ms"].get("p50") is not None) == has_tokens
    assert stage["e2e_ms"]["p50"] is not None
    assert (shell.latest() / "knee.png").stat().st_size > 20_000


def test_the_guards_verdicts_are_compared_with_what_the_profile_expects(shell: Shell) -> None:
    done = shell.run("tokenswarm.launch", "ramp", ENDPOINT="guard", SIM=SIM, **QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = rows(shell.latest())
    assert {row["outcome"] for row in kept} == {"safe", "unsafe", "controversial"}
    assert any(row["labels"] for row in kept if row["outcome"] == "unsafe")
    assert "agree" in (shell.latest() / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "api"),
    [("llm", "completions"), ("guard", "moderations"), ("guard", "classify"), ("guard", "score"), ("rerank", "plain"),
     ("rerank", "score"), ("embedding", "base64")],
)  # fmt: skip
def test_other_paths_of_a_kind(shell: Shell, kind: str, api: str) -> None:
    few = {**QUICK, "STEPS": "2", "MIN_REQUESTS": "0"}
    done = shell.run("tokenswarm.launch", "ramp", ENDPOINT=kind, API=api, SIM=SIM, **few)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = rows(shell.latest())
    assert len(kept) == 16 and not [row for row in kept if row["error"]]
    if kind == "guard":
        assert {row["outcome"] for row in kept} <= {"safe", "unsafe", "controversial"}


def test_whole_replies_have_no_ttft(shell: Shell) -> None:
    done = shell.run("tokenswarm.launch", "ramp", STREAM="0", SIM=SIM, **{**QUICK, "STEPS": "2", "MIN_REQUESTS": "0"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert not any(row["ttft_ms"] or row["chunks"] for row in rows(shell.latest()))
    assert all(row["output_tokens"] and row["e2e_ms"] for row in rows(shell.latest()))


def test_the_sixth_kind_of_the_docs_runs_as_it_stands_there(shell: Shell, tmp_path: Path) -> None:
    home = tmp_path / "project"
    for name in ("tokenswarm", "simulator", "analysis", "locustfiles", "profiles"):
        shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
    user, plan = re.findall(r"```python\n(.*?)```", (ROOT / "docs/new-kind.md").read_text(encoding="utf-8"), re.DOTALL)
    (home / "tokenswarm/users/tokenize.py").write_text(user, encoding="utf-8")
    ramp = (home / "locustfiles/ramp.py").read_text(encoding="utf-8")
    line, users = plan.splitlines()[0], plan.strip().splitlines()[-1]
    ramp = re.sub(r"    users = .*", users, ramp).replace(
        "from tokenswarm.users import", f"{line}\nfrom tokenswarm.users import", 1
    )
    (home / "locustfiles/ramp.py").write_text(ramp, encoding="utf-8")
    few = {**QUICK, "ENDPOINT": "tokenize", "TOKENIZE_MODEL": "sim-llm"}
    server = shell.start("simulator", "--port", "0", cwd=home, PYTHONPATH=str(home))
    assert server.stdout is not None
    url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
    child = shell.start("tokenswarm.launch", "ramp", cwd=home, PYTHONPATH=str(home), TOKENIZE_URL=url, **few)
    out, err = child.communicate(timeout=90)
    assert child.returncode == 0, out + err
    kept = rows(shell.latest())
    assert len(kept) == 20 + 32 + 64
    assert {row["endpoint"] for row in kept} == {"tokenize"} and all(row["input_tokens"] for row in kept)


def test_synthetic_prompts_have_the_wanted_length_by_the_servers_count(shell: Shell) -> None:
    wanted = {"INPUT_TOKENS": "300", "OUTPUT_TOKENS": "20"}
    few = {**QUICK, "STEPS": "4", "MIN_REQUESTS": "0"}
    done = shell.run("tokenswarm.launch", "ramp", SIM=SIM, **wanted, **few)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = rows(shell.latest())
    sent = sorted(int(row["input_tokens"]) for row in kept)
    assert 0.9 * 300 < sent[len(sent) // 2] < 1.1 * 300
    got = {int(row["output_tokens"]) for row in kept}
    assert len(got) > 1 and min(got) >= 18 and max(got) <= 22, "fixed lengths are jittered by 10 %"


def test_without_keepalive_every_request_opens_its_connection(shell: Shell) -> None:
    few = {**QUICK, "STEPS": "4", "MIN_REQUESTS": "0"}
    done = shell.run("tokenswarm.launch", "ramp", SIM=SIM, KEEPALIVE="0", **few)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(row["connect_ms"] and not row["error"] for row in rows(shell.latest()))
    assert shell.run("tokenswarm.launch", "ramp", SIM=SIM, **few).returncode == 0
    assert sum(bool(row["connect_ms"]) for row in rows(shell.latest())) == 4
