"""The same summary in plain words: first line, one sentence a limit, tables."""

from __future__ import annotations

from typing import Any

from analysis.proportions import requests_needed
from analysis.verdicts import guard_sentences, image_sentence

NAMES = {
    "saturation": "Saturation", "knee": "Knee", "queue_onset": "Queue onset", "tpot_knee": "TPOT knee",
    "soft_limit": "Soft limit",
}  # fmt: skip
NONE = {
    "saturation": "No saturation found up to {n} users: the last steps still raised throughput",
    "knee": "No knee found up to {n} users",
    "queue_onset": "No queue onset found up to {n} users: P99 TTFT never grew as fast as the users",
    "tpot_knee": "No TPOT knee found up to {n} users",
    "soft_limit": "No soft limit found up to {n} users",
}
MEANING = {
    "TTFT": "time to first token: from sending the request to the first token of any sort (text, reasoning, tool call)",
    "TPOT": "time per output token = (E2E - TTFT) / (output tokens - 1); an answer of one token has none",
    "ITL": "inter-token latency: the gap between two chunks of a stream; a chunk may hold several tokens",
    "E2E": "from sending the request to its last token",
    "goodput": "successful requests per second that met every SLO",
    "saturation": "the first tested step from which no higher step raises throughput by an elasticity of 0.20 or "
    "more (about 15 % for twice the users); it is reached by that step, so it lies below",
    "knee": "the first step from which response time C/X grows with an elasticity of at least 0.5 to every higher step "
    "and by 20 % in all: beyond it, latency is paid for more than throughput is gained",
    "queue_onset": "the last step before P99 TTFT grows at least as fast as the number of users (elasticity 1, and by "
    "half in all): requests begin to wait",
    "tpot_knee": "the same for P99 TPOT with an elasticity of 0.5",
    "soft_limit": "the lower of queue onset and knee: the last tested step that was good",
    "hard_limit": "the first step with an error of the server; confirmed when the error rate is over 0.1 % with 95 % "
    "confidence and every higher step fails too",
    "slo_capacity": "the highest step at which at least 99 % of the requests met the SLO, shown by an exact binomial "
    "test at 95 %, with no failed step below it",
}


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits without an exponent; a dash for unknown."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}g}"


def users(n: int) -> str:
    """1 user, 2 users."""
    return f"{n} user" if n == 1 else f"{n} users"


def first_line(summary: dict[str, Any]) -> str:
    """State, requests, failures, and what was measured; always the first line of every report."""
    out = f"{summary['run']}: {summary['state']}, {summary['requests']:,} requests, {summary['failures']:,} failed, "
    stages = [stage for endpoint in summary["endpoints"].values() for stage in endpoint["stages"]]
    if spoiled := [stage["stage"] for stage in stages if not stage["valid"] and stage["window_s"] is not None]:
        out += f"{len(spoiled)} of {len(stages)} stages not valid ({', '.join(spoiled)}), "
    if summary["simulated"]:
        return out + f"simulated server ({summary['simulator'] or 'default settings'})"
    targets = [f"{name} {e['model']} at {e['url'] or 'unknown URL'}" for name, e in summary["endpoints"].items()]
    return out + ("; ".join(targets) or "no target reached")


def limit_sentence(name: str, limit: dict[str, Any]) -> str:
    """One limit in one sentence."""
    if limit["state"] == "insufficient":
        return f"{NAMES[name]}: cannot be told, {limit['reason']}"
    sure = f"confidence {limit['confidence']:.2f}" + ("" if limit["confidence"] >= 0.8 else ", low")
    if limit["state"] == "none":
        return f"{NONE[name].format(n=limit['tested_to'])} ({sure})"
    low, high = limit["bracket"]
    detail = f"{limit['state']}, {sure}"
    if limit.get("estimate") and high > low:
        detail += f", estimate {limit['estimate']:.0f}"
    if limit.get("reason"):
        detail += f"; {limit['reason']}"
    if limit["at_lowest"] and name != "queue_onset":
        return f"{NAMES[name]} already at the lowest tested concurrency, {users(limit['users'])} ({detail})"
    return f"{NAMES[name]} between {low} and {high} users ({detail})"


