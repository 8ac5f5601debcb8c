"""Soak: a constant load for half an hour. Does anything drift, leak, shift or fail?

    make soak LLM_URL=http://gpu:16000
    locust -f locustfiles/soak.py --headless --soak-users 20 --llm-url http://gpu:16000 --llm-model qwen3.5

0 users = what the newest complete ramp of the same server and model allows: the lower of its SLO capacity and its
soft limit. Change the plan here, or per run with USERS=, HOLD= (seconds).
"""

from tokenswarm.plans import Hold
from tokenswarm.shape import Stage
from tokenswarm.users import EmbeddingUser, GuardUser, LLMUser, RerankUser, VLMUser


class Soak(Hold):
    stages = (Stage("soak", users=0, hold=1800),)
    users = (LLMUser, GuardUser, VLMUser, EmbeddingUser, RerankUser)  # ENDPOINT= says which
