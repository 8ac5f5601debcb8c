"""What all kinds of endpoint share: draw a prompt, send it, time it, record it, tell Locust."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, ClassVar

import gevent
import msgspec
from locust import FastHttpUser, task
from locust.exception import StopUser

from tokenswarm import prompts, targets
from tokenswarm.record import RequestRecord, tpot_ms
from tokenswarm.recorder import Recorder, recorder_of
from tokenswarm.sockets import StampedClients
from tokenswarm.users.reading import ChatReader
from tokenswarm.wire import Exchange, Limits, exchange

CHAT_PROFILES = ("chat", "guard")
SYNTHETIC_PROMPTS, SYNTHETIC_OUTPUT = 64, 128
STREAMED = frozenset({"chat", "completions"})
ERROR_REST = 1.0  # s; answers that fail at once would become a flood of our own making in a stage held by time


@dataclass(slots=True)
class Request:
    """One request ready to go: its bytes are made before the clock starts."""

    path: str
    body: bytes
    prompt_id: str = ""
    items: int | None = None
    stream: bool = True


class RequestFailed(Exception):
    """What Locust's failure table shows: the error word and the server's own words."""


class EndpointUser(FastHttpUser):
    """One user of one kind of endpoint, closed loop without think time.

    A kind is a subclass with `kind`, `prepare` (a request of a drawn prompt) and, where answers are not
    chat-like, `reader`."""

    abstract = True
    kind: ClassVar[str] = ""
    profile: ClassVar[str] = ""  # profiles/<profile>.jsonl unless --prompts names another
    apis: ClassVar[dict[str, str]] = {}  # --api word -> path; the first is the default

    def __init__(self, environment: Any) -> None:
        self.options = environment.parsed_options
        self.target = targets.target(self.options, self.kind)
        self.host = self.target.url
        o = self.options
        tls = targets.tls(self.target.ca, o.insecure, o.client_cert) if self.host.startswith("https:") else None
        self.clients = self.client_pool = StampedClients(tls, o.connect_timeout, o.ttft_timeout, o.keepalive)
        super().__init__(environment)
        self.http = self.clients.get_client(self.host)
        self.api = choose_api(self.apis, o.api if self.kind == o.endpoint else "", self.kind)
        prefix = self.host.partition("://")[2].partition("/")[2]
        self.path = f"/{prefix}{self.apis[self.api]}".replace("//", "/")
        self.streams = o.stream and self.api in STREAMED
        self.limits = Limits(o.timeout, o.ttft_timeout, o.idle_timeout)
        self.headers = self.target.headers()
        self.recorder: Recorder = recorder_of(environment)
        self.draws: prompts.Draws

    def on_start(self) -> None:
        """Join the stage, draw from a stream of our own, and start spread over the time that the stage says."""
        self.loaded, o = load_prompts(self.options, self, self.recorder.stage.prompts), self.options
        number, wait = self.recorder.join()
        who = self.recorder.name, number
        self.draws = prompts.Draws(self.loaded, o.seed, *who, o.nonce, o.jitter, run=self.recorder.stage.run)
        gevent.sleep(wait)

    def on_stop(self) -> None:
        """Close the sockets now: the collector would leave them to the next stage."""
        self.clients.close()
        self.recorder.leave()

    @task
    def next_request(self) -> None:
        """One request of the stage, or the end of this user when the stage has none left."""
        self.turn()

    def turn(self) -> None:
        """What a user does over and over: ask, and wait for the answer."""
        if not self.recorder.take():
            raise StopUser
        record = self.send(self.prepare(self.draws.next()))
        if record.error and self.recorder.stage.hold_s:
            gevent.sleep(ERROR_REST)

    def prepare(self, draw: prompts.Draw) -> Request:
        """Make the request of a drawn prompt; a kind may override it."""
        return self.request(draw, self.chat_body(draw))

    def request(self, draw: prompts.Draw, body: dict[str, Any], items: int | None = None) -> Request:
        """The request with this body; its bytes are made here."""
        return Request(self.path, msgspec.json.encode(body), draw.prompt.id, items, bool(body.get("stream")))

    def reader(self, request: Request) -> Any:
        """A fresh reader (wire.Reader) for one answer."""
        return ChatReader()

    def chat_body(self, draw: prompts.Draw) -> dict[str, Any]:
        """The drawn body with the model and, if it is streamed, the stream flags."""
        body: dict[str, Any] = {"model": self.target.model, **draw.body}
        if self.options.max_tokens:
            body["max_tokens"] = self.options.max_tokens
        if self.streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def send(self, request: Request, http: Any = None, due: float | None = None) -> RequestRecord:
        """Send, time and record one request. A user that is killed meanwhile leaves a `cancelled` record.

        `http`: a client of its own, where several requests are in flight; `due`: when (perf_counter) it was to go."""
        request_id, reader, stage = uuid.uuid4().hex, self.reader(request), self.recorder.stage
        self.recorder.in_flight += 1
        try:
            headers = {**self.headers, "X-Request-Id": request_id}
            x = exchange(http or self.http, request.path, request.body, headers, reader, self.limits, request.stream)
        finally:
            self.recorder.in_flight -= 1
        record = self.record(request, reader, x)
        record.request_id, record.stage = request_id, stage.name
        record.users = stage.counts.get(self.kind, stage.users) or None
        record.scheduled_ms = None if due is None else x.sent[0] / 1e6 - due * 1e3
        self.recorder.add(record, x.gaps_ms())
        self.tell_locust(request, record, x, reader)
        if x.killed is not None:
            raise x.killed
        return record

    def record(self, request: Request, reader: Any, x: Exchange) -> RequestRecord:
        """The record of an exchange: stamps become ms, the reader gives counts and outcome."""
        last = x.tokens[-1] if x.tokens and not x.error else x.last
        streamed = bool(x.tokens)
        return RequestRecord(
            start_time=x.start_time,
            endpoint=self.kind,
            model=self.target.model,
            profile=self.loaded.name,
            prompt_id=request.prompt_id,
            status=x.status,
            error=x.error,
            connect_ms=x.connect_ms,
            headers_ms=x.ms(x.head),
            ttft_ms=x.ms(x.tokens[0]) if streamed else None,
            ttfo_ms=x.ms(x.first_text),
            e2e_ms=x.ms(last),
            itl_max_ms=max(x.gaps_ms(), default=None),
            lag_max_ms=x.lag_max_ms(),
            clock=x.clock,
            chunks=len(x.tokens) if request.stream else None,
            bad_events=reader.bad_events,
            items=request.items,
            outcome=reader.outcome(),
            labels=reader.labels(),
            notes=x.notes(),
            **reader.tokens(len(x.tokens), not x.error),
        )

    def tell_locust(self, request: Request, record: RequestRecord, x: Exchange, reader: Any) -> None:
        """Locust's own row gets E2E; TTFT and TPOT get rows that do not enter Aggregated."""
        name = request.path
        failure = None
        if record.error:
            failure = RequestFailed(f"{record.error}: {getattr(reader, 'error', '') or x.detail}"[:200])
        self.environment.events.request.fire(
            request_type="POST",
            name=name,
            response_time=record.e2e_ms,
            response_length=x.received,
            exception=failure,
            context={},
        )
        if record.error:
            return
        entries = self.environment.stats.entries
        if record.ttft_ms is not None:
            entries[(name, "TTFT")].log(record.ttft_ms, 0)
        tpot = tpot_ms(record.ttft_ms, record.e2e_ms, record.output_tokens)
        if tpot is not None:
            entries[(name, "TPOT")].log(tpot, 0)


