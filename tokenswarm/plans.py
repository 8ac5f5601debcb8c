"""The phases: baseline, step ramp, soak, mixed, poisson. Their stages are class attributes of the locustfiles."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import gevent

from tokenswarm import arrivals, earlier, targets
from tokenswarm.collector import say
from tokenswarm.earlier import PlanError
from tokenswarm.histogram import quantile
from tokenswarm.options import KINDS
from tokenswarm.preflight import facts, reach
from tokenswarm.shape import Stage, StageShape, Tick


def served(options: Any) -> list[str]:
    """Kinds of a phase of several kinds: those that KINDS names, or all that have a URL."""
    return [k for k in KINDS if getattr(options, f"{k}_url") and (not options.kinds or k in options.kinds)]


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


class Sequential(StageShape):
    """The baseline: one request at a time, `warmups` before each stage that are in no statistic."""

    abstract = True
    phase = "baseline"
    stages: ClassVar[Any] = ()
    warmups: ClassVar[int] = 2

    def plan(self, options: Any) -> list[Stage]:
        return [stage for chosen in self._chosen(options) for stage in self._with_warmup(chosen)]

    def _chosen(self, options: Any) -> Iterator[Stage]:
        """Stages of the kinds served; PROMPTS takes the place of the profiles of its kind."""
        kinds, replaced = served(options), False
        for stage in type(self).stages:
            kind = next(iter(stage.users))
            if kind not in kinds or (replaced and kind == options.endpoint):
                continue
            stage = replace(stage, requests=options.requests_per_user or stage.requests)
            if options.prompts and kind == options.endpoint:
                stage, replaced = replace(stage, name=kind, prompts=options.prompts), True
            yield stage

    def _with_warmup(self, stage: Stage) -> list[Stage]:
        return [replace(stage, name=f"{stage.name}-warmup", requests=self.warmups, warmup=True), stage]


class Hold(StageShape):
    """The soak: a constant number of users for a long time; 0 users in the plan = what the newest ramp allows."""

    abstract = True
    phase = "soak"
    stages: ClassVar[Any] = ()

    def plan(self, options: Any) -> list[Stage]:
        return [
            replace(
                stage,
                users=options.soak_users or stage.users or self._allowed(options),
                hold=options.hold or stage.hold,
            )
            for stage in type(self).stages
        ]

    def _allowed(self, options: Any) -> int:
        users, why = earlier.soak_users(*target_words(options))
        say(f"soak with {users} users: {why}")
        return users


class Together(StageShape):
    """Several kinds, each alone, all at once, each alone again, and a canary on every service throughout."""

    abstract = True
    phase = "mixed"
    stages: ClassVar[Any] = ()
    canaries: ClassVar[tuple[Any, ...]] = ()

    def plan(self, options: Any) -> list[Stage]:
        self.kinds = served(options)
        planned = [stage for stage in map(self._with_options, type(self).stages) if stage]
        most = max((len(stage.users) for stage in planned), default=0)  # type: ignore[arg-type]
        if most < 2:
            raise PlanError(
                f"mixed loads several kinds at once, but only {', '.join(self.kinds) or 'none'} can be loaded:"
                f" give two of {', '.join(f'{k.upper()}_URL' for k in KINDS)}, and counts such as GUARD_USERS=30"
            )
        return planned

    def _with_options(self, stage: Stage) -> Stage | None:
        assert not isinstance(stage.users, int)
        options = self.options
        asked = {kind: getattr(options, f"{kind}_users") for kind in stage.users}
        counts = {k: n if asked[k] is None else asked[k] for k, n in stage.users.items() if k in self.kinds}
        counts = {kind: count for kind, count in counts.items() if count}
        if stage.users and not counts:
            return None
        return replace(stage, users=counts, hold=options.hold or stage.hold)

    def watched(self) -> list[str]:
        return self.kinds

    def loads(self, stage: Stage) -> dict[Any, int]:
        return super().loads(stage) | {user: 1 for user in self.canaries if user.kind in self.kinds}

    def _next(self) -> Tick:
        tick = super()._next()
        gevent.spawn(self._note_kv, self.collector.info["stages"][-1])
        return tick

    def _note_kv(self, told: dict[str, Any]) -> None:
        """KV cache sizes now: a server restarted with another one is another server."""
        for kind in self.kinds:
            server = reach.server(self.options, kind)
            _, found = facts.engine_metrics(server, server.target.model)
            if "gpu_blocks" in found:
                told.setdefault("gpu_blocks", {})[kind] = found["gpu_blocks"]


class OpenLoop(StageShape):
    """Poisson arrivals: `rate` of a stage is a share of the newest ramp's best rate, or RATES gives requests/s."""

    abstract = True
    phase = "poisson"
    stages: ClassVar[Any] = ()

    def plan(self, options: Any) -> list[Stage]:
        hold = options.hold or max(stage.hold for stage in type(self).stages)
        if options.rates:
            return [Stage(f"{rate:g}rps", rate=rate, hold=hold) for rate in options.rates]
        best, why = earlier.best_rate(*target_words(options))
        say(f"open loop at shares of {best:.3g} requests/s: {why}")
        return [replace(stage, rate=stage.rate * best, hold=hold) for stage in type(self).stages]

    def loads(self, stage: Stage) -> dict[Any, int]:
        """One user a worker, which sends that worker's share of the schedule."""
        return {self.kind: max(1, len(self.collector.workers))}

    def _next(self) -> Tick:
        tick = super()._next()
        stage = self.todo[self.index]
        self.due = list(arrivals.schedule(stage.rate, stage.hold, self.options.seed))
        self.samples: list[tuple[float, float, float]] = []
        self.ttft_before = self.collector.ttft.copy()
        return tick

    def early_end(self, stage: Stage, total: Any) -> str:
        now = time.monotonic() - self.opened - arrivals.LEAD
        fresh = quantile(self.collector.ttft - self.ttft_before, 0.5)
        self.ttft_before = self.collector.ttft.copy()
        if fresh is not None and 0 < now < stage.hold:
            self.samples.append((now, sum(due <= now for due in self.due) - total.done, fresh))
        if arrivals.oversaturated(self.samples, min(arrivals.MIN_SECONDS, stage.hold / 3)):
            return "oversaturated"
        return super().early_end(stage, total)


def target_words(options: Any) -> tuple[str, str, str, str]:
    """(kind, url, model, simulator) of the phase's one kind: what an earlier run must share."""
    target = targets.target(options, options.endpoint)
    return options.endpoint, target.url, target.model, options.sim
