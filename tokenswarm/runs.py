"""Where a run lives: reports/<UTC time>-<phase>/, its run.json, and the newest run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA = 1


def reports_dir() -> Path:
    """The folder all runs live in: REPORTS, or reports/ under the working directory."""
    return Path(os.environ.get("REPORTS") or "reports")


def new_run(phase: str, reports: Path | None = None) -> Path:
    """Make and return a fresh run folder; a second run within the same second waits for the next one."""
    root = reports or reports_dir()
    while True:
        path = root / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{phase}"
        try:
            (path / "workers").mkdir(parents=True)
            return path
        except FileExistsError:
            time.sleep(0.2)


def discard(run: Path) -> None:
    """Nothing was measured: leave no empty run behind."""
    for path in sorted(run.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    run.rmdir()


def point_latest(run: Path) -> None:
    """Make reports/latest link to this run (replaced in one step)."""
    link = run.parent / f".latest-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(run.name)
    link.replace(run.parent / "latest")


def all_runs(phase: str = "", reports: Path | None = None) -> Iterator[Path]:
    """Run folders, newest first; only those of one phase if given."""
    root = reports or reports_dir()
    found = [p for p in root.glob(f"2*-{phase or '*'}") if (p / "run.json").is_file()]
    yield from sorted(found, key=lambda p: p.name, reverse=True)


def find(name: str) -> Path:
    """The run that a person means: a folder, a name under reports/, or `latest`. Raises FileNotFoundError."""
    for path in (Path(name), reports_dir() / name):
        if (path / "run.json").is_file():
            return path.resolve()
    known = ", ".join(p.name for p in list(all_runs())[:3]) or "none yet; `make ramp` makes one"
    where = f"a run is a folder with a run.json under {reports_dir()}/"
    raise FileNotFoundError(f"no run '{name}': {where} (newest: {known})")


def load(run: Path) -> dict[str, Any]:
    """run.json of a run folder; raises ValueError in one line if it is not readable."""
    try:
        info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{run}/run.json is damaged ({error}); the rows in requests.csv are untouched") from None
    if info.get("schema") != SCHEMA:
        raise ValueError(f"{run}/run.json has schema {info.get('schema')!r}; this version reads {SCHEMA}")
    return info


def save(run: Path, info: dict[str, Any]) -> None:
    """Write run.json so that a reader sees the old or the new one, never a half."""
    write_whole(run / "run.json", json.dumps(info, indent=1, ensure_ascii=False))


def write_whole(path: Path, text: str) -> None:
    """Write a text file in one step (temporary file, then rename)."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
