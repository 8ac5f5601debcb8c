"""Descriptions only (method.md 2.5, 5): USL fit, Kneedle, and MSER-5. None of them decides a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import optimize


def usl(users: np.ndarray, a: float, b: float, g: float) -> np.ndarray:
    """X(N) = g N / (1 + a (N-1) + b N (N-1))."""
    return g * users / (1 + a * (users - 1) + b * users * (users - 1))


def fit_usl(users: np.ndarray, rate: np.ndarray, log: bool = True) -> dict[str, Any]:
    """Universal Scalability Law by least squares on ln X (or on X) from four starts."""
    shape = np.log if log else (lambda x: x)

    def miss(p: np.ndarray) -> np.ndarray:
        return shape(usl(users, *p)) - shape(rate)

    starts = [(a, b, rate[0] / users[0]) for a in (0.01, 0.2) for b in (1e-5, 1e-3)]
    bounds = ([0, 0, 1e-12], [1, np.inf, np.inf])
    fits = [
        optimize.least_squares(miss, s, bounds=bounds, x_scale=(0.01, 1e-4, s[2]), xtol=1e-12, ftol=1e-12, gtol=1e-12)
        for s in starts
    ]
    a, b, g = min(fits, key=lambda f: f.cost).x
    log_rate = np.log(rate)
    unexplained = ((np.log(usl(users, a, b, g)) - log_rate) ** 2).sum()
    spread = ((log_rate - log_rate.mean()) ** 2).sum()
    peak = float(np.sqrt((1 - a) / b)) if b >= 1e-7 else None
    return {
        "a": a,
        "b": b,
        "g": g,
        "peak": peak,
        "n_opt": 1 / a if a > 0 else None,
        "x_max": float(usl(np.array([peak]), a, b, g)[0]) if peak else None,
        "r2": 1 - unexplained / spread if spread > 0 else None,
    }


def describe_usl(users: np.ndarray, rate: np.ndarray) -> dict[str, Any]:
    """The fit, or the reason why it is not printed."""
    if len(users) < 6:
        return {"reason": f"{len(users)} steps, the fit needs 6"}
    fit = fit_usl(users, rate)
    if fit["r2"] is None or fit["r2"] < 0.98:
        return {"reason": "does not follow USL", "r2": fit["r2"]}
    return fit if fit["peak"] else fit | {"reason": "no retrograde term; peak undefined"}


def kneedle(x: np.ndarray, y: np.ndarray, sensitivity: float = 1.0) -> float | None:
    """Kneedle knee of a concave increasing curve (Satopaa 2011, unsmoothed), None if no maximum is confirmed."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    xn, yn = (x - x.min()) / np.ptp(x), (y - y.min()) / np.ptp(y)
    gap = yn - xn
    peaks = [i for i in range(1, len(x) - 1) if gap[i] >= gap[i - 1] and gap[i] > gap[i + 1]]
    for here, after in zip(peaks, [*peaks[1:], len(x)][: len(peaks)], strict=True):
        if (gap[here:after] < gap[here] - sensitivity * np.diff(xn).mean()).any():
            return float(x[here])
    return None


def mser5(values: np.ndarray) -> tuple[int, bool]:
    """(requests to cut at the start, still falling at half the sample): MSER over batches of 5 (White, Spratt)."""
    k = len(values) // 5
    if k < 2:
        return 0, False
    means = values[: 5 * k].reshape(k, 5).mean(axis=1)
    scores = [((means[d:] - means[d:].mean()) ** 2).sum() / (k - d) ** 2 for d in range(k // 2 + 1)]
    best = int(np.argmin(scores))
    return 5 * best, best == k // 2
