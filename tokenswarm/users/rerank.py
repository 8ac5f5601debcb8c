"""Rerank and score endpoints: documents/s; there is no first token."""

from __future__ import annotations

from typing import Any

from tokenswarm import prompts
from tokenswarm.users.base import EndpointUser, Request
from tokenswarm.users.reading import ItemsReader


class RerankUser(EndpointUser):
    """Has documents ranked for a query."""

    kind = "rerank"
    profile = "rerank"
    apis = {"rerank": "/v1/rerank", "plain": "/rerank", "score": "/score"}

    def prepare(self, draw: prompts.Draw) -> Request:
        query, documents = draw.body["query"], draw.body["documents"]
        pair = {"text_1": query, "text_2": documents} if self.api == "score" else draw.body
        ranked = min(len(documents), draw.body.get("top_n") or len(documents))
        return self.request(draw, {"model": self.target.model, **pair}, items=ranked)

    def reader(self, request: Request) -> Any:
        return ItemsReader(request.items)
