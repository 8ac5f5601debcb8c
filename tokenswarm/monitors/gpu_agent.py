"""`make gpu-agent`: this host's GPUs as Prometheus text in dcgm-exporter's names, for a master on another host."""

from __future__ import annotations

import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tokenswarm.monitors.dcgm import line
from tokenswarm.monitors.prometheus import sample


def page(devices: list[Any]) -> str:
    """The text of /metrics: what each GPU tells now."""
    lines: dict[str, list[str]] = {}
    for device in devices:
        facts = device.facts
        labels = {"gpu": str(facts["index"]), "UUID": facts["uuid"], "pci_bus_id": facts["bus"]}
        labels |= {"modelName": facts["name"], "Hostname": socket.gethostname()}
        for _, metric, value in device.sample():
            name, text = line(metric, labels, value)
            lines.setdefault(name, [f"# TYPE {name} gauge\n"]).append(text)
        if "mem_used_mib" in (seen := {metric: value for _, metric, value in device.last}):
            free = "DCGM_FI_DEV_FB_FREE"
            text = sample(free, labels, seen["mem_total_mib"] - seen["mem_used_mib"])
            lines.setdefault(free, [f"# TYPE {free} gauge\n"]).append(text)
    return "".join(text for family in lines.values() for text in family)


def serve(devices: list[Any], host: str, port: int, notes: list[str]) -> int:
    """Answer GET /metrics until the process is ended; exit code 3 without a GPU, 2 if the port is taken."""
    for note in notes:
        print(f"gpu-agent: {note}", file=sys.stderr, flush=True)
    if not devices:
        return 3
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/metrics", "/metrics/"):
                self.send_error(404, "only /metrics is here")
                return
            with lock:
                body = page(devices).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet: one line a second would be noise."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        print(f"gpu-agent: port {port} on {host}: {error.strerror}: give another PORT", file=sys.stderr)
        return 2
    at = f"http://{socket.gethostname() if host == '0.0.0.0' else host}:{server.server_address[1]}/metrics"
    print(f"gpu-agent: {len(devices)} GPUs at {at}; on the master: GPU_METRICS_URL={at}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("gpu-agent: ended", file=sys.stderr)
    return 0
