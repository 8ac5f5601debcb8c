"""Mixed load judged (method.md 7): each service together against alone, before and after, and its canary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from analysis import proportions
from analysis.frames import Run, Steady
from analysis.stages import NO_TOKENS, _rate_se, met, slo_limits
from tokenswarm.record import CANARY

FLOOR, STRONG, RATE_FLOOR = 1.05, 1.20, 0.95
SOLO_FLOOR = 0.05
RESAMPLES, MAX_CELLS = 1000, 4_000_000
SMALL = 150  # the exact test takes long beyond
LEAST = 20  # requests an arm needs to be compared


def judge(run: Run, parts: list[Steady], slo: dict[str, float]) -> dict[str, Any]:
    """{"services": [...], "refused": reason or ""}; services of the shared card first."""
    plan = [s for s in run.info.get("stages") or [] if not s.get("warmup")]
    mixed = max(plan, key=lambda s: len(s.get("counts") or {}), default=None)
    if mixed is None or len(mixed.get("counts") or {}) < 2:
        return {"services": [], "refused": "no stage loaded several kinds at once"}
    if changed := kv_changed(plan):
        return {"services": [], "refused": changed}
    shared = (run.info.get("options") or {}).get("shared") or []
    kinds = sorted(run.requests["endpoint"].unique(), key=lambda k: (k not in shared, k))
    services = [service(run, parts, plan, mixed, kind, slo) | {"shared_card": kind in shared} for kind in kinds if kind]
    return {"services": services, "refused": "", "together": mixed["stage"], "counts": mixed["counts"]}


def kv_changed(plan: list[dict[str, Any]]) -> str:
    """Why phases cannot be compared: a server's KV cache is not the size it was."""
    sizes: dict[str, dict[int, str]] = {}
    for stage in plan:
        for kind, blocks in (stage.get("gpu_blocks") or {}).items():
            sizes.setdefault(kind, {}).setdefault(blocks, stage["stage"])
    for kind, seen in sizes.items():
        if len(seen) > 1:
            words = ", ".join(f"{blocks} blocks in stage {stage}" for blocks, stage in seen.items())
            return (
                f"the KV cache of {kind} changed between phases ({words}): another server, so this is no interference"
            )
    return ""


def arms(plan: list[dict[str, Any]], mixed: dict[str, Any], kind: str) -> tuple[list[str], list[str]]:
    """Stages (before, after) the mixed one in which the kind is alone; without load of its own, those with no load."""
    wanted = {kind} if kind in (mixed.get("counts") or {}) else set()
    at = plan.index(mixed)
    alone = [set(stage.get("counts") or {}) == wanted for stage in plan]
    return ([s["stage"] for i, s in enumerate(plan) if alone[i] and i < at],
            [s["stage"] for i, s in enumerate(plan) if alone[i] and i > at])  # fmt: skip


def service(run: Run, parts: list[Steady], plan: list[dict[str, Any]], mixed: dict[str, Any], kind: str,
            slo: dict[str, float]) -> dict[str, Any]:  # fmt: skip
    """One service: ratios together/alone with 95 % intervals, and the verdict of the table in method.md 7."""
    before, after = arms(plan, mixed, kind)
    loads = {part.stage: part for part in parts if part.endpoint == kind}
    out: dict[str, Any] = {"kind": kind, "users": (mixed.get("counts") or {}).get(kind, 0), "ratios": [], "drift": ""}
    if kind in (mixed.get("counts") or {}) and mixed["stage"] in loads:
        out |= load_arm(loads, before, after, mixed["stage"], slo)
    canary = run.requests[(run.requests["profile"] == CANARY) & (run.requests["endpoint"] == kind) & run.requests["ok"]]
    first, last, together = (canary[canary["stage"].isin(names)] for names in (before, after, [mixed["stage"]]))
    drifted, ratios = compare(first, last, together, kind, "canary")
    out["ratios"] += ratios
    out["drift"] = out["drift"] or drifted
    out["verdict"] = verdict(out)
    return out


def load_arm(
    loads: dict[str, Steady], before: list[str], after: list[str], mixed: str, slo: dict[str, float]
) -> dict[str, Any]:
    """Latency and throughput ratios of a kind's own load, and whether its SLO verdict fell."""
    pools = [pd.concat([p for n in names if n in loads for p in [loads[n].sample]] or [loads[mixed].sample.iloc[:0]])
             for names in (before, after, [mixed])]  # fmt: skip
    together = loads[mixed]
    first, last, with_others = (pool[pool["ok"]] for pool in pools)
    drifted, ratios = compare(first, last, with_others, together.endpoint, "load")
    alone = [loads[name] for name in (*before, *after) if name in loads]
    if rate := throughput(alone, together):
        ratios.append(rate)
    goals, verdicts = slo_limits(together, slo), []
    if goals:
        for pool in (pd.concat(pools[:2]), pools[2]):
            fair = pool[~pool["client_fault"]]
            verdicts.append(proportions.slo_verdict(int((~met(fair, goals)).sum()), len(fair)))
    return {"ratios": ratios, "drift": drifted, "slo": verdicts}


