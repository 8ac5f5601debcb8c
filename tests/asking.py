"""The tests' way through tokenswarm.wire: one scenario of the scripted server, asked with a real client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripted import Server

from tokenswarm.sockets import StampedClients
from tokenswarm.users.reading import ChatReader
from tokenswarm.wire import Exchange, Limits, exchange

CASES = Path(__file__).parent / "cases"
HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
LIMITS = Limits(total=20, first_byte=10, idle=10)


def client_of(server: Server, port: str = "plain", context: Any = None) -> Any:
    """A user's client, as users/base.py makes it."""
    return StampedClients(context, 5, LIMITS.first_byte).get_client(server.url(port))


def ask(
    client: Any,
    scenario: dict[str, Any],
    limits: Limits = LIMITS,
    stream: bool = True,
    path: str = "/play",
) -> tuple[Any, ChatReader]:
    """Send one scenario and read the answer."""
    reader = ChatReader()
    reader.keep_text = True
    return exchange(client, path, json.dumps(scenario).encode(), HEADERS, reader, limits, stream), reader


def facts(x: Exchange, reader: ChatReader) -> dict[str, Any]:
    """What a record says of an answer, times aside."""
    tokens = reader.tokens(len(x.tokens), not x.error)
    return {"error": x.error, "text": "".join(reader.text), "finish": reader.finish, "chunks": len(x.tokens),
            "bad_events": reader.bad_events, "message": reader.error, **tokens}  # fmt: skip


def cases(folder: str) -> list[Any]:
    """The cases of one folder of tests/cases, by name."""
    return sorted((CASES / folder).glob("*.json"))
