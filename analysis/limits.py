"""Limits of a step ramp by forward log-log elasticity (method.md 2.2), and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

RESAMPLES = 300
STEP_NOISE = 0.02  # run-to-run sd of a step's rate that batch means cannot see


@dataclass
class Step:
    """One usable ramp step: C, X, its relative standard error, and the latency samples in start order."""

    users: int
    rate: float
    rate_se: float = 0.0
    ttft: np.ndarray = field(default_factory=lambda: np.array([]))
    tpot: np.ndarray = field(default_factory=lambda: np.array([]))


def elasticity(users: np.ndarray, y: np.ndarray) -> np.ndarray:
    """E[i, j] = ln(y_j/y_i) / ln(C_j/C_i) for j > i, NaN elsewhere."""
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.subtract.outer(np.log(y), np.log(y)).T / np.subtract.outer(np.log(users), np.log(users)).T
    out[np.tril_indices(len(users))] = np.nan
    return out


def flat_from(users: np.ndarray, y: np.ndarray, below: float) -> int | None:
    """First i with max over j > i of E(i, j) < below: no tested step beyond pays."""
    grows = elasticity(users, y)[:-1]
    hits = np.flatnonzero(np.nanmax(grows, axis=1) < below)
    return int(hits[0]) if len(hits) else None


def steep_from(users: np.ndarray, y: np.ndarray, at_least: float, rise: float) -> int | None:
    """First i with min over j > i of E(i, j) >= at_least and y_last/y_i >= rise."""
    grows = elasticity(users, y)[:-1]
    # 1e-9: an elasticity of exactly 0.5 or 1 must not fall to rounding
    hits = np.flatnonzero((np.nanmin(grows, axis=1) >= at_least - 1e-9) & (y[-1] / y[:-1] >= rise))
    return int(hits[0]) if len(hits) else None


def find(
    users: np.ndarray,
    rate: np.ndarray,
    ttft_p99: np.ndarray | None = None,
    tpot_p99: np.ndarray | None = None,
    idle: float = 0.0,
) -> dict[str, int | None]:
    """Index of each limit's step, None where there is none; a latency missing at any step yields none."""
    found = {
        "saturation": flat_from(users, rate, 0.20),
        "knee": steep_from(users, np.maximum(users / rate - idle, 1e-6), 0.50, 1.20),
        "queue_onset": None if ttft_p99 is None else steep_from(users, ttft_p99, 1.00, 1.50),
        "tpot_knee": None if tpot_p99 is None else steep_from(users, tpot_p99, 0.50, 1.50),
    }
    soft = [i for i in (found["queue_onset"], found["knee"]) if i is not None]
    return found | {"soft_limit": min(soft) if soft else None}


def retrograde(rate: np.ndarray) -> bool:
    """Throughput at the last step is under 95 % of the best."""
    return bool(rate[-1] < 0.95 * rate.max())


def crossing(
    users: tuple[float, float], response: tuple[float, float], rate_max: float, bracket: tuple[float, float]
) -> float:
    """N* = a X/(1 - b X): where R = a + b N through two steps meets the best rate X, clipped to the bracket."""
    b = (response[1] - response[0]) / (users[1] - users[0])
    a = response[1] - b * users[1]
    n = a * rate_max / (1 - b * rate_max) if b * rate_max < 1 else np.inf
    return float(np.clip(n, *bracket))


def bracket(name: str, i: int, users: np.ndarray, rate: np.ndarray) -> tuple[int, int]:
    """Tested user counts between which the limit lies.

    Queue onset names the last good step, so it lies above: (C_i, C_i+1]. Saturation is reached BY C_i, so it lies
    below, unless C_i is still over 5 % short of the best rate. A knee is the step nearest to the bend: both sides."""
    below = int(users[i - 1]) if i else 1
    if name == "queue_onset":
        return int(users[i]), int(users[i + 1])
    if name == "saturation" and rate[i] >= 0.95 * rate.max():
        return below, int(users[i])
    return below, int(users[i + 1])


def _estimate(span: tuple[int, int], users: np.ndarray, rate: np.ndarray) -> float | None:
    low = int(np.searchsorted(users, span[0]))
    if low < 1 or users[low] != span[0]:
        return None
    response = users / rate
    pair = slice(low - 1, low + 1)
    return crossing(tuple(users[pair]), tuple(response[pair]), rate.max(), span)


def _p99(samples: list[np.ndarray]) -> np.ndarray | None:
    return np.array([np.quantile(s, 0.99) for s in samples]) if all(len(s) for s in samples) else None


