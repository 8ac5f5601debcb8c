"""What the live page, the tabs and /metrics show: read from the end of the run's own files, only when somebody asks.

So looking costs the load nothing while nobody looks, and what is shown is what is kept. (stdlib only)"""

from __future__ import annotations

import csv
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenswarm.histogram import bucket, quantile
from tokenswarm.record import COLUMNS, tpot_ms

KEEP_S = 900
CHUNK = 32 << 10  # what is read at once: a few ms, since the load may run in this same process
AT = {name: COLUMNS.index(name) for name in COLUMNS}
GPU_SERIES = ("mem_used_mib", "mem_total_mib", "power_w", "util_pct", "temp_c")


class Tail:
    """New whole lines of a growing CSV since the last look, split at commas; the header is skipped."""

    def __init__(self, path: Path) -> None:
        self.path, self.at, self.head = path, 0, True

    def read(self) -> list[list[str]]:
        """Rows that came; [] when there are none, or no file yet."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.at)
                data = file.read(CHUNK)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.at += len(whole)
        rows = list(csv.reader(whole.decode("utf-8", "replace").splitlines()))
        if rows and self.head:
            self.head = False
            return rows[1:]
        return rows


@dataclass
class Second:
    """One second of the run, by the client's own records."""

    done: int = 0
    failed: int = 0
    tokens: float = 0.0
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)


@dataclass
class Tally:
    """The stage of one endpoint so far."""

    stage: str = ""
    requests: int = 0
    failed: int = 0
    good: int = 0
    tokens: int = 0
    begun: float = 0.0
    last: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    ttft: Counter[int] = field(default_factory=Counter)
    tpot: Counter[int] = field(default_factory=Counter)
    itl: Counter[int] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return max(self.last - self.begun, 0.001)


