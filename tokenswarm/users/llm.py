"""Chat and completion endpoints of a language model."""

from __future__ import annotations

from typing import Any

from tokenswarm import prompts
from tokenswarm.users.base import EndpointUser


class LLMUser(EndpointUser):
    """Asks a language model; TTFT, TPOT and tokens."""

    kind = "llm"
    profile = "chat"
    apis = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

    def chat_body(self, draw: prompts.Draw) -> dict[str, Any]:
        body = super().chat_body(draw)
        if self.api == "completions":
            body["prompt"] = "\n\n".join(str(message["content"]) for message in body.pop("messages"))
        return body
