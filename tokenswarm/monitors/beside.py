"""The watcher's life beside Locust: started with the master before any load, told when a run begins and ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Any

import gevent
from locust import events
from locust.runners import WorkerRunner

from tokenswarm import recorder  # noqa: F401  (its init listener, which makes the collector, comes before ours)
from tokenswarm.options import OPTIONS
from tokenswarm.progress import say

POLL = 0.25
READY = 4.0
GOODBYE = 6.0


class Beside:
    """The watcher process of this master; it ends with its stdin, so it cannot outlive us."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.run, self.closing = "", False
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tokenswarm.monitors.watch", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(environment.parsed_options),
            text=True,
        )
        self._wait_until_ready()
        gevent.spawn(self._follow)
        environment.events.quit.add_listener(lambda **_: self.close())

    def _wait_until_ready(self) -> None:
        """It says so after its first samples: they must be older than the load, or the counters lack its beginning."""
        assert self.child.stdout is not None
        with contextlib.suppress(OSError), gevent.Timeout(READY, False):
            self.child.stdout.readline()

    def _follow(self) -> None:
        while self.child.poll() is None:
            collector = self.environment.collector
            running = collector.info.get("state") == "running" and collector.path
            self._tell(str(collector.path.absolute()) if running else "")
            gevent.sleep(POLL)
        if not self.closing:
            say(f"the watcher ended (exit {self.child.returncode}): no engine and GPU samples from then on")

    def _tell(self, run: str) -> None:
        if run != self.run and self.child.stdin is not None:
            self.run = run
            with contextlib.suppress(OSError):  # a watcher that died costs the run its samples, nothing else
                self.child.stdin.write(run + "\n")
                self.child.stdin.flush()

    def close(self) -> None:
        """End it, and wait until its last rows are in the files."""
        self.closing = True
        if self.child.stdin is not None:
            with contextlib.suppress(OSError):
                self.child.stdin.close()
        try:
            self.child.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            self.child.kill()


def _environment(options: Any) -> dict[str, str]:
    """Ours, with every option as it was given to Locust, on the command line or as a variable."""
    given = {o.variable: getattr(options, o.attribute, None) for o in OPTIONS}
    return os.environ | {name: _text(value) for name, value in given.items() if value not in (None, "")}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@events.init.add_listener
def _install(environment: Any, runner: Any, **_: Any) -> None:
    wanted = getattr(environment.parsed_options, "watch", False)
    if wanted and not isinstance(runner, WorkerRunner) and hasattr(environment, "collector"):
        environment.beside = Beside(environment)
