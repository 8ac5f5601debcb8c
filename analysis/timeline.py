"""timeline.png: users, TTFT, tokens/s, queue and GPU of a run on one time axis."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames import Run
from analysis.plots import BAD, BLUE, DPI, GREEN, GREY, ORANGE, PURPLE, RED, SIZE, _dress
from analysis.resources import Samples, load

BINS = 240


def draw(run: Run, summary: dict[str, Any]) -> list[str]:
    """Write timeline.png into the run folder; [] when there is nothing to show."""
    if not run.requests["ok"].any():
        return []
    figure = timeline(run, load(run.path, []), summary)
    figure.savefig(run.path / "timeline.png", dpi=DPI)
    plt.close(figure)
    return ["timeline.png"]


def timeline(run: Run, samples: Samples, summary: dict[str, Any]) -> Figure:
    """The figure; a panel without data is left out."""
    zero = float(run.requests["start_time"].min())
    rows = run.requests[run.requests["ok"]]
    width = max(1.0, (float(rows["end_time"].max()) - zero) / BINS)
    panels: list[tuple[str, Any]] = [("users", lambda a: _users(a, run, zero))]
    if rows["ttft_ms"].notna().any():
        panels.append(("TTFT (ms)", lambda a: _ttft(a, rows, zero, width)))
    panels.append(("output tok/s", lambda a: _tokens(a, rows, samples.engine, zero, width)))
    if len(samples.engine):
        panels.append(("requests\nin the engine", lambda a: _queue(a, samples.engine, zero)))
    if _has(samples.gpu, "mem_used_mib") or _has(samples.gpu, "power_w"):
        panels.append(("GPU", lambda a: _gpu(a, samples.gpu, zero)))
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(len(panels), 1, figsize=SIZE, sharex=True)
    figure.subplots_adjust(left=0.1, right=0.9, top=0.9, bottom=0.085, hspace=0.22)
    for axis, (label, fill) in zip(axes, panels, strict=True):
        _dress(axis, label)
        fill(axis)
        axis.set_ylim(bottom=0)
        for stage in (run.info.get("stages") or [])[1:]:
            if stage.get("start"):
                axis.axvline(stage["start"] - zero, color="#e3e6e8", lw=1, zorder=0)
    axes[-1].set_xlabel("seconds since the first request (grey lines: a stage begins)")
    axes[-1].set_xlim(0, float(rows["end_time"].max()) - zero)
    figure.text(0.02, 0.955, "Timeline", fontsize=18, weight="bold", va="center")
    words = [summary["run"], summary["date"], f"bins of {width:.0f} s"]
    figure.text(0.125, 0.955, "   ·   ".join(words), color="#444444", va="center")
    if summary["simulated"]:
        figure.text(0.97, 0.955, "SIMULATED", fontsize=13, weight="bold", color="white", ha="right", va="center",
                    bbox={"boxstyle": "round,pad=0.35", "facecolor": "#5b4b8a", "edgecolor": "none"})  # fmt: skip
    return figure


def _has(frame: pd.DataFrame, metric: str) -> bool:
    return bool((frame["metric"] == metric).any())


def _users(axis: Axes, run: Run, zero: float) -> None:
    """Requests in flight, from the records themselves; failures as ticks."""
    known = run.requests.dropna(subset=["start_time", "end_time"])
    at = np.concatenate([known["start_time"], known["end_time"]]) - zero
    step = np.concatenate([np.ones(len(known)), -np.ones(len(known))])
    order = np.argsort(at, kind="stable")
    axis.step(at[order], np.cumsum(step[order]), where="post", color=GREY, lw=1, label="requests in flight")
    planned = [s for s in run.info.get("stages") or [] if s.get("start") and s.get("users")]
    for i, stage in enumerate(planned):
        end = stage.get("end") or float(run.requests["end_time"].max())
        axis.plot([stage["start"] - zero, end - zero], [stage["users"]] * 2, color=BLUE, lw=2.2,
                  label="users of the stage" if i == 0 else None)  # fmt: skip
    bad = run.requests[~run.requests["ok"] & ~run.requests["cut"]]
    if len(bad):
        axis.plot(bad["start_time"] - zero, np.zeros(len(bad)), "|", color=BAD, ms=10, label="failed", clip_on=False)
    _legend(axis)


def _bins(times: pd.Series, zero: float, width: float) -> pd.Series:
    return ((times - zero) // width) * width + width / 2


def _ttft(axis: Axes, rows: pd.DataFrame, zero: float, width: float) -> None:
    values = rows["ttft_ms"].groupby(_bins(rows["start_time"], zero, width))
    for q, colour in ((0.95, RED), (0.5, BLUE)):
        one = values.quantile(q)
        one = one.reindex(np.arange(width / 2, one.index.max() + width / 2, width))  # a gap stays a gap
        axis.plot(one.index, one, color=colour, lw=1.6, marker="o", ms=2.5, label=f"P{100 * q:.0f}")
    _legend(axis)


def _tokens(axis: Axes, rows: pd.DataFrame, engine: pd.DataFrame, zero: float, width: float) -> None:
    """Client: a request's tokens spread evenly over its decoding; server: its counter's growth."""
    edges = np.arange(0, float(rows["end_time"].max()) - zero + 2 * width, width)
    counted = rows.dropna(subset=["output_tokens"])
    total = np.zeros(len(edges))
    begin = (counted["start_time"] + counted["ttft_ms"].fillna(0) / 1000 - zero).to_numpy()
    end = (counted["end_time"] - zero).to_numpy()
    tokens = counted["output_tokens"].to_numpy(dtype=float)
    for i, edge in enumerate(edges):
        total[i] = (tokens * np.clip((edge - begin) / np.maximum(end - begin, 1e-6), 0, 1)).sum()
    axis.plot(edges[1:] - width / 2, np.diff(total) / width, color=GREEN, lw=1.8, label="client")
    for source, one in engine[engine["metric"] == "generation_tokens"].groupby("source"):
        steps = one["value"].diff()
        speed = (steps.where(steps >= 0, one["value"]) / one["time"].diff()).to_numpy()
        axis.plot(
            one["time"] - one["time"].diff() / 2 - zero,
            speed,
            color=ORANGE,
            lw=1.2,
            ls="--",
            label=f"server's counter ({source})",
        )
    _legend(axis)


def _queue(axis: Axes, engine: pd.DataFrame, zero: float) -> None:
    for metric, colour in (("running", GREEN), ("waiting", RED)):
        for source, one in engine[engine["metric"] == metric].groupby("source"):
            axis.step(
                one["time"] - zero, one["value"], where="post", color=colour, lw=1.6, label=f"{metric} ({source})"
            )
    twin = _twin(axis, "KV cache %\n(dotted)")
    for _, one in engine[engine["metric"] == "kv_use"].groupby("source"):
        twin.plot(one["time"] - zero, 100 * one["value"], color=PURPLE, lw=1.4, ls=":")
    twin.set_ylim(0, 100)
    _legend(axis)


def _gpu(axis: Axes, gpu: pd.DataFrame, zero: float) -> None:
    """Memory at the left, power at the right, a line for each GPU."""
    twin = _twin(axis, "power W (dotted)", GREY)
    for i, (source, one) in enumerate(gpu[gpu["metric"] == "mem_used_mib"].groupby("source")):
        colour = (BLUE, GREEN, ORANGE, RED, PURPLE)[i % 5]
        axis.plot(one["time"] - zero, one["value"] / 1024, color=colour, lw=1.8,
                  label=f"{str(source).partition('|')[0]} memory")  # fmt: skip
        power = gpu[(gpu["metric"] == "power_w") & (gpu["source"] == source)]
        twin.plot(power["time"] - zero, power["value"], color=colour, lw=1.2, ls=":")
    axis.set_ylabel("GPU GiB")
    twin.set_ylim(0, 1.4 * max(1.0, twin.get_ylim()[1]))
    _legend(axis)


def _twin(axis: Axes, label: str, colour: str = PURPLE) -> Axes:
    twin = axis.twinx()
    twin.spines["right"].set_visible(True)
    twin.set_ylabel(label, color=colour)
    twin.tick_params(axis="y", colors=colour)
    return twin


def _legend(axis: Axes) -> None:
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.35 * (high - low))
    axis.legend(loc="upper left", ncols=6, frameon=False, fontsize=9.5, borderaxespad=0.1)
