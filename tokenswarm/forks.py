"""Load processes that Locust forks (--processes): Ctrl-C is the master's to answer, and none outlives its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
LEAVE = signal.SIGUSR1  # hand over what there is, then end; before a handler stands, it just ends the process


def own_up() -> None:
    """In a fresh fork. Locust would answer Ctrl-C in each of them by dropping what is in flight; and forks of a master
    that cannot bind its port would wait for the next master there (locust.md 3.5)."""
    if "--worker" not in sys.argv and not os.environ.get("LOCUST_MODE_WORKER"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, LEAVE)
        if os.getppid() == 1:  # it died before we asked
            os.kill(os.getpid(), LEAVE)


def guard() -> None:
    """Call before Locust forks."""
    if "LOCUST_PROCESSES" in os.environ or any(word.startswith("--processes") for word in sys.argv):
        os.register_at_fork(after_in_child=own_up)
