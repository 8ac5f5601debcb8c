"""The record: what is written is read again, what is cut is dropped, and the docs name every column."""

import re
from pathlib import Path

import pytest

from tokenswarm import record
from tokenswarm.record import COLUMNS, RequestRecord, encode, header, read_rows

DOCS = Path(__file__).parent.parent / "docs/record.md"


def written(path: Path, *rows: bytes) -> Path:
    path.write_bytes(header() + b"".join(rows))
    return path


def test_unknown_is_blank_and_known_comes_back(tmp_path: Path) -> None:
    row = RequestRecord(1796085178.1234567, worker="a:1", seq=7, model='q,"w"\n模型', ttft_ms=12.34567, output_tokens=0)
    rows, skipped = read_rows(written(tmp_path / "r.csv", encode(row)))
    assert skipped == 0
    assert rows[0]["start_time"] == "1796085178.123457"
    assert (rows[0]["ttft_ms"], rows[0]["output_tokens"], rows[0]["e2e_ms"]) == ("12.346", "0", "")


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_cut_last_line_is_dropped_not_read_as_a_smaller_number(tmp_path: Path, cut: int) -> None:
    whole = encode(RequestRecord(1.0, seq=1, e2e_ms=700.0))
    rows, _ = read_rows(written(tmp_path / "r.csv", whole, whole[:-cut]))
    assert len(rows) == 1


def test_repeated_headers_and_nul_blocks_are_skipped(tmp_path: Path) -> None:
    line = encode(RequestRecord(1.0, seq=1))
    rows, skipped = read_rows(written(tmp_path / "r.csv", line, header(), b"\0" * 64 + line, b"x,y\n"))
    assert (len(rows), skipped) == (2, 2)


def test_a_file_that_is_not_ours_is_refused_in_one_line(tmp_path: Path) -> None:
    other = tmp_path / "r.csv"
    other.write_text("a;b;c\n1;2;3\n")
    with pytest.raises(ValueError, match=r"not a requests.csv") as caught:
        read_rows(other)
    assert "\n" not in str(caught.value)


def test_the_docs_name_every_column_in_order_and_every_error_word() -> None:
    text = DOCS.read_text(encoding="utf-8")
    table = text.partition("| start_time")[2].partition("## Error")[0]
    named = [name for row in ("| start_time" + table).splitlines() if row.startswith("|")
             for name in re.split(r",\s*", row.split("|")[1].strip())]  # fmt: skip
    assert named == list(COLUMNS)
    words = re.findall(r"^\| (\w+) \|", text.partition("## Error")[2], re.MULTILINE)
    assert set(words) - {"word", "http_NNN"} == set(record.ERRORS)
