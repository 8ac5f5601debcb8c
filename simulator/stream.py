"""A streamed reply as bytes: every event is one HTTP chunk, and only a token's text differs between events."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from simulator.errors import INBAND_ERROR
from simulator.faults import Fault

FINGERPRINT = "vllm-0.32.0-simulator"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP's chunked framing."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def usage(prompt: int, output: int, cached: int) -> dict[str, Any]:
    counts: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    if cached:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts


@dataclass(slots=True, frozen=True)
class Reply:
    """What will be said: JSON strings, repeated if need be; an end by 'stop' takes one token without text."""

    pieces: list[bytes]
    start: int
    tokens: int
    finish: str

    def piece(self, index: int) -> bytes:
        if self.finish == "stop" and index == self.tokens - 1:
            return b'""'
        return self.pieces[(self.start + index) % len(self.pieces)]

    def text(self) -> str:
        return "".join(msgspec.json.decode(self.piece(index)) for index in range(self.tokens))


class Events:
    """The events of one chat or completion stream."""

    def __init__(self, chat: bool, id: str, created: int, model: str, reply: Reply, options: dict[str, Any]) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        quoted = msgspec.json.encode(model)
        self.head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            msgspec.json.encode(id),
            kind.encode(),
            created,
            quoted,
        )
        self.chat = chat
        self.reply = reply
        self.include_usage = bool(options.get("include_usage"))
        self.continuous = self.include_usage and bool(options.get("continuous_usage_stats"))
        self.prompt_tokens = 0
        if chat:
            self.open = self.head + b'{"index":0,"delta":{"content":'
            self.next = b'},"logprobs":null,"finish_reason":null,"token_ids":null}]'
            self.last = b'},"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}]'
        else:
            self.open = self.head + b'{"index":0,"text":'
            rest = b',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
            self.next = b',"logprobs":null,"finish_reason":null' + rest
            self.last = b',"logprobs":null,"finish_reason":"%b"' + rest
        self.plain = self.next + b"}\n\n"

    def _counts(self, output: int) -> bytes:
        if not self.continuous:
            return b""
        counts = usage(self.prompt_tokens, output, 0) | {"completion_tokens_details": None}
        return b',"usage":' + msgspec.json.encode(counts)

    def token(self, index: int, finish: str | None) -> bytes:
        """The event of one token; the first also brings the role, the last the finish reason."""
        piece = self.reply.piece(index)
        if finish:
            extra = b"" if self.include_usage else b',"system_fingerprint":"%b"' % FINGERPRINT.encode()
            data = self.open + piece + self.last % finish.encode() + self._counts(index + 1) + extra + b"}\n\n"
        elif self.continuous:
            data = self.open + piece + self.next + self._counts(index + 1) + b"}\n\n"
        else:
            data = self.open + piece + self.plain
        if index or not self.chat:
            return chunk(data)
        role = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        role = self.head + role + self._counts(0) + b',"prompt_token_ids":null,"prompt_text":null}\n\n'
        return chunk(role) + chunk(data)

    def end(self, cached: int) -> bytes:
        """Usage if asked for, then [DONE]."""
        if not self.include_usage:
            return chunk(DONE)
        counts = msgspec.json.encode(usage(self.prompt_tokens, self.reply.tokens, cached))
        data = self.head + b'],"usage":%b,"system_fingerprint":"%b"}\n\n' % (counts, FINGERPRINT.encode())
        return chunk(data) + chunk(DONE)


class Stream:
    """Listener that writes a sequence's tokens straight to the connection, one write each."""

    def __init__(self, transport: asyncio.Transport, events: Events, fault: Fault | None, stall_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport = transport
        self.events = events
        self.fault = fault
        self.stall_s = stall_s
        self.done: asyncio.Future[str] = self.loop.create_future()
        self.prepared = self.delivered = 0
        self.held: list[tuple[bytes, str | None]] | None = None

    def prepare(self, new: int, finish: str | None) -> bytes:
        self.prepared += 1
        return self.events.token(self.prepared - 1, finish)

    def deliver(self, payload: bytes, finish: str | None) -> None:
        if self.done.done() or self.transport.is_closing():
            return
        self.delivered += 1
        if self.fault and self.fault.at == self.delivered:
            self._fail(self.fault.kind)
        if self.held is not None:
            self.held.append((payload, finish))
        elif not self.done.done():
            self._write(payload, finish)

    def _write(self, payload: bytes, finish: str | None) -> None:
        self.transport.write(payload)
        if finish:
            self.done.set_result("end")

    def _fail(self, kind: str) -> None:
        if kind == "stall":
            self.held = []
            self.loop.call_later(self.stall_s, self._catch_up)
            return
        if kind == "cut":
            self.transport.close()
        else:
            self.transport.write(chunk(b"data: " + INBAND_ERROR.encode() + b"\n\n"))
        self.done.set_result(kind)

    def _catch_up(self) -> None:
        held, self.held = self.held or [], None
        for payload, finish in held:
            if not self.done.done() and not self.transport.is_closing():
                self._write(payload, finish)


class Collect:
    """Listener for a reply that is sent whole: waits until all of its sequences have finished."""

    def __init__(self, count: int = 1) -> None:
        self.left = count
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def prepare(self, new: int, finish: str | None) -> bytes:
        return b""

    def deliver(self, payload: bytes, finish: str | None) -> None:
        if finish:
            self.left -= 1
            if self.left == 0 and not self.done.done():
                self.done.set_result("end")
