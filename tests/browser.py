"""A real headless Chromium over its DevTools protocol, a few lines of it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def program() -> str | None:
    """Chromium on PATH."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page; everything that its console, its scripts and its network complain of is in `errors`."""

    def __init__(self, home: Path, width: int = 1440, height: int = 1000) -> None:
        words = [str(program()), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--remote-debugging-port=0", f"--user-data-dir={home}", "--no-first-run", "--disable-extensions",
                 f"--window-size={width},{height}", "about:blank"]  # fmt: skip
        self.child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        port = self._port(home / "DevToolsActivePort")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
            url = next(page["webSocketDebuggerUrl"] for page in json.load(answer) if page["type"] == "page")
        self.link = websocket.create_connection(url, timeout=20, suppress_origin=True)
        self.number, self.errors = 0, []  # type: int, list[str]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def _port(self, file: Path) -> int:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if file.is_file() and (text := file.read_text()).strip():
                return int(text.split()[0])
            time.sleep(0.1)
        raise TimeoutError("Chromium did not start")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command and its answer; events that come meanwhile are looked through for errors."""
        self.number += 1
        self.link.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.link.recv())
            self._note(message)
            if message.get("id") == self.number:
                assert "error" not in message, message["error"]
                return message["result"]

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.errors += [f"leaves this machine: {u}" for u in [params["request"]["url"]]
                                if not u.startswith(("http://127.0.0.1:", "data:", "blob:"))]  # fmt: skip

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def eval(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, script: str, seconds: float = 20.0) -> Any:
        """Until the expression is true; its value."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if value := self.eval(script):
                return value
            time.sleep(0.2)
        raise AssertionError(f"never true within {seconds:g} s: {script}")

    def colours(self, scheme: str) -> None:
        """light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> bytes:
        """A screenshot, kept as a PNG."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data

    def close(self) -> None:
        self.link.close()
        self.child.terminate()
        self.child.wait(20)
