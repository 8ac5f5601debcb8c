"""What an earlier ramp of the same target found: users for a soak, the rate an open loop aims at. (stdlib only)"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenswarm import runs


class PlanError(ValueError):
    """A plan that cannot be made; the text is the one line to show."""


def newest_ramp(kind: str, url: str, model: str, sim: str) -> tuple[Path, dict[str, Any]] | None:
    """(run folder, its endpoint in summary.json) of the newest complete ramp of this target; None if there is none."""
    for run in runs.all_runs("ramp"):
        try:
            info = runs.load(run)
            summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # never reported, or damaged: not a ramp to build on
        target, found = (info.get("targets") or {}).get(kind, {}), summary.get("endpoints", {}).get(kind, {})
        # the simulator has another port each time: there its arguments are what makes it the same server
        same = info.get("simulator") == sim if sim or info.get("simulated") else target.get("url") == url
        if same and target.get("model") == model and summary.get("state") == "complete" and "limits" in found:
            return run, found
    return None


def needed_ramp(kind: str, url: str, model: str, sim: str, instead: str) -> tuple[Path, dict[str, Any]]:
    """The same, or a PlanError that says what to do."""
    if found := newest_ramp(kind, url, model, sim):
        return found
    raise PlanError(
        f"no complete ramp of {kind} {model} at {url} under {runs.reports_dir()}/: run `make ramp`, or give {instead}"
    )


def soak_users(kind: str, url: str, model: str, sim: str) -> tuple[int, str]:
    """(users to hold, why): the lower of SLO capacity and soft limit; the highest tested step if no limit was found."""
    run, endpoint = needed_ramp(kind, url, model, sim, "USERS=20")
    limits = endpoint["limits"]
    slo, soft = limits.get("slo_capacity") or {}, limits.get("soft_limit") or {}
    if slo.get("state") == "below_lowest":
        raise PlanError(
            f"{run.name}: the SLO was not met at the lowest tested step; give USERS=, or relax TTFT_SLO and TPOT_SLO"
        )
    found = {"SLO capacity": slo.get("users"), "soft limit": soft.get("users")}
    known = {name: users for name, users in found.items() if users}
    if known:
        name = min(known, key=lambda key: known[key])
        return known[name], f"{name} of {run.name}"
    tested = [stage["users"] for stage in endpoint["stages"] if stage.get("valid")]
    if soft.get("state") != "none" or not tested:
        raise PlanError(f"{run.name} found neither SLO capacity nor soft limit: give USERS=20, or repeat the ramp")
    return max(tested), f"highest step of {run.name}, which found no limit"


def best_rate(kind: str, url: str, model: str, sim: str) -> tuple[float, str]:
    """(requests/s, why): the best rate of the newest ramp's valid stages."""
    run, endpoint = needed_ramp(kind, url, model, sim, "RATES=5,8,9 (requests/s)")
    rates = [stage["rps"] for stage in endpoint["stages"] if stage.get("valid") and stage.get("rps")]
    if not rates:
        raise PlanError(f"{run.name} has no valid stage: repeat the ramp, or give RATES=5,8,9 (requests/s)")
    return max(rates), f"best rate of {run.name}"
