"""What the master says of a stage, and what a worker says of how far it is. (stdlib only)"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class StageOrder:
    """What the master says of a stage: `requests` in all or `hold_s` s, users' starts spread over `spread_s`."""

    run: str = ""
    phase: str = ""
    name: str = ""
    users: int = 0
    requests: int = 0
    spread_s: float = 0.0
    workers: int = 1
    counts: dict[str, int] = field(default_factory=dict)  # users of each kind
    hold_s: float = 0.0
    rate: float = 0.0  # open loop: arrivals/s over all workers
    seed: int = 0
    prompts: str = ""
    warmup: bool = False


@dataclass(slots=True)
class Tally:
    """This worker's counts of the stage so far; the master adds them up for progress and for the stage's end."""

    started: int = 0  # users that joined
    live: int = 0  # users that joined and have not left
    done: int = 0
    failed: int = 0
    server_failed: int = 0  # failures that are not our own fault
    e2e_ms: float = 0.0
    ttft: Counter[int] = field(default_factory=Counter)  # log buckets since the last blob

    def numbers(self) -> list[float]:
        """What adds up, as it travels."""
        return [self.started, self.live, self.done, self.failed, self.server_failed, self.e2e_ms]
