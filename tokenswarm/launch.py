"""What `make ramp` runs: simulator if no server is named, preflight, Locust headless, report. One exit code.

0 done; 1 a gate failed; 2 usage; 3 preflight failed; 4 the run is invalid; 130 interrupted, what was measured kept."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from tokenswarm import campaign, hosts, options, runs
from tokenswarm.children import call

PLANS = {path.stem for path in (Path(__file__).parent.parent / "locustfiles").glob("*.py")}
PRESETS = {
    "demo": {
        "PLAN": "ramp",
        "SIM": "--slots 16",
        "STEPS": "1,4,8,16,32,48",
        "REQUESTS_PER_USER": "10",
        "MIN_REQUESTS": "40",
        "COOLDOWN": "1",
    }
}
SIM_DEFAULT = "--slots 32"
MANY = ("baseline", "mixed", "campaign", "check")  # load every kind that has a URL, or those that KINDS names


class Usage(ValueError):
    """A mistake in the call; its text is the line to show."""


def main(words: list[str]) -> int:
    """`python -m tokenswarm.launch PLAN`, or `ui` (Locust's web UI), `master`, `worker`; returns the exit code."""
    try:
        if words == ["worker"]:
            options.read_dotenv(Path(".env"), os.environ)  # type: ignore[arg-type]
            return hosts.worker(os.environ)
        plan = prepare(words, os.environ)
        values = options.from_environment()
    except (Usage, hosts.HostError, options.OptionError) as error:
        print(f"tokenswarm: {error}", file=sys.stderr)
        return 2
    simulated = "TOKENSWARM_SIM" in os.environ
    named = [kind for kind in options.KINDS if getattr(values, f"{kind}_url")]
    needs = plan not in MANY or plan == "campaign"  # one kind, which a campaign's ramp and soak have too
    if named and needs and values.endpoint not in named:
        print(f"tokenswarm: {named[0].upper()}_URL is given, but {values.endpoint.upper()}_URL is not: give it, or"
              f" ENDPOINT={named[0]}", file=sys.stderr)  # fmt: skip
        return 2
    if words == ["master"] and not loaded(plan, values):
        print("tokenswarm: give LLM_URL= (or another kind's) as the client hosts see it; for a try, on one of them:"
              " make sim SIM='--host ADDRESS'", file=sys.stderr)  # fmt: skip
        return 2
    if not simulated and not loaded(plan, values):
        return under_simulator(words, values.endpoint)
    signal.signal(signal.SIGINT, lambda *_: None)  # Locust answers Ctrl-C; we stay to report
    if plan == "check":
        return python("tokenswarm.preflight")
    if plan == "campaign":
        return campaign.run(values)
    return run_ui(plan, values) if words[0] == "ui" else run(plan, values)


def loaded(plan: str, values: SimpleNamespace) -> list[str]:
    """Kinds with a URL that the plan loads."""
    kinds = (values.kinds or options.KINDS) if plan in MANY else [values.endpoint]
    return [kind for kind in kinds if getattr(values, f"{kind}_url")]


def prepare(words: list[str], environ: os._Environ[str]) -> str:
    """Fill the environment: presets, .env, the simulator's targets. Returns the plan. Raises Usage, OptionError."""
    known = PLANS | PRESETS.keys() | {"ui", "campaign", "check", "master", "worker"}
    if len(words) != 1 or words[0] not in known:
        raise Usage(f"which plan? give one of: {', '.join(sorted(known))}")
    for name, value in PRESETS.get(words[0], {}).items():
        environ.setdefault(name, value)
    options.read_dotenv(Path(".env"), environ)  # type: ignore[arg-type]
    if words[0] in PRESETS:  # on the simulator, whatever server is named elsewhere
        environ.update({f"{kind.upper()}_URL": "" for kind in options.KINDS})
    if "TOKENSWARM_SIM" in environ:
        for kind in options.KINDS:
            environ[f"{kind.upper()}_URL"] = environ["SIM_URL"]
            environ[f"{kind.upper()}_MODEL"] = f"sim-{kind}"
    default = {"ui": "live", "master": "ramp", "demo": "ramp"}.get(words[0])
    plan = environ.get("PLAN", default) if default else words[0]
    if plan not in PLANS | {"campaign", "check"}:
        raise Usage(f"PLAN={plan!r} is not one of: {', '.join(sorted(PLANS))}")
    number = environ.get("PROCESSES", "1")
    if not number.isdigit() or int(number) < 1:
        raise Usage(f"PROCESSES={number!r} is not a whole number from 1")
    if words[0] == "master" and plan in ("live", "campaign"):
        raise Usage(f"PLAN={plan!r} cannot be run by `make master`: give one of {', '.join(sorted(PLANS - {'live'}))}")
    if words[0] == "master":
        hosts.be_master(environ)
    return plan


def under_simulator(words: list[str], endpoint: str) -> int:
    """Run ourselves again with the simulator serving meanwhile."""
    arguments = os.environ.get("SIM") or SIM_DEFAULT
    print(f"tokenswarm: no {endpoint.upper()}_URL given: the built-in simulator ({arguments}) plays the server")
    serve = [sys.executable, "-m", "simulator", *shlex.split(arguments)]
    again = [*serve, "--run", sys.executable, "-m", __spec__.name, *words]
    signal.signal(signal.SIGINT, lambda *_: None)
    return call(again, env={**os.environ, "TOKENSWARM_SIM": arguments})


def run(plan: str, values: SimpleNamespace) -> int:
    """Preflight, load, report."""
    given, kinds = os.environ.pop("NEW_RUN", ""), loaded(plan, values)  # a campaign makes the folder itself
    run_dir = Path(given) if given else runs.new_run(plan)
    if code := preflight(run_dir, kinds):
        runs.discard(run_dir)
        return code
    os.environ["RUN_DIR"] = str(run_dir)
    load = locust(plan, run_dir)
    if load == 2 and not (run_dir / "run.json").is_file():  # the plan said in one line why it cannot be made
        runs.discard(run_dir)
        return load
    if not (run_dir / "run.json").is_file():
        print(f"tokenswarm: Locust ended before the run began; its last words:\n{last_words(run_dir)}", file=sys.stderr)
        return load or 4
    report = python("analysis.report", str(run_dir))
    return load or report


def take_model(run_dir: Path, endpoint: str) -> None:
    """Use what preflight found: the model where none was named, what synthetic prompts weigh, closed connections."""
    facts = json.loads((run_dir / "preflight.json").read_text(encoding="utf-8"))["targets"].get(endpoint, {})
    if facts.get("model"):
        os.environ[f"{endpoint.upper()}_MODEL"] = facts["model"]
    for fact in ("tokens_per_word", "prompt_overhead"):
        if facts.get(fact) is not None:
            os.environ[fact.upper()] = str(facts[fact])
    if facts.get("keepalive") is False:
        os.environ.setdefault("KEEPALIVE", "0")


def locust(plan: str, run_dir: Path) -> int:
    """Locust headless; its tables and log go to run.log, our progress line to the terminal."""
    words = [
        "--headless",
        "--only-summary",
        "--logfile",
        str(run_dir / "run.log"),
        "--html",
        str(run_dir / "locust.html"),
    ]
    words += ["--csv", str(run_dir / "locust"), "--stop-timeout", "5", *processes()]
    with (run_dir / "run.log").open("ab") as log:
        return python("locust", "-f", f"locustfiles/{plan}.py", *words, stdout=log)


def processes() -> list[str]:
    """PROCESSES=n: n load processes on a private port of their own."""
    number = os.environ.get("PROCESSES", "1")
    if int(number) == 1:
        return []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    bind = ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-host", "127.0.0.1"]
    return ["--processes", number, *bind, "--master-port", port]


def preflight(run_dir: Path, kinds: list[str]) -> int:
    """Check these kinds' servers and take over what was found; the exit code."""
    code = python("tokenswarm.preflight", "--quiet", "--kinds", ",".join(kinds), "--run-dir", str(run_dir))
    for kind in kinds if not code else ():
        take_model(run_dir, kind)
    return code


def run_ui(plan: str, values: SimpleNamespace) -> int:
    """Locust's web UI on this machine only."""
    with tempfile.TemporaryDirectory() as folder:
        if code := preflight(Path(folder), loaded(plan, values)):
            return code
    port = os.environ.get("UI_PORT", "8089")
    print(f"tokenswarm: open http://127.0.0.1:{port} (live charts: http://127.0.0.1:{port}/live); Ctrl-C ends it")
    words = [
        "-f",
        f"locustfiles/{plan}.py",
        "--web-host",
        "127.0.0.1",
        "--web-port",
        port,
        "--stop-timeout",
        "5",
        *processes(),
    ]
    return python("locust", *words)


def python(module: str, *words: str, stdout: object = None) -> int:
    """Run a module with this Python; its exit code."""
    return call([sys.executable, "-m", module, *words], stdout=stdout)


def last_words(run_dir: Path) -> str:
    """The end of run.log."""
    log = run_dir / "run.log"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]) if log.is_file() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
