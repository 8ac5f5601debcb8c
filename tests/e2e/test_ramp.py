"""The whole pipe on a short ramp: simulator, preflight, Locust, records, report."""

import csv
import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

QUICK = {"REQUESTS_PER_USER": "10", "MIN_REQUESTS": "60", "COOLDOWN": "0"}
SIM = "--output-tokens 12 --step-ms 8 --seed 7 --slots "


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "requests.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def aggregated(run: Path) -> int:
    with (run / "locust_stats.csv").open(encoding="utf-8", newline="") as file:
        return next(int(row["Request Count"]) for row in csv.DictReader(file) if row["Name"] == "Aggregated")


@pytest.mark.parametrize(("slots", "steps", "processes"), [(16, "2,8,16,32,64", "2"), (8, "1,4,8,16,32", "1")])
def test_the_limits_bracket_the_slots(shell: Shell, slots: int, steps: str, processes: str) -> None:
    done = shell.run("tokenswarm.launch", "ramp", SIM=SIM + str(slots), STEPS=steps, PROCESSES=processes, **QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    run = shell.latest()
    limits = summary(run)["endpoints"]["llm"]["limits"]
    for name in ("saturation", "knee", "queue_onset", "soft_limit"):
        low, high = limits[name]["bracket"]
        assert low <= slots <= high, (name, limits[name])
    assert limits["saturation"]["state"] == "confirmed"
    assert limits["hard_limit"]["first_error"] is None
    planned = {f"u{users:03d}": max(users * 10, 60) for users in map(int, steps.split(","))}
    assert Counter(row["stage"] for row in rows(run)) == planned
    assert aggregated(run) == sum(planned.values())
    assert not [row for row in rows(run) if row["error"]]
    assert "simulat" in done.stdout
    assert not shell.left_over()


def test_no_slot_limit_is_said_plainly(shell: Shell) -> None:
    done = shell.run("tokenswarm.launch", "ramp", SIM=SIM + "0", STEPS="1,4,8,16", **QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    limits = summary(shell.latest())["endpoints"]["llm"]["limits"]
    assert [limits[name]["state"] for name in ("saturation", "knee", "queue_onset")] == ["none"] * 3
    assert "No saturation found up to 16 users" in done.stdout


def test_a_stage_full_of_errors_ends_the_ramp(shell: Shell) -> None:
    done = shell.run("tokenswarm.launch", "ramp", SIM=SIM + "4 --queue-limit 2", STEPS="2,4,32,64", **QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    info = json.loads((shell.latest() / "run.json").read_text(encoding="utf-8"))
    assert [stage["end_reason"] for stage in info["stages"]] == ["done", "done", "errors"]
    limits = summary(shell.latest())["endpoints"]["llm"]["limits"]
    assert limits["hard_limit"]["first_error"] == 32
    assert summary(shell.latest())["endpoints"]["llm"]["stages"][2]["errors"].keys() == {"http_503"}


def begun(shell: Shell, *, after_rows: int = 20) -> "subprocess.Popen[str]":
    """A ramp whose first stage would go on for minutes, with some requests done."""
    plan = {"STEPS": "4,8", "REQUESTS_PER_USER": "500", "MIN_REQUESTS": "0"}
    child = shell.start("tokenswarm.launch", "ramp", SIM=SIM + "8", **plan)
    until = time.monotonic() + 60
    while time.monotonic() < until and child.poll() is None:
        found = list(shell.reports.glob("2*/requests.csv"))
        if found and found[0].read_bytes().count(b"\n") > after_rows:
            break
        time.sleep(0.2)
    return child


@pytest.mark.parametrize("to_all", [False, True], ids=["to-make", "to-all"])
def test_a_sigterm_keeps_and_reports_what_was_measured(shell: Shell, to_all: bool) -> None:
    """As a CI job's time limit sends it: to what it started, or to the whole group."""
    child = begun(shell)
    (os.killpg if to_all else os.kill)(child.pid, signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, out + err
    found = summary(shell.latest())
    assert found["state"] == "incomplete" and "the run was interrupted" in found["reasons"], found["reasons"]
    assert len(rows(shell.latest())) == found["requests"] + found["outside_stages"] > 20
    assert "Traceback" not in out + err
    assert not shell.left_over()


def test_ctrl_c_keeps_and_reports_what_was_measured(shell: Shell) -> None:
    child = begun(shell)
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, out + err
    run = shell.latest()
    info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert info["state"] == "interrupted"
    kept = rows(run)
    assert {row["error"] for row in kept} == {"", "cancelled"}
    assert sum(row["error"] == "cancelled" for row in kept) <= 4
    assert len(kept) == info["stages"][0]["requests"] == aggregated(run)
    assert (run / "report.md").is_file() and "interrupted" in out.lower()
    assert "Traceback" not in out + err
    assert not shell.left_over()
