"""soak.png and mixed.png, from the summary alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from analysis import interference, plots
from analysis.plots import BAD, BLUE, DPI, GREEN, GREY, ORANGE, PURPLE, RED, SIZE, plt

PANELS = (("TTFT (ms)", (("ttft_p50", BLUE), ("ttft_p95", RED))), ("TPOT P50 (ms)", (("tpot_p50", PURPLE),)),
          ("output tokens/s", (("output_tps", GREEN),)), ("E2E P50 (ms)", (("e2e_p50", ORANGE),)),
          ("requests/s", (("rps", GREEN),)))  # fmt: skip
COLOURS = {"strong": BAD, "interference": ORANGE, "none shown": GREEN, "drift": PURPLE}


def draw(summary: dict[str, Any], folder: Path) -> list[str]:
    """The phase's picture, if it has one; returns the names."""
    makers = {"soak": soak_figure, "mixed": mixed_figure}
    phase = summary["phase"]
    figure = makers[phase](summary) if phase in makers else None
    if figure is None:
        return []
    figure.savefig(folder / f"{phase}.png", dpi=DPI)
    plt.close(figure)
    return [f"{phase}.png"]


def _title(figure: Any, summary: dict[str, Any], head: str, facts: list[str]) -> None:
    figure.text(0.02, 0.955, head, fontsize=18, weight="bold", va="center")
    figure.text(0.02, 0.908, "   ·   ".join(f for f in facts if f), color="#444444", va="center")
    stamps = [("SIMULATED", "#5b4b8a")] if summary["simulated"] else []
    stamps += [(summary["state"].upper(), BAD)] if summary["state"] != "complete" else []
    for i, (word, colour) in enumerate(stamps):
        figure.text(0.97 - 0.125 * i, 0.955, word, fontsize=13, weight="bold", color="white", ha="right", va="center",
                    bbox={"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": "none"})  # fmt: skip


def soak_figure(summary: dict[str, Any]) -> Any:
    """TTFT, TPOT, tokens/s by window, with the line of the drift test and level shifts; None without full windows."""
    stage = next((s for s in summary["soak"]["stages"] if s["drift"]), None)
    if stage is None:
        return None
    found = {d["key"]: d for d in stage["drift"]}
    panels = [
        (label, [(k, c) for k, c in keys if k in found]) for label, keys in PANELS if any(k in found for k, _ in keys)
    ][:3]
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(len(panels), 1, figsize=SIZE, sharex=True, squeeze=False)
    figure.subplots_adjust(left=0.1, right=0.8, top=0.86, bottom=0.085, hspace=0.16)
    model = summary["endpoints"].get(stage["endpoint"], {}).get("model", "")
    _title(figure, summary, f"soak, {stage['endpoint']}: {model}",
           [summary["date"], f"{stage['users']} users", f"windows of {stage['window_s']:g} s",
            f"{summary['requests']:,} requests, {summary['failures']:,} failed"])  # fmt: skip
    minutes = np.array(stage["series"]["t"]) / 60
    for axis, (label, keys) in zip(axes[:, 0], panels, strict=True):
        _soak_panel(axis, label, keys, found, stage["series"], minutes)
    axes[-1, 0].set_xlabel("minutes since the start of the load")
    return figure


def _soak_panel(axis: Any, label: str, keys: list[tuple[str, str]], found: dict[str, Any], series: dict[str, Any],
                minutes: np.ndarray) -> None:  # fmt: skip
    plots._dress(axis, label)
    axis.yaxis.set_label_coords(-0.075, 0.5)
    highest_first = sorted(keys, key=lambda pair: -float(np.median(series[pair[0]])))  # as the lines lie
    for row, (key, colour) in enumerate(highest_first):
        d, y = found[key], np.array(series[key])
        axis.plot(minutes, y, color=colour, lw=1.2, marker="o", ms=3.5, alpha=0.8)
        words = d["name"]
        if d["verdict"] != "cannot judge":
            middle = np.median(minutes)
            axis.plot(minutes, np.median(y) + d["per_min"] * (minutes - middle), color=colour, lw=2.2, ls="--")
            axis.plot(1.008, 0.82 - 0.42 * row, "s", color=colour, ms=8, transform=axis.transAxes, clip_on=False)
            words += f"\n{d['verdict'] if d['verdict'] != 'none' else 'no drift'}, {d['effect']:+.1%}"
        axis.text(1.02, 0.86 - 0.42 * row, words, transform=axis.transAxes,
                  color=BAD if d["verdict"] == "FAIL" else colour,
                  va="top", fontsize=11, weight="bold" if d["verdict"] in ("FAIL", "WARN") else "normal")  # fmt: skip
        for shift in d["shifts"]:
            axis.axvline(shift["at_s"] / 60, color=BAD, lw=1.4, ls=":")
            axis.annotate(f"level shift {shift['jump']:+.0%}", (shift["at_s"] / 60, 1), (4, -10),
                          textcoords="offset points",
                          xycoords=axis.get_xaxis_transform(), color=BAD, fontsize=10)  # fmt: skip
    axis.set_ylim(0, 1.25 * max(max(series[key]) for key, _ in keys))


