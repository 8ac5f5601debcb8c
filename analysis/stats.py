"""Formulas of method.md sections 1, 2.6 and 3: percentiles with their uncertainty, goodput, Little's law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def good(ok: np.ndarray, ttft: np.ndarray, tpots: np.ndarray, ttft_slo: float, tpot_slo: float) -> np.ndarray:
    """Requests that met the SLO: success, TTFT <= limit, TPOT <= limit; an answer of one token has no TPOT to judge."""
    within = np.isnan(tpots) | (tpots <= tpot_slo)
    return ok & (ttft <= ttft_slo) & within


def binom_ppf(p: float, n: int, q: float) -> int:
    """Smallest k with P(Bin(n, q) <= k) >= p."""
    return int(np.searchsorted(special.bdtr(np.arange(n + 1), n, q), p))


def percentile(values: np.ndarray, q: float) -> float:
    """Hyndman-Fan type 7 quantile."""
    return float(np.quantile(values, q))


def ci_ranks(n: int, q: float, level: float = 0.95) -> tuple[int | None, int | None]:
    """1-based ranks (l, u) of the distribution-free interval of quantile q; None where the sample does not reach."""
    tail = (1 - level) / 2
    low, high = binom_ppf(tail, n, q), binom_ppf(1 - tail, n, q) + 1
    return low or None, high if high <= n else None


def min_n(q: float, level: float = 0.95) -> tuple[int, int]:
    """Least sample size for an upper bound of quantile q >= 0.5: (one-sided, two-sided with equal tails)."""
    one, two = (math.ceil(math.log(tail) / math.log(q)) for tail in (1 - level, (1 - level) / 2))
    return one, two


def lag1(values: np.ndarray) -> float:
    """Lag-1 autocorrelation in the order given; 0 where it is undefined."""
    centred = values - values.mean()
    total = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / total if len(values) > 2 and total > 0 else 0.0


def effective_n(n: int, r: float) -> int:
    """n (1 - r)/(1 + r) for r > 0.1, else n: how many independent requests the sample is worth."""
    return max(1, int(n * (1 - r) / (1 + r))) if r > 0.1 else n


def percentile_ci(values: np.ndarray, q: float) -> tuple[float | None, float | None]:
    """95 % interval of quantile q by order statistics; values in start order, so correlation widens it."""
    n = len(values)
    n_eff = effective_n(n, lag1(values))
    low, high = ci_ranks(n_eff, q)
    ordered = np.sort(values)
    return (
        float(ordered[int(low * n / n_eff) - 1]) if low else None,
        float(ordered[min(n, math.ceil(high * n / n_eff)) - 1]) if high else None,
    )


def describe(values: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """Percentiles the sample size supports, each with its 95 % interval; the others None with the reason."""
    data = np.asarray(values, dtype=float)
    data = data[~np.isnan(data)]
    n = len(data)
    out: dict[str, Any] = {
        "n": n,
        **dict.fromkeys(QUANTILES),
        "max": None,
        "mean": None,
        "ci": {},
        "reasons": {},
    }
    if n:
        out |= {"max": float(data.max()), "mean": float(data.mean()), "n_eff": effective_n(n, lag1(data))}
    for name, q in QUANTILES.items():
        if n < min_n(q)[0]:
            out["reasons"][name] = f"n={n} < {min_n(q)[0]}"
        else:
            out[name] = percentile(data, q)
            out["ci"][name] = percentile_ci(data, q)
    return out


def with_failures(values: np.ndarray, failures: int, q: float) -> float:
    """Type 7 quantile of successes and failures together, a failure counting as infinitely slow."""
    ordered = np.concatenate([np.sort(values), np.full(failures, np.inf)])
    place = (len(ordered) - 1) * q
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return float(low if low == high else high if math.isinf(high) else low + (high - low) * (place % 1))


def in_flight(start: np.ndarray, end: np.ndarray, window: tuple[float, float]) -> float:
    """N_eff = sum of each request's overlap with the window / length of the window."""
    overlap = np.clip(np.minimum(end, window[1]) - np.maximum(start, window[0]), 0, None)
    return float(np.nansum(overlap) / (window[1] - window[0]))


def little(users: int, rate: float, mean_e2e: float, n_eff: float, idle: float = 0.0) -> dict[str, Any]:
    """N_eff/(C - X Z) and X R/N_eff (rate in 1/s, times in s): within 5 % valid, over 10 % off invalid (method 2.6)."""
    kept = n_eff / max(users - rate * idle, 1e-9)
    counted = rate * mean_e2e / n_eff if n_eff > 0 else math.nan
    worst = max(abs(kept - 1), abs(counted - 1))
    state = "valid" if worst <= 0.05 else "warned" if worst <= 0.10 else "invalid"
    return {"n_eff": n_eff, "n_eff_over_users": kept, "xr_over_n_eff": counted, "state": state}
