"""Drawing functions. Each takes the summary, never raw rows, so that figure and text cannot disagree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from analysis import words

BLUE, RED, PURPLE, GREEN, ORANGE, BAD, GREY = (
    "#1f6fb4", "#d1495b", "#8d2f8f", "#2a7f4f", "#c77700", "#b3261e", "#7a838b",
)  # fmt: skip
SERIES = (("p99", PURPLE, "D"), ("p95", RED, "s"), ("p50", BLUE, "o"))
LANES = {  # key in summary -> label and colour, top to bottom
    "saturation": ("Saturation", GREEN),
    "knee": ("Knee", ORANGE),
    "queue_onset": ("Queue onset", BLUE),
    "slo_capacity": ("SLO capacity", "#5b4b8a"),
    "hard_limit": ("Hard limit", BAD),
}
SHADED = {"soft_limit": BLUE, "hard_limit": BAD}
SIZE, DPI = (12.8, 7.2), 150  # 16:9


def draw_all(summary: dict[str, Any], folder: Path) -> list[str]:
    """knee.png of the first endpoint that has limits, knee-<endpoint>.png of further ones; returns the names."""
    names: list[str] = []
    for endpoint, data in summary["endpoints"].items():
        if "limits" in data:
            names.append(f"knee-{endpoint}.png" if names else "knee.png")
            figure = knee_figure(summary, endpoint)
            figure.savefig(folder / names[-1], dpi=DPI)
            plt.close(figure)
    return names


def knee_figure(summary: dict[str, Any], endpoint: str) -> Figure:
    """Latency and throughput against concurrency, with every limit as a bracket in a lane of its own."""
    data = summary["endpoints"][endpoint]
    stages = sorted(data["stages"], key=lambda s: s["users"])
    answered = sum(s["e2e_ms"]["n"] for s in stages)
    panels = ["ttft_ms" if any(s["ttft_ms"]["n"] for s in stages) else "e2e_ms"]
    if sum(s["tpot_ms"]["n"] for s in stages) > 0.5 * answered:
        panels.append("tpot_ms")
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    heights = [2.0, 3.0, 1.5, 2.9] if len(panels) == 2 else [2.0, 3.6, 3.4]
    figure, axes = plt.subplots(len(heights), 1, figsize=SIZE, sharex=True, height_ratios=heights)
    figure.subplots_adjust(left=0.125, right=0.975, top=0.875, bottom=0.085, hspace=0.14)
    _title(figure, summary, endpoint, data)
    _user_axis(axes[-1], [s["users"] for s in stages])
    _lanes(axes[0], data["limits"], stages)
    for axis, metric in zip(axes[1:], panels, strict=False):
        _latency(axis, stages, metric, summary["slo"].get(metric))
    _throughput(axes[-1], stages)
    for axis in axes[1:]:
        _shade(axis, data["limits"])
    if any(data["limits"][key].get("bracket") for key in SHADED):
        figure.text(0.975, 0.022, "shaded: soft limit (blue), hard limit (red)", fontsize=9.5, color=GREY, ha="right")
    return figure


def _title(figure: Figure, summary: dict[str, Any], endpoint: str, data: dict[str, Any]) -> None:
    figure.text(0.02, 0.955, f"{endpoint}: {data['model'] or 'unknown model'}", fontsize=18, weight="bold", va="center")
    failed = sum(s["failures"] for s in data["stages"])
    total = sum(s["requests"] for s in data["stages"])
    facts = [data["server"], summary["date"], "closed loop, no think time", f"{total:,} requests, {failed:,} failed"]
    figure.text(0.02, 0.908, "   ·   ".join(f for f in facts if f), color="#444444", va="center")
    stamps = [("SIMULATED", "#5b4b8a")] if summary["simulated"] else []
    stamps += [(summary["state"].upper(), BAD)] if summary["state"] != "complete" else []
    for i, (word, colour) in enumerate(stamps):
        figure.text(0.97 - 0.125 * i, 0.955, word, fontsize=13, weight="bold", color="white", ha="right", va="center",
                    bbox={"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": "none"})  # fmt: skip


def _user_axis(axis: Axes, users: list[int]) -> None:
    axis.set_xscale("log")
    low, high = min(users), max(users)
    margin = 1.25 if high > low else 2
    axis.set_xlim(low / margin, high * margin)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(sorted(set(users)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("concurrent users (log scale; ticks are the tested steps)")


def _lanes(axis: Axes, limits: dict[str, Any], stages: list[dict[str, Any]]) -> None:
    """One lane a limit: a bar over its bracket and the verdict beside it, so that labels never meet."""
    keys = [key for key in LANES if limits[key].get("reason") not in ("not measured", "no SLO applies")]
    for row, key in enumerate(keys):
        _lane(axis, row, LANES[key][1], *verdict(key, limits[key]), marker=limits[key].get("users"))
    names = [LANES[key][0] for key in keys]
    failed = [(s["users"], s["failures"]) for s in stages if s["failures"]]
    for users, count in failed:
        axis.text(users, len(keys), f"{count:,}", ha="center", va="center", color=BAD, weight="bold", fontsize=10)
    names += ["Failed requests"] if failed else []
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(length=0, labelbottom=False)
    axis.spines[["left", "bottom"]].set_visible(False)


def _lane(axis: Axes, row: int, colour: str, span: tuple[int, int] | None, label: str, marker: int | None) -> None:
    left, right = axis.get_xlim()
    if span is None:
        axis.text(0.01, row, label, transform=axis.get_yaxis_transform(), va="center", color="#444444", fontsize=10.5)
        return
    low, high = max(span[0], left), max(span[1], left)
    axis.plot([low, high], [row, row], color=colour, lw=7, solid_capstyle="butt")
    axis.plot([low, high], [row, row], "|", color=colour, ms=13, mew=2.5)
    if marker and low < marker < high:  # a limit named by the step in the middle of its bracket
        axis.plot(marker, row, "o", color="white", mec=colour, ms=7, mew=1.5)
    at_right = right / high > low / left
    x, shift, side = (high, 9, "left") if at_right else (low, -9, "right")
    axis.annotate(label, (x, row), (shift, 0), textcoords="offset points", va="center", ha=side, color=colour,
                  fontsize=10.5, weight="bold")  # fmt: skip


def verdict(key: str, limit: dict[str, Any]) -> tuple[tuple[int, int] | None, str]:
    """(bracket or None, words) of one limit, short enough for a figure."""
    if key == "slo_capacity":
        return _slo_verdict(limit)
    if limit["state"] == "insufficient":
        return None, f"cannot be told: {limit['reason']}"
    if limit["state"] == "none":
        bound = limit.get("error_rate_below")
        tail = f"0 errors, rate < {100 * bound:.2g} %" if bound else f"confidence {limit['confidence']:.2f}"
        return None, f"none up to {limit['tested_to']} users ({tail})"
    low, high = limit["bracket"]
    where = f"{low} to {high} users" if 0 < low < high else f"at or below {words.users(high)}"
    sure = (
        f"confidence {limit['confidence']:.2f}" if "confidence" in limit else f"first error at {limit['first_error']}"
    )
    return (low, high), f"{where}, {limit['state']}, {sure}"


def _slo_verdict(limit: dict[str, Any]) -> tuple[tuple[int, int] | None, str]:
    users, fail = limit["users"], limit["first_fail"]
    if users and fail:
        return (users, fail), f"{users} users PASS, {fail} FAIL"
    if users:
        return None, f"at least {users} users (PASS, the highest tested that could be judged)"
    if limit["state"] == "below_lowest":
        return None, f"not met at the lowest tested concurrency, {words.users(fail)}"
    tail = f"; first FAIL at {fail}" if fail else ""
    return None, f"inconclusive: too few requests for a PASS{tail}"


def _shade(axis: Axes, limits: dict[str, Any]) -> None:
    """The soft limit's and the hard limit's bracket as a faint band through the panel."""
    for key, colour in SHADED.items():
        span = limits[key].get("bracket")
        if span:
            axis.axvspan(max(span[0], axis.get_xlim()[0]), span[1], color=colour, alpha=0.08, lw=0)


def _latency(axis: Axes, stages: list[dict[str, Any]], metric: str, slo: float | None) -> None:
    """P50 and P95 with their 95 % intervals, P99 where the sample supports it, and the SLO line."""
    _dress(axis, metric.removesuffix("_ms").upper() + "\n(ms)")
    axis.tick_params(axis="x", labelbottom=False)
    for key, colour, marker in SERIES:
        _percentile(axis, [s for s in stages if s[metric][key] is not None], metric, key, colour, marker)
    drawn = [s[metric][key] for s in stages for key, *_ in SERIES if (s[metric][key] or 0) > 0]
    if not drawn:
        _empty(axis)
        return
    top = max([*drawn, slo or 0])
    if max(drawn) > 12 * min(drawn):
        _log_scale(axis, min([*drawn, slo or drawn[0]]) / 1.3, top * 2.2)
    else:
        axis.set_ylim(0, 1.3 * top)
    if slo:
        axis.axhline(slo, color="#333333", lw=1.2, ls=(0, (6, 3)), zorder=1)
        axis.annotate(f"SLO {slo:g} ms", (0, slo), (5, -3), xycoords=axis.get_yaxis_transform(), va="top",
                      textcoords="offset points", fontsize=10, color="#333333")  # fmt: skip
    if metric != "tpot_ms":  # one legend serves both panels
        axis.legend(loc="upper left", ncols=3, frameon=False, fontsize=10.5)


def _percentile(axis: Axes, stages: list[dict[str, Any]], metric: str, key: str, colour: str, marker: str) -> None:
    if not stages:
        return
    x, y = [s["users"] for s in stages], [s[metric][key] for s in stages]
    style = {"lw": 1, "ls": ":"} if key == "p99" else {"lw": 2}
    axis.plot(x, y, color=colour, marker=marker, ms=6, label=key.upper(), **style)
    for stage, value in zip(stages, y, strict=True):
        low, high = stage[metric]["ci"][key]
        axis.vlines(stage["users"], value if low is None else low, stage[metric]["max"] if high is None else high,
                    color=colour, lw=4, alpha=0.3)  # fmt: skip
        if stage["unusable"]:
            axis.plot(stage["users"], value, marker, ms=6, mfc="white", mec=colour, zorder=4)


def _throughput(axis: Axes, stages: list[dict[str, Any]]) -> None:
    """Throughput of successes, log scale, against what the first step would give if every user got the same."""
    key, unit = _unit(stages)
    _dress(axis, f"throughput\n({unit})")
    points = [(s["users"], s[key], s["unusable"]) for s in stages if s[key]]
    if not points:
        _empty(axis)
        return
    x, y, _ = zip(*points, strict=True)
    _log_scale(axis, min(y) / 2.8, max(y) * 2)
    if len(points) > 1:
        line = [y[0], y[0] / x[0] * x[-1]]
        axis.plot([x[0], x[-1]], line, color=GREY, ls="--", lw=1.6, label="ideal (linear)")
    axis.plot(x, y, color=GREEN, marker="o", ms=6, lw=2.2, label="measured (successes only)")
    hollow = [(u, v) for u, v, out in points if out]
    if hollow:
        axis.plot(*zip(*hollow, strict=True), "o", ms=6, mfc="white", mec=GREEN, zorder=4, label="not used for limits")
    if len(points) <= 12:
        for u, v, _ in points:
            axis.annotate(f"{v:,.0f}" if v >= 10 else f"{v:.2g}", (u, v), (0, -15), textcoords="offset points",
                          ha="center", fontsize=9.5, color=GREEN)  # fmt: skip
    axis.legend(loc="upper left", frameon=False, fontsize=10.5, ncols=3)


def _unit(stages: list[dict[str, Any]]) -> tuple[str, str]:
    """Tokens for kinds that decode, items for embedding and rerank, requests for one-word answers."""
    if any(s["output_tps"] and s["tpot_ms"]["n"] for s in stages):
        return "output_tps", "output tokens/s"
    return ("items_ps", "items/s") if any(s["items_ps"] for s in stages) else ("rps", "requests/s")


def _dress(axis: Axes, label: str) -> None:
    axis.set_ylabel(label)
    axis.yaxis.set_label_coords(-0.062, 0.5)
    axis.grid(axis="y", color="#e3e6e8", lw=0.8)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _log_scale(axis: Axes, low: float, high: float) -> None:
    axis.set_yscale("log")
    axis.set_ylim(low, high)
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 80 * low else (1,)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _empty(axis: Axes) -> None:
    axis.text(0.5, 0.5, "no successful request", transform=axis.transAxes, ha="center", va="center", fontsize=14,
              color=BAD)  # fmt: skip
    axis.set_yticks([])
