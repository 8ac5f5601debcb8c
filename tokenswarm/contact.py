"""A load process and its master: what to do when nothing is heard from it, when it has no use for us, at the end."""

from __future__ import annotations

import sys
import time
from typing import Any

import gevent
import zmq
from gevent.event import Event
from locust.rpc.protocol import Message
from locust.runners import WorkerRunner

from tokenswarm.forks import LEAVE

HOLD_AFTER = 4.0  # s without a word from the master: send no new request until it is heard again
GIVE_UP_AFTER = 25.0  # the same: end


class Contact:
    """Locust itself would go on loading for 60 s without a master. `recorder` is this process's recorder."""

    def __init__(self, recorder: Any) -> None:
        self.recorder, self.environment = recorder, recorder.environment
        self.heard = time.monotonic()  # the master's last word
        self.held = 0.0  # while we hold: the last word before the silence
        self.go = Event()
        self.go.set()
        self.environment.runner.register_message("refused", self._on_refused)
        if isinstance(self.environment.runner, WorkerRunner):
            self.environment.events.heartbeat_received.add_listener(lambda **_: self.hear())
            self.environment.events.quitting.add_listener(lambda **_: self.leave())
            gevent.signal_handler(LEAVE, self._end, "its parent process ended, or told it to")
            gevent.spawn(self._watch)

    def hear(self) -> None:
        """A word came from the master."""
        self.heard = time.monotonic()
        if self.held:
            if self.recorder.tally.live:  # without users nothing was missed
                silent, missed = self.heard - self.held, f"it sent nothing new after {HOLD_AFTER:g} s"
                self.recorder.notes.append(f"did not hear from the master for {silent:.1f} s: {missed}")
            self.held = 0.0
            self.go.set()

    def _watch(self) -> None:
        while True:
            gevent.sleep(0.25)
            silent = time.monotonic() - self.heard
            if silent > HOLD_AFTER and self.recorder.stage.run and not self.held:
                self.held = self.heard
                self.go.clear()
            if silent > GIVE_UP_AFTER:
                self._end(f"nothing heard from the master for {silent:.0f} s")
                return

    def _on_refused(self, environment: Any, msg: Message, **_: Any) -> None:
        gevent.spawn(self._end, f"the master refused us: {msg.data['text']}")

    def _end(self, why: str) -> None:
        spool = self.recorder.outbox.spool
        rows = f"; rows that may not have come are in {spool}" if spool else ""
        print(f"tokenswarm: worker {self.recorder.worker} ends: {why}{rows}", file=sys.stderr, flush=True)
        self.environment.process_exit_code = 4
        self.leave()
        self.environment.runner.quit()

    def leave(self) -> None:
        """This process ends (the master said so, SIGTERM, Ctrl-C): cut what is in flight, hand over what there is."""
        runner, recorder = self.environment.runner, self.recorder
        runner.user_greenlets.kill(timeout=2.0)
        if recorder.stage.run:
            recorder.gather()
        until = time.monotonic() + 3.0
        while not recorder.outbox.empty and len(runner.greenlet) and time.monotonic() < until:
            recorder.wake.set()
            gevent.sleep(0.05)
        runner.client.socket.setsockopt(zmq.LINGER, 1000)  # ms; else what nobody takes keeps this process from ending
