"""What each phase adds to summary.json, and its sentences."""

from __future__ import annotations

from typing import Any

from analysis import gate, interference, openloop, stability
from analysis.frames import Run, Steady


def attach(run: Run, parts: list[Steady], phase: str, slo: dict[str, float]) -> dict[str, Any]:
    """{phase: its findings}, {} for a phase that adds nothing (ramp, live)."""
    if phase == "baseline":
        return {phase: gate.judge(run, parts, slo)}
    if phase == "soak":
        return {phase: stability.judge(run, parts)}
    if phase == "mixed":
        return {phase: interference.judge(run, parts, slo)}
    return {phase: openloop.judge(run, parts)} if phase == "poisson" else {}


def sentences(summary: dict[str, Any]) -> list[str]:
    """The phase's verdicts in words, [] for ramp and live."""
    modules = {"baseline": gate, "soak": stability, "mixed": interference, "poisson": openloop}
    phase = summary["phase"]
    return modules[phase].sentences(summary[phase]) if phase in modules and summary.get(phase) else []


def passed(summary: dict[str, Any]) -> bool:
    """Whether the phase's gate lets the next phase begin; phases without a gate always do."""
    return (
        summary.get(summary["phase"], {}).get("passed", True)
        if isinstance(summary.get(summary["phase"]), dict)
        else True
    )
