"""10,000 short records a second over two workers: does any get lost, what does the master cost, does memory grow?

    python -m benchmarks.records [--seconds 300] [--rate 10000] [--workers 2]

A stub stands in for the wire: each worker makes finished embedding records at its share of the rate, so that what is
measured is their way alone: to bytes, spool file, blob, master, requests.csv. A real worker reaches such rates only
over many processes."""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gevent
import psutil
from locust.exception import StopUser

from tokenswarm import runs
from tokenswarm.launch import processes
from tokenswarm.record import RequestRecord
from tokenswarm.shape import Stage, StageShape
from tokenswarm.users.embedding import EmbeddingUser

TICK = 0.01


class Stub(EmbeddingUser):
    """Makes a worker's share of the records."""

    def turn(self) -> None:
        share = float(os.environ["BENCH_RATE"]) / self.recorder.stage.workers
        begun, made = time.perf_counter(), 0
        while self.recorder.take():
            due = int((time.perf_counter() - begun) * share)
            for _ in range(due - made):
                self.recorder.add(self._finished(), [])
            made = due
            gevent.sleep(TICK)
        raise StopUser

    def _finished(self) -> RequestRecord:
        return RequestRecord(
            time.time(), stage=self.recorder.stage.name, users=2, endpoint="embedding", model="stub", profile="embed",
            prompt_id="p001", request_id="0123456789abcdef0123456789abcdef", status=200, headers_ms=4.1, e2e_ms=4.3,
            lag_max_ms=0.2, clock="kernel", input_tokens=12, tokens_source="usage", items=1,
        )  # fmt: skip


class Flood(StageShape):
    """One stage held for the time."""

    phase = "soak"
    cooldown = 0.0
    users = (Stub,)

    def plan(self, options: Any) -> list[Stage]:
        return [Stage("flood", int(os.environ["BENCH_WORKERS"]), hold=float(os.environ["BENCH_SECONDS"]))]


def main() -> int:
    """Run it and print what was seen; 0 if no record was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.records", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--rate", type=float, default=10_000.0, help="records a second, all workers together")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        master = start(options, folder)
        samples = watch(master)
        run = next(runs.all_runs(reports=Path(folder)), None)
        if run is None:
            print("the run did not begin", file=sys.stderr)
            return 1
        return tell(run, samples)


def start(options: argparse.Namespace, folder: str) -> subprocess.Popen[bytes]:
    """Locust with forked workers on a private port."""
    os.environ["PROCESSES"] = str(options.workers)
    variables = {"BENCH_SECONDS": options.seconds, "BENCH_RATE": options.rate, "BENCH_WORKERS": options.workers,
                 "REPORTS": folder, "ENDPOINT": "embedding", "EMBEDDING_URL": "http://127.0.0.1:9"}  # fmt: skip
    words = ["-f", __file__, "--headless", "--only-summary", "--loglevel", "WARNING", *processes()]
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    return subprocess.Popen([sys.executable, "-m", "locust", *words], env=environment, stdout=subprocess.DEVNULL)


def watch(master: subprocess.Popen[bytes]) -> list[tuple[float, float]]:
    """(CPU %, RSS MiB) of the master, once a second until it ends."""
    process, samples = psutil.Process(master.pid), []
    while master.poll() is None:
        try:
            cpu, rss = process.cpu_percent(), process.memory_info().rss
        except psutil.Error:
            break
        samples.append((cpu, rss / 2**20))
        time.sleep(1.0)
    master.wait()
    return samples


def tell(run: Path, samples: list[tuple[float, float]]) -> int:
    """The figures."""
    info = runs.load(run)
    seen: dict[str, set[int]] = {}
    rows = 0
    with (run / "requests.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows += 1
            seen.setdefault(row["worker"], set()).add(int(row["seq"]))
    stage = info["stages"][0]
    seconds = stage["end"] - stage["start"]
    lost = sum(max(seqs) - len(seqs) for seqs in seen.values())
    print(f"state {info['state']} {info['reasons'] or ''}")
    print(f"records {rows} ({rows / seconds:.0f}/s over {seconds:.0f} s), lost {lost}, "
          f"double {rows - sum(map(len, seen.values()))}")  # fmt: skip
    middle = samples[3:-3] or samples
    print(f"master CPU {statistics.mean(cpu for cpu, _ in middle):.0f} % of a core, "
          f"RSS {memory([rss for _, rss in middle])}")  # fmt: skip
    for worker in info["workers"]:
        mine = [r for r in host_rows(run) if r[1] == worker["worker"]]
        cpu = statistics.mean(float(r[3]) for r in mine if r[2] == "cpu_pct")
        print(f"worker {worker['worker']} CPU {cpu:.0f} %, lag P99 {worker['lag_p99_ms']:.1f} ms, "
              f"RSS {memory([float(r[3]) for r in mine if r[2] == 'rss_mib'])}")  # fmt: skip
    return int(lost > 0 or not rows)


def host_rows(run: Path) -> list[list[str]]:
    """host.csv without its header."""
    return [line.split(",") for line in (run / "host.csv").read_text().splitlines()[1:]]


def memory(series: list[float]) -> str:
    """First and last fifth: a leak shows as a difference."""
    part = max(1, len(series) // 5)
    return f"{statistics.median(series[:part]):.0f} -> {statistics.median(series[-part:]):.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
