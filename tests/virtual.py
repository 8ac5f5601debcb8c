"""Run folders written by the simulator's own engines in virtual time: half an hour of load in seconds, truth known."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import synthetic

from simulator.cards import Card
from simulator.engine import Config, Engine, Seq
from simulator.generate import draw_tokens
from simulator.options import EMBEDDING, GUARD, RERANK, VLM
from tokenswarm.record import CANARY, RequestRecord

LLM = Config(slots=32)
CONFIGS = {"llm": LLM, "guard": GUARD, "vlm": VLM, "embedding": EMBEDDING, "rerank": RERANK}
OUTPUT = {"llm": 48, "guard": 8, "vlm": 48, "embedding": 0, "rerank": 0}
SEPARATE = [["embedding", "rerank"], ["vlm"], ["llm"], ["guard"]]
START = synthetic.START


class Server:
    """One engine on its card, and the users that wait for it."""

    def __init__(self, kind: str, config: Config, card: Card, seed: str) -> None:
        self.kind, self.card, self.engine = kind, card, Engine(replace(config, prefix_caching=False))
        self.rng = random.Random(f"{seed} {kind}")
        self.busy = False

    def seq(self, name: str, canary: bool) -> Seq:
        out = (
            32 if canary and OUTPUT[self.kind] else draw_tokens(self.rng, OUTPUT[self.kind]) if OUTPUT[self.kind] else 0
        )
        return Seq(name, 100 if canary else self.rng.randint(40, 160), out, "stop")


def run_stage(stage: str, counts: dict[str, int], hold: float, t0: float = START, *, layout: list[list[str]] = SEPARATE,
              configs: dict[str, Config] | None = None, canaries: float = 0.0, phase: str = "mixed", seed: int = 1,
              error_rate: float = 0.0, burst: tuple[float, float] = (0.0, 0.0)) -> list[RequestRecord]:  # fmt: skip
    """Closed-loop users of every kind for `hold` s (and a canary every `canaries` s on each), then drained."""
    cards = {kind: card for i, kinds in enumerate(layout) for card in [Card(i, 0.0)] for kind in kinds}
    servers = {
        k: Server(k, (configs or CONFIGS)[k], cards[k], f"{seed} {stage}") for k in CONFIGS if k in counts or canaries
    }
    events: list[tuple[float, int, str, Any]] = []  # time, order, what, of whom
    order = itertools.count()
    rows: list[RequestRecord] = []
    waiting: dict[Seq, tuple[float, int, bool]] = {}
    rng = random.Random(f"{seed} {stage} faults")

    def at(time: float, what: str, whom: Any) -> None:
        heapq.heappush(events, (time, next(order), what, whom))

    def begin(server: Server, now: float) -> None:
        server.engine.slowdown = server.card.begin(now)
        step = server.engine.step(now)
        server.busy = step is not None
        if step is None:
            server.card.end(now)
        else:
            at(now + step.duration, "step", (server, step))

    def send(server: Server, now: float, canary: bool) -> None:
        if not canary and (rng.random() < error_rate or burst[0] <= now < burst[1]):
            row = record(stage, phase, server, counts, t0 + now, canary)
            row.status, row.error, row.e2e_ms = 500, "http_500", 2.0
            rows.append(row)
            at(now + 1.0, "send", (server, canary))
            return
        seq = server.seq(f"{server.kind}{next(order)}", canary)
        server.engine.add(seq, now)
        waiting[seq] = (now, 0, canary)
        if not server.busy:
            begin(server, now)

    for kind, users in counts.items():
        for user in range(users):
            at(user / users * 0.5, "send", (servers[kind], False))
    if canaries:
        for i, server in enumerate(servers.values()):
            for k in range(int(hold / canaries)):
                at((k + i / len(servers)) * canaries, "send", (server, True))
    while events:
        now, _, what, whom = heapq.heappop(events)
        if what == "send":
            if now < hold:
                send(whom[0], now, whom[1])
            continue
        server, step = whom
        server.card.end(now)
        for seq, _, finish in step.outputs:
            if finish:
                sent, _, canary = waiting.pop(seq)
                rows.append(answered(record(stage, phase, server, counts, t0 + sent, canary), seq, sent, now))
                if not canary:
                    at(now + 0.0005, "send", (server, False))
        begin(server, now)
    return rows


def record(stage: str, phase: str, server: Server, counts: dict[str, int], start: float, canary: bool) -> RequestRecord:
    users = counts.get(server.kind) or None
    return RequestRecord(start, "virtual", phase, stage, users, "box:1", 0, server.kind, f"sim-{server.kind}",
                         CANARY if canary else "chat", "p1", f"id-{start}", 200, clock="kernel",
                         lag_max_ms=0.1)  # fmt: skip


def answered(row: RequestRecord, seq: Seq, sent: float, now: float) -> RequestRecord:
    row.e2e_ms, row.headers_ms, row.input_tokens, row.outcome = (now - sent) * 1000, 1.0, seq.prompt_tokens, "stop"
    if seq.output_tokens:
        assert seq.first_token is not None
        row.ttft_ms, row.output_tokens, row.chunks = (
            (seq.first_token - sent) * 1000,
            seq.output_tokens,
            seq.output_tokens,
        )
        row.tokens_source = "usage"
    else:
        row.items = 1
    return row


def soak(
    folder: Path, hold: float = 1800, users: int = 20, step_ms: float = 40, leak_ms_per_min: float = 0.0, **more: Any
) -> Path:
    """A soak of one llm."""
    config = replace(LLM, step_s=step_ms / 1000, leak_s_per_s=leak_ms_per_min / 1000 / 60)
    rows = run_stage("soak", {"llm": users}, hold, configs={"llm": config}, phase="soak", **more)
    end = max(r.start_time + (r.e2e_ms or 0) / 1000 for r in rows)
    stage = {"stage": "soak", "users": users, "counts": {"llm": users}, "hold_s": hold, "start": START, "end": end,
             "requests": len(rows), "end_reason": "done"}  # fmt: skip
    return synthetic.write(folder, rows, [stage], phase="soak", ended=end)


def mixed(folder: Path, counts: dict[str, int], hold: float = 60, layout: list[list[str]] = SEPARATE,
          canaries: float = 1.0, blocks: dict[str, int] | None = None, slower: float = 1.0,
          **info: Any) -> Path:  # fmt: skip
    """Idle, each alone, together, each alone, idle; `blocks` = KV cache blocks of the llm in some stages, `slower` =
    how much longer steps take from the mixed stage on."""
    alone = [(kind, {kind: n}) for kind, n in counts.items()]
    plan = [("idle", {}), *alone, ("together", counts), *((f"{k}-after", c) for k, c in alone), ("idle-after", {})]
    rows, stages, t0 = [], [], START
    aged = {k: replace(c, step_s=c.step_s * slower) for k, c in CONFIGS.items()}
    seen = False
    for i, (name, users) in enumerate(plan):
        seen = seen or name == "together"
        new = run_stage(
            name, users, hold, t0, layout=layout, canaries=canaries, configs=aged if seen else CONFIGS, seed=i
        )
        end = max([t0 + hold, *(r.start_time + (r.e2e_ms or 0) / 1000 for r in new)])
        told = {"stage": name, "users": sum(users.values()), "counts": users, "hold_s": hold, "start": t0, "end": end,
                "end_reason": "done"}  # fmt: skip
        stages.append(told | ({"gpu_blocks": {"llm": (blocks or {}).get(name, 8192)}}))
        rows += new
        t0 = end + 2
    told = {"phase": "mixed", "ended": t0, "options": {"shared": ["embedding", "rerank"]}} | info
    return synthetic.write(folder, rows, stages, **told)
