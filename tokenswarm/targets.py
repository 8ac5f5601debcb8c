"""Which server each kind of endpoint is, and every option as a Locust option with its environment variable."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import gevent.ssl
from locust import events

from tokenswarm.options import OPTIONS
from tokenswarm.sockets import tls_context


@dataclass(frozen=True)
class Target:
    """One endpoint to load. The key is read from KIND_API_KEY on each client host and never leaves it."""

    kind: str
    url: str
    model: str
    metrics_url: str
    ca: str

    def headers(self) -> dict[str, str]:
        """Headers of every request to it; identity, since a compressed stream hides when its tokens came."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "tokenswarm"}
        if key := os.environ.get(f"{self.kind.upper()}_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        return headers


def target(options: Any, kind: str) -> Target:
    """The target of a kind from parsed options (Locust's, or options.from_environment())."""
    value = {name: getattr(options, f"{kind}_{name}") for name in ("url", "model", "metrics_url", "ca")}
    value["metrics_url"] = value["metrics_url"] or (value["url"] and value["url"] + "/metrics")
    return Target(kind, **value)


@cache
def tls(ca: str, insecure: bool, client_cert: str) -> gevent.ssl.SSLContext:
    """One TLS context for all users with the same settings."""
    return tls_context(ca, insecure, client_cert)


@events.init_command_line_parser.add_listener
def _add_options(parser: Any, **_: Any) -> None:
    for option in OPTIONS:
        parser.add_argument(
            f"--{option.name}",
            env_var=option.variable,
            default=option.default,
            type=option.parse,
            help=option.help,
            include_in_web_ui=False,
        )
