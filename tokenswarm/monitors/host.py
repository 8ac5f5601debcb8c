"""How busy a load process is: CPU, memory, and how late its event loop runs. A late loop measures itself."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import gevent
import psutil

from tokenswarm.histogram import bucket

BEAT = 0.05


class Heartbeat:
    """A greenlet that sleeps 50 ms and notes how late it woke (method section 9); `take` sums up about once a second."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.process.cpu_percent()
        self.lags: list[float] = []
        self.since = time.monotonic()
        self.greenlet = gevent.spawn(self._beat)

    def _beat(self) -> None:
        while True:
            before = time.perf_counter()
            gevent.sleep(BEAT)
            self.lags.append((time.perf_counter() - before - BEAT) * 1000.0)

    def restart(self) -> None:
        """Forget what was before the load: starting up is no lag of the measurement."""
        self.lags, self.since = [], time.monotonic()
        self.process.cpu_percent()

    def take(self) -> dict[str, Any]:
        """cpu_pct (100 = one core), rss_mib, lag_max_ms and `lags` (log buckets: counts) since the last take; {} before
        a second is over."""
        if time.monotonic() - self.since < 1.0 or not self.lags:
            return {}
        lags, self.lags, self.since = self.lags, [], time.monotonic()
        return {
            "time": time.time(),
            "cpu_pct": self.process.cpu_percent(),
            "lag_max_ms": max(0.0, *lags),
            "rss_mib": self.process.memory_info().rss / 2**20,
            "lags": [list(pair) for pair in Counter(map(bucket, lags)).items()],
        }
