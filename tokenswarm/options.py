"""Every option once: its name, its environment variable, its default, what is allowed. (stdlib only)

The launcher checks the environment with it, targets.py makes Locust options of it, the docs list it."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

USERS = Path(__file__).parent / "users"
KINDS = sorted(path.stem for path in USERS.glob("*.py") if path.stem not in ("__init__", "base", "reading"))


def _number(low: float, what: str, cast: Callable[[str], Any] = float) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = cast(text)
        except ValueError:
            value = None
        if value is None or not value >= low:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return parse


count = _number(1, "a whole number from 1", int)
whole = _number(0, "a whole number from 0", int)
seconds = _number(0, "a number of seconds from 0")
millis = _number(0, "a number of milliseconds from 0")
share = _number(0, "a share from 0, such as 0.1")


def steps(text: str) -> list[int]:
    """User counts of a ramp, such as `1,5,10` or `1 5 10`: whole numbers from 1, rising."""
    words = text.replace(",", " ").split()
    bad = [word for word in words if not word.isdigit() or int(word) < 1]
    if bad or not words:
        raise argparse.ArgumentTypeError(
            f"{text!r}: {bad[0] if bad else 'nothing'!r} is not a user count; give whole numbers from 1, such as 1,5,10"
        )
    users = [int(word) for word in words]
    if any(b <= a for a, b in itertools.pairwise(users)):
        raise argparse.ArgumentTypeError(f"{text!r} does not rise: give each user count once, smallest first")
    return users


def rates(text: str) -> list[float]:
    """Arrival rates in requests/s, such as `5,8,9`: numbers above 0."""
    try:
        found = [float(word) for word in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if not found or not all(0 < rate < 1e6 for rate in found):
        raise argparse.ArgumentTypeError(f"{text!r}: give rates in requests/s above 0, such as 5,8,9")
    if len({f"{rate:g}" for rate in found}) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r}: give each rate once")
    return found


def kinds(text: str) -> list[str]:
    """Kinds of endpoint, such as `llm,guard`."""
    found = list(dict.fromkeys(text.replace(",", " ").split()))
    if bad := [kind for kind in found if kind not in KINDS]:
        raise argparse.ArgumentTypeError(f"{bad[0]!r} is not one of: {', '.join(KINDS)}")
    return found


def switch(text: str) -> bool:
    """on/off, 1/0, true/false, yes/no."""
    word = text.strip().lower()
    if word in ("1", "on", "true", "yes"):
        return True
    if word in ("0", "off", "false", "no"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is not a switch: give 1 or 0")


def choice(*allowed: str) -> Callable[[str], str]:
    """One of these words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of: {', '.join(allowed)}")
        return text

    return parse


