"""Records on their way out of a load process: numbered blobs, spool file first, then the master. Nothing is lost.

A record becomes bytes at once (no pile of objects for the garbage collector); every 0.5 s the bytes so far are one
blob. One process or many, the path is the same: a LocalRunner delivers to itself."""

from __future__ import annotations

import functools
import os
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from locust import argument_parser, events
from locust.exception import RPCError
from locust.rpc.protocol import Message
from locust.runners import MasterRunner, WorkerRunner

from tokenswarm import forks, hello, recover, runs
from tokenswarm.arrivals import LEAD
from tokenswarm.contact import Contact
from tokenswarm.histogram import bucket
from tokenswarm.monitors.host import Heartbeat
from tokenswarm.orders import StageOrder, Tally
from tokenswarm.outbox import Outbox
from tokenswarm.record import CANARY, CLIENT_ERRORS, RequestRecord, encode

SHIP_EVERY = 0.5


class Recorder:
    """The load side of one process: which stage it is in, what is left to send, and the records going out."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        self.stage = StageOrder()
        self.tally = Tally()
        self.pool = 0
        self.closed = False  # the stage takes no more requests
        self.epoch = self.until = 0.0  # perf_counter: time 0 of an open loop's schedule; when a timed stage ends
        self.in_flight = 0
        self.users = 0  # users ever made here, so that each draws its own stream
        self.seq = 0
        self.rows: list[bytes] = []
        self.itl: Counter[tuple[str, str, int]] = Counter()
        self.notes: list[str] = []  # sentences for the master, about the stage
        self.heartbeat = Heartbeat()
        self.outbox = Outbox(lambda message: environment.runner.send_message("records", message))
        self.next_blob, self.flush_asked, self.wake = 0.0, False, Event()
        runner = environment.runner
        runner.register_message("stage", self._on_stage)
        runner.register_message("cancel", self._on_cancel)
        runner.register_message("close", self._on_close)
        runner.register_message("flush", self._on_flush)
        runner.register_message("got", self._on_got)
        runner.register_message("ping", self._on_ping)
        self.shipper = gevent.spawn(self._ship_forever)
        self.contact = Contact(self)

    @property
    def name(self) -> str:
        """A name that the same worker of the next run has too: the seed of its draws."""
        return f"w{max(0, self.environment.runner.worker_index)}"

    def join(self) -> tuple[int, float]:
        """A user starts: adds its share of the stage's requests; returns its number here and how long it waits (s)."""
        order, index = self.stage, self.tally.started
        place = index * order.workers + max(0, self.environment.runner.worker_index)
        if place < order.users and not self.closed:
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
        if self.contact.held:
            if self.stage.rate:  # what is due meanwhile would go out as one burst
                return False
            self.contact.go.wait()
        if self.stage.hold_s:  # an open loop ends with its schedule
            return self.until > 0 if self.stage.rate else time.perf_counter() < self.until
        if not self.stage.requests:
            return True
        if self.pool <= 0:
            return False
        self.pool -= 1
        return True

    def add(self, record: RequestRecord, gaps_ms: list[float]) -> None:
        """Keep a finished request: number it, count it, turn it into bytes."""
        self.seq += 1
        record.run, record.phase = self.stage.run, self.stage.phase
        record.worker, record.seq = self.worker, self.seq
        self.rows.append(encode(record))
        if record.profile == CANARY:  # watches the load, is no part of it
            return
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
        """In a greenlet of its own: with no way out, Locust's send blocks for 9 s and then raises."""
        while True:
            self.wake.wait(max(0.0, self.next_blob - time.monotonic()))
            self.wake.clear()
            try:
                self.ship()
                self.outbox.pump()
            except (RPCError, OSError):  # the outbox keeps it and sends it again
                gevent.sleep(SHIP_EVERY)

    def ship(self) -> None:
        """Every 0.5 s, make what has gathered a blob: first to the spool file, then out."""
        if time.monotonic() < self.next_blob and not self.flush_asked:
            return
        self.next_blob = time.monotonic() + SHIP_EVERY
        if self.stage.run:
            self.gather()

    def gather(self) -> None:
        """Put rows, counts and notes so far into the outbox. Also says how far the stage is."""
        rows, self.rows = self.rows, []
        itl, self.itl = self.itl, Counter()
        tally, ttft, self.tally.ttft = self.tally, self.tally.ttft, Counter()
        flushed, self.flush_asked = self.flush_asked, False
        notes, self.notes = self.notes + self.outbox.trouble, []
        self.outbox.trouble = []
        self.outbox.put(
            b"".join(rows),
            {
                "run": self.stage.run,
                "stage": self.stage.name,
                "worker": self.worker,
                "rows": len(rows),
                "last_seq": self.seq,
                "itl": "".join(f"{s},{e},{b},{n}\n" for (s, e, b), n in itl.items()).encode(),
                "tally": tally.numbers(),
                "ttft": [list(pair) for pair in ttft.items()],
                "host": self.heartbeat.take(),
                "flushed": flushed,
                "notes": notes,
                "spool": str(self.outbox.spool or ""),
            },
        )

    def _on_got(self, environment: Any, msg: Message, **_: Any) -> None:
        self.contact.hear()
        if msg.data["run"] == self.stage.run:
            self.outbox.acknowledge(msg.data["blob"])
            self.wake.set()  # there may be more than one window of them

    def _on_ping(self, environment: Any, msg: Message, **_: Any) -> None:
        now = time.time()
        environment.runner.send_message("pong", {"t0": msg.data["t0"], "t1": now, "t2": time.time()})

    def _on_stage(self, environment: Any, msg: Message, **_: Any) -> None:
        order, folder = StageOrder(**msg.data["order"]), Path(msg.data["folder"])
        if order.run != self.stage.run:
            self.seq = self.users = 0
            self.rows, self.notes = [], []
            # on another machine the master's folder is not there: then one of the same name under our own reports/
            home = folder if folder.is_dir() else (runs.reports_dir() / order.run).resolve()
            self.outbox.open(home / "workers", self.worker)
            self.heartbeat.restart()
        self.pool, self.tally, self.stage, self.closed = 0, Tally(), order, False
        self.epoch = time.perf_counter() + (LEAD if order.rate else order.spread_s)
        self.until = self.epoch + order.hold_s

    def _on_cancel(self, environment: Any, msg: Message, **_: Any) -> None:
        self.pool, self.closed = 0, True
        self.environment.runner.user_greenlets.kill(block=False)

    def _on_close(self, environment: Any, msg: Message, **_: Any) -> None:
        """No more requests in this stage; those in flight end by themselves."""
        self.pool, self.until, self.closed = 0, 0.0, True

    def _on_flush(self, environment: Any, msg: Message, **_: Any) -> None:
        self.flush_asked = True
        self.wake.set()


def recorder_of(environment: Any) -> Recorder:
    """The recorder of this process."""
    return environment.recorder


forks.guard()


@events.init.add_listener
def _install(environment: Any, runner: Any, **_: Any) -> None:
    from tokenswarm.collector import Collector

    if not isinstance(runner, WorkerRunner):
        environment.collector = Collector(environment)
    if isinstance(runner, WorkerRunner) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Python's own Ctrl-C would break into whichever greenlet runs; Locust ends in order on SIGTERM
        gevent.signal_handler(signal.SIGINT, os.kill, os.getpid(), signal.SIGTERM)
    if isinstance(runner, WorkerRunner):
        # Locust builds a whole parser for every option of every spawn order: 0.4 s in which nothing else runs here
        argument_parser.default_args_dict = functools.cache(argument_parser.default_args_dict)
        argument_parser.default_args_dict()
    if not isinstance(runner, MasterRunner):
        environment.recorder = Recorder(environment)
        runner.send_message("hello", hello.words(environment.recorder.worker))


if __name__ == "__main__":
    sys.exit(recover.main(sys.argv[1:]))
