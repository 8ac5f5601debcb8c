"""Numbered blobs on their way to the master: spool file first, sent again until the master says it has them.

The master takes blobs in order only, so rows are neither lost nor doubled however often the network fails. Memory
stays flat while it does: what was written to the spool file is read back from there when it is sent again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenswarm.record import header

WINDOW = 8  # blobs that may be under way at once
RESEND_AFTER = 3.0  # s without an answer


@dataclass(slots=True)
class Blob:
    """One message; its rows are in memory until they were sent, or too many wait; then in the spool file."""

    message: dict[str, Any]
    size: int
    offset: int | None  # in the spool file; None if it is not there
    data: bytes | None
    spool: Path | None = None  # the file that offset is in


class Outbox:
    """`send` takes one message and may raise; what it raised for is sent again later."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self.send = send
        self.spool: Path | None = None
        self.waiting: deque[Blob] = deque()  # not yet acknowledged, oldest first
        self.last = self.sent = self.had = 0  # blob numbers: made, sent, acknowledged
        self.moved = 0.0
        self.trouble: list[str] = []  # sentences for the master

    def open(self, folder: Path, worker: str) -> None:
        """A new run: numbers start again, a spool file of its own."""
        self.waiting.clear()
        self.last = self.sent = self.had = 0
        self.spool = folder / (worker.replace(":", "-") + ".csv")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.spool.write_bytes(header())
        except OSError as error:
            self._no_spool(error)

    def put(self, data: bytes, message: dict[str, Any]) -> None:
        """Take one blob of rows: number it and write it to the spool file."""
        self.last += 1
        at = self._write(data)
        backlog = at is not None and self.last - self.had > WINDOW
        self.waiting.append(Blob({**message, "blob": self.last}, len(data), at, None if backlog else data, self.spool))

    def _write(self, data: bytes) -> int | None:
        if self.spool is None or not data:
            return None
        try:
            with self.spool.open("ab") as file:
                at = file.tell()
                file.write(data)
                return at
        except OSError as error:
            self._no_spool(error)
            return None

    def _no_spool(self, error: OSError) -> None:
        self.trouble.append(f"cannot write its spool file {self.spool} ({error.strerror}): rows are in memory only")
        self.spool = None

    def pump(self) -> None:
        """Send what may be sent now; go back to the oldest blob when no answer came for 3 s."""
        now = time.monotonic()
        if self.sent == self.had:
            self.moved = now
        elif now - self.moved > RESEND_AFTER:
            self.sent, self.moved = self.had, now
        while self.sent < self.last and self.sent - self.had < WINDOW:
            blob = self.waiting[self.sent - self.had]
            self.sent += 1  # before sending: without workers the answer comes within the call
            self.send({**blob.message, "data": self._data(blob)})
            if blob.offset is not None:
                blob.data = None

    def _data(self, blob: Blob) -> bytes:
        if blob.data is not None or not blob.size:
            return blob.data or b""
        assert blob.spool is not None and blob.offset is not None
        with blob.spool.open("rb") as file:
            file.seek(blob.offset)
            return file.read(blob.size)

    def acknowledge(self, number: int) -> None:
        """The master has all blobs up to this one."""
        while self.had < number and self.waiting:
            self.waiting.popleft()
            self.had += 1
            self.moved = time.monotonic()
        self.sent = max(self.sent, self.had)

    @property
    def empty(self) -> bool:
        """Everything was acknowledged."""
        return not self.waiting
