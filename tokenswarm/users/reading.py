"""Reads the answers of OpenAI-style chat and completion endpoints: token? usage? how did it end?"""

from __future__ import annotations

import re
from typing import Any

import msgspec

DETAIL_MAX = 300
ECHO = re.compile(r"""['"]input['"]: .*""", re.DOTALL)  # a validation error repeats the prompt after this


class Message(msgspec.Struct):
    """A delta or a message; every field may be missing or null."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: list[Any] | None = None

    def sort(self) -> str:
        """`text` for answer text or a tool call, `reasoning`, or "" when it carries no token (a role alone)."""
        if self.content or any(_called(call) for call in self.tool_calls or ()):
            return "text"
        return "reasoning" if self.reasoning or self.reasoning_content else ""


def _called(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and bool(function.get("name") or function.get("arguments"))


class Choice(msgspec.Struct):
    """One choice of a chunk or of a whole reply; `text` is /v1/completions."""

    delta: Message | None = None
    message: Message | None = None
    text: Any = None
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    """The server's own token counts; cumulative, so the last one wins."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class Reply(msgspec.Struct):
    """A stream chunk or a whole reply. `error` may be an object, a string, or missing."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None


_reply = msgspec.json.Decoder(Reply)


def error_text(error: Any) -> str:
    """The message of an error body of any shape (object, string), cut to 300 characters."""
    text = error.get("message", error) if isinstance(error, dict) else error
    return str(text)[:DETAIL_MAX]


def message_of(body: bytes) -> str:
    """What an error body says: OpenAI, old vLLM, FastAPI, a bare string, HTML or text; not the input it echoes."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = re.sub(r"<[^>]*>", " ", body.decode("utf-8", "replace"))
    if isinstance(said, dict):
        said = next((said[key] for key in ("error", "message", "detail") if said.get(key)), said)
    if isinstance(said, list):  # FastAPI: [{"loc": ["body", "messages"], "msg": "Field required", "input": ...}]
        said = "; ".join(f"{_place(fault)}{fault.get('msg', '')}" for fault in said if isinstance(fault, dict))
    return " ".join(ECHO.sub("", error_text(said or "")).split())


def _place(fault: dict[str, Any]) -> str:
    where = fault.get("loc")
    return ".".join(map(str, where)) + ": " if isinstance(where, list) else ""


