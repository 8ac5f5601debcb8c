"""Every stream and every whole answer of tests/cases, over a real socket; and when a token is seen."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gevent
import pytest
from asking import LIMITS, ask, cases, client_of, facts
from scripted import Server

from tokenswarm.users.reading import ChatReader, message_of
from tokenswarm.wire import exchange

ERRORS = {
    "in-band": "server_error",
    "empty-stream": "empty",
    "truncated": "truncated",
    "connection": "disconnect",
}
# What a wrong reader would say for the TTFT in ms: the role chunk or a comment.
WRONG_TTFT = {
    "A01-role-chunk-early": 5,
    "A02-chunked-prefill-role-after-slice": 90,
    "A03-content-null-usage-null": 5,
    "A05-delta-reasoning_content-only": 5,
    "A22-comment-keepalive": 10,
    "A24-comment-rewrapped-as-data": 10,
    "A40-synthetic-stream-one-burst": 0,
}
CHUNKS = {
    "A14-spec-decode-many-tokens-per-chunk": 3,
    "A15-stream-interval-10": 3,
    "A43-server-sends-replacement-chars": 3,
}


@pytest.mark.parametrize("path", cases("sse"), ids=lambda path: path.stem)
def test_stream(server: Server, path: Path) -> None:
    case = json.loads(path.read_text())
    expect = case["expect"]
    x, reader = ask(client_of(server), {"case": f"sse/{path.stem}"})
    seen = facts(x, reader)
    check_outcome(case, seen)
    assert x.status == 200
    if "output_tokens" in expect:
        assert (seen["output_tokens"], seen["tokens_source"]) == (expect["output_tokens"], "usage")
    if "finish" in expect:
        assert seen["finish"] == (expect["finish"] or "")
    if "content" in expect:
        assert seen["text"] == expect["content"]
    if "content_len" in expect:
        assert len(seen["text"]) == expect["content_len"]
    assert seen["text"].count("\ufffd") == expect.get("replacement_chars", 0)
    assert seen["chunks"] == expect.get("partial_tokens", CHUNKS.get(path.stem, seen["chunks"]))
    assert x.encoded == path.stem.startswith("A36")
    check_times(case, x)


def check_outcome(case: dict[str, Any], seen: dict[str, Any]) -> None:
    expect = case["expect"]
    if expect["outcome"] == "error":
        word = ERRORS[expect.get("error_class", "in-band")]
        assert seen["error"] == word
        assert bool(seen["message"]) == (word == "server_error")
    else:
        assert seen["error"] == ""
    assert seen["bad_events"] == (1 if expect["outcome"] == "ok-with-warning" else 0)


def check_times(case: dict[str, Any], x: Any) -> None:
    expect, name = case["expect"], case["case"]
    assert x.clock == "kernel" or x.lag_max_ms() is None
    true = expect.get("ttft_ms", "")
    if true is None or name == "A41-zero-token-stop":
        assert not x.tokens
    if isinstance(true, int):
        ttft = x.ms(x.tokens[0])
        assert ttft >= true - 1
        assert abs(ttft - true) < abs(ttft - WRONG_TTFT.get(name, 3 * true + 500))
    if "last_token_ms" in expect and isinstance(expect["last_token_ms"], int):
        assert x.ms(x.tokens[-1]) >= expect["last_token_ms"] - 1
        assert x.ms(x.tokens[-1]) <= x.ms(x.last)
    if "ttf_content_ms" in expect:
        first_text = x.ms(x.first_text)
        if expect["ttf_content_ms"] is None:
            assert first_text is None
        else:  # behind three chunks of reasoning
            assert first_text >= expect["ttf_content_ms"] - 1 and x.tokens.index(x.first_text) == 3
    if expect.get("flag") == "stream-buffered":  # the whole answer at once: TTFT = E2E, and analysis says so
        assert x.ms(x.tokens[-1]) - x.ms(x.tokens[0]) < 0.1 * x.ms(x.tokens[0])
    if isinstance(expect.get("tpot_ms"), int) and name != "A02-chunked-prefill-role-after-slice":
        tpot = (x.ms(x.tokens[-1]) - x.ms(x.tokens[0])) / (expect["output_tokens"] - 1)
        gap = expect["tpot_ms"] * (expect["output_tokens"] - 1) / max(len(x.tokens) - 1, 1)
        assert 0.8 * expect["tpot_ms"] <= tpot < max(gap, 3 * expect["tpot_ms"])
    if "chunk_gap_ms" in expect:
        assert min(x.gaps_ms()) > 5 * expect["tpot_ms"]


def test_first_gap_is_not_the_wait_for_the_first_token(server: Server) -> None:
    x, _ = ask(client_of(server), {"case": "sse/A01-role-chunk-early"})
    assert len(x.gaps_ms()) == len(x.tokens) - 1 == 2
    assert max(x.gaps_ms()) < x.ms(x.tokens[0])


WORDS = {
    "200-json-not-sse": ("server_error", "upstream timed out"),
    "400-context-vllm-new": (
        "http_400",
        "This model's maximum context length is 8192 tokens. However, you requested",
    ),
    "400-context-vllm-old": (
        "http_400",
        "This model's maximum context length is 8192 tokens. However, you requested",
    ),
    "400-decoder-prompt": (
        "http_400",
        "The decoder prompt (length 40000) is longer than the maximum model length",
    ),
    "401-error-is-string": ("http_401", "Unauthorized"),
    "401-llamacpp": ("http_401", "Invalid API Key"),
    "404-model-vllm": ("http_404", "The model `qwen-7b` does not exist."),
    "404-route-fastapi": ("http_404", "Not Found"),
    "413-text-body": ("http_413", "Failed to buffer the request body: length limit exceeded"),
    "422-tgi": ("http_422", "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000"),
    "429-litellm-no-deployments": (
        "http_429",
        "No deployments available for selected model, Try again in 60 seconds.",
    ),
    "429-retry-after": ("http_429", "Queue is full, try again later"),
    "500-engine-dead": (
        "http_500",
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    ),
    "503-html-proxy": ("http_503", "503 Service Unavailable No server is available to handle this request."),
    "503-llamacpp-loading": ("http_503", "Loading model"),
}


@pytest.mark.parametrize("path", cases("http"), ids=lambda path: path.stem)
def test_whole_answer(server: Server, path: Path) -> None:
    word, message = WORDS[path.stem]
    client = client_of(server)
    x, reader = ask(client, {"case": f"http/{path.stem}"})
    assert (x.error, x.status) == (word, int(path.stem[:3]))
    assert (x.detail or reader.error).startswith(message)
    assert x.retry_after == ("2" if path.stem == "429-retry-after" else "")
    assert not x.tokens and reader.bad_events == 0
    again, _ = ask(client, {"case": f"http/{path.stem}"})
    assert again.reused, "an error answer read to its end keeps the connection"


def test_message_of_other_bodies() -> None:
    missing = {
        "type": "missing",
        "loc": ["body", "messages"],
        "msg": "Field required",
        "input": {"prompt": "secret"},
    }
    assert message_of(json.dumps({"detail": [missing]}).encode()) == "body.messages: Field required"
    echo = "1 validation error: {'msg': 'Field required', 'input': {'prompt': 'secret'}}"
    said = message_of(json.dumps({"error": {"message": echo}}).encode())
    assert said == "1 validation error: {'msg': 'Field required',"
    assert message_of(b"") == ""
    assert message_of(b"null") == "" and message_of(b"[]") == ""
    assert message_of(b"\xff\xfe upstream") == "\ufffd\ufffd upstream"
    assert len(message_of(b"x" * 10_000)) == 300


@pytest.mark.parametrize("framing", ["chunked", "until-close"])
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r"], ids=["LF", "CRLF", "CR"])
def test_an_event_is_seen_before_the_next_is_sent(server: Server, framing: str, end: str) -> None:
    """No clock: the server sends event 2 only after this client has told it that event 1 was read."""
    name, seen = f"seen-{framing}-{len(end)}-{ord(end[0])}", []
    asker, teller = client_of(server), client_of(server)

    class Telling:
        bad_events = 0

        def event(self, kind: str, data: bytes) -> str:
            seen.append(data)
            if len(seen) == 1:
                assert ask(teller, {}, path=f"/set/{name}")[0].status == 200
            return "text"

        def verdict(self) -> str:
            return ""

    scenario = {
        "headers": {"Content-Type": "text/event-stream"},
        "framing": framing,
        "script": [{"text": f"data: one{end}"}, {"await": name, "text": f"data: two{end}"}],
    }
    x = exchange(asker, "/play", json.dumps(scenario).encode(), {}, Telling(), LIMITS, True)  # type: ignore[arg-type]
    assert (x.error, seen) == ("", [b"one", b"two"])


def busy() -> None:
    """Hold the event loop from 50 to 450 ms after now."""
    gevent.sleep(0.05)
    end = time.perf_counter() + 0.4
    while time.perf_counter() < end:
        pass


def test_the_kernels_clock_is_true_when_the_program_is_late(server: Server) -> None:
    """The server writes its own time into each event; this process is busy while the first arrives."""
    text = 'data: {"choices": [{"delta": {"content": "@NOW@ "}, "finish_reason": "stop"}]}\n\n'
    steps = [{"after_ms": 100, "text": text}, {"after_ms": 450, "text": text}, {"after_ms": 10, "text": text}]
    scenario = {"headers": {"Content-Type": "text/event-stream"}, "framing": "chunked", "script": steps}
    blocker = gevent.spawn(busy)
    x, reader = ask(client_of(server), scenario)
    blocker.join()
    assert x.clock == "kernel" and len(x.tokens) == 3
    late_ms = (x.tokens[0].user - x.sent[0]) / 1e6 - x.ms(x.tokens[0])
    assert late_ms > 20 and x.lag_max_ms() >= late_ms - 1
    first_sent = int("".join(reader.text).split()[0])
    assert 0 <= (x.tokens[0].kernel - first_sent) / 1e6 < late_ms / 4


def test_unread_events_never_look_earlier_than_they_were(server: Server) -> None:
    """Linux merges what nobody has read and keeps the newest stamp: as late as the event loop, not more."""
    text = 'data: {"choices": [{"delta": {"content": "@NOW@ "}, "finish_reason": "stop"}]}\n\n'
    steps = [{"after_ms": wait, "text": text} for wait in (100, 20, 20)]
    scenario = {"headers": {"Content-Type": "text/event-stream"}, "framing": "chunked", "script": steps}
    blocker = gevent.spawn(busy)
    x, reader = ask(client_of(server), scenario)
    blocker.join()
    sent = [int(word) for word in "".join(reader.text).split()]
    assert len(sent) == len(x.tokens) == 3
    for own, stamp in zip(sent, x.tokens):
        assert own <= stamp.kernel <= stamp.user + x.sent[1] - x.sent[0] + 1_000_000
    assert x.tokens[0].kernel - sent[-1] < 20e6


@pytest.mark.parametrize(("usage", "verdict"), [(0, "empty"), (None, "empty"), (3, "")])
def test_an_answer_of_no_token_is_no_success_unless_the_server_counted_some(usage: int | None, verdict: str) -> None:
    reader = ChatReader()
    reader.event("message", b'{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}')
    reader.event("message", b'{"choices":[{"delta":{},"finish_reason":"stop"}]}')
    if usage is not None:
        reader.event("message", b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}' % usage)
    reader.event("message", b"[DONE]")
    assert reader.verdict() == verdict
