"""Several hosts: exact rows, refusals, and what happens when a worker, the master or the network goes."""

import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hosts
import pytest
from shell import ROOT, Shell

SIM = ("--output-tokens", "10", "--step-ms", "10", "--slots", "16", "--seed", "7")
STEADY = {"REQUESTS_PER_USER": "200", "MIN_REQUESTS": "0", "COOLDOWN": "0"}
Child = subprocess.Popen[str]
PLAIN = """from locust import User, task


class LLMUser(User):
    @task
    def go(self):
        print("LOADING")
"""


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def info(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def wait_for(what: Callable[[], Any], seconds: float, why: str) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {why}")


def row_count(shell: Shell) -> int:
    return sum(path.read_bytes().count(b"\n") - 1 for path in shell.reports.glob("2*/requests.csv"))


def exact(found: list[dict[str, str]]) -> bool:
    """Each worker's running numbers are 1..n, each once."""
    seqs: dict[str, list[int]] = {}
    for row in found:
        seqs.setdefault(row["worker"], []).append(int(row["seq"]))
    return bool(seqs) and all(sorted(numbers) == list(range(1, len(numbers) + 1)) for numbers in seqs.values())


def locust_of(launcher: Child) -> int:
    """The Locust process that a launcher started."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    return next(int(c) for c in children if b"locust" in Path(f"/proc/{c}/cmdline").read_bytes())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ended(child: Child, seconds: float = 60) -> str:
    """All it printed."""
    out, err = child.communicate(timeout=seconds)
    assert "Traceback" not in out + err, out + err
    return out + err


class Local:
    """Simulator, master and workers on this machine, over loopback."""

    def __init__(self, shell: Shell) -> None:
        self.shell, self.port = shell, free_port()
        server = shell.start("simulator", "--port", "0", *SIM)
        assert server.stdout is not None
        self.url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        self.server = server

    def master(self, workers: int, **variables: str) -> Child:
        place = {"MASTER_BIND": "127.0.0.1", "MASTER_PORT": self.port, "WORKERS": str(workers)}
        target = {"LLM_URL": self.url, "LLM_MODEL": "sim-llm"}
        return self.shell.start("tokenswarm.launch", "master", **place, **target, **variables)

    def worker(self, processes: int = 1, cwd: Path = ROOT, **variables: str) -> Child:
        place = {"MASTER": f"127.0.0.1:{self.port}", "PROCESSES": str(processes)}
        return self.shell.start("tokenswarm.launch", "worker", cwd=cwd, **place, **variables)

    def close(self) -> None:
        """End the simulator; nothing of ours is left then."""
        self.server.terminate()
        self.server.communicate(timeout=10)
        wait_for(lambda: not self.shell.left_over(), 5, f"left over: {self.shell.left_over()}")


@pytest.fixture
def local(shell: Shell) -> Local:
    return Local(shell)


@pytest.fixture
def net() -> Iterator[hosts.Hosts]:
    if why := hosts.refusal():
        print(why)
        pytest.skip(why)
    made = hosts.Hosts("server", "alpha", "beta", "master")
    yield made
    made.close()


def start_over(
    net: hosts.Hosts, shell: Shell, workers: dict[str, int], **variables: str
) -> tuple[Child, dict[str, Child]]:
    """Simulator on `server`, master on `master`, and load processes on each of the other hosts."""
    server = net.start(shell, "server", "simulator", "--host", net.address["server"], "--port", "16000", *SIM)
    assert server.stdout is not None and "http" in server.stdout.readline()
    master = net.start(shell, "master", "tokenswarm.launch", "master", WORKERS=str(sum(workers.values())),
                       LLM_URL=f"http://{net.address['server']}:16000", LLM_MODEL="sim-llm", **variables)  # fmt: skip
    started = {
        host: net.start(shell, host, "tokenswarm.launch", "worker", MASTER=net.address["master"], PROCESSES=str(number))
        for host, number in workers.items()
    }
    return master, started


def end_over(shell: Shell) -> None:
    shell.started[0].terminate()
    shell.started[0].communicate(timeout=10)
    wait_for(lambda: not shell.left_over(), 5, f"left over: {shell.left_over()}")


def test_two_client_hosts_give_exact_rows_and_shares(net: hosts.Hosts, shell: Shell) -> None:
    plan = {"STEPS": "3,7", "REQUESTS_PER_USER": "10", "MIN_REQUESTS": "60", "COOLDOWN": "0"}
    master, workers = start_over(net, shell, {"alpha": 2, "beta": 1}, **plan)
    said = ended(master)
    assert master.returncode == 0, said
    assert net.address["master"] in said, "the one private address is bound without being asked for"
    assert all(ended(worker) is not None and worker.returncode == 0 for worker in workers.values())
    run = shell.latest()
    found = rows(run / "requests.csv")
    assert Counter(row["stage"] for row in found) == {"u003": 60, "u007": 70}
    assert exact(found) and not [row for row in found if row["error"]]
    shares = Counter((row["stage"], row["worker"].partition(":")[0]) for row in found)
    assert shares["u003", "alpha"] == 40 and shares["u003", "beta"] == 20
    assert shares["u007", "alpha"] == 50 and shares["u007", "beta"] == 20, "users go round the hosts: 3 + 2 and 2"
    told = info(run)
    assert [stage["valid"] for stage in told["stages"]] == [True, True]
    assert Counter(worker["host"] for worker in told["workers"]) == {"alpha": 2, "beta": 1}
    for worker in told["workers"]:
        assert abs(worker["offset_ms"]) <= worker["bound_ms"] < 50, "one machine has one clock"
        assert worker["complete"] and worker["hash"] == told["content"] and len(worker["clocks"]) == 2
    end_over(shell)


def test_nothing_is_lost_when_the_network_is_cut_for_10_s(net: hosts.Hosts, shell: Shell) -> None:
    plan = {"STEPS": "4,5", "REQUESTS_PER_USER": "40", "MIN_REQUESTS": "0", "COOLDOWN": "0"}
    master, workers = start_over(net, shell, {"alpha": 1, "beta": 1}, **plan)
    wait_for(lambda: row_count(shell) > 20, 40, "load")
    net.link("beta", "down")
    cut = time.time()
    time.sleep(10)
    net.link("beta", "up")
    said = ended(master, 90)
    assert all(ended(worker) is not None and worker.returncode == 0 for worker in workers.values())
    run = shell.latest()
    found = rows(run / "requests.csv")
    assert Counter(row["stage"] for row in found) == {"u004": 160, "u005": 200}, said
    assert exact(found)
    failed = [(row["worker"].partition(":")[0], row["error"]) for row in found if row["error"]]
    assert set(failed) <= {("beta", "stale"), ("beta", "disconnect")}, "its connections were cut with the link"
    assert len(failed) <= 3
    late = [float(row["start_time"]) - cut for row in found if row["worker"].startswith("beta")]
    assert not [t for t in late if 5.5 < t < 10], "no new request while the master is silent"
    stage = info(run)["stages"][0]
    assert not stage["valid"] and "beta" in stage["reasons"][0] and "did not hear" in stage["reasons"][0]
    assert info(run)["stages"][1]["valid"] and master.returncode == 4, "its load was missing for a while: said, exit 4"
    end_over(shell)


def test_a_killed_worker_is_named_with_its_share_and_its_rows_come_back(local: Local, shell: Shell) -> None:
    master = local.master(3, STEPS="2,6", **STEADY | {"REQUESTS_PER_USER": "60"})
    stays, dies = local.worker(2), local.worker()
    wait_for(lambda: row_count(shell) > 200, 60, "the second stage")
    pid = locust_of(dies)
    name = f"{socket.gethostname()}:{pid}"
    os.kill(pid, signal.SIGSTOP)  # its last blob stays in its spool file
    with next(shell.reports.glob(f"2*/workers/*-{pid}.csv")).open("a") as spool:
        last = rows(Path(spool.name))[-1]
        csv.DictWriter(spool, list(last), lineterminator="\n").writerow(last | {"seq": str(int(last["seq"]) + 1)})
    os.kill(pid, signal.SIGKILL)
    killed = time.time()
    said = ended(master, 90)
    assert master.returncode == 4, said
    ended(stays)
    run = shell.latest()
    found = rows(run / "requests.csv")
    spooled = [row for path in (run / "workers").glob("*.csv") for row in rows(path)]
    assert exact(found)
    assert {(r["worker"], r["seq"]) for r in found} == {(r["worker"], r["seq"]) for r in spooled}
    assert f"rows of worker {name} recovered" in said
    told = info(run)
    lost = next(worker["lost"] for worker in told["workers"] if worker["worker"] == name)
    assert lost["users"] == 2 and lost["of_users"] == 6 and 0 < lost["requests"] <= 120
    assert abs(lost["time"] - killed) < 3, "when it went, not when it was noticed"
    stage = told["stages"][-1]
    assert (stage["stage"], stage["valid"], stage["end_reason"]) == ("u006", False, "lost")
    assert "2 of 6 users" in stage["reasons"][0]
    assert told["stages"][0]["valid"] and told["state"] == "invalid"
    others = Counter(row["worker"] for row in found if row["stage"] == "u006")
    assert all(count <= 120 for worker, count in others.items()), "nobody took over the lost share"
    assert "invalid" in (run / "report.md").read_text().splitlines()[2]
    local.close()


def test_a_killed_master_leaves_a_report_and_workers_that_stop(local: Local, shell: Shell) -> None:
    master, worker = local.master(2, STEPS="6", **STEADY), local.worker(2)
    wait_for(lambda: row_count(shell) > 60, 60, "load")
    killed = time.time()
    os.kill(locust_of(master), signal.SIGKILL)
    said = ended(master)
    assert master.returncode == 137 and "incomplete" in said, said
    said = ended(worker, 45)
    assert worker.returncode == 4 and "nothing heard from the master" in said, said
    again = shell.run("analysis.report", str(shell.latest()))
    assert again.returncode == 0 and "killed before its end" in again.stdout, again.stdout + again.stderr
    found = rows(shell.latest() / "requests.csv")
    assert exact(found)
    assert max(float(row["start_time"]) for row in found) < killed + 5.5, "no new request 5 s after"
    assert max(float(row["start_time"]) for row in found) > killed + 1, "and none of those in between is lost"
    assert not [row for row in found if row["error"]]
    local.close()


def test_other_code_and_strangers_get_no_users(local: Local, shell: Shell, tmp_path: Path) -> None:
    master = local.master(1, STEPS="4", REQUESTS_PER_USER="10", MIN_REQUESTS="0")
    other = tmp_path / "checkout"
    for folder in ("tokenswarm", "locustfiles", "profiles"):
        shutil.copytree(ROOT / folder, other / folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "profiles/chat.jsonl").open("a") as file:
        file.write("\n")
    wrong = local.worker(cwd=other, PYTHONPATH=str(other))
    said = ended(wrong)
    assert wrong.returncode == 4 and "refused us" in said and "profiles/chat.jsonl" in said, said
    plain = tmp_path / "plain.py"
    plain.write_text(PLAIN)
    words = ["locust", "-f", str(plain), "--worker", "--master-host", "127.0.0.1", "--master-port", local.port]
    stranger = shell.start(*words, cwd=tmp_path)
    said = ended(stranger, 40)
    assert "LOADING" not in said and "quit message" in said, said
    good = local.worker()
    late = local.worker()
    said = ended(master)
    assert master.returncode == 0, said
    assert "profiles/chat.jsonl" in said and "did not say who it is" in said, said
    both = ended(good) + ended(late)
    assert sorted((good.returncode, late.returncode)) == [0, 4] and "refused us" in both, both
    found = rows(shell.latest() / "requests.csv")
    assert len(found) == 40 and len({row["worker"] for row in found}) == 1 and exact(found)
    local.close()


def test_forks_of_a_master_that_cannot_listen_do_not_stay(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        place = ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]
        words = ["locust", "-f", "locustfiles/ramp.py", "--headless", "--processes", "2", *place]
        done = shell.run(*words, LLM_URL="http://127.0.0.1:9", LLM_MODEL="m", timeout=60)
        assert done.returncode == 1 and "Address already in use" in done.stderr, done.stderr
        wait_for(lambda: not shell.left_over(), 5, f"left over: {shell.left_over()}")


def test_forks_of_a_killed_master_hand_their_rows_to_the_report(shell: Shell) -> None:
    master = shell.start("tokenswarm.launch", "ramp", SIM=" ".join(SIM), STEPS="4", PROCESSES="2", **STEADY)
    wait_for(lambda: row_count(shell) > 40, 60, "load")
    run = wait_for(lambda: list(shell.reports.glob("2*")), 1, "a run")[0]
    pids = sorted(int(path.stem.rpartition("-")[2]) for path in (run / "workers").glob("*.csv"))
    os.kill(parent_of(pids[0]), signal.SIGKILL)
    said = ended(master)
    assert master.returncode == 137 and "incomplete" in said, said
    wait_for(lambda: not shell.left_over(), 10, f"left over: {shell.left_over()}")
    shell.run("analysis.report", str(run))
    found = rows(run / "requests.csv")
    assert exact(found) and len({row["worker"] for row in found}) == 2
    assert sum(row["error"] == "cancelled" for row in found) <= 4


def test_ctrl_c_at_a_client_host_is_said_at_the_master(local: Local, shell: Shell) -> None:
    master, stays, leaves = local.master(2, STEPS="4", **STEADY), local.worker(), local.worker()
    wait_for(lambda: row_count(shell) > 40, 60, "load")
    os.killpg(leaves.pid, signal.SIGINT)
    said = ended(master)
    assert master.returncode == 4 and "it was ended" in said and "2 of 4 users" in said, said
    ended(stays), ended(leaves)
    found = rows(shell.latest() / "requests.csv")
    assert exact(found)
    assert sum(row["error"] == "cancelled" for row in found) <= 2
    spooled = [row for path in (shell.latest() / "workers").glob("*.csv") for row in rows(path)]
    assert len(spooled) == len(found), "what it cut and what it had done were handed over before it went"
    local.close()


@pytest.mark.parametrize(
    ("command", "variables", "needed"),
    [
        ("master", {"LLM_URL": "http://10.0.0.9:1"}, "WORKERS=4"),
        ("master", {"WORKERS": "2"}, "LLM_URL"),
        ("master", {"WORKERS": "2", "PROCESSES": "2", "LLM_URL": "http://10.0.0.9:1"}, "make worker"),
        ("master", {"WORKERS": "2", "MASTER_BIND": "192.0.2.1", "LLM_URL": "http://10.0.0.9:1"}, "MASTER_BIND="),
        ("worker", {}, "MASTER=''"),
        ("worker", {"MASTER": "127.0.0.1:x"}, "10.0.0.5"),
    ],
)
def test_a_mistake_gets_one_line(shell: Shell, command: str, variables: dict[str, str], needed: str) -> None:
    done = shell.run("tokenswarm.launch", command, **variables)
    assert done.returncode == 2 and needed in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert sys.executable not in done.stderr