def block_p99(values: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES) -> np.ndarray:
    """P99 of circular block bootstrap samples; blocks of n^(1/3) requests in start order keep their correlation."""
    n = len(values)
    size = max(1, round(n ** (1 / 3)))
    starts = rng.integers(0, n, (resamples, -(-n // size)))
    out = []
    for some in np.array_split(starts, 1 + n * resamples // 2_000_000):  # a few MB at a time
        picks = (some[:, :, None] + np.arange(size)).reshape(len(some), -1)[:, :n] % n
        out.append(np.quantile(values[picks], 0.99, axis=1))
    return np.concatenate(out)


def resampled(steps: list[Step], rng: np.random.Generator, idle: float = 0.0) -> list[dict[str, int | None]]:
    """The limits' step indices in each of 300 bootstrap worlds."""
    users = np.array([s.users for s in steps], dtype=float)
    spread = np.sqrt([s.rate_se**2 + STEP_NOISE**2 for s in steps])
    rates = np.array([s.rate for s in steps]) * np.exp(rng.standard_normal((RESAMPLES, len(steps))) * spread)
    tails = []
    for samples in ([s.ttft for s in steps], [s.tpot for s in steps]):
        whole = all(len(s) for s in samples)
        tails.append(np.column_stack([block_p99(s, rng) for s in samples]) if whole else [None] * RESAMPLES)
    return [find(users, rates[k], tails[0][k], tails[1][k], idle) for k in range(RESAMPLES)]


def ramp_limits(steps: list[Step], seed: int = 1, idle: float = 0.0) -> dict[str, Any]:
    """Saturation, knee, queue onset, TPOT knee and soft limit; `idle` = seconds a user spends between requests."""
    steps = first_visits(steps)
    if len(steps) < 3:
        reason = f"{len(steps)} usable step{'' if len(steps) == 1 else 's'}, at least 3 are needed"
        empty = {
            "users": None,
            "bracket": None,
            "state": "insufficient",
            "confidence": None,
            "reason": reason,
        }
        return {name: dict(empty) for name in ("saturation", "knee", "queue_onset", "tpot_knee", "soft_limit")}
    users = np.array([s.users for s in steps], dtype=float)
    rate = np.array([s.rate for s in steps])
    ttft, tpots = _p99([s.ttft for s in steps]), _p99([s.tpot for s in steps])
    point = find(users, rate, ttft, tpots, idle)
    worlds = resampled(steps, np.random.default_rng(seed), idle)
    measured = {"queue_onset": ttft is not None, "tpot_knee": tpots is not None}
    out = {
        name: _limit(name, i, point, users, rate, [w[name] for w in worlds])
        if measured.get(name, True)
        else {
            "users": None,
            "bracket": None,
            "state": "insufficient",
            "confidence": None,
            "reason": "not measured",
        }
        for name, i in point.items()
    }
    best = int(rate.argmax())
    out["retrograde"] = {"found": retrograde(rate), "best_users": int(users[best]), "best_rps": rate[best]}
    return out


def first_visits(steps: list[Step]) -> list[Step]:
    """Steps sorted by users; of several visits to one user count the first stays (going up, before hysteresis)."""
    seen: dict[int, Step] = {}
    for step in steps:
        seen.setdefault(step.users, step)
    return [seen[users] for users in sorted(seen)]


def _limit(
    name: str,
    i: int | None,
    point: dict[str, int | None],
    users: np.ndarray,
    rate: np.ndarray,
    worlds: list[int | None],
) -> dict[str, Any]:
    """One limit as it stands in summary.json."""
    out: dict[str, Any] = {
        "users": None,
        "bracket": None,
        "state": "none",
        "tested_to": int(users[-1]),
        "confidence": sum(w == i for w in worlds) / len(worlds),
        "range": _range(worlds, users),
    }
    if i is None:
        return out
    kind = name
    if name == "soft_limit":
        kind = "queue_onset" if point["queue_onset"] == i else "knee"
        out["from"] = kind
    span = bracket(kind, i, users, rate)
    confirmed = users[-1] / users[i] >= 1.5
    out |= {
        "users": int(users[i]),
        "bracket": span,
        "state": "confirmed" if confirmed else "suspected",
        "at_lowest": i == 0,
    }
    if not confirmed:
        out["reason"] = f"add a step at {int(np.ceil(1.5 * users[i]))} users or more"
    if point["saturation"] is not None:
        out["estimate"] = _estimate(span, users, rate)
    return out


def _range(worlds: list[int | None], users: np.ndarray) -> list[int | None]:
    """2.5 to 97.5 % range of the step over the bootstrap worlds; None = no such limit up to the last step."""
    places = sorted(len(users) if w is None else w for w in worlds)
    ends = places[int(0.025 * len(places))], places[min(len(places) - 1, int(0.975 * len(places)))]
    return [int(users[e]) if e < len(users) else None for e in ends]
