"""Live runs: no plan, you set users and rate in Locust's web UI while you watch.

make ui LLM_URL=http://gpu:16000
locust -f locustfiles/live.py --llm-url http://gpu:16000 --llm-model qwen3.5
"""

from tokenswarm import live  # noqa: F401  (keeps the records of runs that have no plan)
from tokenswarm.users import EmbeddingUser, GuardUser, LLMUser, RerankUser, VLMUser  # noqa: F401  (ENDPOINT= says which)
