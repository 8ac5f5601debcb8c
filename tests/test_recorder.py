"""Blobs to the master over a bad network, clocks, who is let in, and rows recovered from spool files."""

import json
from pathlib import Path
from typing import Any

import pytest

from tokenswarm import clocks, hello
from tokenswarm.outbox import WINDOW, Outbox
from tokenswarm.record import RequestRecord, encode, header, read_rows
from tokenswarm.recorder import StageOrder
from tokenswarm.recover import main, recover, recover_at_hand
from tokenswarm.roll import Member
from tokenswarm.validity import LAG_ENOUGH, Worker

RUN = "20260101T000000Z-ramp"


def line(worker: str, seq: int, run: str = RUN) -> bytes:
    return encode(RequestRecord(1.5, run=run, worker=worker, seq=seq, stage="u001"))


class Master:
    """Takes blobs in order, as the collector does; `deaf` drops what is sent, `mute` drops the answers."""

    def __init__(self, tmp_path: Path) -> None:
        self.outbox = Outbox(self.hear)
        self.outbox.open(tmp_path, "box:1")
        self.blob, self.data, self.sent = 0, b"", 0
        self.deaf = self.mute = False

    def hear(self, message: dict[str, Any]) -> None:
        self.sent += 1
        if self.deaf:
            return
        if message["blob"] == self.blob + 1:
            self.blob, self.data = self.blob + 1, self.data + message["data"]
        if not self.mute:
            self.outbox.acknowledge(self.blob)

    def later(self) -> None:
        """The time after which the outbox sends again has passed."""
        self.outbox.moved -= 100
        self.outbox.pump()


@pytest.mark.parametrize("fault", ["deaf", "mute"])
def test_what_was_not_acknowledged_is_sent_again_once_and_in_order(tmp_path: Path, fault: str) -> None:
    master = Master(tmp_path)
    for number in range(40):
        setattr(master, fault, 10 <= number < 30)
        master.outbox.put(f"{number}\n".encode(), {})
        master.outbox.pump()
        if number == 20:
            master.later()
    master.later()
    assert master.outbox.empty
    assert master.data == b"".join(f"{n}\n".encode() for n in range(40))
    assert master.sent <= 40 + 3 * WINDOW, "a silent master is not flooded"
    assert (tmp_path / "box-1.csv").read_bytes() == header() + master.data


