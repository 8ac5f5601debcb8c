"""Two sets of stored runs, A before a change of the server and B after it: read, and allowed to be compared or not."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.frames import load_run
from analysis.report import find_run
from analysis.summary import build
from tokenswarm import runs

LOAD = ("api", "max_tokens", "input_tokens", "output_tokens", "jitter")  # options that change what is sent


class NotComparable(ValueError):
    """Why runs cannot be compared; one line a reason."""


@dataclass
class Stored:
    """A stored run: its summary, worked out anew, and its run.json."""

    name: str
    summary: dict[str, Any]
    info: dict[str, Any]

    @property
    def stages(self) -> dict[tuple[str, str], dict[str, Any]]:
        """{(endpoint, stage): figures} of the stages that were finished and are valid."""
        return {
            (kind, stage["stage"]): stage
            for kind, endpoint in self.summary["endpoints"].items()
            for stage in endpoint["stages"]
            if stage["finished"] and stage["valid"]
        }


def paths(words: str) -> list[Path]:
    """The runs that a person names: folders, names under reports/, or patterns, split at blanks.

    Raises FileNotFoundError."""
    found: list[Path] = []
    for word in words.split():
        if not glob.has_magic(word):
            found.append(find_run(word))
            continue
        hits = sorted({*glob.glob(word), *glob.glob(str(runs.reports_dir() / word))})
        hits = [hit for hit in hits if (Path(hit) / "run.json").is_file()]
        if not hits:
            raise FileNotFoundError(f"no run matches {word!r}, here or under {runs.reports_dir()}/")
        found += [Path(hit).resolve() for hit in hits]
    return list(dict.fromkeys(found))


def load(words: str) -> list[Stored]:
    """Every run of one arm, oldest first. Raises FileNotFoundError."""
    loaded = [load_run(path) for path in paths(words)]
    arm = [Stored(run.path.name, build(run), run.info) for run in loaded]
    return sorted(arm, key=lambda run: run.info.get("started") or 0.0)


def load_of(run: Stored) -> dict[str, Any]:
    """What was asked of the server: must be the same in all runs, or their numbers differ for that reason."""
    summary, options = run.summary, run.info.get("options") or {}
    profiles = {name: str(facts.get("sha256"))[:12] for name, facts in (run.info.get("profiles") or {}).items()}
    models = {kind: endpoint["model"] for kind, endpoint in summary["endpoints"].items()}
    first = {"phase": summary["phase"], "simulated": summary["simulated"], "models": models, "profiles": profiles}
    asked = {key: run.info.get(key) for key in ("stream", "nonce")} | {key: options.get(key) for key in LOAD}
    return first | asked | {"SLO": summary["slo"]}


def check(a: list[Stored], b: list[Stored]) -> list[str]:
    """Warnings about what weakens the comparison. Raises NotComparable."""
    if not a or not b:
        raise NotComparable("both A and B need at least one run")
    reasons = [f"{run.name} is in both A and B" for run in a if run.name in {other.name for other in b}]
    for run in [*a, *b]:
        if run.summary["state"] == "invalid":
            reasons.append(f"{run.name} is invalid: {'; '.join(run.summary['reasons'])}")
        reasons += different(a[0], run)
    if not reasons and not common(a, b):
        reasons.append("no stage is finished and valid in every run: compare runs of the same ladder (STEPS=)")
    if reasons:
        raise NotComparable("\n".join(dict.fromkeys(reasons)))
    return [*weaknesses(a, b), *order(a, b)]


def different(first: Stored, other: Stored) -> list[str]:
    """Every part of the load in which two runs differ."""
    one, two = load_of(first), load_of(other)
    return [f"{key} differs: {one[key]!r} in {first.name}, {two[key]!r} in {other.name}: not the same load"
            for key in one if one[key] != two[key]]  # fmt: skip


def common(a: list[Stored], b: list[Stored]) -> list[tuple[str, str]]:
    """(endpoint, stage) that every run has, in the order of the first."""
    return [key for key in a[0].stages if all(key in run.stages for run in [*a, *b])]


def weaknesses(a: list[Stored], b: list[Stored]) -> list[str]:
    """What else differs, or was not as it should be."""
    both = [*a, *b]
    out = [f"{run.name} is incomplete: only its finished stages count" for run in both
           if run.summary["state"] == "incomplete"]  # fmt: skip
    out += [f"{run.name}: the client was busy (event loop or CPU)" for run in both
            if run.summary["meter"]["state"] == "warned"]  # fmt: skip
    seen: dict[str, list[Any]] = {
        "seed": [run.info.get("seed") for run in both],
        "the client's software": [run.info.get("versions") for run in both],
        "tokenswarm's own code": [run.info.get("content") for run in both],
        "the number of load processes": [len(run.info.get("workers") or []) for run in both],
        "KEEPALIVE": [(run.info.get("options") or {}).get("keepalive") for run in both],
        "the ladder": [list(run.stages) for run in both],
    }
    out += [f"{what} is not the same in all runs" for what, values in seen.items()
            if any(value != values[0] for value in values)]  # fmt: skip
    for name, arm in (("A", a), ("B", b)):
        if any(settings(run) != settings(arm[0]) for run in arm):
            out.append(f"the runs of {name} were not made with one configuration of the server")
    return out


def order(a: list[Stored], b: list[Stored]) -> list[str]:
    """All of A before all of B: a drift of the machine looks like the change."""
    starts = [[run.info.get("started") or 0.0 for run in arm] for arm in (a, b)]
    apart = max(starts[0]) < min(starts[1]) or max(starts[1]) < min(starts[0])
    if apart and len(a) + len(b) > 2:
        return ["all runs of one arm were made before those of the other: a drift of the machine looks like the change;"
                " interleave them (A B B A)"]  # fmt: skip
    return []


def settings(run: Stored) -> dict[str, str]:
    """What is known of the server's configuration: version, settings that it tells, the simulator's arguments."""
    known = {"simulator": run.summary["simulator"]} if run.summary["simulated"] else {}
    for kind, endpoint in run.summary["endpoints"].items():
        facts = endpoint["engine"]["facts"] | {"server": endpoint["server"], "max_num_seqs": endpoint.get("slots")}
        facts["max_model_len"] = endpoint["max_model_len"]
        known |= {f"{kind} {name}": str(value) for name, value in facts.items() if value not in (None, "")}
    return known


def changed(a: list[Stored], b: list[Stored]) -> list[str]:
    """Settings that differ between the arms: what was changed on purpose, as far as it can be seen."""
    one, two = settings(a[0]), settings(b[0])
    return [f"{name}: {one.get(name, 'unknown')} -> {two.get(name, 'unknown')}"
            for name in dict.fromkeys([*one, *two]) if one.get(name) != two.get(name)]  # fmt: skip
