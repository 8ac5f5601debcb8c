"""What the master knows of each load process, and what makes its part of a stage worthless (method section 9)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tokenswarm import clocks
from tokenswarm.histogram import quantile
from tokenswarm.orders import StageOrder, Tally
from tokenswarm.roll import Member

CPU_FAIL = 80.0  # % of one core, mean of 3 samples of a second: one busy second is no overload
LAG_FAIL_MS = 50.0  # P99 of the event loop's lag
LAG_ENOUGH = 100  # samples (of 50 ms) below which a stage's P99 means nothing
LATE_AFTER = 5.0  # s after a stage's begin by which every user has started


@dataclass(slots=True)
class Worker:
    """What the master knows of one load process."""

    member: Member
    blob: int = 0
    rows: int = 0
    last_seq: int = 0
    stage: str = ""
    tally: Tally = field(default_factory=Tally)
    flushed: bool = False
    spool: str = ""
    lost: dict[str, Any] = field(default_factory=dict)  # when, why, and what share of the load went with it
    late: str = ""  # stage in which it was
    worst: dict[str, float] = field(default_factory=dict)  # highest cpu_pct, lag_max_ms, rss_mib
    lags: Counter[int] = field(default_factory=Counter)  # log buckets of the event loop's lag
    stage_lags: Counter[int] = field(default_factory=Counter)
    cpu: deque[float] = field(default_factory=lambda: deque(maxlen=3))

    @property
    def complete(self) -> bool:
        """Every row it ever made is here."""
        return self.flushed and not self.lost and self.rows == self.last_seq

    def share(self, whole: int, order: StageOrder) -> int:
        """Its part of so many users: user i goes to rank i mod W."""
        return len(range(self.member.rank, whole, order.workers))

    def requests(self, order: StageOrder) -> int:
        """Its part of the stage's requests."""
        places = range(self.member.rank, order.users, order.workers)
        return sum(order.requests // order.users + (place < order.requests % order.users) for place in places)

    def started(self, order: StageOrder) -> int:
        """Users that began this stage here."""
        return self.tally.started if self.stage == order.name else 0

    def note(self, host: dict[str, float], lags: dict[int, int]) -> None:
        """Take in a sample of the process's own load."""
        self.lags.update(lags)
        self.stage_lags.update(lags)
        self.cpu.append(host["cpu_pct"])
        for metric, number in host.items():
            self.worst[metric] = max(number, self.worst.get(metric, 0.0))

    def overload(self) -> str:
        """Why the stage's numbers from here are unsafe; blank if they are not."""
        mean = sum(self.cpu) / len(self.cpu) if len(self.cpu) == self.cpu.maxlen else 0.0
        if mean > CPU_FAIL:
            return f"was busy to {mean:.0f} % of a core for 3 s (limit {CPU_FAIL:.0f} %): use more PROCESSES or hosts"
        return ""

    def lagging(self) -> str:
        """The same for the lag of its event loop over the stage so far."""
        p99 = quantile(self.stage_lags, 0.99) if self.stage_lags.total() >= LAG_ENOUGH else None
        if p99 is not None and p99 > LAG_FAIL_MS:
            return f"ran {p99:.0f} ms late (P99 of its event loop; limit {LAG_FAIL_MS:.0f} ms): the machine is too busy"
        return ""

    def note_missing(self, order: StageOrder) -> str:
        """Keep, and say, what share of the stage went with it."""
        users = self.share(order.users, order)
        self.lost |= {"users": users, "of_users": order.users}
        if not order.requests:
            return f"{users} of {order.users} users"
        left = self.requests(order) - (self.tally.done if self.stage == order.name else 0)
        self.lost |= {"requests": left, "of_requests": order.requests}
        return f"{users} of {order.users} users and up to {left} of {order.requests} requests"

    def clock_trouble(self) -> Iterator[tuple[bool, str]]:
        """(whether that makes the run invalid, the sentence)."""
        found = clocks.overall(self.member.estimates)
        if found is None and not self.lost:
            yield False, "its clock could not be compared with the master's"
        elif found and found[1] > clocks.WARN_MS:
            fatal = found[1] > clocks.FAIL_MS
            yield fatal, f"its clock is known to {found[1]:.0f} ms only{': is it being set?' if fatal else ''}"

    def facts(self) -> dict[str, Any]:
        """What run.json keeps."""
        hello = {k: self.member.hello.get(k) for k in ("host", "cores", "open_files", "versions", "hash")}
        theta, bound = clocks.overall(self.member.estimates) or (None, None)
        return {
            "worker": self.member.name,
            "rows": self.rows,
            "cpu_max_pct": self.worst.get("cpu_pct"),
            "lag_p99_ms": quantile(self.lags, 0.99),
            "lag_max_ms": self.worst.get("lag_max_ms"),
            "offset_ms": theta,
            "bound_ms": bound,
            "clocks": [{"offset_ms": t, "bound_ms": b} for t, b in self.member.estimates],
            "complete": self.complete,
            "spool": self.spool,
            "lost": self.lost or None,
            **hello,
        }


def stage_total(workers: Iterable[Worker], order: StageOrder) -> Tally:
    """Counts of the stage over all workers that have begun it; users of a lost one live no more."""
    mine = [w for w in workers if w.stage == order.name]
    total = Tally(*(sum(column) for column in zip(*(w.tally.numbers() for w in mine), strict=True)))
    total.live -= sum(w.tally.live for w in mine if w.lost)
    return total
