"""One HTTP exchange, timed: bytes off the socket with their arrival time, cut into SSE events. THE timing, once.

TTFT = first token chunk - sending; E2E = last token chunk - sending (method section 1; vLLM and AIPerf alike).
Connecting comes before sending and is never part of either."""

from __future__ import annotations

import errno
import socket
import ssl
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import gevent
from geventhttpclient.client import HTTPClient
from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError
from sseclient import SSEClient

from tokenswarm.sockets import NEVER, Stamp, both_clocks

CLIENT_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
CLOCK_STEP_NS = 1_000_000
STALE_NS = (
    100_000_000  # a connection closed while idle shows within a round trip; later, the server dropped the request
)
DETAIL_MAX = 300


class Reader(Protocol):
    """What a kind of endpoint makes of an answer; it never sees a clock."""

    bad_events: int

    def event(self, name: str, data: bytes) -> str:
        """One SSE event -> "" (no token), "reasoning", or "text" (answer text or tool call)."""

    def body(self, data: bytes) -> None:
        """A whole reply that was not streamed."""

    def verdict(self) -> str:
        """After the clean end of the answer: "" = success, else the error word."""

    def refusal(self, data: bytes) -> str:
        """What the body of an HTTP error says, for people."""


@dataclass(slots=True)
class Limits:
    """Timeouts in s: a whole request; silence before the first token (many servers send the head at once and let
    the request queue behind it); silence in the middle of an answer."""

    total: float = 600.0
    first_byte: float = 300.0
    idle: float = 120.0


@dataclass(slots=True)
class Exchange:
    """What happened to one request, in raw stamps; `ms` turns a stamp into ms since sending."""

    start_time: float = 0.0
    sent: tuple[int, int] = (0, 0)
    status: int = 0
    error: str = ""
    detail: str = ""  # for people; never a key, never a prompt
    connect_ms: float | None = None
    reused: bool = False
    encoded: bool = False  # the server compressed the stream although we asked for identity
    retry_after: str = ""
    head: Stamp = NEVER
    tokens: list[Stamp] = field(default_factory=list)
    first_text: Stamp = NEVER
    last: Stamp = NEVER  # the last byte that came
    received: int = 0
    killed: BaseException | None = None
    clock: str = "user"

    def choose_clock(self) -> None:
        """`kernel` if every stamp has the kernel's time and the wall clock was not stepped meanwhile, else `user`."""
        mono, real = (now - then for now, then in zip(both_clocks(), self.sent, strict=True))
        stamps = [stamp for stamp in (self.head, *self.tokens, self.last) if stamp.user]
        steady = abs(real - mono) < CLOCK_STEP_NS and self.sent[1] <= min((s.kernel for s in stamps), default=0)
        self.clock = "kernel" if steady else "user"

    def ms(self, stamp: Stamp) -> float | None:
        """ms from sending to this stamp on the chosen clock; None if it never came."""
        if not stamp.user:
            return None
        return (stamp.kernel - self.sent[1]) / 1e6 if self.clock == "kernel" else (stamp.user - self.sent[0]) / 1e6

    def notes(self) -> str:
        """The record's notes column: compression that hides arrival times, and a Retry-After, which is never obeyed."""
        words = ["compressed"] if self.encoded else []
        return "|".join(words + ([f"retry-after={self.retry_after}"] if self.retry_after else []))

    def gaps_ms(self) -> list[float]:
        """Inter-token gaps: ms between neighbouring token chunks (they start after the first token)."""
        side = 1 if self.clock == "kernel" else 0
        return [(b[side] - a[side]) / 1e6 for a, b in zip(self.tokens, self.tokens[1:], strict=False)]

    def lag_max_ms(self) -> float | None:
        """Longest wait in ms between a token chunk's arrival in the kernel and our reading it."""
        if self.clock != "kernel" or not self.tokens:
            return None
        shift = self.sent[1] - self.sent[0]
        return max(stamp.user + shift - stamp.kernel for stamp in self.tokens) / 1e6


def exchange(
    client: HTTPClient, path: str, body: bytes, headers: dict[str, str], reader: Reader, limits: Limits, stream: bool
) -> Exchange:
    """Send one request and read its answer to the end. Never raises: a failure is in `error`, a kill in `killed`."""
    x = Exchange(start_time=time.time())
    pool: Any = client._connection_pool
    pool.begin()
    timer = gevent.Timeout(limits.total)
    timer.start()
    try:
        response = client.request("POST", path, body, headers)
        _opened(x, pool)
        _answer(x, pool.sock, response, reader, limits, stream)
    except gevent.GreenletExit as kill:
        x.error, x.killed = "cancelled", kill
    except BaseException as error:
        if not isinstance(error, Exception) and error is not timer:
            raise
        _fail(x, pool, error)
    finally:
        timer.close()
        pool.drop()
        _opened(x, pool)
        end = Stamp(*both_clocks())
        if x.error:
            x.last = end
        elif not x.last.user:
            x.last = x.head
        x.choose_clock()
    return x


