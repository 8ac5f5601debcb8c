"""Sockets that know when their bytes arrived, in a pool that geventhttpclient uses.

On Linux, SO_TIMESTAMPNS makes recvmsg tell when the KERNEL received the bytes, however late this process reads
them: with hundreds of streams in one event loop the program's own clock is tens of ms late. Elsewhere, and under
TLS, the program's clock right after recv is all there is."""

from __future__ import annotations

import select
import socket as stdsocket
import struct
import sys
import time
from typing import Any, NamedTuple

import gevent.socket
import gevent.ssl
from gevent import monkey
from geventhttpclient.client import HTTPClient, HTTPClientPool
from geventhttpclient.connectionpool import ConnectionPool, SSLConnectionPool

SO_TIMESTAMPNS = 35  # include/uapi/asm-generic/socket.h; Python has no name for it
STAMPS = sys.platform == "linux" and struct.calcsize("l") == 8
_ANCILLARY = stdsocket.CMSG_SPACE(16) if hasattr(stdsocket, "CMSG_SPACE") else 0
_TIMESPEC = struct.Struct("ll")
PEEK = 4096
RDHUP = getattr(select, "POLLRDHUP", 0)


class Stamp(NamedTuple):
    """When bytes arrived: `user` by perf_counter_ns after recv, `kernel` by the kernel's real time (0: unknown)."""

    user: int
    kernel: int


NEVER = Stamp(0, 0)


def both_clocks() -> tuple[int, int]:
    """(perf_counter_ns, CLOCK_REALTIME ns) of one moment: read again if something came between the two."""
    while True:
        before, real, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        if after - before < 50_000:
            return before, real


class StampedSocket(gevent.socket.socket):
    """A TCP socket whose recv stops at the end of an SSE event (or of the HTTP head) and keeps the arrival stamp.

    One recv that spans several segments would carry the last one's stamp; hence the peek. It cannot undo that Linux
    merges small segments nobody has read yet and gives them the newest one's stamp: while the event loop is late, a
    stamp is late too, by less than the loop is (monitors/host.py watches that), and never early.
    `sent` is set when a request's first byte is about to go."""

    arrival: Stamp = NEVER
    sent: tuple[int, int] = (0, 0)  # (perf_counter_ns, CLOCK_REALTIME ns)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        seen = super().recv(min(bufsize, PEEK), flags | stdsocket.MSG_PEEK)
        data, ancillary, _, _ = self.recvmsg(_event_end(seen) or bufsize, _ANCILLARY, flags)
        kernel = 0
        for _, kind, value in ancillary:
            if kind == SO_TIMESTAMPNS:
                whole, nanos = _TIMESPEC.unpack(value[:16])
                kernel = whole * 1_000_000_000 + nanos
        if data:
            self.arrival = Stamp(time.perf_counter_ns(), kernel)
        return data

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.sent = both_clocks()
        super().sendall(data, flags)


def _event_end(data: bytes) -> int:
    """Length up to and with the first blank line (and the chunk end behind it); 0 if there is none."""
    end = data.find(b"\n\n")
    crlf = data.find(b"\r\n\r\n", 0, end + 1 if end >= 0 else len(data))
    if crlf >= 0:
        end, width = crlf, 4
    elif end >= 0:
        width = 2
    else:
        return 0
    end += width
    return end + 2 if data[end : end + 2] == b"\r\n" and crlf < 0 else end


class StampedSSLSocket(gevent.ssl.SSLSocket):
    """The same under TLS, by the program's clock: the kernel's stamp is of the record, which may hold half an event."""

    arrival: Stamp = NEVER
    sent: tuple[int, int] = (0, 0)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        data = super().recv(buflen, flags)
        if data:
            self.arrival = Stamp(time.perf_counter_ns(), 0)
        return data

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.sent = both_clocks()
        super().sendall(data, flags)


