"""Is the measurement itself sound? The client's own load, and whether every record arrived (method.md section 9)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.frames import Run
from analysis.stages import StageResult

CPU_WARN, CPU_INVALID = 70.0, 90.0  # % of one core, per client process
LAG_WARN_MS, LAG_INVALID_MS = 10.0, 50.0


def meter(run: Run, results: list[StageResult]) -> dict[str, Any]:
    """The client's own load: worst CPU and event-loop lag of any worker, judged by method.md section 9."""
    workers = run.info.get("workers") or []
    cpu = _sustained(run.host, "cpu_pct") or _worst(workers, "cpu_max_pct")
    lag = _worst(workers, "lag_p99_ms")
    if lag is None:
        lag = _lag_p99(run.host)
    ttfts = [r.figures["ttft_ms"]["p50"] for r in results if r.figures["ttft_ms"]["p50"]]
    share = lag / min(ttfts) if lag is not None and ttfts else 0.0
    # kernel stamps keep waiting in our event loop out of every duration, so a share of TTFT is then no error of it
    blind = (run.requests["clock"] != "kernel").mean() > 0.05 if len(run.requests) else True
    state = "valid"
    if (cpu or 0) > CPU_WARN or (lag or 0) > LAG_WARN_MS:
        state = "warned"
    if (cpu or 0) > CPU_INVALID or (lag or 0) > LAG_INVALID_MS or (blind and share > 0.10):
        state = "invalid"
    if cpu is None and lag is None:
        state = "unknown"
    told = share if ttfts and blind else None
    return {"state": state, "lag_p99_ms": lag, "cpu_max_pct": cpu, "lag_share_of_ttft": told}


def _sustained(host: pd.DataFrame, metric: str) -> float | None:
    """Highest mean of three samples in a row of any worker: one busy second at the start is no overload."""
    if not len(host):
        return None
    one = host[host["metric"] == metric]
    means = [group["value"].rolling(3, min_periods=1).mean().iloc[min(2, len(group) - 1) :].max()
             for _, group in one.groupby("source")]  # fmt: skip
    return float(max(means)) if means else None


def _lag_p99(host: pd.DataFrame) -> float | None:
    if not len(host):
        return None
    one = host[host["metric"] == "lag_p99_ms"]
    return float(one.groupby("source")["value"].quantile(0.99).max()) if len(one) else None


def _worst(workers: list[dict[str, Any]], key: str) -> float | None:
    values = [w[key] for w in workers if w.get(key) is not None]
    return max(values) if values else None


def missing_records(run: Run) -> tuple[int, int, list[str]]:
    """(missing, expected, sentences): gaps in each worker's running numbers, and rows its goodbye promised."""
    promised = {w.get("worker"): w.get("rows") or 0 for w in run.info.get("workers") or []}
    missing = expected = 0
    words = []
    groups = dict(list(run.requests.dropna(subset=["seq"]).groupby("worker")))
    for worker in sorted(set(promised) | set(groups), key=str):
        seqs = groups[worker]["seq"] if worker in groups else pd.Series([], dtype="Int64")
        most = max(int(seqs.max()) if len(seqs) else 0, promised.get(worker, 0))
        lost, twice = most - seqs.nunique(), len(seqs) - seqs.nunique()
        missing, expected = missing + lost + twice, expected + most
        if lost:
            words.append(f"{lost} of {most} records of worker {worker} are missing")
        if twice:
            words.append(f"{twice} records of worker {worker} are double")
    return missing, expected, words
