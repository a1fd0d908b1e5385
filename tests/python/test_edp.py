# SPDX-License-Identifier: BSD-3-Clause
"""The search for the least product of two sums, beside a look at every point."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from torchalgo._plan.edp import Answer, least_product

Point = tuple[int, int]
KINDS = ("free", "anticorrelated", "correlated", "hyperbola", "few values", "with zeros")


def draw(kind: str, pick: random.Random) -> Point:
    time = pick.randrange(1, 10_000)
    if kind == "anticorrelated":
        return time, max(1, 10_000 - time + pick.randrange(-500, 500))
    if kind == "correlated":
        return time, max(1, time + pick.randrange(-2000, 2000))
    if kind == "hyperbola":  # products nearly alike: the search cannot prune
        return time, max(1, 50_000_000 // time + pick.randrange(-3, 3))
    if kind == "few values":
        return pick.randrange(1, 6), pick.randrange(1, 6)
    if kind == "with zeros":
        return pick.randrange(0, 4), pick.randrange(0, 4)
    return time, pick.randrange(1, 10_000)


def below(least: int, part: int) -> int:
    return least - least // (part + least % 3)


class Solver:
    """Least weighted sums by a look at every point; ties go to the last one, as badly as may be."""

    def __init__(
        self, points: list[Point], slack: Callable[[int], int] = lambda least: least
    ) -> None:
        self.points, self.slack = points, slack
        self.largest = 0

    def __call__(self, time_weight: int, energy_weight: int) -> Answer[Point]:
        self.largest = max(self.largest, time_weight, energy_weight)
        assert min(time_weight, energy_weight) >= 0 < time_weight + energy_weight
        values = [(time_weight * t + energy_weight * e, -i) for i, (t, e) in enumerate(self.points)]
        least, at = min(values)
        point = self.points[-at]
        return Answer(point, *point, self.slack(least))


@pytest.mark.parametrize("kind", KINDS)
def test_the_least_product_is_that_of_all_points(kind: str) -> None:
    solves = 0
    for seed in range(500):
        pick = random.Random(f"{kind} {seed}")
        points = [draw(kind, pick) for _ in range(pick.choice([1, 2, 3, 10, 30]))]
        solve = Solver(points)
        found = least_product(solve)
        assert found.product == min(t * e for t, e in points), f"seed {seed}"
        assert found.is_optimal and found.least_product == found.product
        assert found.plan in points and found.product == found.plan[0] * found.plan[1]
        assert solve.largest <= max(1, *(max(point) for point in points))
        solves += found.solves
    assert solves < 500 * 24


def test_points_above_the_hull_are_never_better_so_that_none_is_missed() -> None:
    # The middle point is on no weighted optimum, and its product is indeed not the least.
    found = least_product(Solver([(1, 100), (60, 60), (100, 1)]))
    assert found.product == 100 and found.solves == 3


def test_no_solve_is_spent_where_no_better_product_can_be() -> None:
    steps = [(t, 1000 - 2 * t + t * t // 500) for t in range(1, 400)]
    assert least_product(Solver(steps)).solves < 12


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_unproven_solves_give_a_bound_that_holds_and_no_claim(kind: str) -> None:
    unproven = 0
    for seed in range(200):
        pick = random.Random(f"{kind} {seed}")
        points = [draw(kind, pick) for _ in range(pick.choice([2, 10, 60]))]
        part = pick.randrange(5, 50)
        found = least_product(Solver(points, functools.partial(below, part=part)))
        best = min(t * e for t, e in points)
        assert 0 <= found.least_product <= best <= found.product
        assert found.is_optimal == (found.least_product == found.product)
        unproven += not found.is_optimal
    assert unproven > 50 or kind in ("few values", "with zeros")


def test_a_search_that_is_cut_short_keeps_its_best_and_a_bound() -> None:
    pick = random.Random(7)
    points = [draw("hyperbola", pick) for _ in range(500)]
    best = min(t * e for t, e in points)
    gaps = []
    for most in range(2, 40):
        found = least_product(Solver(points), most_solves=most)
        assert found.solves <= most
        assert found.least_product <= best <= found.product
        gaps.append(found.product - found.least_product)
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < gaps[0]


def test_bounds_are_exact_fractions() -> None:
    found = least_product(Solver([(3, 7), (7, 3)], lambda least: least - 1 if least > 9 else least))
    assert isinstance(found.least_product, Fraction)
    assert found.least_product < 21 == found.product
