"""Preflight as people and the launcher run it: its own process, real servers, exit code, one line per fault."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import locust  # noqa: F401  (first: it patches the standard library)
import pytest

from tokenswarm.preflight import facts, reach
from tokenswarm.preflight.__main__ import main
from tokenswarm.preflight.checks import Checked, _answer, _streaming
from tokenswarm.record import RequestRecord

ROOT = Path(__file__).resolve().parent.parent
KEY = "sk-secret-0123456789"
TLS = ROOT / "tests" / "cases" / "tls"
JSON = "application/json"
NOT_FOUND = [404, JSON, '{"detail":"Not Found"}']

# A server that answers as told: routes {path: [status, content type, body]}; a body that is a list is a stream of
# events. `key`: asked for under /v1. `loading`: so many 503 first. `longest`, `images`: what a request may hold.
SCRIPTED = r"""
import json, sys, time
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer  # HTTPServer asks DNS for its own name first

told = json.loads(sys.argv[1])

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536

    def log_message(self, *words):
        pass

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in told.get("headers", {}).items():
            self.send_header(name, value)
        if isinstance(body, list):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            time.sleep(told.get("ttft_s", 0.02))
            for event in body:
                data = f"data: {event}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                if told.get("gap_s", 0.005):
                    self.wfile.flush()
                    time.sleep(told.get("gap_s", 0.005))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())
        self.wfile.flush()

    def do_GET(self, body=b""):
        told["loading"] = told.get("loading", 0) - 1
        if told["loading"] >= 0:
            return self.answer(503, "application/json", '{"error":{"code":503,"message":"Loading model"}}')
        sent = self.headers.get("Authorization", "")
        if told.get("key") and self.path in told["locked"] and sent != "Bearer " + told["key"]:
            return self.answer(401, "application/json", json.dumps({"error": "Incorrect API key provided: " + sent}))
        if len(body) > told.get("longest", 10**9):
            return self.answer(400, "application/json", json.dumps({"error": {"message":
                "This model's maximum context length is 512 tokens. Please reduce the length of the input."}}))
        if body.count(b"image_url\":") > told.get("images", 99):
            return self.answer(400, "application/json", json.dumps({"error": {"message":
                "At most 1 image(s) may be provided in one prompt."}}))
        self.answer(*told["routes"].get(self.path, [404, "application/json", '{"detail":"Not Found"}']))

    def do_POST(self):
        self.do_GET(self.rfile.read(int(self.headers["Content-Length"])))

server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
if told.get("tls"):
    import ssl
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=told.get("client_ca"))
    context.load_cert_chain(told["tls"])
    context.verify_mode = ssl.CERT_REQUIRED if told.get("client_ca") else ssl.CERT_NONE
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def models(*names: str, **more: Any) -> list[Any]:
    return [200, JSON, json.dumps({"object": "list", "data": [{"id": name, **more} for name in names]})]


def chunk(text: str, finish: str | None = None) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17}})
TOKENS = [*(chunk(f" {n}") for n in range(8)), chunk("", "stop")]
WHOLE = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
GOOD = [200, "text/event-stream", [*TOKENS, USAGE, "[DONE]"]]


def chat(answer: list[Any] = GOOD, **more: Any) -> dict[str, Any]:
    """A server with one model `one` that answers chats so."""
    return {"routes": {"/v1/models": models("one"), "/v1/chat/completions": answer}, **more}


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, Any]], str]]:
    """Start scripted servers; they end with the test."""
    started = []

    def start(told: dict[str, Any]) -> str:
        words = [sys.executable, "-c", SCRIPTED, json.dumps(told)]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout
        return f"http://127.0.0.1:{int(child.stdout.readline())}"

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    """The simulator, without a key."""
    yield from simulator()


@pytest.fixture(scope="module")
def locked_sim() -> Iterator[str]:
    """The simulator, asking for KEY."""
    yield from simulator("--api-key", KEY)


def simulator(*words: str) -> Iterator[str]:
    command = [sys.executable, "-m", "simulator", "--port", "0", *words]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout
    found = re.search(r"http://\S+", child.stdout.readline())
    assert found
    yield found[0]
    child.terminate()
    child.communicate(timeout=10)


def environ(folder: Path, **env: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "REPORTS": str(folder / "reports"), **env}