class _Opened:
    """What wire.py asks a pool after a request: how long opening took (None: reused), and which socket it was."""

    open_ns: int | None = None
    opening = False
    sock: Any = None
    held: Any = None  # the socket that is out of the pool
    first_byte_timeout: float = 300.0
    keepalive = True

    def begin(self) -> None:
        """Forget the request before this one."""
        self.open_ns, self.sock, self.opening = None, None, True

    def drop(self) -> None:
        """Close the socket if it is still out: the library forgets it when a kill or our deadline ends the sending,
        and the user's next request would wait for it for ever."""
        if self.held is not None:
            self.release_socket(self.held)

    def return_socket(self, sock: Any) -> None:
        if not self.keepalive:
            self.release_socket(sock)
        elif sock is self.held:
            self.held = None
            super().return_socket(sock)  # type: ignore[misc]

    def release_socket(self, sock: Any) -> None:
        if sock is self.held:
            self.held = None
            super().release_socket(sock)  # type: ignore[misc]

    def _create_socket(self) -> Any:
        begin = time.perf_counter_ns()
        sock = super()._create_socket()  # type: ignore[misc]
        self.open_ns = time.perf_counter_ns() - begin
        return sock

    def get_socket(self) -> Any:
        self.begin()
        sock = super().get_socket()  # type: ignore[misc]
        sock.settimeout(self.first_byte_timeout)
        sock.sent, sock.arrival = (0, 0), NEVER
        self.sock, self.held, self.opening = sock, sock, False
        return sock

    def _is_socket_alive(self, sock: Any) -> bool:
        # The library asks select(), which refuses descriptors from 1024 on: such connections would never be reused.
        if RDHUP:  # the peer has closed, whatever lies unread
            poll = monkey.get_original("select", "poll")()
            poll.register(sock.fileno(), RDHUP)
            if poll.poll(0):
                return False
        try:
            waiting = sock._sock.recv(1, stdsocket.MSG_PEEK | stdsocket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        # End of file, or bytes nobody asked for; under TLS those may be session tickets, which are no harm.
        return bool(waiting) and isinstance(sock, StampedSSLSocket)


class StampedPool(_Opened, ConnectionPool):
    """Plain TCP."""

    def _create_tcp_socket(self, family: int, socktype: int, protocol: int) -> StampedSocket:
        sock = StampedSocket(family, socktype, protocol)
        sock.setsockopt(stdsocket.IPPROTO_TCP, stdsocket.TCP_NODELAY, 1)
        if STAMPS:
            sock.setsockopt(stdsocket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        return sock


class StampedSSLPool(_Opened, SSLConnectionPool):
    """TLS over one shared context."""

    def __init__(self, host: str, port: int, context: gevent.ssl.SSLContext, **kw: Any) -> None:
        ConnectionPool.__init__(self, host, port, host, port, **kw)
        self.ssl_options = {"server_hostname": host}
        self.ssl_context = context


class StampedClients(HTTPClientPool):
    """A FastHttpUser's client_pool whose sockets are stamped; one per user, since users share no connections."""

    def __init__(
        self,
        context: gevent.ssl.SSLContext | None,
        connect_timeout: float,
        first_byte_timeout: float,
        keepalive: bool = True,
    ) -> None:
        arguments: dict[str, Any] = {"connection_timeout": connect_timeout, "network_timeout": first_byte_timeout}
        if context is not None:  # else the library builds a context for each client, 50 ms of a stalled loop
            arguments |= {"ssl_context_factory": lambda **_: context, "insecure": not context.check_hostname}
        super().__init__(**arguments)
        self.context, self.first_byte_timeout, self.keepalive = context, first_byte_timeout, keepalive

    def get_client(self, url: Any) -> HTTPClient:
        known = len(self.clients)
        client = super().get_client(url)
        if len(self.clients) > known:
            client._connection_pool = self._pool(client)
        return client

    def _pool(self, client: Any) -> ConnectionPool:
        old = client._connection_pool
        timeouts = {"connection_timeout": old.connection_timeout, "network_timeout": old.network_timeout}
        if client.ssl:
            assert self.context is not None, "https target without a TLS context"
            pool: Any = StampedSSLPool(client.host, client.port, self.context, **timeouts)
        else:
            pool = StampedPool(client.host, client.port, client.host, client.port, **timeouts)
        pool.first_byte_timeout, pool.keepalive = self.first_byte_timeout, self.keepalive
        return pool


def tls_context(ca: str = "", insecure: bool = False, client_cert: str = "") -> gevent.ssl.SSLContext:
    """A verifying TLS context (own CA file, client certificate); `insecure` turns verification off.

    Raises OSError/ssl.SSLError for unreadable files."""
    context = gevent.ssl.create_default_context(cafile=ca or None)
    if insecure:
        context.check_hostname = False
        context.verify_mode = gevent.ssl.CERT_NONE
    if client_cert:
        context.load_cert_chain(client_cert)
    context.sslsocket_class = StampedSSLSocket
    return context