class ChatReader:
    """Makes the facts of a record out of one answer, streamed or not; knows nothing of time."""

    refusal = staticmethod(message_of)

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.finish = ""
        self.done = False
        self.error = ""
        self.bad_events = 0
        self.seen = 0  # events that could be read
        self.answered = False  # a token of any sort came
        self.text: list[str] = []  # answer text, kept only by kinds that judge it
        self.keep_text = False

    def event(self, name: str, data: bytes) -> str:
        if name == "error" and not self.error:
            self.error = message_of(data)
        if data.strip() == b"[DONE]":
            self.done = True
        if data.strip() in (b"[DONE]", b""):
            return ""
        reply = self._decode(data)
        if reply is None:
            return ""
        self.seen += 1
        return self._take(reply)

    def body(self, data: bytes) -> None:
        reply = self._decode(data)
        if reply is not None:
            self.seen += 1
            self._take(reply)
            self.done = bool(reply.choices)

    def _decode(self, data: bytes) -> Reply | None:
        try:
            return _reply.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.bad_events += 1
            return None

    def _take(self, reply: Reply) -> str:
        if reply.error or reply.object == "error":
            self.error = self.error or error_text(reply.error or reply.message)
            return ""
        usage = reply.usage
        if usage is not None and (usage.prompt_tokens is not None or usage.completion_tokens is not None):
            self.usage = usage
        sorts = [self._choice(choice) for choice in reply.choices or ()]
        sort = "text" if "text" in sorts else next(filter(None, sorts), "")
        self.answered |= bool(sort)
        return sort

    def _choice(self, choice: Choice) -> str:
        if choice.finish_reason:
            self.finish = choice.finish_reason
        message = choice.delta or choice.message
        if self.keep_text:
            self.text.append(str((message.content if message else choice.text) or ""))
        if choice.text:
            return "text"
        return message.sort() if message else ""

    def verdict(self) -> str:
        """ "" for success: a finish_reason or [DONE], no error event, and not nothing at all (cases A23 to A29)."""
        if self.error or self.finish == "error":
            return "server_error"
        if self.finish == "abort":
            return "aborted"
        made = self.answered or (self.usage is not None and bool(self.usage.completion_tokens))
        if made and (self.finish or self.done):
            return ""
        if self.bad_events and not self.answered:
            return "bad_stream"
        if not self.answered:
            return "empty"
        return "truncated"

    def outcome(self) -> str:
        """The record's outcome column: finish_reason."""
        return self.finish

    def labels(self) -> str:
        """The record's labels column."""
        return ""

    def tokens(self, chunks: int, ok: bool) -> dict[str, Any]:
        """Token columns of the record: the server's usage if it gave any, else chunks, marked so."""
        usage = self.usage or Usage()
        cached = (usage.prompt_tokens_details or {}).get("cached_tokens")
        reasoning = (usage.completion_tokens_details or {}).get("reasoning_tokens")
        counted = usage.completion_tokens is not None
        return {
            "input_tokens": usage.prompt_tokens,
            "cached_tokens": cached,
            "output_tokens": usage.completion_tokens if counted else chunks or None,
            "reasoning_tokens": reasoning,
            "tokens_source": "usage" if counted else "chunks" if chunks else "",
        }


NOTHING = (b"", b"null", b"[]", b'""')


class Item(msgspec.Struct):
    """One result of an embedding, rerank, score, classify or moderation reply; the vectors are left unread."""

    embedding: msgspec.Raw = msgspec.Raw(b"")
    relevance_score: float | None = None
    score: float | None = None
    label: str | None = None
    flagged: bool | None = None
    categories: Any = None

    def filled(self) -> bool:
        """There is a vector, a score, a label or a flag in it."""
        found = (self.relevance_score, self.score, self.label, self.flagged)
        return bytes(self.embedding).strip() not in NOTHING or any(value is not None for value in found)


class Items(msgspec.Struct):
    """A whole reply with a list of results under `data` or `results`."""

    data: list[Item] | None = None
    results: list[Item] | None = None
    usage: Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None


_items = msgspec.json.Decoder(Items)


class ItemsReader:
    """Reads replies that are one JSON body with `expected` results; there is nothing to stream."""

    refusal = staticmethod(message_of)

    def __init__(self, expected: int | None) -> None:
        self.expected = expected
        self.items: list[Item] = []
        self.usage = Usage()
        self.error = ""
        self.bad_events = 0

    def event(self, name: str, data: bytes) -> str:
        self.body(data)
        return ""

    def body(self, data: bytes) -> None:
        try:
            reply = _items.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.bad_events += 1
            return
        if reply.error or reply.object == "error":
            self.error = error_text(reply.error or reply.message)
        self.items = reply.data or reply.results or []
        self.usage = reply.usage or self.usage

    def verdict(self) -> str:
        """ "" for success: all results are there, each with something in it."""
        if self.error:
            return "server_error"
        if not self.items:
            return "bad_stream" if self.bad_events else "empty"
        if not all(item.filled() for item in self.items):
            return "empty"
        return "truncated" if self.expected and len(self.items) < self.expected else ""

    def outcome(self) -> str:
        return ""

    def labels(self) -> str:
        return ""

    def tokens(self, chunks: int, ok: bool) -> dict[str, Any]:
        """Input tokens only; a rerank's usage may have nothing but the total."""
        counted = self.usage.prompt_tokens if self.usage.prompt_tokens is not None else self.usage.total_tokens
        return {"input_tokens": counted, "tokens_source": "usage" if counted is not None else ""}
