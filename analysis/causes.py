"""Why a limit is where it is: signals of engine, GPU and client in words, each "consistent with", never a proof.

Thresholds: method.md sections 9 and 11."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from analysis import words
from analysis.crosschecks import Words, caution, clock_warnings, cross_checks, engine_warnings, gpu_warnings
from analysis.frames import Run, Steady
from analysis.resources import Samples, engine_of, gpus_of, load, server_of, spans

KV_FULL, KV_FREE = 0.95, 0.90
PLATEAU = 0.95
CLIENT_BUSY = 90.0
SLOTS = {  # what each engine calls its batch limit, and the option that raises it
    "": ("max_num_seqs", "max-num-seqs"),
    "vLLM": ("max_num_seqs", "max-num-seqs"),
    "SGLang": ("max_running_requests", "max-running-requests"),
    "llama.cpp": ("its slots", "--parallel (slots)"),
    "TensorRT-LLM": ("max_batch_size", "max_batch_size"),
}
IDLE_UTIL = 60.0


def attach(run: Run, parts: list[Steady], endpoints: dict[str, Any], meter: dict[str, Any]) -> list[Words]:
    """Put `engine`, `gpus`, `server` into each stage's figures and `why` into each endpoint; returns the warnings."""
    notes: list[str] = []
    samples = load(run.path, notes)
    run.notes += notes
    places = spans(run, parts)
    found: list[Words] = []
    for name, endpoint in endpoints.items():
        mine = [(p, s) for p, s in zip(parts, places, strict=True) if p.endpoint == name]
        for figures, (_, span) in zip(endpoint["stages"], mine, strict=True):
            figures["engine"] = engine_of(samples, name, span)
            figures["gpus"] = gpus_of(samples, span)
            figures["server"] = server_of(samples, name, span)
        source = (samples.watch.get("sources") or {}).get(name) or {}
        endpoint["engine"] = {"name": source.get("engine") or "", "facts": source.get("facts") or {}}
        endpoint["gpu_simulated"] = bool(samples.watch.get("gpu_simulated"))
        endpoint["slots"] = slots_known(run, name)
        endpoint["why"] = why(endpoint, meter)
        for figures, (part, _) in zip(endpoint["stages"], mine, strict=True):
            found += cross_checks(name, figures, part, endpoint["engine"]["name"])
        found += [*engine_warnings(name, endpoint), *clock_warnings(endpoint)]
    found += gpu_warnings(endpoints)
    return [*found, *_notes(samples)]


def slots_known(run: Run, name: str) -> int | None:
    """The batch limit where something tells it: the server itself, or the simulator's own argument (llm)."""
    told = ((run.info.get("targets") or {}).get(name) or {}).get("slots")
    if isinstance(told, int):
        return told
    named = re.search(r"--slots[ =](\d+)", str(run.info.get("simulator") or ""))
    return int(named[1]) if named and name == "llm" and run.info.get("simulated") else None


def why(endpoint: dict[str, Any], meter: dict[str, Any]) -> list[str]:
    """Sentences that tie the limits to what was seen inside."""
    stages = [s for s in endpoint["stages"] if s["engine"] and s["engine"]["waiting"]["median"] is not None]
    out = []
    if stages:
        waiting = _waiting_from(stages)
        out.append(_queue(endpoint, stages, waiting) if waiting else _no_queue(endpoint, stages))
    return [*out, *_flat(endpoint), *_client(endpoint, stages, meter)]


