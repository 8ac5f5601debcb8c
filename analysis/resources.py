"""Engine, GPU and host samples of a run, joined to its stages by time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames import Run, Steady, _table

EMPTY = pd.DataFrame({"time": [], "source": [], "metric": [], "value": []})
SLACK_S = 2.5  # a sample this far outside a stage still closes its counters, if no other stage is there
REASONS = {  # bits of NVML's clocks event (throttle) reasons that slow a GPU down
    0x4: "SwPowerCap", 0x8: "HwSlowdown", 0x20: "SwThermalSlowdown", 0x40: "HwThermalSlowdown",
    0x80: "HwPowerBrakeSlowdown",
}  # fmt: skip


@dataclass
class Samples:
    """engine.csv, gpu.csv and server.csv in long form, and watch.json."""

    engine: pd.DataFrame
    gpu: pd.DataFrame
    server: pd.DataFrame
    watch: dict[str, Any] = field(default_factory=dict)


def load(path: Path, notes: list[str]) -> Samples:
    """The samples of a run folder; what is missing is empty."""
    frames = [_table(path / name, notes) for name in ("engine.csv", "gpu.csv", "server.csv")]
    try:
        watch = json.loads((path / "watch.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        watch = {}
    engine, gpu, server = (f if "metric" in f else EMPTY for f in frames)
    return Samples(engine, gpu, server, watch if isinstance(watch, dict) else {})


@dataclass
class Span:
    """One stage on the time line: all of it, its steady part, and how far counters may be read around it."""

    start: float
    end: float
    steady: tuple[float, float]
    before: float  # the stage before had ended by then
    after: float  # the stage after had not begun until then


def spans(run: Run, parts: list[Steady]) -> list[Span]:
    """A span for each part. The steady part is placed by the first request's own clock."""
    known = {stage.get("stage"): stage for stage in run.info.get("stages") or []}
    found = []
    for part in parts:
        first, stage = float(part.rows["start_time"].min()), known.get(part.stage, {})
        last = part.rows["end_time"].max()
        start = float(stage.get("start") or first)
        end = float(stage.get("end") or (last if pd.notna(last) else first))
        low, high = part.window or (0.0, end - first)
        found.append(Span(start, end, (first + low, first + high), -np.inf, np.inf))
    for span in found:
        span.before = max((s.end for s in found if s.end <= span.start and s is not span), default=-np.inf)
        span.after = min((s.start for s in found if s.start >= span.end and s is not span), default=np.inf)
    return found


def gauge(frame: pd.DataFrame, source: str, metric: str, span: Span) -> np.ndarray:
    """Values of a gauge in the steady part; in the whole stage if that holds fewer than three."""
    one = frame[(frame["source"] == source) & (frame["metric"] == metric)]
    inside = one.loc[one["time"].between(*span.steady), "value"]
    if len(inside) < 3:
        inside = one.loc[one["time"].between(span.start, span.end), "value"]
    return inside.to_numpy(dtype=float)


def counter(frame: pd.DataFrame, source: str, metric: str, span: Span) -> tuple[float | None, bool]:
    """(growth of a counter over the stage, whether samples before and after close it); a fall is a restart from 0."""
    one = frame[(frame["source"] == source) & (frame["metric"] == metric)].sort_values("time", kind="stable")
    at, values = one["time"].to_numpy(), one["value"].to_numpy(dtype=float)
    heads = np.flatnonzero((at <= span.start) & (at >= max(span.before, span.start - SLACK_S)))
    tails = np.flatnonzero((at >= span.end) & (at <= min(span.after, span.end + SLACK_S)))
    inside = np.flatnonzero((at > span.start) & (at < span.end))
    first = heads[-1] if len(heads) else (inside[0] if len(inside) else None)
    last = tails[0] if len(tails) else (inside[-1] if len(inside) else None)
    if first is None or last is None or last <= first:
        return None, False
    return growth(values[first : last + 1]), bool(len(heads) and len(tails))


def growth(values: np.ndarray) -> float:
    """Sum of the rises; after a fall the counter began again at 0."""
    steps = np.diff(values)
    return float(np.where(steps >= 0, steps, values[1:]).sum())


