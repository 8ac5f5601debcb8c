"""The master's side of a run: its folder, run.json, the rows that come in, and whether all of them came."""

from __future__ import annotations

import logging
import signal
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gevent
from locust.rpc.protocol import Message

from tokenswarm import manifest, runs
from tokenswarm.manifest import profile_facts as profile_facts
from tokenswarm.orders import StageOrder, Tally
from tokenswarm.progress import say
from tokenswarm.roll import Member, Roll
from tokenswarm.runfiles import HEADS, RunFiles
from tokenswarm.validity import LATE_AFTER, Worker, stage_total

FLUSH_TIMEOUT = 20.0
EXIT = {"complete": 0, "incomplete": 4, "invalid": 4, "interrupted": 130}


class Collector:
    """Opens a run, takes in blobs, closes it; the shape asks it how far the stage is."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.path: Path | None = None
        self.info: dict[str, Any] = {}
        self.workers: dict[str, Worker] = {}
        self.files: RunFiles | None = None
        self.order = StageOrder()
        self.ttft: Counter[int] = Counter()  # log buckets of the stage
        self.opened = 0.0
        self.measuring: list[gevent.Greenlet] = []  # clocks, at the end
        self.stopping = ""  # the state that a run cut short will have: interrupted, or invalid
        environment.runner.register_message("records", self._on_records)
        self.roll = Roll(environment, self._on_lost)
        if environment.parsed_options and environment.parsed_options.headless:
            gevent.signal_handler(signal.SIGINT, self.interrupt)
            gevent.signal_handler(signal.SIGTERM, self.interrupt)  # Locust's own comes after a headless shape's end
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
        self.workers = {member.name: Worker(member) for member in self.roll.fix()}
        self.stopping, self.measuring = "", []
        self.files = RunFiles(self.path)
        for name, head in HEADS.items():
            self._append(name, head)
        self.info = manifest.opening(self.path, phase, plan, options)
        self.info |= {"endpoint": endpoint, "targets": targets, "profiles": profiles}
        self.info["workers"] = [worker.facts() for worker in self.workers.values()]
        manifest.add_preflight(self.path, targets)
        runs.save(self.path, self.info)
        runs.point_latest(self.path)
        if len(self.workers) < self.roll.expected:
            self.doubt(f"only {len(self.workers)} of {self.roll.expected} workers were there when the run began")

    def open_stage(self, name: str, users: int, requests: int, spread_s: float, **more: Any) -> None:
        """Tell every worker about the stage; the message overtakes no spawn message, so users find it there.

        `more`: further fields of StageOrder; counts, hold_s, rate and warmup are kept in run.json too."""
        assert self.path is not None
        run, phase = self.info["run"], self.info["phase"]
        self.order = StageOrder(run, phase, name, users, requests, spread_s, max(1, len(self.workers)), **more)
        self.ttft, self.opened = Counter(), time.monotonic()
        for worker in self.workers.values():
            worker.stage_lags.clear()
            worker.cpu.clear()
        self.info["stages"].append(
            {"stage": name, "users": users, "requests_planned": requests, "requests": 0, "failures": 0}
            | {"start": time.time(), "end": None, "end_reason": "", "valid": True, "reasons": []}
            | {key: more[key] for key in ("counts", "hold_s", "rate", "warmup") if more.get(key)}
        )
        runs.save(self.path, self.info)
        self._send("stage", {"order": asdict(self.order), "folder": str(self.path.resolve())})

    def close_stage(self, reason: str) -> None:
        """Note how the stage ended."""
        if not self.info["stages"]:
            return
        total = self.total()
        self.info["stages"][-1].update(requests=total.done, failures=total.failed, end=time.time(), end_reason=reason)
        if reason in ("done", "errors") and self.order.requests and total.done != self.order.requests:
            self.spoil(f"has {total.done} requests, {self.order.requests} were planned")
        for name, worker in self.workers.items():
            if late := worker.lagging():
                self.spoil(late, name)
        assert self.path is not None
        runs.save(self.path, self.info)

    def close_early(self, cut: bool = False) -> None:
        """Have the stage's users stop: after the requests that are in flight, or cutting those (`cancelled`)."""
        self._send("cancel" if cut else "close", {})

    def flush(self) -> None:
        """Ask every worker for what it still holds, and look at its clock once more."""
        self._send("flush", {})
        if not self.measuring:
            alive = [worker.member for worker in self.workers.values() if not worker.lost]
            self.measuring = [gevent.spawn(self.roll.measure, member) for member in alive]

    def flushed(self) -> bool:
        """Every worker that is not lost has answered."""
        answered = all(worker.flushed or worker.lost for worker in self.workers.values())
        return answered and all(greenlet.ready() for greenlet in self.measuring)

    def finish(self, state: str) -> None:
        """Write the end of the run and set the exit code. Safe to call twice."""
        if self.path is None or self.info.get("state") != "running":
            return
        for name, worker in self.workers.items():
            self._check(name, worker)
        if state == "complete" and self.info["reasons"]:
            state = "invalid"
        workers = [worker.facts() for worker in self.workers.values()]
        self.info["refused"] = self.roll.refused
        self.info.update(state=state, ended=time.time(), workers=workers)
        if self.files:
            self.files.close()
        self.environment.process_exit_code = EXIT[state]
        if not self.environment.parsed_options.headless:
            self.roll.release()
        try:
            runs.save(self.path, self.info)
        except OSError as error:
            say(f"run.json could not be written: {error}; the rows so far are in {self.path}")

    def _check(self, name: str, worker: Worker) -> None:
        """What a worker's end says about the run."""
        assert self.path is not None
        if worker.rows != worker.last_seq:
            self.doubt(f"{worker.last_seq - worker.rows} of {worker.last_seq} rows are missing", name)
        if not worker.complete and worker.spool and Path(worker.spool).parent != (self.path / "workers").resolve():
            say(
                f"rows of worker {name} that did not come are in {worker.spool} on {worker.member.hello['host']}: copy"
                f" that file here, then `python -m tokenswarm.recorder recover {self.path.name} FILE`"
            )
        for fatal, text in worker.clock_trouble():
            self.doubt(text, name) if fatal else self.warn(f"worker {name}: {text}")

    # -- trouble

    def doubt(self, reason: str, worker: str = "") -> None:
        """Something happened that makes the run's numbers unsafe: said now, kept in run.json, exit code 4."""
        text = f"worker {worker}: {reason}" if worker else reason
        if text not in self.info.get("reasons", []):
            self.info.setdefault("reasons", []).append(text)
            say(text)

    def spoil(self, reason: str, worker: str = "") -> None:
        """The same for the stage that runs: it is marked invalid."""
        stage = self.info["stages"][-1]
        text = f"worker {worker} {reason}" if worker else reason
        stage["valid"] = False
        if text not in stage["reasons"]:
            stage["reasons"].append(text)
        self.doubt(f"stage {stage['stage']}: {text}" if worker else f"stage {stage['stage']} {text}")

    def warn(self, text: str) -> None:
        """Worth knowing, and no reason to distrust the numbers."""
        self.info.setdefault("warnings", []).append(text)
        say(text)

    def interrupt(self, state: str = "interrupted") -> None:
        """Ctrl-C, SIGTERM or trouble: cut what is in flight (recorded as cancelled), keep what was measured."""
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

    # -- the load's shares

    def _on_lost(self, member: Member, how: str) -> None:
        worker = self.workers.get(member.name)
        if worker is None or worker.lost or self.info.get("state") != "running":
            return
        at = time.time() - (time.monotonic() - member.heard)
        open_stage = self.info["stages"] and self.info["stages"][-1]["end"] is None
        worker.lost = {"time": at, "why": how, "stage": self.order.name if open_stage else ""}
        clock = time.strftime("%H:%M:%S UTC", time.gmtime(at))
        if not open_stage:
            self.doubt(f"lost at {clock} between stages: {how}", member.name)
            return
        missing = worker.note_missing(self.order)
        since = at - self.info["stages"][-1]["start"]
        self.spoil(
            f"was lost at {clock}, {since:.0f} s into the stage: {missing} are missing from then on ({how})",
            member.name,
        )

    def lost_load(self) -> str:
        """`lost` once a worker is gone: its share is not given to others, so the stage is over."""
        return "lost" if any(worker.lost for worker in self.workers.values()) else ""

    def awaited(self, users: int) -> int:
        """Of so many users of the stage, those that have begun or still can."""
        lost = [worker for worker in self.workers.values() if worker.lost]
        return users - sum(max(0, w.share(users, self.order) - w.started(self.order)) for w in lost)

    def note_late_workers(self) -> None:
        """Mark workers whose users did not start with the others'."""
        if time.monotonic() - self.opened < LATE_AFTER:
            return
        for name, worker in self.workers.items():
            share, started = worker.share(self.order.users, self.order), worker.started(self.order)
            if started < share and not worker.lost and worker.late != self.order.name:
                worker.late = self.order.name  # said once
                self.spoil(f"is late: {started} of its {share} users began within {LATE_AFTER:.0f} s", name)

    # -- what comes in

    def total(self) -> Tally:
        """Counts of the stage over all workers that have begun it."""
        return stage_total(self.workers.values(), self.order)

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        self.environment.runner.send_message(kind, data)

    def _append(self, name: str, data: bytes) -> None:
        try:
            if self.files:
                self.files.append(name, data)
        except OSError as error:
            self.environment.parsed_options.html_file = ""  # Locust would fail on it in a traceback
            self.doubt(f"{name} cannot be written ({error.strerror}): free some space for {self.path}, then run again")
            self.interrupt("invalid")

    def _on_records(self, environment: Any, msg: Message, **_: Any) -> None:
        data = msg.data
        worker = self.workers.get(data["worker"])
        if data["run"] != self.info.get("run") or worker is None:
            return
        if data["blob"] == worker.blob + 1:  # else it came before, or one before it did not: the worker sends again
            self._take(data, worker)
        self.environment.runner.send_message("got", {"run": data["run"], "blob": worker.blob}, client_id=msg.node_id)

    def _take(self, data: dict[str, Any], worker: Worker) -> None:
        worker.blob, worker.last_seq, worker.stage = data["blob"], data["last_seq"], data["stage"]
        worker.rows += data["rows"]
        worker.flushed |= data["flushed"]
        worker.spool = data["spool"]
        worker.tally = Tally(*data["tally"])
        if data["stage"] == self.order.name:
            self.ttft.update(dict(data["ttft"]))
        self._append("requests.csv", data["data"])
        self._append("itl.csv", data["itl"])
        for note in data["notes"]:
            self.spoil(note, data["worker"])
        if data["host"]:
            self._note_host(data["worker"], worker, data["host"])

    def _note_host(self, name: str, worker: Worker, host: dict[str, Any]) -> None:
        at, lags = host.pop("time"), dict(host.pop("lags"))
        worker.note(host, lags)
        self._append("host.csv", "".join(f"{at:.3f},{name},{m},{v:.3f}\n" for m, v in host.items()).encode())
        if (why := worker.overload()) and self.info["stages"][-1]["end"] is None:
            self.spoil(why, name)
            worker.cpu.clear()  # said once in a while, not every second
