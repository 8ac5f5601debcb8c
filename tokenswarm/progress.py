"""What a person at the terminal sees while the load runs: stage, requests, rate, TTFT so far, time left."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from rich.console import Console

from tokenswarm.histogram import quantile

logger = logging.getLogger(__name__)
PLAIN_EVERY = 10.0


def say(line: str) -> None:
    """One line to the person at the terminal and to the log."""
    logger.warning(line)
    print(f"tokenswarm: {line}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def load(stage: Any) -> str:
    """What a stage loads with, in words."""
    if stage.rate:
        return f"{stage.rate:.3g} arrivals/s"
    if isinstance(stage.users, int):
        return f"{stage.users} users"
    return " + ".join(f"{count} {kind}" for kind, count in stage.users.items()) or "canaries only"


class Progress:
    """One line, rewritten each second on a terminal and printed every 10 s elsewhere; one line stays per stage."""

    def __init__(self, collector: Any, stages: list[Any], cooldown: float) -> None:
        self.collector, self.stages, self.cooldown = collector, stages, cooldown
        self.console = Console(stderr=True, highlight=False)
        self.rates: list[float] = []  # requests/s of the finished stages
        self.printed = 0.0
        self.live = self.console.status("", spinner="dots") if self.console.is_terminal else None
        if self.live:
            self.live.start()

    def open(self, index: int) -> None:
        """A stage begins."""
        self.index, self.begun = index, time.monotonic()

    def update(self, total: Any) -> None:
        """Show how far the stage is."""
        stage = self.stages[self.index]
        seconds = max(time.monotonic() - self.begun, 0.001)
        rate = total.done / seconds
        line = (
            f"stage {self.index + 1}/{len(self.stages)}  {load(stage)}  {self._so_far(stage, total, seconds)}"
            f"  {rate:.1f} req/s{self._ttft()}{self._failed(total)}{self._left(total, rate)}"
        )
        if self.live:
            self.live.update(line)
        elif time.monotonic() - self.printed > PLAIN_EVERY:
            self.printed = time.monotonic()
            self.console.print(line, soft_wrap=True)

    def close(self, total: Any, reason: str) -> None:
        """A stage ended: its line stays."""
        stage, seconds = self.stages[self.index], time.monotonic() - self.begun
        self.rates.append(total.done / seconds)
        ending = "" if reason == "done" else f"  -> ended early: {reason}"
        self.console.print(
            f"{load(stage):>11}  {total.done:>5} requests in {seconds:5.1f} s  {self.rates[-1]:6.1f} req/s"
            f"{self._ttft()}{self._failed(total)}{ending}",
            soft_wrap=True,
        )

    def end(self) -> None:
        """Leave the terminal clean."""
        if self.live:
            self.live.stop()
        sys.stderr.flush()

    @staticmethod
    def _so_far(stage: Any, total: Any, seconds: float) -> str:
        if stage.hold:
            return f"{clock(min(seconds, stage.hold))} of {clock(stage.hold)}  {total.done} requests"
        return f"{total.done}/{stage.requests} requests"

    def _ttft(self) -> str:
        half, tail = (quantile(self.collector.ttft, q) for q in (0.5, 0.95))
        return "" if half is None or tail is None else f"  TTFT P50 {half:.0f} ms, P95 {tail:.0f} ms"

    @staticmethod
    def _failed(total: Any) -> str:
        return f"  {total.failed} failed" if total.failed else ""

    def _left(self, total: Any, rate: float) -> str:
        """Time left: this stage at its rate, later ones at a rate that grows with users while it still did."""
        if self.stages[self.index].hold:
            later = sum(stage.hold + self.cooldown + 1.0 for stage in self.stages[self.index + 1 :])
            return f"  about {clock(max(self.stages[self.index].hold - time.monotonic() + self.begun, 0) + later)} left"
        if not total.done or any(isinstance(stage.users, dict) for stage in self.stages):
            return ""
        users = self.stages[self.index].users
        best = max([rate, *self.rates])
        flat = len(self.rates) > 1 and self.rates[-1] < 1.2 * self.rates[-2]
        seconds = max(self.stages[self.index].requests - total.done, 0) / max(rate, 0.01)
        for stage in self.stages[self.index + 1 :]:
            expected = best if flat else best * stage.users / users
            seconds += self.cooldown + 1.0 + stage.requests / max(expected, 0.01)
        return f"  about {clock(seconds)} left"
