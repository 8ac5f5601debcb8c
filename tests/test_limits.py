"""Limits of a step ramp: every fixture of the method, its vectors, and the CSV cases."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from analysis import curves, limits, proportions

CASES = Path(__file__).parent / "cases"
FIXTURES = json.loads((CASES / "method" / "fixtures.json").read_text())
LIMITS = ("saturation", "knee", "queue_onset")


def steps_of(users, rate, ttft=(), tpot=()) -> list[limits.Step]:
    samples = [np.full(50, t) for t in ttft] or [np.array([])] * len(users)
    tpots = [np.full(50, t) for t in tpot] or [np.array([])] * len(users)
    return [limits.Step(c, x, 0.0, t, p) for c, x, t, p in zip(users, rate, samples, tpots, strict=True)]


@pytest.mark.parametrize("name", FIXTURES)
def test_fixture(name: str) -> None:
    case = FIXTURES[name]
    expected = case["expected"]
    out = limits.ramp_limits(steps_of(case["C"], case["X"], case["ttft_p99"]))
    if expected["status"] == "insufficient_steps":
        assert {out[key]["state"] for key in LIMITS} == {"insufficient"}
        return
    assert {key: out[key]["users"] for key in LIMITS} == {key: expected[key] for key in LIMITS}
    for key in ("saturation", "knee"):
        assert out[key]["state"] == (expected[f"{key}_state"] or "none")
    assert out["retrograde"]["found"] == expected["retrograde"]
    assert max(case["X"]) == expected["X_max"]
    hard = proportions.hard_limit(case["C"], case["errors"], case["n"])
    assert (hard["first_error"], hard["confirmed"]) == (
        expected["first_error"],
        expected["hard_limit_confirmed"],
    )
    users, rate = np.array(case["C"], dtype=float), np.array(case["X"])
    best = np.nanmax(limits.elasticity(users, rate)[:-1], axis=1)
    assert best == pytest.approx([e for e in expected["fwd_elasticity_X"] if e is not None], abs=2e-4)


@pytest.mark.parametrize("name", [n for n in FIXTURES if "usl" in FIXTURES[n]["expected"]])
def test_fixture_usl(name: str) -> None:
    case, expected = FIXTURES[name], FIXTURES[name]["expected"]["usl"]
    fit = curves.fit_usl(np.array(case["C"], dtype=float), np.array(case["X"]))
    got = curves.usl(np.array(case["C"], dtype=float), fit["a"], fit["b"], fit["g"])
    want = curves.usl(np.array(case["C"], dtype=float), expected["alpha"], expected["beta"], expected["gamma"])
    assert got == pytest.approx(want, rel=5e-3)
    if fit["peak"] and expected["peak"] < 1000 and expected["alpha"] < 0.99:
        assert fit["peak"] == pytest.approx(expected["peak"], rel=5e-3)


@pytest.mark.parametrize(
    ("slots", "ladder"),
    [
        (b, ladder)
        for b in (8, 12, 15, 16, 17, 24, 32, 40)
        for ladder in ((1, 5, 10, 20, 40, 64, 80, 100), (1, 4, 8, 16, 32, 48, 96))
    ],
)
def test_brackets_hold_the_true_slots_on_any_ladder(slots: int, ladder: tuple[int, ...]) -> None:
    users = np.array(ladder, dtype=float)
    response = 2 * np.maximum(1, users / slots)
    ttft = 0.1 + np.maximum(0, users - slots) * 2 / slots
    out = limits.ramp_limits(steps_of(ladder, users / response, ttft))
    for name in (*LIMITS, "soft_limit"):
        low, high = out[name]["bracket"]
        assert low - 1 <= slots <= high + 1, (name, out[name])
    assert out["soft_limit"]["users"] == min(out["queue_onset"]["users"], out["knee"]["users"])


def test_estimate_between_the_steps() -> None:
    assert limits.crossing((10, 20), (2, 2), 16, (20, 40)) == pytest.approx(32.0)
    assert limits.crossing((10, 20), (5, 5.68), 4.65, (20, 40)) == pytest.approx(29.38, abs=0.01)
    assert limits.crossing((10, 20), (1, 2), 16, (20, 40)) == 40
    case = FIXTURES["slots_32"]
    out = limits.ramp_limits(steps_of(case["C"], case["X"], case["ttft_p99"]))
    assert out["queue_onset"]["estimate"] == pytest.approx(32) and out["queue_onset"]["bracket"] == (20, 40)
    assert out["saturation"]["estimate"] == pytest.approx(32) and out["saturation"]["bracket"] == (20, 40)


def test_suspected_says_which_step_to_add_and_lowest_is_marked() -> None:
    case = FIXTURES["slots_72_last_pair"]
    out = limits.ramp_limits(steps_of(case["C"], case["X"], case["ttft_p99"]))
    assert out["saturation"]["reason"] == "add a step at 120 users or more"
    case = FIXTURES["saturated_at_1"]
    out = limits.ramp_limits(steps_of(case["C"], case["X"], case["ttft_p99"]))
    assert out["saturation"]["at_lowest"] and out["saturation"]["bracket"] == (1, 1)


def test_tpot_knee_and_soft_limit_from_the_knee_alone() -> None:
    users = [1, 5, 10, 20, 40]
    rate = [0.5, 2.5, 5, 10, 10.5]
    out = limits.ramp_limits(steps_of(users, rate, [0.1] * 5, [0.02, 0.02, 0.02, 0.02, 0.04]))
    assert out["tpot_knee"]["users"] == 20 and out["queue_onset"]["state"] == "none"
    assert out["soft_limit"]["users"] == out["knee"]["users"] == 20 and out["soft_limit"]["from"] == "knee"
    without = limits.ramp_limits(steps_of(users, rate))
    assert without["queue_onset"]["state"] == "insufficient" and without["queue_onset"]["reason"] == "not measured"


def test_confidence_is_high_for_a_clear_limit_and_low_for_a_close_call() -> None:
    users = [1, 4, 8, 16, 32, 48]
    clear = limits.ramp_limits([limits.Step(c, min(c, 16) / 2, 0.01) for c in users])["saturation"]
    assert clear["confidence"] > 0.95 and clear["range"] == [16, 16]
    close = [1, 4, 8, 16, 16 * 2**0.2, 16 * 2**0.2]  # elasticity 16 -> 32 sits on the threshold
    unsure = limits.ramp_limits([limits.Step(c, x / 2, 0.05) for c, x in zip(users, close, strict=True)])["saturation"]
    assert unsure["confidence"] < 0.8
    again = limits.ramp_limits([limits.Step(c, x / 2, 0.05) for c, x in zip(users, close, strict=True)])["saturation"]
    assert again == unsure


def test_block_bootstrap_keeps_the_spread_of_correlated_tails() -> None:
    rng = np.random.default_rng(1)
    values = np.repeat(rng.exponential(size=80), 10)
    blocks = limits.block_p99(values, np.random.default_rng(2))
    shuffled = limits.block_p99(rng.permutation(values), np.random.default_rng(2))
    assert blocks.std() > shuffled.std()
    assert limits.block_p99(np.array([5.0]), rng).tolist() == [5.0] * limits.RESAMPLES


def read_case(name: str) -> dict[str, np.ndarray]:
    with (CASES / "csv" / name).open() as file:
        rows = list(csv.DictReader(file))
    return {
        key: np.array([float(row[key]) for row in rows])
        for key in ("users", "throughput_tok_s", "ttft_p99_ms", "errors")
    }


def case_limits(name: str) -> dict:
    case = read_case(name)
    users = case["users"].astype(int).tolist()
    return limits.ramp_limits(steps_of(users, case["throughput_tok_s"], case["ttft_p99_ms"]))


def test_mixed_case_plateau_64_soft_32_hard_128() -> None:
    out, case = case_limits("run-user-percentile-mixed.csv"), read_case("run-user-percentile-mixed.csv")
    assert out["saturation"]["users"] == 32 and out["saturation"]["bracket"] == (16, 64)
    assert out["queue_onset"]["users"] == 16 and out["soft_limit"]["bracket"] == (16, 32)
    hard = proportions.hard_limit(case["users"].astype(int).tolist(), case["errors"].astype(int).tolist(), [2560] * 8)
    assert hard["first_error"] == 128 and hard["bracket"] == [64, 128]


def test_linear_case_has_no_limit_and_two_steps_are_too_few() -> None:
    assert {case_limits("no-knee-linear.csv")[name]["state"] for name in LIMITS} == {"none"}
    assert {case_limits("two-steps.csv")[name]["state"] for name in LIMITS} == {"insufficient"}


def test_cold_first_step_one_spike_and_a_second_visit_are_no_limit() -> None:
    out = case_limits("non-monotonic.csv")
    assert out["queue_onset"]["users"] == 32 and out["queue_onset"]["bracket"] == (32, 64)


def test_kneedle_finds_a_bend_with_many_points_and_none_on_a_line() -> None:
    x = np.arange(1, 65.0)
    assert curves.kneedle(x, np.minimum(x, 16)) == 16
    assert curves.kneedle(x, x) is None and curves.kneedle(x, np.ones(64)) is None


def test_usl_known_fits() -> None:
    users = np.array([1, 18, 36, 72, 108, 144, 216.0])
    fit = curves.fit_usl(users, np.array([64.9, 995.9, 1652.4, 1853.2, 1828.9, 1775.0, 1702.2]), log=False)
    assert (fit["a"], fit["b"]) == (pytest.approx(0.027728, abs=1e-5), pytest.approx(0.00010437, abs=1e-7))
    assert (fit["g"], fit["peak"], fit["n_opt"]) == (
        pytest.approx(89.995, abs=0.01),
        pytest.approx(96.52, abs=0.05),
        pytest.approx(36.06, abs=0.02),
    )
    users = np.array([1, 2, 4, 6, 8, 10.0])
    fit = curves.fit_usl(users, np.array([1, 1.8868, 3.0769, 3.5294, 3.5398, 3.3557]))
    assert (fit["a"], fit["b"], fit["g"], fit["peak"]) == (
        pytest.approx(0.02, abs=1e-4),
        pytest.approx(0.02, abs=1e-4),
        pytest.approx(1.0, abs=1e-3),
        pytest.approx(7.0, abs=0.01),
    )


def test_usl_is_described_only_when_it_fits() -> None:
    users = np.array([1, 5, 10, 20, 40, 64, 80, 100.0])
    assert curves.describe_usl(users[:5], users[:5]) == {"reason": "5 steps, the fit needs 6"}
    assert curves.describe_usl(users, users)["reason"] == "no retrograde term; peak undefined"
    wild = np.array([1, 5, 1, 20, 2, 64, 3, 100.0])
    assert curves.describe_usl(users, wild)["reason"] == "does not follow USL"


def test_mser5_cut() -> None:
    text = "9 8 7 6 5 3 3 2 3 2 1 1 2 1 1 1 2 1 1 1 1 1 1 2 1 1 1 1 1 2"
    assert curves.mser5(np.array(text.split(), dtype=float)) == (10, False)
    assert curves.mser5(np.linspace(9, 1, 100))[1]
    assert curves.mser5(np.array([1.0, 2.0])) == (0, False)
