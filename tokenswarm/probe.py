"""What a server says of itself before load starts: is it there, which models, which version, metrics, round trip."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import gevent

from tokenswarm import targets

GET_TIMEOUT = 10.0
LOADING_WAIT = 120.0
BODY_MAX = 8 << 20
CONNECTS = 20
WORDS_MAX = 160
SHOWN_MODELS = 8
MESSAGE = re.compile(r'"(?:message|error|detail)"\s*:\s*"((?:[^"\\]|\\.)*)')
BLOCKS = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
# What tells each server's version, most common first; which are asked first depends on `owned_by` of the model list.
SERVERS = (
    ("vLLM", "/version"),
    ("SGLang", "/get_server_info"),
    ("SGLang", "/server_info"),
    ("llama.cpp", "/props"),
    ("TGI", "/info"),
)


class Fault(Exception):
    """Nothing more can be checked on this target; the text is the line to show."""

    def __init__(self, check: str, line: str) -> None:
        super().__init__(line)
        self.check = check


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; header names in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON if the status is 200 and it is JSON, else None."""
        try:
            return json.loads(self.body) if self.status == 200 else None
        except ValueError:
            return None

    def says(self) -> str:
        """Status and the server's own words, such as `HTTP 404: Not Found`."""
        text = said(self.body.decode("utf-8", "replace"))
        return f"HTTP {self.status}: {text}" if text else f"HTTP {self.status}"

    def loading(self) -> bool:
        """llama.cpp and others answer so until their model is in memory."""
        return self.status == 503 and b"loading" in self.body[:1000].lower()


@dataclass(frozen=True)
class Server:
    """A target as preflight asks it, by plain GETs."""

    target: targets.Target
    context: Any  # the TLS context, None for http

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
        if parts.scheme == "https":
            link: http.client.HTTPConnection = http.client.HTTPSConnection(
                str(parts.hostname), parts.port, timeout=timeout, context=self.context or targets.tls("", False, "")
            )
        else:
            link = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=timeout)
        try:
            with gevent.Timeout(timeout, TimeoutError("timed out")):
                link.request("GET", parts.path or "/", headers=headers)
                answer = link.getresponse()
                fields = {name.lower(): value for name, value in answer.getheaders()}
                return Answer(answer.status, fields, answer.read(BODY_MAX))
        finally:
            link.close()


