"""Error rates and SLO shares by exact binomial: hard limit (method.md 2.7) and SLO capacity (2.8)."""

from __future__ import annotations

from typing import Any

from scipy import special

HARD_RATE = 0.001  # an error rate surely above 0.1 % is a limit, not bad luck
GOAL = 0.99  # share of requests that must meet the SLO


def clopper_pearson(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a share k/n."""
    tail = (1 - level) / 2
    low = float(special.betaincinv(k, n - k + 1, tail)) if k else 0.0
    return low, float(special.betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0


def zero_error_bound(n: int, level: float = 0.95) -> float:
    """Highest error rate that n requests without an error leave possible: 1 - 0.05^(1/n)."""
    return 1 - (1 - level) ** (1 / n) if n else 1.0


def slo_verdict(bad: int, n: int, goal: float = GOAL) -> str:
    """PASS, FAIL or INCONCLUSIVE at 95 %: is the share of bad requests under 1 - goal?"""
    if n and special.bdtr(bad, n, 1 - goal) <= 0.05:
        return "PASS"
    if bad and special.bdtrc(bad - 1, n, 1 - goal) <= 0.05:
        return "FAIL"
    return "INCONCLUSIVE"


def requests_needed(bad: int, goal: float = GOAL, level: float = 0.95) -> int:
    """Least n at which `bad` requests over the limit still PASS (MLPerf early stopping with d = 0)."""
    low, high = bad, 1
    while special.bdtr(bad, max(high, bad + 1), 1 - goal) > 1 - level:
        low, high = high, 2 * max(high, bad + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if special.bdtr(bad, middle, 1 - goal) <= 1 - level else (middle, high)
    return high


def hard_limit(users: list[int], errors: list[int], n: list[int]) -> dict[str, Any]:
    """First step with a server error, and the confirmed one: lower bound > 0.1 % and errors in all higher steps."""
    steps = sorted(zip(users, errors, n, strict=True))
    if not steps or not any(total for *_, total in steps):
        return {
            "first_error": None,
            "confirmed": None,
            "bracket": None,
            "state": "insufficient",
            "reason": "no requests",
        }
    broken = [bool(k) for _, k, _ in steps]
    first = broken.index(True) if any(broken) else None
    sure = [
        i for i, (_, k, total) in enumerate(steps) if k and clopper_pearson(k, total)[0] > HARD_RATE and all(broken[i:])
    ]
    confirmed = sure[0] if sure else None
    at = confirmed if confirmed is not None else first
    last_users, _, last_n = steps[-1]
    return {
        "first_error": steps[first][0] if first is not None else None,
        "confirmed": steps[confirmed][0] if confirmed is not None else None,
        "bracket": None if at is None else [steps[at - 1][0] if at else 0, steps[at][0]],
        "state": "none" if first is None else "confirmed" if confirmed is not None else "sporadic",
        "errors": sum(k for _, k, _ in steps),
        "tested_to": last_users,
        "error_rate_below": zero_error_bound(last_n) if first is None else None,
    }


def slo_capacity(users: list[int], bad: list[int], n: list[int]) -> dict[str, Any]:
    """Highest C that PASSes with no FAIL at or below it; `first_fail` is the lowest C that FAILs."""
    steps = sorted(zip(users, bad, n, strict=True))
    verdicts = [slo_verdict(k, total) for _, k, total in steps]
    fail = verdicts.index("FAIL") if "FAIL" in verdicts else len(steps)
    passes = [i for i in range(fail) if verdicts[i] == "PASS"]
    if passes:
        state = "confirmed" if fail < len(steps) else "at_least"
    else:
        state = "below_lowest" if fail == 0 else "inconclusive"
    return {
        "users": steps[passes[-1]][0] if passes else None,
        "first_fail": steps[fail][0] if fail < len(steps) else None,
        "state": state,
        "goal": GOAL,
        "verdicts": [
            {"users": c, "bad": k, "n": total, "verdict": v} for (c, k, total), v in zip(steps, verdicts, strict=True)
        ],
    }
