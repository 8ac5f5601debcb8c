"""Canaries: one fixed request every few seconds, to see what others' load does to a service."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from tokenswarm import prompts
from tokenswarm.options import KINDS
from tokenswarm.record import CANARY
from tokenswarm.users.base import EndpointUser
from tokenswarm.users.embedding import EmbeddingUser
from tokenswarm.users.guard import GuardUser
from tokenswarm.users.llm import LLMUser
from tokenswarm.users.rerank import RerankUser
from tokenswarm.users.vlm import VLMUser

MAX_TOKENS = 16  # small, so that it is hardly a load itself


class Canary(EndpointUser):
    """The profile's first prompt with a fresh nonce, at most 16 tokens and temperature 0, every CANARY_EVERY s."""

    abstract = True

    def on_start(self) -> None:
        super().on_start()
        self.loaded = replace(self.loaded, name=CANARY, prompts=self.loaded.prompts[:1])
        self.draws = prompts.Draws(
            self.loaded,
            self.options.seed,
            f"{self.kind} {self.recorder.name}",
            self.recorder.users,
            run=self.recorder.stage.run,
        )

    def wait_time(self) -> float:
        """Up to its place in the next interval, whatever the last answer took; each kind has a place of its own."""
        every = self.options.canary_every
        return every - (time.monotonic() + KINDS.index(self.kind) * every / len(KINDS)) % every

    def chat_body(self, draw: prompts.Draw) -> dict[str, Any]:
        return super().chat_body(draw) | {"max_tokens": MAX_TOKENS, "temperature": 0}


class LLMCanary(Canary, LLMUser):
    """Watches the llm."""


class GuardCanary(Canary, GuardUser):
    """Watches the guard."""


class VLMCanary(Canary, VLMUser):
    """Watches the vlm."""


class EmbeddingCanary(Canary, EmbeddingUser):
    """Watches the embedding."""


class RerankCanary(Canary, RerankUser):
    """Watches the rerank."""
