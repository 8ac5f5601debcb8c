"""The host with psutil: the machine, and a server's own processes where it runs on this host."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil

MIB = 2**20
LOOK_AGAIN = 10  # samples between two looks for child processes


def is_local(url: str) -> bool:
    """Does this URL's host mean this machine?"""
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(urlsplit(url).hostname, None)}
    except (OSError, ValueError):
        return False
    mine = {a.address.partition("%")[0] for all_of in psutil.net_if_addrs().values() for a in all_of}
    return any(a.startswith("127.") or a == "::1" or a in mine for a in addresses)


def machine() -> dict[str, float]:
    """CPU, memory, sockets and network bytes of the whole machine; what the system does not tell is left out."""
    memory, net = psutil.virtual_memory(), psutil.net_io_counters()
    out = {
        "cpu_pct": psutil.cpu_percent(),
        "mem_used_mib": (memory.total - memory.available) / MIB,
        "mem_total_mib": memory.total / MIB,
        "net_sent_mib": net.bytes_sent / MIB,
        "net_recv_mib": net.bytes_recv / MIB,
    }
    with contextlib.suppress(OSError, ValueError, IndexError):  # Linux only
        words = Path("/proc/net/sockstat").read_text(encoding="ascii").split()
        out["tcp_sockets"] = float(words[words.index("TCP:") + 2])
    return out


class ServerProcesses:
    """The processes behind a local port: the one that listens there and all its children, without ourselves."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.known: dict[int, psutil.Process] = {}
        self.looks = 0
        self.why = ""

    def sample(self) -> dict[str, float]:
        """Number, memory and CPU of the processes (100 = one core); {} if they cannot be seen, and `why` says so."""
        if self.looks % LOOK_AGAIN == 0:
            self._look()
        self.looks += 1
        rss = cpu = 0.0
        count = 0
        for pid, process in list(self.known.items()):
            try:
                rss += process.memory_info().rss
                cpu += process.cpu_percent()
                count += 1
            except psutil.Error:
                del self.known[pid]
        return {"processes": float(count), "rss_mib": rss / MIB, "cpu_pct": cpu} if count else {}

    def _look(self) -> None:
        try:
            root = next(
                c.pid for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == self.port
            )
            if root is None:
                raise psutil.AccessDenied
            process = psutil.Process(root)
            found = {p.pid: p for p in (process, *_children(process))}
            if process.name() == "docker-proxy":
                self.why, self.known = "it runs in a container, whose processes are not seen from the port", {}
                return
        except (psutil.Error, StopIteration):
            self.why, self.known = "its processes cannot be seen by this user", {}
            return
        for pid, new in found.items():
            if pid not in self.known:
                with contextlib.suppress(psutil.Error):
                    new.cpu_percent()
                self.known[pid] = new
        self.why = ""


def _children(process: psutil.Process) -> Iterator[psutil.Process]:
    """All below it, but not the branch we ourselves are on (the simulator starts the load)."""
    mine = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    for child in process.children():
        if child.pid not in mine:
            yield child
            yield from child.children(recursive=True)
