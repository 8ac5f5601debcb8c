"""All tests in two halves side by side: python tests/halves.py [pytest's words]. Whole runs wait most of their time.

(pytest-xdist cannot: it lives on threads, which gevent replaces.) A line a test as it ends; failures at the end."""

import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("campaign", "distributed", "eyes", "bad_input", "secrets", "ramp")
WAITING = [str(HERE / f"e2e/test_{name}.py") for name in NAMES]
VERDICT = re.compile(r"\S+::.* (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")


def main(words: list[str]) -> int:
    """Exit code of the half that failed; 0 if both passed."""
    halves = [Half([*WAITING, *words]), Half([str(HERE), *(f"--ignore={path}" for path in WAITING), *words])]
    signal.signal(signal.SIGTERM, lambda *_: [half.child.send_signal(signal.SIGINT) for half in halves])
    for half in halves:
        half.join()
    for half in halves:
        print(*half.rest, sep="", end="")
    total = sum((half.counts() for half in halves), Counter())
    print(f"{total['passed']} passed, {total['failed'] + total['error']} failed, {total['skipped']} skipped")
    return max(half.code for half in halves)


class Half(threading.Thread):
    """One pytest process; its verdicts are shown at once, all else is kept."""

    def __init__(self, words: list[str]) -> None:
        super().__init__()
        self.rest: list[str] = []
        self.code = 0
        command = [sys.executable, "-u", "-m", "pytest", "-vv", "--no-header", "--durations=10", *words]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.start()

    def run(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if VERDICT.match(line):
                print(line, end="", flush=True)
            else:
                self.rest.append(line)
        self.code = self.child.wait()

    def counts(self) -> Counter[str]:
        """{passed: n, failed: n, ...} of pytest's last line."""
        found = re.findall(r"(\d+) (passed|failed|skipped|error)", self.rest[-1])
        return Counter({word: int(n) for n, word in found})


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C goes to both pytests, which end in order
    sys.exit(main(sys.argv[1:]))
