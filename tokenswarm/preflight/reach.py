"""Plain GETs to a target: is it there, does it speak HTTP, does it take the key; and if not, why, in one line."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import gevent

from tokenswarm import targets

GET_TIMEOUT = 10.0
LOADING_WAIT = 120.0
BODY_MAX = 8 << 20
WORDS_MAX = 160
MESSAGE = re.compile(r'"(?:message|error|detail)"\s*:\s*"((?:[^"\\]|\\.)*)')
TAGS = re.compile(r"<(style|script|title)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


class Fault(Exception):
    """Nothing more can be checked on this target; the text is the line to show."""

    def __init__(self, check: str, line: str) -> None:
        super().__init__(line)
        self.check = check


def without_keys(text: str) -> str:
    """The text with every key that we know of taken out: servers quote them in their errors."""
    for name, key in os.environ.items():
        if name.endswith("_API_KEY") and len(key) > 3:
            text = text.replace(key, "***")
    return text


def say(line: str) -> None:
    """One line to the person at the terminal."""
    print(without_keys(f"preflight: {line}"), file=sys.stderr, flush=True)


def said(text: str) -> str:
    """The human part of an error body (JSON of any shape, HTML, text), one line, cut."""
    if found := MESSAGE.search(text):
        text = re.sub(r"\\[nrt]", " ", found[1]).replace('\\"', '"')
    elif text.lstrip().startswith("<"):
        text = TAGS.sub(" ", text)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= WORDS_MAX else text[:WORDS_MAX] + "..."


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; header names in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body if the status is 200 and it is JSON, else None."""
        try:
            return json.loads(self.body) if self.status == 200 else None
        except (ValueError, RecursionError):
            return None

    def says(self) -> str:
        """Status and the server's own words, such as `HTTP 404: Not Found`."""
        return f"HTTP {self.status}: {said(self.body.decode('utf-8', 'replace'))}".removesuffix(": ")

    def loading(self) -> bool:
        """llama.cpp and others answer so until their model is in memory."""
        return self.status == 503 and b"loading" in self.body[:1000].lower()


@dataclass(frozen=True)
class Server:
    """A target as preflight asks it; `context` is for TLS, None for http."""

    target: targets.Target
    context: Any

    @property
    def setting(self) -> str:
        """The start of the target's variables, such as LLM."""
        return self.target.kind.upper()

    def get(self, path: str, timeout: float = GET_TIMEOUT) -> Answer:
        """GET a path below the target's URL. Raises OSError, HTTPException."""
        return self.ask(self.target.url + path, timeout)

    def ask(self, url: str, timeout: float = GET_TIMEOUT) -> Answer:
        """GET any URL; the key goes to the target's own host and port only. Raises OSError, HTTPException."""
        parts, headers = urlsplit(url), self.target.headers()
        if (parts.scheme, parts.netloc) != urlsplit(self.target.url)[:2]:
            headers.pop("Authorization", None)
        link = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=timeout)
        if parts.scheme == "https":
            context = self.context or targets.tls("", False, "")
            link = http.client.HTTPSConnection(str(parts.hostname), parts.port, timeout=timeout, context=context)
        try:
            with gevent.Timeout(timeout, TimeoutError("timed out")):
                link.request("GET", parts.path or "/", headers=headers)
                answer = link.getresponse()
                fields = {name.lower(): value for name, value in answer.getheaders()}
                return Answer(answer.status, fields, answer.read(BODY_MAX))
        finally:
            link.close()


def server(options: Any, kind: str) -> Server:
    """The server of a kind, its settings checked. Raises Fault."""
    target, name = targets.target(options, kind), kind.upper()
    if not target.url:
        raise Fault("reachable", f"{name}_URL is not set: give {name}_URL=http://HOST:PORT")
    try:
        parts = urlsplit(target.url)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise Fault("reachable", f"{name}_URL has no usable host and port: give {name}_URL=http://HOST:PORT")
    key = os.environ.get(f"{name}_API_KEY", "")
    if not (key.isascii() and key.isprintable()):
        raise Fault("key", f"{name}_API_KEY holds a character that no header may carry (a line break?): set it anew")
    return Server(target, _context(options, target) if parts.scheme == "https" else None)


