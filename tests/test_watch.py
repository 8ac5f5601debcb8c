"""The watcher process: rows each second, late samples under their real time, gaps, restarts, notes once."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import Pages
from shell import ROOT

VLLM = (
    'vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
    'vllm:num_requests_waiting{{engine="0",model_name="m"}} 0\n'
    'vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}\n'
    'vllm:time_to_first_token_seconds_bucket{{engine="0",model_name="m",le="0.1"}} {tokens}\n'
    'vllm:time_to_first_token_seconds_count{{engine="0",model_name="m"}} {tokens}\n'
    'vllm:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="100"}} 1.0\n'
)


@pytest.fixture
def pages() -> Iterator[Pages]:
    with Pages() as made:
        made.body = VLLM.format(running=1, tokens=10)
        yield made


class Watcher:
    """`python -m tokenswarm.monitors.watch FOLDER` with these variables."""

    def __init__(self, folder: Path, word: str = "", **variables: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        keep = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tokenswarm.monitors.watch", word or str(folder)]
        self.child = subprocess.Popen(
            command,
            env=keep | variables,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def rows(self, name: str = "engine.csv") -> list[dict[str, str]]:
        file = self.folder / name
        return list(csv.DictReader(file.read_text().splitlines())) if file.is_file() else []

    def values(self, metric: str, source: str = "llm", name: str = "engine.csv") -> list[float]:
        return [float(r["value"]) for r in self.rows(name) if (r["source"], r["metric"]) == (source, metric)]

    def until(self, count: int, metric: str = "up", source: str = "llm", name: str = "engine.csv") -> list[float]:
        """Wait until there are `count` values of a metric."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if len(found := self.values(metric, source, name)) >= count:
                return found
            time.sleep(0.1)
        raise AssertionError(f"only {self.values(metric, source, name)} of {metric}")

    def end(self) -> tuple[dict, str]:
        """Stop it; watch.json and what it said, but for the line about this host's GPUs."""
        self.child.send_signal(signal.SIGTERM)
        _, said = self.child.communicate(timeout=20)
        assert self.child.returncode == 0 and "Traceback" not in said, said
        found = json.loads((self.folder / "watch.json").read_text())
        found["notes"] = [note for note in found["notes"] if "GPU" not in note]
        return found, "".join(line for line in said.splitlines(keepends=True) if "GPU" not in line)


@pytest.fixture
def watchers(tmp_path: Path) -> Iterator[list[Watcher]]:
    made: list[Watcher] = []
    yield made
    for watcher in made:
        watcher.child.kill()
        watcher.child.communicate()


def start(watchers: list[Watcher], folder: Path, word: str = "", **variables: str) -> Watcher:
    watchers.append(Watcher(folder, word, **variables))
    return watchers[-1]


def test_rows_settings_and_the_servers_processes(pages: Pages, watchers: list[Watcher], tmp_path: Path) -> None:
    watcher = start(watchers, tmp_path / "run", LLM_URL=pages.base, LLM_MODEL="m", LLM_API_KEY="sk-secret")
    watcher.until(3)
    pages.body = VLLM.format(running=5, tokens=400)
    end = time.monotonic() + 10
    while 5 not in watcher.values("running") and time.monotonic() < end:
        time.sleep(0.1)
    found, _ = watcher.end()
    assert watcher.values("running")[0] == 1 and watcher.values("running")[-1] == 5
    assert watcher.values("ttft_le_0.1") == [10, 400], "a bucket is written when it changed"
    assert found["sources"]["llm"]["facts"]["gpu_blocks"] == 100 and found["sources"]["llm"]["engine"] == "vLLM"
    assert max(watcher.values("rss_mib", "llm", "server.csv")) > 5, "the page's own process listens on that port"
    assert watcher.values("cpu_pct", "machine", "server.csv")
    assert all(row["key"] == "Bearer sk-secret" for row in pages.seen())
    assert not any("sk-secret" in file.read_text() for file in watcher.folder.iterdir())


def test_a_slow_page_delays_no_other_and_keeps_its_real_time(
    pages: Pages, watchers: list[Watcher], tmp_path: Path
) -> None:
    with Pages() as slow:
        slow.body, slow.delay = VLLM.format(running=9, tokens=1), 2.2
        urls = {"LLM_URL": pages.base, "GUARD_URL": slow.base, "GUARD_MODEL": "m"}
        watcher = start(watchers, tmp_path / "run", **urls)
        watcher.until(2, source="guard")
        seen = slow.seen()
        watcher.end()
    times = {
        kind: [float(r["time"]) for r in watcher.rows() if (r["source"], r["metric"]) == (kind, "up")]
        for kind in ("llm", "guard")
    }
    during = [t for t in times["llm"] if times["guard"][0] < t < times["guard"][1]]
    assert len(during) >= 2, "the quick page was read on while the slow one kept us waiting"
    asked = [row["time"] for row in seen]
    assert all(at - begun >= 2.0 for begun, at in zip(asked, times["guard"])), (
        "stamped when it came, not when it was due"
    )


