"""Every stream cut at every byte, joined, split, with other line ends: the record never changes.

No sockets here, except for random cuts at the end."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from asking import CASES, ask, cases, client_of, facts
from scripted import Server, head, payload

from tokenswarm import wire
from tokenswarm.sockets import Stamp
from tokenswarm.users.reading import ChatReader

ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}
BOM = b"\xef\xbb\xbf"
LONG = "A35-huge-data-line-600k"  # 600 kB: cut at random places only
GZIP = "A36-gzip-body-at-end"
OVER_A_SOCKET = [
    "chat-stream-usage",
    "spec-decode-stream",
    "A04-delta-reasoning",
    "A17-utf8-split-in-character",
    "A22-comment-keepalive",
    "A26-error-event-after-tokens",
    "A30-clean-eof-no-finish",
    LONG,
]
RECORDED = ["chat-stream-usage", "spec-decode-stream", "reasoning-stream", "tool-named-stream"]


def body_of(name: str) -> bytes:
    return b"".join(payload(step) for step in json.loads((CASES / "sse" / f"{name}.json").read_text())["script"])


STREAMS = {path.stem: body_of(path.stem) for path in cases("sse") if path.stem != GZIP}
SHORT = [name for name in STREAMS if name != LONG]


def recorded_body(name: str) -> bytes:
    text = (CASES / "recorded" / f"{name}.txt").read_bytes().decode()
    return re.sub(r"^ *\d+\.\d{6} ?", "", text, flags=re.MULTILINE).split("\r\n\r\n", 1)[1].encode()


STREAMS |= {name: recorded_body(name) for name in RECORDED}


def with_ends(body: bytes, end: bytes) -> bytes:
    return body.replace(b"\r\n", b"\n").replace(b"\n", end)


def mixed_ends(body: bytes, rng: random.Random) -> bytes:
    """Each line with an end of its own choice, but never CR before a lone LF: those are one line end."""
    out = bytearray()
    *lines, rest = body.replace(b"\r\n", b"\n").split(b"\n")
    for line in lines:
        end = rng.choice([b"\n", b"\r\n", b"\r"])
        bare_cr_before = out.endswith(b"\r") and not line
        out += line + (b"\r" if bare_cr_before and end == b"\n" else end)
    return bytes(out) + rest


def read(pieces: list[bytes]) -> tuple[dict[str, Any], list[int]]:
    """What the record says of a body that came in these pieces, and the piece each token came with."""
    x, reader = wire.Exchange(), ChatReader()
    reader.keep_text = True

    def arrive() -> Iterator[bytes]:
        for number, piece in enumerate(pieces):
            x.last = Stamp(number + 1, number + 1)
            yield piece

    wire._events(x, arrive(), reader)
    x.error = reader.verdict()
    return facts(x, reader), [stamp.user - 1 for stamp in x.tokens]


def at(body: bytes, places: list[int]) -> list[bytes]:
    """The body cut at these places."""
    edges = [0, *sorted(places), len(body)]
    return [body[a:b] for a, b in itertools.pairwise(edges)]


def random_cuts(body: bytes, rng: random.Random) -> list[bytes]:
    return at(body, [rng.randrange(len(body) + 1) for _ in range(rng.choice([1, 3, 10, 40]))])


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", SHORT)
def test_cut_at_every_byte(name: str, end: str) -> None:
    body = with_ends(STREAMS[name], ENDS[end])
    whole, _ = read([body])
    for place in range(len(body) + 1):
        assert read(at(body, [place]))[0] == whole, place
    assert read([body[i : i + 1] for i in range(len(body))])[0] == whole
    assert read([BOM + body])[0] == whole
    assert read([BOM[:1], BOM[1:] + body[:1], body[1:]])[0] == whole


@pytest.mark.parametrize("name", STREAMS)
def test_line_ends_cuts_and_joins_change_nothing(name: str) -> None:
    rng = random.Random(f"wire {name}")
    whole, _ = read([STREAMS[name]])
    for _ in range(3 if name == LONG else 60):
        body = mixed_ends(STREAMS[name], rng)
        assert read(random_cuts(rng.choice([b"", BOM]) + body, rng))[0] == whole
    assert whole["text"].count("\ufffd") == (1 if name.startswith("A43") else 0)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", ["A01-role-chunk-early", "A04-delta-reasoning", "A15-stream-interval-10"])
def test_a_token_comes_with_the_piece_that_ends_its_event(name: str, end: str) -> None:
    """No byte of the next event is needed to see this one (in CRLF not even the last LF)."""
    body = with_ends(STREAMS[name], ENDS[end])
    blank = ENDS[end] * 2
    events = [event + blank for event in body.split(blank) if event]
    tokens = [i for i, event in enumerate(events) if re.search(rb'"(content|reasoning)":"[^"]', event)]
    assert read(events)[1] == tokens
    cut = len(blank) - 1 if end == "CRLF" else len(blank)
    edges = [sum(map(len, events[: i + 1])) - len(blank) + cut for i in range(len(events))]
    assert read(at(body, edges))[1] == tokens


def test_gzip_cut_at_every_byte() -> None:
    packed = body_of(GZIP)
    whole, _ = read(list(wire._inflate(iter([packed]))))
    assert (whole["error"], whole["output_tokens"]) == ("", 20)
    for place in range(len(packed) + 1):
        assert read(list(wire._inflate(iter(at(packed, [place])))))[0] == whole
        short, _ = read(list(wire._inflate(iter([packed[:place]]))))
        assert short["error"] in ("", "empty", "truncated", "bad_stream")
        assert short["error"] or short["finish"]


def ended(prefix: bytes) -> bool:
    """Does this beginning of a stream hold a whole [DONE] line or a whole event with a finish_reason?"""
    for line in prefix.split(b"\n"):
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return True
        try:
            event = json.loads(data)
        except ValueError:
            continue
        if any(choice.get("finish_reason") for choice in event.get("choices") or ()):
            return True
    return False


@pytest.mark.parametrize("name", SHORT)
def test_a_stream_cut_short_is_no_success(name: str) -> None:
    body = with_ends(STREAMS[name], b"\n")
    whole, _ = read([body])
    successes = 0
    for place in range(len(body) + 1):
        error = read([body[:place]])[0]["error"]
        assert error in ("", "empty", "truncated", "bad_stream", "server_error")
        assert error or ended(body[:place]), place
        successes += not error
    assert (successes > 0) == (whole["error"] == "")


TEXT = 'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
STOP = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
ERROR = "event: error\ndata: "
HABITS = {  # stream: error, token chunks, unreadable events
    "an error event that is not JSON": (TEXT + ERROR + "it died\n\ndata: [DONE]\n\n", "server_error", 1, 1),
    "an error event without the word error": (
        TEXT + ERROR + '{"detail": "x"}\n\n' + STOP,
        "server_error",
        1,
        0,
    ),
    "finish_reason error": (TEXT + STOP.replace("stop", "error"), "server_error", 1, 0),
    "finish_reason abort": (TEXT + STOP.replace("stop", "abort"), "aborted", 1, 0),
    "empty data as keep-alive": ("data:\n\ndata: \n\n" + TEXT + STOP, "", 1, 0),
    "an error after the finish": (
        TEXT + STOP + 'data: {"error": {"message": "x"}}\n\n',
        "server_error",
        1,
        0,
    ),
    "error null": (TEXT.replace('{"choices"', '{"error": null, "choices"') + STOP, "", 1, 0),
    "tool_calls of a wrong type": (
        'data: {"choices": [{"delta": {"tool_calls": 5}}]}\n\n' + TEXT + STOP,
        "",
        1,
        1,
    ),
    "JSON over two data lines": (TEXT.replace("[{", "\ndata: [{", 1) + STOP, "", 1, 0),
    "bytes that are no UTF-8": (TEXT.replace('"a"', '"\udcff"') + TEXT + STOP, "", 1, 1),
    "nothing but junk": ("data: x\n\n" * 3 + "data: [DONE]\n\n", "bad_stream", 0, 3),
    "nothing": ("", "empty", 0, 0),
    "text without an end": (TEXT, "truncated", 1, 0),
    "two choices in one event": (TEXT.replace("}]}", '}, {"delta": {"reasoning": "b"}}]}') + STOP, "", 1, 0),
}


@pytest.mark.parametrize("habit", HABITS)
def test_habits_of_servers(habit: str) -> None:
    stream, *expected = HABITS[habit]
    seen, _ = read([stream.encode("utf-8", "surrogateescape")])
    assert [seen["error"], seen["chunks"], seen["bad_events"]] == expected


def test_usage_without_prompt_tokens_still_counts() -> None:
    seen, _ = read([(TEXT + STOP + 'data: {"usage": {"completion_tokens": 7}}\n\n').encode()])
    assert (seen["input_tokens"], seen["output_tokens"], seen["tokens_source"]) == (None, 7, "usage")


def test_a_long_line_is_read_in_linear_time() -> None:
    def seconds(size: int) -> float:
        body = TEXT.replace('"a"', '"' + "y" * size + '"').encode()
        pieces = [body[i : i + 4096] for i in range(0, len(body), 4096)]
        best = 1e9
        for _ in range(5):
            begin = time.process_time()
            seen, _ = read(pieces)
            best = min(best, time.process_time() - begin)
        assert len(seen["text"]) == size
        return best

    assert seconds(8_000_000) / seconds(1_000_000) < 24, "8 would be linear, 64 quadratic"


def on_the_wire(body: bytes, framing: str, rng: random.Random) -> list[bytes]:
    """A whole HTTP answer with random chunks, in random TCP writes."""
    headers = {"Content-Type": "text/event-stream"}
    top = head({"framing": framing, "headers": headers, "script": [{"hex": body.hex()}]})
    if framing == "chunked":
        body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in random_cuts(body, rng) if p) + b"0\r\n\r\n"
    return random_cuts(top + body, rng)


@pytest.mark.parametrize("framing", ["chunked", "until-close", "content-length"])
@pytest.mark.parametrize("name", OVER_A_SOCKET)
def test_random_cuts_over_a_socket(server: Server, name: str, framing: str) -> None:
    rng = random.Random(f"socket {name} {framing}")
    whole, _ = read([STREAMS[name]])
    client = client_of(server)
    for _ in range(1 if name == LONG else 5):
        body = mixed_ends(STREAMS[name], rng)
        steps = [{"hex": piece.hex(), "after_ms": rng.choice([0, 0, 1])} for piece in on_the_wire(body, framing, rng)]
        end = "close" if framing == "until-close" else "clean"
        x, reader = ask(client, {"framing": "raw", "script": steps, "end": end})
        assert facts(x, reader) == whole
        assert [stamp.kernel for stamp in x.tokens] == sorted(stamp.kernel for stamp in x.tokens)


@pytest.mark.parametrize("framing", ["chunked", "content-length"])
def test_an_answer_cut_short_on_the_wire_is_no_success(server: Server, framing: str) -> None:
    """Even behind finish_reason and [DONE]: the framing says that something is missing."""
    rng = random.Random(framing)
    client = client_of(server)
    whole = b"".join(on_the_wire(STREAMS["A04-delta-reasoning"], framing, rng))
    for place in [0, 1, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(40))]:
        x, _ = ask(client, {"framing": "raw", "script": [{"hex": whole[:place].hex()}], "end": "close"})
        in_body = place >= whole.index(b"\r\n\r\n") + 4
        assert x.error == ("truncated" if in_body else "disconnect"), (place, x.detail)
