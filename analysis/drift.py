"""Does a series drift, shift, leak, or fail in clusters? (method.md section 6.) Pure functions of plain arrays."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from scipy import special

from analysis.stats import lag1

FAIL, WARN, LEVEL = 0.10, 0.05, 0.05  # effect that fails, effect that warns, p
MIN_SEGMENT = 5
SHIFT = 0.10  # a level shift is reported from this share of the median
FLAT_MIB, SETTLE_S = 32.0, 300.0
RANDOM_P, MIN_FAILURES = 0.01, 5


def theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    """Median of the slopes of all pairs."""
    i, j = np.triu_indices(len(x), 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


def mk_ess(y: np.ndarray) -> dict[str, Any]:
    """Mann-Kendall with its variance corrected for lag-1 autocorrelation, and the effect b (n-1)/median.

    r = clip(r1 + (1 + 3 max(r1, 0))/n, 0, 0.9); V = n(n-1)(2n+5)/18 (1+r)/(1-r); z = (S - sign S)/sqrt V."""
    n = len(y)
    at = np.arange(n, dtype=float)
    b = theil_sen(at, y)
    r1 = lag1(y - b * at)
    r = float(np.clip(r1 + (1 + 3 * max(r1, 0.0)) / n, 0.0, 0.9))
    i, j = np.triu_indices(n, 1)
    s = float(np.sign(y[j] - y[i]).sum())
    v0 = n * (n - 1) * (2 * n + 5) / 18
    z = (s - np.sign(s)) / np.sqrt(v0 * (1 + r) / (1 - r))
    median = float(np.median(y))
    return {"slope": b, "s": s, "v0": v0, "r1": r1, "r": r, "z": float(z), "p": float(2 * special.ndtr(-abs(z))),
            "effect": b * (n - 1) / median if median else 0.0, "n": n}  # fmt: skip


def drift_verdict(p: float, worse: float) -> str:
    """FAIL from 10 % worse, WARN from 5 %, both only if p < 0.05; else none."""
    if p < LEVEL and worse >= FAIL:
        return "FAIL"
    return "WARN" if p < LEVEL and worse >= WARN else "none"


def noise(y: np.ndarray) -> float:
    """s = 1.4826 MAD(diff)/sqrt 2: the noise of a series whatever its level does."""
    steps = np.diff(y)
    return float(1.4826 * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2))


def change_points(y: np.ndarray, penalty: float | None = None) -> list[int]:
    """First indices of new segments: exact optimal partitioning, squared error + penalty (6 s^2 ln n) a segment."""
    n = len(y)
    if n < 2 * MIN_SEGMENT:
        return []
    cost_of_one = 6 * noise(y) ** 2 * np.log(n) if penalty is None else penalty
    cost_of_one = max(cost_of_one, 1e-9 * float(((y - y.mean()) ** 2).sum()))
    sums, squares = np.concatenate([[0], np.cumsum(y)]), np.concatenate([[0], np.cumsum(y**2)])
    best, before = np.full(n + 1, np.inf), np.zeros(n + 1, dtype=int)
    best[0] = -cost_of_one
    for end in range(MIN_SEGMENT, n + 1):
        starts = np.arange(0, end - MIN_SEGMENT + 1)
        spread = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        total = best[starts] + spread + cost_of_one
        before[end] = starts[np.argmin(total)]
        best[end] = total.min()
    points, end = [], n
    while before[end] > 0:
        end = int(before[end])
        points.append(end)
    return points[::-1]


def level_shifts(y: np.ndarray) -> list[tuple[int, float]]:
    """(index, relative jump) of change points whose segment means differ by 10 % of the median or more."""
    edges = [0, *change_points(y), len(y)]
    means = [y[a:b].mean() for a, b in itertools.pairwise(edges)]
    jumps = [(edges[k + 1], (means[k + 1] - means[k]) / np.median(y)) for k in range(len(means) - 1)]
    return [(index, float(jump)) for index, jump in jumps if abs(jump) >= SHIFT]


def error_pattern(counts: np.ndarray) -> dict[str, Any]:
    """random or clustered, by the dispersion of the counts: D = (k-1) s^2/mean ~ chi2(k-1); Fano = s^2/mean."""
    total, k = int(counts.sum()), len(counts)
    if total < MIN_FAILURES or k < 2:
        return {"failures": total, "verdict": "none" if not total else "too few to tell", "fano": None, "p": None}
    fano = float(counts.var(ddof=1) / counts.mean())
    p = float(special.chdtrc(k - 1, (k - 1) * fano))
    return {"failures": total, "verdict": "random" if p >= RANDOM_P else "clustered", "fano": fano, "p": p}


def runs_test(failed: np.ndarray) -> tuple[int, float, float]:
    """(runs, expected runs, z) of an outcome sequence (Wald-Wolfowitz)."""
    n1, n = int(failed.sum()), len(failed)
    n0 = n - n1
    runs = 1 + int((failed[1:] != failed[:-1]).sum())
    expected = 2 * n1 * n0 / n + 1
    return runs, expected, (runs - expected) / float(np.sqrt((expected - 1) * (expected - 2) / (n - 1)))


def memory_growth(seconds: np.ndarray, used: np.ndarray, total: float | None = None) -> dict[str, Any]:
    """flat, step, settling or leak of memory samples (MiB), with hours to OOM = (total - used)/slope for a leak."""
    length = float(seconds[-1] - seconds[0])
    late = seconds - seconds[0] >= min(SETTLE_S, length / 6)
    t, y = seconds[late], used[late]
    if len(y) < 12:
        return {"verdict": "cannot judge", "reason": f"{len(y)} samples"}
    third = len(y) // 3
    growth = float(np.median(y[-third:]) - np.median(y[:third]))
    out: dict[str, Any] = {"growth_mib": growth, "used_mib": float(np.median(y[-third:])), "mib_per_hour": None,
                           "hours_to_oom": None, "samples": len(y)}  # fmt: skip
    if growth < max(FLAT_MIB, 5 * noise(y)):
        return out | {"verdict": "flat"}
    at, jump = _largest_jump(y)
    without = np.where(np.arange(len(y)) >= at, y - jump, y)
    half = len(y) // 2
    if jump >= 0.8 * growth and _slope(t[half:], without[half:]) * (t[-1] - t[half]) < 0.25 * growth:
        return out | {"verdict": "step", "at_s": float(t[at] - seconds[0]), "step_mib": jump}
    last, whole = _slope(t[half:], y[half:]), _slope(t, y)
    if last < 0.5 * whole:
        return out | {"verdict": "settling"}
    out |= {"verdict": "leak", "mib_per_hour": last * 3600}
    return out | {"hours_to_oom": max(0.0, total - float(y[-1])) / (last * 3600) if total else None}


def _slope(t: np.ndarray, y: np.ndarray) -> float:
    """Least-squares slope: samples are many, and a leak in lumps has a median slope of 0."""
    centred = t - t.mean()
    return float(centred @ (y - y.mean()) / (centred @ centred))


def _largest_jump(y: np.ndarray, side: int = 6) -> tuple[int, float]:
    """(index, MiB) of the largest rise between the medians of the samples before and after."""
    places = range(side, len(y) - side + 1)
    jumps = [float(np.median(y[i : i + side]) - np.median(y[i - side : i])) for i in places]
    best = int(np.argmax(jumps))
    return best + side, jumps[best]