def compare(
    before: pd.DataFrame, after: pd.DataFrame, mixed: pd.DataFrame, kind: str, who: str
) -> tuple[str, list[dict[str, Any]]]:
    """(why the solo phases disagree, or ""; ratios mixed/solo of P50, P95 and, from 400 requests, P99)."""
    solo = pd.concat([before, after])
    metrics = ["e2e_ms"] if kind in NO_TOKENS else ["ttft_ms", "tpot_ms", "e2e_ms"]
    drifted = ""
    if min(len(before), len(after)) >= LEAST:
        ratio, low, high = ratio_ci(values(before, "e2e_ms"), values(after, "e2e_ms"), 0.5)
        if abs(ratio - 1) > SOLO_FLOOR and not low <= 1 <= high:
            drifted = f"{who}: E2E P50 alone was {ratio:.2f} times [{low:.2f}, {high:.2f}] after of what it was before"
    out = []
    for metric in metrics:
        a, b = values(solo, metric), values(mixed, metric)
        n = min(len(a), len(b))
        quantiles = [q for q, least in ((0.5, LEAST), (0.95, 59), (0.99, 400)) if n >= least]
        for q in quantiles:
            ratio, low, high = ratio_ci(a, b, q)
            out.append({"who": who, "metric": metric, "q": q, "ratio": ratio, "low": low, "high": high,
                        "solo_ms": float(np.quantile(a, q)), "mixed_ms": float(np.quantile(b, q)),
                        "n": [len(a), len(b)],
                        "cliffs_delta": cliffs_delta(a, b), **small_sample(a, b)})  # fmt: skip
    return drifted, out


def values(rows: pd.DataFrame, metric: str) -> np.ndarray:
    return rows.sort_values("start_time")[metric].dropna().to_numpy(dtype=float)


def ratio_ci(solo: np.ndarray, mixed: np.ndarray, q: float, seed: int = 1) -> tuple[float, float, float]:
    """Ratio of the quantile mixed/solo with its 95 % interval by block bootstrap, blocks of n^(1/3) in start order."""
    rng = np.random.default_rng(seed)
    drawn = resampled(mixed, q, rng) / resampled(solo, q, rng)
    ratio = float(np.quantile(mixed, q) / np.quantile(solo, q))
    return ratio, float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


