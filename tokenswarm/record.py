"""The record: one row per request attempt, failed or not. Load and analysis share nothing else."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

ERRORS = frozenset(
    {"dns", "connect", "tls", "timeout", "disconnect", "stale", "truncated", "empty", "bad_stream"}
    | {"server_error", "aborted", "cancelled", "client"}
)
"""Closed set of failure words; `http_NNN` (any status) joins it. docs/record.md says what each one means."""

CLIENT_ERRORS = frozenset({"dns", "client", "cancelled", "stale"})
"""Our own side's faults: never evidence of the server's limit (method section 1)."""


CANARY = "canary"
"""Profile of the low-rate requests that watch a service under other services' load; never part of a load's figures."""


@dataclass(slots=True)
class RequestRecord:
    """One request attempt. Times in ms from sending; None = unknown and is written blank, never 0."""

    start_time: float  # Unix seconds of the client's clock at sending
    run: str = ""
    phase: str = ""
    stage: str = ""
    users: int | None = None  # users the stage holds
    worker: str = ""  # host:pid of the client process
    seq: int = 0  # running number of this worker from 1, so a gap shows
    endpoint: str = ""
    model: str = ""
    profile: str = ""
    prompt_id: str = ""
    request_id: str = ""  # sent as X-Request-Id
    status: int = 0  # HTTP status, 0 if none came
    error: str = ""  # blank = success, else a word of ERRORS or http_NNN
    scheduled_ms: float | None = None  # how long after its due time it was sent (open loop only)
    connect_ms: float | None = None  # DNS + TCP + TLS if this request opened its connection
    headers_ms: float | None = None
    ttft_ms: float | None = None  # first token of any sort
    ttfo_ms: float | None = None  # first answer text (after reasoning)
    e2e_ms: float | None = None  # last token; whole reply if not streamed; the failure if it failed
    itl_max_ms: float | None = None  # longest gap between token chunks
    lag_max_ms: float | None = None  # longest wait between a chunk's arrival and our reading it
    clock: str = ""  # `kernel` or `user`: whose arrival stamps the times use
    chunks: int | None = None  # token chunks seen
    bad_events: int | None = None  # events of the stream that could not be read and were skipped
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    tokens_source: str = ""  # `usage` or `chunks`: where output_tokens comes from
    items: int | None = None  # inputs of an embedding, documents of a rerank, images of a vision request
    outcome: str = ""  # finish_reason; for a guard its verdict
    labels: str = ""  # a guard's categories, joined by |
    notes: str = ""  # what else was odd, joined by |: `compressed`, `retry-after=2`


def tpot_ms(ttft_ms: float | None, e2e_ms: float | None, output_tokens: int | None) -> float | None:
    """TPOT = (E2E - TTFT) / (output tokens - 1) in ms (method.md 1). None below two tokens, and where the last came
    with the first (one chunk, or one read): 0 ms would be no speed."""
    if ttft_ms is None or e2e_ms is None or (output_tokens or 0) < 2 or e2e_ms <= ttft_ms:
        return None
    return (e2e_ms - ttft_ms) / ((output_tokens or 0) - 1)


COLUMNS = tuple(f.name for f in fields(RequestRecord))
INT_COLUMNS = frozenset(
    {"users", "seq", "status", "chunks", "bad_events", "items"}
    | {"input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"}
)
FLOAT_COLUMNS = frozenset(["start_time", *(name for name in COLUMNS if name.endswith("_ms"))])


def _cell(name: str, value: object) -> object:
    if value is None:
        return ""
    if name in FLOAT_COLUMNS:
        return f"{value:.6f}" if name == "start_time" else f"{value:.3f}"
    return value


def header() -> bytes:
    """The first line of requests.csv."""
    return (",".join(COLUMNS) + "\n").encode()


def encode(record: RequestRecord) -> bytes:
    """One CSV line, UTF-8, ending in a newline; ms with 3 places, seconds with 6."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_cell(name, getattr(record, name)) for name in COLUMNS])
    return text.getvalue().encode()


def complete_lines(path: Path) -> Iterator[str]:
    """Lines of a file that a killed process may have left: the last is dropped if its newline is missing, since
    `700` cut to `7` would be a wrong number that looks right. NUL blocks (power loss) are taken out."""
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    yield from data[:end].replace(b"\0", b"").decode("utf-8", "replace").splitlines(keepends=True)


def read_rows(path: Path) -> tuple[list[dict[str, str]], int]:
    """Rows of a requests.csv as {column: text}, and how many lines were skipped (cut, or a repeated header).

    Raises ValueError in one line when the first line is not our header."""
    lines = csv.reader(complete_lines(path))
    head = next(lines, None)
    if head is None or "start_time" not in (head[0].lstrip("\ufeff"), *head):
        raise ValueError(f"{path}: not a requests.csv of tokenswarm: first line is {head!r}; resaved by a spreadsheet?")
    head[0] = head[0].lstrip("\ufeff")
    rows, skipped = [], 0
    for line in lines:
        if len(line) != len(head) or line == head:
            skipped += 1
        else:
            rows.append(dict(zip(head, line, strict=True)))
    return rows, skipped
