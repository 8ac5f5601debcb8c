"""Plays an engine against the real clock. Every deadline is the previous one plus the model's duration, so that
lateness of one step never shifts the next."""

import asyncio
import select
import selectors
from typing import Protocol

from simulator.cards import Card
from simulator.engine import Engine, Seq
from simulator.metrics import Stats

MAX_DEBT_S = 0.5  # further behind than this (the process was stopped), start again from now


class Listener(Protocol):
    """Who waits for a sequence's tokens: bytes are built before the deadline and written at it."""

    def prepare(self, new: int, finish: str | None) -> bytes: ...

    def deliver(self, payload: bytes, finish: str | None) -> None: ...


class Pace:
    """What the server needs from a model of time: submit, abort, and how full it is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stats: Stats) -> None:
        self.loop = loop
        self.stats = stats

    def _emit(self, due: float, batch: list[tuple[Seq, int, str | None, bytes]]) -> None:
        """Write a step's tokens back to back, and only then do the accounts."""
        now = self.loop.time
        written = []
        for seq, _, finish, payload in batch:
            seq.listener.deliver(payload, finish)
            written.append(now())
        self.stats.tokens(due, batch, written)


class EnginePace(Pace):
    """Runs an Engine's steps in real time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stats: Stats, engine: Engine, card: Card) -> None:
        super().__init__(loop, stats)
        self.engine = engine
        self.card = card
        self.busy = False
        self.kv_blocks = engine.config.kv_blocks

    @property
    def running(self) -> int:
        return len(self.engine.running)

    @property
    def waiting(self) -> int:
        return len(self.engine.waiting)

    @property
    def kv_usage(self) -> float:
        return self.engine.pool.usage

    @property
    def preemptions(self) -> int:
        return self.engine.preemptions

    @property
    def prefix_queries(self) -> int:
        return self.engine.prefix_queries

    @property
    def prefix_hits(self) -> int:
        return self.engine.prefix_hits

    @property
    def queued(self) -> int:
        """Waiting requests that find no free slot; those that only wait for the next step don't count."""
        slots = self.engine.config.slots
        return self.waiting - max(0, slots - self.running)

    def submit(self, seq: Seq, arrival: float) -> None:
        self.engine.add(seq, arrival)
        if not self.busy:
            self.busy = True
            self.loop.call_soon(self._idle_start)

    def abort(self, seq: Seq) -> bool:
        return self.engine.abort(seq)

    def _idle_start(self) -> None:
        self._start(self.loop.time())

    def _start(self, now: float) -> None:
        self.engine.slowdown = self.card.begin(now)
        step = self.engine.step(now)
        if step is None:
            self.card.end(now)
            self.busy = False
            return
        self.stats.step(step.tokens)
        batch = [(seq, new, finish, seq.listener.prepare(new, finish)) for seq, new, finish in step.outputs]
        self.loop.call_at(now + step.duration, self._finish, now + step.duration, batch)

    def _finish(self, due: float, batch: list[tuple[Seq, int, str | None, bytes]]) -> None:
        self._emit(due, [entry for entry in batch if entry[0].finish_reason != "abort"])
        self.card.end(due)
        behind = self.loop.time() - due
        self._start(due if behind < MAX_DEBT_S else due + behind)


class ExactPace(Pace):
    """Known truth: the first token a fixed time after arrival, the others a fixed gap apart, whatever the load."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stats: Stats, ttft_s: float, tpot_s: float, kv_blocks: int
    ) -> None:
        super().__init__(loop, stats)
        self.ttft_s = ttft_s
        self.tpot_s = tpot_s
        self.timers: dict[Seq, asyncio.TimerHandle] = {}
        self.waiting = self.queued = self.preemptions = self.prefix_queries = self.prefix_hits = 0
        self.kv_usage = 0.0
        self.kv_blocks = kv_blocks

    @property
    def running(self) -> int:
        return len(self.timers)

    def submit(self, seq: Seq, arrival: float) -> None:
        seq.arrival = seq.scheduled = arrival
        self._plan(seq, arrival + self.ttft_s)

    def abort(self, seq: Seq) -> bool:
        timer = self.timers.pop(seq, None)
        if timer is None:
            return False
        timer.cancel()
        seq.finish_reason = "abort"
        return True

    def _plan(self, seq: Seq, due: float) -> None:
        finish = seq.finish if seq.generated + 1 >= seq.output_tokens else None
        new = min(1, seq.output_tokens)
        payload = seq.listener.prepare(new, finish)
        self.timers[seq] = self.loop.call_at(due, self._tick, due, (seq, new, finish, payload))

    def _tick(self, due: float, entry: tuple[Seq, int, str | None, bytes]) -> None:
        seq, new, finish, _ = entry
        seq.generated += new
        seq.first_token = seq.first_token or due
        seq.last_token = due
        seq.finish_reason = finish
        del self.timers[seq]
        self._emit(due, [entry])
        if not finish:
            self._plan(seq, due + self.tpot_s)


class FineSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """epoll rounds timeouts up to whole milliseconds; select() on the epoll descriptor waits in microseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers are good to some 0.1 ms."""
    fine = selectors.DefaultSelector is getattr(selectors, "EpollSelector", None)
    return asyncio.SelectorEventLoop(FineSelector() if fine else None)