def test_errors_are_gaps_and_a_restart_is_seen(pages: Pages, watchers: list[Watcher], tmp_path: Path) -> None:
    watcher = start(watchers, tmp_path / "run", LLM_URL=pages.base)
    watcher.until(2)
    pages.status = 500
    while 0 not in watcher.until(3):
        time.sleep(0.1)
    pages.status, pages.body = 200, VLLM.format(running=1, tokens=3)
    end = time.monotonic() + 10
    while 3 not in watcher.values("generation_tokens") and time.monotonic() < end:
        time.sleep(0.1)
    found, said = watcher.end()
    assert watcher.values("generation_tokens")[0] == 10 and watcher.values("generation_tokens")[-1] == 3
    assert 0 in watcher.values("up") and watcher.values("up")[-1] == 1
    assert found["sources"]["llm"]["gaps"] >= 1 and said == "", "a gap in a page that works is one row, not a line"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("", 200, "no series of an engine"),
        ("x", 500, "HTTP 500"),
        ('vllm:num_requests_running{server="a"} 3\n', 200, "router"),
    ],
)
def test_no_engine_is_one_line(
    pages: Pages, watchers: list[Watcher], tmp_path: Path, body: str, status: int, words: str
) -> None:
    pages.body, pages.status = body, status
    watcher = start(watchers, tmp_path / "run", LLM_URL=pages.base)
    watcher.until(3)
    found, said = watcher.end()
    assert said.count("\n") == 1 and words in said and "LLM_METRICS_URL" in said
    assert len(found["notes"]) == 1 and watcher.values("running") == []


def test_a_body_cut_short_loses_its_last_line_only(pages: Pages, watchers: list[Watcher], tmp_path: Path) -> None:
    pages.body, pages.cut = (
        VLLM.format(running=4, tokens=12345).rpartition("1.0")[0] + "\nvllm:num_preemptions_total 12",
        True,
    )
    watcher = start(watchers, tmp_path / "run", LLM_URL=pages.base)
    watcher.until(2)
    watcher.end()
    assert set(watcher.values("running")) == {4} and watcher.values("preemptions") == [], "12 may have been 1234"


def test_runs_on_stdin_begin_with_a_look_from_before(pages: Pages, watchers: list[Watcher], tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    watcher = start(watchers, first, "-", LLM_URL=pages.base)
    second.mkdir()
    assert watcher.child.stdin is not None and watcher.child.stdout is not None
    assert watcher.child.stdout.readline() == "ready\n"
    begun = time.time()
    for folder in (first, second):
        watcher.child.stdin.write(f"{folder}\n")
        watcher.child.stdin.flush()
        watcher.folder = folder
        watcher.until(2)
    watcher.child.stdin.close()
    assert watcher.child.wait(10) == 0
    watcher.folder = first
    assert float(watcher.rows()[0]["time"]) <= begun + 0.2
    closed = (first / "engine.csv").read_bytes()
    time.sleep(0.1)
    assert (first / "engine.csv").read_bytes() == closed and (second / "watch.json").is_file()


def test_gpu_columns_from_another_hosts_page(pages: Pages, watchers: list[Watcher], tmp_path: Path) -> None:
    with Pages() as agent:
        agent.body = (
            'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-x"} 66\nDCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-x"} 300\n'
        )
        watcher = start(watchers, tmp_path / "run", LLM_URL=pages.base, GPU_METRICS_URL=agent.url)
        watcher.until(2, "temp_c", "gpu0|GPU-x", "gpu.csv")
        found, said = watcher.end()
    assert found["gpus"]["gpu0|GPU-x"]["uuid"] == "GPU-x" and not found["gpu_simulated"] and said == ""


def test_wrong_usage_and_options_in_one_line(tmp_path: Path) -> None:
    for words, variables, needed in (
        (["nowhere"], {}, "run folder"),
        ([str(tmp_path)], {"LLM_URL": "gpu:1"}, "LLM_URL"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "tokenswarm.monitors.watch", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)} | variables,
            timeout=30,
        )
        assert done.returncode == 2 and needed in done.stderr and done.stderr.count("\n") == 1


def test_the_watcher_is_free_of_the_loads_event_loop() -> None:
    modules = "tokenswarm.monitors.watch, tokenswarm.monitors.gpu"
    script = f"import sys, {modules}; print(*{{'gevent', 'locust', 'numpy'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done
