"""All phases in a row: baseline, ramp, soak at the limit found, mixed. Each is a run, let in by the one before.

reports/<time>-campaign/ holds campaign.json (how far it is, after every phase), campaign.md and campaign.html."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tokenswarm import runs
from tokenswarm.children import call

PHASES = ("baseline", "ramp", "soak", "mixed")
GATED = ("baseline", "soak")  # the others measure and judge, but let the next phase begin whatever they find
ENDINGS = {
    1: "gate failed",
    2: "could not be planned",
    3: "preflight failed",
    4: "invalid",
    130: "interrupted",
}
TARGETS = ("url", "model")


def run(values: Any) -> int:
    """Run or resume a campaign; its exit code is that of the phase that stopped it, 0 if all passed."""
    interrupted: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))  # the phase answers it; we report
    same = identity(values)
    folder, state = resumed(same) if os.environ.get("RESUME", "") not in ("", "0") else (None, None)
    if folder is None or state is None:
        folder = runs.new_run("campaign")
        (folder / "workers").rmdir()  # a campaign sends nothing itself
        state = {"schema": 1, "started": time.time(), "targets": same, "simulated": bool(values.sim), "phases": []}
    state["planned"] = planned = list(PHASES if several(values) else PHASES[:-1])
    if "mixed" not in planned:
        print("tokenswarm: mixed is left out: only one kind of endpoint has a URL", flush=True)
    for name in planned[len(state["phases"]) :]:
        print(f"\ntokenswarm: campaign, {name} ({planned.index(name) + 1} of {len(planned)})", flush=True)
        done = phase(name)
        state["phases"].append(done)
        write(folder, state)
        if done["code"] or interrupted:
            break
    write(folder, state)
    print(f"\ntokenswarm: campaign report in {folder}/campaign.md and .html", flush=True)
    code = next((done["code"] for done in state["phases"] if done["code"]), 0)
    return code or (130 if interrupted else 0)


def identity(values: Any) -> dict[str, Any]:
    """What a campaign that is resumed must share with the one that was begun; a simulator has a new port each time."""
    kinds = [
        name.removesuffix("_url")
        for name in vars(values)
        if name.endswith("_url") and hasattr(values, f"{name[:-4]}_model")
    ]
    found = {kind: {key: getattr(values, f"{kind}_{key}") for key in TARGETS} for kind in sorted(kinds)}
    if values.sim:
        return {"simulator": values.sim}
    return {kind: target for kind, target in found.items() if target["url"]}


def several(values: Any) -> bool:
    """Whether mixed has at least two kinds to load."""
    kinds = [name[:-4] for name in vars(values) if name.endswith("_url") and hasattr(values, f"{name[:-4]}_model")]
    return sum(bool(getattr(values, f"{kind}_url")) and kind in (values.kinds or kinds) for kind in kinds) > 1


def resumed(same: dict[str, Any]) -> tuple[Path | None, dict[str, Any] | None]:
    """The newest unfinished campaign of the same targets, with only its passed phases."""
    for folder in sorted(runs.reports_dir().glob("2*-campaign"), reverse=True):
        try:
            state = json.loads((folder / "campaign.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # killed before its first phase ended
        if state.get("targets") == same:
            passed = [
                done for done in state["phases"] if not done["code"] and (runs.reports_dir() / done["run"]).is_dir()
            ]
            if len(passed) == len(state.get("planned", PHASES)):
                break
            print(f"tokenswarm: campaign {folder.name} goes on after {passed[-1]['phase'] if passed else 'nothing'}")
            return folder, state | {"phases": passed}
    print("tokenswarm: no unfinished campaign of these targets: a new one begins")
    return None, None


def phase(name: str) -> dict[str, Any]:
    """Run one phase through the launcher; what became of it."""
    folder, began = runs.new_run(name), time.time()
    code = call([sys.executable, "-m", "tokenswarm.launch", name], env={**os.environ, "NEW_RUN": str(folder)})
    made = (folder / "run.json").is_file()
    if folder.is_dir() and not any(path.is_file() for path in folder.rglob("*")):
        runs.discard(folder)
    return {"phase": name, "run": folder.name if made else "", "code": code, "seconds": round(time.time() - began)}


def write(folder: Path, state: dict[str, Any]) -> None:
    """campaign.json, campaign.md and campaign.html (by analysis.page) as far as it is."""
    rows = [row(done) for done in state["phases"]]
    rows += [{"phase": name, "ending": "not run", "run": "", "lines": [], "pictures": []} for name in left(state)]
    runs.write_whole(folder / "campaign.json", json.dumps(state, indent=1))
    runs.write_whole(folder / "campaign.md", markdown(state, rows))
    call([sys.executable, "-m", "analysis.page", str(folder / "campaign.md")], stdout=subprocess.DEVNULL)


def left(state: dict[str, Any]) -> list[str]:
    """Phases that have not been run."""
    return [name for name in state["planned"] if name not in {done["phase"] for done in state["phases"]}]


def row(done: dict[str, Any]) -> dict[str, Any]:
    """A phase for the index: how it ended, its first sentences, its pictures."""
    run_dir = runs.reports_dir() / done["run"] if done["run"] else None
    lines: list[str] = []
    if run_dir and (run_dir / "summary.json").is_file():
        lines = json.loads((run_dir / "summary.json").read_text(encoding="utf-8")).get("headlines", [])
    pictures = [n for n in ("knee.png", "soak.png", "mixed.png") if run_dir and (run_dir / n).is_file()]
    good = "passed" if done["phase"] in GATED else "done"
    ending = good if not done["code"] else ENDINGS.get(done["code"], f"ended with exit code {done['code']}")
    return {"phase": done["phase"], "ending": ending, "run": done["run"], "lines": lines, "pictures": pictures}


def head(state: dict[str, Any]) -> str:
    """The campaign in a line."""
    if state["simulated"]:
        target = f"SIMULATED server ({state['targets'].get('simulator')})"
    else:
        target = "; ".join(f"{kind} {t['model']} at {t['url']}" for kind, t in state["targets"].items())
    begun = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(state["started"]))
    done = sum(not done["code"] for done in state["phases"])
    return f"{done} of {len(state['planned'])} phases done; begun {begun}; {target}"


def markdown(state: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """campaign.md."""
    out = ["# Campaign", "", head(state), ""]
    for r in rows:
        out += [f"## {r['phase']}: {r['ending']}", ""]
        out += [f"[{r['run']}](../{r['run']}/report.md)", ""] if r["run"] else []
        out += [*(f"- {line}" for line in r["lines"]), ""]
        out += [f"![{r['phase']}](../{r['run']}/{name})\n" for name in r["pictures"]]
    return "\n".join(out)
