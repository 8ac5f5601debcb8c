"""Metrics pages of many engines, as they are, read under one set of names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import Pages
from shell import ROOT

from tokenswarm.monitors import engine, prometheus

CASES = Path(__file__).parent / "cases/metrics"
RECORDED = Path(__file__).parent / "cases/recorded"


def read(name: str, model: str = "") -> engine.Reading:
    return engine.read((CASES / name).read_text(encoding="utf-8"), model)


EXPECTED = {  # file: (engine, values that must be there)
    "vllm-v0-0.6.txt": ("vLLM", {"running": 7, "waiting": 3, "swapped": 0, "kv_use": 0.72, "preemptions": 4,
                                 "queue_time_sum": 1.5, "queue_time_count": 10, "prefix_hit_rate": 0.45}),
    "vllm-v1-new-names.txt": ("vLLM", {"running": 7, "waiting": 3, "kv_use": 9.75010481363281e-06, "preemptions": 4,
                                       "prefix_hits": 750, "prefix_queries": 1000, "itl_count": 1000}),
    "vllm-dp2-two-engines.txt": ("vLLM", {"running": 62, "waiting": 40, "kv_use": 0.98, "kv_use_mean": 0.54}),
    "sglang-excerpt.txt": ("SGLang", {"running": 162, "waiting": 2826, "kv_use": 0.28, "generation_tokens": 7557572}),
    "sglang-rank-labels.txt": ("SGLang", {"running": 1, "waiting": 4, "kv_use": 0.5, "kv_use_mean": 0.5}),
    "llamacpp-now.txt": ("llama.cpp", {"running": 2, "waiting": 5, "generation_tokens": 673}),
    "llamacpp-old-kv.txt": ("llama.cpp", {"running": 2, "waiting": 1, "kv_use": 0.2}),
    "llamacpp-recorded.txt": ("llama.cpp", {"running": 0, "prefix_hits": 53, "prefix_queries": 98}),
    "tgi.txt": ("TGI", {"running": 2, "waiting": 6, "e2e_sum": 40, "e2e_count": 20}),
    "nan-inf-junk.txt": ("vLLM", {"kv_use": 0.4, "generation_tokens": 5000}),
    "truncated-body.txt": ("vLLM", {"running": 7}),
    "trtllm-iteration-stats.json": ("TensorRT-LLM", {"running": 1, "waiting": 0, "kv_use": 3 / 22955}),
    "trtllm-prometheus-undefined-labels.txt": ("TensorRT-LLM", {"e2e_count": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_a_page_is_read(name: str) -> None:
    got, (kind, values) = read(name), EXPECTED[name]
    assert got.engine == kind
    assert {key: got.values.get(key) for key in values} == pytest.approx(values)


def test_what_is_not_told_is_not_there() -> None:
    assert "kv_use" not in read("llamacpp-now.txt").values
    assert not {"running", "waiting"} & read("nan-inf-junk.txt").values.keys(), "NaN and Inf are unknown, not 0"
    assert "waiting" not in read("truncated-body.txt").values
    assert "swapped" not in read("vllm-v1-new-names.txt").values


@pytest.mark.parametrize(
    "name", ["empty.txt", "vllm-stats-off.txt", "trtllm-metrics-empty.json", "router-not-engine.txt"]
)
def test_a_page_without_an_engine_says_so(name: str) -> None:
    got = read(name)
    assert got.values == {} and got.note
    assert ("router" in got.note) == (name == "router-not-engine.txt")


def test_models_are_told_apart_and_reasons_too() -> None:
    assert read("vllm-two-models-lora.txt", "base").values | {} == {"running": 5, "success": 12, "aborted": 1}
    lora = read("vllm-two-models-lora.txt", "sql-lora").values
    assert lora["success"] == 4 and lora["running"] == 5, "the engine's own number, where it has only one"
    other = read("vllm-two-models-lora.txt", "third")
    assert "success" not in other.values and "none of third" in other.note


def test_a_recorded_vllm_with_a_queue_and_one_that_preempts() -> None:
    queue = engine.read((RECORDED / "metrics-queue.prom").read_text(), "mid-qwen3")
    assert (queue.values["running"], queue.values["waiting"]) == (8, 8)
    assert queue.values["ttft_count"] == 74 == queue.values["ttft_le_+Inf"]
    assert (queue.facts["gpu_blocks"], queue.facts["block_size"], queue.facts["gpu_memory_utilization"]) == (
        682,
        128,
        0.92,
    )
    tight = read("metrics-preempt.prom", "tiny-qwen3")
    assert tight.values["preemptions"] == 22 and tight.values["kv_use"] > 0.97 and tight.facts["gpu_blocks"] == 40
    assert tight.note == ""


def test_escaped_labels() -> None:
    rows = prometheus.parse((CASES / "nan-inf-junk.txt").read_text())["vllm:generation_tokens_total"]
    assert rows == [({"engine": "0", "model_name": 'a,b="c"'}, 5000.0)]
    line = prometheus.sample("a", {"b": 'x"\\\n'}, 0.1)
    assert prometheus.parse(line) == {"a": [({"b": 'x"\\\n'}, 0.1)]}


@given(st.text(max_size=200))
def test_junk_loses_a_line_never_the_scrape(junk: str) -> None:
    good = 'vllm:num_requests_running{engine="0"} 3.0'
    text = "\n".join([good, *junk.splitlines(), 'vllm:num_requests_waiting{engine="0"} 2.0'])
    got = engine.read(text).values
    assert got["waiting"] == 2.0 and got["running"] >= 3.0


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    engine.read(data.decode("utf-8", "replace"))


def test_once_by_http_with_redirect_and_errors() -> None:
    with Pages() as pages:
        pages.body = (CASES / "vllm-v1-new-names.txt").read_text()
        found = once(pages.base + "/moved")
        assert found["engine"] == "vLLM" and found["values"]["running"] == 7, "307 is followed"
        for name, words in (("llamacpp-501-off.json", "--metrics"), ("vllm-500-multiproc-dir.json", "500"),
                            ("llamacpp-router-400.json", "model name is missing")):  # fmt: skip
            case = json.loads((CASES / name).read_text())
            pages.status, pages.body = case["status"], case["body"]
            assert words in once(pages.url, 3)["note"], name
    assert "refused" in once(pages.url, 3)["note"].lower()


def once(url: str, code: int = 0) -> dict:
    command = [sys.executable, "-m", "tokenswarm.monitors.engine", "--once", url, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def test_wrong_usage_in_one_line() -> None:
    done = subprocess.run([sys.executable, "-m", "tokenswarm.monitors.engine", "--once", "gpu:8000"], cwd=ROOT,
                          capture_output=True, text=True, timeout=30)  # fmt: skip
    assert done.returncode == 2 and "http://HOST:PORT" in done.stderr
