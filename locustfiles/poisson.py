"""Poisson: requests come when they come, as from the public. How long do they wait at 50, 80, 90 % of the best rate?

    make poisson LLM_URL=http://gpu:16000
    locust -f locustfiles/poisson.py --headless --rates 5,8,9 --llm-url http://gpu:16000 --llm-model qwen3.5

`rate` is a share of the best rate of the newest complete ramp of the same server and model. Nobody waits for an answer
before the next request goes out, and latency counts from the time a request was due. A stage in which the server falls
behind for sure ends early, and the run with it. Change the plan here, or per run with RATES= (requests/s),
HOLD=, SEED=.
"""

from tokenswarm.arriving import EmbeddingArrivals, GuardArrivals, LLMArrivals, RerankArrivals, VLMArrivals
from tokenswarm.plans import OpenLoop
from tokenswarm.shape import Stage


class Poisson(OpenLoop):
    stages = (
        Stage("half", rate=0.5, hold=180),
        Stage("most", rate=0.8, hold=180),
        Stage("nearly-all", rate=0.9, hold=180),
    )
    users = (LLMArrivals, GuardArrivals, VLMArrivals, EmbeddingArrivals, RerankArrivals)  # ENDPOINT= says which kind
