"""A soak judged (method.md 6): drift, level shifts, failures, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis import drift, resources
from analysis.frames import Run, Steady
from analysis.proportions import clopper_pearson

SERIES = {  # key -> (name, unit, +1 if more is worse)
    "ttft_p50": ("TTFT P50", "ms", 1), "ttft_p95": ("TTFT P95", "ms", 1), "tpot_p50": ("TPOT P50", "ms", 1),
    "e2e_p50": ("E2E P50", "ms", 1), "output_tps": ("output tokens", "tokens/s", -1),
    "rps": ("requests", "requests/s", -1),
}  # fmt: skip
WINDOW_S, LEAST_IN_WINDOW, MIN_WINDOWS, AROUND_S = 30.0, 20, 10, 90.0
SURE_WINDOWS, FAILING = 50, 0.01
SHIFT_WINDOWS = 20  # with fewer the noise is not known well enough to tell a level shift from it


def judge(run: Run, parts: list[Steady]) -> dict[str, Any]:
    """{"stages": [...], "memory": [...], "passed": bool} of a soak. Not passed: drift, a leak, clustered errors, or
    surely more than 1 % failures (95 % Clopper-Pearson). What could not be judged is said, and fails nothing."""
    seen = resources.load(run.path, [])
    stages = [stage(part, seen.gpu) for part in parts]
    memory = [m for part in parts for m in memory_of(run, part, seen)]
    series = [s for stage in stages for s in stage["drift"]]
    bad = [s for s in series if s["verdict"] == "FAIL" or any(SERIES[s["key"]][2] * x["jump"] > 0 for x in s["shifts"])]
    leaks = [m for m in memory if m["verdict"] == "leak"]
    clustered = [s for s in stages if s["errors"]["verdict"] == "clustered"]
    failing = [s for s in stages if s["errors"]["requests"] and failing_surely(s["errors"])]
    return {"stages": stages, "memory": memory, "passed": bool(stages) and not (bad or leaks or clustered or failing)}


def failing_surely(errors: dict[str, Any]) -> bool:
    """More than 1 % of the requests fail, with 95 % confidence: the SLO's own goal (method section 2.8)."""
    return clopper_pearson(errors["failures"], errors["requests"])[0] > FAILING