def _opened(x: Exchange, pool: Any) -> None:
    """What the pool knows of the connection; before the first byte was sent, the failure counts from the start."""
    x.reused = not pool.opening and pool.open_ns is None
    x.connect_ms = None if pool.open_ns is None else pool.open_ns / 1e6
    if pool.sock is not None and pool.sock.sent[0]:
        x.sent = pool.sock.sent
        x.start_time = x.sent[1] / 1e9
    elif not x.sent[0]:
        mono, real = both_clocks()
        x.sent = (mono - real + int(x.start_time * 1e9), int(x.start_time * 1e9))


def _fail(x: Exchange, pool: Any, error: BaseException) -> None:
    if x.error:  # an HTTP error status says more than its body that broke off
        return
    sent = pool.sock is not None and pool.sock.sent[0] > 0
    started = sent and pool.sock.arrival.user > 0
    at_once = sent and time.perf_counter_ns() - pool.sock.sent[0] < STALE_NS
    x.error = _word(error, sent, started, reused=at_once and not pool.opening and pool.open_ns is None)
    x.detail = f"{type(error).__name__}: {error}"[:DETAIL_MAX]


def _word(error: BaseException, sent: bool, started: bool, reused: bool) -> str:
    """The error word for an exception: before sending it is about opening, after it about the server."""
    match error:
        case OSError() if error.errno in CLIENT_ERRNOS:
            return "client"
        case socket.gaierror():
            return "dns"
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() if sent:
            return "disconnect"
        case ssl.SSLError():  # also after sending: TLS 1.3 refuses a client certificate only then
            return "tls"
        case OSError() | gevent.Timeout() if not sent:
            return "connect"
        case gevent.Timeout() | TimeoutError():
            return "timeout"
        case _Truncated():
            return "truncated"
        case HTTPConnectionClosed() | ConnectionError():
            return "stale" if reused and not started else "disconnect"
        case HTTPParseError() if "closed" in str(error) or "EOF" in str(error):  # inside the head
            return "disconnect"
        case HTTPParseError() | UnicodeError() | ValueError() | zlib.error() if sent:
            return "bad_stream"
        case OSError():
            return "disconnect"
    return "client"


class _Truncated(Exception):
    """The peer closed in the middle of a body that says how long it is."""


def _answer(x: Exchange, sock: Any, response: Any, reader: Reader, limits: Limits, stream: bool) -> None:
    x.status, x.head = response.status_code, sock.arrival
    x.retry_after = str(response.get("retry-after") or "")
    x.encoded = str(response.get("content-encoding") or "identity").lower() != "identity"
    pieces = _bytes(x, sock, response, limits)
    if x.encoded:
        pieces = _inflate(pieces)
    if not 200 <= x.status < 300:
        x.error = f"http_{x.status}"
        x.detail = reader.refusal(b"".join(pieces))
    elif stream and "json" not in str(response.get("content-type") or ""):
        _events(x, pieces, reader)
        x.error = reader.verdict()
    else:
        reader.body(b"".join(pieces))
        x.error = reader.verdict() or ("bad_stream" if stream else "")


def _bytes(x: Exchange, sock: Any, response: Any, limits: Limits) -> Iterator[bytes]:
    """Body bytes as they arrive, x.last the stamp of the latest; to the end, so the connection can be reused."""
    buffer, stamp = response._body_buffer, x.head
    try:
        while True:
            if buffer:
                piece = bytes(buffer)
                buffer.clear()
                x.last, x.received = stamp, x.received + len(piece)
                yield piece
            if response.message_complete:
                return
            sock.settimeout(limits.idle if x.tokens else limits.first_byte)
            data = sock.recv(65536)
            stamp = sock.arrival
            try:
                response.feed(data)
            except HTTPParseError as error:
                raise error if data else _Truncated(str(error)) from None
    finally:
        if not response.message_complete:
            response.release()


def _inflate(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Undo gzip or deflate as it comes (other codings raise zlib.error)."""
    decoder = zlib.decompressobj(47)
    for piece in pieces:
        yield decoder.decompress(piece)
    yield decoder.flush()


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes with every line end made LF and cut behind one: sseclient knows no mixed blank lines and no
    byte order mark, and would copy a long line anew for each piece of it."""
    held: list[bytes] = []
    first, swallow = True, False
    for piece in pieces:
        if swallow and piece:
            piece, swallow = piece.removeprefix(b"\n"), False
        swallow = swallow or piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        held.append(piece)
        if b"\n" in piece:
            whole = b"".join(held)
            held.clear()
            yield whole.removeprefix(b"\xef\xbb\xbf") if first else whole
            first = False
    if held:
        yield b"".join(held)


def _events(x: Exchange, pieces: Iterator[bytes], reader: Reader) -> None:
    # latin-1 carries every byte through sseclient unharmed; the JSON decoder then judges the UTF-8 of the whole event.
    for event in SSEClient(_lines(pieces), char_enc="latin-1").events():
        sort = reader.event(event.event, event.data.encode("latin-1"))
        if sort:
            x.tokens.append(x.last)
            if sort == "text" and not x.first_text.user:
                x.first_text = x.last
