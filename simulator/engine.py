"""Continuous batching as vLLM V1 does it, as a pure model: it never sleeps and knows only the times it is given."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulator.kvcache import BLOCK_SIZE, BlockPool, blocks_for


@dataclass(slots=True, frozen=True)
class Config:
    """Limits and costs of one engine; times in seconds."""

    slots: int = 32  # max_num_seqs; 0 = no limit
    step_s: float = 0.008
    prefill_token_s: float = 30e-6
    seq_s: float = 50e-6  # per sequence in the batch
    encoder_token_s: float = 0.0  # per image token that the vision encoder has to compute
    kv_blocks: int = 8192
    max_num_batched_tokens: int = 2048
    prefix_caching: bool = True
    leak_s_per_s: float = 0.0  # how much longer a step gets with every second that passes


@dataclass(slots=True, eq=False)
class Seq:
    """One request in the engine: what it asks for, then what happened to it and when."""

    id: str
    prompt_tokens: int
    output_tokens: int  # 0 = pooling: done when the prompt is computed
    finish: str = "length"  # how it will end if nobody aborts it
    block_hashes: list[int] = field(default_factory=list)
    encoder_tokens: int = 0
    listener: Any = None  # whatever the caller wants to find again

    arrival: float = 0.0
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finish_reason: str | None = None
    computed: int = 0
    generated: int = 0
    cached: int = 0
    preemptions: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def known_tokens(self) -> int:
        return self.prompt_tokens + self.generated


class Step(NamedTuple):
    """One forward pass: how long it takes, and (sequence, new tokens, finish reason or None) at its end."""

    duration: float
    outputs: list[tuple[Seq, int, str | None]]
    tokens: int


class Engine:
    """Call `add` and `step(now)`; results of a step hold at `now + duration`, when the next step may start."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.pool = BlockPool(config.kv_blocks)
        self.waiting: deque[Seq] = deque()
        self.running: list[Seq] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.slowdown = 1.0  # how many engines the card's time is shared by
        self._started: float | None = None

    def fits(self, seq: Seq) -> bool:
        """Whether the sequence could run if it were alone."""
        return blocks_for(seq.prompt_tokens + seq.output_tokens) <= self.config.kv_blocks

    def add(self, seq: Seq, now: float) -> None:
        if seq.prompt_tokens < 1:
            raise ValueError(f"{seq.id}: a prompt has at least one token")
        if not self.fits(seq):
            raise ValueError(f"{seq.id}: {seq.prompt_tokens} + {seq.output_tokens} tokens exceed the KV cache")
        seq.arrival = now
        self.waiting.append(seq)

    def abort(self, seq: Seq) -> bool:
        """Drop a sequence at once, voiding its output of a step under way; False if it had ended before."""
        if seq in self.running:
            self.running.remove(seq)
            self._free(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        else:
            return False
        seq.finish_reason = "abort"
        return True

    def step(self, now: float) -> Step | None:
        """Schedule and compute one step that starts now; None when there is nothing to do."""
        self._reap()
        batch = self._schedule(now)
        if not batch:
            return None
        cfg = self.config
        prefill = sum(new for seq, new in batch if seq.computed + new <= seq.prompt_tokens or new > 1)
        images = sum(seq.encoder_tokens for seq, _ in batch if seq.encoder_tokens)
        duration = cfg.step_s + prefill * cfg.prefill_token_s + len(batch) * cfg.seq_s + images * cfg.encoder_token_s
        if self._started is None:
            self._started = now
        duration = (duration + cfg.leak_s_per_s * (now - self._started)) * self.slowdown
        end = now + duration
        outputs = [(seq, *done) for seq, new in batch if (done := self._advance(seq, new, end))]
        return Step(duration, outputs, sum(new for _, new in batch))

    def _schedule(self, now: float) -> list[tuple[Seq, int]]:
        budget = self.config.max_num_batched_tokens
        batch: list[tuple[Seq, int]] = []
        before = self.preemptions
        position = 0
        while position < len(self.running) and budget > 0:  # decodes and begun prefills come first
            seq = self.running[position]
            new = min(seq.known_tokens - seq.computed, budget)
            if not self._grow(seq, new):
                break  # it was the newest, so it preempted itself
            batch.append((seq, new))
            budget -= new
            position += 1
        while self.waiting and budget > 0 and self.preemptions == before and self._slot_free():
            new = self._admit(self.waiting[0], budget, now)
            if not new:
                break
            seq = self.waiting.popleft()
            self.running.append(seq)
            batch.append((seq, new))
            budget -= new
        return batch

    def _slot_free(self) -> bool:
        return self.config.slots == 0 or len(self.running) < self.config.slots

    def _grow(self, seq: Seq, new: int) -> bool:
        """Blocks for `new` more tokens, preempting the newest sequences if need be; False if that was `seq` itself."""
        need = blocks_for(seq.computed + new) - len(seq.blocks)
        while need > 0:
            taken = self.pool.take(need)
            if taken is not None:
                seq.blocks += taken
                break
            victim = self.running.pop()
            self._preempt(victim)
            if victim is seq:
                return False
        self._publish(seq, seq.computed + new)
        return True

    def _preempt(self, seq: Seq) -> None:
        self._free(seq)
        seq.computed = 0
        seq.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(seq)

    def _admit(self, seq: Seq, budget: int, now: float) -> int:
        """Move a waiting sequence's first chunk into the KV cache; the tokens to compute, or 0 if it must wait."""
        # The last token is always computed, since its output is what the next token is drawn from.
        usable = seq.block_hashes[: (seq.known_tokens - 1) // BLOCK_SIZE] if self.config.prefix_caching else []
        hit = self.pool.match(usable)
        cached = len(hit) * BLOCK_SIZE
        new = min(seq.known_tokens - cached, budget)
        self.pool.hold(hit)
        taken = self.pool.take(blocks_for(cached + new) - len(hit))
        if taken is None:
            self.pool.release(hit)
            return 0
        seq.blocks = hit + taken
        seq.computed = cached
        if seq.scheduled is None:
            seq.scheduled = now
            seq.cached = cached
            self.prefix_queries += seq.prompt_tokens if self.config.prefix_caching else 0
            self.prefix_hits += cached
        self._publish(seq, cached + new)
        return new

    def _publish(self, seq: Seq, computed: int) -> None:
        if not self.config.prefix_caching or seq.computed >= seq.prompt_tokens:
            return
        full = min(computed // BLOCK_SIZE, len(seq.block_hashes))
        for index in range(seq.computed // BLOCK_SIZE, full):
            self.pool.publish(seq.blocks[index], seq.block_hashes[index])

    def _advance(self, seq: Seq, new: int, end: float) -> tuple[int, str | None] | None:
        """Account for computed tokens; (new output tokens, finish reason) once the whole prompt is computed."""
        seq.computed += new
        seq.encoder_tokens = 0
        if seq.computed < seq.known_tokens:
            return None
        if seq.output_tokens == 0:
            seq.finish_reason, seq.last_token = seq.finish, end
            return 0, seq.finish_reason
        seq.generated += 1
        seq.last_token = end
        if seq.first_token is None:
            seq.first_token = end
        if seq.generated == seq.output_tokens:
            seq.finish_reason = seq.finish
        return 1, seq.finish_reason

    def _reap(self) -> None:
        done = [seq for seq in self.running if seq.finish_reason]
        if done:
            self.running = [seq for seq in self.running if not seq.finish_reason]
            for seq in done:
                self._free(seq)

    def _free(self, seq: Seq) -> None:
        self.pool.release(seq.blocks)
        seq.blocks = []
