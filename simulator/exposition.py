"""/metrics: vLLM's present names, labels and types, a series per served model."""

import asyncio
import functools
import itertools
import time
from collections.abc import Iterator, Mapping

from simulator.box import Box, Model
from simulator.cards import Card
from simulator.kvcache import BLOCK_SIZE
from simulator.metrics import Histogram

Labels = tuple[tuple[str, str], ...]
Samples = list[tuple[Labels, float]]


def by(label: str, values: Mapping[str, float]) -> Samples:
    """One sample per value of a label."""
    return [(((label, name),), value) for name, value in values.items()]


def gauges(model: Model) -> Iterator[tuple[str, str, Samples]]:
    """(name, help, samples) of what holds now."""
    pace = model.pace
    yield "num_requests_running", "Requests in the batch.", [((), pace.running)]
    yield "num_requests_waiting", "Requests in the queue.", [((), pace.waiting)]
    yield (
        "num_requests_waiting_by_reason",
        "Requests in the queue, by what they wait for.",
        by("reason", {"capacity": pace.waiting, "deferred": 0}),
    )
    yield (
        "engine_sleep_state",
        "1 for the state the engine is in.",
        by("sleep_state", {"awake": 1, "weights_offloaded": 0, "discard_all": 0}),
    )
    yield "kv_cache_usage_perc", "Share of KV-cache blocks in use, 0 to 1.", [((), pace.kv_usage)]


def counters(model: Model) -> Iterator[tuple[str, str, Samples]]:
    stats, pace = model.stats, model.pace
    computed = stats.prompt_tokens - stats.cached_tokens
    yield "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", [((), pace.prefix_queries)]
    yield "prefix_cache_hits", "Prompt tokens found in the prefix cache.", [((), pace.prefix_hits)]
    yield "mm_cache_queries", "Images looked up in the multi-modal cache.", [((), stats.mm_queries)]
    yield "mm_cache_hits", "Images found in the multi-modal cache.", [((), stats.mm_hits)]
    yield "num_preemptions", "Times a running request lost its KV cache.", [((), pace.preemptions)]
    yield "prompt_tokens", "Prompt tokens of requests whose prefill is done.", [((), stats.prompt_tokens)]
    yield (
        "prompt_tokens_by_source",
        "Prompt tokens by where their KV came from.",
        by("source", {"local_compute": computed, "local_cache_hit": stats.cached_tokens, "external_kv_transfer": 0}),
    )
    yield "prompt_tokens_cached", "Prompt tokens that were not computed.", [((), stats.cached_tokens)]
    yield "generation_tokens", "Output tokens.", [((), stats.generation_tokens)]
    yield "request_success", "Finished requests by reason.", by("finished_reason", stats.finished)


def histograms(model: Model) -> Iterator[tuple[str, str, Histogram]]:
    stats = model.stats
    yield "request_prompt_tokens", "Prompt tokens of a request.", stats.prompt_size
    yield "request_generation_tokens", "Output tokens of a request.", stats.output_size
    yield "iteration_tokens_total", "Tokens computed in a step.", stats.iteration
    yield "request_max_num_generation_tokens", "Output tokens a request was allowed.", stats.max_output
    yield "request_params_max_tokens", "max_tokens of a request that gave one.", stats.max_tokens
    yield "time_to_first_token_seconds", "Arrival to first token.", stats.ttft
    yield "inter_token_latency_seconds", "Gap between two tokens.", stats.itl
    yield "request_time_per_output_token_seconds", "Mean gap between the tokens of a request.", stats.tpot
    yield "e2e_request_latency_seconds", "Arrival to last token.", stats.e2e
    yield "request_queue_time_seconds", "Arrival to first scheduling.", stats.queue
    yield "request_inference_time_seconds", "First scheduling to last token.", stats.inference
    yield "request_prefill_time_seconds", "First scheduling to first token.", stats.prefill
    yield "request_decode_time_seconds", "First token to last token.", stats.decode
    yield "request_num_preemptions", "Preemptions of a request.", stats.preemptions
    yield "request_prefill_kv_computed_tokens", "Prompt tokens of a request that were computed.", stats.kv_computed


def cache_config(model: Model) -> Labels:
    blocks = model.pace.kv_blocks
    concurrency = round(blocks * BLOCK_SIZE / model.max_model_len, 2)
    return (
        ("block_size", str(BLOCK_SIZE)),
        ("cache_dtype", "auto"),
        ("enable_prefix_caching", "True"),
        ("gpu_memory_utilization", "0.92"),
        ("kv_cache_size_tokens", str(blocks * BLOCK_SIZE)),
        ("kv_cache_max_concurrency", str(concurrency)),
        ("num_gpu_blocks", str(blocks)),
        ("num_cpu_blocks", "None"),
        ("num_gpu_blocks_override", "None"),
    )


