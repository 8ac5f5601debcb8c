"""Poisson arrivals from one seeded schedule, and whether a server keeps up (method section 4). (stdlib only)"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence

LEAD = 2.0  # s between the stage's announcement and time 0 of its schedule: every worker has its user by then
MIN_SECONDS = 30.0
TTFT_FLOOR_MS = 2500.0
GROWS = 0.5


def schedule(rate: float, hold: float, seed: int) -> Iterator[float]:
    """Due times in s from the stage's start: t_k = sum of Exp(1/rate), up to `hold`; equal arguments, equal times."""
    generator = random.Random(f"arrivals {seed} {rate:.6f}")
    due = generator.expovariate(rate)
    while due < hold:
        yield due
        due += generator.expovariate(rate)


def dispersion(times: Sequence[float], rate: float, hold: float) -> float:
    """Index of dispersion: variance / mean of the arrivals in bins of one mean interval; 1 for Poisson."""
    bins = max(2, round(hold * rate))
    counts = Counter(min(int(t / hold * bins), bins - 1) for t in times)
    mean = len(times) / bins
    if not mean:
        return math.nan
    squares = sum((n - mean) ** 2 for n in counts.values()) + (bins - len(counts)) * mean**2
    return squares / (bins - 1) / mean


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope of the least-squares line, and the half-width of its 95 % interval (normal)."""
    n, mx, my = len(x), sum(x) / len(x), sum(y) / len(y)
    sxx = sum((a - mx) ** 2 for a in x)
    if n < 3 or sxx == 0:
        return 0.0, math.inf
    b = sum((p - mx) * (q - my) for p, q in zip(x, y, strict=True)) / sxx
    rest = sum((q - my - b * (p - mx)) ** 2 for p, q in zip(x, y, strict=True))
    return b, 1.96 * math.sqrt(rest / (n - 2) / sxx)


def oversaturated(samples: Sequence[tuple[float, float, float]], min_seconds: float = MIN_SECONDS,
                  floor_ms: float = TTFT_FLOOR_MS) -> bool:  # fmt: skip
    """Whether requests in flight and TTFT both grow for sure; samples are (s, in flight, TTFT ms), evenly spaced.

    Slopes after the first quarter, both above 0 at 95 % with a margin under twice the slope, once TTFT is over the
    floor (GuideLLM's rule); a rise of under half of the mean is no growth, however sure."""
    if len(samples) < 8 or samples[-1][0] < min_seconds:
        return False
    late = samples[len(samples) // 4 :]
    at = [s[0] for s in late]
    for column in (1, 2):
        y = [s[column] for s in late]
        b, half = slope(at, y)
        rise = b * (at[-1] - at[0])
        if b - half <= 0 or half >= 2 * b or rise < GROWS * sum(y) / len(y):
            return False
    tail = sorted(s[2] for s in late[-max(3, len(late) // 5) :])
    return tail[len(tail) // 2] > floor_ms
