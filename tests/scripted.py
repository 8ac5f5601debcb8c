"""A server that answers what the request's body tells it to: threads and sockets in a process of its own.

`python tests/scripted.py` prints its ports and runs until its stdin closes. A POST's body is a scenario:
    {"case": "sse/A01-role-chunk-early"}                      a file of tests/cases, or
    {"status": 200, "headers": {...}, "framing": F, "script": [step, ...], "end": E, "then": T}
F: chunked | until-close | content-length | content-length:+500 (500 too large) | raw (with its own head)
step: {"after_ms": 5, "await": NAME, "text" or "hex": bytes to send}; @NOW@ in a text becomes time.time_ns()
E: clean | reset | close (without the end that the framing asks for) | hang (until the client goes, then sets
   the flag "name")
T: "" | shut (closes once the answer is out) | drop (closes on the next request without a byte)
POST /set/NAME and /await/NAME (503 after 5 s) let a test and a scenario wait for each other."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
PATIENCE = 5.0
flags: dict[str, threading.Event] = defaultdict(threading.Event)


class Gone(Exception):
    """This connection ends here."""


def scenario_of(body: bytes) -> dict[str, Any]:
    """The scenario that a request's body is, or names; a whole response is a script of one step."""
    scenario = json.loads(body)
    if "case" in scenario and "script" not in scenario:
        scenario |= json.loads((CASES / f"{scenario['case']}.json").read_text())
    scenario |= scenario.pop("http", {})
    if "body" in scenario:
        scenario |= {"framing": "content-length", "script": [{"text": scenario["body"]}]}
    return scenario


def payload(step: dict[str, Any]) -> bytes:
    if "hex" in step:
        return bytes.fromhex(step["hex"])
    return step.get("text", "").replace("@NOW@", str(time.time_ns())).encode()


def head(scenario: dict[str, Any]) -> bytes:
    """Status line and headers, with those that the framing needs."""
    framing, headers = scenario["framing"], dict(scenario.get("headers", {}))
    if framing == "chunked":
        headers["Transfer-Encoding"] = "chunked"
    elif framing == "until-close":
        headers["Connection"] = "close"
    else:
        size = sum(len(payload(step)) for step in scenario["script"])
        headers["Content-Length"] = str(size + int(framing.partition(":")[2] or 0))
    lines = [f"HTTP/1.1 {scenario.get('status', 200)} Scripted", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def play(sock: socket.socket, scenario: dict[str, Any]) -> None:
    """Send the scenario; raises Gone when the connection is over."""
    chunked = scenario["framing"] == "chunked"
    if scenario["framing"] != "raw":
        sock.sendall(head(scenario))
    for step in scenario["script"]:
        if "await" in step and not flags[step["await"]].wait(PATIENCE):
            raise Gone
        time.sleep(step.get("after_ms", 0) / 1000)
        if data := payload(step):
            sock.sendall(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
    end = scenario.get("end", "clean")
    if end == "clean" and chunked:
        sock.sendall(b"0\r\n\r\n")
    if end == "hang":
        hang(sock, scenario["name"])
    if end == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    whole = scenario["framing"] in ("chunked", "content-length", "raw")
    if end != "clean" or not whole or scenario.get("then") == "shut":
        raise Gone


def hang(sock: socket.socket, name: str) -> None:
    """Say nothing until the client has gone."""
    sock.settimeout(PATIENCE)
    try:
        gone = not sock.recv(1)
    except ConnectionError:
        gone = True
    if gone:
        flags[name].set()


def serve(sock: socket.socket) -> None:
    """Answer the requests of one connection."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with sock, sock.makefile("rb") as lines:
        drop = False
        while request := lines.readline(65536):
            if not request.startswith(b"POST /"):
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                return
            size = 0
            while (line := lines.readline(65536)).strip():
                if line.lower().startswith(b"content-length:"):
                    size = int(line.partition(b":")[2])
            body = lines.read(size)
            if drop:
                return
            drop = answer(sock, request.split()[1].decode(), body)


def answer(sock: socket.socket, path: str, body: bytes) -> bool:
    """One answer; True if the next request of this connection is to be dropped."""
    _, verb, name = (path + "//").split("/")[:3]
    if verb in ("set", "await"):
        if verb == "set":
            flags[name].set()
        status = 200 if flags[name].wait(PATIENCE) else 503
        play(sock, {"status": status, "framing": "content-length", "script": []})
        return False
    scenario = scenario_of(body)
    play(sock, scenario)
    return scenario.get("then") == "drop"


def connection(sock: socket.socket, wrap: Callable[[socket.socket], socket.socket]) -> None:
    try:
        serve(wrap(sock))
    except (Gone, ConnectionError, ssl.SSLError):
        sock.close()


def listen(wrap: Callable[[socket.socket], socket.socket]) -> int:
    """A listener on a free port; each connection gets a thread."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)

    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=connection, args=(sock, wrap), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def tls(client_ca: bool) -> Callable[[socket.socket], socket.socket]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CASES / "tls" / "server.pem")
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(CASES / "tls" / "ca.pem")

    def wrap(sock: socket.socket) -> socket.socket:
        secure = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        try:
            secure.do_handshake()
        except ssl.SSLError:  # let the client read the alert: closing over its unread bytes would reset
            socket.socket.shutdown(secure, socket.SHUT_WR)
            while socket.socket.recv(secure, 65536):
                continue
            secure.close()
            raise
        return secure

    return wrap


def main() -> None:
    wraps = {"plain": lambda sock: sock, "tls": tls(client_ca=False), "mtls": tls(client_ca=True)}
    print(json.dumps({name: listen(wrap) for name, wrap in wraps.items()}), flush=True)
    sys.stdin.read()


class Server:
    """The tests' side: starts the process, knows its ports."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin and self.process.stdout
        self.ports: dict[str, int] = json.loads(self.process.stdout.readline())

    def url(self, port: str = "plain") -> str:
        return f"{'http' if port == 'plain' else 'https'}://127.0.0.1:{self.ports[port]}"

    def stop(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


if __name__ == "__main__":
    main()
