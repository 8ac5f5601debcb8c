"""How busy a load process is: CPU, memory, and how late its event loop runs. A late loop measures itself."""

from __future__ import annotations

import gc
import time
from collections import Counter
from typing import Any

import gevent
import psutil

from tokenswarm.histogram import bucket

BEAT = 0.05


class Heartbeat:
    """A greenlet that sleeps 50 ms and notes how late it woke (method section 9); `take` sums up each second."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.process.cpu_percent()
        self.lags: list[float] = []
        self.gc_max_ms = self.gc_begun = 0.0
        gc.callbacks.append(self._collecting)
        self.since = time.monotonic()
        self.greenlet = gevent.spawn(self._beat)

    def _beat(self) -> None:
        while True:
            before = time.perf_counter()
            gevent.sleep(BEAT)
            self.lags.append((time.perf_counter() - before - BEAT) * 1000.0)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self.gc_begun = time.perf_counter()
        else:
            self.gc_max_ms = max(self.gc_max_ms, 1000.0 * (time.perf_counter() - self.gc_begun))

    def restart(self) -> None:
        """Forget what was before the load: starting up is no lag of the measurement."""
        self.lags, self.since, self.gc_max_ms = [], time.monotonic(), 0.0
        self.process.cpu_percent()

    def take(self) -> dict[str, Any]:
        """cpu_pct (100 = one core), rss_mib, open files (most are sockets), lag_max_ms, gc_max_ms (longest pause of the
        garbage collector) and `lags` (log buckets: counts) since the last take; {} before a second is over."""
        if time.monotonic() - self.since < 1.0 or not self.lags:
            return {}
        lags, self.lags, self.since = self.lags, [], time.monotonic()
        gc_max_ms, self.gc_max_ms = self.gc_max_ms, 0.0
        return {
            "time": time.time(),
            "cpu_pct": self.process.cpu_percent(),
            "lag_max_ms": max(0.0, *lags),
            "gc_max_ms": gc_max_ms,
            "rss_mib": self.process.memory_info().rss / 2**20,
            "files": float(self.process.num_fds()),
            "lags": [list(pair) for pair in Counter(map(bucket, lags)).items()],
        }
