"""Verdicts of soak, mixed and baseline on run folders whose truth is known."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
import virtual

from analysis import interference, report
from analysis.gate import check


def verdicts(summary: dict[str, Any]) -> dict[str, str]:
    return {d["key"]: d["verdict"] for d in summary["soak"]["stages"][0]["drift"]}


def test_a_leak_of_so_many_ms_a_minute_is_found_with_its_rate(tmp_path: Path) -> None:
    summary = report.write(virtual.soak(tmp_path / "leak", leak_ms_per_min=0.4))
    found = {d["key"]: d for d in summary["soak"]["stages"][0]["drift"]}
    assert found["tpot_p50"]["verdict"] == "FAIL"
    assert found["tpot_p50"]["per_min"] == pytest.approx(0.4, rel=0.1)
    assert found["output_tps"]["verdict"] == "FAIL" and found["output_tps"]["effect"] < -0.1
    assert not summary["soak"]["passed"]
    assert any(line.startswith("FAIL drift of TPOT P50") for line in summary["headlines"])
    assert (tmp_path / "leak" / "soak.png").stat().st_size > 10_000


def test_no_leak_is_none(tmp_path: Path) -> None:
    summary = report.write(virtual.soak(tmp_path / "calm"))
    assert set(verdicts(summary).values()) == {"none"}
    assert summary["soak"]["passed"]
    assert summary["soak"]["memory"] == [
        {"what": "GPU memory", "verdict": "cannot judge", "reason": "no GPU data in this run"}
    ]
    assert "No failures in" in " ".join(summary["headlines"])


def test_errors_at_random_and_in_a_burst(tmp_path: Path) -> None:
    spread = report.write(virtual.soak(tmp_path / "random", hold=900, error_rate=0.004))
    burst = report.write(virtual.soak(tmp_path / "burst", hold=900, burst=(400.0, 403.0)))
    assert spread["soak"]["stages"][0]["errors"]["verdict"] == "random"
    found = burst["soak"]["stages"][0]["errors"]
    assert found["verdict"] == "clustered"
    assert found["densest_at_s"] <= 400 < found["densest_at_s"] + found["bin_s"]
    assert spread["soak"]["passed"] and not burst["soak"]["passed"]


def gpu_memory(folder: Path, mib_per_min: float) -> None:
    rng = random.Random(1)
    lines = ["time,source,metric,value"]
    for second in range(0, 1800, 5):
        at = virtual.START + second
        used = 20000 + mib_per_min * second / 60 + rng.gauss(0, 2)
        lines += [f"{at},gpu2|GPU-a,mem_used_mib,{used:.1f}", f"{at},gpu2|GPU-a,mem_total_mib,24564"]
    (folder / "gpu.csv").write_text("\n".join(lines) + "\n")


def test_gpu_memory_of_a_soak(tmp_path: Path) -> None:
    folder = virtual.soak(tmp_path / "memory", step_ms=80)
    for rate, verdict in ((0.0, "flat"), (10.0, "leak")):
        gpu_memory(folder, rate)
        summary = report.write(folder)
        (found,) = summary["soak"]["memory"]
        assert (found["what"], found["verdict"]) == ("gpu2 memory", verdict)
        assert summary["soak"]["passed"] is (verdict == "flat")
    assert found["mib_per_hour"] == pytest.approx(600, rel=0.03)
    assert found["hours_to_oom"] == pytest.approx(7.2, rel=0.03)
    assert any("7.1 hours" in line or "7.2 hours" in line for line in summary["headlines"])


def services(summary: dict[str, Any]) -> dict[str, str]:
    return {s["kind"]: s["verdict"] for s in summary["mixed"]["services"]}


COUNTS = {"llm": 12, "guard": 6}


def test_services_on_separate_cards_do_not_interfere(tmp_path: Path) -> None:
    summary = report.write(virtual.mixed(tmp_path / "apart", COUNTS, hold=45))
    assert not set(services(summary).values()) & {"strong", "interference", "drift"}
    assert [s["kind"] for s in summary["mixed"]["services"]][:2] == ["embedding", "rerank"]
    assert (tmp_path / "apart" / "mixed.png").stat().st_size > 10_000


def test_services_on_a_shared_card_do(tmp_path: Path) -> None:
    shared = [["llm", "guard", "embedding"], ["vlm"], ["rerank"]]
    summary = report.write(
        virtual.mixed(tmp_path / "shared", COUNTS, hold=45, layout=shared, options={"shared": ["guard", "llm"]})
    )
    found = services(summary)
    assert found["llm"] == found["guard"] == found["embedding"] == "strong"
    assert not {found["vlm"], found["rerank"]} & {"strong", "interference"}
    assert summary["headlines"][0].startswith("guard") and "STRONG" in summary["headlines"][0]
    by_kind = {s["kind"]: s for s in summary["mixed"]["services"]}
    canary = [r for r in by_kind["embedding"]["ratios"] if r["who"] == "canary"]
    assert canary and canary[0]["low"] > 1.2


def test_canaries_stay_out_of_the_loads_figures(tmp_path: Path) -> None:
    summary = report.write(virtual.mixed(tmp_path / "canaries", COUNTS, hold=20, canaries=0.5))
    assert set(summary["endpoints"]) == {"llm", "guard"}
    assert {s["users"] for s in summary["endpoints"]["llm"]["stages"]} == {12}


def test_another_kv_cache_is_another_server(tmp_path: Path) -> None:
    summary = report.write(virtual.mixed(tmp_path / "kv", COUNTS, hold=10, blocks={"together": 4096}))
    assert summary["mixed"]["services"] == []
    assert "KV cache of llm changed" in summary["headlines"][0]


def test_a_server_that_changed_for_good_is_drift_not_interference(tmp_path: Path) -> None:
    summary = report.write(virtual.mixed(tmp_path / "drift", COUNTS, hold=40, slower=1.4))
    assert services(summary)["llm"] == services(summary)["guard"] == "drift"


def test_effect_sizes() -> None:
    a = np.arange(1, 11.0)
    assert interference.cliffs_delta(a, a + 3) == pytest.approx(0.51)
    assert interference.hodges_lehmann(a, a + 3) == 3
    assert interference.cliffs_delta(a, a) == 0
    assert interference.mwu_p(a, a + 3) == pytest.approx(0.0630, abs=5e-5)


@pytest.mark.parametrize(("factor", "at_most", "at_least"), [(1.0, 1, 0), (1.2, 20, 19)])
def test_power_of_the_interference_rule(factor: float, at_most: int, at_least: int) -> None:
    rng = np.random.default_rng(7)
    fired = 0
    for seed in range(20):
        a, b = rng.lognormal(0, 0.25, 400), factor * rng.lognormal(0, 0.25, 400)
        fired += interference.ratio_ci(a, b, 0.5, seed)[1] > 1.05
    assert at_least <= fired <= at_most


def baseline(folder: Path, **model: Any) -> dict[str, Any]:
    rng = random.Random(2)
    rows = synthetic.stage_rows("warm", 1, 2, synthetic.START, rng, service=30.0)
    rows += synthetic.stage_rows("llm-chat", 1, 20, synthetic.START + 100, rng, **model)
    for row in rows:
        row.headers_ms = 5.0
    stages = [
        {"stage": "warm", "users": 1, "warmup": True, "requests": 2, "requests_planned": 2, "end_reason": "done"},
        {"stage": "llm-chat", "users": 1, "requests": 20, "requests_planned": 20, "end_reason": "done"},
    ]
    return report.write(synthetic.write(folder, rows, stages, phase="baseline"))


def test_one_ratio_of_many_that_is_just_over_is_chance() -> None:
    just = {"metric": "e2e_ms", "ratio": 1.20, "low": 1.06, "high": 1.36}
    flat = {"metric": "ttft_ms", "ratio": 1.0, "low": 0.90, "high": 1.11}
    assert interference.verdict({"ratios": [just], "drift": ""}) == "interference"
    assert interference.verdict({"ratios": [just, *[flat] * 14], "drift": ""}) == "not resolved"
    clear = just | {"ratio": 1.40, "low": 1.30, "high": 1.51}
    assert interference.verdict({"ratios": [clear, *[flat] * 14], "drift": ""}) == "strong"


def test_a_baseline_passes_and_warmups_count_nowhere(tmp_path: Path) -> None:
    summary = baseline(tmp_path / "good", service=2.0, tokens=100)
    assert summary["baseline"]["passed"]
    (stage,) = summary["baseline"]["stages"]
    assert stage["requests"] == 20 and stage["checks"][1]["n"] == 20
    assert stage["checks"][1]["high"] < 25
    assert report.main([str(tmp_path / "good")]) == 0


def test_a_failing_baseline_says_where_the_time_went_and_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = baseline(tmp_path / "slow", service=8.0, tokens=100)
    assert not summary["baseline"]["passed"]
    assert report.main([str(tmp_path / "slow")]) == 1
    out = capsys.readouterr().out
    assert "llm-chat: FAIL" in out and "TPOT median" in out
    assert "from the first to the last token" in out and "(99%)" in out


def test_the_gate_looks_at_the_upper_end_of_the_interval() -> None:
    values = np.array([450.0] * 11 + [520.0] * 9)
    assert float(np.median(values)) < 500
    assert not check("ttft_ms", values, 500.0)["passed"]
    assert check("ttft_ms", np.array([450.0] * 18 + [520.0] * 2), 500.0)["passed"]
    ten = check("ttft_ms", np.arange(1, 11.0), 500.0)
    assert (ten["low"], ten["high"]) == (2, 9)
    assert not check("ttft_ms", np.array([450.0] * 5), 500.0)["passed"], "five values bound no median"


def test_a_level_shift_is_told_with_its_time(tmp_path: Path) -> None:
    folder = tmp_path / "shift"
    config = replace(virtual.LLM, step_s=0.04)
    rows = virtual.run_stage("soak", {"llm": 8}, 600, configs={"llm": config}, phase="soak")
    slow = replace(config, step_s=0.06)
    rows += virtual.run_stage("soak", {"llm": 8}, 600, virtual.START + 600, configs={"llm": slow}, phase="soak", seed=2)
    stage = {
        "stage": "soak",
        "users": 8,
        "hold_s": 1200,
        "start": virtual.START,
        "end": virtual.START + 1200,
        "end_reason": "done",
    }
    synthetic.write(folder, rows, [stage], phase="soak")
    clock = [f"{virtual.START + s},gpu2|GPU-a,sm_mhz,{2520 if s < 600 else 1800}" for s in range(0, 1200, 5)]
    (folder / "gpu.csv").write_text("\n".join(["time,source,metric,value", *clock]) + "\n")
    summary = report.write(folder)
    assert any("(at that time: gpu2 clock 2520 -> 1800)" in line for line in summary["headlines"])
    shifts = {d["key"]: d["shifts"] for d in summary["soak"]["stages"][0]["drift"]}
    (shift,) = shifts["tpot_p50"]
    assert shift["at_s"] == pytest.approx(600, abs=30)
    assert shift["jump"] > 0.3
    assert not summary["soak"]["passed"]