def resampled(x: np.ndarray, q: float, rng: np.random.Generator) -> np.ndarray:
    """The quantile of 1000 series made of random blocks of x."""
    n = len(x)
    block = max(1, round(n ** (1 / 3)))
    count = -(-n // block)
    out = []
    chunk = max(1, MAX_CELLS // n)
    for begin in range(0, RESAMPLES, chunk):
        size = min(chunk, RESAMPLES - begin)
        starts = rng.integers(0, n - block + 1, (size, count))
        index = (starts[:, :, None] + np.arange(block)).reshape(size, -1)[:, :n]
        out.append(np.quantile(x[index], q, axis=1))
    return np.concatenate(out)


def throughput(alone: list[Steady], together: Steady) -> dict[str, Any] | None:
    """Ratio of requests/s with an interval from 10 batch means of each window."""
    rates = [
        (len(p.completed) / p.seconds, _rate_se(p) or 0.0) for p in (*alone, together) if p.seconds and len(p.completed)
    ]
    if len(rates) < 2 or not together.seconds or not len(together.completed):
        return None
    solo = float(np.mean([rate for rate, _ in rates[:-1]]))
    error = np.hypot(rates[-1][1], np.sqrt(sum(se**2 for _, se in rates[:-1])) / len(rates[:-1]))
    ratio = rates[-1][0] / solo
    return {"who": "load", "metric": "rps", "q": None, "ratio": ratio, "low": float(ratio * np.exp(-2.1 * error)),
            "high": float(ratio * np.exp(2.1 * error)), "solo": solo, "mixed": rates[-1][0]}  # fmt: skip


def cliffs_delta(a: np.ndarray, b: np.ndarray) -> float:
    """2 U/(n_a n_b) - 1: share of pairs in which b is larger minus share in which it is smaller."""
    ordered = np.sort(a)
    below, upto = np.searchsorted(ordered, b, "left"), np.searchsorted(ordered, b, "right")
    return float((below + upto).sum() / len(a) / len(b) - 1)


def hodges_lehmann(a: np.ndarray, b: np.ndarray) -> float:
    """Median of all differences b - a."""
    return float(np.median(np.subtract.outer(b, a)))


def mwu_p(a: np.ndarray, b: np.ndarray) -> float:
    """Two-sided p of the exact Mann-Whitney U test (method.md 7)."""
    from scipy.stats import mannwhitneyu  # 0.7 s to import, and only mixed runs need it

    return float(mannwhitneyu(a, b, method="exact").pvalue)


def small_sample(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """For the few requests of a canary: median shift in ms and its exact p, beside the ratios that decide."""
    if max(len(a), len(b)) > SMALL:
        return {}
    return {"shift_ms": hodges_lehmann(a, b), "mwu_p": mwu_p(a, b)}


def sure(r: dict[str, Any], among: int) -> tuple[float, float]:
    """The interval widened so that all `among` of a service's hold together at 95 % (Bonferroni): with some 15 ratios a
    service, one 95 % interval or another lies above 1.05 by chance alone."""
    wider = ndtri(1 - 0.025 / among) / ndtri(0.975)
    return r["ratio"] * (r["low"] / r["ratio"]) ** wider, r["ratio"] * (r["high"] / r["ratio"]) ** wider


def slower(ratios: list[dict[str, Any]]) -> float:
    """How many times slower at least some latency surely is."""
    return max((sure(r, len(ratios))[0] for r in ratios if r["metric"] != "rps"), default=0.0)


def rate_fell(ratios: list[dict[str, Any]]) -> bool:
    return any(sure(r, len(ratios))[1] < RATE_FLOOR for r in ratios if r["metric"] == "rps")


def verdict(found: dict[str, Any]) -> str:
    """strong, interference, none shown, not resolved, drift, or cannot judge."""
    ratios = found["ratios"]
    if not ratios:
        return "cannot judge"
    if found["drift"]:
        return "drift"
    if slower(ratios) > STRONG or found.get("slo") == ["PASS", "FAIL"]:
        return "strong"
    if slower(ratios) > FLOOR or rate_fell(ratios):
        return "interference"
    inside = all(r["low"] >= RATE_FLOOR and r["high"] <= FLOOR for r in ratios)
    return "none shown" if inside else "not resolved"


def worst(found: dict[str, Any]) -> dict[str, Any] | None:
    """The ratio that says most: the latency with the highest lower bound; the rate where no latency decided."""
    latencies = [r for r in found["ratios"] if r["metric"] != "rps"]
    rates = [r for r in found["ratios"] if r["metric"] == "rps"]
    top = max(latencies, key=lambda r: r["low"], default=None)
    by_rate = rate_fell(found["ratios"]) and slower(found["ratios"]) <= FLOOR
    return next(iter(rates), None) if top is None or by_rate else top


def name_of(r: dict[str, Any]) -> str:
    """`TTFT P50 (canary)`."""
    if r["metric"] == "rps":
        return "requests/s"
    return f"{r['metric'].removesuffix('_ms').upper()} P{100 * r['q']:.0f}" + (
        " of the canary" if r["who"] == "canary" else ""
    )


def sentences(found: dict[str, Any]) -> list[str]:
    """One line a service, those of the shared card first."""
    if found["refused"]:
        return [f"Interference: refused, {found['refused']}"]
    out = []
    for s in found["services"]:
        load = f"{s['users']} users" if s["users"] else "canary only"
        card = ", on the shared card" if s["shared_card"] else ""
        out.append(f"{s['kind']} ({load}{card}): {_words(s)}")
    apart = [
        s["kind"] for s in found["services"] if not s["shared_card"] and s["verdict"] in ("interference", "strong")
    ]
    if apart:
        out.append(
            f"{', '.join(apart)}: on a card of its own by SHARED: then the client, the CPU or the network is shared too"
        )
    return out


def _words(s: dict[str, Any]) -> str:
    r = worst(s)
    if r is None:
        return f"cannot judge, fewer than {LEAST} requests in a phase"
    ratio = f"{name_of(r)} together is {r['ratio']:.2f} times alone [{r['low']:.2f}, {r['high']:.2f}]"
    if "solo_ms" in r:
        ratio += f", {r['solo_ms']:.3g} -> {r['mixed_ms']:.3g} ms"
    if s["verdict"] == "drift":
        return f"drift, interference not attributable ({s['drift']}); {ratio}"
    names = {"strong": "STRONG interference", "interference": "interference", "none shown": "none shown"}
    fell = "; its SLO verdict fell from PASS to FAIL" if s.get("slo") == ["PASS", "FAIL"] else ""
    return f"{names.get(s['verdict'], s['verdict'])}, {ratio}{fell}"