def hard_sentence(limit: dict[str, Any]) -> str:
    """The hard limit, or how low the error rate is known to be."""
    if limit["state"] == "insufficient":
        return f"Hard limit: cannot be told, {limit['reason']}"
    if limit["state"] == "none":
        rate = f"{100 * limit['error_rate_below']:.2g}"
        return (f"No hard limit up to {users(limit['tested_to'])} (0 errors; error rate there below {rate} % "
                "with 95 % confidence)")  # fmt: skip
    first = f"first error at {users(limit['first_error'])}"
    if limit["confirmed"] is None:
        return f"No confirmed hard limit: {first}, but errors are sporadic ({limit['errors']} in all)"
    low, high = limit["bracket"]
    where = f"between {low} and {high} users" if low else f"at or below {users(high)}, the lowest tested"
    return f"Hard limit {where} (confirmed; {first})"


def slo_sentence(limit: dict[str, Any], slo: dict[str, float]) -> str:
    """How many users the SLO allows."""
    goal = f"TTFT {slo['ttft_ms']:g} ms, TPOT {slo['tpot_ms']:g} ms for 99 % of requests"
    fail = f"first FAIL at {users(limit['first_fail'])}" if limit["first_fail"] else "no FAIL seen"
    if limit["state"] == "insufficient":
        return f"SLO capacity: cannot be told, {limit['reason']}"
    if limit["users"]:
        return f"SLO capacity at least {users(limit['users'])} (PASS: {goal}); {fail}"
    if limit["state"] == "below_lowest":
        return f"SLO not met at the lowest tested concurrency ({goal}); {fail}"
    needed = min(requests_needed(step["bad"]) for step in limit["verdicts"])
    return f"SLO capacity inconclusive: no step has the requests to PASS ({goal}; {needed} a step would do); {fail}"


def sentences(endpoint: dict[str, Any], slo: dict[str, float]) -> list[str]:
    """All limits of one ramp, the most useful first."""
    limits, why = endpoint.get("limits"), [line[0].upper() + line[1:] for line in endpoint.get("why") or []]
    why += guard_sentences(endpoint["verdicts"]) if "verdicts" in endpoint else []
    why += image_sentence(endpoint)
    if not limits:
        return why
    order = ["saturation", "knee", "queue_onset", "tpot_knee", "soft_limit"]
    out = [limit_sentence(name, limits[name]) for name in order if limits[name].get("reason") != "not measured"]
    if (limits.get("retrograde") or {}).get("found"):
        back = limits["retrograde"]
        out.append(f"Throughput falls again beyond {users(back['best_users'])} (best {number(back['best_rps'])} req/s)")
    return [*out, hard_sentence(limits["hard_limit"]), slo_sentence(limits["slo_capacity"], slo), *why]


def usl_sentence(usl: dict[str, Any]) -> str:
    """The Universal Scalability Law fit, or why there is none."""
    if "a" not in usl:
        return f"Universal Scalability Law not fitted ({usl['reason']})"
    peak = f"peak at {usl['peak']:.0f} users" if usl["peak"] else usl["reason"]
    fit = f"contention {usl['a']:.3g}, coherency {usl['b']:.2g}, R2 {usl['r2']:.3f}"
    return f"Universal Scalability Law fit: {fit}; {peak}"


def _with_ci(summary: dict[str, Any], name: str) -> str:
    """Value with its interval; an upper end that the sample cannot give is shown as the maximum."""
    if summary[name] is None or name not in summary.get("ci", {}):
        return number(summary[name])
    low, high = summary["ci"][name]
    upper = number(high) if high is not None else f"<= max {number(summary['max'])}"
    return f"{number(summary[name])} [{number(low)}, {upper}]"


