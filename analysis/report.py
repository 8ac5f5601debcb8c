"""python -m analysis.report RUN [--json]: report.html, report.md, summary.json and plots of a stored run, and a text"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from analysis import causes, page, phase_plots, phases, plots, timeline, words
from analysis.frames import dumps, load_run
from analysis.summary import build
from tokenswarm import runs
from tokenswarm.recover import recover_at_hand

LOOP = ("closed loop, {users} users, zero think time; latency at this concurrency, not at an arrival rate of {rate} "
        "requests/s")  # fmt: skip


def text(summary: dict[str, Any]) -> str:
    """What a person sees first: state, limits in words, one table an endpoint, how many warnings."""
    out = [words.first_line(summary), *(f"  {reason}" for reason in summary["reasons"])]
    out += [f"  {line}" for line in phases.sentences(summary)]
    for name, endpoint in summary["endpoints"].items():
        out += ["", f"{name}: {endpoint['model']}  {endpoint['server']}".rstrip()]
        out += [f"  {line}" for line in words.sentences(endpoint, summary["slo"])]
        out += ["", *(f"  {line}" for line in words.table(endpoint)), "  (latencies in ms)"]
    if summary["warnings"]:
        out += [
            "",
            f"{len(summary['warnings'])} warning{'s' * (len(summary['warnings']) != 1)}:",
            *(f"  ! {w['seen']}: {w['try']}" for w in summary["warnings"]),
        ]
    return "\n".join(out) + "\n"


def markdown(summary: dict[str, Any], pictures: list[str]) -> str:
    """report.md: verdicts, table, how each limit was found, warnings, plot, how to read, provenance."""
    out = [f"# {summary['phase']} {summary['date']}", "", words.first_line(summary), ""]
    out += [f"- {reason}" for reason in summary["reasons"]]
    if found := phases.sentences(summary):
        out += ["", "## Verdicts", "", *(f"- {line}" for line in found)]
        out += [f"\n![{summary['phase']}]({p})" for p in pictures if p == f"{summary['phase']}.png"]
    for name, endpoint in summary["endpoints"].items():
        out += ["", f"## {name}: {endpoint['model']}", ""]
        out += [f"- {line}" for line in words.sentences(endpoint, summary["slo"])]
        out += ["", *words.markdown_table(endpoint), "", "Latencies in ms; P50 with its 95 % interval.", ""]
        if tails := words.tails(endpoint):
            out += ["Further percentiles in ms; P99 with its 95 % interval, where the sample supports it:", "", *tails]
            out += [""]
        knees = [p for p in pictures if p.startswith("knee")]
        out += [f"![{name}]({p})" for p in knees if name in p or len(knees) == 1]
        if inside := causes.table(endpoint):
            gpus = "its simulated GPUs" if endpoint["gpu_simulated"] else "its GPUs"
            out += ["", f"What the server and {gpus} said (steady part; medians, KV and GPU the highest):", "", *inside]
        out += ["", f"Method: {loop_sentence(endpoint)}.", *_latency_notes(endpoint)]
        out += (
            ["", f"Description only, decides nothing: {words.usl_sentence(endpoint['usl'])}."]
            if "usl" in endpoint
            else []
        )
    out += ["", "![timeline](timeline.png)"] if "timeline.png" in pictures else []
    out += ["", "## Warnings", "", *(_warning(w) for w in summary["warnings"])]
    out += [] if summary["warnings"] else ["None."]
    out += ["", "## Definitions", "", *(f"- **{k.replace('_', ' ')}**: {v}." for k, v in words.MEANING.items())]
    out += ["", "## How to read this", "", *HOW_TO_READ, "", "## Provenance", "", *_provenance(summary)]
    return "\n".join(out) + "\n"


HOW_TO_READ = [
    "- A limit is given as a bracket of tested user counts; what lies between them was not tested.",
    "- Confidence is the share of 300 resampled runs that name the same step; below 0.8 add steps or repeat the run.",
    "- A percentile is printed only if the sample supports it (P95 from 59 requests, P99 from 299); `-` otherwise, and",
    "  summary.json says why. The first request of each user is left out of latencies; failures never enter them.",
    "- Rates count successes in the steady window: from the start of request C+1 to the start of the last one.",
]


def loop_sentence(endpoint: dict[str, Any]) -> str:
    """What kind of load this was, in the method's own words."""
    counts = [stage["users"] for stage in endpoint["stages"]]
    if not any(counts):
        return "open loop, Poisson arrivals; latency from sending in this table, from the due time in the verdicts"
    rates = [stage["rps"] for stage in endpoint["stages"] if stage["rps"] is not None]
    span = f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else str(counts[0])
    rate = f"{words.number(min(rates))} to {words.number(max(rates))}" if rates else "any"
    return LOOP.format(users=span, rate=rate)


