"""Known answers of method.md section 6."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from analysis import drift


def test_mann_kendall_with_corrected_variance_on_a_rising_series() -> None:
    y = np.array([100, 102, 99, 101, 103, 104, 102, 105, 106, 104, 107, 108.0])
    found = drift.mk_ess(y)
    assert found["slope"] == pytest.approx(0.70714, abs=1e-5)
    assert (found["s"], found["r"]) == (50, 0)
    assert found["v0"] == pytest.approx(212.667, abs=1e-3)
    assert found["r1"] == pytest.approx(-0.3113, abs=1e-4)
    assert found["z"] == pytest.approx(3.3601, abs=1e-4)
    assert found["p"] == pytest.approx(0.000779, abs=1e-6)
    assert found["effect"] == pytest.approx(0.0752, abs=1e-4)
    assert drift.drift_verdict(found["p"], found["effect"]) == "WARN"


def test_mann_kendall_on_a_flat_series() -> None:
    found = drift.mk_ess(np.array([100, 103, 98, 101, 99, 102, 100, 97, 103, 101, 99, 100.0]))
    assert (found["slope"], found["s"]) == (0, -4)
    assert found["z"] == pytest.approx(-0.2057, abs=1e-4)
    assert found["p"] == pytest.approx(0.837, abs=1e-3)
    assert drift.drift_verdict(found["p"], found["effect"]) == "none"


def test_drift_rule_needs_both_significance_and_size() -> None:
    assert drift.drift_verdict(0.049, 0.10) == "FAIL"
    assert drift.drift_verdict(0.05, 0.50) == "none"
    assert drift.drift_verdict(0.001, 0.049) == "none"
    assert drift.drift_verdict(0.001, -0.30) == "none"


def ar1(rng: np.random.Generator, n: int, sd: float, phi: float) -> np.ndarray:
    out, last = np.empty(n), 0.0
    for i in range(n):
        last = phi * last + rng.normal(0, sd * np.sqrt(1 - phi**2))
        out[i] = last
    return out


@pytest.mark.parametrize("phi", [0.0, 0.6])
def test_false_alarms_and_hits_of_the_drift_rule(phi: float) -> None:
    rng = np.random.default_rng(5)
    alarms = hits = 0
    for _ in range(100):
        calm = 100 + ar1(rng, 60, 2.0, phi)
        rising = calm + np.linspace(0, 10, 60)
        for series, is_rising in ((calm, False), (rising, True)):
            found = drift.mk_ess(series)
            warned = drift.drift_verdict(found["p"], found["effect"]) != "none"
            alarms, hits = alarms + (warned and not is_rising), hits + (warned and is_rising)
    assert alarms <= 7 and hits >= 93  # the method says 0-7 % and 98-100 %; 100 series here


def test_a_level_shift_is_found_where_it_is() -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(50):
        y = 100 + rng.normal(0, 2, 60) + np.where(np.arange(60) >= 40, 15, 0)
        found.append(drift.level_shifts(y))
    assert all(len(f) == 1 and abs(f[0][0] - 40) <= 1 and f[0][1] == pytest.approx(0.15, abs=0.03) for f in found)


def test_no_level_shift_in_noise_or_in_a_constant() -> None:
    rng = np.random.default_rng(2)
    assert not any(drift.level_shifts(100 + rng.normal(0, 3, 60)) for _ in range(50))
    assert drift.change_points(np.full(60, 7.0)) == []
    assert drift.change_points(np.array([1.0, 9.0, 1.0])) == []
    assert drift.change_points(np.repeat([10.0, 20.0, 10.0], 20)) == [20, 40]


def test_partitioning_is_the_exact_optimum() -> None:
    rng = np.random.default_rng(3)
    y = np.concatenate([rng.normal(m, 1, 6) for m in (0, 3, 1)])

    def cost(edges: tuple[int, ...]) -> float:
        parts = [y[a:b] for a, b in itertools.pairwise(edges)]
        return sum(float(((p - p.mean()) ** 2).sum()) for p in parts) + 4.0 * len(parts)

    n = len(y)
    choices = [(0, n), *((0, a, n) for a in range(5, n - 4))]
    choices += [(0, a, b, n) for a in range(5, n - 9) for b in range(a + 5, n - 4)]
    best = min(choices, key=cost)
    assert drift.change_points(y, penalty=4.0) == list(best[1:-1])


def memory(extra: np.ndarray | float, seed: int = 0) -> dict[str, object]:
    t = np.arange(0, 1800, 5.0)
    used = 20000 + np.broadcast_to(extra, t.shape) + np.random.default_rng(seed).normal(0, 2, len(t))
    return drift.memory_growth(t, used, 24564.0)


T = np.arange(0, 1800, 5.0)


@pytest.mark.parametrize(
    ("extra", "verdict"),
    [
        (0.0, "flat"),
        (np.where(T >= 900, 300.0, 0.0), "step"),
        (np.where(T >= 1300, 300.0, 0.0), "step"),
        (10 * T / 60, "leak"),
        (3 * T / 60, "leak"),
        (64 * np.floor(T / 240), "leak"),
        (400 * (1 - np.exp(-T / 120)), "flat"),
        (400 * (1 - np.exp(-T / 400)), "settling"),
    ],
    ids=["flat", "step", "late-step", "10-per-min", "3-per-min", "64-every-4-min", "quick-start", "slow-start"],
)
def test_memory_verdicts(extra: np.ndarray | float, verdict: str) -> None:
    assert [memory(extra, seed)["verdict"] for seed in range(20)] == [verdict] * 20


def test_a_leak_has_a_rate_and_a_time_to_the_end() -> None:
    found = memory(10 * T / 60)
    assert found["mib_per_hour"] == pytest.approx(600, rel=0.02)
    assert found["hours_to_oom"] == pytest.approx(7.2, rel=0.02)


def test_too_few_samples_are_not_judged() -> None:
    assert drift.memory_growth(np.arange(5.0), np.arange(5.0))["verdict"] == "cannot judge"


def test_error_patterns() -> None:
    spread = np.array([0, 1, 0, 0, 2, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 1, 0])
    found = drift.error_pattern(spread)
    assert found["fano"] == pytest.approx(0.9655, abs=1e-4)
    assert found["p"] == pytest.approx(0.518, abs=1e-3)
    assert found["verdict"] == "random"
    burst = np.array([0] * 12 + [3, 5, 4] + [0] * 15)
    found = drift.error_pattern(burst)
    assert found["fano"] == pytest.approx(3.897, abs=1e-3)
    assert found["p"] == pytest.approx(7.4e-12, rel=0.01)
    assert found["verdict"] == "clustered"
    assert drift.error_pattern(np.array([0, 4, 0]))["verdict"] == "too few to tell"
    assert drift.error_pattern(np.zeros(30))["verdict"] == "none"


def test_runs_of_adjacent_failures() -> None:
    failed = np.zeros(200, dtype=bool)
    failed[90:102] = True
    runs, expected, z = drift.runs_test(failed)
    assert runs == 3
    assert expected == pytest.approx(23.56)
    assert z == pytest.approx(-13.15, abs=0.01)
