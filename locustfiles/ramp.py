"""Step ramp: how many users until the server saturates, and what it costs them.

    make ramp LLM_URL=http://gpu:16000
    locust -f locustfiles/ramp.py --headless --llm-url http://gpu:16000 --llm-model qwen3.5

Each stage holds its users at once, each asking again as soon as it was answered (closed loop, no think time), until
every one has sent its 20 requests; then all leave, 5 s of rest, the next stage. It ends early after a stage with 10 %
errors or more. Change the plan here, or per run with STEPS=, REQUESTS_PER_USER=, MIN_REQUESTS=, COOLDOWN=.
"""

from tokenswarm.plans import StepRamp
from tokenswarm.users import EmbeddingUser, GuardUser, LLMUser, RerankUser, VLMUser


class Ramp(StepRamp):
    steps = (1, 5, 10, 20, 40, 64, 80, 100)
    requests_per_user = 20
    min_requests = 100
    cooldown = 5.0
    users = (LLMUser, GuardUser, VLMUser, EmbeddingUser, RerankUser)  # ENDPOINT= says which
