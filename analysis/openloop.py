"""A Poisson run judged (method.md 4): latency from the due time, were the sends on time, did the server keep up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from analysis import stats
from analysis.frames import Run, Steady
from tokenswarm import arrivals

LATE_MS, LATE_SHARE = 10.0, 0.02
DISPERSION = (0.9, 1.1)
SAMPLES = 60


def judge(run: Run, parts: list[Steady]) -> dict[str, Any]:
    """{"stages": [...], "reasons": why the run is invalid}."""
    known = {s.get("stage"): s for s in run.info.get("stages") or []}
    stages = [stage(part, known.get(part.stage, {})) for part in parts]
    return {"stages": stages, "reasons": [f"stage {s['stage']}: {reason}" for s in stages for reason in s["reasons"]]}


def stage(part: Steady, told: dict[str, Any]) -> dict[str, Any]:
    """One rate: latencies from the due time, late sends, dispersion of the arrivals, growth of the backlog."""
    rows = part.rows
    # opening a connection is waited for by the user, but it is the network's and the server's time, not our lateness
    late = (rows["scheduled_ms"] - rows["connect_ms"].fillna(0.0)).dropna()
    ok = rows[rows["ok"]]
    due_ttft, due_e2e = (ok["scheduled_ms"].fillna(0.0) + ok[name] for name in ("ttft_ms", "e2e_ms"))
    rate, hold = float(told.get("rate") or 0.0), float(told.get("hold_s") or 0.0)
    out: dict[str, Any] = {
        "stage": part.stage, "endpoint": part.endpoint, "rate": rate, "requests": len(rows),
        "failures": int((~rows["ok"] & ~rows["cut"]).sum()), "end_reason": part.end_reason,
        "late_p99_ms": float(late.quantile(0.99)) if len(late) else None,
        "ttft_from_due_ms": stats.describe(due_ttft.to_numpy()), "e2e_from_due_ms": stats.describe(due_e2e.to_numpy()),
    }  # fmt: skip
    out["peak_in_flight"] = int(in_flight(rows, rows["t"].to_numpy()).max()) if len(rows) else 0
    out["oversaturated"] = part.end_reason == "oversaturated" or grows(rows, hold)
    out["dispersion"], out["dispersion_ok"] = dispersion(rows, rate, hold)
    out["late_limit_ms"] = max(
        LATE_MS, LATE_SHARE * (out["ttft_from_due_ms"]["p50"] or out["e2e_from_due_ms"]["p50"] or 0.0)
    )
    return out | {"reasons": list(_reasons(out))}


def _reasons(out: dict[str, Any]) -> list[str]:
    found = []
    if out["late_p99_ms"] is None:
        found.append("no request says how late it was sent")
    elif out["late_p99_ms"] > out["late_limit_ms"]:
        found.append(
            f"requests were sent late (P99 {out['late_p99_ms']:.1f} ms, allowed {out['late_limit_ms']:.1f}):"
            " the client was too slow"
        )
    if out["dispersion_ok"] is False:
        found.append(f"the arrivals were no Poisson process (index of dispersion {out['dispersion']:.2f})")
    return found


def dispersion(rows: pd.DataFrame, rate: float, hold: float) -> tuple[float | None, bool | None]:
    """(index of dispersion of the due times of all workers, whether it is that of a Poisson process).

    0.9 to 1.1, or inside the 99.9 % interval of a true Poisson process where a stage is too short for that: a seed is
    fixed, so a false alarm would come again with every repeat."""
    due = (rows["t"] - rows["scheduled_ms"] / 1000).dropna().to_numpy()
    if len(due) < 20 or not rate or not hold:
        return None, None
    at = due - due.min()
    seconds = min(hold, float(at.max()) + 1 / rate)
    index, bins = arrivals.dispersion(at.tolist(), rate, seconds), max(2, round(seconds * rate))
    low, high = (special.chdtri(bins - 1, p) / (bins - 1) for p in (0.9995, 0.0005))
    return index, bool(min(low, DISPERSION[0]) <= index <= max(high, DISPERSION[1]))


def in_flight(rows: pd.DataFrame, at: np.ndarray) -> np.ndarray:
    """How many requests were under way at each time."""
    start, end = np.sort(rows["t"].to_numpy()), np.sort(rows["t_end"].dropna().to_numpy())
    return np.searchsorted(start, at, "right") - np.searchsorted(end, at, "right")


def grows(rows: pd.DataFrame, hold: float) -> bool:
    """Whether requests in flight and TTFT both grew for sure while requests still arrived."""
    last = float(rows["t"].max()) if len(rows) else 0.0
    if last <= 0:
        return False
    edges = np.linspace(0, last, SAMPLES + 1)
    first = (
        (rows["scheduled_ms"].fillna(0.0) + rows["ttft_ms"].fillna(rows["e2e_ms"]))
        .groupby(np.digitize(rows["t"], edges))
        .median()
    )
    middle = (edges[1:] + edges[:-1]) / 2
    samples = [
        (float(middle[i - 1]), float(n), float(first[i]))
        for i, n in enumerate(in_flight(rows, middle), 1)
        if i in first.index
    ]
    return arrivals.oversaturated(samples, min(arrivals.MIN_SECONDS, hold / 3))


def sentences(found: dict[str, Any]) -> list[str]:
    """A line a rate."""
    return [_words(s) for s in found["stages"]]


def _words(s: dict[str, Any]) -> str:
    latency = s["ttft_from_due_ms"] if s["ttft_from_due_ms"]["n"] else s["e2e_from_due_ms"]
    name = "TTFT" if s["ttft_from_due_ms"]["n"] else "E2E"
    figures = ", ".join(f"{p.upper()} {latency[p]:.3g}" for p in ("p50", "p95", "p99") if latency[p] is not None)
    out = f"{s['rate']:.3g} arrivals/s ({s['stage']}): {name} from the due time {figures or 'n/a'} ms, "
    out += f"up to {s['peak_in_flight']} in flight"
    if s["late_p99_ms"] is not None and s["dispersion"] is not None:
        out += f" (sent late by {s['late_p99_ms']:.1f} ms at P99; index of dispersion {s['dispersion']:.2f})"
    if s["oversaturated"]:
        out += "; OVERSATURATED: the queue grew as long as requests came, so these latencies have no limit"
    return out
