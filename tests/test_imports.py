"""Who may import whom (docs/design: if the simulator shared our SSE code, a bug would cancel out)."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STDLIB_ONLY = [
    "arrivals",
    "children",
    "earlier",
    "record",
    "runs",
    "prompts",
    "profiles",
    "images",
    "convert",
    "options",
    "histogram",
    "recover",
    "outbox",
    "clocks",
    "hello",
]
OURS = {"tokenswarm", "simulator", "analysis", "locustfiles"}


def imported(path: Path) -> set[str]:
    """Dotted names of everything a file imports, wherever it stands in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def roots(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("name", STDLIB_ONLY)
def test_the_shared_modules_need_only_the_standard_library(name: str) -> None:
    assert roots(imported(ROOT / f"tokenswarm/{name}.py")) - {"tokenswarm"} <= sys.stdlib_module_names


@pytest.mark.parametrize("path", sorted((ROOT / "simulator").rglob("*.py")), ids=lambda p: p.name)
def test_the_simulator_knows_nothing_of_us(path: Path) -> None:
    assert not roots(imported(path)) & (OURS - {"simulator"}), path


@pytest.mark.parametrize("path", sorted((ROOT / "analysis").rglob("*.py")), ids=lambda p: p.name)
def test_analysis_shares_only_the_record_and_never_loads_locust(path: Path) -> None:
    names = imported(path)
    allowed = (
        "tokenswarm.arrivals",
        "tokenswarm.record",
        "tokenswarm.runs",
        "tokenswarm.histogram",
        "tokenswarm.recover",
    )
    assert not roots(names) & {"locust", "gevent", "simulator", "locustfiles"}, path
    ours = {name for name in names if name.startswith("tokenswarm.")}
    assert all(name.startswith(allowed) for name in ours), (path, ours)


@pytest.mark.parametrize("folder", ["tokenswarm", "simulator", "analysis", "tests"])
def test_nothing_imports_a_plan_or_a_notebook(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        names = imported(path)
        assert "locustfiles" not in roots(names), path
        notebooks = {f"analysis.{name}" for name in ("knee", "baseline", "soak", "mixed", "compare")}
        assert not names & notebooks, path


def test_a_plan_imports_only_locust_and_tokenswarm() -> None:
    for path in (ROOT / "locustfiles").glob("*.py"):
        assert roots(imported(path)) <= {"locust", "tokenswarm"}, path
