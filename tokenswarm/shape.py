"""Stages, and the shape that walks through them: every stage drained before the next begins, nothing cut."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from locust import LoadTestShape

from tokenswarm import targets
from tokenswarm.collector import FLUSH_TIMEOUT, Collector, profile_facts, say
from tokenswarm.progress import Progress
from tokenswarm.users.base import load_prompts

logger = logging.getLogger(__name__)
ALL_AT_ONCE = 10_000
Tick = tuple[int, float, list[Any]] | None


@dataclass(frozen=True)
class Stage:
    """So many users at once, sending so many requests in all."""

    name: str
    users: int
    requests: int


class StageShape(LoadTestShape):
    """Walks through `plan(options)`. Users start spread over one service time, send the stage's requests, leave;
    then the cool-down, then the next stage. Locust's facts behind each step: locust.md sections 4.1 to 4.4."""

    abstract = True
    runner: Any
    phase: ClassVar[str] = ""
    cooldown: ClassVar[float] = 5.0
    users: ClassVar[tuple[Any, ...]] = ()  # the user classes a plan may load

    def plan(self, options: Any) -> list[Stage]:
        """The stages, in order."""
        raise NotImplementedError

    def tick(self) -> Tick:
        """Called about once a second. An exception here would leave users running unattended, so none leaves."""
        try:
            if self.runner.shape_last_tick is None:  # a new run; reset_time() is called twice and cannot tell
                self._begin()
            return self._state()
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
        options = self.runner.environment.parsed_options
        self.kind = next(user for user in self.users if user.kind == options.endpoint)
        self.stages, self.index, self.spread = self.plan(options), -1, 1.0
        self.rest = self.option("cooldown")
        profile, target = load_prompts(options, self.kind), targets.target(options, options.endpoint)
        self.collector.begin(
            self.phase,
            {
                "stages": [{"stage": s.name, "users": s.users, "requests": s.requests} for s in self.stages],
                "cooldown_s": self.rest,
            },
            options.endpoint,
            {options.endpoint: {"url": target.url, "model": target.model}},
            profile_facts(profile),
        )
        self.progress = Progress(self.collector, self.stages, self.rest)
        self._state: Callable[[], Tick] = self._next

    def option(self, name: str) -> Any:
        """An option, or the plan's own class attribute where the option was not given."""
        given = getattr(self.runner.environment.parsed_options, name)
        return getattr(self, name) if given is None else given

    def _hold(self, users: int) -> Tick:
        # All at once, down as well: a slow ramp-down would start users anew to meet its intermediate counts.
        return users, users or ALL_AT_ONCE, [self.kind]

    def _next(self) -> Tick:
        self.index += 1
        stage = self.stages[self.index]
        self.collector.open_stage(stage.name, stage.users, stage.requests, self.spread)
        self.progress.open(self.index)
        self.moved, self.last_done = time.monotonic(), 0
        self._state = self._run
        return self._hold(stage.users)

    def _run(self) -> Tick:
        stage, total = self.stages[self.index], self.collector.total()
        self.collector.note_lost_workers()
        self.progress.update(total)
        if total.done > self.last_done:
            self.moved, self.last_done = time.monotonic(), total.done
        if self.collector.stopping:
            return self._close("interrupted") if total.live == 0 or self._stuck(10) else self._hold(stage.users)
        if total.started >= stage.users and total.live <= 0:
            return self._close("errors" if too_many_errors(total.server_failed, total.done) else "done")
        if self._stuck(self.runner.environment.parsed_options.timeout + 30):
            self.collector.doubt(f"stage {stage.name}: no request ended for {time.monotonic() - self.moved:.0f} s")
            return self._close("timeout")
        return self._hold(stage.users)

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
        if reason != "done" or self.index + 1 == len(self.stages):
            self.collector.flush()
            self.rest_until = time.monotonic() + FLUSH_TIMEOUT
            self._state = self._end
        return self._hold(0)

    def _rest(self) -> Tick:
        if self.collector.stopping:
            self.collector.flush()
            self._state = self._end
        elif time.monotonic() >= self.rest_until and self.runner.user_count == 0:
            return self._next()
        return self._hold(0)

    def _end(self) -> Tick:
        if not self.collector.flushed():
            if time.monotonic() < self.rest_until:
                return self._hold(0)
            self.collector.doubt("not every worker handed in its last rows")
        reason = self.collector.info["stages"][-1]["end_reason"]
        state = {"timeout": "incomplete"}.get(reason, "complete")
        self.collector.finish(self.collector.stopping or state)
        self.progress.end()
        return None


class StepRamp(StageShape):
    """The step ramp: `steps` user counts, `requests_per_user` each, at least `min_requests` a stage; it stops after a
    stage with 10 % errors or more (method section 2.7)."""

    abstract = True
    phase = "ramp"
    steps: ClassVar[tuple[int, ...]] = ()
    requests_per_user: ClassVar[int] = 20
    min_requests: ClassVar[int] = 100

    def plan(self, options: Any) -> list[Stage]:
        each, least = self.option("requests_per_user"), self.option("min_requests")
        return [Stage(f"u{users:03d}", users, max(users * each, least)) for users in self.option("steps")]


def too_many_errors(failed: int, requests: int) -> bool:
    """At least 10 % errors, and by the exact binomial surely more than 5 % (one-sided at 2.5 %; method section 2.7)."""
    if requests == 0 or failed < 0.10 * requests:
        return False
    log_n = math.lgamma(requests + 1)

    def mass(k: int) -> float:
        ways = log_n - math.lgamma(k + 1) - math.lgamma(requests - k + 1)
        return math.exp(ways + k * math.log(0.05) + (requests - k) * math.log(0.95))

    return sum(mass(k) for k in range(failed, requests + 1)) <= 0.025
