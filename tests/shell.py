import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


class Shell:
    """Runs our commands as a user would: own reports folder, no inherited options, everything ended afterwards."""

    python = (sys.executable,)

    def __init__(self, reports: Path) -> None:
        self.reports = reports
        self.started: list[subprocess.Popen[str]] = []

    def environment(self, **variables: str) -> dict[str, str]:
        keep = {
            k: v
            for k, v in os.environ.items()
            if k in ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR") or k.startswith("OPENBLAS")
        }
        return keep | {"REPORTS": str(self.reports), "PYTHONPATH": str(ROOT)} | variables

    def start(self, *words: str, cwd: Path = ROOT, **variables: str) -> subprocess.Popen[str]:
        """Start `python -m words` in a process group of its own."""
        return self.start_words([*self.python, "-m", *words], cwd, variables)

    def start_words(self, words: list[str], cwd: Path, variables: dict[str, str]) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            words,
            cwd=cwd,
            env=self.environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(child)
        return child

    def run(self, *words: str, timeout: float = 120, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m words` to its end."""
        child = self.start(*words, **variables)
        out, err = child.communicate(timeout=timeout)
        return subprocess.CompletedProcess(words, child.returncode, out, err)

    def latest(self) -> Path:
        return (self.reports / "latest").resolve()

    def left_over(self) -> list[str]:
        """Command lines of processes that outlived the commands we started (same session)."""
        sessions = {child.pid for child in self.started}
        left = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) in sessions and fields[0] != "Z":
                    left.append(stat.with_name("cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return left

    def close(self) -> None:
        for child in self.started:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            finally:
                child.communicate()
