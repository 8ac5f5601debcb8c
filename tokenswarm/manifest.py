"""What run.json says of a run before its first request: what was asked, of whom, with which versions."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenswarm import hello, runs
from tokenswarm.options import OPTIONS
from tokenswarm.prompts import Profile


def opening(path: Path, phase: str, plan: dict[str, Any], options: Any) -> dict[str, Any]:
    """run.json as a run begins."""
    return {
        "schema": runs.SCHEMA,
        "run": path.name,
        "phase": phase,
        "simulated": bool(options.sim),
        "simulator": options.sim,
        "started": time.time(),
        "ended": None,
        "state": "running",
        "reasons": [],
        "warnings": [],
        "plan": plan,
        "stages": [],
        "seed": options.seed,
        "slo": {"ttft_ms": options.ttft_slo, "tpot_ms": options.tpot_slo},
        "stream": options.stream,
        "nonce": options.nonce,
        "options": {o.attribute: getattr(options, o.attribute) for o in OPTIONS},
        "versions": versions(),
        "git": git_commit(),
        "content": hello.content_hash(),
        "workers": [],
    }


def add_preflight(path: Path, targets: dict[str, Any]) -> None:
    """What preflight found out about the servers, if it ran before us and left its answer in the run folder."""
    found = path / "preflight.json"
    if found.is_file():
        for kind, facts in json.loads(found.read_text(encoding="utf-8")).get("targets", {}).items():
            targets.setdefault(kind, {}).update(facts)


def shown_path(path: Path | None) -> str:
    """Where a profile lies, below the project if it is there: a report says nothing of the machine's folders."""
    home = Path(__file__).parent.parent
    return str(path.relative_to(home) if path and path.is_relative_to(home) else path.name if path else "")


def profile_facts(profile: Profile) -> dict[str, Any]:
    """What run.json keeps of a profile: enough to tell whether two runs sent the same; a guard's expected verdicts."""
    facts = {"path": shown_path(profile.path), "sha256": profile.sha256, "prompts": len(profile.prompts)}
    expected = {prompt.id: prompt.expect for prompt in profile.prompts if prompt.expect}
    return {profile.name: facts | ({"expect": expected} if expected else {})}


def versions() -> dict[str, str]:
    """Versions of everything that can move a number."""
    packages = ("locust", "gevent", "geventhttpclient", "sseclient-py", "msgspec", "pandas")
    return {"python": platform.python_version(), "platform": platform.platform()} | {p: version(p) for p in packages}


def git_commit() -> str:
    """The commit of this checkout, with + when it was changed; blank outside git."""
    here = Path(__file__).parent
    try:
        words = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12"]
        return subprocess.run(words, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
