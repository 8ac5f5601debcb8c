"""The master's side of a run: its folder, run.json, the rows that come in, and whether all of them came."""

from __future__ import annotations

import json
import logging
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import gevent
from locust.rpc.protocol import Message

from tokenswarm import runs
from tokenswarm.histogram import quantile
from tokenswarm.options import OPTIONS
from tokenswarm.prompts import Profile
from tokenswarm.record import header
from tokenswarm.recorder import StageOrder, Tally

logger = logging.getLogger(__name__)
FLUSH_TIMEOUT = 20.0
EXIT = {"complete": 0, "incomplete": 4, "invalid": 4, "interrupted": 130}


def say(line: str) -> None:
    """One line to the person at the terminal and to the log."""
    logger.warning(line)
    print(f"tokenswarm: {line}", file=sys.stderr, flush=True)


@dataclass(slots=True)
class Worker:
    """What the master knows of one load process."""

    node: str
    blob: int = 0
    rows: int = 0
    last_seq: int = 0
    stage: str = ""
    tally: Tally = field(default_factory=Tally)
    flushed: bool = False
    lost: bool = False
    worst: dict[str, float] = field(default_factory=dict)  # highest cpu_pct, lag_max_ms, rss_mib
    lags: Counter[int] = field(default_factory=Counter)  # log buckets of the event loop's lag


