"""One real request through the real user class, and what its record says of the server."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import gevent
from locust.env import Environment

from tokenswarm import probe, prompts, users
from tokenswarm.probe import Server
from tokenswarm.profiles import approx_tokens, image_parts, texts
from tokenswarm.record import RequestRecord
from tokenswarm.recorder import Recorder
from tokenswarm.users.base import EndpointUser

PATIENCE = 10.0
BURST_MS = 0.1  # no model makes 10,000 tokens/s for one user: chunks closer than this were held back and let go together
EXPLAINED = {
    "dns": "the name could not be resolved",
    "connect": "no connection",
    "tls": "no TLS connection",
    "timeout": "no answer in time: see TTFT_TIMEOUT, IDLE_TIMEOUT and TIMEOUT, or the server's log",
    "disconnect": "the server closed the connection before the answer was complete: look into its log",
    "stale": "the server closed the connection that was kept open",
    "truncated": "the stream ended without finish_reason or [DONE]: look into the log of the server or of its proxy",
    "empty": "the answer holds no token: is this the right kind of server and the right API?",
    "server_error": "an error inside an HTTP 200 answer: look into the server's log",
    "aborted": "the server cut the answer off (finish_reason abort): look into its log",
    "client": "this machine is at a limit (open files, ports or memory)",
}


class Notebook(Recorder):
    """Keeps the last request instead of shipping it."""

    gaps_ms: list[float]

    def add(self, record: RequestRecord, gaps_ms: list[float]) -> None:
        self.gaps_ms = gaps_ms


class Trial:
    """One user of a kind with everything it needs. Raises ProfileError, ValueError (in one line), OSError."""

    def __init__(self, server: Server, options: Any) -> None:
        self.server, self.kind = server, server.target.kind
        environment: Any = Environment(parsed_options=options)
        environment.create_local_runner()
        self.notebook = environment.recorder = Notebook(environment)
        environment.events.request.add_listener(self._note)
        self.words = ""
        self.user = user_class(self.kind)(environment)
        self.user.on_start()

    def _note(self, exception: Exception | None, **_: Any) -> None:
        self.words = probe.said(str(exception).partition(": ")[2]) if exception else ""

    def send(self, draws: prompts.Draws) -> RequestRecord:
        """Send the next draw; after 10 s say that it is being waited for."""
        waiting = gevent.spawn_later(PATIENCE, probe.say, f"{self.kind}: the request has no end after {PATIENCE:g} s; waiting")
        try:
            return self.user.send(self.user.prepare(draws.next()))
        finally:
            waiting.kill()

    def largest(self) -> prompts.Prompt:
        """The profile's prompt with the most images, then with the most tokens (roughly)."""
        return max(self.user.loaded.prompts, key=lambda p: (len(image_parts(p.body)), self.tokens(p)))

    def tokens(self, prompt: prompts.Prompt) -> int:
        """Roughly the context a prompt needs: its longest sequence of text and its output."""
        body = prompt.body
        parts = texts({k: v for k, v in body.items() if k in ("input", "documents")})
        text = body.get("query", "") + max(parts, key=approx_tokens) if parts else "".join(texts(body))
        return approx_tokens(text) + self.output(prompt)

    def output(self, prompt: prompts.Prompt) -> int:
        """The output limit a request of this prompt asks for; 0 if it has none."""
        return int(self.user.options.max_tokens or prompt.body.get("max_tokens") or 0)

    def only(self, prompt: prompts.Prompt) -> prompts.Draws:
        """Draws that give this prompt alone, with a nonce of their own."""
        o = self.user.options
        profile = replace(self.user.loaded, prompts=(prompt,))
        return prompts.Draws(profile, o.seed, "preflight", 0, o.nonce, o.jitter)

    def close(self) -> None:
        """Close the connection and end the greenlets."""
        self.user.on_stop()
        self.user.environment.runner.quit()

    def explain(self, record: RequestRecord) -> str:
        """What went wrong in plain words, with the server's own, and what to do."""
        http, says = record.error.startswith("http_"), f"HTTP {record.status}: {self.words}".removesuffix(": ")
        if not http:
            if record.error == "bad_stream":
                return self._bad_stream()
            return f"{record.error}: {EXPLAINED.get(record.error, 'failed')}" + (f" ({self.words})" if self.words else "")
        if record.status in (401, 403):
            return probe.key_line(self.server, says)
        where, name = self.server.target.url + self.user.path.removeprefix(self._prefix()), self.kind.upper()
        if record.status == 404 and re.search("model", self.words, re.IGNORECASE):
            return f"the model {self.user.target.model!r} was refused ({says}): correct {name}_MODEL"
        if record.status in (404, 405, 501):
            other = ", ".join(type(self.user).apis)
            return f"{where} is not there ({says}): is this a {self.kind} server? correct {name}_URL, or API= (one of {other})"
        if record.status in (400, 413, 422):
            return f"{where} refused prompt {record.prompt_id!r} ({says}): {self.advice()}"
        if record.status == 429:
            return f"{where} sheds load at one request ({says}): free it, or lift the limit of this key or proxy"
        return f"{where} failed ({says}): look into the log of the server or of its proxy"

    def _prefix(self) -> str:
        return "/" + self.server.target.url.partition("://")[2].partition("/")[2] if self.server.target.url.count("/") > 2 else ""

    def _bad_stream(self) -> str:
        if self.user.streams:
            return "a stream was asked for, something else came: give STREAM=0 for whole replies, or check the proxy before the server"
        return f"the answer could not be read: is this a {self.kind} server? correct {self.kind.upper()}_URL, or API="

    def advice(self) -> str:
        """What to do about a request that the server finds wrong."""
        if re.search(r"context|too long|length|max_tokens|exceed|tokens", self.words, re.IGNORECASE):
            return "shorten the profile's prompts, lower MAX_TOKENS, or give the server a longer context"
        if self.user.loaded and re.search("image|multimodal|multi-modal", self.words, re.IGNORECASE):
            return "take images out of the profile, or raise the server's limit of images"
        return "correct the profile's body, or choose another with PROMPTS"

    def bursts(self) -> bool:
        """Most of the last answer's chunks came at the same moment as the one before."""
        gaps = self.notebook.gaps_ms
        return len(gaps) > 3 and sum(gap < BURST_MS for gap in gaps) > len(gaps) / 2