def mixed_figure(summary: dict[str, Any]) -> Any:
    """Ratio together/alone of every quantile with its interval, a block a service, verdict beside it."""
    services = [s for s in summary["mixed"]["services"] if s["ratios"]]
    if not services:
        return None
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    rows = sum(len(s["ratios"]) + 1 for s in services)
    height = max(SIZE[1], 0.27 * rows + 1.6)
    figure, axis = plt.subplots(figsize=(SIZE[0], height))
    figure.subplots_adjust(left=0.2, right=0.79, top=1 - 1.0 / height, bottom=0.75 / height)
    loads = ", ".join(f"{n} {kind}" for kind, n in summary["mixed"]["counts"].items())
    head = 1 - 0.33 / height
    figure.text(0.02, head, "mixed: latency together, as a multiple of alone", fontsize=18, weight="bold", va="center")
    figure.text(
        0.02,
        1 - 0.67 / height,
        f"{summary['date']}   ·   together: {loads} users   ·   95 % intervals",
        color="#444444",
        va="center",
    )
    if summary["simulated"]:
        figure.text(0.97, head, "SIMULATED", fontsize=13, weight="bold", color="white", ha="right", va="center",
                    bbox={"boxstyle": "round,pad=0.35", "facecolor": "#5b4b8a", "edgecolor": "none"})  # fmt: skip
    _ratios(axis, services)
    return figure


def _ratios(axis: Any, services: list[dict[str, Any]]) -> None:
    ends = [v for s in services for r in s["ratios"] for v in (r["low"], r["high"])]
    low, high = min(0.8, *ends) / 1.03, max(1.3, *ends) * 1.03
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.axvspan(1 / interference.FLOOR, interference.FLOOR, color=GREY, alpha=0.18, lw=0)
    axis.axvline(1, color=GREY, lw=1)
    axis.axvline(interference.STRONG, color=BAD, lw=1, ls=":")
    y, ticks, names = 0, [], []
    for s in services:
        colour = COLOURS.get(s["verdict"], GREY)
        top = y
        for r in s["ratios"]:
            axis.plot([r["low"], r["high"]], [y, y], color=colour, lw=4, alpha=0.35, solid_capstyle="butt")
            axis.plot(
                r["ratio"],
                y,
                "s" if r["metric"] == "rps" else "D" if r["who"] == "canary" else "o",
                color=colour,
                ms=5.5,
            )
            ticks.append(y)
            names.append(interference.name_of(r).replace(" of the canary", ", canary"))
            y += 1
        title = f"{s['kind']} ({s['users']} users)" if s["users"] else f"{s['kind']} (canary only)"
        words = f"{title}\n{s['verdict']}" + ("\non the shared card" if s["shared_card"] else "")
        axis.text(
            1.015,
            (top + y - 1) / 2,
            words,
            transform=axis.get_yaxis_transform(),
            color=colour,
            va="center",
            weight="bold",
        )
        axis.axhline(y, color="#e3e6e8", lw=0.8)
        y += 1
    axis.set_ylim(y - 0.6, -0.7)
    axis.set_yticks(ticks, names, fontsize=9.5)
    steps = [v for v in (0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5, 7, 10, 20, 50, 100) if low <= v <= high]
    steps = [v for v in steps if len(steps) < 9 or v not in (0.7, 0.9, 7)]
    axis.set_xticks(steps, [f"{v:g}" for v in steps])
    axis.minorticks_off()
    axis.set_xlabel(
        "together / alone      circle: load, square: its rate, diamond: canary; grey: within 5 %, dotted: strong"
    )
