"""The watcher's monitors, a thread each: metrics pages, this host's GPUs, this host and the servers on it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tokenswarm import options as opts
from tokenswarm.monitors import dcgm, engine, processes, prometheus, scrape
from tokenswarm.monitors.names import EXACT, WANTED

if TYPE_CHECKING:
    from tokenswarm.monitors.watch import Watch

EVERY = 1.0
PREFIXES = (*WANTED, *dcgm.PREFIXES)
NAMES = EXACT | dcgm.EXACT


class Source(threading.Thread):
    """A monitor: `sample` about once a second on a fixed beat; `look` is one more sample, now."""

    def __init__(self, name: str, watch: Watch) -> None:
        super().__init__(name=name, daemon=True)
        self.watch, self.busy, self.looked = watch, threading.Lock(), threading.Event()

    def run(self) -> None:
        due = time.monotonic()
        while True:
            self.look()
            due = max(due + EVERY, time.monotonic() + 0.05)
            time.sleep(due - time.monotonic())

    def look(self, wait: float = -1.0) -> None:
        """One sample, unless one is under way for longer than `wait` seconds."""
        if not self.busy.acquire(timeout=wait):
            return
        try:
            before = time.thread_time()
            self.sample()
            used = time.thread_time() - before
            self.watch.cost[self.name] = self.watch.cost.get(self.name, 0.0) + used
        finally:
            self.busy.release()
            self.looked.set()

    def sample(self) -> None:
        """Take one sample and add it."""
        raise NotImplementedError


class EnginePage(Source):
    """A metrics page: the engines of one or more kinds, and GPUs where it has them."""

    def __init__(self, watch: Watch, url: str, access: scrape.Access, models: dict[str, str]) -> None:
        super().__init__(f"engine {'+'.join(models) or 'page'}", watch)
        self.url, self.access, self.all, self.models = url, access, models, models
        self.told: set[str] = set()
        for kind in models:
            watch.sources[kind] = self.fresh()

    def fresh(self) -> dict[str, Any]:
        """What watch.json begins with for a kind."""
        return {"url": bare(self.url), "engine": "", "facts": {}, "scrapes": 0, "gaps": 0}

    def sample(self) -> None:
        page = scrape.get(self.url, self.access)
        if page.why:
            self._gap(page)
            return
        series = prometheus.parse(page.text, PREFIXES, NAMES)
        for kind, model in list(self.models.items()):
            as_json = page.text.lstrip().startswith("[")
            reading = engine.read(page.text, model) if as_json else engine.from_series(series, model)
            self._take(kind, page, reading)
        rows, facts, simulated = dcgm.from_page(series)
        if rows:
            new = facts.keys() - self.watch.gpus.keys()
            self.watch.gpus |= facts
            self.watch.simulated_gpu |= simulated
            self.watch.add("gpu.csv", page.time, rows)
            if new:
                self.watch.save()
        elif not self.all:
            self._tell("gpu", f"no GPU series at {bare(self.url)}: GPU columns stay blank")

    def _gap(self, page: scrape.Page) -> None:
        for kind in self.models if self.all else {"gpu": ""}:
            if kind in self.watch.sources:
                self.watch.sources[kind]["scrapes"] += 1
                self.watch.sources[kind]["gaps"] += 1
            self._tell(kind, f"no metrics from {bare(self.url)} ({page.why}): {blank(kind)}")
            self.watch.add("engine.csv" if self.all else "gpu.csv", page.time, [(kind, "up", 0.0)])

    def _take(self, kind: str, page: scrape.Page, reading: engine.Reading) -> None:
        known = self.watch.sources.setdefault(kind, self.fresh())
        known["scrapes"] += 1
        if reading.engine != known["engine"] or reading.facts != known["facts"]:
            known.update(engine=reading.engine, facts=reading.facts)
            self.watch.save()
        if reading.note and not reading.values:
            self._tell(kind, f"{bare(self.url)}: {reading.note}: {blank(kind)}")
        elif reading.note:
            self._tell(kind, f"{kind}: {bare(self.url)} {reading.note}")
        if reading.values:
            self.told.add(kind)  # it works: a later gap is one row, not one more line
        rows = [("up", 1.0), ("scrape_ms", page.ms), *reading.values.items()]
        self.watch.add("engine.csv", page.time, [(kind, metric, value) for metric, value in rows])

    def _tell(self, kind: str, text: str) -> None:
        if kind not in self.told:
            self.told.add(kind)
            self.watch.note(text)


def blank(kind: str) -> str:
    """What is missing without the page."""
    if kind == "gpu":
        return "GPU columns stay blank"
    return f"limits of {kind} cannot be explained from inside; {kind.upper()}_METRICS_URL names another page"


def bare(url: str) -> str:
    """The URL without user, password and query, which may hold keys."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class LocalGpus(threading.Thread):
    """This host's GPUs by NVML, in a process apart: a lost GPU may take that one down, not the other monitors."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(name="gpu", daemon=True)
        self.watch = watch
        words = [sys.executable, "-m", "tokenswarm.monitors.gpu", "--stream"]
        self.child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def run(self) -> None:
        seen = False
        assert self.child.stdout is not None
        for text in self.child.stdout:
            found = json.loads(text)
            if "note" in found:
                self.watch.note(found["note"])
                continue
            self.watch.gpus |= found["facts"]
            self.watch.add("gpu.csv", found["time"], found["rows"])
            if not seen:
                self.watch.save()
            seen = True
        if self.child.wait() or seen:
            self.watch.note(f"the GPU monitor ended (exit {self.child.returncode}): GPU columns are blank from then on")


class Host(Source):
    """The machine, and the local servers' processes."""

    def __init__(self, watch: Watch, urls: dict[str, str]) -> None:
        super().__init__("host", watch)
        self.kinds = urls
        self.servers = {url: processes.ServerProcesses(url) for url in urls.values()}

    def sample(self) -> None:
        rows = [("machine", metric, value) for metric, value in processes.machine().items()]
        seen = {url: server.sample() for url, server in self.servers.items()}
        for kind, url in self.kinds.items():
            if kind not in self.watch.sources:
                continue
            rows += [(kind, metric, value) for metric, value in seen[url].items()]
            if self.servers[url].why:
                self.watch.note(f"{kind}: {self.servers[url].why}: growth of its host memory cannot be judged")
        self.watch.add("server.csv", time.time(), rows)


def sources(watch: Watch, options: SimpleNamespace) -> list[threading.Thread]:
    """All monitors that these options ask for."""
    pages: dict[str, dict[str, str]] = {}
    urls = {kind: url for kind in opts.KINDS if (url := getattr(options, f"{kind}_url"))}
    for kind, url in urls.items():
        page = getattr(options, f"{kind}_metrics_url") or url + "/metrics"
        pages.setdefault(page, {})[kind] = getattr(options, f"{kind}_model")
    found: list[threading.Thread] = []
    for page, models in pages.items():
        kind = next(iter(models))
        found.append(EnginePage(watch, page, scrape.access_of(kind, urls[kind], options), models))
    local = {kind: url for kind, url in urls.items() if processes.is_local(url)}
    if options.gpu_metrics_url:
        found.append(EnginePage(watch, options.gpu_metrics_url, scrape.Access(insecure=options.insecure), {}))
    elif options.sim:
        watch.simulated_gpu = True  # the simulator's own gauges, if any: this host's real GPU has no part in it
    elif local:
        found.append(LocalGpus(watch))
    else:
        watch.note(
            "GPUs are not watched: the server is on another host; `make gpu-agent` there, then GPU_METRICS_URL here"
        )
    found.append(Host(watch, local))
    return found
