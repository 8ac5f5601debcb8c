"""summary.json of a run: one plain dict that the text, the report and the plots are made from."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from analysis import causes, cautions, checks, curves, limits, phases, proportions, verdicts, words
from analysis.frames import Run, Steady, plain, stages
from analysis.stages import StageResult, analyse, client_idle, gaps

SCHEMA = 1
SLO = {"ttft_ms": 500.0, "tpot_ms": 50.0}
ENOUGH = 100  # requests from which Little's law may condemn a stage: in fewer, those across the window's edges weigh
LOST_INVALID = 0.001  # share of lost records above which the run is invalid


def build(run: Run) -> dict[str, Any]:
    """Everything a report says, from the run folder alone; the same folder always gives the same summary."""
    info = run.info
    slo = {**SLO, **{k: v for k, v in (info.get("slo") or {}).items() if v}}
    parts = stages(run)
    names = list(dict.fromkeys(part.endpoint for part in parts))
    idle = {name: client_idle([part for part in parts if part.endpoint == name]) for name in names}
    results = [analyse(part, slo, idle[part.endpoint]) for part in parts]
    for result, part in zip(results, parts, strict=True):
        result.figures["itl_ms"] = gaps(run.itl, part.stage, part.endpoint)
    _set_aside(info, results)
    measured = checks.meter(run, results)
    state, reasons = _state(run, measured, results)
    endpoints = {}
    for name in names:
        mine = [(p, r) for p, r in zip(parts, results, strict=True) if p.endpoint == name]
        endpoints[name] = _endpoint(run, name, [p for p, _ in mine], [r for _, r in mine], idle[name])
    inside = causes.attach(run, parts, endpoints, measured)
    staged = run.requests[run.requests["stage"] != ""]
    shown = [stage for endpoint in endpoints.values() for stage in endpoint["stages"]]
    phase = info.get("phase") or _phase(run)
    found = phases.attach(run, parts, phase, slo)
    if late := found.get(phase, {}).get("reasons"):
        state, reasons = "invalid", [*reasons, *late]
    out = {
        "schema": SCHEMA, "run": info.get("run") or run.path.name, "phase": phase,
        "date": _date(run), "simulated": bool(info.get("simulated")), "simulator": info.get("simulator") or "",
        "state": state, "reasons": reasons, "meter": measured,
        "requests": sum(s["requests"] for s in shown), "failures": sum(s["failures"] for s in shown),
        "outside_stages": len(run.requests) - len(staged), "slo": slo, "seed": info.get("seed"),
        "endpoints": endpoints, "warnings": [*cautions.all_of(run, parts, results, measured), *inside],
        "provenance": {key: info.get(key) for key in ("versions", "git", "profiles", "options", "stream", "nonce")},
        **found,
    }  # fmt: skip
    return plain(out | {"headlines": headlines(out)})


def _set_aside(info: dict[str, Any], results: list[StageResult]) -> None:
    """Stages that the run itself marked invalid (load missing, client overloaded) decide no limit but the hard one."""
    spoiled = {s.get("stage"): s.get("reasons") for s in info.get("stages") or [] if s.get("valid") is False}
    for result in results:
        if (reasons := spoiled.get(result.figures["stage"])) is not None:
            result.figures["valid"], result.step, result.bad = False, None, None
            result.figures["unusable"] = result.figures["unusable"] or "; ".join(reasons) or "marked invalid by the run"


def headlines(summary: dict[str, Any]) -> list[str]:
    """The verdicts in words, for an index of several runs: state if it is not complete, the phase, the limits."""
    out = [f"{summary['state']}: {'; '.join(summary['reasons'])}"] if summary["state"] != "complete" else []
    out += phases.sentences(summary)
    limits = {name: e for name, e in summary["endpoints"].items() if "limits" in e}
    return out + [f"{name}: {line}" for name, e in limits.items() for line in words.sentences(e, summary["slo"])]


def _state(run: Run, measured: dict[str, Any], results: list[StageResult]) -> tuple[str, list[str]]:
    """complete, incomplete or invalid, with every reason in a plain sentence."""
    asked = str(run.info.get("state", ""))
    reasons = [str(reason) for reason in run.info.get("reasons") or []]
    state = asked if asked in ("complete", "invalid") else "incomplete"
    if asked == "running":
        reasons.append("the run was killed before its end")
    if asked == "interrupted":
        reasons.append("the run was interrupted")
    missing, expected, words = checks.missing_records(run)
    if missing > LOST_INVALID * expected:
        state, reasons = "invalid", [*reasons, *words]
    if measured["state"] == "invalid":
        state = "invalid"
        reasons.append("the load generator was overloaded: its numbers say nothing about the server")
    if asked == "complete" and _never_loaded([r.figures for r in results if r.figures["little"]]):
        state = "invalid"
        reasons.append("no stage had the requests in flight that it asked for (Little's law): see the stages")
    if not len(run.requests):
        state = "invalid"
        reasons.append(run.notes[-1] if run.notes else "no data")
    return state, list(dict.fromkeys(reasons))


def _never_loaded(stages: list[dict[str, Any]]) -> bool:
    """No stage passes Little's law, and one of them surely fails it: finished, with enough requests, answered.
    Refusals within a millisecond leave the users with little in flight, and that is the server's doing."""
    failed = [stage for stage in stages if stage["little"]["state"] == "invalid"]
    enough = [s for s in failed if s["finished"] and s["requests"] >= max(ENOUGH, 10 * s["users"])]
    sure = [s for s in enough if not s["broken"]]
    return bool(sure) and len(failed) == len(stages)


