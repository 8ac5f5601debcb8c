"""The README says what is true: its output is the sample run's, its links lead somewhere, its options exist."""

import re
from pathlib import Path

import pytest

from tokenswarm.options import OPTIONS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
OUTSIDE = {"REPORTS", "RUN", "PLAN", "UI_PORT", "PROCESSES", "SIM", "RESUME"}  # the launcher's and make's own


def test_the_output_shown_is_that_of_the_sample_run() -> None:
    shown = README.partition("<!-- sample: reports/sample/report.txt -->\n```\n")[2].partition("```")[0]
    assert shown.strip() == (ROOT / "reports/sample/report.txt").read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), (page, target)


def test_every_option_of_the_table_exists() -> None:
    known = {option.variable for option in OPTIONS} | OUTSIDE
    known |= {f"{kind}_API_KEY" for kind in ("LLM", "GUARD", "VLM", "EMBEDDING", "RERANK")}
    table = README.partition("| option | meaning |")[2].partition("\n\n")[0]
    named = {word for line in table.splitlines()[2:] for word in line.split("|")[1].split() if word != "..."}
    assert named and named <= known, named - known
