# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import random

import pytest

from torchalgo._base.stats import cost_of_setups, is_faster, median_interval, median_noise


def noisy(center: float, n: int, seed: int, spread: float = 0.05) -> list[float]:
    rng = random.Random(seed)
    return [center * (1 + rng.uniform(-spread, spread)) for _ in range(n)]


def test_a_clear_difference_is_faster_one_way_and_slower_the_other() -> None:
    a, b = noisy(100, 25, 1), noisy(120, 25, 2)
    assert is_faster(a, b).verdict == "faster"
    assert is_faster(b, a).verdict == "slower"
    assert is_faster(a, b).low <= is_faster(a, b).ratio <= is_faster(a, b).high < 1


def test_the_same_distribution_is_almost_always_unclear() -> None:
    verdicts = [
        is_faster(noisy(100, 25, 2 * i), noisy(100, 25, 2 * i + 1)).verdict for i in range(60)
    ]
    assert verdicts.count("unclear") >= 52


def test_pairing_cancels_noise_that_hits_both() -> None:
    rng = random.Random(3)
    load = [rng.uniform(1, 4) for _ in range(25)]
    assert is_faster([100 * f for f in load], [103 * f for f in load]).verdict == "faster"


def test_few_rounds_are_never_enough() -> None:
    assert is_faster([1.0] * 5, [2.0] * 5).verdict == "unclear"


def test_unpaired_rounds_are_an_error() -> None:
    with pytest.raises(ValueError, match="paired"):
        is_faster([1.0], [1.0, 2.0])


def test_the_interval_holds_the_median_and_is_deterministic() -> None:
    values = noisy(10, 30, 7)
    low, high = median_interval(values)
    assert min(values) <= low <= high <= max(values)
    assert (low, high) == median_interval(values)
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])


def test_noise_shrinks_with_the_number_of_samples() -> None:
    assert median_noise([1.0, 2.0, 3.0]) == 0
    assert median_noise([5.0] * 10) == 0
    assert 0 < median_noise(noisy(100, 400, 1)) < median_noise(noisy(100, 16, 1))


def test_set_ups_of_few_samples_differ_by_a_noise() -> None:
    setups = [[center, center + 0.1, 99.0] for center in (10.0, 11.0, 12.0, 13.0, 14.0)]
    cost, noise = cost_of_setups(setups)
    assert cost == pytest.approx(12.05)
    assert noise == pytest.approx(median_noise([10.0, 11.0, 12.0, 13.0, 14.0])) and noise > 1
    assert cost_of_setups([[5.0] * 3] * 5) == (5.0, 0.0)