def columns(endpoint: dict[str, Any]) -> list[str]:
    """Headings of the stage table; kinds without tokens show items and E2E instead of TTFT and TPOT."""
    stages = endpoint["stages"]
    named = len(stages) > 1 and any(stage["stage"] != f"u{stage['users']:03d}" for stage in stages)
    out = [*(["stage"] if named else []), *(["users"] if any(s["users"] for s in stages) else [])]
    out += ["requests", "failed", "req/s"]
    out += ["out tok/s"] if any(s["output_tps"] is not None for s in stages) else []
    out += ["in tok/s", "items/s"] if any(s["items_ps"] is not None for s in stages) else []
    if any(s["ttft_ms"]["n"] for s in stages):
        out += ["TTFT P50", "TTFT P95"]
    if any(s["tpot_ms"]["n"] for s in stages):
        out += ["TPOT P50"]
    return [*out, "E2E P50", "E2E P95", "goodput/s"]


def cells(stage: dict[str, Any], names: list[str], ci: bool) -> list[str]:
    """One row of the stage table; ms without decimals where they are large, P50 with its interval if asked."""
    half = (lambda s: _with_ci(s, "p50")) if ci else (lambda s: number(s["p50"]))
    values = {
        "stage": stage["stage"],
        "users": str(stage["users"]) + ("" if not stage["unusable"] else "*"),
        "requests": f"{stage['requests']:,}", "failed": f"{stage['failures']:,}", "req/s": number(stage["rps"]),
        "out tok/s": number(stage["output_tps"]), "in tok/s": number(stage["input_tps"]),
        "items/s": number(stage["items_ps"]), "TTFT P50": half(stage["ttft_ms"]),
        "TTFT P95": number(stage["ttft_ms"]["p95"]), "TPOT P50": half(stage["tpot_ms"]),
        "E2E P50": half(stage["e2e_ms"]), "E2E P95": number(stage["e2e_ms"]["p95"]),
        "goodput/s": number(stage["goodput_rps"]),
    }  # fmt: skip
    return [values[name] for name in names]


def table(endpoint: dict[str, Any]) -> list[str]:
    """The stage table as text, right-aligned; latencies in ms."""
    names = columns(endpoint)
    rows = [names, *(cells(stage, names, ci=False) for stage in endpoint["stages"])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    if any(stage["unusable"] for stage in endpoint["stages"]):
        lines.append("* takes no part in saturation, knee and queue onset; the warnings say why")
    return lines


def markdown_table(endpoint: dict[str, Any]) -> list[str]:
    """The same table for report.md, P50 with its 95 % interval."""
    names = columns(endpoint)
    return markdown_rows(names, [cells(stage, names, ci=True) for stage in endpoint["stages"]])


TAILS = {"ttft_ms": ("p90", "p99"), "tpot_ms": ("p95", "p99"), "itl_ms": ("p50", "p99"), "e2e_ms": ("p90", "p99")}


def tails(endpoint: dict[str, Any]) -> list[str]:
    """Further percentiles by stage in ms, P99 with its 95 % interval, for what was measured."""
    stages = endpoint["stages"]
    shown = [(metric, q) for metric, names in TAILS.items() for q in names if any(s[metric]["n"] for s in stages)]
    rows = [[s["stage"], *(_with_ci(s[metric], q) if q == "p99" else number(s[metric][q]) for metric, q in shown)]
            for s in stages]  # fmt: skip
    names = [f"{metric.removesuffix('_ms').upper()} {q.upper()}" for metric, q in shown]
    return markdown_rows(["stage", *names], rows) if shown else []


def markdown_rows(names: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table, right-aligned."""
    return ["| " + " | ".join(names) + " |", "|" + " ---: |" * len(names), *("| " + " | ".join(r) + " |" for r in rows)]
