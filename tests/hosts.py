"""Client hosts, a server host and a master host as network namespaces: own addresses, own host names, a bridge."""

import os
import subprocess

from shell import ROOT, Shell

NET = "10.99.7"


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10).stdout


class Hosts:
    """Everything is inside the namespaces, the bridge too, so that removing them removes all of it."""

    def __init__(self, *names: str) -> None:
        self.prefix = f"ts{os.getpid()}"
        self.address = {name: f"{NET}.{number}" for number, name in enumerate(names, 1)}
        self.made: list[str] = []
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        self._space("switch")
        ip("-n", self.space("switch"), "link", "add", "br0", "type", "bridge")
        ip("-n", self.space("switch"), "link", "set", "br0", "up")
        for name, address in self.address.items():
            self._space(name)
            ip("-n", self.space(name), "link", "add", "eth0", "type", "veth", "peer", "name", f"to-{name}",
               "netns", self.space("switch"))  # fmt: skip
            ip("-n", self.space("switch"), "link", "set", "dev", f"to-{name}", "master", "br0", "up")
            ip("-n", self.space(name), "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", self.space(name), "link", "set", device, "up")

    def space(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def _space(self, name: str) -> None:
        ip("netns", "add", self.space(name))
        self.made.append(self.space(name))

    def start(self, shell: Shell, host: str, *words: str, **variables: str) -> "subprocess.Popen[str]":
        """`python -m words` on a host."""
        there = ["ip", "netns", "exec", self.space(host), "unshare", "--uts"]
        named = ["sh", "-c", f'hostname {host}; exec "$@"', "sh"]
        return shell.start_words([*there, *named, *shell.python, "-m", *words], ROOT, variables)

    def link(self, host: str, state: str) -> None:
        """Take the host's cable out (down) or put it back (up)."""
        ip("-n", self.space("switch"), "link", "set", "dev", f"to-{host}", state)

    def close(self) -> None:
        for space in self.made:
            subprocess.run(["ip", "netns", "del", space], check=False, timeout=10)


def refusal() -> str:
    """Why this machine cannot do it; blank if it can."""
    try:
        Hosts("probe").close()
        subprocess.run(["unshare", "--uts", "true"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        return f"network namespaces cannot be made here: {said!r}".strip()
    return ""
