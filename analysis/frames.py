"""A run folder as typed frames, tolerant of what a killed or damaged run leaves behind."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tokenswarm import runs
from tokenswarm.record import CANARY, CLIENT_ERRORS, COLUMNS, FLOAT_COLUMNS, INT_COLUMNS, read_rows

SERVER_4XX = frozenset({"http_408", "http_425", "http_429", "http_499"})
"""4xx answers that a loaded server gives; any other 4xx is a wrong request of ours, not a limit of the server."""

DAY_MS = 86_400_000.0
DURATIONS = sorted(FLOAT_COLUMNS - {"start_time", "scheduled_ms"})


@dataclass
class Run:
    """Everything of one run folder that analysis uses; `notes` are plain sentences about damage found."""

    path: Path
    info: dict[str, Any]
    requests: pd.DataFrame
    itl: pd.DataFrame
    host: pd.DataFrame
    notes: list[str] = field(default_factory=list)


@dataclass
class Steady:
    """One (stage, endpoint): all attempts in start order, and the part that stands for steady state (method 5)."""

    stage: str
    endpoint: str
    users: int
    rows: pd.DataFrame  # every attempt, column t = seconds since this client host's first request of the stage
    sample: pd.DataFrame  # attempts after each user's first
    window: tuple[float, float] | None  # (w0, w1] in t; None when there is no steady part
    finished: bool
    end_reason: str

    @property
    def seconds(self) -> float | None:
        """Length of the steady window in seconds."""
        return self.window[1] - self.window[0] if self.window else None

    @property
    def completed(self) -> pd.DataFrame:
        """Attempts that ended inside the steady window."""
        if self.window is None:
            return self.rows.iloc[:0]
        end = self.rows["t_end"]
        return self.rows[(end > self.window[0]) & (end <= self.window[1])]


def load_run(path: Path) -> Run:
    """Read a run folder; damage becomes notes, and a missing or empty file becomes an empty frame."""
    notes: list[str] = []
    return Run(
        path,
        _info(path, notes),
        _requests(path / "requests.csv", notes),
        _table(path / "itl.csv", notes),
        _table(path / "host.csv", notes),
        notes,
    )


def _info(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        info = runs.load(path)
    except FileNotFoundError:
        notes.append("run.json is missing: plan, target and versions are unknown")
    except (ValueError, AttributeError, UnicodeDecodeError) as error:
        notes.append(str(error).replace(f"{path}/", ""))
    else:
        return info
    return {"run": path.name, "state": "running"}


def _requests(path: Path, notes: list[str]) -> pd.DataFrame:
    try:
        rows, skipped = read_rows(path)
    except FileNotFoundError:
        rows, skipped = [], 0
        notes.append("no data: requests.csv is missing")
    except ValueError as error:
        rows, skipped = [], 0
        notes.append(
            str(error).replace(f"{path.parent}/", "") if path.stat().st_size else "no data: requests.csv is empty"
        )
    else:
        if not rows:
            notes.append("no data: requests.csv has a header and no rows")
    if skipped:
        notes.append(f"requests.csv: {skipped} damaged or repeated lines skipped")
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).fillna("")
    return _derive(_typed(frame, notes), notes)


def _typed(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Text -> Int64 / float64 / text; blank, nan, inf and words become NA, and all but blanks are counted in notes."""
    for name in (*sorted(INT_COLUMNS), *sorted(FLOAT_COLUMNS)):
        text = frame[name].astype(str).str.strip()
        number = pd.to_numeric(text.mask(text == ""), errors="coerce").astype("float64")
        number = number.where(np.isfinite(number))
        lost = text[(text != "") & number.isna()]
        if len(lost):
            notes.append(
                f"requests.csv: {len(lost)} values of {name} are not numbers (first: {lost.iloc[0]!r}), left out"
            )
        frame[name] = number.round().astype("Int64") if name in INT_COLUMNS else number
    return frame


