# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of times: medians, and one rule for "a is faster than b"."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["faster", "slower", "unclear"]


@dataclass(frozen=True)
class Faster:
    """The comparison of a with b: the median of the rounds' ratios a / b, and its interval."""

    verdict: Verdict  # on a; unclear unless the interval excludes 1
    ratio: float
    low: float
    high: float


def median_interval(
    values: Sequence[float], confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Returns the percentile bootstrap interval of the median.

    The same seed gives the same interval.

    Raises: ValueError if there is no value.
    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, ch. 13.
    """
    if not values:
        raise ValueError("median_interval: needs at least one value")
    rng = random.Random(seed)
    medians = sorted(
        statistics.median(rng.choices(values, k=len(values))) for _ in range(resamples)
    )
    tail = (1 - confidence) / 2
    return medians[int(tail * resamples)], medians[min(resamples - 1, int((1 - tail) * resamples))]


def is_faster(
    a: Sequence[float], b: Sequence[float], confidence: float = 0.95, seed: int = 0
) -> Faster:
    """Compares times of a and b that were taken in the same rounds: a[i] belongs to b[i].

    Raises: ValueError if the numbers of rounds differ.
    """
    if len(a) != len(b):
        raise ValueError(f"is_faster: {len(a)} and {len(b)} rounds; they must be paired")
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    low, high = median_interval(ratios, confidence, seed=seed)
    verdict: Verdict = "faster" if high < 1 else "slower" if low > 1 else "unclear"
    # Below six rounds not even a clean sweep is significant at 5 % on both sides (2 / 2^n).
    if len(ratios) < 6:
        verdict = "unclear"
    return Faster(verdict, statistics.median(ratios), low, high)


def percentile_95(values: Sequence[float]) -> float:
    """Returns the least value that 95 % of `values`, which are not empty, do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def faster_half(values: Sequence[float]) -> list[float]:
    """Returns the faster half of `values`, rounded up.

    Other programs only ever add time. The faster half therefore shows what the machine can do, and
    its median varies less than the median of all values.
    """
    return sorted(values)[: (len(values) + 1) // 2]


def cost_of_samples(samples: Sequence[float]) -> tuple[float, float]:
    """Returns the cost of samples and its noise, both in the samples' unit.

    The cost is the median of the faster half. The noise is half the width of its 95 % interval.
    """
    undisturbed = faster_half(samples)
    return statistics.median(undisturbed), median_noise(undisturbed)


def cost_of_setups(setups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Returns the median cost of several set-ups, and the noise of this median.

    Samples of different set-ups are not pooled: a property of a set-up, such as the addresses of
    its pages, affects all of its samples. The noise is that among the set-ups, or within one if
    this is larger. A set-up of few samples tells no noise of its own.
    """
    costs, noises = zip(*map(cost_of_samples, setups), strict=True)
    return statistics.median(costs), max(statistics.median(noises), median_noise(costs))


def median_noise(values: Sequence[float]) -> float:
    """Returns half the width of a rough 95 % interval of the median: 1.57 IQR / sqrt(n).

    Returns 0 for fewer than four values.
    Source: McGill, Tukey & Larsen 1978, The American Statistician 32, pp. 12-16.
    """
    if len(values) < 4:
        return 0.0
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    return 1.57 * (quarters[2] - quarters[0]) / math.sqrt(len(values))
