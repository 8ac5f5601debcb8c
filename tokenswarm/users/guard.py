"""Guard models: is this prompt or answer safe? Four styles of endpoint, one verdict."""

from __future__ import annotations

import re
from typing import Any

from tokenswarm import prompts
from tokenswarm.users.base import EndpointUser, Request
from tokenswarm.users.reading import ChatReader, ItemsReader

SAFETY = re.compile(r"\bSafety:\s*(Safe|Unsafe|Controversial)\b", re.IGNORECASE)
CATEGORIES = re.compile(r"\bCategor(?:y|ies):\s*(.+)", re.IGNORECASE)
ONE_WORD = re.compile(r"\s*(safe|unsafe|controversial)\b[\s,]*(.*)", re.IGNORECASE | re.DOTALL)
SAFE = frozenset(["safe", "benign", "neutral", "normal", "harmless", "label 0"])
UNSAFE = frozenset(
    ["unsafe", "toxic", "harmful", "harm", "hate", "jailbreak", "injection", "prompt injection", "label 1"]
)
SCORE_UNSAFE = 0.5


def judge(text: str) -> tuple[str, list[str]]:
    """(safe, controversial, unsafe or unparsed; categories) from Qwen3Guard's lines or Llama Guard's one word."""
    if found := SAFETY.search(text):
        line = CATEGORIES.search(text)
        names = re.split(r"\s*,\s*", line[1].strip()) if line else []
        return found[1].lower(), [name for name in names if name and name.lower() != "none"]
    if found := ONE_WORD.match(text):
        return found[1].lower(), re.findall(r"\bS\d+\b", found[2])
    return "unparsed", []


def of_label(label: str) -> str:
    """The verdict that a class label names, `not safe` and `non-toxic` turned round; any other label is unparsed."""
    words = re.sub(r"[-_\s]+", " ", label.strip().lower())
    bare = re.sub(r"^(not|non|no) ", "", words)
    if bare == "controversial":
        return bare
    if bare not in SAFE | UNSAFE:
        return "unparsed"
    return "safe" if (bare in SAFE) == (bare == words) else "unsafe"


class ChatGuardReader(ChatReader):
    """A verdict written as text."""

    def __init__(self) -> None:
        super().__init__()
        self.keep_text = True

    def outcome(self) -> str:
        return judge("".join(self.text))[0] if self.answered else ""

    def labels(self) -> str:
        return "|".join(judge("".join(self.text))[1])


class ItemGuardReader(ItemsReader):
    """A verdict as a moderation flag, a class label, or a score."""

    def outcome(self) -> str:
        if not self.items:
            return ""
        item = self.items[0]
        if item.flagged is not None:
            return "unsafe" if item.flagged else "safe"
        if item.label is not None:
            return of_label(item.label)
        if item.score is not None:
            return "unsafe" if item.score >= SCORE_UNSAFE else "safe"
        return "unparsed"

    def labels(self) -> str:
        item = self.items[0] if self.items else None
        if item and isinstance(item.categories, dict):
            return "|".join(name for name, hit in item.categories.items() if hit is True)
        return (item.label or "") if item else ""


class GuardUser(EndpointUser):
    """Has prompts and answers judged. A one-token verdict has a TTFT and no TPOT."""

    kind = "guard"
    profile = "guard"
    apis = {
        "chat": "/v1/chat/completions",
        "moderations": "/v1/moderations",
        "classify": "/classify",
        "score": "/score",
    }

    def prepare(self, draw: prompts.Draw) -> Request:
        if self.api == "chat":
            return super().prepare(draw)
        text = "\n\n".join(str(message["content"]) for message in draw.body["messages"])
        fields: dict[str, Any] = {"text_1": text, "text_2": "unsafe"} if self.api == "score" else {"input": text}
        return self.request(draw, {"model": self.target.model, **fields}, items=1)

    def reader(self, request: Request) -> Any:
        return ChatGuardReader() if self.api == "chat" else ItemGuardReader(1)
