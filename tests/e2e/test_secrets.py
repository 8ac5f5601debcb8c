"""A key is used, and is nowhere to be found afterwards."""

import socket
import time
import urllib.request
from pathlib import Path

from shell import Shell

KEY = "sk-very-secret-4711"
QUICK = {"STEPS": "2,3,4", "REQUESTS_PER_USER": "4", "MIN_REQUESTS": "0", "COOLDOWN": "0"}


def with_key(shell: Shell, *flags: str) -> str:
    server = shell.start("simulator", "--port", "0", "--api-key", KEY, *flags)
    assert server.stdout is not None
    return next(word for word in server.stdout.readline().split() if word.startswith("http"))


def found_in(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_a_run_folder_and_the_output_hold_no_key(shell: Shell) -> None:
    url = with_key(shell, "--error-rate", "0.2")
    done = shell.run("tokenswarm.launch", "ramp", LLM_URL=url, LLM_API_KEY=KEY, PROCESSES="2", **QUICK)
    assert done.returncode in (0, 3), done.stdout + done.stderr  # preflight's own request may be one of the errors
    assert KEY not in done.stdout + done.stderr
    assert not found_in(shell.reports)


def test_the_web_ui_shows_no_key(shell: Shell) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = with_key(shell)
    shell.start("tokenswarm.launch", "ui", LLM_URL=url, LLM_API_KEY=KEY, LLM_MODEL="sim-llm", UI_PORT=str(port))
    base = f"http://127.0.0.1:{port}"
    page = ask(base + "/")
    assert "Locust" in page and KEY not in page
    ask(base + "/swarm", b"user_count=2&spawn_rate=2")
    until = time.monotonic() + 20
    while '"TTFT"' not in (stats := ask(base + "/stats/requests")) and time.monotonic() < until:
        time.sleep(0.5)
    assert '"TTFT"' in stats, "the web UI's table has a TTFT row"
    assert '"num_failures": 0' in stats
    assert KEY not in stats + ask(base + "/")
    assert not found_in(shell.reports)


def ask(url: str, data: bytes | None = None) -> str:
    until = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data), timeout=10) as answer:
                return answer.read().decode()
        except ConnectionError:
            raise
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.3)
