"""The batching model under a virtual clock, where every answer can be worked out by hand."""

import random

import pytest

from simulator.engine import Config, Engine, Seq, Step
from simulator.generate import draw_tokens
from simulator.kvcache import BLOCK_SIZE, BlockPool
from simulator.text import block_hashes, pieces

STEP = 0.01  # with no other cost, so that times are whole steps


def config(**changes: object) -> Config:
    plain = {"slots": 16, "step_s": STEP, "prefill_token_s": 0.0, "seq_s": 0.0}
    return Config(**(plain | changes))  # type: ignore[arg-type]


def drain(engine: Engine, now: float = 0.0) -> tuple[float, list[Step]]:
    """Step until nothing is left; the time then, and the steps."""
    steps = []
    while step := engine.step(now):
        steps.append(step)
        now += step.duration
    return now, steps


def closed_loop(engine: Engine, users: int, requests: int, prompt: int = 100, output: int = 48) -> float:
    """Requests per second when each of these users sends the next request as soon as one is answered."""
    now, sent, done = 0.0, 0, 0

    def send() -> None:
        nonlocal sent
        engine.add(Seq(str(sent), prompt, output), now)
        sent += 1

    for _ in range(users):
        send()
    while done < requests:
        step = engine.step(now)
        assert step is not None
        now += step.duration
        for _, _, finish in step.outputs:
            if finish:
                done += 1
                send()
    return done / now


def test_one_request_takes_one_step_a_token() -> None:
    engine, seq = Engine(config()), Seq("a", 100, 48)
    engine.add(seq, 2.0)
    end, steps = drain(engine, 2.5)
    assert len(steps) == 48
    assert end == pytest.approx(2.5 + 48 * STEP)
    assert (seq.arrival, seq.scheduled, seq.finish_reason) == (2.0, 2.5, "length")
    assert seq.first_token == pytest.approx(2.5 + STEP)
    assert seq.last_token == pytest.approx(end)


def test_step_time_is_fixed_part_plus_prefill_plus_sequences() -> None:
    engine = Engine(config(prefill_token_s=1e-4, seq_s=1e-3, encoder_token_s=1e-5))
    engine.add(Seq("a", 50, 2), 0.0)
    engine.add(Seq("b", 30, 2, encoder_tokens=64), 0.0)
    _, steps = drain(engine)
    assert steps[0].duration == pytest.approx(STEP + 80 * 1e-4 + 2 * 1e-3 + 64 * 1e-5)
    assert steps[1].duration == pytest.approx(STEP + 2 * 1e-3)


def test_throughput_grows_to_the_slots_and_is_flat_beyond() -> None:
    rate = {users: closed_loop(Engine(config()), users, 320) for users in (1, 8, 16, 17, 32, 64)}
    assert rate[1] == pytest.approx(1 / (48 * STEP), rel=0.01)
    assert rate[8] == pytest.approx(8 * rate[1], rel=0.03)
    assert rate[16] == pytest.approx(16 * rate[1], rel=0.03)
    for users in (17, 32, 64):
        assert rate[users] == pytest.approx(rate[16], rel=0.03)


def test_no_slot_limit_keeps_growing() -> None:
    rate = {users: closed_loop(Engine(config(slots=0)), users, 800) for users in (10, 100)}
    assert rate[100] == pytest.approx(10 * rate[10], rel=0.15)


@pytest.mark.parametrize("users", [10, 16, 17, 40])
def test_those_above_the_slots_wait(users: int) -> None:
    engine = Engine(config())
    for number in range(users):
        engine.add(Seq(str(number), 20, 10), 0.0)
    step = engine.step(0.0)
    assert step is not None
    assert len(engine.running) == min(users, 16)
    assert len(engine.waiting) == max(0, users - 16)


def test_queue_is_first_come_first_served() -> None:
    engine = Engine(config(slots=1))
    seqs = [Seq(str(number), 10, 3) for number in range(4)]
    for seq in seqs:
        engine.add(seq, 0.0)
    drain(engine)
    assert [round((seq.scheduled or 0) / STEP) for seq in seqs] == [0, 3, 6, 9]


def test_full_kv_cache_preempts_the_newest_and_all_finish() -> None:
    # Three sequences of 32 + 40 tokens want 15 blocks; there are 10.
    engine = Engine(config(kv_blocks=10))
    seqs = [Seq(str(number), 32, 40) for number in range(3)]
    for seq in seqs:
        engine.add(seq, 0.0)
    drain(engine)
    assert engine.preemptions > 0
    assert engine.preemptions == sum(seq.preemptions for seq in seqs)
    assert seqs[0].preemptions == 0
    assert [(seq.generated, seq.finish_reason) for seq in seqs] == [(40, "length")] * 3
    assert len(engine.pool.free) == 10


