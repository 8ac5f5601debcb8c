"""What one engine counted, in the buckets of vLLM's histograms."""

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.engine import Seq

TOKEN_GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
FIRST_TOKEN = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
LATENCIES = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)
STEP_TOKENS = tuple(float(2**n) for n in (0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
LATENESS = (5e-5, 1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 7.5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 0.01, 0.02, 0.05, 0.1)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def one_two_five(limit: int) -> tuple[float, ...]:
    """1 2 5 10 20 50 ... up to the limit."""
    return tuple(float(m * 10**e) for e in range(9) for m in (1, 2, 5) if m * 10**e <= limit)


class Histogram:
    """Counts per bucket and a sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Stats:
    """Counters and histograms of one model's engine."""

    def __init__(self, max_model_len: int) -> None:
        sizes = one_two_five(max_model_len)
        self.created = time.time()
        self.prompt_tokens = self.cached_tokens = self.generation_tokens = 0
        self.mm_queries = self.mm_hits = self.rejections = 0
        self.lateness_max = 0.0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.iteration = Histogram(STEP_TOKENS)
        self.ttft, self.itl, self.tpot = Histogram(FIRST_TOKEN), Histogram(TOKEN_GAPS), Histogram(TOKEN_GAPS)
        self.e2e, self.queue, self.inference, self.prefill, self.decode = (Histogram(LATENCIES) for _ in range(5))
        self.prompt_size, self.output_size, self.max_output, self.max_tokens, self.kv_computed = (
            Histogram(sizes) for _ in range(5)
        )
        self.preemptions = Histogram(PREEMPTIONS)
        self.lateness = Histogram(LATENESS)
        self._previous: dict[Any, float] = {}

    def asked(self, limit: int, body: dict[str, Any]) -> None:
        """A generation request came, allowed this many output tokens."""
        self.max_output.observe(limit)
        asked = body.get("max_completion_tokens", body.get("max_tokens"))
        if asked is not None:
            self.max_tokens.observe(asked)

    def step(self, tokens: int) -> None:
        self.iteration.observe(tokens)

    def tokens(self, due: float, batch: "Iterable[tuple[Seq, int, str | None, bytes]]", written: list[float]) -> None:
        """Account for outputs that were due at one time and were written at these times."""
        for (seq, new, finish, _), at in zip(batch, written, strict=True):
            late = at - due
            self.lateness.observe(late)
            self.lateness_max = max(self.lateness_max, late)
            if new:
                self.generation_tokens += 1
                previous = self._previous.get(seq)
                if previous is None:
                    self._first_token(seq, due)
                else:
                    self.itl.observe(due - previous)
                self._previous[seq] = due
            if finish:
                self._finished(seq, due)

    def _first_token(self, seq: "Seq", due: float) -> None:
        self.ttft.observe(due - seq.arrival)
        self._prompt(seq)

    def _prompt(self, seq: "Seq") -> None:
        self.prompt_tokens += seq.prompt_tokens
        self.cached_tokens += seq.cached

    def _finished(self, seq: "Seq", due: float) -> None:
        assert seq.scheduled is not None
        first = self._previous.pop(seq, None) and seq.first_token
        if first is None:
            self._prompt(seq)
            first = due
        self.finished[seq.finish] += 1
        self.e2e.observe(due - seq.arrival)
        self.queue.observe(seq.scheduled - seq.arrival)
        self.inference.observe(due - seq.scheduled)
        self.prefill.observe(first - seq.scheduled)
        self.decode.observe(due - first)
        self.prompt_size.observe(seq.prompt_tokens)
        self.output_size.observe(seq.output_tokens)
        self.kv_computed.observe(seq.prompt_tokens - seq.cached)
        self.preemptions.observe(seq.preemptions)
        if seq.output_tokens > 1:
            self.tpot.observe((due - first) / (seq.output_tokens - 1))

    def broken_off(self, seq: "Seq", reason: str) -> None:
        """A request ended before its last token: 'abort' if the client left, 'error' if the engine failed."""
        self._previous.pop(seq, None)
        self.finished[reason] += 1
