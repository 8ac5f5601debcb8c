"""One real request through the real user class, shown as its record, or explained in plain words if it failed."""

from __future__ import annotations

import copy
import re
import time
from dataclasses import replace
from importlib import import_module
from typing import Any
from urllib.parse import urljoin

import gevent
from locust.env import Environment

from tokenswarm import prompts
from tokenswarm.preflight.reach import Fault, Server, key_line, said, say
from tokenswarm.profiles import approx_tokens, image_parts, texts
from tokenswarm.record import RequestRecord, tpot_ms
from tokenswarm.recorder import Recorder
from tokenswarm.users.base import EndpointUser, load_prompts

PATIENCE = 10.0
CALIBRATION_WORDS = (40, 240)
BURST_MS = 0.1  # no model makes 10,000 tokens/s for one user: chunks closer than this were held back on the way
EXPLAINED = {
    "dns": "the name could not be resolved",
    "connect": "no connection",
    "tls": "no TLS connection",
    "timeout": "no answer in time: look into the server's log, or raise TTFT_TIMEOUT, IDLE_TIMEOUT, TIMEOUT",
    "disconnect": "the server closed the connection in the middle: look into its log",
    "stale": "the server closed the connection that was kept open",
    "truncated": "the stream ended without finish_reason or [DONE]: look into the log of the server or of its proxy",
    "empty": "the answer holds no token: is this the right kind of server, the right API?",
    "server_error": "an error inside an HTTP 200 answer: look into the server's log",
    "aborted": "the server cut the answer off (finish_reason abort): look into its log",
    "client": "this machine is at a limit of its own (open files, ports or memory)",
}


class Notebook(Recorder):
    """Keeps the gaps of the last request instead of shipping its record."""

    gaps_ms: list[float]

    def add(self, record: RequestRecord, gaps_ms: list[float]) -> None:
        self.gaps_ms = gaps_ms


