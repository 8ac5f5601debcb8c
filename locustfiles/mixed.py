"""Mixed: all services at once, as in production. Does the load on one slow down another?

    make mixed LLM_URL=http://gpu:16000 GUARD_URL=http://gpu:16001 VLM_URL=http://gpu:45334
    locust -f locustfiles/mixed.py --headless --llm-url ... --guard-url ... --vlm-url ...

Each kind alone, all together, each alone again (so that drift is not taken for interference), drained to zero in
between. On every service with a URL a canary sends one small request every 2 s through all of it. Kinds without a URL
or with 0 users are left out. Change the plan here, or per run with LLM_USERS=, GUARD_USERS=, VLM_USERS=,
EMBEDDING_USERS=, RERANK_USERS=, HOLD= (seconds of every stage), CANARY_EVERY=.
"""

from tokenswarm.canary import EmbeddingCanary, GuardCanary, LLMCanary, RerankCanary, VLMCanary
from tokenswarm.plans import Together
from tokenswarm.shape import Stage
from tokenswarm.users import EmbeddingUser, GuardUser, LLMUser, RerankUser, VLMUser

LLM, GUARD, VLM, EMBEDDING, RERANK = {"llm": 20}, {"guard": 30}, {"vlm": 5}, {"embedding": 0}, {"rerank": 0}


class Mixed(Together):
    stages = (
        Stage("idle", {}, hold=120),  # canaries only
        Stage("llm", LLM, hold=240),
        Stage("guard", GUARD, hold=240),
        Stage("vlm", VLM, hold=240),
        Stage("embedding", EMBEDDING, hold=240),
        Stage("rerank", RERANK, hold=240),
        Stage("together", {**LLM, **GUARD, **VLM, **EMBEDDING, **RERANK}, hold=240),
        Stage("llm-after", LLM, hold=240),
        Stage("guard-after", GUARD, hold=240),
        Stage("vlm-after", VLM, hold=240),
        Stage("embedding-after", EMBEDDING, hold=240),
        Stage("rerank-after", RERANK, hold=240),
        Stage("idle-after", {}, hold=120),
    )
    users = (LLMUser, GuardUser, VLMUser, EmbeddingUser, RerankUser)
    canaries = (LLMCanary, GuardCanary, VLMCanary, EmbeddingCanary, RerankCanary)