def _waiting_from(stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The stages from the first one on since which requests always waited (median above 0)."""
    first = len(stages)
    while first and stages[first - 1]["engine"]["waiting"]["median"] > 0:
        first -= 1
    return stages[first:]


def _queue(endpoint: dict[str, Any], stages: list[dict[str, Any]], waiting: list[dict[str, Any]]) -> str:
    engines = [s["engine"] for s in waiting]
    running = max(e["running"]["max"] or 0 for e in engines)
    flat = all((e["running"]["median"] or 0) >= PLATEAU * running for e in engines)
    kv = max((e["kv_use"]["max"] for e in engines if e["kv_use"]["max"] is not None), default=None)
    preempted = sum(e["preemptions"] or 0 for e in engines)
    known = endpoint["slots"]
    setting, way = SLOTS.get(endpoint["engine"]["name"], ("its batch limit", "batch limit of the engine"))
    named = f" = {setting}" if known == running else ""
    use = "KV use unknown" if kv is None else f"KV {100 * kv:.0f} %"
    lost = f", {preempted:.0f} preemptions" if preempted else ""
    seen = f"waiting > 0 from stage {waiting[0]['stage']} on, running = {running:.0f}{named}, {use}{lost}"
    if not flat:
        seen = seen.replace("running = ", "running up to ")
    if preempted or (kv is not None and kv >= KV_FULL):
        return f"{seen}: consistent with a KV-cache limit; try a lower max-model-len, fp8 KV, more memory for it, or TP"
    if flat and (kv is None or kv < KV_FREE):
        return f"{seen}: consistent with a slot limit; try a higher {way}"
    return f"{seen}: consistent with both a slot and a KV-cache limit; {len(waiting)} stages do not tell them apart"


def _no_queue(endpoint: dict[str, Any], stages: list[dict[str, Any]]) -> str:
    most = max(s["engine"]["running"]["max"] or 0 for s in stages)
    said = f"no requests waited in the engine up to stage {stages[-1]['stage']} (running up to {most:.0f})"
    last = endpoint["stages"][-1]
    p99, p50 = last["tpot_ms"].get("p99"), last["tpot_ms"].get("p50")
    onset = ((endpoint.get("limits") or {}).get("queue_onset") or {}).get("state")
    if onset in ("confirmed", "suspected") and p99 and p50 and p99 > 2 * p50:
        return (f"{said}, but TTFT grows and TPOT P99 is {p99 / p50:.1f} times its P50: consistent with prefill "
                "interference; try another max-num-batched-tokens, or shorter prompts")  # fmt: skip
    return said


def _flat(endpoint: dict[str, Any]) -> Iterator[str]:
    """Throughput that no longer grows while the GPUs are not busy points elsewhere."""
    state = ((endpoint.get("limits") or {}).get("saturation") or {}).get("state")
    last = endpoint["stages"][-1]
    utils = [g["util_pct"] for g in last["gpus"].values() if g["util_pct"] is not None]
    powers = [g["power_share"] for g in last["gpus"].values() if g["power_share"] is not None]
    if state in ("confirmed", "suspected") and utils and max(utils) < IDLE_UTIL:
        power = f", power at {100 * max(powers):.0f} % of its limit" if powers else ""
        yield (f"throughput is flat while the busiest GPU is at {max(utils):.0f} %{power} in stage {last['stage']}: "
               "consistent with a limit outside the GPU (CPU, tokenizer, network, client)")  # fmt: skip


def _client(endpoint: dict[str, Any], stages: list[dict[str, Any]], meter: dict[str, Any]) -> Iterator[str]:
    """Flat throughput, an engine without a queue, and a busy client."""
    found = ((endpoint.get("limits") or {}).get("saturation") or {}).get("state") in ("confirmed", "suspected")
    queued = bool(_waiting_from(stages))
    cpu = meter.get("cpu_max_pct") or 0.0
    busy = cpu >= CLIENT_BUSY or meter["state"] == "invalid"
    if found and stages and not queued and busy:
        yield (f"throughput is flat, nothing waits in the engine, and the busiest client process is at {cpu:.0f} % "
               "of a core: consistent with a limit of the client, not saturated; try PROCESSES=2 or more")  # fmt: skip


def _notes(samples: Samples) -> Iterator[Words]:
    if samples.watch.get("complete") is False and len(samples.engine):
        last = time.strftime("%H:%M:%S", time.gmtime(samples.engine["time"].max()))
        yield caution(f"the watcher ended before the run: the last sample is of {last} UTC",
                       "engine and GPU are unknown after it", "look at run.log")  # fmt: skip
    for note in samples.watch.get("notes") or []:
        yield caution(
            str(note), "what was not seen is blank in this report", "give the URL of the metrics, or go without"
        )


def table(endpoint: dict[str, Any]) -> list[str]:
    """Markdown: what the server and its GPUs said, stage by stage; [] when they said nothing."""
    stages = [s for s in endpoint["stages"] if s["engine"] or s["gpus"]]
    if not stages:
        return []
    heads = ["stage", "running", "waiting", "KV max %", "preempted", "prefix hits %", "server TTFT ms",
             "client TTFT ms", "server tok/s", "GPU %", "GPU mem %", "GPUs W", "GPU C", "SM MHz"]  # fmt: skip
    rows = [_row(stage) for stage in stages]
    keep = [i for i in range(len(heads)) if any(row[i] != "-" for row in rows)]
    return words.markdown_rows([heads[i] for i in keep], [[row[i] for i in keep] for row in rows])


def _row(stage: dict[str, Any]) -> list[str]:
    e, gpus = stage["engine"] or {}, list(stage["gpus"].values())

    def most(key: str) -> float | None:
        return max((g[key] for g in gpus if g[key] is not None), default=None)

    def percent(value: float | None) -> float | None:
        return None if value is None else 100 * value

    watts = [g["power_w"] for g in gpus if g["power_w"] is not None]
    values = [(e.get("running") or {}).get("median"), (e.get("waiting") or {}).get("median"),
              percent((e.get("kv_use") or {}).get("max")), e.get("preemptions"), percent(e.get("prefix_hit_rate")),
              e.get("ttft_mean_ms"), e.get("client_ttft_mean_ms"), e.get("output_tps"), most("util_pct"),
              percent(most("mem_share")), float(np.sum(watts)) if watts else None, most("temp_max_c"),
              most("sm_mhz")]  # fmt: skip
    return [
        stage["stage"],
        *("-" if v is None else f"{v:,.0f}" if abs(v) >= 10 or v == int(v) else f"{v:.2g}" for v in values),
    ]
