"""Vision language models: chat with images."""

from __future__ import annotations

from pathlib import Path

from tokenswarm import prompts
from tokenswarm.users.base import EndpointUser, Request


class VLMUser(EndpointUser):
    """Shows images to a model. They are encoded before the clock starts, each a fresh variant, so that neither the
    client's encoding nor the server's image cache is in the numbers; image tokens are in the server's usage."""

    kind = "vlm"
    profile = "vlm"
    apis = {"chat": "/v1/chat/completions"}

    def prepare(self, draw: prompts.Draw) -> Request:
        images = prompts.inline_images(draw, self.loaded.path.parent if self.loaded.path else Path())
        return self.request(draw, self.chat_body(draw), items=images)
