"""The pretend machine: one engine per kind of model, and what every request needs from it."""

import asyncio
import random
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from simulator import errors
from simulator.cards import Card
from simulator.engine import Seq
from simulator.faults import Burst, Rates
from simulator.images import Image
from simulator.metrics import Stats
from simulator.pace import EnginePace, ExactPace

IMAGE_CACHE = 256  # images whose encoding is kept


@dataclass(slots=True)
class Model:
    """A served model: its name, kind (llm guard vlm embedding rerank), and the engine that times it."""

    name: str
    kind: str
    max_model_len: int
    pace: EnginePace | ExactPace
    stats: Stats
    rng: random.Random  # its own, so that one kind's traffic doesn't change another's answers
    seen: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def see(self, images: list[Image]) -> int:
        """Image tokens the vision encoder must compute: those of images it hasn't in its cache."""
        tokens = 0
        for image in images:
            self.stats.mm_queries += 1
            if image.key in self.seen:
                self.stats.mm_hits += 1
            else:
                tokens += image.tokens
            self.seen[image.key] = None
            self.seen.move_to_end(image.key)
            if len(self.seen) > IMAGE_CACHE:
                self.seen.popitem(last=False)
        return tokens


@dataclass(slots=True)
class Box:
    models: list[Model]
    rates: Rates
    output_tokens: float = 48.0
    queue_limit: int | None = None
    api_key: str | None = None
    created: int = 0
    cards: list[Card] = field(default_factory=list)
    burst: Burst = field(default_factory=Burst)

    def model(self, body: dict[str, Any], kinds: tuple[str, ...], api: str) -> Model:
        """The model a request names (the first fitting one if it names none)."""
        name = body.get("model")
        if name is None:
            return next(model for model in self.models if model.kind == kinds[0])
        for model in self.models:
            if model.name == name:
                if model.kind not in kinds:
                    raise errors.bad_request(f"The model does not support {api} API")
                return model
        raise errors.wrong_model(str(name), [model.name for model in self.models])

    def admit(self, model: Model) -> None:
        if self.burst.on(asyncio.get_running_loop().time()):
            raise errors.engine_failed()
        if self.queue_limit is not None and model.pace.queued >= self.queue_limit:
            model.stats.rejections += 1
            raise errors.busy()


class Call:
    """One HTTP request on its way through the server."""

    def __init__(self, box: Box, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.arrival = asyncio.get_running_loop().time()
        self.created = int(time.time())
        self.box = box
        self.scope = scope
        self.receive = receive
        self.send = send
        self.body: dict[str, Any] = {}
        self.request_id = self.header(b"x-request-id") or format(random.getrandbits(64), "016x")

    def header(self, name: bytes) -> str | None:
        for key, value in self.scope["headers"]:
            if key == name:
                return value.decode("latin-1")
        return None

    def id(self, prefix: str) -> str:
        """vLLM takes X-Request-Id into its own id."""
        return f"{prefix}-{self.request_id}"

    async def finished(self, model: Model, seqs: list[Seq], done: "asyncio.Future[str]") -> str:
        """Wait until the sequences are done or the client has gone; the engine then forgets what is left of them."""
        watch = asyncio.ensure_future(self.receive())
        await asyncio.wait((done, watch), return_when=asyncio.FIRST_COMPLETED)
        outcome = done.result() if done.done() else "gone"
        if not watch.done():
            watch.cancel()
        for seq in seqs if outcome != "end" else ():
            if model.pace.abort(seq):
                model.stats.broken_off(seq, "abort" if outcome == "gone" else "error")
        return outcome