@dataclass
class Done:
    """What a run of preflight left."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run preflight with these words and variables; whatever happens, no traceback and no key is shown.

    In this process, since importing Locust for each case would take a minute in all; with `before` (shell words)
    as people start it."""

    def here(words: tuple[str, ...], env: dict[str, str]) -> Done:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name in [name for name in os.environ if name not in env]:
                patch.delenv(name)
            for name, value in env.items():
                patch.setenv(name, value)
            patch.setattr(signal, "signal", lambda *_: None)
            capfd.readouterr()
            try:
                code = main(list(words))
            except SystemExit as end:
                code = int(str(end.code))
            return Done(code, *capfd.readouterr())

    def apart(before: str, words: tuple[str, ...], env: dict[str, str]) -> Done:
        shell = f'{before} exec {sys.executable} -m tokenswarm.preflight "$@"'
        done = subprocess.run(["sh", "-c", shell, "sh", *words], env=env, cwd=tmp_path, capture_output=True, text=True)
        return Done(done.returncode, done.stdout, done.stderr)

    def run(*words: str, before: str = "", **variables: str) -> Done:
        env = environ(tmp_path, **variables)
        done = apart(before, words, env) if before else here(words, env)
        assert "Traceback" not in done.stdout + done.stderr
        assert KEY not in done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def fault(check: Callable[..., Done]) -> Callable[..., str]:
    """Run preflight, which must find one fault: its line."""

    def run(*words: str, **env: str) -> str:
        done = check("--quiet", *words, **env)
        lines = [line for line in done.stderr.splitlines() if "warning: " not in line and "waiting" not in line]
        assert done.returncode == 3
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("preflight: ")
        return lines[0]

    return run


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# -- all is well


def test_every_kind_of_the_simulator_is_in_order_and_named_in_the_json(sim, check, tmp_path):
    kinds = ["llm", "guard", "vlm", "embedding", "rerank"]
    env = {f"{k.upper()}_URL": sim for k in kinds} | {f"{k.upper()}_MODEL": f"sim-{k}" for k in kinds}
    done = check("--json", "--run-dir", str(tmp_path / "run"), before=" ", **env)
    found = json.loads(done.stdout)
    warnings = [line for line in found["warnings"] if "x RTT" not in line]  # a busy machine may be far from itself
    assert (done.returncode, found["ok"], found["faults"], warnings) == (0, True, [], [])
    assert sorted(found["targets"]) == sorted(kinds)
    for kind, target in found["targets"].items():
        assert target["model"] == f"sim-{kind}" == target["record"]["model"]
        assert target["server"] == "vLLM 0.32.0 (simulated)"
        assert (target["max_model_len"], target["gpu_blocks"]) == (8192, 8192)
        assert target["usage"] is True and target["keepalive"] is True
        assert target["metrics_url"] == sim + "/metrics"
        assert target["record"]["status"] == 200 and target["record"]["error"] == ""
        assert target["rtt_ms"] >= target["rtt_min_ms"] > 0
    assert found["targets"]["llm"]["record"]["ttft_ms"] > 0
    assert found["targets"]["embedding"]["record"]["ttft_ms"] is None
    flat = json.loads((tmp_path / "run" / "preflight.json").read_text())["targets"]["llm"]
    assert flat["model"] == "sim-llm" and not any(isinstance(value, dict | list) for value in flat.values())


def test_the_only_model_is_taken_and_quiet_is_one_line(serve, check):
    url = serve(chat())
    done = check("--quiet", LLM_URL=url + "/v1/")
    assert done.returncode == 0
    pattern = rf"llm: one at {url}, TTFT \d+(\.\d+)? ms, 8 tokens, RTT \d+(\.\d+)? ms\n"
    assert re.fullmatch(pattern, done.stdout)
    why = f"{url}/metrics: HTTP 404: Not Found"
    line = f"preflight: warning: llm: no engine metrics: limits cannot be explained ({why}); see LLM_METRICS_URL"
    assert line in done.stderr.splitlines()


def test_the_table_for_people_shows_the_request_as_its_record(serve, check):
    done = check(LLM_URL=serve(chat()))
    assert done.returncode == 0 and not done.stderr
    assert re.search(
        r"HTTP 200, TTFT .* ms, TPOT .* ms, E2E .* ms, 9 tokens in, 8 out \(usage\), 8 chunks", done.stdout
    )
    for row in ("reachable", "model", "request", "RTT", "streaming", "keep-alive", "open files", "disk"):
        assert re.search(rf"│ {row} +│ ok", done.stdout)


