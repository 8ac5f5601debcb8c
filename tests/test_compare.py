"""Two sets of runs: known answers of method.md 8, false alarms and power, and the command on runs of a known server."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from scipy import stats as scipy_stats
from shell import ROOT

from analysis import arms, comparison, comparison_report

FIGURES = {"rps": 40.0, "output_tps": 1900.0, "goodput_rps": 40.0}
LATENCIES = {"ttft_ms": {"p50": 150.0, "p95": 220.0, "p99": 260.0}, "tpot_ms": {"p50": 11.0}, "e2e_ms": {"p50": 650.0}}


def stored(rng: np.random.Generator, name: str, sd: float = 0.02, faster: float = 1.0, started: float = 0.0,
           failures: int = 0) -> arms.Stored:  # fmt: skip
    """A run of three stages whose figures vary by `sd` from run to run; `faster` multiplies rates, divides times."""
    stages = []
    for users in (8, 16, 32):
        noise = lambda: float(np.exp(rng.normal(0, sd)))  # noqa: E731
        rates = {key: value * faster * noise() for key, value in FIGURES.items()}
        times = {k: {q: v / faster * noise() for q, v in values.items()} for k, values in LATENCIES.items()}
        stages.append({"stage": f"u{users:03d}", "users": users, "requests": 400, "failures": failures, "valid": True,
                       "finished": True} | rates | times)  # fmt: skip
    endpoint = {"model": "m", "server": "vLLM 0.32.0", "max_model_len": 4096, "slots": 64, "engine": {"facts": {}},
                "stages": stages}  # fmt: skip
    summary = {"phase": "ramp", "simulated": False, "simulator": "", "state": "complete", "reasons": [], "slo": {},
               "meter": {"state": "valid"}, "endpoints": {"llm": endpoint}}  # fmt: skip
    return arms.Stored(name, summary, {"started": started, "options": {}, "profiles": {}, "seed": 1})


def verdicts(seed: int, k: int, faster: float = 1.0) -> list[str]:
    rng = np.random.default_rng(seed)
    a = [stored(rng, f"a{i}") for i in range(k)]
    b = [stored(rng, f"b{i}", faster=faster) for i in range(k)]
    return [row["verdict"] for row in comparison.compare(a, b)]


@pytest.mark.parametrize("k", [3, 5])
def test_equal_servers_are_seldom_called_different(k: int) -> None:
    wrong = sum(bool({"better", "worse"} & set(verdicts(seed, k))) for seed in range(200))
    assert wrong <= 20, f"{wrong} of 200 comparisons of equals found a difference in any of 24 figures"


def test_a_change_of_ten_percent_is_found_with_five_runs() -> None:
    found = [verdicts(seed, 5, faster=1.10) for seed in range(50)]
    assert sum(row.count("better") for row in found) >= 0.9 * 50 * 24
    assert not any("worse" in row for row in found)


@pytest.mark.parametrize(("k", "least"), [(5, 0.00794), (6, 0.00216)])
def test_the_least_p_of_ranks(k: int, least: float) -> None:
    found = comparison.ratio(list(range(1, k + 1)), list(range(k + 1, 2 * k + 1)))
    assert found["p_ranks"] == pytest.approx(least, abs=5e-6)
    assert comparison.ratio([1.0, 2, 3, 4], [5.0, 6, 7, 8])["p_ranks"] is None, "4 runs cannot reach enough"


def test_welch_and_holm() -> None:
    x, y = np.log([100.0, 102.0, 98.0]), np.log([110.0, 113.0, 108.0])
    found = comparison.welch(x, y)
    known = scipy_stats.ttest_ind(y, x, equal_var=False)
    assert found["p"] == pytest.approx(known.pvalue)
    assert np.log([found["low"], found["high"]]) == pytest.approx(known.confidence_interval(0.95))
    assert comparison.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert comparison.welch(np.log([5.0] * 3), np.log([5.0] * 3))["p"] == 1.0


def test_a_single_pair_is_shown_and_not_tested() -> None:
    rng = np.random.default_rng(1)
    a, b = [stored(rng, "a")], [stored(rng, "b", faster=1.3)]
    rows = comparison.compare(a, b)
    assert {row["verdict"] for row in rows} == {"better, no test"} and all(row["p"] is None for row in rows)
    found = comparison_report.build(a, b, [])
    assert not found["worse"] and any(line.startswith("No test:") for line in found["headlines"])
    assert {row["verdict"] for row in comparison.compare(a, [stored(rng, "c")])} == {"within noise"}


def test_a_rate_that_is_gone_is_worse_though_zero_has_no_logarithm() -> None:
    rng = np.random.default_rng(1)
    a, b = [[stored(rng, f"{arm}{i}") for i in range(3)] for arm in "ab"]
    for run in b:
        run.summary["endpoints"]["llm"]["stages"][2]["goodput_rps"] = 0.0
    row = next(r for r in comparison.compare(a, b) if (r["stage"], r["figure"]) == ("u032", "goodput/s"))
    assert row["ratio"] is None and row["verdict"] == "worse"
    assert comparison_report.build(a, b, [])["headlines"][3].startswith("Worse: llm u032 goodput/s, ")


def test_more_failures_are_worse() -> None:
    rng = np.random.default_rng(1)
    a = [stored(rng, f"a{i}") for i in range(3)]
    b = [stored(rng, f"b{i}", failures=5) for i in range(3)]
    found = comparison_report.build(a, b, [])
    assert found["worse"] and found["failures"]["b"] == [45, 3600]
    assert found["headlines"][0].startswith("A 3 runs, 0 of 3,600 requests failed; B 3 runs, 45 of 3,600")
    assert not comparison_report.build(b, a, [])["failures"]["worse"]


def test_what_may_not_be_compared_and_what_only_weakens() -> None:
    rng = np.random.default_rng(1)
    a = [stored(rng, f"a{i}", started=i) for i in range(2)]
    b = [stored(rng, f"b{i}", started=10 + i) for i in range(2)]
    b[1].summary["meter"]["state"] = "warned"
    b[0].info["seed"] = 2
    said = arms.check(a, b)
    assert [any(word in line for line in said) for word in ("interleave them", "was busy", "seed is not")] == [True] * 3
    b[0].summary["slo"] = {"ttft_ms": 200.0}
    b[1].info["stream"] = False
    with pytest.raises(arms.NotComparable) as refused:
        arms.check(a, b)
    lines = str(refused.value).splitlines()
    assert len(lines) == 2 and lines[0].startswith("SLO differs") and lines[1].startswith("stream differs")
    with pytest.raises(arms.NotComparable, match="a0 is in both A and B"):
        arms.check(a, a)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two known servers in turn, 8 and 16 slots, each 1 % faster or slower; and one of another phase."""
    root = tmp_path_factory.mktemp("compare")
    rng = random.Random(3)
    for i, slots in enumerate((8, 16, 16, 8, 8, 16)):
        synthetic.ramp(root / f"2026010{i}T000000Z-ramp", (4, 8, 16), slots=slots, service=rng.gauss(0.5, 0.005),
                       info={"started": synthetic.START + 1000 * i, "simulator": f"--slots {slots}"})  # fmt: skip
    synthetic.ramp(root / "20260109T000000Z-ramp", (4, 8, 16), slots=8, service=0.5, info={"stream": False})
    return root


