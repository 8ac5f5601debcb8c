"""Runs without a plan: a person sets users and rate in Locust's web UI. The records are kept all the same."""

from __future__ import annotations

from typing import Any

from locust import events

from tokenswarm import targets
from tokenswarm.collector import FLUSH_TIMEOUT, profile_facts, say
from tokenswarm.users.base import load_prompts


@events.init.add_listener
def _one_kind(environment: Any, **_: Any) -> None:
    """Load the kind that --endpoint names; the others in the locustfile have no users."""
    if not hasattr(environment, "collector"):  # a worker loads what the master says
        return
    kind = environment.parsed_options.endpoint
    environment.user_classes = [user for user in environment.user_classes if user.kind == kind]


@events.test_start.add_listener
def _begin(environment: Any, **_: Any) -> None:
    if not hasattr(environment, "collector"):  # a worker
        return
    options, user = environment.parsed_options, environment.user_classes[0]
    target = targets.target(options, user.kind)
    facts = {user.kind: {"url": target.url, "model": target.model}}
    environment.collector.begin("live", {"stages": []}, user.kind, facts, profile_facts(load_prompts(options, user)))
    environment.collector.open_stage("live", users=0, requests=0, spread_s=0.0)


@events.test_stop.add_listener
def _finish(environment: Any, **_: Any) -> None:
    if not hasattr(environment, "collector"):
        return
    collector = environment.collector
    if collector.info.get("state") != "running":  # wind_down was here first
        return
    if not collector.wait_flushed(FLUSH_TIMEOUT):
        collector.doubt("not every worker handed in its last rows")
    collector.close_stage("done")
    collector.finish("complete")
    say(f"this run's records are in {collector.path}; `make report` sums them up")
