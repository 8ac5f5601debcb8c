"""One (stage, endpoint) in figures: rates from the steady window, latencies of successes after the first wave."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import stats
from analysis.frames import Steady
from analysis.limits import Step
from tokenswarm import histogram

LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
NO_TOKENS = ("embedding", "rerank")
BATCHES = 10
MAX_IDLE_S = 0.010
USABLE_SUCCESS = 0.90  # below this a step is broken: fail-fast answers look like speed


@dataclass
class StageResult:
    """Figures for summary.json, and what the limits need: the step, and bad of judged requests for the SLO."""

    figures: dict[str, Any]
    step: Step | None
    bad: int | None
    judged: int


def slo_limits(part: Steady, slo: dict[str, float]) -> dict[str, float] | None:
    """The SLO that applies: TTFT and TPOT where tokens stream, E2E if one was set, None if nothing can be judged."""
    ok = part.rows[part.rows["ok"]]
    if part.endpoint not in NO_TOKENS and (not len(ok) or ok["ttft_ms"].notna().any()):
        return {"ttft_ms": slo.get("ttft_ms", np.inf), "tpot_ms": slo.get("tpot_ms", np.inf)}
    return {"e2e_ms": slo["e2e_ms"]} if slo.get("e2e_ms") else None


def met(rows: pd.DataFrame, limits: dict[str, float]) -> np.ndarray:
    """Which attempts met the SLO; a failure never did."""
    ok = rows["ok"].to_numpy(dtype=bool)
    if "e2e_ms" in limits:
        return ok & (rows["e2e_ms"].to_numpy() <= limits["e2e_ms"])
    return stats.good(ok, rows["ttft_ms"].to_numpy(), rows["tpot_ms"].to_numpy(), limits["ttft_ms"], limits["tpot_ms"])


def client_idle(parts: list[Steady]) -> float:
    """Z: seconds a user spends between two requests (end of stream, record, next prompt), C/X - R at the lowest step.

    The client's own time matters for answers of some 20 ms. More than 10 ms, and what opening connections took, is no
    overhead but an idle client."""
    part = min((p for p in parts if p.users), key=lambda p: p.users, default=None)
    if part is None or part.seconds is None or not len(part.completed):
        return 0.0
    idle = part.users * part.seconds / len(part.completed) - part.completed["e2e_ms"].mean() / 1000
    connecting = part.completed["connect_ms"].fillna(0.0).mean() / 1000
    return float(min(max(idle, 0.0), MAX_IDLE_S + connecting))


def analyse(part: Steady, slo: dict[str, float], idle: float = 0.0) -> StageResult:
    """All figures of one stage; `idle` is its endpoint's client_idle."""
    limits = slo_limits(part, slo)
    out: dict[str, Any] = {"stage": part.stage, "users": part.users} | _counts(part) | _rates(part, limits)
    sample = part.sample[part.sample["ok"]]
    out |= {name: stats.describe(sample[name].to_numpy()) for name in LATENCIES}
    out["first_wave"] = _first_wave(part)
    out["little"] = _little(part, idle)
    fair = part.rows[~part.rows["client_fault"]]
    out["broken"] = bool(len(fair) and fair["ok"].mean() < USABLE_SUCCESS)
    out["unusable"] = _unusable(part, out)
    out["valid"] = part.window is not None and (out["little"] or {}).get("state") != "invalid"
    judged = part.sample[~part.sample["client_fault"]]
    good = int(met(judged, limits).sum()) if limits else 0
    out["goodput_share"] = good / len(judged) if limits and len(judged) else None
    out |= _failure_aware(sample, int((~judged["ok"]).sum()))
    step = None if out["unusable"] else _step(part, sample, out["rps"])
    return StageResult(out, step, len(judged) - good if limits else None, len(judged))


def gaps(itl: pd.DataFrame, stage: str, endpoint: str) -> dict[str, Any]:
    """ITL of a stage in ms: quantiles of all gaps between its token chunks (within 1 %), from the counts of itl.csv."""
    mine = itl[(itl["stage"] == stage) & (itl["endpoint"] == endpoint)] if len(itl) else itl
    counts: Counter[int] = Counter()
    for index, count in zip(mine.get("bucket", ()), mine.get("count", ()), strict=True):
        counts[int(index)] += int(count)
    n = counts.total()
    values = {k: histogram.quantile(counts, q) if n >= stats.min_n(q)[0] else None for k, q in stats.QUANTILES.items()}
    return {"n": n, **values}


def _counts(part: Steady) -> dict[str, Any]:
    rows = part.rows
    failed = ~rows["ok"] & ~rows["cut"]
    words = rows.loc[failed, "error"].replace("", "impossible_times").value_counts().sort_index()
    return {
        "requests": len(rows),
        "failures": int(failed.sum()),
        "client_faults": int((rows["client_fault"] & ~rows["cut"]).sum()),
        "cut": int(rows["cut"].sum()),
        "errors": {str(word): int(count) for word, count in words.items()},
        "finished": part.finished,
        "end_reason": part.end_reason,
    }


