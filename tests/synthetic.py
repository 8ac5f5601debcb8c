"""Writes run folders from a small known model: closed loop, `slots` servers, first come first served."""

from __future__ import annotations

import heapq
import json
import random
from pathlib import Path
from typing import Any

from tokenswarm.record import RequestRecord, encode, header

START = 1796092200.0


def stage_rows(stage: str, users: int, n: int, t0: float, rng: random.Random, *, slots: int = 16, service: float = 2.0,
               error_rate: float = 0.0, endpoint: str = "llm", tokens: int = 100) -> list[RequestRecord]:  # fmt: skip
    """n requests of `users` users without think time; service times jittered by 10 %, users start spread over one."""
    free = [t0] * slots
    ready = [t0 + service * i / users for i in range(users)]
    heapq.heapify(ready)
    rows = []
    for _ in range(n):
        start = heapq.heappop(ready)
        begin = max(start, heapq.heappop(free))
        length = service * rng.uniform(0.9, 1.1)
        heapq.heappush(free, begin + length)
        row = RequestRecord(start, "synthetic", "ramp", stage, users, "box:1", 0, endpoint, f"sim-{endpoint}", "chat",
                            "p1", f"id-{len(rows)}-{stage}", 200, clock="kernel", lag_max_ms=0.1)  # fmt: skip
        row.e2e_ms = (begin + length - start) * 1000
        if rng.random() < error_rate:
            row.status, row.error, row.e2e_ms = 503, "http_503", 3.0
            heapq.heapreplace(free, begin)
        elif endpoint in ("embedding", "rerank"):
            row.items, row.input_tokens = 8, 400
        else:
            row.ttft_ms = (begin - start) * 1000 + 100
            row.output_tokens, row.chunks, row.input_tokens = tokens, tokens, 200
            row.cached_tokens, row.tokens_source, row.outcome = 0, "usage", "stop"
        heapq.heappush(ready, start + row.e2e_ms / 1000 + 0.0005)
        rows.append(row)
    return rows


def write(folder: Path, rows: list[RequestRecord], stages: list[dict[str, Any]], **info: Any) -> Path:
    """A run folder with run.json and requests.csv; keys of `info` replace those of run.json, None removes one."""
    folder.mkdir(parents=True)
    rows = sorted(rows, key=lambda r: r.start_time + (r.e2e_ms or 0) / 1000)  # numbered and written as they end
    for seq, row in enumerate(rows, 1):
        row.seq = seq
    (folder / "requests.csv").write_bytes(header() + b"".join(map(encode, rows)))
    whole = {
        "schema": 1, "run": folder.name, "phase": "ramp", "simulated": True, "simulator": "--slots 16",
        "started": START, "ended": START + 600, "state": "complete", "reasons": [], "stages": stages,
        "targets": {"llm": {"url": "http://127.0.0.1:16000", "model": "sim-llm", "server": "vLLM 0.32.0 (simulated)",
                            "max_model_len": 4096}},
        "profiles": {"chat": {"path": "profiles/chat.jsonl", "sha256": "0" * 64, "prompts": 44}}, "seed": 1,
        "slo": {"ttft_ms": 500.0, "tpot_ms": 50.0}, "stream": True, "nonce": True, "options": {},
        "versions": {"python": "3.11", "locust": "2.47.0", "tokenswarm": "0.1.0"}, "git": "abc123",
        "workers": [{"worker": "box:1", "rows": len(rows), "cpu_max_pct": 30.0, "lag_p99_ms": 0.4}],
    } | info  # fmt: skip
    kept = {k: v for k, v in whole.items() if v is not None}
    (folder / "run.json").write_text(json.dumps(kept))
    return folder


def ramp(folder: Path, steps: tuple[int, ...] = (1, 4, 8, 16, 32, 48), per_user: int = 20, least: int = 100,
         errors: dict[int, float] | None = None, info: dict[str, Any] | None = None, **model: Any) -> Path:  # fmt: skip
    """A whole ramp; `errors` gives the share of http_503 at some steps."""
    rng = random.Random(1)
    rows: list[RequestRecord] = []
    stages = []
    t0 = START
    for users in steps:
        n = max(users * per_user, least)
        name = f"u{users:03d}"
        new = stage_rows(name, users, n, t0, rng, error_rate=(errors or {}).get(users, 0.0), **model)
        end = max(r.start_time + (r.e2e_ms or 0) / 1000 for r in new)
        stages.append({"stage": name, "users": users, "requests_planned": n, "requests": n, "start": t0, "end": end,
                       "failures": sum(bool(r.error) for r in new), "end_reason": "done"})  # fmt: skip
        rows += new
        t0 = end + 5
    told = {"stages": stages} | (info or {})
    return write(folder, rows, **told)