def _endpoint(run: Run, name: str, parts: list[Steady], results: list[StageResult], idle: float) -> dict[str, Any]:
    target = (run.info.get("targets") or {}).get(name) or {}
    model = target.get("model") or next(iter(parts[0].rows["model"]), "")
    out = {
        "model": model, "server": target.get("server") or "", "url": target.get("url") or "",
        "max_model_len": target.get("max_model_len"), "client_idle_ms": 1000 * idle,
        "stages": [r.figures for r in results],
    }  # fmt: skip
    if name == "guard":
        out["verdicts"] = verdicts.guard(run, name)
    if target.get("image_tokens"):
        out["image_tokens"] = target["image_tokens"]
    if (run.info.get("phase") or _phase(run)) == "ramp":
        out["limits"] = ramp(parts, results, run.info.get("seed"), idle)
        out["usl"] = _usl(results)
    return out


def ramp(parts: list[Steady], results: list[StageResult], seed: int | None, idle: float = 0.0) -> dict[str, Any]:
    """All limits of one endpoint's ramp; steps after a broken one decide nothing but the hard limit."""
    out = limits.ramp_limits(usable(results), seed if seed is not None else 1, idle)
    totals: dict[int, list[int]] = {}
    for part in parts:  # a second visit to a user count adds to its first
        fair = part.rows[~part.rows["client_fault"]]
        seen = totals.setdefault(part.users, [0, 0])
        seen[0], seen[1] = seen[0] + int((~fair["ok"]).sum()), seen[1] + len(fair)
    out["hard_limit"] = proportions.hard_limit(
        list(totals), [k for k, _ in totals.values()], [n for _, n in totals.values()]
    )
    fit = [r for r in results if not r.figures["unusable"] or r.figures["broken"]]  # a broken step is a true FAIL
    judged = {r.figures["users"]: r for r in reversed(fit) if r.bad is not None and r.judged}
    if judged:
        bad, n = [r.bad or 0 for r in judged.values()], [r.judged for r in judged.values()]
        out["slo_capacity"] = proportions.slo_capacity(list(judged), bad, n)
    else:
        out["slo_capacity"] = {"users": None, "first_fail": None, "state": "insufficient", "reason": "no SLO applies"}
    return out


def usable(results: list[StageResult]) -> list[limits.Step]:
    """Steps that may decide saturation, knee and queue onset: up to the first broken stage."""
    kept = []
    for result in results:
        if result.figures["broken"]:
            break
        if result.step is not None:
            kept.append(result.step)
    return kept


def _usl(results: list[StageResult]) -> dict[str, Any]:
    steps = limits.first_visits(usable(results))
    users, rate = np.array([s.users for s in steps], dtype=float), np.array([s.rate for s in steps])
    knee = curves.kneedle(users, rate) if len(steps) >= 3 else None
    return curves.describe_usl(users, rate) | {"kneedle_users": knee}


def _phase(run: Run) -> str:
    phases = run.requests["phase"]
    return str(phases.iloc[0]) if len(phases) else run.path.name.rpartition("-")[2]


def _date(run: Run) -> str:
    """Start of the run in UTC; from the first request if run.json does not say."""
    started = run.info.get("started")
    if started is None and len(run.requests):
        started = run.requests["start_time"].min()
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started)) if started is not None else "date unknown"
