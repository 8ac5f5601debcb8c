"""Log-bucketed counts: relative error at most 1 %, merged by adding (DDSketch, VLDB'19)."""

from __future__ import annotations

import math
from collections.abc import Mapping

GAMMA = 1.01 / 0.99
_LOG = math.log(GAMMA)


def bucket(ms: float) -> int:
    """Index i of the bucket (GAMMA^(i-1), GAMMA^i] in microseconds; anything below 1 us is bucket 0."""
    return math.ceil(math.log(ms * 1000.0) / _LOG) if ms > 0.001 else 0


def value(index: int) -> float:
    """The ms that stand for a bucket: within 1 % of everything in it."""
    return 2.0 * GAMMA**index / (GAMMA + 1.0) / 1000.0


def quantile(counts: Mapping[int, int], q: float) -> float | None:
    """The q-quantile (0..1) in ms; None when there are no counts."""
    left = q * (sum(counts.values()) - 1)
    for index in sorted(counts):
        left -= counts[index]
        if left < 0:
            return value(index)
    return None
