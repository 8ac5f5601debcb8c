"""The watcher: samples engines, GPUs and this host once a second, beside the load and never in its process.

    python -m tokenswarm.monitors.watch RUN_DIR     until it is ended
    python -m tokenswarm.monitors.watch -           a run folder on stdin begins, a blank line ends it, EOF ends all

Each source has its own thread: a slow page delays nobody, and its sample keeps the time at which it came. Rows go to
engine.csv, gpu.csv and server.csv (time, source, metric, value); settings and notes to watch.json. (no locust)"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokenswarm import options as opts
from tokenswarm import runs
from tokenswarm.monitors.sources import EnginePage, LocalGpus, Source, sources

FIRST_LOOK, LAST_LOOK = 3.0, 2.0
HEAD = "time,source,metric,value\n"
FILES = ("engine.csv", "gpu.csv", "server.csv")
Rows = Iterable[tuple[str, str, float]]


class Watch:
    """Where samples go: the files of the run, or nowhere between runs (the newest are kept, to begin the next with)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.folder: Path | None = None
        self.latest: dict[tuple[str, str, str], tuple[float, float]] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        self.gpus: dict[str, dict[str, Any]] = {}
        self.simulated_gpu = False
        self.notes: list[str] = []
        self.cost: dict[str, float] = {}  # CPU seconds by monitor
        self.begun = time.monotonic()

    def add(self, file: str, at: float, rows: Rows) -> None:
        """Append rows of one moment. A histogram's bucket only when it changed: it counts up, so nothing is lost."""
        lines = []
        with self.lock:
            for source, metric, value in rows:
                old = self.latest.get((file, source, metric))
                self.latest[file, source, metric] = (at, value)
                if old is None or old[1] != value or not ("_le_" in metric or metric.startswith("process ")):
                    lines.append(_line(at, source, metric, value))
            self._write(file, lines)

    def _write(self, file: str, lines: list[str]) -> None:
        if self.folder is None or not lines:
            return
        try:
            with (self.folder / file).open("a", encoding="utf-8") as out:
                out.write("".join(lines))
        except OSError as error:
            print(f"tokenswarm: {file} cannot be written ({error.strerror})", file=sys.stderr, flush=True)
            self.folder = None

    def note(self, text: str) -> None:
        """One line for the person and for the report, each once."""
        with self.lock:
            if text in self.notes:
                return
            self.notes.append(text)
        print(f"tokenswarm: {text}", file=sys.stderr, flush=True)
        self.save()

    def begin(self, folder: Path) -> None:
        """A run begins: the newest samples from before its load are its first rows."""
        now = time.time()
        with self.lock:
            self.folder, self.begun = folder, time.monotonic()
            self.cost = dict.fromkeys(self.cost, 0.0)
            for file in FILES:
                recent = [(k, v) for k, v in self.latest.items() if k[0] == file and now - v[0] < 5.0]
                recent = [(k, v) for k, v in recent if file != "engine.csv" or k[1] in self.sources]
                self._write(file, [HEAD, *(_line(at, s, m, v) for (_, s, m), (at, v) in recent)])
        self.save()

    def end(self) -> None:
        """The run is over: what was learnt goes to watch.json."""
        self.save(complete=True)
        with self.lock:
            self.folder = None

    def save(self, complete: bool = False) -> None:
        """Write watch.json; one that does not say complete is of a watcher that was killed."""
        with self.lock:
            wall = max(time.monotonic() - self.begun, 0.001)
            cost = {name: round(100 * seconds / wall, 3) for name, seconds in self.cost.items()}
            found = {
                "schema": 1,
                "complete": complete,
                "sources": self.sources,
                "gpus": self.gpus,
                "gpu_simulated": self.simulated_gpu,
                "notes": self.notes,
                "cpu_pct": cost,
            }
            text = json.dumps(found, indent=1, ensure_ascii=False)
            folder = self.folder
        if folder is not None:
            try:
                runs.write_whole(folder / "watch.json", text)
            except OSError as error:
                print(f"tokenswarm: watch.json cannot be written ({error.strerror})", file=sys.stderr, flush=True)


def _line(at: float, source: str, metric: str, value: float) -> str:
    return f"{at:.3f},{source},{metric},{value:.10g}\n"


def prepare(watch: Watch, found: list[threading.Thread], folder: Path) -> None:
    """The models that the run asks for, where the options named none; of the simulator's kinds, those that it loads."""
    try:
        info = runs.load(folder)
    except (OSError, ValueError):
        return
    targets = info.get("targets") or {}
    for page in (source for source in found if isinstance(source, EnginePage)):
        models = {kind: (targets.get(kind) or {}).get("model") or model for kind, model in page.all.items()}
        page.models = {k: m for k, m in models.items() if k in targets or not info.get("simulated")}
        for kind in page.all:
            watch.sources.pop(kind, None)
        watch.sources |= {kind: page.fresh() for kind in page.models}


def follow(watch: Watch, found: list[threading.Thread], lines: Iterable[str]) -> None:
    """Obey stdin."""
    for line in map(str.strip, lines):
        finish(watch, found)
        if line:
            prepare(watch, found, Path(line))
            watch.begin(Path(line))
    finish(watch, found)


def finish(watch: Watch, found: list[threading.Thread]) -> None:
    """One last look at everything, so that counters hold the whole load; then close."""
    if watch.folder is None:
        return
    lookers = [threading.Thread(target=s.look, args=(LAST_LOOK,), daemon=True) for s in found if isinstance(s, Source)]
    for looker in lookers:
        looker.start()
    until = time.monotonic() + LAST_LOOK
    for looker in lookers:
        looker.join(max(0.0, until - time.monotonic()))
    watch.end()


def main(words: list[str] | None = None) -> int:
    """Exit code 0; 2 for wrong usage or options."""
    words = sys.argv[1:] if words is None else words
    if len(words) != 1 or (words[0] != "-" and not Path(words[0]).is_dir()):
        print("watch: give a run folder, or - for folders on stdin", file=sys.stderr)
        return 2
    try:
        options = opts.from_environment()
    except opts.OptionError as error:
        print(f"watch: {error}", file=sys.stderr)
        return 2
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)  # on a busy client host the load comes first
    watch = Watch()
    found = sources(watch, options)
    for source in found:
        source.start()
    _run(words[0], watch, found)
    for source in found:
        if isinstance(source, LocalGpus):
            source.child.terminate()
    return 0


def _run(word: str, watch: Watch, found: list[threading.Thread]) -> None:
    until = time.monotonic() + FIRST_LOOK
    for source in found:
        if isinstance(source, Source):
            source.looked.wait(max(0.0, until - time.monotonic()))
    if word == "-":
        print("ready", flush=True)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the load; our end is the end of stdin
        follow(watch, found, sys.stdin)
        return
    ended = threading.Event()
    stop: Callable[..., None] = lambda *_: ended.set()  # noqa: E731
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    prepare(watch, found, Path(word))
    watch.begin(Path(word))
    ended.wait()
    finish(watch, found)


if __name__ == "__main__":
    sys.exit(main())
