"""What went wrong? Each failure with its real cause, and the one word that the record has for it."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gevent
import pytest
from asking import LIMITS, ask, client_of
from scripted import Server

from tokenswarm.sockets import StampedClients
from tokenswarm.users.reading import ChatReader
from tokenswarm.wire import Exchange, Limits, exchange

TEXT = 'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
STOP = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
SSE = {"headers": {"Content-Type": "text/event-stream"}, "framing": "chunked"}
FINE = SSE | {"script": [{"text": TEXT}, {"text": STOP}]}
HANG = {"end": "hang", "name": "nobody"}
SILENT = {"framing": "raw", "script": [], **HANG}


def client_to(url: str) -> Any:
    return StampedClients(None, 3, 3).get_client(url)


def e2e_s(x: Exchange) -> float:
    ms = x.ms(x.last)
    assert ms is not None
    return ms / 1000


def test_connection_refused() -> None:
    x, _ = ask(client_to("http://127.0.0.1:1"), FINE)
    assert (x.error, x.status, x.connect_ms) == ("connect", 0, None)
    assert 0 <= e2e_s(x) < 2


def test_name_unknown() -> None:
    x, _ = ask(client_to("http://box.invalid:8000"), FINE)
    assert x.error == "dns"


def test_closed_before_any_byte(server: Server) -> None:
    x, _ = ask(client_of(server), {"framing": "raw", "script": [], "end": "close"})
    assert (x.error, x.reused, x.head.user) == ("disconnect", False, 0)


def test_closed_inside_the_head(server: Server) -> None:
    half = "HTTP/1.1 200 OK\r\nContent-"
    x, _ = ask(client_of(server), {"framing": "raw", "script": [{"text": half}], "end": "close"})
    assert x.error == "disconnect"


def test_reset_in_the_middle(server: Server) -> None:
    x, _ = ask(client_of(server), SSE | {"script": [{"text": TEXT}, {"after_ms": 20}], "end": "reset"})
    assert (x.error, x.status, len(x.tokens)) == ("disconnect", 200, 1)


def test_not_http(server: Server) -> None:
    x, _ = ask(client_of(server), {"framing": "raw", "script": [{"text": "SSH-2.0-OpenSSH_9.6\r\n"}], "end": "close"})
    assert x.error == "bad_stream"


def test_unknown_compression(server: Server) -> None:
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "br"}
    x, _ = ask(client_of(server), FINE | {"headers": headers})
    assert (x.error, x.encoded) == ("bad_stream", True)


# --- keep-alive


def test_the_second_request_reuses_the_connection(server: Server) -> None:
    client = client_of(server)
    first, second = ask(client, FINE)[0], ask(client, FINE)[0]
    assert (first.reused, second.reused) == (False, True)
    assert first.connect_ms > 0 and second.connect_ms is None


def test_a_connection_closed_while_idle_is_opened_anew(server: Server) -> None:
    client = client_of(server)
    assert ask(client, FINE | {"then": "shut"})[0].error == ""
    time.sleep(0.1)
    x, _ = ask(client, FINE)
    assert (x.error, x.reused) == ("", False) and x.connect_ms > 0


def test_a_reused_connection_that_dies_without_a_byte_is_stale(server: Server) -> None:
    client = client_of(server)
    assert ask(client, FINE | {"then": "drop"})[0].error == ""
    x, _ = ask(client, FINE)
    assert (x.error, x.reused) == ("stale", True)
    assert ask(client, FINE)[0].error == "", "the next one opens a connection"


def test_a_request_that_the_server_held_and_dropped_is_the_servers_failure(server: Server) -> None:
    client = client_of(server)
    assert ask(client, FINE)[0].error == ""
    x, _ = ask(client, {"framing": "raw", "script": [{"after_ms": 400}], "end": "close"})
    assert (x.error, x.reused) == ("disconnect", True), "no keep-alive race takes that long"


def test_a_reused_connection_that_dies_inside_the_head_is_no_stale_one(server: Server) -> None:
    client = client_of(server)
    assert ask(client, FINE)[0].error == ""
    broken = {"framing": "raw", "script": [{"text": "HTTP/1.1 200 OK\r\n"}, {"after_ms": 50}], "end": "reset"}
    x, _ = ask(client, broken)
    assert (x.error, x.reused) == ("disconnect", True)


def test_descriptors_from_1024_on_are_reused_too(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip(f"the hard limit of open files is {hard}; this needs 1200")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    files: list[int] = []
    try:
        while not files or files[-1] < 1030:
            files.append(os.open(os.devnull, os.O_RDONLY))
        client = client_of(server)
        first, second = ask(client, FINE)[0], ask(client, FINE)[0]
        assert client._connection_pool.sock.fileno() >= 1024
        assert (first.error, second.error, second.reused) == ("", "", True)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- timeouts: the word, and how long it took


@pytest.mark.parametrize(
    ("limits", "scenario", "tokens"),
    [
        (Limits(total=0.4, first_byte=9, idle=9), SILENT, 0),
        (Limits(total=9, first_byte=0.4, idle=9), SILENT, 0),
        (Limits(total=9, first_byte=0.4, idle=0.05), SSE | {"script": [], **HANG}, 0),
        (Limits(total=9, first_byte=9, idle=0.4), SSE | {"script": [{"text": TEXT}], **HANG}, 1),
    ],
    ids=["total", "first byte", "first token behind an early head", "idle"],
)
def test_timeout(server: Server, limits: Limits, scenario: dict[str, Any], tokens: int) -> None:
    client = client_to(server.url())
    client._connection_pool.first_byte_timeout = limits.first_byte
    x, _ = ask(client, scenario, limits)
    assert (x.error, len(x.tokens)) == ("timeout", tokens)
    assert 0.35 < e2e_s(x) < 2
    assert ask(client, FINE)[0].error == "", "the next request is not held up"


def test_comments_keep_an_answer_alive(server: Server) -> None:
    """Comments are no tokens, but a server that sends them is not silent."""
    steps = [{"text": TEXT}, *[{"after_ms": 150, "text": ": ping\n\n"}] * 5, {"text": STOP}]
    x, _ = ask(client_of(server), SSE | {"script": steps}, Limits(total=9, first_byte=9, idle=0.5))
    assert (x.error, len(x.tokens)) == ("", 1)


def test_a_deadline_while_still_sending_frees_the_user(server: Server) -> None:
    """A listener accepts nothing, a body beats the socket buffers; more often than the pool has places."""
    client = client_of(server)
    pool = client._connection_pool
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port, pool._connection_port = pool._connection_port, deaf.getsockname()[1]
        for _ in range(pool.size + 1):
            x = exchange(client, "/", b"x" * 32_000_000, {}, ChatReader(), Limits(0.2, 9, 9), True)
            assert x.error == "timeout", x.detail
        pool._connection_port = port
    assert ask(client, FINE, Limits(5, 5, 5))[0].error == ""


# --- our own side


CHILD = """
from gevent import monkey; monkey.patch_all()
import json, os, resource, sys
from asking import ask
from tokenswarm.sockets import StampedClients
client = StampedClients(None, 3, 3).get_client(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = []
try:
    while True:
        files.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    x, _ = ask(client, {})
    print(json.dumps([x.error, x.detail]))
"""


def test_no_descriptor_left_is_our_own_fault(server: Server) -> None:
    here = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": f"{here}:{here.parent}"}
    command = [sys.executable, "-c", CHILD, server.url()]
    done = subprocess.run(command, env=env, capture_output=True, timeout=30)
    word, detail = json.loads(done.stdout or b'["", "no output"]')
    assert word == "client" and "open files" in detail, done.stderr.decode()


def test_a_header_that_cannot_be_sent_is_our_own_fault(server: Server) -> None:
    client = client_of(server)
    assert ask(client, FINE)[0].error == ""
    for value in ("a\nb", "\u4e00"):
        x = exchange(client, "/play", b"{}", {"Authorization": value}, ChatReader(), LIMITS, True)
        assert x.error == "client"
        assert e2e_s(x) < 2, "not counted from the request before"
    assert ask(client, FINE)[0].error == ""


def test_a_reader_that_breaks_is_our_own_fault(server: Server) -> None:
    class Broken(ChatReader):
        def event(self, name: str, data: bytes) -> str:
            raise KeyError("bug")

    client = client_of(server)
    x = exchange(client, "/play", json.dumps(FINE).encode(), {}, Broken(), LIMITS, True)
    assert x.error == "client" and "KeyError" in x.detail
    assert ask(client, FINE)[0].error == ""


def test_killed_in_the_middle(server: Server) -> None:
    """The record says cancelled, the kill is handed on, and the server sees the client go."""
    client, seen = client_of(server), []
    scenario = SSE | {"script": [{"text": TEXT}], "end": "hang", "name": "killed"}
    user = gevent.spawn(lambda: seen.append(ask(client, scenario)[0]))
    gevent.sleep(0.2)
    user.kill()
    [x] = seen
    assert (x.error, len(x.tokens)) == ("cancelled", 1)
    assert isinstance(x.killed, gevent.GreenletExit)
    assert ask(client, {}, path="/await/killed")[0].status == 200, "the server never saw the disconnect"


def test_anothers_timeout_is_not_swallowed(server: Server) -> None:
    client = client_of(server)
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.2):
        ask(client, SILENT)
    assert ask(client, FINE)[0].error == ""