def _context(options: Any, target: targets.Target) -> Any:
    try:
        return targets.tls(target.ca, options.insecure, options.client_cert)
    except OSError as error:
        files = f"{target.kind.upper()}_CA={target.ca!r} CLIENT_CERT={options.client_cert!r}"
        raise Fault("reachable", f"{files} cannot be used ({error.strerror or error}): give PEM files") from None


def reach(server: Server) -> Answer:
    """The answer to GET /v1/models; a server that still loads its model is waited for. Raises Fault."""
    url, end = server.target.url, time.monotonic() + LOADING_WAIT
    answer = _first(server)
    if answer.loading():
        wait = f"waiting up to {LOADING_WAIT:g} s"
        say(f"{server.target.kind}: {url} is loading its model ({answer.says()}): {wait}")
    while answer.loading():
        if time.monotonic() > end:
            line = f"{url} was still loading its model after {LOADING_WAIT:g} s ({answer.says()})"
            raise Fault("reachable", f"{line}: wait until it is ready, then run again")
        gevent.sleep(1.0)
        answer = _first(server)
    return answer


def _first(server: Server) -> Answer:
    try:
        answer = server.get("/v1/models")
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise Fault("reachable", trouble(error, server)) from None
    _refuse(server, answer)
    return answer


def trouble(error: Exception, server: Server) -> str:
    """Why no HTTP answer came, in one line."""
    url, name = server.target.url, f"{server.setting}_URL"
    why = why_of(error)
    match error:
        case ssl.SSLCertVerificationError():
            way = f"give its CA file in {server.setting}_CA, or INSECURE=1 to go without"
            return f"the TLS certificate of {url} is not trusted ({why}): {way}"
        case ssl.SSLError() if "CERTIFICATE" in str(error).upper():
            return f"{url} does not take us without a certificate of our own ({why}): give it in CLIENT_CERT"
        case ConnectionRefusedError():
            return f"nothing listens at {url} ({why}): start the server, or correct {name}"
        case ssl.SSLEOFError() | ConnectionError() | http.client.HTTPException() if server.context:
            # TLS 1.3: the refusal of a missing client certificate races with the server's closing.
            return f"{url} breaks TLS off ({why}): if it wants a certificate of ours, give it in CLIENT_CERT"
        case ssl.SSLError():
            return f"{url} does not speak TLS ({why}): correct {name}, perhaps to http://"
        case socket.gaierror() | UnicodeError():
            host = urlsplit(url).hostname
            return f"the name {host!r} cannot be resolved ({why}): correct {name}, or give an IP address"
        case TimeoutError():
            return f"{url} gives no answer within {GET_TIMEOUT:g} s: check host, port and firewall, or correct {name}"
        case http.client.HTTPException() | ConnectionError():
            return f"{url} does not answer in HTTP ({why}): correct {name}, perhaps to https://"
    return f"{url} cannot be reached ({why}): check the network, or correct {name}"


def why_of(error: Exception) -> str:
    """An exception's own words, one short line."""
    words = (getattr(error, name, None) for name in ("verify_message", "reason", "strerror"))
    return said(str(next(filter(None, words), None) or error or type(error).__name__))


def _refuse(server: Server, answer: Answer) -> None:
    """Raise Fault for a first answer that no model list can follow."""
    url, name = server.target.url, f"{server.setting}_URL"
    if answer.status in (401, 403):
        raise Fault("key", key_line(server, answer.says()))
    if 300 <= answer.status < 400:
        to = said(answer.headers.get("location", "elsewhere"))
        raise Fault("reachable", f"{url} redirects to {to}, and redirects are not followed: correct {name}")
    if answer.status >= 500 and answer.status != 501 and not answer.loading():
        html = "html" in answer.headers.get("content-type", "")
        who = "a proxy answers, the server behind it does not" if html else "the server is not in order"
        raise Fault("reachable", f"{url} answers {answer.says()}: {who}; look into its log, or correct {name}")


def key_line(server: Server, says: str) -> str:
    """What to do about a 401 or 403; never shows the key."""
    name = f"{server.setting}_API_KEY"
    if os.environ.get(name):
        return f"the key in {name} was refused by {server.target.url} ({says}): correct it"
    return f"{server.target.url} needs a key ({says}): set {name}"
