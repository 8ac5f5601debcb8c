"""Every warning of a report in one place: what was seen, why it matters, what to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import checks, curves
from analysis.frames import Run, Steady
from analysis.stages import StageResult

SHEDDING = ("http_429", "http_503")


@dataclass
class Caution:
    """One warning in three short sentences."""

    seen: str
    why: str
    try_: str


def all_of(run: Run, parts: list[Steady], results: list[StageResult], meter: dict[str, Any]) -> list[dict[str, str]]:
    """All warnings of a run, most basic first; `meter` is the verdict of checks.meter."""
    staged = run.requests[run.requests["stage"] != ""]
    found = [*_settings(run), *_damage(run), *_client(meter), *_failures(staged), *_answers(staged[staged["ok"]])]
    ramp = "ramp" in set(staged["phase"])
    for part, result in zip(parts, results, strict=True):
        found += _stage(part, result.figures)
        if result.figures["unusable"] and (ramp or part.finished):
            found.append(_left_out(part, result.figures["unusable"], ramp))
    found += _visits(results) if ramp else []
    found += _clocks(staged, parts)
    return [{"seen": c.seen, "why": c.why, "try": c.try_} for c in found]


def _settings(run: Run) -> Iterator[Caution]:
    if (run.info.get("options") or {}).get("insecure"):
        yield Caution(
            "TLS certificates were NOT verified (INSECURE=1)",
            "anybody may have answered in the server's place",
            "name the server's CA file, such as LLM_CA=ca.pem, and leave INSECURE out",
        )


def _damage(run: Run) -> Iterator[Caution]:
    for note in run.notes:
        yield Caution(note, "what is damaged is left out, never guessed", "run again if it matters")
    for sentence in checks.missing_records(run)[2]:
        yield Caution(sentence, "the lost ones may be the slow ones", "look at run.log and workers/ in the run folder")
    seen = run.requests["stage"].value_counts()
    for stage in run.info.get("stages") or []:
        name, want = stage.get("stage"), stage.get("requests_planned")
        if stage.get("end_reason") == "done" and want and seen.get(name, 0) != want:
            yield Caution(
                f"stage {name}: {seen.get(name, 0)} rows, {want} were planned",
                "the stage ended as done, so records were lost or doubled",
                "look at run.log in the run folder",
            )


def _client(meter: dict[str, Any]) -> Iterator[Caution]:
    if meter["state"] not in ("warned", "invalid"):
        return
    cpu, lag = meter["cpu_max_pct"], meter["lag_p99_ms"]
    load = f"{cpu:.0f} % of a core" if cpu is not None else "unknown CPU"
    share = f", {meter['lag_share_of_ttft']:.0%} of the lowest median TTFT" if meter["lag_share_of_ttft"] else ""
    late = f"event loop late by {lag:.1f} ms (P99{share})" if lag is not None else "unknown lag"
    yield Caution(
        f"busiest client process: {load}, {late}",
        "a busy client sends late and reads late: the limit found may be the client's",
        "more client processes (PROCESSES=2) or more client hosts",
    )


def _failures(rows: pd.DataFrame) -> Iterator[Caution]:
    faults = rows.loc[rows["client_fault"] & ~rows["cut"], "error"].replace("", "impossible times").value_counts()
    if len(faults):
        words = ", ".join(f"{count} {word}" for word, count in faults.items())
        yield Caution(
            f"{faults.sum()} failures on our own side ({words})",
            "they are no limit of the server and are left out of the hard limit",
            "check the options, the limit of open files (ulimit -n) and name resolution",
        )
    shed = rows[rows["error"].isin(SHEDDING)]
    if len(shed):
        notes = shed["notes"] if "notes" in shed else pd.Series(dtype=str)  # an older run has no such column
        asked = notes.str.extract(r"retry-after=([^|]+)")[0].dropna()
        wait = f", Retry-After {asked.iloc[0]} asked for" if len(asked) else ""
        words = ", ".join(sorted(set(shed["error"])))
        yield Caution(
            f"{len(shed)} requests were refused by the server to shed load ({words}{wait})",
            "a limit by the server's own policy: the accepted requests look better than what users get",
            "raise the server's queue limit or add capacity; a refusal was never sent again",
        )
    late = rows.loc[rows["error"] == "timeout", "e2e_ms"]
    if len(late):
        yield Caution(
            f"{len(late)} requests ended at a time limit of the client (median {late.median() / 1000:.3g} s)",
            "their true latency is longer than any number here",
            "raise TIMEOUT",
        )
    longest = rows.loc[rows["error"] != "timeout", "e2e_ms"]
    same = int((longest > 0.998 * longest.max()).sum())
    if longest.max() > 5000 and same >= max(5, 0.01 * len(longest)):
        yield Caution(
            f"{same} requests took the same longest time, {longest.max() / 1000:.3g} s",
            "equal maxima are a time limit of a server or proxy, not a latency",
            "look for a timeout of that length in front of the server",
        )
    cut = int((rows["error"] == "truncated").sum())
    if cut:
        yield Caution(
            f"{cut} answers were cut before their end",
            "a server or proxy drops streams under load",
            "look for these request ids in the server's log",
        )


def _answers(ok: pd.DataFrame) -> Iterator[Caution]:
    if not len(ok):
        return
    capped = (ok["outcome"] == "length").mean()
    if capped >= 0.05:
        yield Caution(
            f"{capped:.0%} of the answers ended at their token limit",
            "E2E and tokens/s compare only with runs of the same lengths",
            "keep the profile when you compare runs",
        )
    silent = int(((ok["outcome"] == "") & ok["ttft_ms"].notna()).sum())
    if silent:
        yield Caution(
            f"{silent} answers ended without a finish reason",
            "they may be shorter than asked",
            "look at their output_tokens in requests.csv",
        )
    bad = int(ok["bad_events"].fillna(0).sum())
    if bad:
        yield Caution(
            f"{bad} stream events could not be read and were skipped",
            "tokens in them are not seen",
            "look at the server's raw stream",
        )
    guessed = (ok["tokens_source"] == "chunks").mean()
    if guessed:
        yield Caution(
            f"{guessed:.0%} of the answers came without usage: their tokens are counted as chunks",
            "a chunk may hold several tokens: TPOT is per chunk and tokens/s read low",
            "a server that sends usage in the stream (stream_options.include_usage)",
        )
    per_chunk = (ok["output_tokens"] / ok["chunks"]).astype("float64").median()
    if per_chunk >= 1.5:
        yield Caution(
            f"a chunk holds {per_chunk:.1f} tokens (median)",
            "TPOT stays right, but gaps between chunks are not gaps between tokens",
            "read TPOT instead of ITL",
        )


def _stage(part: Steady, figures: dict[str, Any]) -> Iterator[Caution]:
    where = f"stage {part.stage} ({part.endpoint})"
    little = figures["little"] or {"state": "valid"}
    if little["state"] != "valid" and not figures["unusable"]:
        yield Caution(
            f"{where}: {little['n_eff']:.3g} requests in flight for {part.users} users, "
            f"X R / N {little['xr_over_n_eff']:.2f}",
            "over 5 % off Little's law: the client did not keep its users busy, or the stage was too short to settle",
            "more requests per user; look at the client's CPU",
        )
    if figures["cut"]:
        yield Caution(
            f"{where}: {figures['cut']} requests were cut by us at its end",
            "neither success nor failure; the answers that remain are the shorter ones",
            "let the stage drain",
        )
    if (figures["cached_share"] or 0) >= 0.01:
        yield Caution(
            f"{where}: {figures['cached_share']:.1%} of the prompt tokens came from the prefix cache",
            "a warm cache flatters TTFT and throughput",
            "a unique head for each prompt (the nonce, on by default)",
        )
    if "p50" in figures["e2e_ms"]["reasons"] and not figures["failures"]:
        yield Caution(f"{where}: {figures['requests']} requests are too few for a median", "no latency is printed",
                      "more requests per user (REQUESTS_PER_USER)")  # fmt: skip
    ttft = part.rows.loc[part.rows["ok"], "ttft_ms"].dropna().to_numpy()
    cut, _ = curves.mser5(ttft)
    # MSER-5 also cuts plain noise: only a start that differs from the rest is a transient
    if cut > 2 * part.users > 0 and abs(np.median(ttft[:cut]) / np.median(ttft[cut:]) - 1) > 0.2:
        yield Caution(
            f"{where}: TTFT settles only after {cut} requests (MSER-5)",
            "the transient is longer than the first wave, which is all that is dropped",
            "more requests per user (REQUESTS_PER_USER)",
        )


def _left_out(part: Steady, reason: str, ramp: bool) -> Caution:
    return Caution(
        f"stage {part.stage} ({part.endpoint}): {reason}",
        "it takes no part in saturation, knee and queue onset"
        if ramp
        else "its figures are not those of a steady load",
        "repeat the ramp with this step" if ramp else "repeat the stage",
    )


def _visits(results: list[StageResult]) -> Iterator[Caution]:
    """Two visits to the same user count that disagree: warm-up, drift, or a server that does not recover."""
    first: dict[int, float] = {}
    for result in results:
        users, rate = result.figures["users"], result.figures["rps"]
        before = first.setdefault(users, rate)
        if rate and before and abs(rate / before - 1) > 0.10:
            yield Caution(
                f"{users} users gave {before:.3g} req/s at the first visit and {rate:.3g} at a later one",
                "limits use the first visit; the server was not the same later",
                "discard the first run after a server start, then look at errors between the visits",
            )


def _clocks(rows: pd.DataFrame, parts: list[Steady]) -> Iterator[Caution]:
    user = (rows["clock"] == "user").mean() if len(rows) else 0
    if user >= 0.01:
        yield Caution(
            f"{user:.0%} of the requests were timed by the program's clock, not the kernel's",
            "waiting in our event loop is part of those latencies; lag_max_ms bounds it",
            "plain http to the server, on Linux",
        )
    lag = rows["lag_max_ms"].quantile(0.99)
    if lag > checks.LAG_WARN_MS:
        yield Caution(
            f"chunks waited up to {lag:.1f} ms (P99 of the worst of each request) before we read them",
            "the client is busy",
            "more client processes (PROCESSES=2)",
        )
    samples = [part.sample["connect_ms"] for part in parts if len(part.sample)]
    opened = pd.concat(samples).notna().mean() if samples else 0
    if opened > 0.05:
        yield Caution(
            f"only {1 - opened:.0%} of the requests reused their connection (95 % are expected)",
            "connecting costs server and client time that users with keep-alive do not pay",
            "keep-alive in the server or the proxy",
        )
