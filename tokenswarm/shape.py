"""Stages, and the shape that walks through them: every stage drained before the next begins, nothing cut."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from locust import LoadTestShape

from tokenswarm import targets
from tokenswarm.collector import FLUSH_TIMEOUT, Collector, profile_facts, say
from tokenswarm.earlier import PlanError
from tokenswarm.progress import Progress
from tokenswarm.users.base import load_prompts

logger = logging.getLogger(__name__)
ALL_AT_ONCE = 10_000
START_WITHIN = 120.0  # s for all users of a stage to start
DEAD_AFTER = 120.0  # s of nothing but failures that end a stage held by time
Tick = tuple[int, float, list[Any]] | None


@dataclass(frozen=True)
class Stage:
    """So many users at once, until they have sent so many requests in all, or for a time.

    `users` counts users of the phase's one kind, or of each kind: {"llm": 20, "guard": 30}. With `rate` (arrivals
    per second for `hold` s) nobody waits for an answer, and there are no users to count."""

    name: str
    users: int | Mapping[str, int] = 0
    requests: int = 0
    hold: float = 0.0
    rate: float = 0.0
    prompts: str = ""  # a profile other than the kind's own
    warmup: bool = False  # no part of the statistics

    def counts(self, kind: str) -> dict[str, int]:
        """Users of each kind, where `kind` is the phase's one kind."""
        return dict(self.users) if isinstance(self.users, Mapping) else {kind: self.users}


