"""The kinds of endpoint, one file each. A new kind is one more file, and a name in the plan that loads it."""

from tokenswarm.users.embedding import EmbeddingUser
from tokenswarm.users.guard import GuardUser
from tokenswarm.users.llm import LLMUser
from tokenswarm.users.rerank import RerankUser
from tokenswarm.users.vlm import VLMUser

__all__ = ["EmbeddingUser", "GuardUser", "LLMUser", "RerankUser", "VLMUser"]
