"""Open loop: requests go out when they are due, whoever else still waits for an answer (method section 4)."""

from __future__ import annotations

import itertools
import time
from typing import Any

import gevent
from gevent.pool import Group
from locust.exception import StopUser

from tokenswarm.arrivals import schedule
from tokenswarm.sockets import StampedClients
from tokenswarm.users.base import EndpointUser, Request
from tokenswarm.users.embedding import EmbeddingUser
from tokenswarm.users.guard import GuardUser
from tokenswarm.users.llm import LLMUser
from tokenswarm.users.rerank import RerankUser
from tokenswarm.users.vlm import VLMUser

READY = 8  # connections opened before the first request is due; more are opened when more requests are in flight


def open_ahead(http: Any) -> None:
    """Open a client's connection now; if that fails, the request that needs it will say so in its record."""
    pool = http._connection_pool
    try:
        pool.return_socket(pool.get_socket())
    except OSError:
        pool.drop()


class Arriving(EndpointUser):
    """Sends this worker's share of the schedule: every W-th arrival, each in a greenlet with its own connection."""

    abstract = True

    def on_start(self) -> None:
        super().on_start()
        self.flying = Group()
        self.idle: list[Any] = [self.http, *(self._connect() for _ in range(READY))]
        for http in self.idle:
            open_ahead(http)

    def turn(self) -> None:
        """The whole stage: each request made ready before it is due, then wait for the answers."""
        order, runner = self.recorder.stage, self.environment.runner
        dues = schedule(order.rate, order.hold_s, order.seed)
        try:
            for due in itertools.islice(dues, max(0, runner.worker_index), None, order.workers):
                request, at = self.prepare(self.draws.next()), self.recorder.epoch + due
                gevent.sleep(max(0.0, at - time.perf_counter()))
                if not self.recorder.take():
                    break
                self.flying.start(gevent.Greenlet(self._fly, request, at))
            self.flying.join()
        finally:
            self.flying.kill()
        raise StopUser

    def _fly(self, request: Request, due: float) -> None:
        http = self.idle.pop() if self.idle else self._connect()
        try:
            self.send(request, http, due)
        finally:
            self.idle.append(http)

    def _connect(self) -> Any:
        """A client of its own: a connection carries one request at a time."""
        o = self.options
        return StampedClients(self.clients.context, o.connect_timeout, o.ttft_timeout, o.keepalive).get_client(
            self.host
        )

    def on_stop(self) -> None:
        for http in self.idle:
            http.close()
        super().on_stop()


class LLMArrivals(Arriving, LLMUser):
    """Asks a language model when it is time."""


class GuardArrivals(Arriving, GuardUser):
    """Has texts judged when it is time."""


class VLMArrivals(Arriving, VLMUser):
    """Shows images when it is time."""


class EmbeddingArrivals(Arriving, EmbeddingUser):
    """Has texts embedded when it is time."""


class RerankArrivals(Arriving, RerankUser):
    """Has documents ranked when it is time."""
