"""Who takes part: the load processes that the master expects and has checked. Nobody else ever gets users.

Locust takes any process that can reach its port, moves users to it at once, and moves a lost one's users to the rest
(locust.md 3.5). Here the set is fixed when the run begins, and a lost share of the load stays lost."""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gevent
import locust.runners
from locust.dispatch import UsersDispatcher
from locust.rpc.protocol import Message
from locust.runners import MasterRunner

from tokenswarm import clocks, hello
from tokenswarm.progress import say

LOST_AFTER = 20.0  # s of silence; a network cut of half that heals by itself
HELLO_WITHIN = 10.0
NEVER = 10**9


@dataclass(slots=True)
class Member:
    """A load process that was let in."""

    node: str
    name: str  # host:pid, as in its records
    rank: int
    hello: dict[str, Any]
    heard: float = field(default_factory=time.monotonic)
    lost: bool = False
    samples: list[clocks.Sample] = field(default_factory=list)
    estimates: list[clocks.Estimate] = field(default_factory=list)


class FixedDispatcher(UsersDispatcher):
    """User i of a stage goes to the worker of rank i mod W, whoever comes or goes meanwhile."""

    def __init__(self, worker_nodes: list[Any], user_classes: list[Any], rank: Callable[[str], int]) -> None:
        self.rank = rank
        super().__init__(worker_nodes, user_classes)

    def _sort_workers(self) -> None:
        self._worker_nodes.sort(key=lambda node: self.rank(node.id))

    def new_dispatch(self, *args: Any, **kwargs: Any) -> None:
        if not self._active_users:
            self._worker_node_generator = itertools.cycle(self._worker_nodes)
        super().new_dispatch(*args, **kwargs)

    def add_worker(self, worker_node: Any) -> None:
        """Its place is kept for it already, or it has none."""

    def remove_worker(self, worker_node: Any) -> None:
        """Its users are gone; they are not given to others."""

    @property
    def dispatch_in_progress(self) -> bool:
        return True  # else Locust sends everybody new spawn orders when somebody comes or goes