def _rates(part: Steady, limits: dict[str, float] | None) -> dict[str, Any]:
    """Successes per second of the steady window: requests, tokens, items, and requests within the SLO."""
    done = part.completed
    ok = done[done["ok"]]
    seconds = part.seconds

    def rate(total: float | None) -> float | None:
        return None if total is None or seconds is None else float(total) / seconds

    def total(name: str) -> float | None:
        return float(ok[name].sum()) if ok[name].notna().any() else None

    sample = part.sample[part.sample["ok"]]
    cached, sent = sample["cached_tokens"].sum(), sample.loc[sample["cached_tokens"].notna(), "input_tokens"].sum()
    return {
        "window_s": seconds,
        "rps": rate(len(ok)),
        "rps_se": _rate_se(part),
        "input_tps": rate(total("input_tokens")),
        "output_tps": rate(total("output_tokens")),
        "items_ps": rate(total("items")),
        "goodput_rps": rate(met(done, limits).sum()) if limits else None,
        "input_tokens_mean": _mean(sample["input_tokens"]),
        "output_tokens_mean": _mean(sample["output_tokens"]),
        "cached_share": float(cached / sent) if sent > 0 else None,
        "outcomes": {str(k) or "none": float(v) for k, v in sample["outcome"].value_counts(normalize=True).items()},
    }


def _mean(values: pd.Series) -> float | None:
    return float(values.mean()) if values.notna().any() else None


def _rate_se(part: Steady) -> float | None:
    """Relative standard error of the rate from 10 batch means of completions in the window."""
    done = part.completed
    if part.window is None or not len(done):
        return None
    counts = np.histogram(done["t_end"], bins=BATCHES, range=part.window)[0]
    return float(counts.std(ddof=1) / np.sqrt(BATCHES) / counts.mean())


def _first_wave(part: Steady) -> dict[str, Any]:
    """TTFT of the first C requests, kept apart: P50 and maximum."""
    first = part.rows.iloc[: part.users]
    values = first.loc[first["ok"], "ttft_ms"].dropna()
    return {"n": len(values), "ttft_p50_ms": values.median() if len(values) else None,
            "ttft_max_ms": values.max() if len(values) else None}  # fmt: skip


def _little(part: Steady, idle: float) -> dict[str, Any] | None:
    done = part.completed
    if part.window is None or part.seconds is None or not len(done) or not part.users:
        return None
    # a queue that still builds up makes the ones that end shorter than the ones that start: take both
    begun = part.rows[part.rows["t"].between(*part.window)]
    mean = (done["e2e_ms"].mean() + begun["e2e_ms"].mean()) / 2000
    n_eff = stats.in_flight(part.rows["t"].to_numpy(), part.rows["t_end"].to_numpy(), part.window)
    out = stats.little(part.users, len(done) / part.seconds, mean, n_eff, idle)
    # in a stage of a few requests a user, those across the window's edges weigh too much to prove lost records
    if len(done) < 10 * part.users and abs(out["n_eff_over_users"] - 1) <= 0.10 and out["state"] == "invalid":
        out["state"] = "warned"
    return out


def _failure_aware(sample: pd.DataFrame, failures: int) -> dict[str, Any]:
    """E2E percentiles in which a failure counts as infinitely slow (null = infinite), where any failed."""
    if not failures:
        return {}
    values, n = sample["e2e_ms"].to_numpy(), len(sample) + failures
    supported = {name: q for name, q in stats.QUANTILES.items() if n >= stats.min_n(q)[0]}
    return {"e2e_with_failures_ms": {name: stats.with_failures(values, failures, q) for name, q in supported.items()}}


def _unusable(part: Steady, out: dict[str, Any]) -> str:
    """Why the stage takes no part in saturation, knee and queue onset; blank if it does."""
    fair = out["requests"] - out["cut"] - out["client_faults"]
    ok = out["requests"] - out["cut"] - out["failures"]
    if not part.finished:
        return "stage was not finished"
    if out["client_faults"] > 0.1 * (out["requests"] - out["cut"]):
        return f"{out['client_faults']} requests failed on the client's side"
    if out["broken"]:
        return f"only {ok / fair:.0%} of the requests succeeded"
    if part.window is None or not out["rps"]:
        return "too few requests for a steady window"
    if out["little"] and out["little"]["state"] == "invalid":
        return f"{out['little']['n_eff']:.3g} requests in flight instead of {part.users} (Little's law)"
    return ""


def _step(part: Steady, sample: pd.DataFrame, rate: float) -> Step:
    tpots = sample["tpot_ms"].dropna()
    if len(tpots) < 0.5 * len(sample):  # mostly one-token answers: the rest is no picture of decoding
        tpots = tpots.iloc[:0]
    se = _rate_se(part) or 0.0
    return Step(part.users, rate, se, sample["ttft_ms"].dropna().to_numpy(), tpots.to_numpy())