def choose_api(apis: dict[str, str], word: str, kind: str) -> str:
    """The path style that --api names, or the kind's first; raises ValueError in one line."""
    if word and word not in apis:
        raise ValueError(f"API={word!r} is not one of {', '.join(apis)} (for {kind})")
    return word or next(iter(apis))


def load_prompts(
    options: Any, user: type[EndpointUser] | EndpointUser, stage: str = "", fresh: bool = False
) -> prompts.Profile:
    """The profile that a run uses, read once per process: the stage's, else PROMPTS (for ENDPOINT's kind), else the
    kind's own. Raises prompts.ProfileError in one line."""
    given = user.kind == options.endpoint
    name = stage or (options.prompts if given else "") or user.profile
    if given and options.input_tokens and not stage:
        name = f"synthetic {options.input_tokens} {options.output_tokens}"
    if fresh or name not in _loaded:
        _loaded[name] = _synthetic(options, user) if name.startswith("synthetic ") else prompts.load(name)
    return _loaded[name]


def _synthetic(options: Any, user: type[EndpointUser] | EndpointUser) -> prompts.Profile:
    if user.profile not in CHAT_PROFILES:
        raise prompts.ProfileError(f"INPUT_TOKENS makes chat prompts, which {user.kind} does not take; use PROMPTS")
    wanted = options.input_tokens, options.output_tokens or SYNTHETIC_OUTPUT, SYNTHETIC_PROMPTS, options.seed
    return prompts.synthetic(*wanted, options.tokens_per_word, options.prompt_overhead)


_loaded: dict[str, prompts.Profile] = {}
