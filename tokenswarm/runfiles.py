"""The growing files of a run: rows as they come, flushed at once, so that a kill leaves what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from tokenswarm.record import header

HEADS = {
    "requests.csv": header(),
    "itl.csv": b"stage,endpoint,bucket,count\n",
    "host.csv": b"time,source,metric,value\n",
}


class RunFiles:
    """requests.csv, itl.csv and host.csv of one run. A file that failed once takes no more."""

    def __init__(self, run: Path) -> None:
        self.open: dict[str, BinaryIO] = {name: (run / name).open("wb") for name in HEADS}

    def append(self, name: str, data: bytes) -> None:
        """Write and flush. Raises OSError the first time it fails."""
        file = self.open.get(name)
        if file is None or not data:
            return
        try:
            file.write(data)
            file.flush()
        except OSError:
            self.open.pop(name)
            raise

    def close(self) -> None:
        """Close all."""
        for file in self.open.values():
            file.close()
        self.open = {}