def said(text: str) -> str:
    """The human part of an error body (JSON of any shape, HTML, text), one line, cut."""
    if found := MESSAGE.search(text):
        text = re.sub(r"\\[nrt]", " ", found[1]).replace('\\"', '"')
    elif "<" in text:
        text = re.sub(r"<(style|script|title).*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL | re.IGNORECASE)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= WORDS_MAX else text[:WORDS_MAX] + "..."


def server(options: Any, kind: str) -> Server:
    """The server of a kind, its settings checked. Raises Fault."""
    target = targets.target(options, kind)
    name = kind.upper()
    if not target.url:
        raise Fault("reachable", f"{name}_URL is not set: give {name}_URL=http://HOST:PORT")
    try:
        parts = urlsplit(target.url)
        if not parts.hostname or parts.port == 0:
            raise ValueError("no host" if not parts.hostname else "port 0")
    except ValueError as error:
        raise Fault("reachable", f"{name}_URL is not a URL ({error}): give http://HOST:PORT") from None
    if "@" in parts.netloc:
        raise Fault("reachable", f"{name}_URL holds a user or password, which is not used: give the key in {name}_API_KEY")
    key = os.environ.get(f"{name}_API_KEY", "")
    if not (key.isascii() and key.isprintable()):
        raise Fault("key", f"{name}_API_KEY holds a line break or another character no HTTP header may carry: set it anew")
    return Server(target, _context(options, target) if parts.scheme == "https" else None)


def _context(options: Any, target: targets.Target) -> Any:
    try:
        return targets.tls(target.ca, options.insecure, options.client_cert)
    except OSError as error:
        files = f"{target.kind.upper()}_CA={target.ca!r} CLIENT_CERT={options.client_cert!r}"
        raise Fault("reachable", f"{files} cannot be used ({error.strerror or error}): give PEM files") from None


def reach(server: Server, say: Callable[[str], None]) -> Answer:
    """The answer to GET /v1/models; a server that still loads its model is waited for. Raises Fault."""
    url, end = server.target.url, time.monotonic() + LOADING_WAIT
    answer = _first(server)
    if answer.loading():
        say(f"{url} is loading its model ({answer.says()}): waiting up to {LOADING_WAIT:g} s")
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
    _refused(server, answer)
    return answer


def trouble(error: Exception, server: Server) -> str:
    """Why no HTTP answer came, in one line."""
    url, name = server.target.url, f"{server.setting}_URL"
    why = getattr(error, "verify_message", "") or getattr(error, "strerror", "") or str(error) or type(error).__name__
    match error:
        case ssl.SSLCertVerificationError():
            way = f"give its CA file in {server.setting}_CA, or INSECURE=1 to go without"
            return f"the TLS certificate of {url} is not trusted ({why}): {way}"
        case ssl.SSLError() if "CERTIFICATE" in str(error).upper():
            return f"{url} does not accept us ({error.reason}): give our certificate and key in CLIENT_CERT"
        case ssl.SSLError():
            return f"{url} does not speak TLS ({error.reason or why}): correct {name}, perhaps to http://"
        case socket.gaierror() | UnicodeError():
            host = urlsplit(url).hostname
            return f"the name {host!r} cannot be resolved ({why}): correct {name}, or give an IP address"
        case TimeoutError():
            return f"{url} gives no answer within {GET_TIMEOUT:g} s: check host, port and firewall, or correct {name}"
        case ConnectionRefusedError():
            return f"nothing listens at {url} ({why}): start the server, or correct {name}"
        case http.client.HTTPException() | ConnectionError():
            return f"{url} does not answer in HTTP ({why}): correct {name}, perhaps to https://"
    return f"{url} cannot be reached ({why}): check the network, or correct {name}"


def _refused(server: Server, answer: Answer) -> None:
    """Raise Fault for a first answer that no model list can follow."""
    url, name = server.target.url, f"{server.setting}_URL"
    if answer.status in (401, 403):
        raise Fault("key", key_line(server, answer.says()))
    if 300 <= answer.status < 400:
        to = answer.headers.get("location", "elsewhere")
        raise Fault("reachable", f"{url} redirects to {to}, and redirects are not followed: correct {name}")
    if answer.status >= 500 and not answer.loading() and answer.status != 501:
        html = "html" in answer.headers.get("content-type", "")
        who = "a proxy stands there and its server does not answer" if html else "the server is not in order"
        raise Fault("reachable", f"{url} answers {answer.says()}: {who}; look into its log, or correct {name}")


def key_line(server: Server, says: str) -> str:
    """What to do about a 401 or 403; never shows the key."""
    name = f"{server.setting}_API_KEY"
    if os.environ.get(name):
        return f"the key in {name} was refused ({says}): correct it"
    return f"{server.target.url} needs a key ({says}): set {name}"


def choose_model(server: Server, answer: Answer) -> tuple[str, dict[str, Any]]:
    """(the model to ask for, its entry in the server's list). Raises Fault."""
    named, setting = server.target.model, f"{server.setting}_MODEL"
    listing = answer.json()
    entries = listing.get("data") if isinstance(listing, dict) else None
    if not isinstance(entries, list):
        if named and answer.status in (404, 405, 501):
            return named, {}
        what = answer.headers.get("content-type", "no type") if answer.status == 200 else answer.says()
        line = f"{server.target.url}/v1/models is no model list ({what}): is this an OpenAI-compatible server?"
        raise Fault("model", f"{line} correct {server.setting}_URL, or name the model in {setting}")
    known = {name: entry for entry in entries if isinstance(entry, dict) for name in _names(entry)}
    if named in known:
        return named, known[named]
    ids = [str(entry["id"]) for entry in entries if isinstance(entry, dict) and "id" in entry]
    if named or len(ids) != 1:
        raise Fault("model", _wrong_model(server, ids))
    return ids[0], known[ids[0]]


def _names(entry: dict[str, Any]) -> list[str]:
    aliases = entry.get("aliases")
    return [str(name) for name in (entry.get("id"), *(aliases if isinstance(aliases, list) else ())) if name]


def _wrong_model(server: Server, ids: list[str]) -> str:
    url, setting, named = server.target.url, f"{server.setting}_MODEL", server.target.model
    more = f", ... ({len(ids)} in all)" if len(ids) > SHOWN_MODELS else ""
    served = ", ".join(ids[:SHOWN_MODELS]) + more or "none"
    if named:
        return f"{setting}={named!r} is not served by {url}; it serves: {served}: correct {setting}"
    if not ids:
        return f"{url} lists no model: load one there, or name it in {setting}"
    return f"{url} serves several models: {served}: name one in {setting}"


def identify(server: Server, owner: str, header: str) -> tuple[str, dict[str, Any]]:
    """(kind and version such as `vLLM 0.32.0`, or ""; further facts such as max_model_len)."""
    first = owner.lower().replace("llamacpp", "llama.cpp")
    for name, path in sorted(SERVERS, key=lambda pair: pair[0].lower() != first):
        try:
            found = server.get(path, timeout=5.0).json()
        except (OSError, http.client.HTTPException):
            return "", {}
        if isinstance(found, dict) and (answer := _version(name, found)):
            return answer
    return ("llama.cpp", {}) if "llama.cpp" in header else ("", {})


def _version(name: str, found: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    version = str(found.get("version") or "")
    settings = found.get("default_generation_settings")
    if name == "llama.cpp" and isinstance(settings, dict):
        facts = {"max_model_len": _int(settings.get("n_ctx")), "slots": _int(found.get("total_slots"))}
        return f"{name} {found.get('build_info') or ''}".strip(), facts
    if not version:
        return None
    if name == "TGI":
        if "max_input_length" in found and "model_type" in found:
            return f"TEI {version}", {"max_model_len": _int(found["max_input_length"])}
        return f"TGI {version}", {"max_model_len": _int(found.get("max_total_tokens"))}
    number, _, mark = version.partition("+simulator")
    return f"{name} {number}" + (" (simulated)" if number != version else mark), {}


def _int(value: Any) -> int | None:
    return value if type(value) is int else None


def engine_metrics(server: Server, model: str) -> tuple[str, dict[str, Any]]:
    """("" or why there are none, facts): are there Prometheus metrics, and how many KV blocks they tell."""
    url = server.target.metrics_url
    try:
        answer = server.ask(url, timeout=5.0)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{url}: {getattr(error, 'strerror', None) or error or type(error).__name__}", {}
    if answer.status != 200:
        return f"{url}: {answer.says()}", {}
    text = answer.body.decode("utf-8", "replace")
    if not re.search(r"^(# TYPE |\w+[:\w]*(\{.*\})? [-+0-9.])", text, re.MULTILINE):
        return f"{url}: no Prometheus text", {}
    configs = [dict(LABEL.findall(labels)) for labels in BLOCKS.findall(text)]
    config = next((c for c in configs if c.get("model_name") == model), configs[0] if configs else {})
    blocks = {"gpu_blocks": config.get("num_gpu_blocks"), "block_size": config.get("block_size")}
    return "", {"metrics_url": url} | {name: int(v) for name, v in blocks.items() if v and v.isdigit()}


def round_trips(server: Server) -> list[float]:
    """ms of 20 TCP connects to the address that answers. Raises OSError."""
    parts = urlsplit(server.target.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((str(parts.hostname), port), GET_TIMEOUT) as first:
        family, peer = first.family, first.getpeername()
    times = []
    for _ in range(CONNECTS):
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(GET_TIMEOUT)
            begin = time.perf_counter()
            sock.connect(peer)
            times.append((time.perf_counter() - begin) * 1000.0)
    return times


def spread(times: list[float]) -> tuple[float, float]:
    """(least, median)."""
    return min(times), statistics.median(times)