class LiveRun:
    """The newest seconds of one run folder, and the totals of its present stage."""

    def __init__(self, folder: Path, slo: dict[str, float]) -> None:
        self.folder, self.slo = folder, slo
        self.tails = {
            name: Tail(folder / f"{name}.csv") for name in ("requests", "itl", "host", "engine", "gpu", "server")
        }
        self.seconds: dict[int, Second] = defaultdict(Second)
        self.stages: dict[str, Tally] = {}
        self.totals: Counter[tuple[str, str]] = Counter()  # (endpoint, error word or ok): requests of the run
        self.tokens: Counter[str] = Counter()
        self.engine: dict[str, dict[str, float]] = defaultdict(dict)
        self.gpu: dict[str, dict[str, float]] = defaultdict(dict)
        self.host: dict[str, dict[str, float]] = defaultdict(dict)
        self.server: dict[str, dict[str, float]] = defaultdict(dict)
        self.history: dict[int, dict[str, float]] = defaultdict(dict)
        self.changed: dict[int, int] = {}  # second -> the look at which it last changed
        self.looks = 1
        self.looked = 0.0

    def update(self) -> bool:
        """Read a piece of what came since, at most twice a second; True while there is more."""
        if time.monotonic() - self.looked < 0.5:
            return False
        before = [tail.at for tail in self.tails.values()]
        self.looks += 1
        for row in self.tails["requests"].read():
            if len(row) == len(COLUMNS):
                self._request(row)
        for row in self.tails["itl"].read():
            tally = self.stages.get(row[1]) if len(row) == 4 else None
            if tally and tally.stage == row[0]:
                tally.itl[int(row[2])] += int(row[3])
        for name in ("host", "engine", "gpu", "server"):
            for row in self.tails[name].read():
                if len(row) == 4:
                    self._sample(name, row)
        self._forget()
        more = any(tail.at - at > CHUNK // 2 for tail, at in zip(self.tails.values(), before))
        self.looked = 0.0 if more else time.monotonic()
        return more

    def _request(self, row: list[str]) -> None:
        endpoint, error = row[AT["endpoint"]], row[AT["error"]]
        start, e2e, ttft = number(row[AT["start_time"]]), number(row[AT["e2e_ms"]]), number(row[AT["ttft_ms"]])
        tokens = int(number(row[AT["output_tokens"]]) or 0)
        self.totals[endpoint, error or "ok"] += 1
        if start is None:
            return
        end = start + (e2e or 0.0) / 1000
        tally = self.stages.get(endpoint)
        if tally is None or tally.stage != row[AT["stage"]]:
            tally = self.stages[endpoint] = Tally(row[AT["stage"]], begun=start)
        tally.begun, tally.last = min(tally.begun, start), max(tally.last, end)
        tally.requests += 1
        second = self._second(end)
        if error:
            tally.failed += 1
            tally.errors[error] += 1
            second.failed += 1
            return
        second.done += 1
        tally.tokens += tokens
        self.tokens[endpoint] += tokens
        tpot = tpot_ms(ttft, e2e, tokens)
        if ttft is not None:
            tally.ttft[bucket(ttft)] += 1
            self._second(start + ttft / 1000).ttft.append(ttft)
            self._spread(start + ttft / 1000, end, tokens)
        if tpot is not None:
            tally.tpot[bucket(tpot)] += 1
            second.tpot.append(tpot)
        slow = (ttft or 0.0) > self.slo["ttft_ms"] or (tpot or 0.0) > self.slo["tpot_ms"]
        tally.good += not slow

    def _second(self, at: float) -> Second:
        self.changed[int(at)] = self.looks
        return self.seconds[int(at)]

    def _spread(self, begin: float, end: float, tokens: int) -> None:
        """A request's tokens, evenly over the seconds in which it decoded."""
        if end - begin < 0.001:
            self._second(end).tokens += tokens
            return
        for second in range(max(int(begin), int(end) - KEEP_S), int(end) + 1):
            share = min(end, second + 1) - max(begin, second)
            self._second(second).tokens += tokens * max(0.0, share) / (end - begin)

    def _sample(self, name: str, row: list[str]) -> None:
        at, source, metric, value = number(row[0]), row[1], row[2], number(row[3])
        if at is None or value is None or "_le_" in metric:
            return
        latest: dict[str, dict[str, float]] = getattr(self, name)
        before, last = latest[source].get(metric), latest[source].get("time", at)
        second = self.history[int(at)] if name in ("engine", "gpu") else {}
        if name in ("engine", "gpu"):
            self.changed[int(at)] = self.looks
        if name == "engine" and metric in ("running", "waiting", "kv_use"):
            second[f"{metric} {source}"] = value
        if name == "engine" and metric == "generation_tokens" and before is not None and at > last:
            speed = (value - before if value >= before else value) / (at - last)
            second[f"tokens {source}"] = latest[source]["tokens_per_s"] = speed
        if name == "gpu" and metric in GPU_SERIES:
            second[f"{metric} {source.partition('|')[0]}"] = value
        latest[source][metric] = value
        if metric == "generation_tokens" or name != "engine":
            latest[source]["time"] = at

    def _forget(self) -> None:
        newest = max(max(self.seconds, default=0), max(self.history, default=0))
        for table in (self.seconds, self.history, self.changed):
            for second in [s for s in table if s < newest - KEEP_S]:
                del table[second]  # type: ignore[attr-defined]

    def points(self, since: int) -> list[dict[str, float]]:
        """A point for each second that changed after look number `since`: a request is known when it ends, and its
        tokens belong to seconds before."""
        out = []
        for at in sorted(second for second, look in self.changed.items() if look > since):
            point: dict[str, float] = {"t": at, **self.history.get(at, {})}
            second = self.seconds.get(at)
            if second:
                point |= {"done": second.done, "failed": second.failed, "tok": round(second.tokens, 1)}
                point |= _percentiles("ttft", second.ttft) | _percentiles("tpot", second.tpot)
            out.append(point)
        return out


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    values = sorted(values)
    return {
        f"{name}50": round(values[len(values) // 2], 2),
        f"{name}95": round(values[int(0.95 * (len(values) - 1))], 2),
    }


def number(text: str) -> float | None:
    """A finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e300 else None


def rounded(value: float | None, digits: int = 1) -> float | str:
    """For a table cell: blank stays blank."""
    return "" if value is None else round(value, digits)


def tokens_table(live: LiveRun) -> list[dict[str, Any]]:
    """Rows of the Tokens tab: the present stage, an endpoint a row; ms, but rates per second."""
    rows = []
    for endpoint, t in sorted(live.stages.items()):
        q = {f"{name}_p{100 * p:.0f}": rounded(quantile(counts, p)) for name, counts in
             (("ttft", t.ttft), ("tpot", t.tpot), ("itl", t.itl)) for p in (0.5, 0.95, 0.99)}  # fmt: skip
        rows.append(
            {
                "endpoint": endpoint,
                "stage": t.stage or "-",
                "requests": t.requests,
                "failed": t.failed,
                **q,
                "tokens_s": rounded(t.tokens / t.seconds),
                "goodput_s": rounded(t.good / t.seconds, 2),
            }
        )
    return rows


def gpu_table(live: LiveRun) -> list[dict[str, Any]]:
    """Rows of the GPU tab."""
    keys = ("util_pct", "mem_used_mib", "mem_total_mib", "power_w", "power_limit_w", "temp_c", "sm_mhz")
    return [{"gpu": source.replace("|", " "), **{k: rounded(v.get(k)) for k in keys}}
            for source, v in sorted(live.gpu.items()) if source.startswith("gpu") and source != "gpu"]  # fmt: skip


def engine_table(live: LiveRun) -> list[dict[str, Any]]:
    """Rows of the Engine tab."""
    rows = []
    for kind, v in sorted(live.engine.items()):
        kv, hits, queries = v.get("kv_use"), v.get("prefix_hits"), v.get("prefix_queries")
        rows.append({"engine": kind, "up": "yes" if v.get("up") else "no answer", "running": rounded(v.get("running")),
                     "waiting": rounded(v.get("waiting")), "kv_pct": rounded(None if kv is None else 100 * kv),
                     "preemptions": rounded(v.get("preemptions")),
                     "prefix_pct": rounded(100 * hits / queries if queries and hits is not None else None),
                     "tokens_s": rounded(v.get("tokens_per_s"))})  # fmt: skip
    return rows