@functools.cache
def heads(names: tuple[str, ...], labels: tuple[Labels, ...]) -> list[str]:
    """What stands before the values of some series; made once, since a page that takes long delays tokens."""
    inner = [",".join(f'{key}="{value}"' for key, value in sorted(pairs)) for pairs in labels]
    return [f"{name}{{{text}}} " for name, text in zip(names, inner, strict=True)]


class Page:
    """Collects families in order; a family's series of all models stand together."""

    def __init__(self) -> None:
        self.families: dict[str, list[str]] = {}

    def add(
        self, name: str, kind: str, help: str, base: Labels, samples: Samples, suffixes: tuple[str, ...] = ()
    ) -> None:
        lines = self.families.setdefault(name, [f"# HELP {name} {help}", f"# TYPE {name} {kind}"])
        names = tuple(name + suffix for suffix in suffixes) or (name,) * len(samples)
        starts = heads(names, tuple(base + extra for extra, _ in samples))
        lines += [f"{start}{float(value)}" for start, (_, value) in zip(starts, samples, strict=True)]

    def text(self) -> str:
        return "\n".join(line for lines in self.families.values() for line in lines) + "\n"


def add_counter(page: Page, name: str, help: str, base: Labels, samples: Samples, created: float) -> None:
    page.add(f"vllm:{name}_total", "counter", help, base, samples)
    page.add(f"vllm:{name}_created", "gauge", help, base, [(extra, created) for extra, _ in samples])


def add_histogram(page: Page, name: str, help: str, base: Labels, histogram: Histogram, created: float) -> None:
    running = list(itertools.accumulate(histogram.counts))
    samples: Samples = [((("le", str(bound)),), total) for bound, total in zip(histogram.bounds, running)]
    samples += [((("le", "+Inf"),), running[-1]), ((), running[-1]), ((), histogram.sum)]
    page.add(name, "histogram", help, base, samples, ("_bucket",) * len(running) + ("_count", "_sum"))
    page.add(name + "_created", "gauge", help, base, [((), created)])


def add_model(page: Page, model: Model) -> None:
    base: Labels = (("engine", "0"), ("model_name", model.name))
    stats, created = model.stats, model.stats.created
    for name, help, samples in gauges(model):
        page.add("vllm:" + name, "gauge", help, base, samples)
    for name, help, samples in counters(model):
        add_counter(page, name, help, base, samples, created)
    rejected = by("reason", {"max_num_queued_reqs": stats.rejections, "max_num_queued_tokens": 0})
    add_counter(page, "admission_rejections", "Requests refused by the queue limit.", base[1:], rejected, created)
    for name, help, histogram in histograms(model):
        add_histogram(page, "vllm:" + name, help, base, histogram, created)
    if model.kind == "llm":  # has no model_name, so a page can hold only one
        page.add("vllm:cache_config_info", "gauge", "Settings of the KV cache.", base[:1], [(cache_config(model), 1)])
    # How well this simulator keeps its model's time: the one thing here that vLLM hasn't got.
    add_histogram(
        page,
        "simulator:token_lateness_seconds",
        "From a token's time in the model until it was written.",
        base[1:],
        stats.lateness,
        created,
    )
    page.add("simulator:token_lateness_max_seconds", "gauge", "Longest so far.", base[1:], [((), stats.lateness_max)])


def add_card(page: Page, card: Card) -> None:
    """GPU gauges in dcgm-exporter's names; the labels say that nothing of it is real."""
    labels: Labels = (
        ("gpu", str(card.index)),
        ("UUID", f"GPU-simulated-{card.index}"),
        ("device", f"sim{card.index}"),
        ("modelName", "Simulated RTX 4090 D"),
        ("Hostname", "simulator"),
    )
    for name, value in card.gauges(asyncio.get_running_loop().time()).items():
        page.add(name, "gauge", "Of a simulated card.", labels, [((), value)])


async def render(box: Box) -> bytes:
    """The whole page; tokens that fall due meanwhile go out between two models."""
    page = Page()
    for card in box.cards:
        add_card(page, card)
    for model in box.models:
        add_model(page, model)
        await asyncio.sleep(0)
    page.families["process_cpu_seconds_total"] = [
        "# HELP process_cpu_seconds_total CPU time of this process.",
        "# TYPE process_cpu_seconds_total counter",
        f"process_cpu_seconds_total {time.process_time()}",
    ]
    return page.text().encode()
