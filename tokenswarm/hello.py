"""What a load process says of itself before it gets users, and what the master objects to. (stdlib only)"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CONTENT = ("tokenswarm/**/*.py", "locustfiles/**/*.py", "profiles/**/*")
FEW_FILES = 1024


@cache
def digests() -> dict[str, str]:
    """File -> hash of everything that decides what is sent and how it is timed: code, plans, profiles."""
    files = {path for pattern in CONTENT for path in ROOT.glob(pattern) if path.is_file()}
    kept = (path for path in sorted(files) if "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in kept}


def content_hash() -> str:
    """One hash over all of them."""
    return hashlib.sha256(repr(sorted(digests().items())).encode()).hexdigest()[:16]


def open_files() -> int | None:
    """How many files and sockets this process may have open; None where the system has no such limit."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def words(worker: str) -> dict[str, Any]:
    """The hello of this process."""
    return {
        "worker": worker,
        "host": socket.gethostname(),
        "cores": os.cpu_count(),
        "open_files": open_files(),
        "versions": {"python": platform.python_version(), "locust": version("locust"), "gevent": version("gevent")},
        "hash": content_hash(),
        "files": digests(),
    }


def objection(hello: dict[str, Any]) -> str:
    """Why this process cannot take part with that one; blank if it can."""
    if hello.get("hash") == content_hash():
        return ""
    mine, theirs = digests(), hello.get("files") or {}
    differ = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    shown = ", ".join(differ[:3]) + (f" and {len(differ) - 3} more" if len(differ) > 3 else "")
    return (
        f"its code or profiles are not the master's (content {hello.get('hash')} there, {content_hash()} here; "
        f"{shown or 'unknown files'}): copy the same checkout to both"
    )


def cautions(hello: dict[str, Any]) -> list[str]:
    """What is worth knowing before the load starts, in plain sentences."""
    out = []
    files = hello.get("open_files")
    if files is not None and files < FEW_FILES:
        out.append(f"may open only {files} files and sockets: raise `ulimit -n`")
    mine = words("")["versions"]
    other = {name: text for name, text in (hello.get("versions") or {}).items() if text != mine.get(name)}
    out += [f"runs {name} {text}, the master {mine.get(name)}" for name, text in sorted(other.items())]
    return out