class StageShape(LoadTestShape):
    """Walks through `plan(options)`. Users start spread over one service time, load for the stage's requests or its
    time, leave; then the cool-down, then the next stage. Locust's facts behind it: locust.md sections 4.1 to 4.5."""

    abstract = True
    runner: Any
    phase: ClassVar[str] = ""
    cooldown: ClassVar[float] = 5.0
    users: ClassVar[tuple[Any, ...]] = ()  # the user classes a plan may load

    def plan(self, options: Any) -> list[Stage]:
        """The stages, in order. Raises PlanError."""
        raise NotImplementedError

    def tick(self) -> Tick:
        """Called about once a second. An exception here would leave users running unattended, so none leaves."""
        try:
            if self.runner.shape_last_tick is None:  # a new run; reset_time() is called twice and cannot tell
                self._begin()
            return self._state()
        except PlanError as error:
            say(str(error))
            self.runner.environment.process_exit_code = 2
            return None
        except OSError as error:
            say(f"the run cannot be written: {error.strerror} ({error.filename}); free some space or set REPORTS=DIR")
        except Exception:
            logger.exception("the shape failed")
            say("internal error in the shape, see run.log; the run ends here")
            self.collector.doubt("internal error in the shape")
        self.runner.environment.process_exit_code = 4
        self.collector.finish("invalid")
        return None

    @property
    def collector(self) -> Collector:
        return self.runner.environment.collector

    def _begin(self) -> None:
        options = self.options = self.runner.environment.parsed_options
        self.kind = next(user for user in self.users if user.kind == options.endpoint)
        self.todo, self.index, self.spread = self.plan(options), -1, 1.0
        self.rest = self.option("cooldown")
        self.progress = Progress(self.collector, self.todo, self.rest)
        loaded = {kind for stage in self.todo for kind in stage.counts(options.endpoint)} | set(self.watched())
        kinds = sorted(loaded)
        found = {kind: targets.target(options, kind) for kind in kinds}
        self.collector.begin(
            self.phase,
            {"stages": [facts(stage, options.endpoint) for stage in self.todo], "cooldown_s": self.rest},
            options.endpoint if options.endpoint in kinds else kinds[0],
            {kind: {"url": target.url, "model": target.model} for kind, target in found.items()},
            self._profiles(),
        )
        self._state: Callable[[], Tick] = self._next

    def _profiles(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for stage in self.todo:
            for kind in stage.counts(self.kind.kind):
                found |= profile_facts(load_prompts(self.options, self._class(kind), stage.prompts))
        return found

    def option(self, name: str) -> Any:
        """An option, or the plan's own class attribute where the option was not given."""
        given = getattr(self.runner.environment.parsed_options, name)
        return getattr(self, name) if given is None else given

    def watched(self) -> list[str]:
        """Kinds that a canary watches, whoever loads them."""
        return []

    def loads(self, stage: Stage) -> dict[Any, int]:
        """How many of each user class a stage has."""
        return {self._class(kind): count for kind, count in stage.counts(self.kind.kind).items() if count}

    def early_end(self, stage: Stage, total: Any) -> str:
        """Why the stage should end before its time; blank if it should go on."""
        dead = stage.hold and total.failed and time.monotonic() - self.answered > DEAD_AFTER
        return "errors" if dead else ""

    def _class(self, kind: str) -> Any:
        return next(user for user in self.users if user.kind == kind)

    def _hold(self, on: bool) -> Tick:
        # All at once, down as well: a slow ramp-down would start users anew to meet its intermediate counts.
        for user, count in self.loaded.items():
            user.fixed_count = count
        users = sum(self.loaded.values()) if on else 0
        return users, users or ALL_AT_ONCE, list(self.loaded)

    def _next(self) -> Tick:
        self.index += 1
        stage = self.todo[self.index]
        self.loaded = self.loads(stage)
        self.collector.open_stage(
            stage.name, sum(stage.counts(self.kind.kind).values()), stage.requests, self.spread,
            **{k: v for k, v in facts(stage, self.kind.kind).items() if k not in ("stage", "users", "requests")},
            seed=self.options.seed, prompts=stage.prompts,
        )  # fmt: skip
        self.progress.open(self.index)
        self.opened = self.moved = self.answered = time.monotonic()
        self.last_done = self.last_ok = 0
        self.closing = ""
        self._state = self._run
        return self._hold(True)

    def _run(self) -> Tick:
        stage, total = self.todo[self.index], self.collector.total()
        self.collector.note_late_workers()
        self.progress.update(total)
        if total.done > self.last_done:
            self.moved, self.last_done = time.monotonic(), total.done
        if total.done - total.failed > self.last_ok:
            self.answered, self.last_ok = time.monotonic(), total.done - total.failed
        if self.collector.stopping:
            return self._close("interrupted") if total.live == 0 or self._stuck(10) else self._hold(True)
        if not self.closing and (reason := self.collector.lost_load() or self.early_end(stage, total)):
            self.closing = reason
            self.collector.close_early(cut=reason == "oversaturated")  # its queue could take as long again to drain
        if total.started >= self.collector.awaited(sum(self.loaded.values())) and total.live <= 0:
            bad = stage.requests and too_many_errors(total.server_failed, total.done)
            return self._close(self.closing or ("errors" if bad else "done"))
        if total.started < sum(self.loaded.values()) and time.monotonic() - self.opened > START_WITHIN:
            self.collector.doubt(
                f"stage {stage.name}: only {total.started} of {sum(self.loaded.values())} users started"
            )
            self.collector.close_early()
            return self._close("timeout")
        if self._stuck(stage.hold + self.options.timeout + 30):
            self.collector.doubt(f"stage {stage.name}: no request ended for {time.monotonic() - self.moved:.0f} s")
            return self._close("timeout")
        return self._hold(True)

    def _stuck(self, seconds: float) -> bool:
        return time.monotonic() - self.moved > seconds

    def _close(self, reason: str) -> Tick:
        total = self.collector.total()
        self.collector.close_stage(reason)
        self.progress.close(total, reason)
        if total.done > total.failed:
            self.spread = total.e2e_ms / (total.done - total.failed) / 1000.0
        self.rest_until = time.monotonic() + self.rest
        self._state = self._rest
        if reason not in self.goes_on or self.index + 1 == len(self.todo):
            self.collector.flush()
            self.rest_until = time.monotonic() + FLUSH_TIMEOUT
            self._state = self._end
        return self._hold(False)

    goes_on: ClassVar[tuple[str, ...]] = ("done",)  # ends of a stage after which the next one begins

    def _rest(self) -> Tick:
        if self.collector.stopping or self.collector.lost_load():
            self.collector.flush()
            self._state = self._end
        elif time.monotonic() >= self.rest_until and self.runner.user_count == 0:
            return self._next()
        return self._hold(False)

    def _end(self) -> Tick:
        if not self.collector.flushed():
            if time.monotonic() < self.rest_until:
                return self._hold(False)
            self.collector.doubt("not every worker handed in its last rows")
        reason = self.collector.info["stages"][-1]["end_reason"]
        state = {"timeout": "incomplete"}.get(reason, "complete")
        self.collector.finish(self.collector.stopping or state)
        self.progress.end()
        return None


def facts(stage: Stage, kind: str) -> dict[str, Any]:
    """A stage as run.json tells it; what does not apply is left out."""
    counts = stage.counts(kind)
    out: dict[str, Any] = {"stage": stage.name, "users": sum(counts.values()), "requests": stage.requests}
    more = {"counts": counts, "hold_s": stage.hold, "rate": stage.rate, "warmup": stage.warmup}
    return out | {key: value for key, value in more.items() if value}


def too_many_errors(failed: int, requests: int) -> bool:
    """At least 10 % errors, and by the exact binomial surely more than 5 % (one-sided at 2.5 %; method section 2.7)."""
    if requests == 0 or failed < 0.10 * requests:
        return False
    log_n = math.lgamma(requests + 1)

    def mass(k: int) -> float:
        ways = log_n - math.lgamma(k + 1) - math.lgamma(requests - k + 1)
        return math.exp(ways + k * math.log(0.05) + (requests - k) * math.log(0.95))

    return sum(mass(k) for k in range(failed, requests + 1)) <= 0.025
