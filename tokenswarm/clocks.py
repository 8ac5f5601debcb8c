"""How far another machine's clock is from ours: ping and pong (method section 9). (stdlib only)"""

from __future__ import annotations

from collections.abc import Sequence

PINGS = 10
ENOUGH = 8  # answers that an estimate needs
WARN_MS, FAIL_MS = 50.0, 500.0  # of the bound; it only limits joining with server metrics, never a duration

Sample = tuple[float, float, float, float]  # t0 sent here, t1 received there, t2 answered there, t3 received here (s)
Estimate = tuple[float, float]  # offset there - here, and the most it can be wrong by, in ms


def offset(t0: float, t1: float, t2: float, t3: float) -> tuple[float, float]:
    """theta = ((t1-t0)+(t2-t3))/2 and delay = (t3-t0)-(t2-t1), both in s; |error of theta| <= delay/2."""
    return ((t1 - t0) + (t2 - t3)) / 2, (t3 - t0) - (t2 - t1)


def estimate(samples: Sequence[Sample]) -> Estimate | None:
    """Offset and bound in ms from the sample with the least delay; None below 8 samples."""
    if len(samples) < ENOUGH:
        return None
    theta, delay = min((offset(*sample) for sample in samples), key=lambda pair: pair[1])
    return theta * 1000.0, max(0.0, delay) * 500.0


def overall(estimates: Sequence[Estimate]) -> Estimate | None:
    """One offset for the whole run: the middle of all estimates' intervals; its bound covers them all, drift and
    steps between them included."""
    if not estimates:
        return None
    low = min(theta - bound for theta, bound in estimates)
    high = max(theta + bound for theta, bound in estimates)
    return (low + high) / 2, (high - low) / 2
