"""The meter's own error: a server with a known TTFT and gap between tokens, measured by one load process.

    .venv/bin/python benchmarks/meter.py [--users 50] [--ttft-ms 100] [--tpot-ms 20]

Prints how far the medians are from the truth, what the program's own clock would have said, and what it cost."""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tokenswarm.options import KINDS  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--ttft-ms", type=float, default=100.0)
    parser.add_argument("--tpot-ms", type=float, default=20.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = measure(given, Path(folder))
        with (run / "requests.csv").open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if not row["error"]]
        with (run / "host.csv").open(encoding="utf-8", newline="") as file:
            cpu = [float(row["value"]) for row in csv.DictReader(file) if row["metric"] == "cpu_pct"]
    show(rows, cpu, given)
    return 0


def measure(given: argparse.Namespace, folder: Path) -> Path:
    """One stage with this many users, 10 requests each, fixed answers of 50 tokens."""
    plan = {"STEPS": str(given.users), "REQUESTS_PER_USER": "10", "MIN_REQUESTS": "0", "MAX_TOKENS": "50"}
    sim = f"--ttft-ms {given.ttft_ms} --tpot-ms {given.tpot_ms} --output-tokens 5000"
    words = [sys.executable, "-m", "tokenswarm.launch", "ramp"]
    nobody = {f"{kind.upper()}_URL": "" for kind in KINDS}  # never a server that .env names
    environment = {**os.environ, **nobody, **plan, "SIM": sim, "REPORTS": str(folder), "ENDPOINT": "llm"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the run ended with exit code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return (folder / "latest").resolve()


def show(rows: list[dict[str, str]], cpu: list[float], given: argparse.Namespace) -> None:
    """Errors of TTFT and TPOT in ms: median, P99, largest."""
    ttft = [float(row["ttft_ms"]) - given.ttft_ms for row in rows]
    tpot = [
        (float(row["e2e_ms"]) - float(row["ttft_ms"])) / (int(row["output_tokens"]) - 1) - given.tpot_ms for row in rows
    ]
    lag = [float(row["lag_max_ms"]) for row in rows if row["lag_max_ms"]]
    print(f"{len(rows)} requests, {given.users} users in one process, clock {rows[0]['clock']}")
    for name, errors in (("TTFT", ttft), ("TPOT", tpot)):
        far = quantiles(errors, n=100)[-1]
        print(f"{name} error  median {median(errors):+.3f} ms  P99 {far:+.3f}  max {max(errors):+.3f}")
    late = quantiles(lag, n=100)[-1]
    print(f"read late by (worst chunk of a request)  median {median(lag):.2f} ms  P99 {late:.2f}")
    print(f"client CPU  median {median(cpu):.0f} % of a core, max {max(cpu):.0f} %")


if __name__ == "__main__":
    sys.exit(main())
