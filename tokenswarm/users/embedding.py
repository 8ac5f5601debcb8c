"""Embedding endpoints: items/s and tokens/s; there is no first token."""

from __future__ import annotations

from typing import Any

from tokenswarm import prompts
from tokenswarm.users.base import EndpointUser, Request
from tokenswarm.users.reading import ItemsReader


class EmbeddingUser(EndpointUser):
    """Has texts embedded, one or a batch a request; --api base64 asks for packed vectors."""

    kind = "embedding"
    profile = "embedding"
    apis = {"float": "/v1/embeddings", "base64": "/v1/embeddings"}

    def prepare(self, draw: prompts.Draw) -> Request:
        body = {"model": self.target.model, "encoding_format": self.api, **draw.body}
        return self.request(draw, body, items=1 if isinstance(body["input"], str) else len(body["input"]))

    def reader(self, request: Request) -> Any:
        return ItemsReader(request.items)
