"""GPUs of this host through NVML.

    python -m tokenswarm.monitors.gpu --once [--json]     what this host's GPUs say now
    python -m tokenswarm.monitors.gpu --serve 9400        `make gpu-agent`: Prometheus text in dcgm-exporter's names
    python -m tokenswarm.monitors.gpu --stream            one JSON line a second, for the watcher

Runs in a process of its own: an NVML call may block or, with a lost GPU, take its process down. (no locust)"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from typing import Any

from tokenswarm.monitors import gpu_agent
from tokenswarm.monitors.nvml import Device, open_devices, reasons


def main(words: list[str] | None = None) -> int:
    """Exit code 0; 2 for wrong usage; --once: 3 if there is no GPU."""
    p = argparse.ArgumentParser(prog="python -m tokenswarm.monitors.gpu", description="GPUs of this host through NVML.")
    way = p.add_mutually_exclusive_group(required=True)
    way.add_argument("--once", action="store_true", help="one look")
    way.add_argument("--stream", action="store_true", help="one JSON line a second until the reader goes")
    way.add_argument("--serve", type=int, metavar="PORT", help="Prometheus text at http://HOST:PORT/metrics")
    p.add_argument("--json", action="store_true", help="--once as one JSON object")
    p.add_argument("--host", default="0.0.0.0", help="address that --serve listens on (all)")
    p.add_argument("--devices", default=os.environ.get("GPU_DEVICES"), help="such as 0,1 or GPU-5f3c (default: all)")
    options = p.parse_args(words)
    if options.stream:
        return stream(options.devices)
    notes: list[str] = []
    devices = open_devices(options.devices, notes.append)
    if options.serve is not None:
        return gpu_agent.serve(devices, options.host, options.serve, notes)
    return once(devices, notes, options.json)


def once(devices: list[Device], notes: list[str], as_json: bool) -> int:
    """Print one sample."""
    rows = [row for device in devices for row in device.sample()]
    if as_json:
        facts = {device.source: device.facts for device in devices}
        print(
            json.dumps(
                {"time": time.time(), "host": socket.gethostname(), "facts": facts, "rows": rows, "notes": notes}
            )
        )
    else:
        for source, metric, value in rows:
            words = f"  {' + '.join(reasons(int(value))) or 'none'}" if metric == "throttle" else ""
            print(f"{source}  {metric:16} {value:.6g}{words}")
    for note in notes:
        print(f"gpu: {note}", file=sys.stderr)
    return 0 if devices else 3


def stream(chosen: str | None) -> int:
    """A line of facts, then a line of rows each second, a line for each note; ends when nobody reads."""

    def put(**what: Any) -> None:
        print(json.dumps(what), flush=True)

    try:
        devices = open_devices(chosen, lambda note: put(note=note))
        due = time.monotonic()
        while devices:
            rows = [row for device in devices for row in device.sample()]
            put(time=time.time(), rows=rows, facts={device.source: device.facts for device in devices})
            due = max(due + 1.0, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    except (BrokenPipeError, KeyboardInterrupt):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if chosen is None or devices else 3


if __name__ == "__main__":
    sys.exit(main())
