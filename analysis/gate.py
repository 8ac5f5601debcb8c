"""The baseline's gate (method.md 3): one request at a time, the median's upper bound under the SLO."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis import stats
from analysis.frames import Run, Steady
from analysis.stages import NO_TOKENS

PARTS = {"headers": "until the answer's head (network, admission)",
         "first_token": "from the head to the first token (queue, prefill)",
         "decode": "from the first to the last token"}  # fmt: skip


def judge(run: Run, parts: list[Steady], slo: dict[str, float]) -> dict[str, Any]:
    """{"stages": [...], "passed": bool}: every stage against its goals; an unfinished one is not passed."""
    stages = [stage(part, slo) for part in parts]
    planned = [s["stage"] for s in (run.info.get("plan") or {}).get("stages", []) if not s.get("warmup")]
    absent = [name for name in planned if name not in {s["stage"] for s in stages}]
    return {"stages": stages, "not_run": absent,
            "passed": bool(stages) and not absent and all(s["passed"] for s in stages)}  # fmt: skip


def stage(part: Steady, slo: dict[str, float]) -> dict[str, Any]:
    """One stage: medians with interval, verdict for each goal, and the median of each part of the time."""
    ok = part.rows[part.rows["ok"]]
    goals = {} if part.endpoint in NO_TOKENS else {name: slo[name] for name in ("ttft_ms", "tpot_ms")}
    checks = [check(name, ok[name].dropna().to_numpy(), goal) for name, goal in goals.items()]
    checks = [c for c in checks if c["n"] or c["metric"] == "ttft_ms"]  # one-token answers have no TPOT to judge
    failed = int((~part.rows["ok"] & ~part.rows["cut"]).sum())
    return {
        "stage": part.stage, "endpoint": part.endpoint, "requests": len(part.rows), "failures": failed,
        "checks": checks, "where_ms": where(ok),
        "passed": part.finished and not failed and len(ok) > 0 and all(c["passed"] for c in checks),
    }  # fmt: skip


def check(metric: str, values: np.ndarray, goal: float) -> dict[str, Any]:
    """The median against a goal by the upper end of its 95 % interval; too few values never pass.

    Ranks of n independent values: one request at a time leaves the next nothing, and n is too small to estimate r1."""
    ordered = np.sort(values)
    ranks = stats.ci_ranks(len(values), 0.5) if len(values) else (None, None)
    low, high = (None if rank is None else float(ordered[rank - 1]) for rank in ranks)
    median = float(np.median(values)) if len(values) else None
    return {"metric": metric, "n": len(values), "median": median, "low": low, "high": high, "goal": goal,
            "passed": high is not None and high < goal}  # fmt: skip


def where(ok: Any) -> dict[str, float | None]:
    """Median ms of a request's parts: headers, first token after them, decode; unknown parts are None."""
    first = ok["ttft_ms"].fillna(ok["e2e_ms"])
    times = {
        "headers": ok["headers_ms"],
        "first_token": first - ok["headers_ms"],
        "decode": ok["e2e_ms"] - ok["ttft_ms"],
    }
    return {name: float(v.median()) if v.notna().any() else None for name, v in times.items()}


def sentences(found: dict[str, Any]) -> list[str]:
    """Each stage in a line; a failing one also says where its time went."""
    out = [line for s in found["stages"] for line in _stage(s)]
    return out + [f"{name}: not run" for name in found["not_run"]]


def _stage(s: dict[str, Any]) -> list[str]:
    words = [_check(c) for c in s["checks"]] or [f"E2E goal: none; {s['requests']} requests"]
    if s["failures"]:
        words.append(f"{s['failures']} of {s['requests']} requests failed")
    out = [f"{s['stage']}: {'PASS' if s['passed'] else 'FAIL'}: {'; '.join(words)}"]
    if not s["passed"]:
        spent = {name: ms for name, ms in s["where_ms"].items() if ms is not None}
        total = sum(spent.values())
        if total > 0:
            shares = ", ".join(f"{ms:.3g} ms ({ms / total:.0%}) {PARTS[name]}" for name, ms in spent.items())
            out.append(f"{s['stage']}: where the time went (medians): {shares}")
    return out


def _check(c: dict[str, Any]) -> str:
    name = c["metric"].removesuffix("_ms").upper()
    if c["median"] is None:
        return f"{name} not measured, goal {c['goal']:g} ms"
    span = (
        f"[{c['low']:.3g}, {c['high']:.3g}]"
        if c["high"] is not None and c["low"] is not None
        else f"(n={c['n']}, too few)"
    )
    return f"{name} median {c['median']:.3g} ms {span}, goal {c['goal']:g}"
