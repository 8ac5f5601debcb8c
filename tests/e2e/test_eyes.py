"""Eyes on the box in real runs: samples in the run folder, the limit named from them, the live page in a browser."""

import csv
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import browser
import pytest
from shell import Shell

QUICK = {"REQUESTS_PER_USER": "12", "MIN_REQUESTS": "60", "COOLDOWN": "2"}
SIM = "--slots 16 --output-tokens 24 --step-ms 8 --kv-blocks 600 --seed 7"
TABS = ["Tokens", "GPU", "Engine", "Workers"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def samples(run: Path, name: str) -> list[dict[str, str]]:
    with (run / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_ramp_names_the_slot_limit_from_data(shell: Shell) -> None:
    done = shell.run("tokenswarm.launch", "ramp", SIM=SIM, STEPS="4,10,20,40", **QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if "Waiting > 0" in line)
    assert "from stage u020 on, running = 16 = max_num_seqs, KV " in line and "slot limit" in line, line
    run = shell.latest()
    stages = json.loads((run / "summary.json").read_text())["endpoints"]["llm"]["stages"]
    assert [s["engine"]["waiting"]["median"] > 0 for s in stages] == [False, False, True, True]
    assert stages[3]["engine"]["tokens_ratio"] == pytest.approx(1, abs=0.02)
    gpus = {row["source"] for row in samples(run, "gpu.csv")}
    watch = json.loads((run / "watch.json").read_text())
    if gpus:  # the simulator's own gauges, never this machine's card
        assert watch["gpu_simulated"] and all("imulated" in watch["gpus"][gpu]["name"] for gpu in gpus)
        assert "simulated GPUs" in (run / "report.md").read_text()
    times = sorted({float(row["time"]) for row in samples(run, "engine.csv") if row["metric"] == "up"})
    info = json.loads((run / "run.json").read_text())
    assert times[0] <= info["stages"][0]["start"] + 0.1 and times[-1] >= info["stages"][-1]["end"] - 0.5
    assert statistics.median(b - a for a, b in itertools.pairwise(times)) == pytest.approx(1, abs=0.2)
    assert (run / "timeline.png").stat().st_size > 20_000
    assert not shell.left_over()


def test_without_metrics_and_gpu_the_run_is_complete(shell: Shell) -> None:
    server = shell.start("simulator", "--port", "0", "--slots", "8", "--output-tokens", "8")
    assert server.stdout is not None
    url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
    nowhere = f"http://127.0.0.1:{free_port()}/metrics"
    done = shell.run(
        "tokenswarm.launch",
        "ramp",
        LLM_URL=url,
        LLM_MODEL="sim-llm",
        LLM_METRICS_URL=nowhere,
        GPU_METRICS_URL=nowhere,
        STEPS="2,4",
        REQUESTS_PER_USER="10",
        MIN_REQUESTS="40",
        COOLDOWN="0",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("limits of llm") == 1, done.stderr
    assert done.stderr.count("GPU columns") == 1
    summary = json.loads((shell.latest() / "summary.json").read_text())
    assert summary["state"] == "complete"
    assert all(s["engine"] is None and s["gpus"] == {} for s in summary["endpoints"]["llm"]["stages"])
    assert "Traceback" not in done.stdout + done.stderr


class Site:
    """Locust's web UI as `make ui` starts it."""

    def __init__(self, shell: Shell, **variables: str) -> None:
        port = str(free_port())
        self.url = f"http://127.0.0.1:{port}"
        self.child = shell.start("tokenswarm.launch", "ui", UI_PORT=port, **variables)
        until = time.monotonic() + 40
        while time.monotonic() < until and self.child.poll() is None:
            try:
                self.get("/")
                return
            except OSError:
                time.sleep(0.3)
        raise AssertionError(f"no web UI: {self.child.communicate()}")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.read().decode()

    def swarm(self) -> None:
        ask = urllib.request.Request(self.url + "/swarm", b"user_count=1&spawn_rate=1", method="POST")
        assert json.load(urllib.request.urlopen(ask, timeout=10))["success"]

    def data(self) -> dict[str, Any]:
        return json.loads(self.get("/live/data"))


@pytest.mark.skipif(not browser.program(), reason="no Chromium on PATH: the live page was not opened in a browser")
def test_the_live_page_in_a_browser(shell: Shell, tmp_path: Path) -> None:
    plan = {"PLAN": "ramp", "STEPS": "4,24", "REQUESTS_PER_USER": "60", "MIN_REQUESTS": "200", "COOLDOWN": "1"}
    site = Site(shell, SIM=SIM, LLM_API_KEY="sk-never-shown", **plan)
    page = browser.Browser(tmp_path / "profile")
    try:
        page.open(site.url + "/live")
        page.wait("document.body.innerText.includes('waiting for a run')")
        site.swarm()
        page.wait("tile('users') === '4'".replace("tile", TILE))
        first = page.wait(
            f"Number({TILE}('requests in stage').replaceAll(',', '')) > 10 && {TILE}('requests in stage')"
        )
        shot = page.eval("document.querySelectorAll('canvas')[1].toDataURL()")
        page.wait(f"{TILE}('requests in stage') !== '{first}'")
        page.wait(f"document.querySelectorAll('canvas')[1].toDataURL() !== {json.dumps(shot)}")
        page.wait(f"{TILE}('users') === '24' && {TILE}('stage') === 'u024'", 60)
        page.wait(f"Number({TILE}('waiting in engine')) > 0")
        assert page.wait("[...document.querySelectorAll('.key')].some(k => /waiting llm [1-9]/.test(k.textContent))")
        pictures = {}
        for scheme in ("light", "dark"):
            page.colours(scheme)
            time.sleep(1.5)
            pictures[scheme] = page.picture(tmp_path / f"live-{scheme}.png")
            dark = page.eval("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(c => c < 90)")
            assert dark == (scheme == "dark")
        assert pictures["light"] != pictures["dark"]
        locust_tabs(page, site)
        text = (
            page.eval("document.documentElement.outerHTML")
            + site.get("/live")
            + json.dumps(site.data())
            + site.get("/metrics")
        )
        assert "sk-never-shown" not in text
        assert page.errors == []
    finally:
        page.close()
    prometheus_page(site)
    end(site)
    assert not shell.left_over()


TILE = "(name => document.querySelector(`.tile[data-name='${name}'] b`)?.firstChild.textContent)"


def locust_tabs(page: browser.Browser, site: Site) -> None:
    """The four tabs are in Locust's own page and have rows."""
    page.open(site.url + "/")
    page.wait("document.querySelectorAll('[role=tab]').length > 6")
    names = page.eval("[...document.querySelectorAll('[role=tab]')].map(tab => tab.textContent.trim())")
    assert [name for name in names if name in TABS] == TABS
    expected = {"Tokens": "llm", "GPU": "gpu", "Engine": "llm", "Workers": socket.gethostname()}
    for tab in TABS:
        page.eval(f"[...document.querySelectorAll('[role=tab]')].find(t => t.textContent.trim() === '{tab}').click()")
        row = f"[...document.querySelectorAll('tbody tr')].some(r => r.innerText.includes('{expected[tab]}'))"
        if tab != "GPU" or site.data()["tables"]["GPU"]:
            page.wait(row)


def prometheus_page(site: Site) -> None:
    """An independent reader takes /metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    names = {family.name for family in text_string_to_metric_families(site.get("/metrics"))}
    assert {"tokenswarm_users", "tokenswarm_requests", "tokenswarm_ttft_seconds", "tokenswarm_worker_cpu_pct"} <= names
    dashboard = json.loads((Path(__file__).parents[2] / "docs/grafana-dashboard.json").read_text())
    asked = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", []))
    for word in {
        w for w in asked.replace("(", " ").replace("{", " ").replace("[", " ").split() if w.startswith("tokenswarm_")
    }:
        assert word.removesuffix("_total") in names, word


def end(site: Site) -> None:
    """Ctrl-C in the terminal."""
    os.killpg(site.child.pid, signal.SIGINT)
    out, err = site.child.communicate(timeout=60)
    assert "Traceback" not in out + err, err


def test_the_pages_are_behind_the_login(shell: Shell, tmp_path: Path) -> None:
    login = tmp_path / "login.py"
    login.write_text(
        "from locust import events\n\n\n@events.init.add_listener\ndef _login(environment, **_):\n"
        "    environment.web_ui.app.config['SECRET_KEY'] = 'test'\n"
        "    environment.web_ui.login_manager.user_loader(lambda name: None)\n"
    )
    port = str(free_port())
    words = ["-f", f"locustfiles/live.py,{login}", "--web-login", "--web-port", port, "--llm-url", "http://127.0.0.1:9"]
    child = shell.start("locust", *words)
    opener = urllib.request.build_opener(NoRedirect())
    until = time.monotonic() + 30
    answers: dict[str, Any] = {}
    while time.monotonic() < until and len(answers) < 4:
        assert child.poll() is None, child.communicate()
        for path in ("/", "/live", "/live/data", "/metrics"):
            try:
                answers[path] = opener.open(f"http://127.0.0.1:{port}{path}", timeout=5).status
            except urllib.error.HTTPError as error:
                answers[path] = error.code
            except OSError:
                time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)
    assert answers["/"] in (302, 401), answers
    assert set(answers.values()) == {answers["/"]}, answers


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def test_the_watcher_ends_when_locust_is_killed(shell: Shell) -> None:
    server = shell.start("simulator", "--port", "0", "--slots", "4")
    assert server.stdout is not None
    url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
    child = shell.start(
        "locust", "-f", "locustfiles/live.py", "--headless", "-u", "2", "--llm-url", url, "--llm-model", "sim-llm"
    )
    until = time.monotonic() + 30
    while time.monotonic() < until and not [
        f for f in shell.reports.glob("2*/engine.csv") if f.read_bytes().count(b"up,1") > 1
    ]:
        time.sleep(0.2)
    child.kill()
    child.wait(10)
    time.sleep(3)
    assert not [line for line in shell.left_over() if "monitors" in line]
    rows = samples(shell.latest(), "engine.csv")
    assert rows and (shell.latest() / "watch.json").is_file()


def test_a_watcher_that_dies_costs_samples_and_is_said(shell: Shell) -> None:
    child = shell.start(
        "tokenswarm.launch", "ramp", SIM=SIM, STEPS="4,8", REQUESTS_PER_USER="30", MIN_REQUESTS="100", COOLDOWN="0"
    )
    until = time.monotonic() + 30
    while time.monotonic() < until and not [
        f for f in shell.reports.glob("2*/engine.csv") if f.read_bytes().count(b"up,1") > 2
    ]:
        time.sleep(0.2)
    watchers = [
        int(p.name)
        for p in Path("/proc").glob("[0-9]*")
        if (p / "cmdline").exists()
        and b"tokenswarm.monitors.watch" in (p / "cmdline").read_bytes()
        and in_session(p, child.pid)
    ]
    assert len(watchers) == 1
    os.kill(watchers[0], signal.SIGKILL)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, out + err
    assert "watcher ended" in err and "watcher ended before the run" in out and "Traceback" not in out + err


def in_session(process: Path, session: int) -> bool:
    return int((process / "stat").read_text().rpartition(")")[2].split()[3]) == session


def test_the_gpu_agent_without_a_gpu_says_so(shell: Shell) -> None:
    if subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout.count("libnvidia-ml.so.1"):
        pytest.skip("this machine has NVML: the line for machines without it was not seen")
    done = shell.run("tokenswarm.monitors.gpu", "--serve", "0", timeout=30)
    assert done.returncode == 3 and "no GPU is watched" in done.stderr and "Traceback" not in done.stderr