class Trial:
    """One user of a kind with everything it needs. Raises ProfileError, ValueError (in one line), OSError."""

    def __init__(self, server: Server, options: Any) -> None:
        self.server, self.kind, self.words, self.closed = server, server.target.kind, "", False
        environment: Any = Environment(parsed_options=options)
        environment.create_local_runner()
        self.notebook = environment.recorder = Notebook(environment)
        environment.events.request.add_listener(self._note)
        self.user = user_class(self.kind)(environment)
        self.user.on_start()

    def _note(self, exception: Exception | None, **_: Any) -> None:
        self.words = said(str(exception).partition(": ")[2]) if exception else ""

    def send(self, only: prompts.Prompt | None = None) -> RequestRecord:
        """Send a drawn prompt, or this one; after 10 s say that it is being waited for. Raises Fault."""
        waiting = gevent.spawn_later(PATIENCE, say, f"{self.kind}: no end of the answer after {PATIENCE:g} s; waiting")
        try:
            draws = self._draws(only)
            record = self.user.send(self.user.prepare(draws.next()))
            if record.error != "stale":
                return record
            self.closed = True  # behind our back: a matter of keep-alive, not of this prompt
            return self.user.send(self.user.prepare(draws.next()))
        except KeyError as error:
            name = self.user.loaded.name
            line = f"profile {name!r} has no {error} in a body, which {self.kind} needs: choose another with PROMPTS"
            raise Fault("request", line) from None
        finally:
            waiting.kill()

    def _draws(self, only: prompts.Prompt | None) -> prompts.Draws:
        # A stream that no load user draws from, new each time: or the server's prefix cache would know its prompts.
        o, profile = self.user.options, self.user.loaded
        profile = replace(profile, prompts=(only,)) if only else profile
        return prompts.Draws(profile, o.seed, "preflight", time.time_ns(), o.nonce, o.jitter)

    def calibrate(self) -> tuple[float, float] | None:
        """(tokens per word, tokens of the frame) of synthetic prompts, from the server's own counts of two; None
        where it gives no usage. From then on the user draws prompts of the calibrated length."""
        counts: list[int] = []
        for words in CALIBRATION_WORDS:
            message = {"role": "user", "content": prompts.synthetic_text(words, words)}
            record = self.send(prompts.Prompt(f"calibration-{words}", 1, {"messages": [message], "max_tokens": 1}))
            if record.error:
                raise Fault("INPUT_TOKENS", self.explain(record))
            if record.input_tokens is None:
                return None
            counts.append(record.input_tokens)
        short, long = CALIBRATION_WORDS
        options = self.user.options
        found = prompts.calibrate(short, counts[0], long, counts[1])
        options.tokens_per_word, options.prompt_overhead = found
        self.user.loaded = load_prompts(options, self.user, fresh=True)
        return found

    def image_tokens(self, prompt: prompts.Prompt, whole: RequestRecord) -> float | None:
        """Input tokens of an image: the prompt's count less that of the same prompt without its images, per image."""
        body = copy.deepcopy(prompt.body)
        for message in body["messages"]:
            if isinstance(message["content"], list):
                message["content"] = [part for part in message["content"] if part.get("type") != "image_url"]
        bare = self.send(replace(prompt, body=body | {"max_tokens": 1}))
        if bare.input_tokens is None or whole.input_tokens is None or not whole.items:
            return None
        return (whole.input_tokens - bare.input_tokens) / whole.items

    def largest(self) -> prompts.Prompt:
        """The profile's prompt with the most images, then with the most tokens (roughly)."""
        return max(self.user.loaded.prompts, key=lambda p: (len(image_parts(p.body)), self.tokens(p)))

    def tokens(self, prompt: prompts.Prompt) -> int:
        """Roughly the context that a prompt needs: its longest sequence of text, and its output."""
        body = prompt.body
        parts = texts({key: value for key, value in body.items() if key in ("input", "documents")})
        text = body.get("query", "") + max(parts, key=approx_tokens) if parts else "".join(texts(body))
        return approx_tokens(text) + self.output(prompt)

    def output(self, prompt: prompts.Prompt) -> int:
        """The output limit that a request of this prompt asks for; 0 if it has none."""
        return int(self.user.options.max_tokens or prompt.body.get("max_tokens") or 0)

    def bursts(self) -> bool:
        """Most of the last answer's chunks came at the same moment as the one before."""
        gaps = self.notebook.gaps_ms
        return len(gaps) > 3 and sum(gap < BURST_MS for gap in gaps) > len(gaps) / 2

    def close(self) -> None:
        """Close the connection and end the greenlets."""
        self.user.on_stop()
        self.user.environment.runner.quit()

    def explain(self, record: RequestRecord) -> str:
        """What went wrong in plain words, with the server's own, and what to do."""
        if record.error == "bad_stream":
            return self._bad_stream()
        if not record.error.startswith("http_"):
            words = f" ({self.words})" if self.words else ""
            return f"{record.error}{words}: {EXPLAINED.get(record.error, 'the request failed')}"
        says = f"HTTP {record.status}: {self.words}".removesuffix(": ")
        if record.status in (401, 403):
            return key_line(self.server, says)
        return f"{urljoin(self.server.target.url, self.user.path)} {self._status(record, says)}"

    def _status(self, record: RequestRecord, says: str) -> str:
        setting, apis = self.server.setting, ", ".join(type(self.user).apis)
        match record.status:
            case 404 if "model" in self.words.lower():
                return f"does not know the model {record.model!r} ({says}): correct {setting}_MODEL"
            case 404 | 405 | 501:
                return f"is missing ({says}): no {self.kind} server? correct {setting}_URL, or API (one of {apis})"
            case 400 | 413 | 422:
                return f"refused prompt {record.prompt_id!r} ({says}): {self._advice()}"
            case 429:
                return f"refuses load at the first request ({says}): lift the limit of this key or proxy"
        return f"failed ({says}): look into the log of the server or of the proxy before it"

    def _bad_stream(self) -> str:
        if self.user.streams:
            return "a stream was asked for, something else came: give STREAM=0 for whole replies, or look for a proxy"
        return f"the answer cannot be read: is this a {self.kind} server? correct {self.server.setting}_URL, or API"

    def _advice(self) -> str:
        if re.search("image|multi-?modal", self.words, re.IGNORECASE):
            return "take images out of the profile, or raise the server's limit of images"
        if re.search("context|length|token|exceed", self.words, re.IGNORECASE):
            return "shorten the profile's prompts, lower MAX_TOKENS, or give the server a longer context"
        return "correct the profile, or choose another with PROMPTS"


def user_class(kind: str) -> type[EndpointUser]:
    """The user class of a kind: the one in its file under users/."""
    module = import_module(f"tokenswarm.users.{kind}")
    return next(c for c in vars(module).values() if isinstance(c, type) and getattr(c, "kind", "") == kind)


def ms(value: float) -> str:
    """A time for people: 0.12 ms, 2.3 ms, 1234 ms."""
    return f"{value:.2f} ms" if value < 1 else f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"


def shown(record: RequestRecord) -> str:
    """A record in one line."""
    tpot = tpot_ms(record.ttft_ms, record.e2e_ms, record.output_tokens)
    times = [("TTFT", record.ttft_ms), ("TPOT", tpot), ("E2E", record.e2e_ms)]
    parts = [f"HTTP {record.status}", *(f"{name} {ms(value)}" for name, value in times if value is not None)]
    if record.input_tokens is not None:
        parts.append(f"{record.input_tokens} tokens in")
    if record.output_tokens is not None:
        parts.append(f"{record.output_tokens} out ({record.tokens_source})")
    counts = [(record.chunks, "chunks"), (record.items, "items")]
    parts += [f"{count} {name}" for count, name in counts if count is not None]
    return ", ".join([*parts, f"{record.clock} clock", *filter(None, [record.outcome])])