def test_two_preflights_never_send_the_same_prompt_twice(sim, check):
    runs = [check("--json", LLM_URL=sim, LLM_MODEL="sim-llm", MAX_TOKENS="2", PROMPTS="rag") for _ in range(2)]
    cached = [json.loads(run.stdout)["targets"]["llm"]["record"]["cached_tokens"] for run in runs]
    assert not any(cached)  # with a repeated nonce the second would be answered from the prefix cache


# -- the server is not there, or not this one


def test_nothing_listening(fault):
    port = free_port()
    line = fault(LLM_URL=f"http://127.0.0.1:{port}")
    assert f"llm: nothing listens at http://127.0.0.1:{port}" in line and "LLM_URL" in line


def test_a_name_that_does_not_resolve(fault):
    line = fault(LLM_URL="http://no-such-host.invalid:8000")
    assert "llm: the name 'no-such-host.invalid' cannot be resolved" in line and "LLM_URL" in line


def test_https_asked_of_a_plain_port(serve, fault):
    url = serve(chat()).replace("http:", "https:")
    assert f"llm: {url} does not speak TLS" in (line := fault(LLM_URL=url)) and "http://" in line


def test_something_that_is_not_http(fault):
    words = (
        "import socket; s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1],flush=True); c,_=s.accept(); "
    )
    command = [sys.executable, "-c", words + "c.send(b'SSH-2.0-x\\r\\n')"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        line = fault(LLM_URL=f"http://127.0.0.1:{int(child.stdout.readline())}")
    assert "does not answer in HTTP" in line and "https://" in line


def test_a_proxy_whose_server_is_gone(serve, fault):
    html = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"
    url = serve({"routes": {"/v1/models": [502, "text/html", html]}})
    line = fault(LLM_URL=url)
    assert f"llm: {url} answers HTTP 502: 502 Bad Gateway: a proxy answers, the server behind it does not" in line


def test_a_web_page_is_no_model_list(serve, fault):
    line = fault(LLM_URL=serve({"routes": {"/v1/models": [200, "text/html", "<html>Grafana</html>"]}}))
    assert "/v1/models is no list of models (text/html)" in line and "LLM_MODEL" in line


def test_a_redirect_is_not_followed(serve, fault):
    told = {"routes": {"/v1/models": [308, "text/plain", ""]}, "headers": {"Location": "https://elsewhere/"}}
    assert "redirects to https://elsewhere/" in fault(LLM_URL=serve(told))


def test_the_chat_route_is_missing(serve, fault):
    url = serve({"routes": {"/v1/models": models("one")}})
    line = fault(LLM_URL=url)
    assert f"{url}/v1/chat/completions is missing (HTTP 404: Not Found)" in line and "chat, completions" in line


def test_a_server_without_a_model_list_is_taken_with_a_named_model(serve, check, fault):
    url = serve({"routes": {"/v1/chat/completions": GOOD}})
    assert "LLM_MODEL" in fault(LLM_URL=url)
    assert check("--quiet", LLM_URL=url, LLM_MODEL="mine").returncode == 0


def test_a_loading_server_is_waited_for(serve, check):
    done = check("--quiet", LLM_URL=serve(chat(loading=2)))
    assert done.returncode == 0
    assert "is loading its model (HTTP 503: Loading model): waiting up to 120 s" in done.stderr


SHORT_WAIT = """
import sys, locust
from tokenswarm.preflight import reach
reach.LOADING_WAIT = reach.GET_TIMEOUT = float(sys.argv.pop())
reach.Server.get.__defaults__ = (reach.GET_TIMEOUT,)
from tokenswarm.preflight.__main__ import main
sys.exit(main(["--quiet"]))
"""


def short_wait(tmp_path: Path, wait: float, url: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", SHORT_WAIT, str(wait)]
    env = environ(tmp_path, LLM_URL=url)
    return subprocess.Popen(words, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_server_that_loads_for_ever_is_a_fault(serve, tmp_path):
    child = short_wait(tmp_path, 1.0, serve(chat(loading=10**6)))
    _, err = child.communicate(timeout=30)
    assert child.returncode == 3 and "was still loading its model after 1 s" in err and "Traceback" not in err


def test_ctrl_c_while_waiting_says_so_in_one_line(serve, tmp_path):
    child = short_wait(tmp_path, 60.0, serve(chat(loading=10**6)))
    assert child.stderr and "waiting" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (130, "preflight: interrupted\n")


def test_tls_is_verified_unless_told_loudly_otherwise(serve, check, fault):
    url = serve(chat(tls=str(TLS / "server.pem"))).replace("http:", "https:")
    line = fault(LLM_URL=url)
    assert f"the TLS certificate of {url} is not trusted" in line and "LLM_CA" in line and "INSECURE=1" in line
    assert check("--quiet", LLM_URL=url, LLM_CA=str(TLS / "ca.pem")).returncode == 0
    done = check("--quiet", LLM_URL=url, INSECURE="1")
    assert done.returncode == 0 and "warning: llm: INSECURE=1: certificates are NOT verified" in done.stderr
    assert "LLM_CA='nowhere.pem'" in fault(LLM_URL=url, LLM_CA="nowhere.pem")
    plain = fault(LLM_URL=url.replace("https:", "http:"))
    assert "does not answer in HTTP" in plain and "https://" in plain


def test_a_server_that_wants_our_certificate(serve, check, fault):
    files = {"tls": str(TLS / "server.pem"), "client_ca": str(TLS / "ca.pem")}
    url, own = serve(chat(**files)).replace("http:", "https:"), {"LLM_CA": str(TLS / "ca.pem")}
    for _ in range(5):
        assert "give it in CLIENT_CERT" in fault(LLM_URL=url, **own)
    assert check("--quiet", LLM_URL=url, CLIENT_CERT=str(TLS / "client.pem"), **own).returncode == 0


def test_a_server_that_connects_and_never_answers(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        child = short_wait(tmp_path, 1.0, f"http://127.0.0.1:{sock.getsockname()[1]}")
        _, err = child.communicate(timeout=30)
    assert child.returncode == 3 and "gives no answer within 1 s" in err and "Traceback" not in err


# -- model and key


def test_a_model_that_is_not_served(sim, fault):
    line = fault(LLM_URL=sim, LLM_MODEL="qwen-7b")
    assert "LLM_MODEL='qwen-7b' is not served" in line and "sim-llm, sim-guard" in line


def test_several_models_and_none_named(sim, fault):
    line = fault(LLM_URL=sim)
    assert "several models: sim-llm, sim-guard, sim-vlm, sim-embedding, sim-rerank: name one in LLM_MODEL" in line


def test_an_alias_of_a_model_is_known(serve, check):
    told = chat()
    told["routes"]["/v1/models"] = models("one", aliases=["uno"])
    assert check("--quiet", LLM_URL=serve(told), LLM_MODEL="uno").returncode == 0


def test_a_key_is_needed(locked_sim, fault):
    line = fault(LLM_URL=locked_sim, LLM_MODEL="sim-llm")
    assert f"llm: {locked_sim} needs a key (HTTP 401: Unauthorized): set LLM_API_KEY" in line


def test_a_wrong_key(locked_sim, fault):
    line = fault(LLM_URL=locked_sim, LLM_MODEL="sim-llm", LLM_API_KEY="sk-not-this-one")
    assert "the key in LLM_API_KEY was refused" in line and "sk-not-this-one" not in line


def test_the_right_key_is_accepted_and_left_nowhere(locked_sim, check, tmp_path):
    env = {"LLM_URL": locked_sim, "LLM_MODEL": "sim-llm", "LLM_API_KEY": KEY}
    assert re.search(r"key +│ ok +│ accepted", check("--run-dir", str(tmp_path / "run"), **env).stdout)
    assert check("--json", **env).returncode == 0
    assert not any(KEY in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_a_key_that_the_server_quotes_is_taken_out(serve, fault):
    wrong = "sk-quoted-by-the-server"
    for locked in ("/v1/models", "/v1/chat/completions"):  # llama.cpp lists its models to everybody
        line = fault(LLM_URL=serve(chat(key=KEY, locked=[locked])), LLM_API_KEY=wrong)
        assert "LLM_API_KEY was refused" in line and "Incorrect API key provided: Bearer ***" in line
        assert wrong not in line


def test_a_key_with_a_line_break_is_named_not_shown(serve, fault):
    line = fault(LLM_URL=serve(chat()), LLM_API_KEY=KEY + "\n")
    assert "LLM_API_KEY holds a character" in line


def test_the_key_is_not_sent_to_a_metrics_server_elsewhere(serve, check):
    echo = serve({"routes": {}, "key": "x", "locked": ["/metrics"]})
    done = check("--quiet", LLM_URL=serve(chat()), LLM_METRICS_URL=echo + "/metrics", LLM_API_KEY="sk-mine-only")
    assert "Incorrect API key provided:)" in done.stderr  # nothing was sent; *** would be a key taken out


# -- the answer


def test_no_usage_is_a_warning(serve, check):
    done = check("--json", LLM_URL=serve(chat([200, "text/event-stream", [*TOKENS, "[DONE]"]])))
    found = json.loads(done.stdout)["targets"]["llm"]
    assert done.returncode == 0 and found["usage"] is False
    assert any("no usage in the answer: tokens are counted by chunks" in line for line in found["warnings"])


def test_a_whole_reply_to_a_stream_request(serve, check, fault):
    url = serve(chat([200, JSON, json.dumps(WHOLE)]))
    assert "a stream was asked for, something else came" in (line := fault(LLM_URL=url)) and "STREAM=0" in line
    assert check("--quiet", LLM_URL=url, STREAM="0").returncode == 0


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (GOOD[2], "came in bursts"),
        ([chunk("all of it", "stop"), USAGE, "[DONE]"], "the whole answer came in one chunk"),
    ],
)
def test_a_stream_held_back_by_a_proxy_is_a_warning(serve, check, events, words):
    done = check("--quiet", LLM_URL=serve(chat([200, "text/event-stream", events], gap_s=0)))
    assert done.returncode == 0
    assert re.search(rf"warning: llm: .*{words}: TTFT and TPOT are then not the model's", done.stderr)


def test_a_ttft_that_is_mostly_network_is_a_warning():
    trial = type("Trial", (), {"bursts": lambda self: False})()
    for ttft_ms, warned in ((40.0, True), (60.0, False)):
        seen = Checked("llm", facts={"rtt_ms": 10.0})
        _answer(seen, trial, RequestRecord(0.0, ttft_ms=ttft_ms, chunks=9, input_tokens=1, tokens_source="usage"))
        assert any("under 5 x RTT 10 ms" in line for line in seen.lines("warning")) is warned


def test_one_token_in_one_chunk_is_no_burst():
    seen = Checked("guard")
    trial = type("Trial", (), {"bursts": lambda self: False})()
    _streaming(seen, trial, RequestRecord(0.0, chunks=1, output_tokens=1, tokens_source="usage"))
    assert seen.rows[0][1] == "ok"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (TOKENS[:4], "truncated: the stream ended without finish_reason"),
        ([json.dumps({"error": {"message": "EngineCore encountered an issue"}})], "server_error (EngineCore enc"),
        (["[DONE]"], "empty: the answer holds no token"),
        ([chunk("a"), chunk("", "abort"), "[DONE]"], "aborted"),
    ],
)
def test_a_failed_stream_is_explained_with_the_servers_words(serve, fault, events, words):
    assert words in fault(LLM_URL=serve(chat([200, "text/event-stream", events])))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([429, JSON, '{"error":{"message":"Queue is full"}}'], "refuses load at the first request (HTTP 429: Queue is"),
        ([500, JSON, '{"error":{"message":"EngineCore died"}}'], "failed (HTTP 500: EngineCore died)"),
        ([422, JSON, '{"error":"Input validation error: `inputs` must have less than 4095 tokens"}'], "MAX_TOKENS"),
        ([413, "text/plain", "Failed to buffer the request body: length limit exceeded"], "refused prompt"),
        ([404, JSON, '{"error":{"message":"The model `one` does not exist."}}'], "does not know the model 'one'"),
    ],
)
def test_a_refused_request_is_explained(serve, fault, answer, words):
    assert words in fault(LLM_URL=serve(chat(answer)))


