"""Starts simulators for tests and talks to them over plain sockets, byte for byte."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parent.parent
RECORDED = Path(__file__).parent / "cases" / "recorded"


@contextlib.contextmanager
def simulator(*flags: str) -> Iterator[int]:
    """A simulator process; gives its port, and ends it."""
    process = subprocess.Popen([sys.executable, "-m", "simulator", *flags], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield int(process.stdout.readline().split()[1].rpartition(":")[2])
    finally:
        process.terminate()
        assert process.wait(10) == 0
        process.stdout.close()


def request(path: str, body: Any = None, headers: str = "", close: bool = True, method: str = "") -> bytes:
    """The bytes of a request; a body that is no bytes is sent as JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    method = method or ("GET" if body is None else "POST")
    end = "Connection: close\r\n" if close else ""
    return f"{method} {path} HTTP/1.1\r\nHost: sim\r\nContent-Length: {len(data)}\r\n{headers}{end}\r\n".encode() + data


class Answer:
    """One raw answer taken apart: head, chunks of its body, and when each piece of bytes came."""

    def __init__(self, raw: bytes, reads: list[tuple[float, bytes]]) -> None:
        self.raw, self.reads = raw, reads
        self.head, _, self.tail = raw.partition(b"\r\n\r\n")
        self.status = int(self.head.split()[1]) if self.head else 0
        self.names = [line.split(b":")[0].decode() for line in self.head.split(b"\r\n")[1:]]

    @property
    def json(self) -> Any:
        return json.loads(self.tail)

    @property
    def chunks(self) -> list[bytes]:
        """Chunks of a chunked body; the last one is empty if the body is complete."""
        found, rest = [], self.tail
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            found.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        return found

    @property
    def events(self) -> list[Any]:
        """Events of a stream: JSON, or '[DONE]'."""
        datas = [chunk.decode().removeprefix("data: ").strip() for chunk in self.chunks if chunk]
        return [data if data == "[DONE]" else json.loads(data) for data in datas]


def read_all(sock: socket.socket, began: float) -> Answer:
    reads = []
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            reads.append((time.monotonic() - began, data))
    return Answer(b"".join(data for _, data in reads), reads)


def ask(port: int, path: str, body: Any = None, headers: str = "", method: str = "") -> Answer:
    """Send one request on its own connection and read until it is closed."""
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        began = time.monotonic()
        sock.sendall(request(path, body, headers, method=method))
        return read_all(sock, began)


def chat(model: str = "sim-llm", content: Any = "Count to ten.", **options: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **options}


def recorded_events(name: str) -> list[Any]:
    """Events of a recorded stream."""
    text = (RECORDED / name).read_text(encoding="utf-8")
    datas = re.findall(r"data: (\{.*\}|\[DONE\])", text)
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def recorded_answer(name: str) -> tuple[int, list[str], Any]:
    """Status, header names and JSON body of a recorded answer."""
    lines = [re.sub(r"^ \d+\.\d+ ", "", line) for line in (RECORDED / name).read_text(encoding="utf-8").splitlines()]
    status = next(int(line.split()[1]) for line in lines if line.startswith("HTTP/1.1"))
    names = [line.split(":")[0] for line in lines if re.match(r"[a-z-]+: ", line)]
    return status, names, json.loads(lines[-1])


def series(port: int) -> dict[tuple[str, str], float]:
    """(name, model) -> value, summed over the other labels."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(ask(port, "/metrics").tail.decode()):
        for sample in family.samples:
            key = sample.name, sample.labels.get("model_name", "")
            found[key] = found.get(key, 0) + sample.value
    return found


def shape(value: Any) -> Any:
    """A JSON value's keys in order and its nulls; only the first element of a list; other values don't matter."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [shape(value[0])] if value and isinstance(value[0], dict | list) else ["list"]
    return None if value is None else "value"
