"""The client's numbers against the server's own, and the state of engine and GPUs: each a warning with its number.

Thresholds: method.md section 9 and the article's table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analysis.frames import Steady

TEMP_WARN, TEMP_HOT = 80.0, 85.0
POWER_NEAR = 0.95
TOKENS_OFF = 0.05
HIT_RATE = 0.01
BUSY_UTIL = 80.0
CLOCK_FALL = 0.10
Words = dict[str, str]


def caution(seen: str, why: str, try_: str) -> Words:
    """A warning as summary.json has it."""
    return {"seen": seen, "why": why, "try": try_}


def cross_checks(name: str, figures: dict[str, Any], part: Steady, engine: str) -> Iterator[Words]:
    """The client's numbers against the server's own."""
    e, where = figures["engine"], f"stage {part.stage} ({name})"
    if not e:
        return
    rows, ok = part.rows, part.rows[part.rows["ok"]]
    client = float(ok["ttft_ms"].mean()) if ok["ttft_ms"].notna().any() else None
    e["client_ttft_mean_ms"] = client
    if client is not None and e["ttft_mean_ms"] is not None and e["closed"]:
        yield from _ttft(where, e, client)
    sent = ok["output_tokens"].astype("float64").sum()
    all_counted = len(ok) == len(rows) and bool(len(ok)) and (ok["tokens_source"] == "usage").all()
    if e["closed"] and all_counted and e["generation_tokens"] and sent:
        yield from _tokens(where, e, float(sent))
    yield from _in_flight(where, figures, e)
    if e["prefix_hit_rate"] is not None and e["prefix_hit_rate"] >= HIT_RATE and figures["cached_share"] is None:
        yield caution(f"{where}: the server found {e['prefix_hit_rate']:.1%} of the prompt tokens in its prefix cache",
                       "a warm cache flatters TTFT and throughput", "a unique head for each prompt")  # fmt: skip


def _ttft(where: str, e: dict[str, Any], client: float) -> Iterator[Words]:
    e["outside_ms"] = outside = client - e["ttft_mean_ms"]
    e["request_ratio"] = None
    if abs(outside) > 10 and abs(outside) > 0.10 * client:
        what = "more" if outside > 0 else "less"
        yield caution(
            f"{where}: mean TTFT is {client:.0f} ms here and {e['ttft_mean_ms']:.0f} ms by the server's own count",
            f"{abs(outside):.0f} ms {what} than the server knows of: network, proxy or client"
            if outside > 0
            else "the server also counted requests that are not ours, or counts from another moment",
            "load from a host beside the server" if outside > 0 else "look for other traffic on the server",
        )


def _tokens(where: str, e: dict[str, Any], sent: float) -> Iterator[Words]:
    e["tokens_ratio"] = ratio = sent / e["generation_tokens"]
    if abs(ratio - 1) > TOKENS_OFF:
        yield caution(
            f"{where}: {sent:,.0f} output tokens counted here, {e['generation_tokens']:,.0f} by the server "
            f"({100 * (ratio - 1):+.1f} %)",
            "more on the server means other traffic on it; fewer, that one of the two counts wrong",
            "run alone on the server; compare one request (`make check`)",
        )


def _in_flight(where: str, figures: dict[str, Any], e: dict[str, Any]) -> Iterator[Words]:
    inside = [e[name]["mean"] for name in ("running", "waiting")]
    flight = (figures["little"] or {}).get("n_eff")
    if None in inside or not flight or e["samples"] < 5 or flight < 8:
        return
    e["inside_share"] = share = sum(inside) / flight
    if share < 0.8:
        yield caution(
            f"{where}: {flight:.0f} requests in flight here, {sum(inside):.1f} in the engine (running + waiting)",
            "the others were under way or queued in front of it: limited by client, network or proxy, not the engine",
            "look at the client's CPU, at proxies and their connection limits",
        )
    elif share > 1.25:
        yield caution(
            f"{where}: {flight:.0f} requests in flight here, {sum(inside):.1f} in the engine (running + waiting)",
            "the engine has other users, so the limits here are not its own",
            "run alone on the server",
        )


def clock_warnings(endpoint: dict[str, Any]) -> Iterator[Words]:
    """A busy GPU whose clock fell from one stage to a later one."""
    best: dict[str, tuple[float, str]] = {}
    for stage in endpoint["stages"]:
        for gpu, value in stage["gpus"].items():
            clock, before = value["sm_mhz"], best.get(gpu)
            if clock is None or (value["util_pct"] or 0) < BUSY_UTIL:
                continue
            if before and clock < (1 - CLOCK_FALL) * before[0]:
                yield caution(f"{gpu}: SM clock fell from {before[0]:.0f} MHz in stage {before[1]} to {clock:.0f} MHz "
                              f"in stage {stage['stage']}",
                              "consistent with a thermal or power limit: later stages had a slower machine",
                              "cooling, or a fixed clock")  # fmt: skip
            if before is None or clock > before[0]:
                best[gpu] = (clock, stage["stage"])


def engine_warnings(name: str, endpoint: dict[str, Any]) -> Iterator[Words]:
    preempted = [
        (s["stage"], s["engine"]["preemptions"]) for s in endpoint["stages"] if (s["engine"] or {}).get("preemptions")
    ]
    if preempted:
        words = ", ".join(f"{stage} {count:.0f}" for stage, count in preempted)
        yield caution(f"{name}: requests lost their KV cache and were computed again (preemptions: {words})",
                       "their tokens stall, and the work is done twice",
                       "fewer slots, a lower max-model-len, or more KV cache")  # fmt: skip
    gaps = sum((s["engine"] or {}).get("gaps", 0) for s in endpoint["stages"])
    looks = sum((s["engine"] or {}).get("samples", 0) for s in endpoint["stages"])
    if gaps:
        yield caution(f"{name}: {gaps} of {looks} looks at the server's metrics got no answer",
                       "its numbers have gaps there", "look at the server's log at these times")  # fmt: skip


def gpu_warnings(endpoints: dict[str, Any]) -> Iterator[Words]:
    """Each GPU judged once, by its worst stage."""
    worst: dict[str, dict[str, tuple[Any, str]]] = {}
    simulated, share = False, None
    for endpoint in endpoints.values():
        simulated |= endpoint["gpu_simulated"]
        told = endpoint["engine"]["facts"].get("gpu_memory_utilization")
        share = max(share or 0.0, float(told)) if isinstance(told, int | float) else share
        for stage in endpoint["stages"]:
            for gpu, value in stage["gpus"].items():
                for key in ("temp_max_c", "power_share", "mem_share", "lost", "throttle"):
                    old = worst.setdefault(gpu, {}).get(key)
                    if value[key] and (old is None or value[key] > old[0]):
                        worst[gpu][key] = (value[key], stage["stage"])
    for gpu, found in worst.items():
        yield from _gpu_warning(("simulated " if simulated else "") + gpu, found, share)


def _gpu_warning(gpu: str, worst: dict[str, tuple[Any, str]], configured: float | None) -> Iterator[Words]:
    if "lost" in worst:
        yield caution(f"{gpu} was lost in stage {worst['lost'][1]}", "errors and slow answers after that are its fault",
                       "look at dmesg for Xid messages")  # fmt: skip
    temp, stage = worst.get("temp_max_c", (0.0, ""))
    if temp >= TEMP_WARN:
        level = "hot" if temp >= TEMP_HOT else "warm"
        yield caution(f"{gpu} is {level}: {temp:.0f} C in stage {stage} (80 warm, 85 hot)",
                       "a hot GPU lowers its clocks: latency drifts", "cooling, or a lower power limit")  # fmt: skip
    thermal = [word for word in worst.get("throttle", ([], ""))[0] if "Thermal" in word or "Slowdown" in word]
    if thermal:
        yield caution(f"{gpu} slowed itself down in stage {worst['throttle'][1]}: {' + '.join(worst['throttle'][0])}",
                       "consistent with a thermal or supply limit, not one of the server", "cooling")  # fmt: skip
    power, stage = worst.get("power_share", (0.0, ""))
    if power >= POWER_NEAR:
        yield caution(f"{gpu} runs at {100 * power:.0f} % of its power limit in stage {stage}",
                       "throughput is what the power limit allows", "a higher limit, if it may")  # fmt: skip
    used, stage = worst.get("mem_share", (0.0, ""))
    allowed = (configured or 0.90) + 0.05
    if used > min(allowed, 0.99):
        told = f"the engine was given {100 * configured:.0f} %" if configured else "the engine's own share is unknown"
        yield caution(f"{gpu}: {100 * used:.0f} % of its memory in use in stage {stage}, {told}",
                       "little is left for peaks: out of memory is near", "a lower gpu-memory-utilization")  # fmt: skip