def test_a_server_without_keep_alive_is_a_warning(serve, check):
    done = check("--json", LLM_URL=serve(chat(headers={"Connection": "close"})))
    found = json.loads(done.stdout)["targets"]["llm"]
    assert done.returncode == 0 and found["keepalive"] is False
    assert any("the server closes after an answer" in line for line in found["warnings"])


# -- the profile


def profile(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def prompt(name: str, content: Any, weight: float) -> dict[str, Any]:
    return {"id": name, "weight": weight, "body": {"messages": [{"role": "user", "content": content}], "max_tokens": 9}}


def test_an_empty_profile(serve, fault, tmp_path):
    line = fault(LLM_URL=serve(chat()), PROMPTS=profile(tmp_path))
    assert "mine.jsonl: no prompts" in line


def test_a_bad_line_of_a_profile(serve, fault, tmp_path):
    line = fault(LLM_URL=serve(chat()), PROMPTS=profile(tmp_path, prompt("a", "hi", 1), {"id": "b"}))
    assert "mine.jsonl:2: body is missing" in line


def test_a_profile_that_is_not_there(serve, fault):
    assert "no profile 'chatt'" in fault(LLM_URL=serve(chat()), PROMPTS="chatt")


def test_a_profile_of_another_kind(sim, fault):
    line = fault(EMBEDDING_URL=sim, EMBEDDING_MODEL="sim-embedding", PROMPTS="chat", ENDPOINT="embedding")
    assert "profile 'chat' has no 'input' in a body, which embedding needs" in line


def test_every_prompt_too_long_for_the_server(fault):
    for url in simulator("--max-model-len", "600"):
        line = fault(LLM_URL=url, LLM_MODEL="sim-llm", PROMPTS="rag", MAX_TOKENS="8")
    assert "maximum context length is 600 tokens" in line and "longer context" in line


def test_only_the_largest_prompt_is_too_long(serve, fault, tmp_path):
    mine = profile(tmp_path, prompt("short", "hi", 1e9), prompt("long", "word " * 2000, 1e-9))
    line = fault(LLM_URL=serve(chat(longest=5000)), PROMPTS=mine)
    assert "the profile's largest prompt ('long', about 2509 tokens with its output)" in line
    assert "maximum context length is 512 tokens" in line and "longer context" in line


def test_a_prompt_near_the_context_is_a_warning(serve, check, tmp_path):
    told = chat([200, "text/event-stream", [*TOKENS, "[DONE]"]])
    told["routes"]["/v1/models"] = models("one", max_model_len=512)
    mine = profile(tmp_path, prompt("long", "word " * 400, 1))
    done = check("--quiet", LLM_URL=serve(told), PROMPTS=mine)
    assert done.returncode == 0
    assert (
        "'long', about 509 tokens with its output, the server's context is 512: another draw may not fit" in done.stderr
    )


def test_more_images_than_the_server_takes(serve, fault, tmp_path):
    (tmp_path / "images").symlink_to(ROOT / "profiles" / "images")
    image = {"type": "image_url", "image_url": {"url": "images/grain.png"}}
    mine = profile(tmp_path, prompt("one", [image], 1e9), prompt("three", [image] * 3, 1e-9))
    line = fault(VLM_URL=serve(chat(images=1)), PROMPTS=mine, ENDPOINT="vlm")
    assert "vlm: the profile's largest prompt ('three', 3 images" in line
    assert "At most 1 image(s)" in line and "take images out" in line


# -- options and this machine


def test_no_server_named(check):
    done = check()
    assert done.returncode == 3 and not done.stdout
    assert (
        done.stderr.startswith("preflight: no server to check: give LLM_URL=http://HOST:PORT")
        and "\n" not in done.stderr[:-1]
    )


def test_a_kind_without_its_url(fault):
    assert "guard: GUARD_URL is not set: give GUARD_URL=http://HOST:PORT" in fault("--kinds", "guard")


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["--kinds", "llm,gard"], {}, "'gard' is not one of: "),
        (["--nonsense"], {}, "--nonsense"),
        ([], {"STEPS": "1,x"}, "STEPS='1,x': 'x' is not a user count"),
        ([], {"LLM_URL": "gpu:16000"}, "LLM_URL='gpu:16000' is not a URL"),
        ([], {"LLM_URL": f"http://me:{KEY}@127.0.0.1:1"}, "LLM_URL=a URL with a name, a key or a query in it"),
        ([], {"LLM_URL": f"http://127.0.0.1:1/?token={KEY}"}, "put the key into its own variable"),
    ],
)
def test_wrong_options_end_with_2(check, words, env, said):
    done = check(*words, **env)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert KEY not in done.stderr


