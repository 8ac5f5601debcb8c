"""Two arms of runs, figure by figure (method.md 8). The run is the unit: a single pair of runs is no evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from analysis.arms import Stored, common

FIGURES = (  # label, where in a stage's figures, +1 when more is better
    ("requests/s", ("rps",), 1),
    ("output tokens/s", ("output_tps",), 1),
    ("goodput/s", ("goodput_rps",), 1),
    ("TTFT P50", ("ttft_ms", "p50"), -1),
    ("TTFT P95", ("ttft_ms", "p95"), -1),
    ("TTFT P99", ("ttft_ms", "p99"), -1),
    ("TPOT P50", ("tpot_ms", "p50"), -1),
    ("E2E P50", ("e2e_ms", "p50"), -1),
)
FLOOR, LEAST_FLOOR = 0.10, 0.01  # noise floor until it is known from runs; no smaller one is claimed
TEST_FROM, RANKS_FROM = 3, 5  # runs an arm needs for a t test, and for ranks to reach p < 0.05
ALPHA = 0.05


def compare(a: list[Stored], b: list[Stored]) -> list[dict[str, Any]]:
    """One entry a figure, stage and endpoint that every run has; verdicts hold over all of them together (Holm)."""
    rows = []
    for kind, stage in common(a, b):
        for label, place, better in FIGURES:
            values = [[figure(run.stages[kind, stage], place) for run in arm] for arm in (a, b)]
            if None not in values[0] + values[1]:
                head = {"endpoint": kind, "stage": stage, "figure": label, "better": better}
                rows.append(head | ratio(values[0], values[1]))  # type: ignore[arg-type]
    adjusted = iter(holm([row["p"] for row in rows if row["p"] is not None]))
    for row in rows:
        row["p_holm"] = next(adjusted) if row["p"] is not None else None
        row["verdict"] = verdict(row)
    return rows


def figure(stage: dict[str, Any], place: Sequence[str]) -> float | None:
    """A number of a stage; None if it was not measured."""
    value: Any = stage
    for key in place:
        value = value[key]
    return None if value is None else float(value)


def ratio(a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
    """B/A with its 95 % interval and p by Welch's t on ln y from 3 runs an arm, else the ratio; floor is of ln y."""
    out: dict[str, Any] = {"a": list(a), "b": list(b), "ratio": None, "low": None, "high": None, "p": None,
                           "p_ranks": None, "floor": FLOOR}  # fmt: skip
    if min(*a, *b) <= 0:
        return out  # a zero (no goodput at all) has no logarithm: shown, not tested
    x, y = np.log(np.array(a)), np.log(np.array(b))
    out["ratio"] = float(np.exp(y.mean() - x.mean()))
    out["floor"] = noise_floor([x, y])
    if min(len(a), len(b)) >= TEST_FROM:
        out |= welch(x, y)
    if min(len(a), len(b)) >= RANKS_FROM:
        from scipy.stats import mannwhitneyu  # 0.7 s to import

        out["p_ranks"] = float(mannwhitneyu(a, b, method="exact").pvalue)
    return out


def noise_floor(arms: Sequence[np.ndarray]) -> float:
    """2 sqrt2 sd(ln y) of the arm of 3 or more runs that varies most, within [1 %, 10 %]; 10 % where no arm has 3."""
    spreads = [2 * math.sqrt(2) * float(arm.std(ddof=1)) for arm in arms if len(arm) >= TEST_FROM]
    return min(FLOOR, max([LEAST_FLOOR, *spreads])) if spreads else FLOOR


def welch(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Welch's t test of two samples of logarithms: {p, low, high}, the interval as ratios."""
    parts = [float(arm.var(ddof=1)) / len(arm) for arm in (x, y)]
    error = math.sqrt(sum(parts))
    difference = float(y.mean() - x.mean())
    if error == 0:  # runs that are equal to the last digit
        return {"p": float(difference == 0), "low": math.exp(difference), "high": math.exp(difference)}
    freedom = sum(parts) ** 2 / sum(part**2 / (len(arm) - 1) for part, arm in zip(parts, (x, y), strict=True))
    p = 2 * float(special.stdtr(freedom, -abs(difference) / error))
    reach = float(special.stdtrit(freedom, 0.975)) * error
    return {"p": p, "low": math.exp(difference - reach), "high": math.exp(difference + reach)}


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given."""
    out, running = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        running = max(running, (len(ps) - rank) * ps[i])
        out[i] = min(1.0, running)
    return out


def verdict(row: dict[str, Any]) -> str:
    """better, worse, same or not resolved; of too few runs for a test: better or worse with "no test", within noise;
    zero where some runs have a rate of 0 and others not, so that nothing can be said."""
    tail = "" if min(len(row["a"]), len(row["b"])) >= TEST_FROM else ", no test"
    if row["ratio"] is None:  # a rate that is there in every run of one arm and gone in every run of the other
        came, gone = (min(row[y]) > 0 and max(row[x]) == 0 for x, y in (("a", "b"), ("b", "a")))
        return f"better{tail}" if came else f"worse{tail}" if gone else "zero"
    good = (row["ratio"] - 1) * row["better"] > 0
    if row["p"] is None:
        beyond = abs(math.log(row["ratio"])) > row["floor"]
        return f"{'better' if good else 'worse'}{tail}" if beyond else "within noise"
    if -row["floor"] <= math.log(row["low"]) and math.log(row["high"]) <= row["floor"]:
        return "same"
    if row["p_holm"] < ALPHA:
        return "better" if good else "worse"
    return "not resolved"


def failures(a: list[Stored], b: list[Stored]) -> dict[str, Any]:
    """[failed, sent] of the common stages in each arm, and Fisher's exact p that both fail alike (runs pooled)."""
    keys = common(a, b)
    (k, n), (j, m) = (
        [sum(run.stages[key][count] for run in arm for key in keys) for count in ("failures", "requests")]
        for arm in (a, b)
    )
    from scipy.stats import fisher_exact  # 0.7 s to import

    p = float(fisher_exact([[k, n - k], [j, m - j]]).pvalue) if k + j else 1.0
    return {"a": [k, n], "b": [j, m], "p": p, "worse": p < ALPHA and j * n > k * m}
