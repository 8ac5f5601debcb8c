"""The Poisson schedule, and when a server does not keep up (method.md section 4)."""

import itertools
import random

import pytest

from tokenswarm import arrivals


def test_the_schedule_is_the_same_for_all_workers_and_splits_without_gaps() -> None:
    whole = list(arrivals.schedule(20, 60, seed=1))
    assert whole == list(arrivals.schedule(20, 60, seed=1)) != list(arrivals.schedule(20, 60, seed=2))
    shares = [list(itertools.islice(arrivals.schedule(20, 60, 1), w, None, 3)) for w in range(3)]
    assert sorted(itertools.chain(*shares)) == whole
    assert len(whole) == pytest.approx(1200, rel=0.1)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_all_workers_together_are_a_poisson_process(workers: int) -> None:
    rate, hold = 50.0, 200.0
    shares = [list(itertools.islice(arrivals.schedule(rate, hold, 1), w, None, workers)) for w in range(workers)]
    assert 0.9 <= arrivals.dispersion(list(itertools.chain(*shares)), rate, hold) <= 1.1


def test_equal_seeds_for_each_worker_would_not_be_and_neither_is_a_metronome() -> None:
    twice = [t for t in arrivals.schedule(25, 200, 1) for _ in range(2)]
    assert arrivals.dispersion(twice, 50, 200) > 1.5
    assert arrivals.dispersion([(i + 0.5) / 50 for i in range(10_000)], 50, 200) < 0.2


def test_one_workers_share_alone_is_too_regular() -> None:
    share = list(itertools.islice(arrivals.schedule(100, 200, 1), 0, None, 2))
    assert arrivals.dispersion(share, 50, 200) < 0.9


def test_slope_of_a_line_with_noise() -> None:
    rng = random.Random(1)
    x = [float(i) for i in range(60)]
    b, half = arrivals.slope(x, [2 * v + rng.gauss(0, 3) for v in x])
    assert abs(b - 2) < half < 0.2
    assert arrivals.slope(x, [5.0] * 60) == (0, 0)


def samples(growth: float, ttft: float, noise: float = 3.0, seconds: int = 60) -> list[tuple[float, float, float]]:
    rng = random.Random(2)
    return [
        (float(t), 20 + growth * t + rng.gauss(0, noise), ttft * t + 100 + rng.gauss(0, 30)) for t in range(seconds)
    ]


def test_oversaturation_needs_both_to_grow_and_a_long_first_token() -> None:
    assert arrivals.oversaturated(samples(2.0, 80.0))
    assert not arrivals.oversaturated(samples(0.0, 80.0)), "in flight is flat"
    assert not arrivals.oversaturated(samples(2.0, 0.0)), "TTFT is flat"
    assert not arrivals.oversaturated(samples(2.0, 20.0)), "TTFT is under 2.5 s"
    assert not arrivals.oversaturated(samples(2.0, 300.0, seconds=25)), "under 30 s"