def test_an_url_that_cannot_be_used(fault):
    assert "LLM_URL has no usable host and port" in fault(LLM_URL="http://127.0.0.1:99999")


def test_an_api_that_the_kind_does_not_have(serve, fault):
    assert "API='chats' is not one of chat, completions (for llm)" in fault(LLM_URL=serve(chat()), API="chats")


def test_options_come_from_dotenv_too(serve, check, tmp_path):
    (tmp_path / ".env").write_text(f"LLM_URL={serve(chat())}\n")
    assert check("--quiet").stdout.startswith("llm: one at ")


def test_too_few_open_files_are_a_fault_before_they_are_an_error(serve, fault):
    line = fault(LLM_URL=serve(chat()), before="ulimit -n 150;")
    assert "at most 150 open files are allowed, 100 users need 200" in line and "ulimit -n 200" in line


def test_a_low_soft_limit_is_raised(serve, check):
    done = check(LLM_URL=serve(chat()), STEPS="1,300", before="ulimit -Sn 128; ulimit -Hn 600;")
    assert done.returncode == 0 and "128, raised to the 400 that 300 users need" in done.stdout


def test_a_reports_folder_that_cannot_be_written(serve, fault, tmp_path):
    (tmp_path / "file").write_text("")
    line = fault(LLM_URL=serve(chat()), REPORTS=str(tmp_path / "file"))
    assert "file/ cannot be written" in line and "REPORTS" in line


