"""python -m tokenswarm.preflight [--kinds llm,guard] [--json | --quiet] [--run-dir DIR]; options from the environment.

Exit code 3 with one line on stderr per fault, 2 for wrong options, else 0; warnings do not fail."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import locust  # noqa: F401  (before all that opens sockets: it patches the standard library)
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenswarm import runs
from tokenswarm.options import KINDS, OptionError, from_environment, read_dotenv
from tokenswarm.options import kinds as kind_list
from tokenswarm.preflight.checks import Checked, check_machine, check_target
from tokenswarm.preflight.reach import say
from tokenswarm.preflight.trial import ms
from tokenswarm.record import RequestRecord

STYLES = {"ok": "green", "warning": "yellow", "fault": "red"}
PIPE_WIDTH = 140


class Parser(argparse.ArgumentParser):
    """Usage errors in one line."""

    def error(self, message: str) -> NoReturn:
        say(f"{message}; see python -m tokenswarm.preflight --help")
        raise SystemExit(2)


def parser() -> Parser:
    """The command line."""
    p = Parser(prog="python -m tokenswarm.preflight", description="Is everything in place before load starts?")
    p.add_argument("--kinds", type=kind_list, default=[], help="such as llm,guard (default: all that have a URL)")
    p.add_argument("--json", action="store_true", help="one JSON object on stdout instead of tables")
    p.add_argument("--quiet", action="store_true", help="one line per target when all is well")
    p.add_argument("--run-dir", default="", help="leave the facts in DIR/preflight.json")
    return p


def report(checked: list[Checked]) -> dict[str, Any]:
    """The JSON form: each target's facts, record, faults and warnings; then all faults and warnings as lines."""
    targets = {}
    for seen in filter(lambda seen: seen.kind, checked):
        record = asdict(seen.record) if seen.record else None
        lists = {"faults": seen.details("fault"), "warnings": seen.details("warning")}
        targets[seen.kind] = {**seen.facts, "record": record, **lists}
    faults = [line for seen in checked for line in seen.lines("fault")]
    warnings = [line for seen in checked for line in seen.lines("warning")]
    return {"ok": not faults, "targets": targets, "faults": faults, "warnings": warnings}


def save(found: dict[str, Any], folder: Path) -> None:
    """preflight.json of a run: the same, but flat facts per target, since they go into run.json. Raises OSError."""
    apart = ("record", "faults", "warnings")
    targets = {kind: {k: v for k, v in facts.items() if k not in apart} for kind, facts in found["targets"].items()}
    folder.mkdir(parents=True, exist_ok=True)
    runs.write_whole(folder / "preflight.json", json.dumps(found | {"targets": targets}, indent=1, ensure_ascii=False))


def show_tables(checked: list[Checked]) -> None:
    """A table for this machine and for each target."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    for seen in checked:
        title = f"{seen.kind}: {seen.facts['url'] or 'no URL'}" if seen.kind else "this machine"
        table = Table("check", "result", "detail", title=Text(title), title_justify="left")
        for check, result, detail in seen.rows:
            table.add_row(check, Text(result, STYLES[result]), Text(detail))
        console.print(table)


def show_quiet(checked: list[Checked]) -> None:
    """One line for each target that is in order, then the warnings."""
    for seen in checked:
        if seen.record and not seen.details("fault"):
            print(summary(seen, seen.record), flush=True)
        for line in seen.lines("warning"):
            say(f"warning: {line}")


def summary(seen: Checked, record: RequestRecord) -> str:
    """A target in one line: model, server, first token, tokens, round trip."""
    facts = seen.facts
    server = f" ({facts['server'].replace(' (simulated)', ' simulated')})" if facts["server"] else ""
    first = f"TTFT {ms(record.ttft_ms)}" if record.ttft_ms is not None else f"E2E {ms(record.e2e_ms or 0.0)}"
    count = record.output_tokens if record.output_tokens is not None else record.input_tokens
    tokens = "" if count is None else f", {count} tokens"
    return f"{seen.kind}: {facts['model']} at {facts['url']}{server}, {first}{tokens}, RTT {ms(facts['rtt_ms'])}"


def run(arguments: argparse.Namespace, options: Any) -> int:
    """Check, show, save; the exit code."""
    kinds = arguments.kinds or [kind for kind in KINDS if getattr(options, f"{kind}_url")]
    if not kinds:
        others = ", ".join(f"{kind.upper()}_URL" for kind in KINDS if kind != "llm")
        say(f"no server to check: give LLM_URL=http://HOST:PORT (or {others})")
        return 3
    checked = [check_machine(options, arguments.run_dir), *(check_target(options, kind) for kind in kinds)]
    found = report(checked)
    if arguments.run_dir:
        try:
            save(found, Path(arguments.run_dir))
        except OSError as error:
            found["ok"] = False
            found["faults"].append(f"{arguments.run_dir}/preflight.json cannot be written ({error.strerror})")
    if arguments.json:
        print(json.dumps(found, ensure_ascii=False), flush=True)
    else:
        (show_quiet if arguments.quiet else show_tables)(checked)
    for line in found["faults"]:
        say(line)
    return 0 if found["ok"] else 3


def main(words: list[str] | None = None) -> int:
    """Parse, check, and never a traceback for bad input or Ctrl-C."""
    arguments = parser().parse_args(words)
    try:
        read_dotenv(Path(".env"), os.environ)  # type: ignore[arg-type]
        options = from_environment()
    except OptionError as error:
        say(str(error))
        return 2
    options.headless = False
    signal.signal(signal.SIGINT, _interrupted)
    return run(arguments, options)


def _interrupted(*_: object) -> NoReturn:
    os.write(2, b"preflight: interrupted\n")  # a print may be going on right now
    raise SystemExit(130)  # a KeyboardInterrupt would be printed by gevent's loop


if __name__ == "__main__":
    sys.exit(main())
