"""What a soak and an open loop take from an earlier ramp of the same target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenswarm import earlier

URL, MODEL = "http://gpu:16000", "qwen"


@pytest.fixture(autouse=True)
def _reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPORTS", str(tmp_path))


def ramp(
    folder: Path, second: int, limits: dict[str, Any], state: str = "complete", url: str = URL, sim: str = ""
) -> Path:
    run = folder / f"20260101T0000{second:02d}Z-ramp"
    run.mkdir()
    told = {"schema": 1, "simulated": bool(sim), "simulator": sim, "targets": {"llm": {"url": url, "model": MODEL}}}
    stages = [{"users": 8, "rps": 12.5, "valid": True}, {"users": 64, "rps": 30.0, "valid": False}]
    (run / "run.json").write_text(json.dumps(told))
    (run / "summary.json").write_text(
        json.dumps({"state": state, "endpoints": {"llm": {"limits": limits, "stages": stages}}})
    )
    return run


def limits(
    slo: int | None = None, soft: int | None = None, slo_state: str = "confirmed", soft_state: str = "confirmed"
) -> dict:
    return {"slo_capacity": {"users": slo, "state": slo_state}, "soft_limit": {"users": soft, "state": soft_state}}


def test_the_lower_of_slo_capacity_and_soft_limit(tmp_path: Path) -> None:
    ramp(tmp_path, 1, limits(slo=20, soft=40))
    assert earlier.soak_users("llm", URL, MODEL, "")[0] == 20
    ramp(tmp_path, 2, limits(slo=None, soft=16, slo_state="inconclusive"))
    users, why = earlier.soak_users("llm", URL, MODEL, "")
    assert users == 16 and "soft limit of 20260101T000002Z-ramp" in why


def test_no_limit_found_means_the_highest_valid_step(tmp_path: Path) -> None:
    ramp(tmp_path, 1, limits(slo_state="inconclusive", soft_state="none"))
    assert earlier.soak_users("llm", URL, MODEL, "")[0] == 8


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (limits(slo_state="below_lowest", soft=16), "lowest tested step"),
        (limits(slo_state="inconclusive", soft_state="insufficient"), "USERS=20"),
    ],
)
def test_a_ramp_that_gives_no_number_says_what_to_do(tmp_path: Path, found: dict, words: str) -> None:
    ramp(tmp_path, 1, found)
    with pytest.raises(earlier.PlanError, match=words):
        earlier.soak_users("llm", URL, MODEL, "")


def test_other_targets_invalid_and_damaged_ramps_are_passed_over(tmp_path: Path) -> None:
    ramp(tmp_path, 1, limits(slo=4, soft=4))
    ramp(tmp_path, 2, limits(slo=5, soft=5), url="http://other:1")
    ramp(tmp_path, 3, limits(slo=6, soft=6), state="invalid")
    ramp(tmp_path, 4, limits(slo=7, soft=7), sim="--slots 8")
    (ramp(tmp_path, 5, limits(slo=8, soft=8)) / "summary.json").write_text("{")
    assert earlier.soak_users("llm", URL, MODEL, "")[0] == 4
    with pytest.raises(earlier.PlanError, match="make ramp"):
        earlier.soak_users("llm", URL, "another", "")


def test_a_simulator_is_the_same_by_its_arguments_whatever_its_port(tmp_path: Path) -> None:
    ramp(tmp_path, 1, limits(slo=7, soft=7), url="http://127.0.0.1:1", sim="--slots 8")
    assert earlier.soak_users("llm", "http://127.0.0.1:2", MODEL, "--slots 8")[0] == 7
    with pytest.raises(earlier.PlanError):
        earlier.soak_users("llm", "http://127.0.0.1:1", MODEL, "--slots 16")
    with pytest.raises(earlier.PlanError):
        earlier.soak_users("llm", "http://127.0.0.1:1", MODEL, "")


def test_the_best_rate_is_of_valid_stages_only(tmp_path: Path) -> None:
    ramp(tmp_path, 1, limits(slo=8, soft=8))
    assert earlier.best_rate("llm", URL, MODEL, "")[0] == 12.5