def engine_of(samples: Samples, kind: str, span: Span) -> dict[str, Any] | None:
    """What the engine of a kind said during a stage; None if it said nothing."""
    frame = samples.engine
    looks = gauge(frame, kind, "up", span)
    if not len(looks) or not looks.any():
        return None
    counts = {name: counter(frame, kind, name, span) for name in COUNTERS}
    totals = {name: value for name, (value, _) in counts.items()}
    out: dict[str, Any] = {"samples": len(looks), "gaps": int((looks == 0).sum()),
                           "closed": counts["generation_tokens"][1]}  # fmt: skip
    for name in ("running", "waiting", "kv_use"):
        values = gauge(frame, kind, name, span)
        out[name] = {k: float(f(values)) if len(values) else None for k, f in
                     (("median", np.median), ("max", np.max), ("mean", np.mean))}  # fmt: skip
    for name in ("ttft", "queue_time", "e2e", "itl"):
        total, n = totals[f"{name}_sum"], totals[f"{name}_count"]
        out[f"{name}_mean_ms"] = 1000 * total / n if n and total is not None else None
    out["first_tokens"] = totals["ttft_count"]
    queries = totals["prefix_queries"]
    out["prefix_hit_rate"] = totals["prefix_hits"] / queries if queries and totals["prefix_hits"] is not None else None
    out |= {name: totals[name] for name in ("preemptions", "generation_tokens", "prompt_tokens", "success", "aborted",
                                            "errors", "rejected")}  # fmt: skip
    steady = Span(*span.steady, span.steady, span.before, span.after)
    out["output_tps"] = rate(frame, kind, "generation_tokens", steady)
    return out


COUNTERS = ("preemptions", "prefix_hits", "prefix_queries", "prompt_tokens", "generation_tokens", "success", "aborted",
            "errors", "rejected", "ttft_sum", "ttft_count", "queue_time_sum", "queue_time_count", "e2e_sum",
            "e2e_count", "itl_sum", "itl_count")  # fmt: skip


def rate(frame: pd.DataFrame, source: str, metric: str, span: Span) -> float | None:
    """Growth per second between the first and the last sample inside; None with fewer than three."""
    one = frame[(frame["source"] == source) & (frame["metric"] == metric) & frame["time"].between(span.start, span.end)]
    if len(one) < 3:
        return None
    return growth(one["value"].to_numpy(dtype=float)) / float(one["time"].max() - one["time"].min())


def gpus_of(samples: Samples, span: Span) -> dict[str, dict[str, Any]]:
    """What each GPU said during a stage, by its short name (gpu0)."""
    frame, out = samples.gpu, {}
    inside = frame[frame["time"].between(span.start, span.end)]
    for source in sorted(inside["source"].unique()):
        if not str(source).startswith("gpu") or source == "gpu":
            continue
        value = {name: gauge(frame, source, name, span) for name in GPU_METRICS}
        out[str(source).partition("|")[0]] = _gpu(value)
    return out


GPU_METRICS = ("util_pct", "mem_used_mib", "mem_total_mib", "power_w", "power_limit_w", "temp_c", "sm_mhz", "throttle",
               "lost")  # fmt: skip


def _gpu(value: dict[str, np.ndarray]) -> dict[str, Any]:
    def of(name: str, f: Any) -> float | None:
        return float(f(value[name])) if len(value[name]) else None

    used, total, power, limit = (
        of(name, np.max) for name in ("mem_used_mib", "mem_total_mib", "power_w", "power_limit_w")
    )
    mask = 0
    for bits in value["throttle"]:
        mask |= int(bits)
    return {
        "util_pct": of("util_pct", np.median), "mem_used_mib": used, "mem_total_mib": total,
        "mem_share": used / total if used is not None and total else None,
        "power_w": of("power_w", np.median), "power_limit_w": limit,
        "power_share": power / limit if power is not None and limit else None,
        "temp_max_c": of("temp_c", np.max), "sm_mhz": of("sm_mhz", np.median), "sm_min_mhz": of("sm_mhz", np.min),
        "throttle": [name for bit, name in REASONS.items() if mask & bit], "lost": bool(len(value["lost"])),
    }  # fmt: skip


def server_of(samples: Samples, kind: str, span: Span) -> dict[str, Any] | None:
    """CPU and memory of the server's own processes, where they run on the master's host."""
    rss, cpu = (gauge(samples.server, kind, name, span) for name in ("rss_mib", "cpu_pct"))
    return (
        {"rss_max_mib": float(rss.max()), "cpu_pct": float(np.median(cpu)) if len(cpu) else None} if len(rss) else None
    )
