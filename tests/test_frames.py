"""Loading what a killed, resaved or damaged run leaves behind, and the steady window."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import synthetic

from analysis import frames
from tokenswarm.record import COLUMNS, RequestRecord, encode, header

CSV = Path(__file__).parent / "cases" / "csv"


def row(start: float = 100.0, e2e: float | None = 1000.0, ttft: float | None = 100.0, **more: object) -> bytes:
    record = RequestRecord(start, stage="u001", users=1, worker="box:1", endpoint="llm", ttft_ms=ttft, e2e_ms=e2e,
                           output_tokens=10)  # fmt: skip
    for key, value in more.items():
        setattr(record, key, value)
    return encode(record)


def load(folder: Path, data: bytes, info: dict | None = None) -> frames.Run:
    (folder / "requests.csv").write_bytes(data)
    (folder / "run.json").write_text(json.dumps({"schema": 1, "state": "complete"} | (info or {})))
    return frames.load_run(folder)


def test_types_and_blank_is_unknown(tmp_path: Path) -> None:
    run = load(tmp_path, header() + row() + row(ttft=None, e2e=5.0, output_tokens=None, error="http_503"))
    first, second = run.requests.iloc[0], run.requests.iloc[1]
    assert str(run.requests["output_tokens"].dtype) == "Int64" and str(run.requests["ttft_ms"].dtype) == "float64"
    assert first["tpot_ms"] == pytest.approx(100) and first["ok"] and first["end_time"] == pytest.approx(101)
    assert np.isnan(second["ttft_ms"]) and np.isnan(second["tpot_ms"]) and not second["ok"]
    assert run.notes == []


def test_one_token_or_one_read_has_no_tpot(tmp_path: Path) -> None:
    run = load(tmp_path, header() + row(output_tokens=1) + row(ttft=1000.0) + row(error="truncated"))
    assert run.requests["tpot_ms"].isna().all()


@pytest.mark.parametrize(("error", "ours"), [
    ("dns", True), ("client", True), ("cancelled", True), ("http_400", True), ("http_404", True), ("http_429", False),
    ("http_408", False), ("http_503", False), ("timeout", False), ("truncated", False), ("", False),
])  # fmt: skip
def test_whose_fault(tmp_path: Path, error: str, ours: bool) -> None:
    assert bool(load(tmp_path, header() + row(error=error)).requests["client_fault"].iloc[0]) == ours


def test_cut_last_line_nul_block_and_repeated_header(tmp_path: Path) -> None:
    data = header() + row() + header() + row() + b"\0" * 64 + b"\n" + row()[:-4]
    run = load(tmp_path, data)
    assert len(run.requests) == 2
    assert run.notes == ["requests.csv: 2 damaged or repeated lines skipped"]


@pytest.mark.parametrize(("data", "note"), [
    (b"", "no data: requests.csv is empty"),
    (header(), "no data: requests.csv has a header and no rows"),
    ((CSV / "semicolon-decimal-comma-bom.csv").read_bytes(), "not a requests.csv of tokenswarm"),
])  # fmt: skip
def test_nothing_to_read_is_one_note(tmp_path: Path, data: bytes, note: str) -> None:
    run = load(tmp_path, data)
    assert len(run.requests) == 0 and len(run.notes) == 1 and note in run.notes[0]
    assert frames.stages(run) == []


def test_no_files_at_all(tmp_path: Path) -> None:
    run = frames.load_run(tmp_path)
    assert run.info["state"] == "running" and len(run.requests) == 0
    assert any("run.json is missing" in note for note in run.notes)


@pytest.mark.parametrize("text", ["{", '{"schema": 99}', "[]", "\x00"])
def test_damaged_run_json_keeps_the_rows(tmp_path: Path, text: str) -> None:
    load(tmp_path, header() + row())
    (tmp_path / "run.json").write_text(text)
    run = frames.load_run(tmp_path)
    assert len(run.requests) == 1 and run.info["state"] == "running" and len(run.notes) == 1


def test_values_that_are_no_numbers_are_listed_not_used(tmp_path: Path) -> None:
    names = list(COLUMNS)
    lines = []
    for text in ("nan", "inf", "-inf", "1e400", "fast", ""):
        cells = row().decode().rstrip("\n").split(",")
        cells[names.index("ttft_ms")] = text
        lines.append((",".join(cells) + "\n").encode())
    run = load(tmp_path, header() + b"".join(lines))
    assert run.requests["ttft_ms"].isna().all()
    assert run.notes == ["requests.csv: 5 values of ttft_ms are not numbers (first: 'nan'), left out"]


@pytest.mark.parametrize("times", [{"ttft": -400.0}, {"e2e": -5.0}, {"ttft": 2000.0, "e2e": 1000.0}, {"e2e": 1e9},
                                   {"e2e": None}])  # fmt: skip
def test_impossible_times_are_an_error_row_not_zero(tmp_path: Path, times: dict[str, float | None]) -> None:
    run = load(tmp_path, header() + row() + row(**times))
    bad = run.requests.iloc[1]
    assert not bad["ok"] and bad["client_fault"] and np.isnan(bad["tpot_ms"])
    assert len(run.notes) == 1 and "impossible times" in run.notes[0]


def test_two_hosts_with_skewed_clocks_give_the_same_window(tmp_path: Path) -> None:
    rows = synthetic.stage_rows("u016", 16, 320, synthetic.START, random.Random(1))
    for i, record in enumerate(rows):
        record.worker = f"host{i % 2}:1"
    straight = frames.stages(load(tmp_path, header() + b"".join(map(encode, rows))))[0]
    for record in rows:
        record.start_time += 45 if record.worker == "host1:1" else 0
    skewed = frames.stages(load(tmp_path, header() + b"".join(map(encode, rows))))[0]
    assert skewed.seconds == pytest.approx(straight.seconds, rel=0.02)
    assert len(skewed.completed) == pytest.approx(len(straight.completed), rel=0.02)


def test_window_runs_from_the_first_second_request_to_the_last_start(tmp_path: Path) -> None:
    starts = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]  # two users, 1 s each, staggered by half a second
    run = load(tmp_path, header() + b"".join(row(100 + s, 999.0, users=2) for s in reversed(starts)))
    part = frames.stages(run)[0]
    assert part.window == (1.0, 3.5)
    assert len(part.sample) == 6 and part.sample["t"].min() == 1.0
    assert len(part.completed) / part.seconds == pytest.approx(2.0)


def test_window_of_one_user_starts_at_the_first_completion(tmp_path: Path) -> None:
    run = load(tmp_path, header() + b"".join(row(100 + s, 999.0) for s in range(5)))
    part = frames.stages(run)[0]
    assert part.window == pytest.approx((0.999, 4.0))
    assert len(part.completed) / part.seconds == pytest.approx(1.0, rel=1e-3)


def test_no_window_from_the_first_wave_alone(tmp_path: Path) -> None:
    part = frames.stages(load(tmp_path, header() + b"".join(row(100 + s, users=4) for s in range(4))))[0]
    assert part.window is None and part.seconds is None and len(part.completed) == 0 and len(part.sample) == 0


def test_requests_we_cut_ourselves_are_in_no_sample(tmp_path: Path) -> None:
    run = load(tmp_path, header() + b"".join(row(100 + s) for s in range(5)) + row(105, error="cancelled"))
    part = frames.stages(run)[0]
    assert len(part.rows) == 6 and len(part.sample) == 4


def test_stages_keep_the_plans_order_and_the_last_of_a_killed_run_is_unfinished(tmp_path: Path) -> None:
    data = header() + row(100, stage="u004") + row(200, stage="u001") + row(300, stage="", users=None)
    assert [p.stage for p in frames.stages(load(tmp_path, data))] == ["u004", "u001"]
    killed = frames.stages(load(tmp_path, data, {"state": "running"}))
    assert [p.finished for p in killed] == [True, False]
    told = {"state": "interrupted", "stages": [{"stage": "u001", "end_reason": "done"},
                                               {"stage": "u004", "end_reason": "interrupted"}]}  # fmt: skip
    assert [(p.stage, p.finished) for p in frames.stages(load(tmp_path, data, told))] == [
        ("u001", True),
        ("u004", False),
    ]


def test_small_tables_survive_damage(tmp_path: Path) -> None:
    (tmp_path / "host.csv").write_bytes(
        b"time,source,metric,value\n1,box:1,cpu_pct,50\n2,box:1,cpu_pct,nan\n3,box:1,cpu"
    )
    (tmp_path / "itl.csv").write_bytes(b"stage,endpoint,bucket,count\nu001,llm,500,7\n")
    run = load(tmp_path, header() + row())
    assert run.host["value"].tolist() == [50] and run.itl["count"].tolist() == [7]
    assert run.notes == ["host.csv: 1 damaged lines skipped"]


def test_json_has_no_nan() -> None:
    text = frames.dumps({"a": np.float64("nan"), "b": [np.inf, np.int64(3), 1 / 3], "c": np.bool_(True), 4: None})
    assert json.loads(text) == {"a": None, "b": [None, 3, 0.333333], "c": True, "4": None}
