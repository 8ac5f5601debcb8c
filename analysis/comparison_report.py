"""A comparison in words, as Markdown and as a plain dict for scripts."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

from analysis.arms import Stored, changed
from analysis.comparison import TEST_FROM, compare, failures
from analysis.words import NAMES, markdown_rows, number

MOST = 6  # lines of one verdict in the text; the table has them all
METHOD = [
    "- The run is the unit: a ratio is of the geometric means of each arm's runs, tested by Welch's t on logarithms",
    "  from 3 runs an arm on; ranks (exact Mann-Whitney) stand beside it from 5. Fewer runs are shown and not tested:",
    "  with 2 % from run to run, the requests of two single runs differ surely in every second pair of equal servers.",
    "- better, worse: p < 0.05 over all figures together (Holm). same: the 95 % interval lies within the noise floor,",
    "  which is 2.83 standard deviations from run to run, within 1 % and 10 %. not resolved: neither.",
    "- Limits are tested steps: they are compared only between equal ladders, and never tested.",
]


def build(a: list[Stored], b: list[Stored], warnings: list[str]) -> dict[str, Any]:
    """Everything that a comparison says, as one plain dict."""
    rows, failed = compare(a, b), failures(a, b)
    runs = {"a": [run.name for run in a], "b": [run.name for run in b]}
    found = {"schema": 1, "runs": runs, "changed": changed(a, b), "warnings": warnings, "failures": failed,
             "figures": rows, "limits": limits(a, b), "simulated": a[0].summary["simulated"]}  # fmt: skip
    worse = bool(failed["worse"]) or any(row["verdict"] == "worse" for row in rows)
    return found | {"worse": worse, "headlines": headlines(found)}


def limits(a: list[Stored], b: list[Stored]) -> list[dict[str, Any]]:
    """Each limit's bracket in every run, where all runs had the same ladder."""
    if len({tuple(run.stages) for run in [*a, *b]}) > 1:
        return []
    kinds = [kind for kind, endpoint in a[0].summary["endpoints"].items() if "limits" in endpoint]
    out = []
    for kind, (name, words) in itertools.product(kinds, (NAMES | {"slo_capacity": "SLO capacity"}).items()):
        arms = [[place(run.summary["endpoints"][kind]["limits"][name]) for run in arm] for arm in (a, b)]
        out.append({"endpoint": kind, "limit": words, "a": arms[0], "b": arms[1]})
    return out


def place(limit: dict[str, Any]) -> str:
    """A limit in a table's cell."""
    if limit.get("bracket"):
        return "{}-{}".format(*limit["bracket"])
    if limit["state"] == "none":
        return f"none to {limit['tested_to']}"
    return f">= {limit['users']}" if limit.get("users") else limit["state"]


def headlines(found: dict[str, Any]) -> list[str]:
    """Counts first, then what changed, then the verdicts, the largest effects first."""
    count = {arm: len(found["runs"][arm]) for arm in "ab"}
    fails = {arm: f"{found['failures'][arm][0]:,} of {found['failures'][arm][1]:,} requests failed" for arm in "ab"}
    sim = ", simulated server" if found["simulated"] else ""
    out = [f"A {runs(count['a'])}, {fails['a']}; B {runs(count['b'])}, {fails['b']}{sim}"]
    if found["failures"]["worse"]:
        out.append(f"B fails more often (exact p {found['failures']['p']:.2g} over pooled requests)")
    out.append("Changed: " + ("; ".join(found["changed"]) or "nothing that the runs can tell"))
    if min(count.values()) < TEST_FROM:
        out.append(f"No test: single runs or pairs show a change, they do not prove it; {TEST_FROM} or more an arm do")
    tally = Counter(row["verdict"] for row in found["figures"])
    out.append("B against A: " + ", ".join(f"{word} in {n}" for word, n in tally.most_common()) + " figures")
    for word in ("worse", "better", "worse, no test", "better, no test"):
        rows = sorted((r for r in found["figures"] if r["verdict"] == word), key=effect, reverse=True)
        out += [f"{word[0].upper()}{word[1:]}: {sentence(row)}" for row in rows[:MOST]]
        out += [f"{word[0].upper()}{word[1:]}: {len(rows) - MOST} more, in the table"] if len(rows) > MOST else []
    if tally["not resolved"]:
        reach = max((r["high"] / r["low"]) ** 0.5 - 1 for r in found["figures"] if r["verdict"] == "not resolved")
        out.append(f"Not resolved: effects of up to {reach:.0%} could hide there; more runs an arm would show them")
    return out


def effect(row: dict[str, Any]) -> float:
    """How far from 1 the ratio is, as a logarithm; a rate that came or went entirely is the farthest."""
    return abs(math.log(row["ratio"])) if row["ratio"] else math.inf


def runs(n: int) -> str:
    return "1 run" if n == 1 else f"{n} runs"


def sentence(row: dict[str, Any]) -> str:
    """One figure: where, how many times, from what to what."""
    unit = "" if row["figure"].endswith("/s") else " ms"
    span = f" [{row['low']:.2f}, {row['high']:.2f}]" if row["low"] is not None else ""
    times = f" x{row['ratio']:.2f}{span}" if row["ratio"] else ""
    return (f"{row['endpoint']} {row['stage']} {row['figure']}{times}, "
            f"{number(mean(row['a']))} -> {number(mean(row['b']))}{unit}")  # fmt: skip


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """All figures as a Markdown table."""
    cells = [[row["endpoint"], row["stage"], row["figure"], spread(row["a"]), spread(row["b"]),
              "-" if row["ratio"] is None else f"{row['ratio']:.3f}",
              "-" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}",
              "-" if row["p_holm"] is None else f"{row['p_holm']:.2g}",
              "-" if row["p_ranks"] is None else f"{row['p_ranks']:.2g}", f"{row['floor']:.1%}", row["verdict"]]
             for row in rows]  # fmt: skip
    names = ["endpoint", "stage", "figure", "A", "B", "B/A", "95 %", "p (Holm)", "p (ranks)", "noise floor", "verdict"]
    return markdown_rows(names, cells)


def spread(values: list[float]) -> str:
    """The mean, with the least and the most of several runs."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(mean(values))} ({number(min(values))} to {number(max(values))})"


def markdown(found: dict[str, Any], pictures: list[str]) -> str:
    """compare.md."""
    out = ["# A against B", "", found["headlines"][0], "", *(f"- {line}" for line in found["headlines"][1:])]
    out += [f"\n![ratios]({name})" for name in pictures]
    out += ["", "## Warnings", "", *([f"- {line}" for line in found["warnings"]] or ["None."])]
    out += ["", "## Figures", "", *table(found["figures"]), "", "Latencies in ms; several runs: mean (least to most)."]
    if found["limits"]:
        rows = [[r["endpoint"], r["limit"], ", ".join(r["a"]), ", ".join(r["b"])] for r in found["limits"]]
        out += ["", "## Limits in users, run by run", "", *markdown_rows(["endpoint", "limit", "A", "B"], rows)]
    out += ["", "## Runs", "", *(f"- {arm.upper()}: {', '.join(found['runs'][arm])}" for arm in "ab")]
    return "\n".join([*out, "", "## How to read this", "", *METHOD, ""])
