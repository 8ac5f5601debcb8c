"""Several hosts: `make master` listens for the load processes of `make worker` elsewhere."""

from __future__ import annotations

import ipaddress
import signal
import socket
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tokenswarm.children import call
from tokenswarm.forks import LEAVE

Environ = MutableMapping[str, str]
PLANS = Path(__file__).parent.parent / "locustfiles"
PORT = "5557"


class HostError(ValueError):
    """A setting that cannot work; the text is the one line to show."""


def whole(environ: Environ, name: str, default: str, least: int = 1) -> int:
    """A variable that is a whole number. Raises HostError."""
    text = environ.get(name) or default
    if not text.isdigit() or int(text) < least:
        raise HostError(f"{name}={text!r} is not a whole number from {least}")
    return int(text)


def be_master(environ: Environ) -> None:
    """Have Locust be the master of WORKERS load processes on other hosts. Raises HostError."""
    if not environ.get("WORKERS"):
        raise HostError("how many load processes will come? give WORKERS=4 (the sum of PROCESSES of all `make worker`)")
    workers, port = whole(environ, "WORKERS", ""), whole(environ, "MASTER_PORT", PORT)
    if whole(environ, "PROCESSES", "1") > 1:
        raise HostError("PROCESSES= is for `make worker`: the master sends no load itself")
    bind = environ.get("MASTER_BIND") or private_address()
    check_port(bind, port)
    environ["LOCUST_MODE_MASTER"] = "1"
    environ["LOCUST_MASTER_BIND_HOST"], environ["LOCUST_MASTER_BIND_PORT"] = bind, str(port)
    environ["LOCUST_EXPECT_WORKERS"] = str(workers)
    environ["LOCUST_EXPECT_WORKERS_MAX_WAIT"] = str(whole(environ, "WAIT", "600"))
    shown = f"{'THIS-HOST' if bind == '*' else bind}{'' if str(port) == PORT else f':{port}'}"
    print(f"tokenswarm: master for {workers} load processes; on each client host: make worker MASTER={shown}")
    if bind == "*":
        print(
            f"tokenswarm: warning: port {port} is open on every interface, without password or encryption; give"
            f" MASTER_BIND= one of {', '.join(addresses())}",
            file=sys.stderr,
        )
    for name in (name for name in environ if name.endswith("_URL") and name != "SIM_URL"):
        if urlsplit(environ[name]).hostname in ("localhost", "127.0.0.1", "::1"):
            print(f"tokenswarm: warning: {name}={environ[name]} means each client host itself", file=sys.stderr)


def addresses() -> list[str]:
    """IPv4 addresses of this machine, loopback left out."""
    found = (a.address for group in psutil.net_if_addrs().values() for a in group if a.family == socket.AF_INET)
    return sorted(address for address in found if not address.startswith("127."))


def private_address() -> str:
    """The one private address that this machine has; loopback if it has none at all, `*` if that is a guess."""
    found = addresses()
    if not found:
        return "127.0.0.1"
    return found[0] if len(found) == 1 and ipaddress.ip_address(found[0]).is_private else "*"


def check_port(bind: str, port: int) -> None:
    """Locust would say it in its log only. Raises HostError."""
    try:
        socket.create_server(("" if bind == "*" else bind, port)).close()
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise HostError(
            f"cannot listen on {bind}:{port} ({reason}): give MASTER_PORT= (another master may have this one), or"
            f" MASTER_BIND= one of {', '.join([*addresses(), '127.0.0.1'])}"
        ) from None


def worker(environ: Environ) -> int:
    """`make worker`: load processes for a master; the exit code. Raises HostError."""
    host, port = master_address(environ.get("MASTER", ""))
    number = whole(environ, "PROCESSES", "1")
    print(f"tokenswarm: {number} load process{'es' * (number > 1)} for the master at {host}:{port}", flush=True)
    if not reachable(host, port, whole(environ, "WAIT", "600")):
        print(f"tokenswarm: nobody listens at {host}:{port}: start `make master` there; firewall?", file=sys.stderr)
        return 3
    files = ",".join(str(path) for path in sorted(PLANS.glob("*.py")))  # which plan runs is the master's choice
    words = ["-f", files, "--worker", "--master-host", host, "--master-port", str(port), "--loglevel", "WARNING"]
    if number > 1:
        words += ["--processes", str(number)]
    signal.signal(signal.SIGINT, lambda *_: None)  # Locust answers Ctrl-C
    return call([sys.executable, "-m", "locust", *words], sends=LEAVE)


def master_address(text: str) -> tuple[str, int]:
    """HOST or HOST:PORT. Raises HostError."""
    host, _, port = text.partition(":")
    if not host or (port and not port.isdigit()):
        raise HostError(f"MASTER={text!r} is no address: give the master's, such as 10.0.0.5 or 10.0.0.5:{PORT}")
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        raise HostError(f"MASTER={text!r}: there is no host of that name") from None
    return host, int(port or PORT)


def reachable(host: str, port: int, seconds: float) -> bool:
    """Whether the master's port opens in time."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=3.0).close()
            return True
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(0.5)