def _latency_notes(endpoint: dict[str, Any]) -> list[str]:
    """Why a P95 is missing, and the first wave, which no other number contains."""
    missing, waves = [], []
    for stage in endpoint["stages"]:
        ttft, wave = stage["ttft_ms"], stage["first_wave"]
        if ttft["n"] and "p95" in ttft["reasons"]:
            missing.append(f"{stage['stage']} P95 n/a ({ttft['reasons']['p95']}), max {words.number(ttft['max'])}")
        if wave["n"]:
            pair = f"{words.number(wave['ttft_p50_ms'])}/{words.number(wave['ttft_max_ms'])}"
            waves.append(f"{stage['stage']} {pair}")
    out = ["", "TTFT without P95, in ms: " + "; ".join(missing) + "."] if missing else []
    return out + (["", "First wave, TTFT P50/max in ms: " + ", ".join(waves) + "."] if waves else [])


def _warning(w: dict[str, str]) -> str:
    return f"- **{w['seen']}.** Why it matters: {w['why']}. Try: {w['try']}."


def _provenance(summary: dict[str, Any]) -> list[str]:
    got = summary["provenance"]
    out = [f"- run {summary['run']}, started {summary['date']}, seed {summary['seed']}, git {got['git'] or 'unknown'}"]
    out += [f"- {name} {version}" for name, version in (got["versions"] or {}).items()]
    for name, endpoint in summary["endpoints"].items():
        out.append(f"- {name}: {endpoint['model']} at {endpoint['url'] or 'unknown URL'}, "
                   f"{endpoint['server'] or 'server version unknown'}")  # fmt: skip
        if facts := endpoint["engine"]["facts"]:
            out.append(f"- {name} engine settings: " + ", ".join(f"{key} {value}" for key, value in facts.items()))
    for name, profile in (got["profiles"] or {}).items():
        out.append(f"- profile {name}: {profile.get('prompts')} prompts, sha256 {str(profile.get('sha256'))[:16]}")
    slo = ", ".join(f"{key} {value:g}" for key, value in summary["slo"].items())
    return [*out, f"- SLO: {slo}; nonce {got['nonce']}, stream {got['stream']}"]


def write(path: Path) -> dict[str, Any]:
    """Analyse a run folder and write summary.json, report.md, report.html and the plots into it."""
    run = load_run(path)
    summary = build(run)
    pictures = plots.draw_all(summary, path) + timeline.draw(run, summary) + phase_plots.draw(summary, path)
    runs.write_whole(path / "summary.json", dumps(summary))
    runs.write_whole(path / "report.md", markdown(summary, pictures))
    page.write(path / "report.md")
    return summary


def find_run(name: str) -> Path:
    """The run meant; a folder with requests.csv counts even when run.json is gone."""
    for path in (Path(name), runs.reports_dir() / name):
        if (path / "requests.csv").is_file():
            return path.resolve()
    return runs.find(name)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, 1 if a gate failed, 4 if the run is invalid, 2 if there is no such run or it cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description=__doc__.partition(": ")[2])
    parser.add_argument("run", nargs="?", default="latest", help="run folder, its name under reports/, or latest")
    parser.add_argument("--json", action="store_true", help="print summary.json instead of the text")
    options = parser.parse_args(argv)
    try:
        path = find_run(options.run)
        for line in recover_at_hand(path):
            print(f"report: {line}", file=sys.stderr)
        summary = write(path)
    except OSError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    whole = json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False)
    show(whole if options.json else text(summary) + "\nWritten: " + ", ".join(_written(path)))
    return 4 if summary["state"] == "invalid" else 0 if phases.passed(summary) else 1


def show(words: str) -> None:
    """Print; a reader that has seen enough (| head) is no error."""
    try:
        print(words, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _written(path: Path) -> list[str]:
    """What lies in the run folder now, relative to where the person stands if it is below."""
    here = Path.cwd()
    folder = path.relative_to(here) if path.is_relative_to(here) else path
    return [
        str(folder / name)
        for name in ("report.html", "report.md", "summary.json", "knee.png", "timeline.png", "soak.png", "mixed.png")
        if (path / name).is_file()
    ]


if __name__ == "__main__":
    sys.exit(main())
