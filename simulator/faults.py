"""Faults on request: which request fails, how, and at which token."""

import random
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Rates:
    """Probability of each fault per request; at most one happens to a request."""

    error: float = 0.0  # HTTP 500 at once
    cut: float = 0.0  # connection closed in mid-stream
    inband: float = 0.0  # error event inside the 200
    stall: float = 0.0  # this stream pauses once for stall_s, then catches up
    stall_s: float = 1.0


@dataclass(slots=True, frozen=True)
class Burst:
    """HTTP 500 for every request of this span of the loop's time."""

    start: float = 0.0
    end: float = 0.0

    def on(self, now: float) -> bool:
        return self.start <= now < self.end


@dataclass(slots=True, frozen=True)
class Fault:
    kind: str
    at: int  # happens instead of (a stall: before) this token, counted from 1


def draw(rates: Rates, rng: random.Random, output_tokens: int) -> Fault | None:
    """The fault of the next request, or None. Always takes two numbers, so that runs stay comparable."""
    chance, place = rng.random(), rng.random()
    at = min(2, output_tokens) + int(place * max(0, output_tokens - 2))  # neither the first nor the last if it can be
    for kind in ("error", "cut", "inband", "stall"):
        rate = getattr(rates, kind)
        if chance < rate:
            return Fault(kind, at)
        chance -= rate
    return None
