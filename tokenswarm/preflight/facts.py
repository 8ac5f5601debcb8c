"""What a server says of itself: its models, kind and version, engine metrics; and how far away it is."""

from __future__ import annotations

import http.client
import re
import socket
import time
from typing import Any
from urllib.parse import urlsplit

from tokenswarm.preflight.reach import GET_TIMEOUT, Answer, Fault, Server, why_of

ASIDE_TIMEOUT = 5.0
CONNECTS = 20
SHOWN_MODELS = 8
CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
SAMPLE = re.compile(r"^(# TYPE |[\w:]+(\{.*\})? [-+0-9.])", re.MULTILINE)
# Where each kind tells its version; the kind that `owned_by` in the model list names is asked first.
VERSIONS = (
    ("vLLM", "/version"),
    ("SGLang", "/get_server_info"),
    ("SGLang", "/server_info"),
    ("llama.cpp", "/props"),
    ("TGI", "/info"),
)


def choose_model(server: Server, answer: Answer) -> tuple[str, dict[str, Any]]:
    """(the model to ask for, its entry in the server's list) from the answer to /v1/models. Raises Fault."""
    named, listing = server.target.model, answer.json()
    entries = listing.get("data") if isinstance(listing, dict) else None
    if not isinstance(entries, list):
        if named and answer.status in (404, 405, 501):
            return named, {}
        raise Fault("model", _no_list(server, answer))
    entries = [entry for entry in entries if isinstance(entry, dict) and entry.get("id")]
    known = {name: entry for entry in reversed(entries) for name in _names(entry)}
    if named in known:
        return named, known[named]
    ids = [str(entry["id"]) for entry in entries]
    if named or len(ids) != 1:
        raise Fault("model", _wrong_model(server, ids))
    return ids[0], known[ids[0]]


def _names(entry: dict[str, Any]) -> list[str]:
    aliases = entry.get("aliases")
    return [str(entry["id"]), *map(str, aliases if isinstance(aliases, list) else ())]


def _no_list(server: Server, answer: Answer) -> str:
    what = answer.headers.get("content-type", "no type") if answer.status == 200 else answer.says()
    line = f"{server.target.url}/v1/models is no list of models ({what}): is this an OpenAI-compatible server?"
    return f"{line} correct {server.setting}_URL, or name the model in {server.setting}_MODEL"


def _wrong_model(server: Server, ids: list[str]) -> str:
    url, setting, named = server.target.url, f"{server.setting}_MODEL", server.target.model
    more = f", ... ({len(ids)} in all)" if len(ids) > SHOWN_MODELS else ""
    served = (", ".join(ids[:SHOWN_MODELS]) or "none") + more
    if named:
        return f"{setting}={named!r} is not served by {url}; it serves: {served}: correct {setting}"
    if not ids:
        return f"{url} lists no model: load one there, or name it in {setting}"
    return f"{url} serves several models: {served}: name one in {setting}"


def identify(server: Server, owner: str, header: str) -> tuple[str, dict[str, Any]]:
    """(kind and version such as `vLLM 0.32.0`, or ""; further facts such as max_model_len)."""
    first = owner.lower().replace("llamacpp", "llama.cpp")
    for name, path in sorted(VERSIONS, key=lambda pair: pair[0].lower() != first):
        try:
            found = server.get(path, ASIDE_TIMEOUT).json()
        except (OSError, http.client.HTTPException):
            break
        if isinstance(found, dict) and (answer := _version(name, found)):
            return answer
    return ("llama.cpp" if "llama.cpp" in header else "", {})


def _version(name: str, found: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    version, settings = str(found.get("version") or ""), found.get("default_generation_settings")
    if name == "llama.cpp":
        if not isinstance(settings, dict):
            return None
        facts = {"max_model_len": _int(settings.get("n_ctx")), "slots": _int(found.get("total_slots"))}
        return f"{name} {found.get('build_info') or ''}".strip(), facts
    if not version:
        return None
    if name == "TGI" and "model_type" in found:  # text-embeddings-inference has the same route
        return f"TEI {version}", {"max_model_len": _int(found.get("max_input_length"))}
    if name == "TGI":
        return f"TGI {version}", {"max_model_len": _int(found.get("max_total_tokens"))}
    number, simulated, _ = version.partition("+simulator")
    return f"{name} {number}" + (" (simulated)" if simulated else ""), {}


def _int(value: Any) -> int | None:
    return value if type(value) is int else None


def engine_metrics(server: Server, model: str) -> tuple[str, dict[str, Any]]:
    """("" or why there are none; facts: metrics_url and, where vLLM tells them, gpu_blocks and block_size)."""
    url = server.target.metrics_url
    try:
        answer = server.ask(url, ASIDE_TIMEOUT)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{url}: {why_of(error)}", {}
    if answer.status != 200:
        return f"{url}: {answer.says()}", {}
    text = answer.body.decode("utf-8", "replace")
    if not SAMPLE.search(text):
        return f"{url}: not Prometheus text", {}
    configs = [dict(LABEL.findall(labels)) for labels in CONFIG.findall(text)]
    config = next((c for c in configs if c.get("model_name") == model), configs[0] if configs else {})
    blocks = {"gpu_blocks": config.get("num_gpu_blocks", ""), "block_size": config.get("block_size", "")}
    return "", {"metrics_url": url} | {name: int(text) for name, text in blocks.items() if text.isdigit()}


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
