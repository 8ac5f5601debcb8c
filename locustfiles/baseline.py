"""Baseline: one request at a time. If the server misses its goals alone, no number of users will help.

    make baseline LLM_URL=http://gpu:16000 GUARD_URL=http://gpu:16001
    locust -f locustfiles/baseline.py --headless --llm-url http://gpu:16000 --llm-model qwen3.5

Each stage: 2 warm-ups that count nowhere, then 20 requests one after the other. The gate (exit code 1): TTFT under
TTFT_SLO (500 ms) and TPOT under TPOT_SLO (50 ms), by the upper end of the median's 95 % interval. Kinds without a URL
are left out. Change the plan here, or per run with KINDS=, PROMPTS=, REQUESTS_PER_USER=.
"""

from tokenswarm.plans import Sequential
from tokenswarm.shape import Stage
from tokenswarm.users import EmbeddingUser, GuardUser, LLMUser, RerankUser, VLMUser


class Baseline(Sequential):
    stages = (
        Stage("llm-chat", {"llm": 1}, requests=20, prompts="chat"),
        Stage("llm-code", {"llm": 1}, requests=20, prompts="code"),
        Stage("llm-rag", {"llm": 1}, requests=20, prompts="rag"),
        Stage("guard", {"guard": 1}, requests=20),
        Stage("vlm", {"vlm": 1}, requests=20),
        Stage("embedding", {"embedding": 1}, requests=20),
        Stage("rerank", {"rerank": 1}, requests=20),
    )
    warmups = 2
    cooldown = 0.0
    users = (LLMUser, GuardUser, VLMUser, EmbeddingUser, RerankUser)