class Collector:
    """Opens a run, takes in blobs, closes it; the shape asks it how far the stage is."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.path: Path | None = None
        self.info: dict[str, Any] = {}
        self.workers: dict[str, Worker] = {}
        self.files: dict[str, BinaryIO] = {}
        self.order = StageOrder()
        self.ttft: Counter[int] = Counter()  # log buckets of the stage
        self.stopping = ""  # the state that a run cut short will have: interrupted, or invalid
        runner = environment.runner
        runner.register_message("records", self._on_records)
        runner.register_message("trouble", lambda environment, msg, **_: self.doubt(msg.data["text"], msg.data["worker"]))
        if environment.parsed_options and environment.parsed_options.headless:
            gevent.signal_handler(signal.SIGINT, self.interrupt)
            if environment.parsed_options.run_dir:  # run by the launcher, whose report follows: Locust's table is noise
                logging.getLogger("locust.stats_logger").disabled = True
        environment.events.quitting.add_listener(lambda **_: self.wind_down())

    # -- a run's life

    def begin(
        self, phase: str, plan: dict[str, Any], endpoint: str, targets: dict[str, Any], profiles: dict[str, Any]
    ) -> None:
        """Make the run folder and its first files. Raises OSError."""
        options = self.environment.parsed_options
        self.path = Path(options.run_dir) if options.run_dir and not self.info else runs.new_run(phase)
        (self.path / "workers").mkdir(parents=True, exist_ok=True)
        self.workers, self.stopping = {}, ""
        heads = {
            "requests.csv": header(),
            "itl.csv": b"stage,endpoint,bucket,count\n",
            "host.csv": b"time,source,metric,value\n",
        }
        self.files = {name: (self.path / name).open("wb") for name in heads}
        for name, head in heads.items():
            self._append(name, head)
        self.info = {
            "schema": runs.SCHEMA,
            "run": self.path.name,
            "phase": phase,
            "simulated": bool(options.sim),
            "simulator": options.sim,
            "started": time.time(),
            "ended": None,
            "state": "running",
            "reasons": [],
            "plan": plan,
            "stages": [],
            "endpoint": endpoint,
            "targets": targets,
            "profiles": profiles,
            "seed": options.seed,
            "slo": {"ttft_ms": options.ttft_slo, "tpot_ms": options.tpot_slo},
            "stream": options.stream,
            "nonce": options.nonce,
            "options": {o.attribute: getattr(options, o.attribute) for o in OPTIONS},
            "versions": versions(),
            "git": git_commit(),
            "workers": [],
        }
        self._merge_preflight()
        runs.save(self.path, self.info)
        runs.point_latest(self.path)

    def _merge_preflight(self) -> None:
        """What preflight found out about the servers, if it ran before us and left its answer in the run folder."""
        assert self.path is not None
        found = self.path / "preflight.json"
        if found.is_file():
            for kind, facts in json.loads(found.read_text(encoding="utf-8")).get("targets", {}).items():
                self.info["targets"].setdefault(kind, {}).update(facts)

    def open_stage(self, name: str, users: int, requests: int, spread_s: float) -> None:
        """Tell every worker about the stage; the message overtakes no spawn message, so users find it there."""
        assert self.path is not None
        workers = max(1, self.environment.runner.worker_count)
        self.order = StageOrder(self.info["run"], self.info["phase"], name, users, requests, spread_s, workers)
        self.ttft = Counter()
        self.info["stages"].append(
            {"stage": name, "users": users, "requests_planned": requests, "requests": 0, "failures": 0}
            | {"start": time.time(), "end": None, "end_reason": ""}
        )
        runs.save(self.path, self.info)
        self._send("stage", {"order": asdict(self.order), "folder": str(self.path)})

    def close_stage(self, reason: str) -> None:
        """Note how the stage ended."""
        total = self.total()
        self.info["stages"][-1].update(requests=total.done, failures=total.failed, end=time.time(), end_reason=reason)
        if reason in ("done", "errors") and self.order.requests and total.done != self.order.requests:
            self.doubt(f"stage {self.order.name} has {total.done} requests, {self.order.requests} were planned")
        assert self.path is not None
        runs.save(self.path, self.info)

    def flush(self) -> None:
        """Ask every worker for what it still holds."""
        self._send("flush", {})

    def flushed(self) -> bool:
        """Every worker that is not lost has answered."""
        return all(worker.flushed or worker.lost for worker in self.workers.values())

    def finish(self, state: str) -> None:
        """Write the end of the run and set the exit code. Safe to call twice."""
        if self.path is None or self.info.get("state") != "running":
            return
        for name, worker in self.workers.items():
            if worker.rows != worker.last_seq:
                self.doubt(f"{worker.last_seq - worker.rows} of {worker.last_seq} rows are missing", name)
        if state == "complete" and self.info["reasons"]:
            state = "invalid"
        self.info.update(state=state, ended=time.time(), workers=[self._facts(n, w) for n, w in self.workers.items()])
        for file in self.files.values():
            file.close()
        self.files = {}
        self.environment.process_exit_code = EXIT[state]
        try:
            runs.save(self.path, self.info)
        except OSError as error:
            say(f"run.json could not be written: {error}; the rows so far are in {self.path}")

    @staticmethod
    def _facts(name: str, worker: Worker) -> dict[str, Any]:
        return {
            "worker": name,
            "rows": worker.rows,
            "cpu_max_pct": worker.worst.get("cpu_pct"),
            "lag_p99_ms": quantile(worker.lags, 0.99),
            "lag_max_ms": worker.worst.get("lag_max_ms"),
            "offset_ms": None,
            "bound_ms": None,
        }

    # -- trouble

    def doubt(self, reason: str, worker: str = "") -> None:
        """Something happened that makes the run's numbers unsafe: said now, kept in run.json, exit code 4."""
        text = f"worker {worker}: {reason}" if worker else reason
        if text not in self.info.get("reasons", []):
            self.info.setdefault("reasons", []).append(text)
            say(text)

    def interrupt(self, state: str = "interrupted") -> None:
        """Ctrl-C or trouble: cut what is in flight (recorded as cancelled), keep what was measured."""
        if not self.stopping:
            say(f"{state}: cutting the requests in flight, keeping what was measured")
            self.stopping = state
            self._send("cancel", {})

    def wind_down(self) -> None:
        """Locust is about to quit in the middle of a run (SIGTERM, Ctrl-C in the web UI): take in what there is."""
        if self.info.get("state") != "running":
            return
        self.interrupt()
        gevent.sleep(0.2)
        self.wait_flushed(5.0)
        self.close_stage("interrupted")
        self.finish("interrupted")

    def wait_flushed(self, seconds: float) -> bool:
        """Ask for the last rows and wait for them; False if some worker did not answer in time."""
        until = time.monotonic() + seconds
        self.flush()
        while not self.flushed() and time.monotonic() < until:
            gevent.sleep(0.05)
        return self.flushed()

    def note_lost_workers(self) -> None:
        """Mark workers that Locust misses; their share of the load is gone."""
        clients = getattr(self.environment.runner, "clients", None)  # a LocalRunner has none
        missing = {client.id for client in clients.missing} if clients else set()
        for name, worker in self.workers.items():
            if worker.node in missing and not worker.lost:
                worker.lost = True
                self.doubt(f"lost in stage {self.order.name}: its share of the load is missing from then on", name)

    # -- what comes in

    def total(self) -> Tally:
        """Counts of the stage over all workers that have begun it."""
        tallies = [w.tally for w in self.workers.values() if w.stage == self.order.name]
        lost = [w.tally for w in self.workers.values() if w.lost]
        total = Tally(*(sum(column) for column in zip(*(_numbers(t) for t in tallies), strict=True)))
        total.live -= sum(t.live for t in lost)
        return total

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        self.environment.runner.send_message(kind, data)

    def _append(self, name: str, data: bytes) -> None:
        file = self.files.get(name)
        if file is None or not data:
            return
        try:
            file.write(data)
            file.flush()
        except OSError as error:
            self.files.pop(name)
            self.environment.parsed_options.html_file = ""  # Locust would fail on it in a traceback
            self.doubt(f"{name} cannot be written ({error.strerror}): free some space for {self.path}, then run again")
            self.interrupt("invalid")

    def _on_records(self, environment: Any, msg: Message, **_: Any) -> None:
        data = msg.data
        if data["run"] != self.info.get("run"):
            return
        worker = self.workers.setdefault(data["worker"], Worker(msg.node_id))
        if data["blob"] != worker.blob + 1:
            self.doubt(f"blob {data['blob']} came after {worker.blob}", data["worker"])
        worker.blob, worker.last_seq, worker.stage = data["blob"], data["last_seq"], data["stage"]
        worker.rows += data["rows"]
        worker.flushed |= data["flushed"]
        worker.tally = Tally(*data["tally"])
        if data["stage"] == self.order.name:
            self.ttft.update(dict(data["ttft"]))
        self._append("requests.csv", data["data"])
        self._append("itl.csv", data["itl"])
        self._note_host(data["worker"], worker, data["host"])

    def _note_host(self, name: str, worker: Worker, host: dict[str, Any]) -> None:
        if not host:
            return
        at = host.pop("time")
        worker.lags.update(dict(host.pop("lags")))
        for metric, number in host.items():
            worker.worst[metric] = max(number, worker.worst.get(metric, 0.0))
        self._append("host.csv", "".join(f"{at:.3f},{name},{m},{v:.3f}\n" for m, v in host.items()).encode())


def _numbers(tally: Tally) -> tuple[float, ...]:
    return (tally.started, tally.live, tally.done, tally.failed, tally.server_failed, tally.e2e_ms)


def profile_facts(profile: Profile) -> dict[str, Any]:
    """What run.json keeps of a profile: enough to tell whether two runs sent the same, and a guard's expected verdicts."""
    facts = {"path": str(profile.path or ""), "sha256": profile.sha256, "prompts": len(profile.prompts)}
    expected = {prompt.id: prompt.expect for prompt in profile.prompts if prompt.expect}
    return {profile.name: facts | ({"expect": expected} if expected else {})}


def versions() -> dict[str, str]:
    """Versions of everything that can move a number."""
    packages = ("locust", "gevent", "geventhttpclient", "sseclient-py", "msgspec", "pandas")
    return {"python": platform.python_version(), "platform": platform.platform()} | {p: version(p) for p in packages}


def git_commit() -> str:
    """The commit of this checkout, with + when it was changed; blank outside git."""
    here = Path(__file__).parent
    try:
        words = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12"]
        return subprocess.run(words, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
