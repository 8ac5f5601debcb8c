"""Records on their way out of a load process: numbered blobs, spool file first, then the master. Nothing is lost.

A record becomes bytes at once (no pile of objects for the garbage collector); every 0.5 s the bytes so far are one
blob. One process or many, the path is the same: a LocalRunner delivers to itself."""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
from locust import events
from locust.rpc.protocol import Message
from locust.runners import MasterRunner, WorkerRunner

from tokenswarm.histogram import bucket
from tokenswarm.monitors.host import Heartbeat
from tokenswarm.record import CLIENT_ERRORS, RequestRecord, encode, header

SHIP_EVERY = 0.5


@dataclass(slots=True)
class StageOrder:
    """What the master says of a stage: `requests` in all, users' starts spread over `spread_s`."""

    run: str = ""
    phase: str = ""
    name: str = ""
    users: int = 0
    requests: int = 0
    spread_s: float = 0.0
    workers: int = 1


@dataclass(slots=True)
class Tally:
    """This worker's counts of the stage so far; the master adds them up for progress and for the stage's end."""

    started: int = 0  # users that joined
    live: int = 0  # users that joined and have not left
    done: int = 0
    failed: int = 0
    server_failed: int = 0  # failures that are not our own fault
    e2e_ms: float = 0.0
    ttft: Counter[int] = field(default_factory=Counter)  # log buckets since the last blob


class Recorder:
    """The load side of one process: which stage it is in, what is left to send, and the records going out."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        self.stage = StageOrder()
        self.tally = Tally()
        self.pool = 0
        self.in_flight = 0
        self.users = 0  # users ever made here, so that each draws its own stream
        self.seq = self.blob = 0
        self.rows: list[bytes] = []
        self.itl: Counter[tuple[str, str, int]] = Counter()
        self.spool: Path | None = None
        self.heartbeat = Heartbeat()
        runner = environment.runner
        runner.register_message("stage", self._on_stage)
        runner.register_message("cancel", self._on_cancel)
        runner.register_message("flush", self._on_flush)
        self.shipper = gevent.spawn(self._ship_forever)

    @property
    def name(self) -> str:
        """A name that the same worker of the next run has too: the seed of its draws."""
        return f"w{max(0, self.environment.runner.worker_index)}"

    def join(self) -> tuple[int, float]:
        """A user starts: adds its share of the stage's requests; returns its number here and how long it waits (s)."""
        order, index = self.stage, self.tally.started
        place = index * order.workers + max(0, self.environment.runner.worker_index)
        if place < order.users:
            self.pool += order.requests // order.users + (place < order.requests % order.users)
        self.tally.started += 1
        self.tally.live += 1
        self.users += 1
        return self.users, order.spread_s * place / order.users if order.users else 0.0

    def leave(self) -> None:
        """A user ended."""
        self.tally.live -= 1

    def take(self) -> bool:
        """Take one request of the stage; False when none is left. Without a stage (live use) there is no end."""
        if not self.stage.requests:
            return True
        self.pool -= 1
        return self.pool >= 0

    def add(self, record: RequestRecord, gaps_ms: list[float]) -> None:
        """Keep a finished request: number it, count it, turn it into bytes."""
        self.seq += 1
        record.run, record.phase = self.stage.run, self.stage.phase
        record.worker, record.seq = self.worker, self.seq
        self.rows.append(encode(record))
        self._count(record)
        if not record.error:
            self.itl.update((record.stage, record.endpoint, bucket(gap)) for gap in gaps_ms)

    def _count(self, record: RequestRecord) -> None:
        tally = self.tally
        tally.done += 1
        if record.error:
            tally.failed += 1
            tally.server_failed += record.error not in CLIENT_ERRORS
        else:
            tally.e2e_ms += record.e2e_ms or 0.0
        if record.ttft_ms is not None and not record.error:
            tally.ttft[bucket(record.ttft_ms)] += 1

    def _ship_forever(self) -> None:
        while True:
            gevent.sleep(SHIP_EVERY)
            self.ship()

    def ship(self, flushed: bool = False) -> None:
        """Send what has gathered: first to the spool file, then to the master. Also says how far the stage is."""
        if not self.stage.run:
            return
        rows, self.rows = self.rows, []
        itl, self.itl = self.itl, Counter()
        tally = self.tally
        blob = b"".join(rows)
        self.blob += 1
        self._spool(blob)
        self.environment.runner.send_message(
            "records",
            {
                "run": self.stage.run,
                "stage": self.stage.name,
                "worker": self.worker,
                "blob": self.blob,
                "rows": len(rows),
                "last_seq": self.seq,
                "data": blob,
                "itl": "".join(f"{s},{e},{b},{n}\n" for (s, e, b), n in itl.items()).encode(),
                "tally": [tally.started, tally.live, tally.done, tally.failed, tally.server_failed, tally.e2e_ms],
                "ttft": [list(pair) for pair in tally.ttft.items()],
                "host": self.heartbeat.take(),
                "flushed": flushed,
            },
        )
        tally.ttft = Counter()

    def _spool(self, blob: bytes) -> None:
        if self.spool is None or not blob:
            return
        try:
            with self.spool.open("ab") as file:
                file.write(blob)
        except OSError as error:
            self.spool = None
            self.environment.runner.send_message("trouble", {"worker": self.worker, "text": f"spool file: {error}"})

    def _open_spool(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / (self.worker.replace(":", "-") + ".csv")
            path.write_bytes(header())
            self.spool = path
        except OSError as error:
            self.environment.runner.send_message("trouble", {"worker": self.worker, "text": f"spool file: {error}"})

    def _on_stage(self, environment: Any, msg: Message, **_: Any) -> None:
        order, folder = StageOrder(**msg.data["order"]), Path(msg.data["folder"])
        if order.run != self.stage.run:
            self.seq = self.blob = self.users = 0
            self._open_spool(folder / "workers")
            self.heartbeat.restart()
        self.pool, self.tally, self.stage = 0, Tally(), order

    def _on_cancel(self, environment: Any, msg: Message, **_: Any) -> None:
        self.pool = 0
        self.environment.runner.user_greenlets.kill(block=False)

    def _on_flush(self, environment: Any, msg: Message, **_: Any) -> None:
        self.ship(flushed=True)


def recorder_of(environment: Any) -> Recorder:
    """The recorder of this process."""
    return environment.recorder


@events.init.add_listener
def _install(environment: Any, runner: Any, **_: Any) -> None:
    from tokenswarm.collector import Collector

    if not isinstance(runner, WorkerRunner):
        environment.collector = Collector(environment)
    if not isinstance(runner, MasterRunner):
        environment.recorder = Recorder(environment)


