"""What goes wrong for people, and the one line they get for it."""

import socket
from pathlib import Path

import pytest
from shell import ROOT, Shell

QUICK = {"STEPS": "1,2,4", "REQUESTS_PER_USER": "3", "MIN_REQUESTS": "0", "COOLDOWN": "0", "WATCH": "0"}


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_line(text: str, *needed: str) -> None:
    """Some line of the output names all of these, and nothing is a traceback."""
    assert "Traceback" not in text
    assert any(all(word in line for word in needed) for line in text.splitlines()), text


@pytest.mark.parametrize(
    ("variables", "needed"),
    [
        ({"STEPS": "1,x"}, ["STEPS", "'x'", "whole numbers"]),
        ({"STEPS": "5,1"}, ["STEPS", "rise"]),
        ({"ENDPOINT": "lmm"}, ["ENDPOINT", "guard, llm, rerank"]),
        ({"LLM_URL": "gpu:16000"}, ["LLM_URL", "http://HOST:PORT"]),
        ({"REQUESTS_PER_USER": "0"}, ["REQUESTS_PER_USER", "whole number from 1"]),
        ({"PROCESSES": "two", "LLM_URL": "http://127.0.0.1:9"}, ["PROCESSES", "'two'"]),
        ({"SIM": "--slotz 3"}, ["slotz"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_value_that_is_not_allowed(shell: Shell, variables: dict[str, str], needed: list[str]) -> None:
    done = shell.run("tokenswarm.launch", "ramp", **{**QUICK, **variables})
    assert done.returncode == 2, done.stdout + done.stderr
    one_line(done.stderr, *needed)
    assert not list(shell.reports.glob("2*"))


def test_an_unknown_plan(shell: Shell) -> None:
    done = shell.run("tokenswarm.launch", "rmap")
    assert done.returncode == 2
    one_line(done.stderr, "ramp", "live")


def test_no_server_there(shell: Shell) -> None:
    done = shell.run("tokenswarm.launch", "ramp", LLM_URL=f"http://127.0.0.1:{closed_port()}", **QUICK)
    assert done.returncode == 3, done.stdout + done.stderr
    one_line(done.stderr, "127.0.0.1", "refused")
    assert not list(shell.reports.glob("2*")), "a run that never began leaves no folder"


def test_an_unknown_api(shell: Shell) -> None:
    done = shell.run("tokenswarm.launch", "ramp", API="chatt", **QUICK)
    assert done.returncode == 3, done.stdout + done.stderr
    one_line(done.stderr, "API", "chat, completions")


def test_an_empty_profile(shell: Shell, tmp_path: Path) -> None:
    empty = tmp_path / "mine.jsonl"
    empty.write_text("")
    done = shell.run("tokenswarm.launch", "ramp", PROMPTS=str(empty), **QUICK)
    assert done.returncode == 3, done.stdout + done.stderr
    one_line(done.stderr, "mine.jsonl", "no prompts")


@pytest.mark.parametrize(
    ("variables", "needed"),
    [
        ({"LLM_API_KEY": "sk-wrong"}, ["LLM_API_KEY", "refused"]),
        ({"LLM_MODEL": "nope", "LLM_API_KEY": "sk-right"}, ["nope", "sim-llm"]),
    ],
)
def test_wrong_key_and_wrong_model(shell: Shell, variables: dict[str, str], needed: list[str]) -> None:
    server = shell.start("simulator", "--port", "0", "--api-key", "sk-right")
    assert server.stdout is not None
    url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
    done = shell.run("tokenswarm.launch", "ramp", LLM_URL=url, **QUICK, **variables)
    assert done.returncode == 3, done.stdout + done.stderr
    one_line(done.stderr, *needed)
    assert "sk-" not in done.stdout + done.stderr


def test_a_full_disk_stops_the_run_in_one_line(shell: Shell) -> None:
    script = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)); "
    script += (
        "sys.argv = ['launch', 'ramp']; runpy.run_module('tokenswarm.launch', run_name='__main__', alter_sys=True)"
    )
    wrapper = shell.reports.parent / "full_disk.py"
    wrapper.write_text(script)
    child = shell.start("full_disk", SIM="--slots 8 --output-tokens 8", STEPS="4,8,16,32", REQUESTS_PER_USER="40",
                        COOLDOWN="0", PYTHONPATH=f"{ROOT}:{wrapper.parent}")  # fmt: skip
    out, err = child.communicate(timeout=120)
    assert child.returncode == 4, out + err
    one_line(err, "requests.csv cannot be written", "free some space")
    assert "Traceback" not in out + err
    assert (shell.latest() / "requests.csv").stat().st_size > 10_000, "what was written before is kept"