def url(text: str) -> str:
    """An http(s) base URL; a trailing / or /v1 is taken off, since the paths are added by the user classes."""
    if not text:
        return ""
    head, _, rest = text.partition("://")
    if head not in ("http", "https") or not rest or any(c.isspace() for c in text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL: give http://HOST:PORT")
    if "@" in rest or "?" in rest:
        raise argparse.ArgumentTypeError("a URL with a name, a key or a query in it: put the key into its own variable")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


@dataclass(frozen=True)
class Option:
    """`name` is the Locust option (--name), `env` its variable; `parse` raises ArgumentTypeError in one line."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str
    env: str = ""

    @property
    def variable(self) -> str:
        return self.env or self.name.upper().replace("-", "_")

    @property
    def attribute(self) -> str:
        return self.name.replace("-", "_")


def _target(kind: str) -> list[Option]:
    return [
        Option(f"{kind}-url", "", url, f"base URL of the {kind} server"),
        Option(f"{kind}-model", "", str, f"model name for the {kind} server (taken from it when it has only one)"),
        Option(f"{kind}-metrics-url", "", url, f"the {kind} server's metrics (default: its URL + /metrics)"),
        Option(f"{kind}-ca", "", str, f"file with the CA certificates that the {kind} server's own is signed by"),
    ]


OPTIONS: list[Option] = [
    *(option for kind in KINDS for option in _target(kind)),
    Option("endpoint", "llm", choice(*KINDS), "the kind of endpoint that a single-kind phase loads"),
    Option("steps", None, steps, "user counts of the ramp (default: those in locustfiles/ramp.py)"),
    Option("requests-per-user", None, count, "requests a user sends in a stage (20)"),
    Option("min-requests", None, whole, "a stage has at least so many requests, so that its P95 means something (100)"),
    Option("cooldown", None, seconds, "s of rest between stages (5)"),
    Option("kinds", None, kinds, "kinds that baseline, mixed and campaign load (default: all that have a URL)"),
    Option(
        "soak-users",
        None,
        count,
        "users of the soak (default: as many as the target's newest ramp allows)",
        env="USERS",
    ),
    Option("hold", None, seconds, "s that a stage of soak, mixed or poisson lasts (default: those of the plan)"),
    *(Option(f"{kind}-users", None, whole, f"users of {kind} in mixed (default: those of the plan)") for kind in KINDS),
    Option("shared", ["embedding", "rerank"], kinds, "kinds that share a card in your layout (embedding,rerank)"),
    Option("canary-every", 2.0, _number(0.1, "a number of seconds from 0.1"), "s between a canary's requests in mixed"),
    Option("rates", None, rates, "arrival rates of poisson in requests/s (default: shares of the ramp's best rate)"),
    Option("seed", 1, whole, "seed of every draw: equal seeds send equal prompts"),
    Option("prompts", "", str, "prompts to send: a name under profiles/ or a .jsonl file (default: the kind's own)"),
    Option("api", "", str, "path style of the kind, such as chat or completions (llm), rerank or score (rerank)"),
    Option("stream", True, switch, "stream the answers (0: whole replies, no TTFT)"),
    Option("nonce", True, switch, "a unique head on each prompt, so that the server's prefix cache cannot help"),
    Option("jitter", 0.10, share, "spread of fixed output lengths"),
    Option("max-tokens", 0, whole, "output limit of each request instead of the profile's (0: the profile's)"),
    Option("input-tokens", 0, whole, "synthetic prompts of about so many tokens instead of a profile"),
    Option("output-tokens", 0, whole, "fixed output length of synthetic prompts"),
    Option("timeout", 600.0, seconds, "s until a whole request is given up"),
    Option("ttft-timeout", 300.0, seconds, "s until the first token must have come"),
    Option("idle-timeout", 120.0, seconds, "s without a byte in the middle of an answer"),
    Option("tokens-per-word", 1.3, share, "of the synthetic prompts, as preflight measured it on the server"),
    Option("prompt-overhead", 0.0, share, "tokens of a request's frame, as preflight measured it"),
    Option("keepalive", True, switch, "reuse connections (0: a fresh one each; set where preflight sees them closed)"),
    Option("connect-timeout", 10.0, seconds, "s for TCP + TLS"),
    Option("ttft-slo", 500.0, millis, "ms: goal for TTFT"),
    Option("tpot-slo", 50.0, millis, "ms: goal for TPOT"),
    Option("watch", True, switch, "sample engines, GPUs and this host beside the load (0: no samples)"),
    Option("gpu-metrics-url", "", url, "metrics of a dcgm-exporter, or of `make gpu-agent`, on the GPU host"),
    Option("insecure", False, switch, "do not verify TLS certificates (said loudly in every report)"),
    Option("client-cert", "", str, "PEM file with our own certificate and key, for servers that ask for one"),
    Option("run-dir", "", str, "folder of this run (default: a new one under reports/)"),
    Option("sim", "", str, "arguments of the built-in simulator, such as '--slots 16'", env="TOKENSWARM_SIM"),
]


class OptionError(ValueError):
    """A variable whose value is not allowed; the text is the one line to show."""


def from_environment(environ: Mapping[str, str] = os.environ) -> SimpleNamespace:
    """All options from their variables, as the attributes that Locust's parsed options have. Raises OptionError."""
    values = SimpleNamespace()
    for option in OPTIONS:
        text = environ.get(option.variable, "")
        try:
            setattr(values, option.attribute, option.parse(text) if text else option.default)
        except argparse.ArgumentTypeError as error:
            raise OptionError(f"{option.variable}={error}") from None
    return values


def read_dotenv(path: Path, environ: dict[str, str]) -> None:
    """Take NAME=value lines of a .env file into environ where the name is not set yet. Raises OptionError."""
    if not path.is_file():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip().removeprefix("export ")
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip().isidentifier():
            raise OptionError(f"{path}:{number}: {line!r} is not NAME=value")
        environ.setdefault(name.strip(), value.strip().strip("'\""))
