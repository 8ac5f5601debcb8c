"""compare.png: the ratio B/A of each figure over the stages, with its interval."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from analysis.plots import BAD, BLUE, DPI, GREY, SIZE

LOOKS = {  # by verdict: colour, marker
    "better": (BLUE, "^"), "worse": (BAD, "v"), "same": ("#222222", "o"), "not resolved": (GREY, "o"),
    "better, no test": (BLUE, "$?$"), "worse, no test": (BAD, "$?$"), "within noise": (GREY, "o"),
}  # fmt: skip
PANELS = ("output tokens/s", "goodput/s", "TTFT P50", "TTFT P95", "TPOT P50", "E2E P50", "requests/s")


def draw(found: dict[str, Any], folder: Path) -> list[str]:
    """compare.png (compare-<endpoint>.png of further endpoints); returns the names."""
    names: list[str] = []
    for kind in dict.fromkeys(row["endpoint"] for row in found["figures"]):
        rows = [row for row in found["figures"] if row["endpoint"] == kind and row["ratio"] is not None]
        shown = [panel for panel in PANELS if any(row["figure"] == panel for row in rows)][:6]
        if not shown:
            continue
        names.append(f"compare-{kind}.png" if names else "compare.png")
        figure, axes = plt.subplots(2, 3, figsize=SIZE, squeeze=False)
        figure.subplots_adjust(left=0.06, right=0.98, top=0.84, bottom=0.12, hspace=0.42, wspace=0.22)
        for axis, panel in zip(axes.flat, shown, strict=False):
            _panel(axis, panel, [row for row in rows if row["figure"] == panel])
        for axis in list(axes.flat)[len(shown) :]:
            axis.set_visible(False)
        _title(figure, found, kind)
        figure.savefig(folder / names[-1], dpi=DPI)
        plt.close(figure)
    return names


def _title(figure: Any, found: dict[str, Any], kind: str) -> None:
    count = {arm: len(found["runs"][arm]) for arm in "ab"}
    figure.text(0.02, 0.955, f"{kind}: B against A", fontsize=18, weight="bold", va="center")
    facts = [f"{count['a']} against {count['b']} runs", "B/A with its 95 % interval", *found["changed"][:2]]
    figure.text(0.02, 0.905, "   ·   ".join(facts)[:170], color="#444444", va="center")
    if found["simulated"]:
        figure.text(0.97, 0.955, "SIMULATED", fontsize=13, weight="bold", color="white", ha="right", va="center",
                    bbox={"boxstyle": "round,pad=0.35", "facecolor": "#5b4b8a", "edgecolor": "none"})  # fmt: skip
    seen = dict.fromkeys(row["verdict"] for row in found["figures"] if row["verdict"] in LOOKS)
    marks = [plt.Line2D([], [], color=LOOKS[v][0], marker=LOOKS[v][1], ls="", ms=8, label=v) for v in seen]
    marks.append(plt.Line2D([], [], color=GREY, lw=8, alpha=0.25, label="noise floor"))
    figure.legend(handles=marks, loc="lower center", ncols=len(marks), frameon=False, fontsize=11)


def _panel(axis: Axes, label: str, rows: list[dict[str, Any]]) -> None:
    better = "more is better" if rows[0]["better"] > 0 else "less is better"
    axis.set_title(f"{label}, {better}", fontsize=11.5, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e3e6e8", lw=0.8)
    axis.axhline(1.0, color="#222222", lw=1)
    ends = [1.0]
    for x, row in enumerate(rows):
        colour, marker = LOOKS[row["verdict"]]
        floor = math.exp(row["floor"])
        axis.fill_between([x - 0.4, x + 0.4], 1 / floor, floor, color=GREY, alpha=0.18, lw=0)
        if row["low"] is not None:
            axis.vlines(x, row["low"], row["high"], color=colour, lw=2.5)
        axis.plot(x, row["ratio"], marker, color=colour, ms=9)
        ends += [value for value in (row["low"], row["high"], row["ratio"]) if value is not None] + [floor, 1 / floor]
    _scale(axis, min(ends), max(ends))
    axis.set_xticks(range(len(rows)), [row["stage"] for row in rows], rotation=0 if len(rows) <= 6 else 45)
    axis.set_xlim(-0.6, len(rows) - 0.4)


def _scale(axis: Axes, low: float, high: float) -> None:
    """Linear where all is near 1, logarithmic where something changed several times over."""
    if high / low > 4:
        axis.set_yscale("log")
        axis.set_ylim(low / 1.25, high * 1.25)
        axis.yaxis.set_minor_locator(NullLocator())
        steps = [s for s in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low / 1.25 <= s <= high * 1.25]
        axis.set_yticks(steps)
        axis.yaxis.set_minor_formatter(NullFormatter())
    else:
        pad = 0.08 * (high - low)
        axis.set_ylim(low - pad, high + pad)
        axis.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"x{value:g}"))
