"""An engine's own account, under one set of names: vLLM (old and new), SGLang, llama.cpp, TGI, TensorRT-LLM. (stdlib)

    python -m tokenswarm.monitors.engine --once URL [--model NAME] [--json]

Names: running waiting swapped kv_use (0..1, the fullest engine) kv_use_mean preemptions prefix_hits prefix_queries
prefix_hit_rate prompt_tokens generation_tokens success aborted errors rejected; of each time T in queue_time ttft itl
tpot e2e: T_sum (s), T_count, T_le_BOUND. What a server does not tell is not there."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tokenswarm.monitors import prometheus, scrape
from tokenswarm.monitors.names import CONFIG, EXACT, HISTOGRAMS, NAMES, PREFIXES, RANKS, WANTED
from tokenswarm.monitors.prometheus import Labels, Series


@dataclass
class Reading:
    """One scrape: the engine's name, its values, settings it tells, and what a person should know."""

    engine: str = ""
    values: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    note: str = ""


def read(text: str, model: str = "") -> Reading:
    """The reading of a page; of one model where the page has several. Junk gives an empty reading with a note."""
    if text.lstrip().startswith("["):
        return _trtllm(text)
    return from_series(prometheus.parse(text, WANTED, EXACT), model)


def from_series(series: Series, model: str = "") -> Reading:
    """The same from parsed series."""
    engine = next((name for name, heads in PREFIXES.items() if any(s.startswith(heads) for s in series)), "")
    if not engine:
        return Reading(note="no series of an engine that we know (vLLM, SGLang, llama.cpp, TGI, TensorRT-LLM)")
    if engine == "vLLM" and is_router(series):
        return Reading(note="a router's metrics, not an engine's (series by server, none of an engine)")
    out = Reading(engine)
    for metric, names in NAMES[engine].items():
        _put(out.values, metric, pick(series, names, model))
    for metric, names in HISTOGRAMS[engine].items():
        _histogram(out.values, series, metric, names, model)
    _by_reason(out.values, pick(series, ("vllm:request_success_total",), model))
    _llamacpp(out.values, engine)
    memory = series.get("process_resident_memory_bytes")
    if memory:
        out.values["process_rss_mib"] = sum(value for _, value in memory) / 2**20
    out.facts = _facts(series, model)
    out.note = _other_model(series, model)
    return out


def is_router(series: Series) -> bool:
    """vLLM's names with a `server` label and nothing that only an engine has."""
    mine = [labels for name, rows in series.items() if name.startswith("vllm:") for labels, _ in rows]
    return bool(mine) and all("server" in labels and "engine" not in labels for labels in mine)


def pick(series: Series, names: Iterable[str], model: str) -> list[tuple[Labels, float]]:
    """The series of the first name that is there: those of the model if it is named, one of several equal ranks."""
    rows = next((series[name] for name in names if name in series), [])
    mine = [row for row in rows if row[0].get("model_name", model) == model]
    if model and mine:
        rows = mine
    elif model and len({labels.get("model_name") for labels, _ in rows}) > 1:
        return []  # several models, none is ours
    if not any(rank in labels for labels, _ in rows for rank in RANKS):
        return rows
    first: dict[tuple[tuple[str, str], ...], tuple[Labels, float]] = {}
    for labels, value in sorted(rows, key=lambda row: [row[0].get(rank, "") for rank in RANKS]):
        apart = tuple(sorted((key, text) for key, text in labels.items() if key not in RANKS))
        first.setdefault(apart, (labels, value))
    return list(first.values())


def _put(values: dict[str, float], metric: str, rows: list[tuple[Labels, float]]) -> None:
    numbers = [value for _, value in rows if value >= 0]  # old vLLM says -1 for "no prefix cache"
    if not numbers:
        return
    if metric == "kv_use":
        values["kv_use"], values["kv_use_mean"] = max(numbers), sum(numbers) / len(numbers)
    else:
        values[metric] = sum(numbers) / len(numbers) if metric == "prefix_hit_rate" else sum(numbers)


def _histogram(values: dict[str, float], series: Series, metric: str, names: Iterable[str], model: str) -> None:
    for name in names:
        if f"{name}_count" in series:
            _put(values, f"{metric}_sum", pick(series, (f"{name}_sum",), model))
            _put(values, f"{metric}_count", pick(series, (f"{name}_count",), model))
            for labels, value in pick(series, (f"{name}_bucket",), model):
                bound = f"{metric}_le_{labels.get('le', '')}"
                values[bound] = values.get(bound, 0.0) + value
            return


