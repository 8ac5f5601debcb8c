"""Samples joined to stages, and the sentences that name a limit, from run folders with known contents."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import START, stage_rows, write

from analysis import causes, resources
from analysis.frames import load_run, stages
from analysis.summary import build

SLOTS = 16
COUNTS = ("generation_tokens", "ttft_sum", "ttft_count", "preemptions", "prefix_hits", "prefix_queries")


class Folder:
    """A ramp of 8, 20 and 40 users whose engine and GPU are as told."""

    def __init__(self, path: Path, slots: int = SLOTS, steps: tuple[int, ...] = (8, 20, 40), **info: Any) -> None:
        rng, at, rows, known = random.Random(5), START, [], []
        self.spans: list[tuple[str, int, float, float]] = []
        for users in steps:
            mine = stage_rows(f"u{users:03d}", users, users * 20, at, rng, slots=slots)
            end = max(r.start_time + (r.e2e_ms or 0) / 1000 for r in mine)
            self.spans.append((f"u{users:03d}", users, at, end))
            known.append(
                {
                    "stage": f"u{users:03d}",
                    "users": users,
                    "requests_planned": len(mine),
                    "requests": len(mine),
                    "failures": 0,
                    "start": at,
                    "end": end,
                    "end_reason": "done",
                }
            )
            rows, at = rows + mine, end + 5
        self.rows, self.slots = rows, slots
        self.path = write(path, rows, known, **info)

    def engine(
        self,
        kv: float = 0.31,
        preempt: float = 0.0,
        scale: float = 1.0,
        ttft: float = 1.0,
        inside: float = 1.0,
        hits: float = 0.0,
        reset_at: float | None = None,
    ) -> None:
        """engine.csv of an engine with the folder's slots: truth by the rows, changed by these factors."""
        starts = np.array([r.start_time for r in self.rows])
        ends = starts + np.array([r.e2e_ms or 0 for r in self.rows]) / 1000
        firsts = starts + np.array([r.ttft_ms or 0 for r in self.rows]) / 1000
        lines, last = ["time,source,metric,value"], float(ends.max()) + 2
        base = 0.0
        for t in np.arange(START - 1, last, 1.0):
            flight = inside * ((starts <= t) & (ends > t)).sum()
            done = ends <= t
            tokens = scale * (100 * done.sum() + (100 * np.clip((t - firsts) / (ends - firsts), 0, 1))[~done].sum())
            if reset_at is not None and t >= reset_at:
                base = base or tokens
                tokens -= base
            seen = firsts <= t
            values = {
                "up": 1,
                "running": min(flight, self.slots),
                "waiting": max(0, flight - self.slots),
                "kv_use": kv * min(flight, self.slots) / self.slots,
                "generation_tokens": tokens,
                "ttft_sum": ttft * (firsts - starts)[seen].sum(),
                "ttft_count": seen.sum(),
                "preemptions": preempt * (t - START),
                "prefix_hits": hits * seen.sum() * 200,
                "prefix_queries": seen.sum() * 200,
            }
            lines += [f"{t:.3f},llm,{name},{value:.6g}" for name, value in values.items()]
        (self.path / "engine.csv").write_text("\n".join(lines) + "\n")
        self.watch(sources={"llm": {"engine": "vLLM", "facts": {"gpu_memory_utilization": 0.92}}})

    def watch(self, **found: Any) -> None:
        (self.path / "watch.json").write_text(json.dumps({"schema": 1, "notes": [], "gpus": {}} | found))

    def gpu(self, **values: float) -> None:
        lines, last = ["time,source,metric,value"], self.spans[-1][3]
        for t in np.arange(START, last, 1.0):
            lines += [f"{t:.3f},gpu0|GPU-x,{name},{value:g}" for name, value in values.items()]
        (self.path / "gpu.csv").write_text("\n".join(lines) + "\n")

    def summary(self) -> dict[str, Any]:
        return build(load_run(self.path))


def why(summary: dict[str, Any]) -> str:
    return " / ".join(summary["endpoints"]["llm"]["why"])


def warned(summary: dict[str, Any], words: str) -> list[str]:
    return [w["seen"] for w in summary["warnings"] if words in w["seen"]]


