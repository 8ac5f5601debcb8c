"""Chat and completion endpoints of a language model."""

from __future__ import annotations

from typing import Any

from tokenswarm import prompts
from tokenswarm.users.base import EndpointUser


class LLMUser(EndpointUser):
    """Asks a language model; records TTFT, TPOT and tokens."""

    kind = "llm"
    profile = "chat"
    apis = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

    def common_body(self, draw: prompts.Draw) -> dict[str, Any]:
        body = super().common_body(draw)
        if self.options.api == "completions":
            messages = body.pop("messages")
            body["prompt"] = "\n\n".join(str(message["content"]) for message in messages)
        return body