def _derive(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Columns ok, client_fault, cut, odd, host, end_time and tpot_ms (by the rule of record.tpot_ms)."""
    frame["host"] = frame["worker"].astype(str).str.replace(r":[^:]*$", "", regex=True)
    frame["odd"] = _odd(frame)
    for row in frame[frame["odd"]].head(3).itertuples():
        notes.append(f"impossible times in row {row.worker} #{row.seq}: TTFT {row.ttft_ms} ms, E2E {row.e2e_ms} ms")
    if frame["odd"].sum() > 3:
        notes.append(f"{frame['odd'].sum()} rows with impossible times in all; none is used as a latency")
    error = frame["error"].astype(str)
    frame["ok"] = (error == "") & ~frame["odd"]
    frame["cut"] = error == "cancelled"
    wrong_request = error.str.match(r"http_4\d\d$") & ~error.isin(SERVER_4XX)
    frame["client_fault"] = error.isin(CLIENT_ERRORS) | wrong_request | ((error == "") & frame["odd"])
    frame["end_time"] = frame["start_time"] + frame["e2e_ms"] / 1000
    tokens = frame["output_tokens"].astype("float64")
    decode = frame["e2e_ms"] - frame["ttft_ms"]
    frame["tpot_ms"] = (decode / (tokens - 1)).where(frame["ok"] & (tokens >= 2) & (decode > 0))
    return frame


def _odd(frame: pd.DataFrame) -> pd.Series:
    """Rows whose times cannot be: negative, over a day, first token after the last, no start, no E2E of a success."""
    times = frame[DURATIONS]
    success = frame["error"].astype(str) == ""
    late = success & (frame["ttft_ms"] > frame["e2e_ms"] + 1)
    absent = frame["start_time"].isna() | (success & frame["e2e_ms"].isna())
    return (times < 0).any(axis=1) | (times > DAY_MS).any(axis=1) | late | absent


def _table(path: Path, notes: list[str]) -> pd.DataFrame:
    """A small CSV of ours (itl.csv, host.csv); rows without a number at the end are skipped with a note."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return pd.DataFrame()
    text = data[: data.rfind(b"\n") + 1].replace(b"\0", b"").decode("utf-8", "replace")
    lines = [line.split(",") for line in text.splitlines()]
    if not lines:
        return pd.DataFrame()
    frame = pd.DataFrame([line for line in lines[1:] if len(line) == len(lines[0])], columns=lines[0])
    for name in {"time", "value", "bucket", "count"} & set(frame):
        frame[name] = pd.to_numeric(frame[name], errors="coerce")
    good = frame.replace([np.inf, -np.inf], np.nan).dropna()
    if len(good) < len(lines) - 1:
        notes.append(f"{path.name}: {len(lines) - 1 - len(good)} damaged lines skipped")
    return good


def stages(run: Run) -> list[Steady]:
    """Every (stage, endpoint) of the run in the order it happened; rows without a stage belong to none."""
    known = {stage.get("stage"): stage for stage in run.info.get("stages") or []}
    warmups = [name for name, stage in known.items() if stage.get("warmup")]
    frame = run.requests[(run.requests["stage"] != "") & run.requests["start_time"].notna()]
    frame = frame[(frame["profile"] != CANARY) & ~frame["stage"].isin(warmups)]  # neither is part of the load
    order = list(known) + [name for name in frame.sort_values("start_time")["stage"].unique() if name not in known]
    complete = run.info.get("state") == "complete"
    found = []
    for position, name in enumerate(order):
        end_reason = str(known.get(name, {}).get("end_reason", ""))
        finished = end_reason in ("done", "errors") or (not end_reason and (complete or position < len(order) - 1))
        for endpoint, rows in frame[frame["stage"] == name].groupby("endpoint", sort=True):
            found.append(steady(name, str(endpoint), rows, finished, end_reason))
    return found


def steady(stage: str, endpoint: str, rows: pd.DataFrame, finished: bool = True, end_reason: str = "") -> Steady:
    """Steady part of one stage: the first C starts are dropped; rates count from start C+1 to the last start.

    Hosts are aligned by the stage's first start on each, so no difference is taken between two hosts' clocks."""
    t = rows["start_time"] - rows.groupby("host")["start_time"].transform("min")
    rows = rows.assign(t=t, t_end=t + rows["e2e_ms"] / 1000).sort_values("t", kind="stable")
    users = int(rows["users"].max()) if rows["users"].notna().any() else 0
    window = None
    if len(rows) > users + 1:
        first = rows["t_end"].min() if users == 1 else rows["t"].iloc[users]
        window = (float(first), float(rows["t"].iloc[-1]))
    if window and not window[1] > window[0]:
        window = None
    sample = rows.iloc[users:]
    return Steady(stage, endpoint, users, rows, sample[~sample["cut"]], window, finished, end_reason)


def dumps(value: Any) -> str:
    """JSON text with numpy types made plain, floats at 6 significant digits, and null for NaN and infinity."""
    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """The same value in JSON's own types; NaN and infinity become None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if value is None or value is pd.NA:
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return str(value)
