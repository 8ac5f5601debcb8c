"""The command line, and the box it describes."""

import argparse
import random
import sys
import time
from asyncio import AbstractEventLoop
from dataclasses import replace
from typing import NoReturn

from simulator.box import Box, Model
from simulator.cards import LAYOUT, parse_layout, place, share_memory
from simulator.engine import Config, Engine
from simulator.faults import Burst, Rates
from simulator.kvcache import BLOCK_SIZE
from simulator.metrics import Stats
from simulator.pace import EnginePace, ExactPace

# What the other kinds cost; the flags are the llm's. Seconds per step, per prompt token, per sequence.
GUARD = Config(slots=64, step_s=0.006, prefill_token_s=20e-6, seq_s=20e-6)
VLM = Config(slots=16, step_s=0.012, prefill_token_s=40e-6, seq_s=80e-6, encoder_token_s=60e-6)
EMBEDDING = Config(slots=256, step_s=0.004, prefill_token_s=8e-6, seq_s=20e-6, prefix_caching=False)
RERANK = Config(slots=256, step_s=0.005, prefill_token_s=10e-6, seq_s=20e-6, prefix_caching=False)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"simulator: {message}; see python -m simulator --help", file=sys.stderr)
        raise SystemExit(2)


def number(low: float, high: float = float("inf"), whole: bool = False):  # type: ignore[no-untyped-def]
    """An argparse type that holds its bounds."""

    def parse(given: str) -> float:
        wanted = f"{'a whole number' if whole else 'a number'} from {low:g}" + (f" to {high:g}" if high < 1e9 else "")
        try:
            value = int(given) if whole else float(given)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{given!r} should be {wanted}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{given} should be {wanted}")
        return value

    return parse


def span(given: str) -> tuple[float, float]:
    """`AT:FOR` in seconds as (start, end)."""
    try:
        at, length = map(float, given.split(":"))
    except ValueError:
        at = length = -1.0
    if at < 0 or length < 0:
        raise argparse.ArgumentTypeError(f"{given!r} should be AT:FOR in seconds, such as 60:5")
    return at, at + length


def layout(given: str) -> list[list[str]]:
    """Kinds by card."""
    try:
        return parse_layout(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parser() -> Parser:
    whole, real, chance = number(0, 1e9, True), number(0), number(0, 1)
    p = Parser(
        prog="python -m simulator",
        description="A pretend vLLM with known limits.",
        allow_abbrev=False,
        epilog="--run CMD ... (last): serve while CMD runs, with SIM_URL set for it; exit as it exits.",
    )
    add = p.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=number(0, 65535, True), default=0, help="0 = any free port")
    add("--slots", type=whole, default=32, help="requests in the batch at a time; 0 = no limit")
    add("--output-tokens", type=number(1), default=48, help="mean length of an answer")
    add("--step-ms", type=real, default=8, help="fixed part of a step")
    add("--prefill-us-per-token", type=real, help="default 30; 1 without a slot limit")
    add("--seq-us", type=real, help="per sequence and step; default 50; 2 without a slot limit")
    add("--kv-blocks", type=number(1, 1e7, True), default=8192, help=f"KV cache in blocks of {BLOCK_SIZE} tokens")
    add("--max-num-batched-tokens", type=number(1, 1e7, True), default=2048, help="tokens a step may compute")
    add("--max-model-len", type=number(16, 1e7, True), help="context length; default 8192, or what the KV cache holds")
    add("--ttft-ms", type=real, help="with --tpot-ms: this exact first-token time, whatever the load")
    add("--tpot-ms", type=real, help="with --ttft-ms: this exact gap between tokens, whatever the load")
    add("--error-rate", type=chance, default=0, help="share of requests answered by HTTP 500")
    add("--cut-rate", type=chance, default=0, help="share of streams closed midway")
    add("--inband-error-rate", type=chance, default=0, help="share of streams that bring an error event")
    add("--stall-rate", type=chance, default=0, help="share of streams that pause once for --stall-ms")
    add("--stall-ms", type=real, default=1000)
    add(
        "--error-burst",
        type=span,
        default=(0.0, 0.0),
        metavar="AT:FOR",
        help="HTTP 500 to everything, from AT s after the start for FOR s",
    )
    add("--cards", type=layout, default=LAYOUT, help=f"which kinds share which card: {LAYOUT}")
    add("--leak-mib-per-min", type=real, default=0, help="memory of the llm's card grows by so much")
    add("--leak-ms-per-min", type=real, default=0, help="a step takes this much longer with every minute")
    add("--queue-limit", type=whole, help="HTTP 503 once this many requests wait for a slot")
    add("--api-key", help="ask for it under /v1")
    add("--seed", type=whole, default=0)
    for kind in ("llm", "guard", "vlm", "embedding", "rerank"):
        add("--model" if kind == "llm" else f"--{kind}-model", default=f"sim-{kind}", dest=f"{kind}_model")
    return p


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str] | None]:
    """Options, and the command after --run if there is one."""
    command = None
    if "--run" in argv:
        at = argv.index("--run")
        argv, command = argv[:at], argv[at + 1 :]
    p = parser()
    options = p.parse_args(argv)
    if command == []:
        p.error("--run needs a command after it")
    if (options.ttft_ms is None) != (options.tpot_ms is None):
        p.error("--ttft-ms and --tpot-ms go together")
    if options.error_rate + options.cut_rate + options.inband_error_rate + options.stall_rate > 1:
        p.error("the fault rates add up to more than 1")
    options.max_model_len = options.max_model_len or min(8192, options.kv_blocks * BLOCK_SIZE)
    if options.kv_blocks * BLOCK_SIZE < options.max_model_len:
        p.error(
            f"--kv-blocks {options.kv_blocks} can't hold one context: give at least "
            f"{-(-options.max_model_len // BLOCK_SIZE)}, or a smaller --max-model-len"
        )
    if options.max_num_batched_tokens < options.slots:
        p.error(
            f"--max-num-batched-tokens {options.max_num_batched_tokens} is below --slots {options.slots}: every"
            " sequence in the batch needs one"
        )
    for kinds in options.cards:
        for kind, blocks in share_memory(kinds, kv_blocks(options)).items():
            if len(kinds) > 1 and blocks * BLOCK_SIZE < (options.max_model_len if kind == "llm" else 8192):
                p.error(f"--cards: {' + '.join(kinds)} on one card leave {kind} a KV cache too small for one context")
    if options.step_ms == 0 and not options.seq_us and options.ttft_ms is None:
        p.error("a step must take time: give --step-ms or --seq-us above 0")
    return options, command


