"""What engines call the same thing: their metrics' names, old and new. (data only)"""

from __future__ import annotations

# metric -> the names it has had, newest first. Renamed on the way: log of vLLM's deprecations, SGLang's metrics page.
NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "vLLM": {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "swapped": ("vllm:num_requests_swapped",),
        "kv_use": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
        "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "prefix_hit_rate": ("vllm:gpu_prefix_cache_hit_rate",),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "rejected": ("vllm:admission_rejections_total",),
    },
    "SGLang": {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "kv_use": ("sglang:token_usage",),
        "preemptions": ("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"),
        "prefix_hits": ("sglang:cached_tokens_total",),
        "prefix_queries": ("sglang:prompt_tokens_total",),
        "prefix_hit_rate": ("sglang:cache_hit_rate",),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
        "success": ("sglang:num_requests_total",),
        "aborted": ("sglang:num_aborted_requests_total",),
    },
    "llama.cpp": {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "kv_use": ("llamacpp:kv_cache_usage_ratio",),
        "prefix_hits": ("llamacpp:prompt_tokens_cached_total",),
        "prompt_tokens": ("llamacpp:prompt_tokens_total",),
        "generation_tokens": ("llamacpp:tokens_predicted_total",),
    },
    "TGI": {
        "running": ("tgi_batch_current_size",),
        "waiting": ("tgi_queue_size",),
        "prompt_tokens": ("tgi_request_input_length_sum",),
        "generation_tokens": ("tgi_request_generated_tokens_sum",),
        "success": ("tgi_request_success",),
        "errors": ("tgi_request_failure",),
    },
    "TensorRT-LLM": {},
}
HISTOGRAMS: dict[str, dict[str, tuple[str, ...]]] = {
    "vLLM": {
        "queue_time": ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
        "ttft": ("vllm:time_to_first_token_seconds",),
        "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot": ("vllm:request_time_per_output_token_seconds",),
        "e2e": ("vllm:e2e_request_latency_seconds",),
    },
    "SGLang": {
        "queue_time": ("sglang:queue_time_seconds",),
        "ttft": ("sglang:time_to_first_token_seconds",),
        "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "e2e": ("sglang:e2e_request_latency_seconds",),
    },
    "llama.cpp": {},
    "TGI": {
        "queue_time": ("tgi_request_queue_duration",),
        "tpot": ("tgi_request_mean_time_per_token_duration",),
        "e2e": ("tgi_request_duration",),
    },
    "TensorRT-LLM": {
        "queue_time": ("trtllm_request_queue_time_seconds", "request_queue_time_seconds"),
        "ttft": ("trtllm_time_to_first_token_seconds", "time_to_first_token_seconds"),
        "tpot": ("trtllm_time_per_output_token_seconds", "time_per_output_token_seconds"),
        "e2e": ("trtllm_e2e_request_latency_seconds", "e2e_request_latency_seconds"),
    },
}
PREFIXES = {
    "vLLM": ("vllm:",),
    "SGLang": ("sglang:",),
    "llama.cpp": ("llamacpp:",),
    "TGI": ("tgi_",),
    "TensorRT-LLM": tuple(n for names in HISTOGRAMS["TensorRT-LLM"].values() for n in names),
}
MINE = tuple(prefix for prefixes in PREFIXES.values() for prefix in prefixes)
WANTED = (*MINE, "process_resident_memory_bytes")
EXACT = frozenset(
    {"process_resident_memory_bytes", "vllm:cache_config_info", "vllm:request_success_total",
     "sglang:max_total_num_tokens"}
    | {name for names in NAMES.values() for all_of in names.values() for name in all_of}
    | {f"{name}_{part}" for names in HISTOGRAMS.values() for all_of in names.values() for name in all_of
       for part in ("sum", "count", "bucket")}
)  # fmt: skip
RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
CONFIG = {  # label of vllm:cache_config_info -> fact
    "num_gpu_blocks": "gpu_blocks", "block_size": "block_size", "kv_cache_size_tokens": "kv_cache_size_tokens",
    "gpu_memory_utilization": "gpu_memory_utilization", "cache_dtype": "cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching", "kv_cache_memory_bytes": "kv_cache_memory_bytes",
}  # fmt: skip
