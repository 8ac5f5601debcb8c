"""Child processes of the launcher, none of which may outlive it. (stdlib only)"""

from __future__ import annotations

import signal
import subprocess
from typing import Any


def call(words: list[str], sends: int = signal.SIGTERM, **more: Any) -> int:
    """Run a program to its end; its exit code as a shell would say it (128 + signal). A SIGTERM that we get meanwhile
    goes on to it as `sends`, and it ends in order. `more`: for Popen."""
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, **more)
    before = signal.signal(signal.SIGTERM, lambda *_: child.send_signal(sends))
    try:
        code = child.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    return 128 - code if code < 0 else code