def windows(part: Steady) -> tuple[pd.DataFrame, float]:
    """(one row a window: t = its middle in s and the series; window length). First 10 % left out, only full windows."""
    rows = part.rows[~part.rows["cut"]]
    length = float(rows["t"].max()) if len(rows) else 0.0
    width = WINDOW_S if length >= WINDOW_S * MIN_WINDOWS * 1.5 else max(length / 30, 0.5)
    while width and len(rows) / (length / width) < LEAST_IN_WINDOW and width < length:
        width *= 2
    first = 0.1 * length
    count = int((length - first) // width) if width else 0
    out = [
        window(rows[(rows["t"] >= first + i * width) & (rows["t"] < first + (i + 1) * width)], width)
        for i in range(count)
    ]
    for i, row in enumerate(out):
        row["t"] = first + (i + 0.5) * width
    return pd.DataFrame(out), width


def window(rows: pd.DataFrame, width: float) -> dict[str, Any]:
    """The series of one window of rows by start time; NaN where nothing was seen."""
    ok = rows[rows["ok"]]

    def q(name: str, share: float) -> float:
        values = ok[name].dropna()
        return float(values.quantile(share)) if len(values) else np.nan

    tokens = float(ok["output_tokens"].sum()) / width if ok["output_tokens"].notna().any() else np.nan
    return {"ttft_p50": q("ttft_ms", 0.5), "ttft_p95": q("ttft_ms", 0.95), "tpot_p50": q("tpot_ms", 0.5),
            "e2e_p50": q("e2e_ms", 0.5), "output_tps": tokens, "rps": len(ok) / width,
            "failures": int((~rows["ok"]).sum())}  # fmt: skip


def stage(part: Steady, gpu: pd.DataFrame) -> dict[str, Any]:
    """One (stage, endpoint) of a soak."""
    frame, width = windows(part)
    found = [series(frame, key, width) for key in SERIES if key in frame and frame[key].notna().all()]
    first = float(part.rows["start_time"].min())
    bad = part.rows.loc[~part.rows["ok"] & ~part.rows["cut"], "t"]
    for shift in (shift for one in found for shift in one["shifts"]):
        shift["beside"] = beside(gpu, first + shift["at_s"])
        if near := int(bad.between(shift["at_s"] - width, shift["at_s"] + width).sum()):
            shift["beside"].append(f"{near} failures")
    return {
        "stage": part.stage, "endpoint": part.endpoint, "users": part.users, "window_s": width, "windows": len(frame),
        "drift": found, "errors": errors(part),
        "series": {key: frame[key].tolist() for key in ("t", *(s["key"] for s in found))} if len(frame) else {},
    }  # fmt: skip


def series(frame: pd.DataFrame, key: str, width: float) -> dict[str, Any]:
    """Drift verdict and level shifts of one series; effect > 0 is a rise."""
    name, unit, worse = SERIES[key]
    y = frame[key].to_numpy(dtype=float)
    if len(y) < MIN_WINDOWS:
        return {"key": key, "name": name, "unit": unit, "verdict": "cannot judge", "windows": len(y), "shifts": []}
    found = drift.mk_ess(y)
    jumps = drift.level_shifts(y) if len(y) >= SHIFT_WINDOWS else []
    shifts = [{"at_s": float(frame["t"].iloc[i] - width / 2), "jump": jump} for i, jump in jumps]
    median = float(np.median(y))
    return {
        "key": key, "name": name, "unit": unit, "verdict": drift.drift_verdict(found["p"], worse * found["effect"]),
        "windows": len(y), "effect": found["effect"], "p": found["p"], "median": median,
        "per_min": found["slope"] * 60 / width,
        "pct_per_hour": 100 * found["slope"] * 3600 / width / median if median else 0.0,
        "shifts": shifts,
    }  # fmt: skip


def beside(gpu: pd.DataFrame, at: float) -> list[str]:
    """What GPUs did within 90 s of a level shift: clock by 5 % or more, temperature by 5 degrees, throttling."""
    out = []
    for source, rows in gpu[gpu["time"].between(at - AROUND_S, at + AROUND_S)].groupby("source", sort=True):
        name = str(source).partition("|")[0]
        for metric, words, least in (
            ("sm_mhz", "clock", 0.05),
            ("temp_c", "temperature", 5.0),
            ("throttle", "throttle bits", 1.0),
        ):
            one = rows[rows["metric"] == metric]
            before, after = (one.loc[side, "value"].median() for side in (one["time"] < at, one["time"] >= at))
            if pd.notna(before) and pd.notna(after) and abs(after - before) >= (least * before if least < 1 else least):
                out.append(f"{name} {words} {before:.0f} -> {after:.0f}")
    return out


def errors(part: Steady) -> dict[str, Any]:
    """Failures per minute (per 1/20 of a run under 10 minutes): random or clustered, and where the thickest lie."""
    rows = part.rows[~part.rows["cut"] & ~part.rows["client_fault"]]
    length = float(rows["t"].max()) if len(rows) else 0.0
    width = 60.0 if length >= 600 else max(length / 20, 0.1)
    bins = max(1, int(length // width))
    bad = rows.loc[~rows["ok"], "t"].to_numpy()
    counts = np.histogram(bad, bins=bins, range=(0, bins * width))[0]
    out = drift.error_pattern(counts) | {"failures": len(bad), "requests": len(rows), "bin_s": width}
    if out["verdict"] == "clustered":
        out["densest_at_s"] = float(np.argmax(counts) * width)
        out["densest"] = int(counts.max())
    outcomes = (~rows.sort_values("t")["ok"]).to_numpy()
    out["runs_z"] = drift.runs_test(outcomes)[2] if 5 <= len(bad) < len(rows) else None
    return out


def memory_of(run: Run, part: Steady, seen: resources.Samples) -> list[dict[str, Any]]:
    """Each GPU's memory, and the memory of server processes on this host; one 'cannot judge' where there is none."""
    known = {s.get("stage"): s for s in run.info.get("stages") or []}.get(part.stage, {})
    start = float(known.get("start") or part.rows["start_time"].min())
    end = float(known.get("end") or part.rows["end_time"].max())
    out = [m | {"what": f"{source.partition('|')[0]} memory"}
           for source, m in _memories(seen.gpu, "mem_used_mib", "mem_total_mib", start, end)]  # fmt: skip
    if not out:
        out.append({"what": "GPU memory", "verdict": "cannot judge", "reason": "no GPU data in this run"})
    hosts = _memories(seen.server, "rss_mib", "", start, end)
    return out + [m | {"what": f"host memory of the {source} server"} for source, m in hosts if source == part.endpoint]


def _memories(
    frame: pd.DataFrame, metric: str, total: str, start: float, end: float
) -> list[tuple[str, dict[str, Any]]]:
    inside = frame[frame["time"].between(start, end)] if len(frame) else frame
    out = []
    for source, rows in inside.groupby("source", sort=True):
        used = rows[rows["metric"] == metric].sort_values("time")
        totals = rows.loc[rows["metric"] == total, "value"]
        if len(used):
            size = float(totals.iloc[-1]) if len(totals) else None
            found = drift.memory_growth(used["time"].to_numpy(dtype=float), used["value"].to_numpy(dtype=float), size)
            out.append((str(source), found | {"total_mib": size}))
    return out


def clock(seconds: float) -> str:
    """mm:ss."""
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def sentences(found: dict[str, Any]) -> list[str]:
    """The soak in words, what is worst first."""
    drifts = [d["verdict"] for s in found["stages"] for d in s["drift"]]
    blind = all(verdict == "cannot judge" for verdict in drifts)
    out = ["Too short to judge drift: only failures were looked at; hold longer (HOLD=)"] if blind else []
    for s in found["stages"]:
        order = {"FAIL": 0, "WARN": 1}
        out += [_drift(d, s) for d in sorted(s["drift"], key=lambda d: order.get(d["verdict"], 2))]
        out += [f"Level shift of {d['name']} at {clock(x['at_s'])}: {x['jump']:+.0%} of the median"
                + (f" (at that time: {', '.join(x['beside'])})" if x["beside"] else "")
                for d in s["drift"] for x in d["shifts"]]  # fmt: skip
        out.append(_errors(s["errors"]))
        if not s["drift"]:
            out.append("Drift: cannot be judged, no full window has answers")
    return out + [_memory(m) for m in found["memory"]]


def _drift(d: dict[str, Any], s: dict[str, Any]) -> str:
    if d["verdict"] == "cannot judge":
        return f"Drift of {d['name']}: cannot be judged, {d['windows']} windows ({MIN_WINDOWS} are needed)"
    if d["verdict"] == "none" and d["shifts"]:
        return f"No steady drift of {d['name']} (p {d['p']:.2g}): its level shifts, see below"
    if d["verdict"] == "none":
        least = "smallest detectable about 10 %" if d["windows"] >= SURE_WINDOWS else f"only {d['windows']} windows"
        return (f"No drift of {d['name']} ({d['effect']:+.1%} over the run, p {d['p']:.2g}; {least}; "
                f"median {d['median']:.3g} {d['unit']})")  # fmt: skip
    return (f"{d['verdict']} drift of {d['name']}: {d['effect']:+.1%} over the run ({d['pct_per_hour']:+.0f} %/hour, "
            f"{d['per_min']:+.3g} {d['unit']} a minute, p {d['p']:.2g})")  # fmt: skip


def _errors(e: dict[str, Any]) -> str:
    if not e["failures"]:
        return f"No failures in {e['requests']:,} requests"
    head = f"{e['failures']} failures in {e['requests']:,} requests"
    head += ", surely over 1 %: FAIL" if failing_surely(e) else ""
    if e["verdict"] == "clustered":
        most = f"most at {clock(e['densest_at_s'])} ({e['densest']} in {e['bin_s']:.0f} s)"
        return f"{head}: clustered (Fano {e['fano']:.2f}, p {e['p']:.1g}); {most}"
    if e["verdict"] == "random":
        return f"{head}: random (Fano {e['fano']:.2f}, p {e['p']:.2f})"
    return f"{head}: too few to tell random from clustered"


def _memory(m: dict[str, Any]) -> str:
    what = m["what"].replace("gpu", "GPU ") if m["what"].startswith("gpu") else m["what"][0].upper() + m["what"][1:]
    if m["verdict"] == "cannot judge":
        return f"{what}: cannot judge, {m['reason']}"
    grown = f"{m['growth_mib']:+.0f} MiB, {m['used_mib']:,.0f} MiB at the end"
    if m["verdict"] == "leak":
        left = f", {m['hours_to_oom']:.1f} hours until it is full" if m["hours_to_oom"] is not None else ""
        return f"{what}: LEAK of {m['mib_per_hour']:.0f} MiB/hour ({grown}){left}"
    if m["verdict"] == "step":
        return f"{what}: one step of {m['step_mib']:.0f} MiB at {clock(m['at_s'])}, no leak ({grown})"
    return f"{what}: {m['verdict']} ({grown})"
