"""Answers that real servers gave (vLLM 0.32.0, llama.cpp), replayed: what the record says of them."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
from asking import CASES, ask, client_of, facts
from scripted import Server

CLOCK = re.compile(r"^ *\d+\.\d{6} ?", re.MULTILINE)
SEGMENT = re.compile(r"^ *\d+\.\d{6} +\d+ (b['\"].*)$", re.MULTILINE)
FRAMING = ("transfer-encoding", "content-length")


def recorded(name: str) -> dict[str, Any]:
    """The scenario that replays a recorded answer: status, headers and body; raw segments as they were."""
    text = (CASES / "recorded" / f"{name}.txt").read_bytes().decode()
    if name.startswith("rawtcp"):
        steps = [{"hex": ast.literal_eval(segment).hex(), "after_ms": 1} for segment in SEGMENT.findall(text)]
        return {"framing": "raw", "script": steps, "end": "close"}
    if name.startswith("vlm"):
        return {"framing": "content-length", "script": [{"text": text.rstrip().splitlines()[-1]}]}
    text = CLOCK.sub("", text)
    top, body = re.split(r"\r?\n\r?\n", text[text.index("HTTP/1.1") :], maxsplit=1)
    status, *lines = top.splitlines()
    headers = dict(line.split(": ", 1) for line in lines if ": " in line)
    chunked = any(key.lower() == "transfer-encoding" for key in headers)
    headers = {key: value for key, value in headers.items() if key.lower() not in FRAMING}
    return {
        "status": int(status.split()[1]),
        "headers": headers,
        "framing": "chunked" if chunked else "content-length",
        "script": [{"text": body if chunked else body.strip()}],
    }


# file: token chunks, input tokens, output tokens, finish_reason
STREAMS = {
    "chat-stream-usage": (16, 12, 16, "length"),
    "chat-stream-usage-continuous": (7, 12, 8, "length"),
    "completions-stream": (8, None, 8, "length"),
    "force-include-usage-stream": (4, 12, 10, "length"),
    "perreq-metrics-stream": (4, 12, 10, "length"),
    "rawtcp-chat-stream": (8, 12, 8, "length"),
    "reasoning-stream": (6, 9, 6, "length"),
    "spec-decode-stream": (20, 20, 60, "length"),
    "tool-named-stream": (57, 184, 80, "length"),
    "llama_chat_stream_usage": (12, 31, 12, "length"),
    "llama_chat_stream_nousage": (12, None, 12, "length"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_recorded_stream(server: Server, name: str) -> None:
    x, reader = ask(client_of(server), recorded(name))
    seen = facts(x, reader)
    assert (x.error, x.status, reader.bad_events) == ("", 200, 0)
    assert (seen["chunks"], seen["input_tokens"], seen["output_tokens"], seen["finish"]) == STREAMS[name]
    assert seen["tokens_source"] == ("chunks" if seen["input_tokens"] is None else "usage")
    assert seen["cached_tokens"] == {"llama_chat_stream_usage": 26, "force-include-usage-stream": 0,
                                     "perreq-metrics-stream": 0}.get(name)  # fmt: skip
    assert seen["reasoning_tokens"] == {"reasoning-stream": 6, "tool-named-stream": 0}.get(name)


def test_reasoning_alone_has_a_first_token_and_no_first_text(server: Server) -> None:
    x, reader = ask(client_of(server), recorded("reasoning-stream"))
    assert x.tokens and not x.first_text.user and "".join(reader.text) == ""


def test_a_tool_call_is_an_answer(server: Server) -> None:
    x, _ = ask(client_of(server), recorded("tool-named-stream"))
    assert x.first_text == x.tokens[0]


# file: input tokens, output tokens
WHOLE = {"chat-nonstream": (12, 16), "vlm-one-image": (78, 4), "llama_err_wrongmodel": (25, 2)}


@pytest.mark.parametrize("name", WHOLE)
def test_recorded_whole_answer(server: Server, name: str) -> None:
    x, reader = ask(client_of(server), recorded(name), stream=False)
    seen = facts(x, reader)
    assert (x.error, seen["finish"], seen["tokens_source"]) == ("", "length", "usage")
    assert (seen["input_tokens"], seen["output_tokens"]) == WHOLE[name]
    assert not x.tokens and x.last.user >= x.head.user > 0


def test_an_engine_killed_in_the_middle_is_a_failure(server: Server) -> None:
    x, reader = ask(client_of(server), recorded("rawtcp-engine-killed-midstream"))
    assert (x.error, x.status, len(x.tokens)) == ("server_error", 200, 98)
    assert reader.error == "EngineCore encountered an issue. See stack trace (above) for the root cause."


ERRORS = {
    "queue-full-1": ("http_503", "The engine is currently busy and cannot accept new requests."),
    "err-404-path": ("http_404", "Not Found"),
    "err-405": ("http_405", "Method Not Allowed"),
    "err-bad-json": ("http_400", "1 validation error: {'type': 'json_invalid', 'loc': 'body.22'"),
    "err-bad-type": ("http_400", "1 validation error: {'type': 'int_parsing', 'loc': 'body.max_tokens',"),
    "err-embeddings-on-generate": ("http_404", "Not Found"),
    "err-empty-messages": ("http_400", "Cannot apply chat template to an empty conversation."),
    "err-max-tokens-0": ("http_400", "max_tokens must be at least 1, got 0."),
    "err-max-tokens-too-many": ("http_400", "max_tokens=100000 cannot be greater than max_model_len=512."),
    "err-missing-messages": ("http_400", "1 validation error: {'type': 'missing', 'loc': 'body.messages',"),
    "err-stream-options-nostream": ("http_400", "Stream options can only be defined when `stream=True`."),
    "err-temperature": ("http_400", "temperature must be non-negative, got -1.0."),
    "err-too-long": ("http_400", "This model's maximum context length is 512 tokens."),
    "err-wrong-model": ("http_404", "The model `nope` does not exist. Valid aliases: tiny-qwen3."),
    "llama_err_404": ("http_404", "File Not Found"),
    "llama_err_badjson": ("http_400", "[json.exception.parse_error.101] parse error at line 1, column 28"),
    "llama_err_embeddings_not_enabled": ("http_501", "This server does not support embeddings."),
    "llama_err_nomessages": ("http_400", "'messages' is required"),
    "llama_err_rerank_not_enabled": ("http_501", "This server does not support reranking."),
    "llama_err_toolong_stream": (
        "http_400",
        "request (5024 tokens) exceeds the available context size (2048 tokens)",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_recorded_error(server: Server, name: str) -> None:
    x, reader = ask(client_of(server), recorded(name))
    assert x.error == ERRORS[name][0] and x.detail.startswith(ERRORS[name][1])
    assert not x.tokens and reader.bad_events == 0
