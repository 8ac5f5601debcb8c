"""The simulator's HTTP face against what a real vLLM 0.32 sent."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from simulator_client import (
    RECORDED,
    ask,
    chat,
    recorded_answer,
    recorded_events,
    request,
    series,
    shape,
    simulator,
)

STREAM = {"stream": True, "max_tokens": 8, "ignore_eos": True}
USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with simulator("--step-ms", "2", "--max-model-len", "512") as port:
        yield port


# Streams


def test_stream_has_the_headers_and_chunks_of_vllm(port: int) -> None:
    answer = ask(port, "/v1/chat/completions", chat(**STREAM, **USAGE))
    first = (RECORDED / "rawtcp-chat-stream.txt").read_text(encoding="utf-8").splitlines()[0].split("b'")[1]
    assert answer.names == [line.split(":")[0] for line in first.split("\\r\\n")[1:-2]]
    assert answer.head.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    # One event a chunk: role + 8 tokens + usage + [DONE] + the empty one that ends the body.
    assert [chunk.count(b"data: ") for chunk in answer.chunks] == [1] * 11 + [0]
    assert all(chunk.endswith(b"\n\n") for chunk in answer.chunks[:-1])


def test_role_event_comes_in_the_same_write_as_the_first_token() -> None:
    with simulator("--step-ms", "200") as port:  # slow, so that one read is one write
        answer = ask(port, "/v1/chat/completions", chat(stream=True, max_tokens=2))
    reads = [data for _, data in answer.reads]
    assert b"data: " not in reads[0]  # headers are sent before the first token is ready
    assert reads[1].count(b"data: ") == 2
    assert b'"role":"assistant"' in reads[1]


@pytest.mark.parametrize(
    ("recorded", "options"),
    [
        ("chat-stream-usage.txt", USAGE),
        (
            "chat-stream-usage-continuous.txt",
            {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
    ],
)
def test_chat_events_equal_recorded_ones(port: int, recorded: str, options: dict[str, Any]) -> None:
    mine, theirs = ask(port, "/v1/chat/completions", chat(**STREAM, **options)).events, recorded_events(recorded)
    assert [shape(event) for event in mine[:2]] == [shape(event) for event in theirs[:2]]  # role, token
    assert [shape(event) for event in mine[-3:]] == [shape(event) for event in theirs[-3:]]  # finish, usage, [DONE]
    assert mine[-2]["choices"] == []
    assert mine[-3]["choices"][0]["finish_reason"] == "length"


def test_completion_events_equal_recorded_ones(port: int) -> None:
    mine = ask(port, "/v1/completions", {"prompt": "Hello, my name is", **STREAM}).events
    theirs = recorded_events("completions-stream.txt")
    assert [shape(event) for event in mine] == [shape(event) for event in theirs]


def test_usage_counts_what_was_streamed_and_agrees_with_tokenize(port: int) -> None:
    body = chat(content="一二三 four five", **STREAM, **USAGE)
    events = ask(port, "/v1/chat/completions", body).events
    count = ask(port, "/tokenize", {"messages": body["messages"]}).json["count"]
    assert events[-2]["usage"] == {"prompt_tokens": count, "total_tokens": count + 8, "completion_tokens": 8}
    assert sum(bool(event["choices"][0]["delta"]["content"]) for event in events[:-2]) == 8


def test_an_answer_that_stops_ends_with_a_token_without_text(port: int) -> None:
    events = ask(port, "/v1/chat/completions", chat("sim-guard", "hello", stream=True, **USAGE)).events
    last = events[-3]["choices"][0]
    assert (last["finish_reason"], last["delta"]["content"]) == ("stop", "")
    assert events[-2]["usage"]["completion_tokens"] == len(events) - 3


def test_answers_have_several_lengths_and_max_tokens_caps_them(port: int) -> None:
    answers = [ask(port, "/v1/chat/completions", chat(max_completion_tokens=50)).json for _ in range(12)]
    sizes = [answer["usage"]["completion_tokens"] for answer in answers]
    ends = [answer["choices"][0]["finish_reason"] for answer in answers]
    assert len(set(sizes)) > 4
    assert set(ends) == {"stop", "length"}
    assert all(size == 50 for size, end in zip(sizes, ends, strict=True) if end == "length")


def test_whole_answer_equals_recorded_one(port: int) -> None:
    answer = ask(port, "/v1/chat/completions", chat(max_tokens=16, ignore_eos=True))
    status, names, body = recorded_answer("chat-nonstream.txt")
    assert (answer.status, shape(answer.json)) == (status, shape(body))
    assert [name for name in answer.names if name != "connection"] == names


def test_request_id_goes_into_the_answers_id(port: int) -> None:
    events = ask(port, "/v1/chat/completions", chat(**STREAM), "X-Request-Id: my-id-1\r\n").events
    assert {event["id"] for event in events[:-1]} == {"chatcmpl-my-id-1"}


def test_prefix_cache_shows_in_usage(port: int) -> None:
    body = chat(content="The same long prompt, sent twice. " * 12, max_tokens=2)
    first, second = (ask(port, "/v1/chat/completions", body).json["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] is None
    assert 0 < second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"]


def test_connection_is_kept_and_closed_after_five_idle_seconds(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        for _ in range(2):
            sock.sendall(request("/v1/chat/completions", chat(**STREAM), close=False))
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                data += sock.recv(65536)
            assert b"connection: close" not in data
        began = time.monotonic()
        assert sock.recv(1) == b""
        assert 4.5 < time.monotonic() - began < 8


def test_client_that_leaves_frees_its_slot(port: int) -> None:
    before = series(port)["vllm:request_success_total", "sim-llm"]
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(request("/v1/chat/completions", chat(max_tokens=490, stream=True, ignore_eos=True)))
        assert sock.recv(100)
        assert series(port)["vllm:num_requests_running", "sim-llm"] == 1
    end = time.monotonic() + 5
    while series(port)["vllm:num_requests_running", "sim-llm"] and time.monotonic() < end:
        time.sleep(0.02)
    after = series(port)
    assert after["vllm:num_requests_running", "sim-llm"] == 0
    assert after["vllm:request_success_total", "sim-llm"] == before + 1  # counted as abort


# Refusals

LONG = "x" * 4 * 600
REFUSED = {
    "err-bad-json.txt": b'{"model":"tiny-qwen3",',
    "err-bad-type.txt": chat(max_tokens="many"),
    "err-empty-messages.txt": {"model": "sim-llm", "messages": [], "stream": True},
    "err-max-tokens-0.txt": chat(max_tokens=0, stream=True),
    "err-max-tokens-too-many.txt": chat(max_tokens=100000, stream=True),
    "err-missing-messages.txt": {"model": "sim-llm", "stream": True},
    "err-stream-options-nostream.txt": chat(max_tokens=2, **USAGE),
    "err-temperature.txt": chat(temperature=-1),
    "err-too-long.txt": chat(content=LONG),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_request_is_answered_in_vllms_words(port: int, name: str) -> None:
    answer = ask(port, "/v1/chat/completions", REFUSED[name])
    status, names, body = recorded_answer(name)
    assert (answer.status, answer.json) == (status, body)
    assert [header for header in answer.names if header != "connection"] == names


def test_wrong_model_is_404(port: int) -> None:
    answer = ask(port, "/v1/chat/completions", chat("nope", stream=True))
    status, _, body = recorded_answer("err-wrong-model.txt")
    assert (answer.status, shape(answer.json)) == (status, shape(body))
    assert answer.json["error"]["message"].startswith("The model `nope` does not exist. Valid aliases: sim-llm, ")


def test_unknown_path_and_wrong_method(port: int) -> None:
    nowhere, got = ask(port, "/v1/nope"), ask(port, "/v1/chat/completions")
    assert (nowhere.status, nowhere.json) == recorded_answer("err-404-path.txt")[::2]
    assert (got.status, got.json) == recorded_answer("err-405.txt")[::2]
    assert "allow" in got.names


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [{"role": "user", "content": 5}]},
        chat(stream=True, stream_options=[1]),
        chat(n=2),
        chat(max_tokens=1.5),
        chat(content=[{"type": "image_url"}]),
        [1],
    ],
)
def test_nonsense_is_refused_not_crashed_on(port: int, body: Any) -> None:
    assert ask(port, "/v1/chat/completions", body).status == 400


@pytest.mark.parametrize("prompt", ["", [], ["a", "b"], [1, "a"], None])
def test_nonsense_completion_prompts_are_refused(port: int, prompt: Any) -> None:
    assert ask(port, "/v1/completions", {"prompt": prompt}).status == 400


def test_prompt_and_output_must_fit_together(port: int) -> None:
    answer = ask(port, "/v1/chat/completions", chat(content="x" * 4 * 400, max_tokens=200))
    assert answer.status == 400
    assert "you requested 200 output tokens" in answer.json["error"]["message"]


def test_api_key_is_asked_for_under_v1_only() -> None:
    with simulator("--api-key", "secret") as port:
        for headers in ("", "Authorization: Bearer wrong\r\n"):
            answer = ask(port, "/v1/models", headers=headers)
            assert (answer.status, answer.json) == (401, {"error": "Unauthorized"})
        assert ask(port, "/v1/models", headers="Authorization: Bearer secret\r\n").status == 200
        assert [ask(port, path).status for path in ("/health", "/metrics", "/version")] == [200] * 3
        assert ask(port, "/tokenize", {"prompt": "a"}).status == 200


# Around it


def test_models_lists_every_kind(port: int) -> None:
    body = ask(port, "/v1/models").json
    assert shape(body["data"][:1]) == shape(recorded_answer("models.txt")[2]["data"])
    assert [(model["id"], model["max_model_len"]) for model in body["data"]] == [
        ("sim-llm", 512),
        ("sim-guard", 8192),
        ("sim-vlm", 8192),
        ("sim-embedding", 8192),
        ("sim-rerank", 8192),
    ]


def test_health_version_tokenize(port: int) -> None:
    assert (ask(port, "/health").status, ask(port, "/health").tail) == (200, b"")
    assert ask(port, "/version").json == {"version": "0.32.0+simulator"}
    assert shape(ask(port, "/tokenize", {"prompt": "a"}).json) == shape(recorded_answer("auth-none-tokenize.txt")[2])


def test_recorded_request_with_an_unknown_parameter_is_served(port: int) -> None:
    assert json.loads(ask(port, "/v1/chat/completions", chat(max_tokens=2, no_such_parameter=1)).tail)["object"]
