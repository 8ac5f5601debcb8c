"""The simulator's command line: faults on request, exact times, and `--run CMD`."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from simulator_client import RECORDED, ROOT, Answer, ask, chat, read_all, recorded_answer, request, series, simulator

STREAM = {"stream": True, "max_tokens": 10, "ignore_eos": True}
FAST = ("--step-ms", "2")


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "simulator", *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.fixture
def group() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes a test starts; whatever is left of their groups is killed."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def group_is_empty(pid: int) -> bool:
    """Whether no process of this group is left; waits a little for it."""
    for _ in range(50):
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


# Faults


def test_error_rate_gives_vllms_500() -> None:
    with simulator("--error-rate", "1", *FAST) as port:
        answer = ask(port, "/v1/chat/completions", chat(**STREAM))
        assert answer.status == 500
        assert answer.json["error"] == {
            "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
        assert ask(port, "/v1/embeddings", {"input": "x"}).status == 500
        assert ask(port, "/health").status == 200


def test_error_rate_is_a_share_and_the_seed_repeats_it() -> None:
    def statuses(seed: str) -> list[int]:
        with simulator("--error-rate", "0.4", "--seed", seed, *FAST) as port:
            return [ask(port, "/v1/chat/completions", chat(max_tokens=1)).status for _ in range(40)]

    first = statuses("1")
    assert 6 <= first.count(500) <= 26
    assert first == statuses("1")
    assert first != statuses("2")


def test_cut_stream_closes_without_the_last_chunk() -> None:
    with simulator("--cut-rate", "1", *FAST) as port:
        answer = ask(port, "/v1/chat/completions", chat(**STREAM))
        assert answer.status == 200
        assert b'"content":' in answer.tail
        assert b"[DONE]" not in answer.raw
        assert b'"finish_reason":"' not in answer.raw
        assert not answer.raw.endswith(b"0\r\n\r\n")
        assert ask(port, "/v1/chat/completions", chat(max_tokens=3)).raw == b""


def test_inband_error_is_an_event_in_the_200() -> None:
    with simulator("--inband-error-rate", "1", *FAST) as port:
        answer = ask(port, "/v1/chat/completions", chat(**STREAM))
        # Bytes of the real server when its engine was killed, from the error event to the end.
        lines = (RECORDED / "rawtcp-engine-killed-midstream.txt").read_text(encoding="utf-8").splitlines()
        parts = [line.split("b'", 1)[1].rstrip("'") for line in lines if "b'" in line][-2:]
        assert answer.raw.endswith("".join(parts).encode().decode("unicode_escape").encode())
        assert answer.status == 200
        assert len(answer.events) > 2
        assert ask(port, "/v1/chat/completions", chat(max_tokens=3)).status == 500
        page = ask(port, "/metrics").tail.decode()
        assert 'request_success_total{engine="0",finished_reason="error",model_name="sim-llm"} 1.0' in page


def test_stalled_stream_pauses_once_and_then_is_complete() -> None:
    with simulator("--stall-rate", "1", "--stall-ms", "300", *FAST) as port:
        answer = ask(port, "/v1/chat/completions", chat(**STREAM))
        times = [at for at, data in answer.reads if b"data: " in data]
        gaps = [after - before for before, after in pairwise(times)]
        assert answer.events[-1] == "[DONE]"
        assert sum("choices" in event for event in answer.events if event != "[DONE]") == 11
        assert sum(gap > 0.25 for gap in gaps) == 1


def test_queue_limit_refuses_what_finds_no_place() -> None:
    with simulator("--slots", "2", "--queue-limit", "3", "--step-ms", "20") as port:
        answers: list[Answer] = []

        def one() -> None:
            answers.append(ask(port, "/v1/chat/completions", chat(**(STREAM | {"max_tokens": 30}))))

        threads = [threading.Thread(target=one) for _ in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answer.status for answer in answers) == [200] * 5 + [503] * 4
        refused = next(answer for answer in answers if answer.status == 503)
        assert refused.json == recorded_answer("queue-full-1.txt")[2]
        page = ask(port, "/metrics").tail.decode()
        assert 'admission_rejections_total{model_name="sim-llm",reason="max_num_queued_reqs"} 4.0' in page


def test_full_kv_cache_preempts_and_still_answers() -> None:
    with simulator("--kv-blocks", "12", *FAST) as port:
        socks = []
        for number in range(6):
            sock = socket.create_connection(("127.0.0.1", port), 20)
            body = chat(content=f"{number} hello", max_tokens=60, stream=True, ignore_eos=True)
            sock.sendall(request("/v1/chat/completions", body))
            socks.append(sock)
        for sock in socks:
            assert len(read_all(sock, 0).events) == 62
            sock.close()
        page = ask(port, "/metrics").tail.decode()
        line = next(line for line in page.splitlines() if line.startswith("vllm:num_preemptions_total"))
        assert float(line.split()[-1]) > 0


def test_exact_mode_keeps_its_times_whatever_the_load() -> None:
    with simulator("--ttft-ms", "100", "--tpot-ms", "20", "--slots", "1") as port:
        answers: list[Answer] = []
        body = chat(**(STREAM | {"max_tokens": 21}))
        threads = [
            threading.Thread(target=lambda: answers.append(ask(port, "/v1/chat/completions", body))) for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = series(port)
        first = [next(at for at, data in answer.reads if b'"content":"' in data) for answer in answers]
        last = [next(at for at, data in answer.reads if b'"finish_reason":"' in data) for answer in answers]
    # By the server's clock exactly so; by the client's never early, and late only by what the machine is busy with.
    assert found["vllm:time_to_first_token_seconds_sum", "sim-llm"] == pytest.approx(10 * 0.1)
    assert found["vllm:inter_token_latency_seconds_sum", "sim-llm"] == pytest.approx(10 * 20 * 0.02)
    assert 0.1 <= min(first) < 0.12
    assert 0.5 <= min(last) < 0.52


# The command line


@pytest.mark.parametrize(
    "arguments",
    [
        ["--slots", "x"],
        ["--slots", "-1"],
        ["--bogus"],
        ["--run"],
        ["--ttft-ms", "100"],
        ["--error-rate", "1.5"],
        ["--error-rate", "0.6", "--cut-rate", "0.6"],
        ["--kv-blocks", "4", "--max-model-len", "100"],
        ["--port", "70000"],
        ["--slots", "64", "--max-num-batched-tokens", "32"],
        ["--step-ms", "0", "--seq-us", "0"],
    ],
)
def test_bad_flags_give_one_line_and_exit_2(arguments: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "simulator", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("simulator: ")


def test_port_in_use_gives_one_line_and_exit_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = subprocess.run(
            [sys.executable, "-m", "simulator", "--port", port, "--run", "true"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert result.returncode == 3
    assert result.stderr.splitlines() == [
        f"simulator: can't listen on 127.0.0.1:{port}: Address already in use; give another --port (0 = any free one)"
    ]


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_run_passes_the_exit_code_through(script: str, code: int, group: list[subprocess.Popen[str]]) -> None:
    process = start(*FAST, "--run", "sh", "-c", script)
    group.append(process)
    assert process.wait(20) == code
    assert group_is_empty(process.pid)


@pytest.mark.parametrize(("command", "code"), [("/nonexistent/command", 127), (str(Path(__file__)), 126)])
def test_run_of_no_command_says_so(command: str, code: int) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "simulator", "--run", command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert result.returncode == code
    assert result.stderr.splitlines()[-1].startswith(f"simulator: can't run {command}: ")


CLIENT = """
import os, urllib.request, sys
print(urllib.request.urlopen(os.environ["SIM_URL"] + "/v1/models").status, *sys.argv[1:])
"""


def test_run_serves_before_the_command_starts_and_keeps_its_arguments(group: list[subprocess.Popen[str]]) -> None:
    process = start("--run", sys.executable, "-c", CLIENT, "--slots", "x y")
    group.append(process)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "200 --slots x y\n")


DRAINING = """
import os, signal, sys, time, urllib.request
def ask(): return urllib.request.urlopen(os.environ["SIM_URL"] + "/health").status
def drain(number, frame):
    time.sleep(0.3)
    print("drained", ask(), flush=True)
    sys.exit(5)