def test_memory_stays_flat_while_the_master_is_silent(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.deaf = True
    for _ in range(100):
        master.outbox.put(b"x" * 1000, {})
        master.outbox.pump()
    held = sum(len(blob.data or b"") for blob in master.outbox.waiting)
    assert held == 0 and master.sent == WINDOW
    master.deaf = False
    master.later()
    assert len(master.data) == 100_000


def test_a_spool_that_cannot_be_written_is_said_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    master = Master(tmp_path)
    master.outbox.open(tmp_path / "file" / "workers", "box:1")
    assert "cannot write its spool file" in master.outbox.trouble[0]
    master.deaf = True
    master.outbox.put(b"1\n", {})
    master.outbox.pump()
    master.deaf = False
    master.later()
    assert master.data == b"1\n"


def test_clock_offset_of_the_method() -> None:
    theta, delay = clocks.offset(100.000, 105.012, 105.013, 100.021)
    assert theta == pytest.approx(5.0020) and delay == pytest.approx(0.0200)


def test_the_sample_with_the_least_delay_counts() -> None:
    slow = [(float(t), t + 5.3, t + 5.3, t + 0.6) for t in range(9)]
    assert clocks.estimate(slow[:7]) is None, "eight are needed"
    assert clocks.estimate([*slow, (100.000, 105.012, 105.013, 100.021)]) == pytest.approx((5002.0, 10.0))


def test_the_bound_covers_a_clock_that_was_set_in_between() -> None:
    theta, bound = clocks.overall([(5.0, 1.0), (805.0, 1.0)]) or (0.0, 0.0)
    assert (theta, bound) == (405.0, 401.0)
    assert clocks.overall([]) is None


def test_another_profile_is_named() -> None:
    words = hello.words("box:1")
    assert hello.objection(words) == "" and hello.cautions(words) == []
    files = words["files"] | {"profiles/chat.jsonl": "1", "profiles/new.jsonl": "2"}
    other = words | {"hash": "0" * 16, "files": files}
    assert "profiles/chat.jsonl, profiles/new.jsonl" in hello.objection(other)
    assert "open only 256 files" in hello.cautions(words | {"open_files": 256})[0]


def worker(rank: int = 0, **facts: Any) -> Worker:
    return Worker(Member(f"node{rank}", f"box:{rank}", rank, hello.words(f"box:{rank}")), **facts)


def test_shares_add_up_to_the_stage() -> None:
    for users, requests, workers in ((10, 100, 3), (2, 61, 4), (7, 70, 3), (1, 5, 1)):
        order = StageOrder(users=users, requests=requests, workers=workers)
        made = [worker(rank) for rank in range(workers)]
        assert sum(w.share(users, order) for w in made) == users
        assert sum(w.requests(order) for w in made) == requests


def test_overload_is_sustained_load_and_lag_needs_samples() -> None:
    busy = worker()
    for percent in (100.0, 90.0):
        busy.note({"cpu_pct": percent}, {})
        assert busy.overload() == "", "two seconds are no overload"
    busy.note({"cpu_pct": 70.0}, {})
    assert "87 % of a core" in busy.overload()
    busy.note({"cpu_pct": 20.0}, {})
    assert busy.overload() == ""
    slow_bucket = {600: 2}  # about 160 ms
    busy.note({"cpu_pct": 1.0}, slow_bucket)
    assert busy.lagging() == "", "a P99 of two samples is none"
    busy.note({"cpu_pct": 1.0}, {300: LAG_ENOUGH - 10, 600: 8})
    assert "ms late" in busy.lagging()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / RUN
    (run / "workers").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"schema": 1, "run": RUN, "state": "running"}))
    (run / "requests.csv").write_bytes(header() + line("a:1", 1) + line("b:2", 1) + line("a:1", 2)[:-9])
    (run / "workers/a-1.csv").write_bytes(header() + b"".join(line("a:1", n) for n in (1, 2, 3)))
    (run / "workers/b-2.csv").write_bytes(header() + line("b:2", 1))
    return run


def numbers(run: Path) -> list[tuple[str, int]]:
    return sorted((row["worker"], int(row["seq"])) for row in read_rows(run / "requests.csv")[0])


def test_spooled_rows_are_recovered_once(run: Path) -> None:
    spools = sorted((run / "workers").glob("*.csv"))
    assert recover(run, spools) == ({"a:1": 2}, 0)
    assert numbers(run) == [("a:1", 1), ("a:1", 2), ("a:1", 3), ("b:2", 1)]
    before = (run / "requests.csv").read_bytes()
    assert recover(run, spools) == ({}, 0) and (run / "requests.csv").read_bytes() == before
    assert json.loads((run / "run.json").read_text())["recovered"] == {"a:1": 2}


def test_double_rows_are_dropped(run: Path) -> None:
    (run / "requests.csv").write_bytes(header() + line("a:1", 1) + line("a:1", 1))
    assert recover(run, []) == ({}, 1)
    assert numbers(run) == [("a:1", 1)]


def test_only_a_run_with_a_gap_is_touched(run: Path) -> None:
    told = {"schema": 1, "run": RUN, "state": "complete", "workers": [{"worker": "a:1", "complete": True}]}
    (run / "run.json").write_text(json.dumps(told))
    assert recover_at_hand(run) == []
    (run / "run.json").write_text(json.dumps(told | {"workers": [{"worker": "a:1", "complete": False}]}))
    assert recover_at_hand(run) == ["2 rows of worker a:1 recovered from its spool file"]
    (run / "run.json").unlink()
    assert recover_at_hand(run) == [], "nothing is left to recover"


def test_a_spool_of_another_run_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "c-3.csv"
    other.write_bytes(header() + line("c:3", 1, "20260101T000001Z-soak"))
    assert main(["recover", str(run), str(other)]) == 2
    assert "20260101T000001Z-soak" in capsys.readouterr().err
    other.write_text("a,b\n1,2\n")
    assert main(["recover", str(run), str(other)]) == 2
    assert "not rows of this version" in capsys.readouterr().err
    assert main(["recover", str(run)]) == 2
    assert main(["recover", str(run), str(run / "workers/a-1.csv")]) == 0
    assert "2 rows of worker a:1" in capsys.readouterr().out
