"""TLS against a real TLS server: verified unless told otherwise, one context for all users."""

from __future__ import annotations

import time

import gevent
from asking import CASES, ask, client_of
from scripted import Server

from tokenswarm.sockets import StampedClients, tls_context

CA = str(CASES / "tls" / "ca.pem")
CLIENT = str(CASES / "tls" / "client.pem")
FINE = {"case": "sse/A01-role-chunk-early"}
QUICK = {"case": "sse/A08-usage-chunk-empty-choices"}


def test_an_unknown_ca_is_refused(server: Server) -> None:
    x, _ = ask(client_of(server, "tls", tls_context()), FINE)
    assert (x.error, x.status) == ("tls", 0)
    assert "certificate" in x.detail.lower()


def test_our_own_ca_is_accepted_and_the_clock_is_the_programs(server: Server) -> None:
    client = client_of(server, "tls", tls_context(CA))
    x, reader = ask(client, FINE)
    assert (x.error, "".join(reader.text), len(x.tokens)) == ("", "Hello!", 3)
    assert x.clock == "user" and x.lag_max_ms() is None
    assert abs(x.ms(x.tokens[0]) - 205) < abs(x.ms(x.tokens[0]) - 5)
    assert x.connect_ms > 0 and x.ms(x.head) < x.ms(x.tokens[0])
    again, _ = ask(client, QUICK)
    assert (again.error, again.reused, again.connect_ms) == ("", True, None)


def test_the_name_is_verified(server: Server) -> None:
    url = f"https://127.0.0.2:{server.ports['tls']}"
    client = StampedClients(tls_context(CA), 5, 5).get_client(url)
    client._connection_pool._connection_host = "127.0.0.1"
    x, _ = ask(client, QUICK)
    assert x.error == "tls" and "127.0.0.2" in x.detail


def test_insecure_asks_nothing(server: Server) -> None:
    x, _ = ask(client_of(server, "tls", tls_context(insecure=True)), QUICK)
    assert x.error == ""


def test_a_client_certificate(server: Server) -> None:
    without, _ = ask(client_of(server, "mtls", tls_context(CA)), QUICK)
    assert without.error == "tls"
    x, _ = ask(client_of(server, "mtls", tls_context(CA, client_cert=CLIENT)), QUICK)
    assert x.error == ""


def test_tls_to_a_plain_port(server: Server) -> None:
    url = f"https://127.0.0.1:{server.ports['plain']}"
    x, _ = ask(StampedClients(tls_context(CA), 5, 5).get_client(url), QUICK)
    assert (x.error, x.status) == ("tls", 0)


def test_closed_in_the_middle_is_no_success(server: Server) -> None:
    """Python's ssl tells a reset as an end of file, so both read alike."""
    text = 'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    scenario = {
        "headers": {"Content-Type": "text/event-stream"},
        "framing": "chunked",
        "script": [{"text": text}],
    }
    client = client_of(server, "tls", tls_context(CA))
    for end in ("close", "reset"):
        x, _ = ask(client, scenario | {"end": end})
        assert (x.error, len(x.tokens)) == ("truncated", 1)


def test_a_connection_closed_while_idle(server: Server) -> None:
    client = client_of(server, "tls", tls_context(CA))
    text = 'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    scenario = {
        "headers": {"Content-Type": "text/event-stream"},
        "framing": "chunked",
        "script": [{"text": text}],
    }
    assert ask(client, scenario | {"then": "shut"})[0].error == ""
    time.sleep(0.1)
    x, _ = ask(client, QUICK)
    assert (x.error, x.reused) in (("", False), ("stale", True))
    assert ask(client, QUICK)[0].error == ""


def test_one_context_serves_many_users(server: Server) -> None:
    context = tls_context(CA)
    clients = [client_of(server, "tls", context) for _ in range(40)]
    assert all(client._connection_pool.ssl_context is context for client in clients)
    users = [gevent.spawn(lambda client=client: ask(client, QUICK)[0].error) for client in clients]
    gevent.joinall(users, timeout=20)
    assert [user.value for user in users] == [""] * 40


def test_a_hundred_users_start_without_a_stall(server: Server) -> None:
    """Together they cost less than two contexts of their own would."""
    begin = time.perf_counter()
    context = tls_context()
    one_context = time.perf_counter() - begin
    begin = time.perf_counter()
    for _ in range(100):
        client_of(server, "tls", context)
    assert time.perf_counter() - begin < 2 * one_context
    insecure = tls_context(insecure=True)
    client_of(server, "tls", insecure)
    assert not insecure.check_hostname and context.check_hostname, "making a client leaves the context as it is"


def test_a_tls_connection_closed_while_idle_is_opened_anew(server: Server) -> None:
    """Its close_notify lies unread, and must not be taken for a session ticket."""
    client = client_of(server, "tls", tls_context(CA))
    assert ask(client, FINE | {"then": "shut"})[0].error == ""
    time.sleep(0.2)
    x, _ = ask(client, FINE)
    assert (x.error, x.reused) == ("", False)
