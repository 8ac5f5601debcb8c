from collections.abc import Iterator
from pathlib import Path

import pytest
from shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Runs our commands with a reports folder of its own."""
    made = Shell(tmp_path / "reports")
    yield made
    made.close()
