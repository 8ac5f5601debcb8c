"""Known answers of method.md sections 1, 2.6, 2.7, 2.8, 3 and 4."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats as scipy_stats

from analysis import proportions as p
from analysis import stats as s
from tokenswarm import histogram as h
from tokenswarm.record import tpot_ms


def test_tpot_divides_by_tokens_after_the_first() -> None:
    assert tpot_ms(200.0, 2200.0, 101) == pytest.approx(20.0)
    assert tpot_ms(400.0, 4400.0, 81) == pytest.approx(50.0)
    assert tpot_ms(300.0, 300.0, 1) is None and tpot_ms(300.0, 300.0, 2) is None
    assert tpot_ms(None, 300.0, 9) is None and tpot_ms(300.0, 400.0, None) is None


def test_goodput_counts_failures_and_passes_at_exactly_the_limit() -> None:
    ok = np.array([True, True, True, False])
    ttft = np.array([0.2, 0.4, 0.3, np.nan])
    tpots = np.array([0.020, 0.050, np.nan, np.nan])
    assert s.good(ok, ttft, tpots, 0.5, 0.05).tolist() == [True, True, True, False]
    assert s.good(ok, ttft, tpots, 0.39, 0.05).mean() == 0.5


def test_type_7_percentiles() -> None:
    values = np.arange(1, 21.0)
    assert [round(s.percentile(values, q), 6) for q in (0.5, 0.9, 0.95, 0.99)] == [10.5, 18.1, 19.05, 19.81]


@pytest.mark.parametrize(
    ("n", "q", "ranks"),
    [
        (20, 0.5, (6, 15)),
        (20, 0.9, (15, None)),
        (20, 0.99, (19, None)),
        (100, 0.5, (40, 61)),
        (100, 0.95, (90, 100)),
        (100, 0.99, (97, None)),
        (400, 0.99, (392, 400)),
        (800, 0.99, (786, 798)),
        (2000, 0.99, (1971, 1989)),
    ],
)
def test_order_statistic_interval(n: int, q: float, ranks: tuple[int, int | None]) -> None:
    assert s.ci_ranks(n, q) == ranks


def test_binomial_quantile_agrees_with_scipy() -> None:
    for n, q, level in [(20, 0.5, 0.025), (400, 0.99, 0.975), (37, 0.9, 0.5), (1, 0.5, 0.5)]:
        assert s.binom_ppf(level, n, q) == scipy_stats.binom.ppf(level, n, q)


@pytest.mark.parametrize(
    ("q", "least"),
    [(0.5, (5, 6)), (0.9, (29, 36)), (0.95, (59, 72)), (0.99, (299, 368)), (0.999, (2995, 3688))],
)
def test_least_sample_for_a_percentile(q: float, least: tuple[int, int]) -> None:
    assert s.min_n(q) == least


@pytest.mark.parametrize(
    ("n", "one_sided", "bound"),
    [(298, False, False), (299, True, False), (367, True, False), (368, True, True)],
)
def test_p99_is_printed_only_when_the_sample_supports_it(n: int, one_sided: bool, bound: bool) -> None:
    out = s.describe(np.random.default_rng(5).permutation(np.arange(n, dtype=float)))
    assert (out["p99"] is not None) == one_sided
    assert ("p99" in out["reasons"]) != one_sided
    if one_sided:
        low, high = out["ci"]["p99"]
        assert low < out["p99"] and (high is not None) == bound


def test_describe_leaves_out_unknown_values_and_survives_none() -> None:
    assert s.describe([1.0, np.nan, 3.0])["n"] == 2
    assert s.describe([])["p50"] is None and s.describe([])["max"] is None
    assert s.describe([7.0])["max"] == 7.0


def test_interval_covers_the_true_quantile_and_widens_with_correlation() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        low, high = s.percentile_ci(rng.exponential(size=400), 0.95)
        hits += low <= -np.log(0.05) <= high
    assert 0.92 <= hits / 300 <= 0.995
    noise = rng.standard_normal(400)
    smooth = np.convolve(noise, np.ones(20) / 20, "same")
    narrow, wide = s.percentile_ci(rng.permutation(smooth), 0.5), s.percentile_ci(smooth, 0.5)
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])


def test_effective_n() -> None:
    assert s.effective_n(100, 0.05) == 100
    assert s.effective_n(100, 0.5) == 33


def test_merging_raw_values_is_not_averaging_percentiles() -> None:
    a, b = np.arange(1, 1001.0), np.arange(2001, 2101.0)
    assert s.percentile(a, 0.99) == pytest.approx(990.01) and s.percentile(b, 0.99) == pytest.approx(2099.01)
    assert s.percentile(np.concatenate([a, b]), 0.99) == pytest.approx(2089.01)


def test_histograms_merge_by_addition_within_one_percent() -> None:
    a, b = np.arange(1, 1001.0), np.arange(2001, 2101.0)
    merged = Counter(map(h.bucket, a)) + Counter(map(h.bucket, b))
    both = np.sort(np.concatenate([a, b]))
    for q in (0.01, 0.5, 0.95, 0.99, 1.0):
        exact = both[int(q * (len(both) - 1))]
        assert h.quantile(merged, q) == pytest.approx(exact, rel=0.01)
    assert h.quantile({}, 0.5) is None


def test_failures_count_as_infinitely_slow() -> None:
    values = np.arange(1, 100.0)
    assert s.with_failures(values, 0, 0.5) == 50
    assert s.with_failures(values, 1, 0.5) == 50.5
    assert s.with_failures(values, 1, 0.999) == np.inf
    assert s.with_failures(np.array([]), 3, 0.5) == np.inf


def test_littles_law_check() -> None:
    out = s.little(40, 5.161, 7.700, 39.99)
    assert out["n_eff_over_users"] == pytest.approx(0.9998, abs=1e-4)
    assert out["xr_over_n_eff"] == pytest.approx(0.9937, abs=1e-4)
    assert out["state"] == "valid"
    assert s.little(40, 31.0 / 6, 6.0, 31.0)["state"] == "invalid"
    assert s.little(40, 37.2 / 6, 6.0, 37.2)["state"] == "warned"


def test_in_flight_is_the_overlap_with_the_window() -> None:
    assert s.in_flight(np.array([0.0, 1.0, 5.0]), np.array([2.0, 9.0, 6.0]), (1.0, 3.0)) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("k", "n", "interval"),
    [
        (0, 20, (0, 0.1684)),
        (1, 20, (0.00127, 0.2487)),
        (3, 800, (0.00077, 0.01092)),
        (792, 800, (0.98039, 0.99567)),
        (5, 5, (0.4782, 1.0)),
    ],
)
def test_clopper_pearson(k: int, n: int, interval: tuple[float, float]) -> None:
    assert p.clopper_pearson(k, n) == pytest.approx(interval, abs=5e-5)


def test_no_error_only_bounds_the_rate() -> None:
    assert p.zero_error_bound(20) == pytest.approx(0.1391, abs=5e-5)
    assert p.zero_error_bound(2000) == pytest.approx(0.001497, abs=5e-7)
    assert p.zero_error_bound(0) == 1.0


@pytest.mark.parametrize(
    ("n", "thresholds"),
    [
        (20, (None, 2)),
        (100, (None, 4)),
        (200, (None, 6)),
        (380, (0, 8)),
        (400, (0, 9)),
        (760, (2, 13)),
        (800, (3, 14)),
        (1216, (6, 19)),
        (1600, (9, 24)),
        (2000, (12, 29)),
    ],
)
def test_slo_verdict_thresholds(n: int, thresholds: tuple[int | None, int]) -> None:
    verdicts = [p.slo_verdict(bad, n) for bad in range(n + 1)]
    passes = [bad for bad, verdict in enumerate(verdicts) if verdict == "PASS"]
    assert (passes[-1] if passes else None, verdicts.index("FAIL")) == thresholds


def test_requests_needed_are_mlperfs_early_stopping() -> None:
    assert [p.requests_needed(t, 0.99, 0.99) for t in range(6)] == [459, 662, 838, 1001, 1157, 1307]
    assert [p.requests_needed(t, 0.9, 0.99) for t in range(4)] == [44, 64, 81, 97]
    assert [p.requests_needed(t, 0.99, 0.95) for t in range(6)] == [299, 473, 628, 773, 913, 1049]


def test_capacity_stops_at_the_first_fail() -> None:
    out = p.slo_capacity([8, 1, 16, 32], [0, 0, 1, 40], [400, 100, 800, 800])
    assert (out["users"], out["first_fail"], out["state"]) == (16, 32, "confirmed")
    assert p.slo_capacity([1, 8], [0, 0], [100, 100])["state"] == "inconclusive"
    assert p.slo_capacity([1, 8], [90, 0], [100, 400]) | {"verdicts": 0} == {
        "users": None,
        "first_fail": 1,
        "state": "below_lowest",
        "goal": 0.99,
        "verdicts": 0,
    }
