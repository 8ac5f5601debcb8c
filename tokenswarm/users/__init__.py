"""The kinds of endpoint, one file each. A new kind is one more file, and a name in the plan that loads it."""

from tokenswarm import ui  # noqa: F401  (tabs and live page of every plan)
from tokenswarm.monitors import beside  # noqa: F401  (the watcher runs beside every plan)
from tokenswarm.users.embedding import EmbeddingUser
from tokenswarm.users.guard import GuardUser
from tokenswarm.users.llm import LLMUser
from tokenswarm.users.rerank import RerankUser
from tokenswarm.users.vlm import VLMUser

__all__ = ["EmbeddingUser", "GuardUser", "LLMUser", "RerankUser", "VLMUser"]
