"""The simulator's /metrics, and its guard, vision, embedding and rerank models."""

import base64
import struct
import zlib
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from simulator_client import RECORDED, ask, chat, recorded_answer, series, shape, simulator

STREAM = {"stream": True, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with simulator("--step-ms", "2", "--max-model-len", "512") as port:
        yield port


def png(width: int, height: int, shade: int = 0) -> str:
    """A data: URL of a grey image."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"".join(b"\0" + bytes([shade]) * width for _ in range(height)))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", rows) + part(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_metrics_have_vllms_names_types_and_labels(port: int) -> None:
    page = ask(port, "/metrics").tail.decode()
    families = list(text_string_to_metric_families(page))
    types = dict(line.split() for line in (RECORDED / "metric-types.txt").read_text().splitlines())
    mine = dict(line.split()[2:4] for line in page.splitlines() if line.startswith("# TYPE"))
    assert len(mine) > 60
    assert {name for name in mine if not name.startswith(("simulator:", "DCGM_"))} <= set(types)
    assert {name: kind for name, kind in mine.items() if name in types and types[name] != kind} == {}
    theirs = list(text_string_to_metric_families((RECORDED / "metrics-queue.prom").read_text(encoding="utf-8")))
    labels = {sample.name: set(sample.labels) for family in theirs for sample in family.samples}
    for sample in (sample for family in families for sample in family.samples if sample.name.startswith("vllm:")):
        wanted = labels[sample.name]
        assert set(sample.labels) == wanted or (sample.name.endswith("_info") and set(sample.labels) < wanted)


def test_metrics_count_requests_tokens_and_latencies(port: int) -> None:
    before = series(port)
    for _ in range(3):
        ask(port, "/v1/chat/completions", chat(**STREAM))
    after = series(port)
    grown = {name: after[name, "sim-llm"] - before[name, "sim-llm"] for name, model in after if model == "sim-llm"}
    assert grown["vllm:generation_tokens_total"] == 24
    assert grown["vllm:prompt_tokens_total"] == 36
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_decode_time"):
        assert grown[f"vllm:{name}_seconds_count"] == 3
    assert grown["vllm:inter_token_latency_seconds_count"] == 21
    assert grown["vllm:request_success_total"] == 3
    # 7 gaps of a step (2 ms + 0.05 ms) each, by the model's clock
    assert grown["vllm:request_decode_time_seconds_sum"] == pytest.approx(3 * 7 * 0.00205, rel=0.01)


def test_guard_answers_in_qwen3guards_lines(port: int) -> None:
    def verdict(*messages: tuple[str, str]) -> str:
        body = {"model": "sim-guard", "messages": [{"role": role, "content": text} for role, text in messages]}
        return ask(port, "/v1/chat/completions", body).json["choices"][0]["message"]["content"]

    assert verdict(("user", "How do I build a bomb?")) == "Safety: Unsafe\nCategories: Violent"
    assert verdict(("user", "怎么诈骗老人？")) == "Safety: Unsafe\nCategories: Non-violent Illegal Acts"
    assert verdict(("user", "Is it fun to gamble?")) == "Safety: Controversial\nCategories: Unethical Acts"
    assert verdict(("user", "今天天气怎么样？")) == "Safety: Safe\nCategories: None"
    answered = ("user", "How do I build a bomb?"), ("assistant", "Sorry, I can't help with that.")
    assert verdict(*answered) == "Safety: Safe\nCategories: None\nRefusal: Yes"


def test_images_count_as_tokens_and_are_cached_by_content(port: int) -> None:
    def prompt_tokens(*images: str) -> int:
        parts = [{"type": "image_url", "image_url": {"url": image}} for image in images]
        body = chat("sim-vlm", [{"type": "text", "text": "What is this?"}, *parts], max_tokens=4)
        return ask(port, "/v1/chat/completions", body).json["usage"]["prompt_tokens"]

    assert prompt_tokens(png(224, 224)) == 78  # as vLLM counted for the recorded request
    assert prompt_tokens(png(225, 56, 9)) == 14 + 9 * 2
    assert prompt_tokens(png(224, 224), png(28, 28, 3)) == 78 + 3
    found = series(port)
    assert found["vllm:mm_cache_queries_total", "sim-vlm"] == 4
    assert found["vllm:mm_cache_hits_total", "sim-vlm"] == 1
    text_model = chat("sim-llm", [{"type": "image_url", "image_url": {"url": png(28, 28)}}])
    assert ask(port, "/v1/chat/completions", text_model).status == 400


def test_embeddings_in_both_forms(port: int) -> None:
    body = {"model": "sim-embedding", "input": ["The cat sat.", "猫"]}
    plain = ask(port, "/v1/embeddings", body).json
    packed = ask(port, "/v1/embeddings", body | {"encoding_format": "base64"}).json
    assert shape(plain) == shape(recorded_answer("minilm-emb.txt")[2])
    vector = plain["data"][0]["embedding"]
    assert len(vector) == 1024
    assert sum(value * value for value in vector) == pytest.approx(1, rel=1e-5)
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert struct.unpack(f"<{len(data) // 4}f", data) == pytest.approx(vector)
    assert plain["usage"]["prompt_tokens"] == 3 + 1


def test_rerank_sorts_by_score(port: int) -> None:
    body = {"query": "capital of France?", "documents": ["A dog.", "Paris is the capital of France."]}
    answers = [ask(port, path, body).json for path in ("/rerank", "/v1/rerank", "/v2/rerank")]
    assert shape(answers[0]) == shape(recorded_answer("minilm-rerank-v2.txt")[2])
    assert [[result["index"] for result in answer["results"]] for answer in answers] == [[1, 0]] * 3
    assert len(ask(port, "/rerank", body | {"top_n": 1}).json["results"]) == 1


def test_score_classify_moderations(port: int) -> None:
    scores = ask(port, "/score", {"text_1": "capital", "text_2": ["dog", "capital city"]}).json
    assert [item["index"] for item in scores["data"]] == [0, 1]
    assert scores["data"][0]["score"] < scores["data"][1]["score"]
    classes = ask(port, "/classify", {"input": ["hello", "build a bomb"]}).json["data"]
    assert [item["label"] for item in classes] == ["Safe", "Unsafe"]
    results = ask(port, "/v1/moderations", {"input": ["hello", "build a bomb"]}).json["results"]
    assert [result["flagged"] for result in results] == [False, True]


def test_kinds_refuse_each_others_requests(port: int) -> None:
    for path, body in (
        ("/v1/embeddings", {"model": "sim-llm", "input": "x"}),
        ("/v1/chat/completions", chat("sim-embedding")),
        ("/rerank", {"model": "sim-vlm", "query": "x", "documents": ["y"]}),
    ):
        answer = ask(port, path, body)
        assert (answer.status, answer.json["error"]["type"]) == (400, "BadRequestError")


def test_kinds_have_their_own_slots_and_counts(port: int) -> None:
    name, before = "vllm:request_success_total", series(port)
    ask(port, "/v1/embeddings", {"input": ["a", "b", "c"]})
    after = series(port)
    grown = {kind: after[name, kind] - before[name, kind] for kind in ("sim-embedding", "sim-llm")}
    assert grown == {"sim-embedding": 3, "sim-llm": 0}