def llm_config(options: argparse.Namespace) -> Config:
    unlimited = options.slots == 0  # then nothing may bend the curve: batching is almost free
    prefill_us = options.prefill_us_per_token if options.prefill_us_per_token is not None else 1 if unlimited else 30
    seq_us = options.seq_us if options.seq_us is not None else 2 if unlimited else 50
    return Config(
        slots=options.slots,
        step_s=options.step_ms / 1e3,
        prefill_token_s=prefill_us / 1e6,
        seq_s=seq_us / 1e6,
        kv_blocks=options.kv_blocks,
        max_num_batched_tokens=options.max_num_batched_tokens,
        leak_s_per_s=options.leak_ms_per_min / 1e3 / 60,
    )


def configs(options: argparse.Namespace) -> dict[str, Config]:
    return {"llm": llm_config(options), "guard": GUARD, "vlm": VLM, "embedding": EMBEDDING, "rerank": RERANK}


def kv_blocks(options: argparse.Namespace) -> dict[str, int]:
    """KV-cache blocks each engine would have on a card of its own."""
    return {kind: config.kv_blocks for kind, config in configs(options).items()}


def build(options: argparse.Namespace, loop: AbstractEventLoop) -> Box:
    """The box with its five engines on their cards."""
    models, blocks = [], kv_blocks(options)
    cards = place(options.cards, blocks, loop.time(), options.leak_mib_per_min / 60)
    for kind, config in configs(options).items():
        config = replace(config, kv_blocks=share_memory(cards[kind].kinds, blocks)[kind])
        length = options.max_model_len if kind == "llm" else 8192
        stats = Stats(length)
        pace: EnginePace | ExactPace = EnginePace(loop, stats, Engine(config), cards[kind])
        if kind == "llm" and options.ttft_ms is not None:
            pace = ExactPace(loop, stats, options.ttft_ms / 1e3, options.tpot_ms / 1e3, config.kv_blocks)
        models.append(
            Model(getattr(options, f"{kind}_model"), kind, length, pace, stats, random.Random(f"{options.seed} {kind}"))
        )
    rates = Rates(
        options.error_rate, options.cut_rate, options.inband_error_rate, options.stall_rate, options.stall_ms / 1e3
    )
    burst = Burst(*(loop.time() + at for at in options.error_burst))
    return Box(
        models,
        rates,
        options.output_tokens,
        options.queue_limit,
        options.api_key,
        int(time.time()),
        list({card.index: card for card in cards.values()}.values()),
        burst,
    )