# -- what servers say


class Told:
    """Stands for reach.Server where only `get` is asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, []

    def get(self, path: str, timeout: float) -> reach.Answer:
        self.asked.append(path)
        found = self.answers.get(path[1:])
        return reach.Answer(200 if found else 404, {}, json.dumps(found).encode())


@pytest.mark.parametrize(
    ("owner", "answers", "name", "facts_"),
    [
        ("vllm", {"version": {"version": "0.32.0"}}, "vLLM 0.32.0", {}),
        ("vllm", {"version": {"version": "0.32.0+simulator"}}, "vLLM 0.32.0 (simulated)", {}),
        ("sglang", {"get_server_info": {"version": "0.5.9", "tp_size": 1}}, "SGLang 0.5.9", {}),
        ("sglang", {"server_info": {"version": "0.6.0"}}, "SGLang 0.6.0", {}),
        (
            "llamacpp",
            {"props": {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4, "build_info": "b8681-x"}},
            "llama.cpp b8681-x",
            {"max_model_len": 4096, "slots": 4},
        ),
        ("", {"info": {"version": "3.0.1", "max_total_tokens": 2048}}, "TGI 3.0.1", {"max_model_len": 2048}),
        (
            "",
            {"info": {"version": "1.8.0", "model_type": {"embedding": {}}, "max_input_length": 512}},
            "TEI 1.8.0",
            {"max_model_len": 512},
        ),
        ("", {}, "", {}),
    ],
)
def test_server_kind_and_version(owner, answers, name, facts_):
    server = Told(**answers)
    assert facts.identify(server, owner, "") == (name, facts_)
    if owner:
        assert len(server.asked) <= 2  # its own routes first: others would be 404s in its log


def test_kv_blocks_are_those_of_the_model():
    line = 'vllm:cache_config_info{{block_size="16",model_name="{}",num_gpu_blocks="{}"}} 1.0\n'
    text = "# TYPE vllm:cache_config_info gauge\n" + line.format("other", 7) + line.format("mine", 512)
    server = type("Server", (), {"ask": lambda self, url, timeout: reach.Answer(200, {}, text.encode())})()
    server.target = type("Target", (), {"metrics_url": "http://x/metrics"})
    found = facts.engine_metrics(server, "mine")
    assert found == ("", {"metrics_url": "http://x/metrics", "gpu_blocks": 512, "block_size": 16})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}', "Loading model"),
        ('{"error":"Unauthorized"}', "Unauthorized"),
        ('{"detail":"Not Found"}', "Not Found"),
        ('{"object":"error","message":"too \\"long\\"\\nhere","code":400}', 'too "long" here'),
        ('{"error":{"message":"cut in the mid', "cut in the mid"),
        (
            "<html><body><h1>503 Service Unavailable</h1>No server.</body></html>\n",
            "503 Service Unavailable No server.",
        ),
        ("plain\x1b[31m text\r\n", "plain [31m text"),
        ("x" * 500, "x" * 160 + "..."),
        ("", ""),
    ],
)
def test_the_servers_words_are_one_short_line(body, words):
    assert reach.said(body) == words