A, B = "20260100T000000Z-ramp 2026010[34]*", "2026010[125]*-ramp"


def compare(reports: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "analysis.compare", *words]
    environment = {"REPORTS": str(reports), "PYTHONPATH": str(ROOT), "HOME": str(reports)}
    return subprocess.run(command, env=environment, cwd=reports, capture_output=True, text=True, timeout=60)


def test_twice_the_slots_are_better_where_the_slots_were_the_limit(reports: Path) -> None:
    done = compare(reports, A, B, "--fail-if-worse")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = reports.glob("2*-compare")
    found: dict[str, Any] = json.loads((folder / "compare.json").read_text())
    verdict = {(row["stage"], row["figure"]): row["verdict"] for row in found["figures"]}
    assert verdict["u016", "output tokens/s"] == verdict["u016", "TTFT P50"] == "better"
    assert verdict["u004", "output tokens/s"] != "better" and "worse" not in verdict.values()
    row = next(r for r in found["figures"] if (r["stage"], r["figure"]) == ("u016", "output tokens/s"))
    assert row["low"] <= 2.0 * 1.02 and row["high"] >= 2.0 * 0.95, "16 users on 8 slots against 16"
    assert found["changed"][0] == "simulator: --slots 8 -> --slots 16"
    assert done.stdout.startswith("A 3 runs, 0 of ") and "simulated" in done.stdout.splitlines()[0]
    assert (
        "data:image/png" in (folder / "compare.html").read_text()
        and "## Limits in users" in (folder / "compare.md").read_text()
    )


def test_the_gate_and_what_is_refused(reports: Path) -> None:
    assert compare(reports, B, A, "--fail-if-worse").returncode == 1
    for words, said in ((("", B), "give A="), (("nothing", B), "no run 'nothing'"), (("2031*", B), "no run matches"),
                        ((A, "20260109T000000Z-ramp"), "stream differs"), ((A, A), "is in both A and B")):  # fmt: skip
        done = compare(reports, *words)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert all(line.startswith("compare: ") for line in done.stderr.splitlines()) and not done.stdout