def _by_reason(values: dict[str, float], rows: list[tuple[Labels, float]]) -> None:
    """vLLM counts every end as success, by reason: only stop, length and the like are."""
    for labels, value in rows:
        metric = {"abort": "aborted", "error": "errors"}.get(labels.get("finished_reason", ""), "success")
        values[metric] = values.get(metric, 0.0) + value


def _llamacpp(values: dict[str, float], engine: str) -> None:
    """llama.cpp counts cached prompt tokens apart from the computed ones; elsewhere prompt tokens hold both."""
    if engine == "llama.cpp" and "prefix_hits" in values:
        values["prompt_tokens"] = values.get("prompt_tokens", 0.0) + values["prefix_hits"]
        values["prefix_queries"] = values["prompt_tokens"]


def _facts(series: Series, model: str) -> dict[str, Any]:
    rows = pick(series, ("vllm:cache_config_info",), model)
    facts: dict[str, Any] = {}
    for label, fact in CONFIG.items():
        text = rows[0][0].get(label, "") if rows else ""
        if text and text != "None":
            facts[fact] = int(text) if text.isdigit() else _number(text)
    if size := pick(series, ("sglang:max_total_num_tokens",), model):
        facts["kv_cache_size_tokens"] = int(size[0][1])
    engines = {labels.get("engine") for labels, _ in pick(series, ("vllm:num_requests_running",), model)} - {None}
    return facts | ({"engines": len(engines)} if len(engines) > 1 else {})


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _other_model(series: Series, model: str) -> str:
    found = {labels["model_name"] for rows in series.values() for labels, _ in rows if "model_name" in labels}
    if not model or not found or model in found or found == {"undefined"}:
        return ""
    names = ", ".join(sorted(found)[:4])
    if len(found) > 1:
        return f"has series of {names}, none of {model}: they are left out"
    return f"has series of {names}, none of {model}: they are taken as the engine's own"


def _trtllm(text: str) -> Reading:
    """TensorRT-LLM's /metrics: a list of iteration statistics, emptied by every reader."""
    try:
        found = json.loads(text)
    except ValueError:
        return Reading(note="JSON that cannot be read")
    if not isinstance(found, list):
        return Reading(note="JSON, not Prometheus text")
    out = Reading(
        "TensorRT-LLM", note="" if found else "TensorRT-LLM's list of iterations is empty (two readers share it)"
    )
    last = found[-1] if found and isinstance(found[-1], dict) else {}
    cache = last.get("kvCacheStats") or {}
    for metric, key in (("running", "numActiveRequests"), ("waiting", "numQueuedRequests")):
        if isinstance(last.get(key), int | float):
            out.values[metric] = float(last[key])
    if cache.get("maxNumBlocks"):
        out.values["kv_use"] = out.values["kv_use_mean"] = cache.get("usedNumBlocks", 0) / cache["maxNumBlocks"]
        out.facts = {"gpu_blocks": cache["maxNumBlocks"], "block_size": cache.get("tokensPerBlock")}
    return out


def main(words: list[str] | None = None) -> int:
    """One scrape, shown; exit code 3 if there is no page."""
    p = argparse.ArgumentParser(prog="python -m tokenswarm.monitors.engine", description="One look at an engine.")
    p.add_argument("--once", metavar="URL", required=True, help="its metrics page, such as http://gpu:8000/metrics")
    p.add_argument("--model", default="", help="of several models on the page, this one")
    p.add_argument("--json", action="store_true", help="one JSON object")
    options = p.parse_args(words)
    if not options.once.startswith(("http://", "https://")):
        print(f"engine: {options.once!r} is not a URL: give http://HOST:PORT/metrics", file=sys.stderr)
        return 2
    page = scrape.get(options.once)
    reading = read(page.text, options.model) if not page.why else Reading(note=page.why)
    if options.json:
        fields = {"engine": reading.engine, "values": reading.values, "facts": reading.facts, "note": reading.note}
        print(json.dumps({"url": options.once, "time": page.time, "ms": page.ms} | fields))
    else:
        print(f"{options.once}: {reading.engine or 'no engine'}")
        for name, value in (reading.facts | reading.values).items():
            if "_le_" not in name:
                print(f"  {name:22} {value:.6g}" if isinstance(value, float) else f"  {name:22} {value}")
    if reading.note:
        print(f"engine: {options.once} {reading.note}", file=sys.stderr)
    return 3 if page.why else 0


if __name__ == "__main__":
    sys.exit(main())