def test_a_slot_limit_is_named_from_the_data(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    folder.engine(kv=0.31)
    summary = folder.summary()
    assert why(summary).startswith(
        "waiting > 0 from stage u020 on, running = 16 = max_num_seqs, KV 31 %: consistent with a slot limit"
    )
    stages_ = summary["endpoints"]["llm"]["stages"]
    assert [s["engine"]["waiting"]["median"] for s in stages_] == [0, 4, 24]
    assert all(s["engine"]["closed"] for s in stages_)
    assert not warned(summary, "by the server"), "client and server agree"


def test_max_num_seqs_is_claimed_only_where_it_is_known(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run", simulated=False, simulator="")
    folder.engine()
    assert "running = 16, KV" in why(folder.summary())
    known = Folder(tmp_path / "two", simulated=False, targets={"llm": {"url": "http://a", "model": "m", "slots": 16}})
    known.engine()
    assert "running = 16 = max_num_seqs" in why(known.summary())


@pytest.mark.parametrize(
    ("kv", "preempt", "words"),
    [(0.97, 0, "with a KV-cache limit"), (0.5, 0.2, "with a KV-cache limit"), (0.92, 0, "both")],
)
def test_a_full_kv_cache_is_no_slot_limit(tmp_path: Path, kv: float, preempt: float, words: str) -> None:
    folder = Folder(tmp_path / "run")
    folder.engine(kv=kv, preempt=preempt)
    summary = folder.summary()
    assert words in why(summary) and (words == "both" or "slot limit" not in why(summary))
    assert bool(warned(summary, "preemptions")) == bool(preempt)


def test_no_queue_is_said_as_such(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run", slots=64)
    folder.engine()
    assert why(folder.summary()).startswith("no requests waited in the engine up to stage u040 (running up to 40)")


@pytest.mark.parametrize(("factor", "warns"), [(1.0, False), (1.04, False), (1.12, True), (0.90, True)])
def test_tokens_of_both_sides(tmp_path: Path, factor: float, warns: bool) -> None:
    folder = Folder(tmp_path / "run")
    folder.engine(scale=factor)
    summary = folder.summary()
    assert bool(warned(summary, "output tokens counted here")) == warns
    ratios = [s["engine"]["tokens_ratio"] for s in summary["endpoints"]["llm"]["stages"]]
    assert ratios == pytest.approx([1 / factor] * 3, rel=0.01)


def test_ttft_of_both_sides(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    folder.engine(ttft=0.5)
    summary = folder.summary()
    outside = [s["engine"]["outside_ms"] for s in summary["endpoints"]["llm"]["stages"]]
    client = [s["engine"]["client_ttft_mean_ms"] for s in summary["endpoints"]["llm"]["stages"]]
    assert outside == pytest.approx([c / 2 for c in client], rel=0.02)
    assert len(warned(summary, "by the server's own count")) == 3


def test_requests_that_are_not_in_the_engine_mean_a_limit_before_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run", slots=64)
    folder.engine(inside=0.4)
    assert len(warned(folder.summary(), "in the engine (running + waiting)")) >= 2
    folder.engine(inside=1.0)
    assert not warned(folder.summary(), "in the engine (running + waiting)")


def test_a_counter_that_goes_back_is_a_restart(tmp_path: Path) -> None:
    assert resources.growth(np.array([10.0, 30.0, 5.0, 8.0])) == 20 + 5 + 3
    folder = Folder(tmp_path / "run")
    folder.engine(reset_at=folder.spans[1][2] + 3)
    ratios = [s["engine"]["tokens_ratio"] for s in folder.summary()["endpoints"]["llm"]["stages"]]
    assert ratios[1] == pytest.approx(1, abs=0.06) and ratios[2] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temp_c": 86}, "is hot: 86"),
        ({"temp_c": 81}, "is warm"),
        ({"power_w": 420, "power_limit_w": 425}, "power limit"),
        ({"throttle": 0x20}, "SwThermalSlowdown"),
        ({"mem_used_mib": 24000, "mem_total_mib": 24564}, "98 % of its memory"),
        ({"lost": 1}, "was lost"),
        ({"temp_c": 70, "mem_used_mib": 23000, "mem_total_mib": 24564, "throttle": 4}, ""),
    ],
)
def test_a_gpu_is_judged_with_its_number(tmp_path: Path, values: dict[str, float], words: str) -> None:
    folder = Folder(tmp_path / "run", steps=(8,))
    folder.engine()
    folder.gpu(**values)
    found = warned(folder.summary(), "gpu0")
    assert (len(found) == 1 and words in found[0]) if words else found == []


def test_utilisation_near_100_is_no_warning_and_a_low_one_a_hint(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run", steps=(2, 8, 16, 32, 48))
    folder.engine()
    folder.gpu(util_pct=99)
    assert "outside the GPU" not in why(folder.summary())
    folder.gpu(util_pct=35, power_w=120, power_limit_w=425)
    assert "busiest GPU is at 35 %, power at 28 %" in why(folder.summary())


def test_a_clock_that_falls_is_said(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    folder.engine()
    folder.gpu(util_pct=99, sm_mhz=2520)
    assert not warned(folder.summary(), "clock")
    late = folder.spans[2][2]
    file = folder.path / "gpu.csv"
    rows = file.read_text().splitlines()[1:]
    slow = [row.replace(",2520", ",1900") if float(row.split(",")[0]) >= late else row for row in rows]
    file.write_text("\n".join(["time,source,metric,value", *slow]) + "\n")
    assert warned(folder.summary(), "SM clock fell from 2520 MHz in stage u008 to 1900 MHz in stage u040")


def test_a_busy_client_is_a_limit_of_its_own(tmp_path: Path) -> None:
    busy = [{"worker": "box:1", "rows": 1, "cpu_max_pct": 97.0, "lag_p99_ms": 2.0}]
    folder = Folder(tmp_path / "run", steps=(8, 16, 32, 48), workers=busy)
    folder.slots = 1000  # the engine says that nothing waits in it
    folder.engine()
    assert "limit of the client, not saturated" in why(folder.summary())
    folder.slots = SLOTS
    folder.engine()
    assert "limit of the client" not in why(folder.summary())


def test_without_samples_all_is_blank_and_nothing_fails(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    summary = folder.summary()
    assert why(summary) == "" and [s["engine"] for s in summary["endpoints"]["llm"]["stages"]] == [None] * 3
    assert causes.table(summary["endpoints"]["llm"]) == []
    folder.watch(notes=["no metrics from http://x (refused): blank"])
    (folder.path / "engine.csv").write_bytes(b"time,source,metric,value\n17\0,llm,up,1\n1796092201.0,llm,ru")
    summary = folder.summary()
    assert warned(summary, "no metrics from") and summary["state"] == "complete"


def test_stages_do_not_share_counters(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    folder.engine()
    run = load_run(folder.path)
    spans = resources.spans(run, stages(run))
    assert all(a.end <= b.before for a, b in itertools.pairwise(spans)) and spans[0].after == spans[1].start
