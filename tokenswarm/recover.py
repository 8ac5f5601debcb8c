"""Rows that never reached the master, taken from the workers' spool files into requests.csv. (stdlib only)"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenswarm import runs
from tokenswarm.record import COLUMNS, complete_lines, header

RUN, WORKER, SEQ = (COLUMNS.index(name) for name in ("run", "worker", "seq"))
Row = list[str]


def recover(run: Path, spools: Iterable[Path]) -> tuple[Counter[str], int]:
    """(rows added by worker, double rows dropped): merge spool files into the run's requests.csv by (worker, seq).

    The file is replaced in one step, and only if something changed; run.json keeps what was added. Raises ValueError
    in one line for a spool file of another run, or of another version."""
    seen: set[tuple[str, str]] = set()
    kept, doubles = [], 0
    target = run / "requests.csv"
    for row in _rows(target) if target.is_file() else ():
        doubles += (key := (row[WORKER], row[SEQ])) in seen
        if key not in seen:
            seen.add(key)
            kept.append(row)
    added: Counter[str] = Counter()
    for spool in spools:
        for row in _of_run(spool, run.name):
            if (key := (row[WORKER], row[SEQ])) not in seen:
                seen.add(key)
                kept.append(row)
                added[row[WORKER]] += 1
    if added or doubles:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(kept)
        runs.write_whole(target, header().decode() + text.getvalue())
        _note(run, added)
    return added, doubles


def _rows(path: Path) -> Iterator[Row]:
    """Whole rows; a line that a killed process left half is no row."""
    lines = csv.reader(complete_lines(path))
    if next(lines, None) != list(COLUMNS):
        raise ValueError(f"{path}: not rows of this version of tokenswarm: the first line is not its header")
    return (row for row in lines if len(row) == len(COLUMNS) and row != list(COLUMNS))


def _of_run(spool: Path, run: str) -> Iterator[Row]:
    for row in _rows(spool):
        if row[RUN] != run:
            raise ValueError(f"{spool}: holds rows of run {row[RUN]}, not of {run}")
        yield row


def _note(run: Path, added: Counter[str]) -> None:
    try:
        info = runs.load(run)
    except (OSError, ValueError):
        return  # a killed run may have none; the rows are there all the same
    info["recovered"] = dict(Counter(info.get("recovered") or {}) + added)
    runs.save(run, info)


def gap_seen(info: dict[str, Any]) -> bool:
    """Whether rows may lie in the spool files only: a run that was killed, or a worker that did not hand in all."""
    workers = info.get("workers") or []
    return info.get("state") in (None, "running") or any(not w.get("complete", True) for w in workers)


def recover_at_hand(run: Path) -> list[str]:
    """Recover from the spool files in the run's own folder where a gap was seen; sentences on what was done."""
    try:
        info = runs.load(run)
    except (OSError, ValueError):
        info = {}
    if not gap_seen(info):
        return []
    try:
        added, doubles = recover(run, sorted((run / "workers").glob("*.csv")))
    except (OSError, ValueError) as error:
        return [f"rows could not be recovered from {run}/workers: {error}"]
    out = [f"{count} rows of worker {worker} recovered from its spool file" for worker, count in sorted(added.items())]
    return out + ([f"{doubles} double rows dropped"] if doubles else [])


def main(words: list[str]) -> int:
    """`recover RUN SPOOL...`: 0 when done, 2 for a mistake in the call."""
    if len(words) < 3 or words[0] != "recover":
        print("usage: python -m tokenswarm.recorder recover RUN SPOOL...", file=sys.stderr)
        return 2
    try:
        run = runs.find(words[1])
        added, doubles = recover(run, map(Path, words[2:]))
    except (OSError, ValueError) as error:
        print(f"recover: {error}", file=sys.stderr)
        return 2
    for worker, count in sorted(added.items()):
        print(f"{count} rows of worker {worker} added to {run}/requests.csv")
    print(f"{sum(added.values())} rows added, {doubles} double rows dropped; `make report RUN={run.name}` sums up anew")
    return 0