class Roll:
    """`lost(member, how)` is called once for a member that is gone in the middle of a run."""

    def __init__(self, environment: Any, lost: Callable[[Member, str], None]) -> None:
        self.environment, self.runner, self.tell_lost = environment, environment.runner, lost
        self.members: dict[str, Member] = {}
        self.knocking: dict[str, tuple[float, Message]] = {}
        self.refused: dict[str, str] = {}  # who -> why
        self.fixed = False
        options = environment.parsed_options
        self.distributed = isinstance(self.runner, MasterRunner)
        self.expected = (getattr(options, "expect_workers", None) or 1) if self.distributed else 1
        self.runner.register_message("pong", self._on_pong)
        self.runner.register_message("hello", self._on_hello)
        if self.distributed:
            self._stand_at_the_door()
            gevent.spawn(self._watch)

    def _stand_at_the_door(self) -> None:
        locust.runners.HEARTBEAT_LIVENESS = NEVER  # silence is judged here: Locust would stop the run or move users
        self.environment.dispatcher_class = functools.partial(FixedDispatcher, rank=self._rank)
        self.handle = self.runner.handle_message
        self.runner.handle_message = self._handle
        for node in list(self.runner.clients):  # connected before we stood here
            del self.runner.clients[node]
            self._knock(node, Message("client_ready", -1, node))

    def _rank(self, node: str) -> int:
        return self.members[node].rank if node in self.members else NEVER

    # -- coming in

    def _handle(self, node: str, msg: Message) -> None:
        """Every message to the master passes here; a stranger's go no further."""
        member = self.members.get(node)
        if member is None:
            if msg.type == "client_ready":
                self._knock(node, msg)
            elif msg.type == "hello" and node in self.knocking:
                self._on_hello(self.environment, msg)
        elif member.lost:
            self._send("refused", {"text": f"it was silent for {LOST_AFTER:.0f} s and counts as lost"}, node)
            if msg.type == "records":
                self.handle(node, msg)
        else:
            member.heard = time.monotonic()
            if msg.type == "quit":  # Locust would end the run with its last worker, before what came in is written
                self._gone(member, "it was ended")
            else:
                self.handle(node, msg)

    def _knock(self, node: str, msg: Message) -> None:
        if node not in self.knocking:
            self.knocking[node] = time.monotonic(), msg
        self._send("ack", None, node)  # lets it go on to its hello; no index, and not among Locust's clients

    def _on_hello(self, environment: Any, msg: Message, **_: Any) -> None:
        words = msg.data
        why = self._objection(words)
        ready = self.knocking.pop(msg.node_id, (0.0, None))[1]
        if why:
            self.refused[words["worker"]] = why
            say(f"worker {words['worker']} refused: {why}")
            self._send("refused", {"text": why}, msg.node_id)
            return
        taken = {member.rank for member in self.members.values()}
        rank = next(r for r in itertools.count() if r not in taken)
        member = self.members[msg.node_id] = Member(msg.node_id, words["worker"], rank, words)
        if ready is not None:
            self.runner.worker_indexes[msg.node_id] = rank
            self.handle(msg.node_id, ready)
            count = f"{len(self.members)} of {self.expected}"
            say(f"worker {member.name} is here ({count}; {words['cores']} cores, {words['open_files']} open files)")
        for caution in hello.cautions(words):
            say(f"worker {member.name} {caution}")
        gevent.spawn(self.measure, member)

    def _objection(self, words: dict[str, Any]) -> str:
        if self.fixed:
            return "the run has begun without it"
        if len(self.members) >= self.expected:
            return f"{self.expected} workers are expected and all are here already (WORKERS=)"
        if any(member.name == words["worker"] for member in self.members.values()):
            return "another worker has the same name: give each host (or container) a host name of its own"
        return hello.objection(words)

    def fix(self) -> list[Member]:
        """The run begins: from now on nobody joins. Ranks go round the hosts, so that few users spread over many."""
        self.fixed = True
        self.members = {node: member for node, member in self.members.items() if not member.lost}
        seen: Counter[str] = Counter()
        places = {}
        for member in sorted(self.members.values(), key=lambda m: (m.hello["host"], m.rank)):
            places[member.node] = seen[member.hello["host"]], member.hello["host"]
            seen[member.hello["host"]] += 1
        for rank, node in enumerate(sorted(places, key=lambda node: places[node])):
            self.members[node].rank = rank
            if self.distributed:
                self.runner.worker_indexes[node] = rank
                self._send("ack", {"index": rank}, node)
        return sorted(self.members.values(), key=lambda m: m.rank)

    def release(self) -> None:
        """The run is over and another may follow (web UI): others may join in between."""
        self.fixed = False

    # -- going

    def _gone(self, member: Member, how: str) -> None:
        if member.node in self.runner.clients:
            del self.runner.clients[member.node]
        if self.fixed:
            member.lost = True
            self.tell_lost(member, how)
        else:
            del self.members[member.node]
            say(f"worker {member.name} left: {how}")

    def _watch(self) -> None:
        while True:
            gevent.sleep(1.0)
            now = time.monotonic()
            for member in list(self.members.values()):
                if not member.lost and now - member.heard > LOST_AFTER:
                    self._gone(member, f"nothing was heard from it for {LOST_AFTER:.0f} s")
            for node, (since, _) in list(self.knocking.items()):
                if now - since > HELLO_WITHIN:
                    del self.knocking[node]
                    self.refused[node] = "it did not say who it is"
                    say(f"worker {node} refused: it did not say who it is (a Locust without tokenswarm?)")
                    self._send("quit", None, node)

    # -- clocks

    def measure(self, member: Member) -> None:
        """Ten pings, one after the other; the estimate joins the member's others."""
        member.samples = []
        for _ in range(clocks.PINGS):
            self._send("ping", {"t0": time.time()}, member.node)
            gevent.sleep(0.03)
        until = time.monotonic() + 2.0
        while len(member.samples) < clocks.PINGS and time.monotonic() < until:
            gevent.sleep(0.02)
        if found := clocks.estimate(member.samples):
            member.estimates.append(found)

    def _on_pong(self, environment: Any, msg: Message, **_: Any) -> None:
        t3 = time.time()
        if member := self.members.get(msg.node_id):
            member.samples.append((msg.data["t0"], msg.data["t1"], msg.data["t2"], t3))

    def _send(self, kind: str, data: Any, node: str) -> None:
        self.runner.send_message(kind, data, client_id=node)