signal.signal(signal.SIGINT, drain)
signal.signal(signal.SIGTERM, drain)
print("ready", ask(), flush=True)
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize(("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_server_stays_up_while_an_interrupted_command_drains(
    number: signal.Signals, whole_group: bool, group: list[subprocess.Popen[str]]
) -> None:
    process = start("--run", sys.executable, "-c", DRAINING)
    group.append(process)
    assert process.stdout
    assert process.stdout.readline() == "ready 200\n"
    (os.killpg if whole_group else os.kill)(process.pid, number)
    assert process.stdout.readline() == "drained 200\n"
    assert process.wait(10) == 5
    assert group_is_empty(process.pid)


def test_open_streams_dont_hold_it_up_when_the_command_has_ended(group: list[subprocess.Popen[str]]) -> None:
    process = start("--step-ms", "50", "--run", "sh", "-c", "echo $SIM_URL; sleep 30")
    group.append(process)
    assert process.stdout
    port = int(process.stdout.readline().rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(request("/v1/chat/completions", chat(**(STREAM | {"max_tokens": 2000}))))
        assert sock.recv(100)
        os.killpg(process.pid, signal.SIGTERM)
        began = time.monotonic()
        assert process.wait(10) == 143
        assert time.monotonic() - began < 5
    assert group_is_empty(process.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_alone_it_serves_until_told_to_stop(number: signal.Signals, group: list[subprocess.Popen[str]]) -> None:
    process = start()
    group.append(process)
    assert process.stdout
    line = process.stdout.readline()
    assert line.startswith("simulator: http://127.0.0.1:")
    assert line.endswith("serves sim-llm sim-guard sim-vlm sim-embedding sim-rerank\n")
    process.send_signal(number)
    assert process.wait(10) == 0
    assert process.communicate() == ("", "")
