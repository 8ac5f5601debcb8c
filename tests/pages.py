"""A metrics page that tests set: its text, status, delay; in a process of its own, that gevent has not patched."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import Any

SERVER = r"""
import json, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
now = {"status": 200, "body": "", "delay": 0.0, "cut": False, "seen": []}
class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/seen":
            return self.reply(200, json.dumps(now["seen"]).encode())
        now["seen"].append({"path": self.path, "time": time.time(), "key": self.headers.get("Authorization")})
        if self.path == "/moved":
            return self.reply(307, b"", ("Location", "/metrics/"))
        time.sleep(now["delay"])
        body = now["body"].encode()
        self.reply(now["status"], body, length=len(body) + 500 if now["cut"] else None)
    def do_POST(self):
        now.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.reply(200, b"")
    def reply(self, status, body, header=None, length=None):
        self.send_response(status)
        if header:
            self.send_header(*header)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class Pages:
    """`pages.body = ...`, `.status`, `.delay`, `.cut` (shorter than its Content-Length) hold from then on."""

    def __enter__(self) -> Pages:
        self.child = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        self.__dict__["base"] = f"http://127.0.0.1:{self.child.stdout.readline().strip()}"
        self.__dict__["url"] = self.base + "/metrics"
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait(10)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("status", "body", "delay", "cut"):
            ask = urllib.request.Request(self.base, json.dumps({name: value}).encode(), method="POST")
            urllib.request.urlopen(ask, timeout=10).close()
        else:
            self.__dict__[name] = value

    def seen(self) -> list[dict[str, Any]]:
        """Every GET so far."""
        with urllib.request.urlopen(self.base + "/seen", timeout=10) as answer:
            return json.load(answer)