def test_preempted_sequence_computes_its_output_again() -> None:
    engine = Engine(config(kv_blocks=6, prefix_caching=False))
    first, second = Seq("first", 40, 40), Seq("second", 40, 40)
    engine.add(first, 0.0)
    engine.add(second, 0.0)
    _, steps = drain(engine)
    assert second.preemptions == 1
    assert max(step.tokens for step in steps[1:]) > 40  # prompt and what it had said so far, in one prefill


def test_a_sequence_larger_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="exceed the KV cache"):
        Engine(config(kv_blocks=2)).add(Seq("big", 30, 3), 0.0)


def test_chunked_prefill_stays_within_the_budget() -> None:
    engine = Engine(config(max_num_batched_tokens=64))
    decoding = Seq("decoding", 10, 100)
    engine.add(decoding, 0.0)
    engine.step(0.0)
    long = Seq("long", 200, 5)
    engine.add(long, STEP)
    now, steps = drain(engine, STEP)
    assert max(step.tokens for step in steps) == 64
    assert long.first_token == pytest.approx(STEP + 4 * STEP)  # 63 + 63 + 63 + 11 tokens
    assert all(any(seq is decoding for seq, _, _ in step.outputs) for step in steps)  # decodes never pause
    assert now == pytest.approx(100 * STEP)


def test_second_equal_prompt_hits_the_prefix_cache() -> None:
    engine = Engine(config())
    prompt = pieces("a prompt that is long enough to fill some blocks " * 6)
    first, second = (Seq(name, len(prompt), 2, block_hashes=block_hashes(prompt)) for name in ("first", "second"))
    engine.add(first, 0.0)
    drain(engine)
    engine.add(second, 1.0)
    drain(engine, 1.0)
    assert first.cached == 0
    assert second.cached == (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE > 0
    assert (engine.prefix_hits, engine.prefix_queries) == (second.cached, 2 * len(prompt))


def test_prompts_with_another_beginning_share_nothing() -> None:
    engine = Engine(config())
    for number in range(3):
        prompt = pieces(f"{number} a prompt that differs in its first token only, as a nonce makes it " * 4)
        engine.add(Seq(str(number), len(prompt), 2, block_hashes=block_hashes(prompt)), 0.0)
    drain(engine)
    assert engine.prefix_hits == 0


def test_cached_blocks_are_given_up_when_space_is_needed() -> None:
    pool = BlockPool(4)
    blocks = pool.take(4)
    assert blocks is not None
    for block, value in zip(blocks, (11, 12, 13, 14), strict=True):
        pool.publish(block, value)
    pool.release(blocks)
    assert pool.match([11, 12, 13, 14]) == blocks
    assert pool.usage == 0
    pool.take(1)  # the tail of the prompt goes first
    assert pool.match([11, 12, 13, 14]) == blocks[:3]
    assert pool.take(4) is None


def test_pooling_requests_end_with_their_prefill() -> None:
    engine, seq = Engine(config()), Seq("a", 100, 0, "stop")
    engine.add(seq, 0.0)
    end, steps = drain(engine)
    assert steps[0].outputs == [(seq, 0, "stop")]
    assert end == pytest.approx(STEP)


@pytest.mark.parametrize("steps_before", [0, 3])
def test_abort_frees_slot_and_cache(steps_before: int) -> None:
    engine, seq = Engine(config(slots=1)), Seq("a", 100, 50)
    engine.add(seq, 0.0)
    for number in range(steps_before):
        engine.step(number * STEP)
    assert engine.abort(seq)
    assert (len(engine.running), len(engine.waiting), engine.pool.usage) == (0, 0, 0)
    assert seq.finish_reason == "abort"
    assert not engine.abort(seq)
    assert engine.step(1.0) is None


def test_leak_makes_steps_longer_with_time() -> None:
    engine = Engine(config(leak_s_per_s=0.001))
    engine.add(Seq("a", 10, 3), 0.0)
    durations = [engine.step(now).duration for now in (100.0, 160.0)]  # type: ignore[union-attr]
    assert durations == pytest.approx([STEP, STEP + 0.06])


def test_same_seed_same_lengths_and_same_history() -> None:
    def history(seed: int) -> list[tuple[int, float | None]]:
        rng, engine = random.Random(seed), Engine(config(slots=4, kv_blocks=40))
        seqs = [Seq(str(number), 50, draw_tokens(rng, 48)) for number in range(20)]
        for seq in seqs:
            engine.add(seq, 0.0)
        drain(engine)
        return [(seq.generated, seq.last_token) for seq in seqs]

    assert history(1) == history(1)
    assert history(1) != history(2)


def test_output_lengths_have_the_mean_asked_for() -> None:
    rng = random.Random(3)
    lengths = [draw_tokens(rng, 48) for _ in range(4000)]
    assert sum(lengths) / len(lengths) == pytest.approx(48, rel=0.03)
    assert min(lengths) >= 1