def user_class(kind: str) -> type[EndpointUser]:
    """The user class of a kind."""
    return next(c for c in vars(users).values() if isinstance(c, type) and getattr(c, "kind", "") == kind)


def tpot_ms(record: RequestRecord) -> float | None:
    """TPOT = (E2E - TTFT) / (output tokens - 1), ms."""
    if record.ttft_ms is None or record.e2e_ms is None or (record.output_tokens or 0) < 2:
        return None
    return (record.e2e_ms - record.ttft_ms) / ((record.output_tokens or 0) - 1)


def ms(value: float) -> str:
    """A time for people: 0.12 ms, 23 ms, 1234 ms."""
    return f"{value:.2f} ms" if value < 1 else f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"


def shown(record: RequestRecord) -> str:
    """A record in one line."""
    times = [("TTFT", record.ttft_ms), ("TPOT", tpot_ms(record)), ("E2E", record.e2e_ms)]
    parts = [f"HTTP {record.status}", *(f"{name} {ms(value)}" for name, value in times if value is not None)]
    if record.input_tokens is not None:
        parts.append(f"{record.input_tokens} tokens in")
    if record.output_tokens is not None:
        parts.append(f"{record.output_tokens} out ({record.tokens_source})")
    counts = [(record.chunks, "chunks"), (record.items, "items")]
    parts += [f"{count} {name}" for count, name in counts if count is not None]
    return ", ".join([*parts, f"{record.clock} clock", *filter(None, [record.outcome])])
