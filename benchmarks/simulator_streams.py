"""Does the simulator keep its own time? 100 streams at 50 tokens/s on one core, lateness of every token's write.

    python benchmarks/simulator_streams.py [--streams 100] [--tokens 500]

The simulator is pinned to one core; this process is the client (raw sockets, nothing parsed while it runs).
Lateness is when the kernel had taken a token's bytes minus the model's time for it, as the server counts it.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

MODES = {
    "engine, all tokens of a step due at once": ["--slots", "0", "--step-ms", "20", "--seq-us", "0"],
    "exact, TTFT 100 ms and 20 ms a token": ["--ttft-ms", "100", "--tpot-ms", "20"],
}
LIMIT_MS = 2.0
ROOT = Path(__file__).parent.parent


def start(flags: list[str], core: int | None) -> tuple[subprocess.Popen[str], int]:
    """A simulator pinned to a core, and its port."""
    pin = (lambda: os.sched_setaffinity(0, {core})) if core is not None else None
    command = [sys.executable, "-m", "simulator", *flags]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=pin)
    assert process.stdout
    return process, int(process.stdout.readline().split()[1].rpartition(":")[2])


async def fetch(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return text


async def stream(port: int, tokens: int, number: int) -> int:
    """One streamed reply; the events that came."""
    body = json.dumps(
        {
            "model": "sim-llm",
            "stream": True,
            "ignore_eos": True,
            "max_tokens": tokens,
            "messages": [{"role": "user", "content": f"{number} tell me about the harbour"}],
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    parts = []
    while part := await reader.read(1 << 16):
        parts.append(part)
    writer.close()
    return b"".join(parts).count(b"data: ")


def lateness(page: str) -> tuple[list[tuple[float, int]], float]:
    """Cumulative (upper edge in ms, tokens) and the largest lateness in ms, of the llm."""
    edges, longest = [], 0.0
    for line in page.splitlines():
        if 'model_name="sim-llm"' not in line:
            continue
        if line.startswith("simulator:token_lateness_seconds_bucket"):
            edges.append((1e3 * float(line.split('le="')[1].split('"')[0]), int(float(line.split()[-1]))))
        elif line.startswith("simulator:token_lateness_max_seconds"):
            longest = 1e3 * float(line.split()[-1])
    return edges, longest


def percentile(edges: list[tuple[float, int]], share: float) -> float:
    """Upper edge of the bucket that holds this share."""
    return next(edge for edge, count in edges if count >= share * edges[-1][1])


def cpu_seconds(page: str) -> float:
    return float(next(line for line in page.splitlines() if line.startswith("process_cpu_seconds_total")).split()[1])


async def measure(port: int, streams: int, tokens: int) -> bool:
    before, began = cpu_seconds(await fetch(port, "/metrics")), time.monotonic()
    events = await asyncio.gather(*(stream(port, tokens, number) for number in range(streams)))
    wall = time.monotonic() - began
    page = await fetch(port, "/metrics")
    edges, longest = lateness(page)
    written = edges[-1][1]
    p50, p99 = percentile(edges, 0.5), percentile(edges, 0.99)
    complete = written == streams * tokens and all(count == tokens + 2 for count in events)
    print(
        f"  {streams} streams x {tokens} tokens in {wall:.1f} s = {written / wall:.0f} tokens/s;"
        f" {'all arrived' if complete else 'TOKENS MISSING'}"
    )
    print(
        f"  lateness ms: P50 <= {p50:g}, P99 <= {p99:g}, max {longest:.2f};"
        f" CPU {100 * (cpu_seconds(page) - before) / wall:.0f} % of one core"
    )
    return complete and p99 <= LIMIT_MS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=500)
    options = parser.parse_args()
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    good = True
    for name, flags in MODES.items():
        print(name)
        process, port = start(flags, core)
        try:
            good &= asyncio.run(measure(port, options.streams, options.tokens))
        finally:
            process.terminate()
            process.wait()
    print(f"P99 within {LIMIT_MS:g} ms: {'yes' if good else 'NO'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
