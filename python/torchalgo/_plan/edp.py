# SPDX-License-Identifier: BSD-3-Clause
"""Finds the plan with the least product of energy and time, by solves for weighted sums.

The product t * e is quasi-concave for positive t and e, because log t + log e is concave. So over
the convex hull of all plans' points (t, e), it is least at a vertex. Since it grows with both, this
vertex is the optimum of a * t + b * e for some a, b >= 0.

These vertices are found by the method of Aneja & Nair 1979 (Bicriteria transportation problem,
Management Science 25, pp. 73-78). A solve with the weights of the chord between two neighbours
finds a point below the chord, or proves that there is none.

Each solve also proves a half-plane that contains all points. The corners of the intersection of
these half-planes bound the product. A corner whose product is not below that of the best point is
not searched any further.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

P = TypeVar("P")

MOST_SOLVES = 256  # for networks, about 12 are enough


@dataclass(frozen=True)
class Answer(Generic[P]):
    """The plan with the least weighted sum, its time and energy, and a bound of the sum.

    No plan has a sum below `least`. It is below the plan's own sum if optimality is not proven.
    """

    plan: P
    time: int
    energy: int
    least: int


@dataclass(frozen=True)
class Found(Generic[P]):
    """The plan with the least product that was found. No plan's is below `least_product`."""

    plan: P
    time: int
    energy: int
    least_product: Fraction
    solves: int

    @property
    def product(self) -> int:
        return self.time * self.energy

    @property
    def is_optimal(self) -> bool:
        return self.least_product >= self.product


@dataclass(frozen=True)
class _Line(Generic[P]):
    """A half-plane that contains the points of all plans.

    They have time_weight * time + energy_weight * energy >= answer.least.
    """

    time_weight: int
    energy_weight: int
    answer: Answer[P]

    def holds(self, time: Fraction, energy: Fraction) -> bool:
        return self.time_weight * time + self.energy_weight * energy >= self.answer.least


def least_product(
    solve: Callable[[int, int], Answer[P]], most_solves: int = MOST_SOLVES
) -> Found[P]:
    """Returns the plan with the least time * energy.

    Args:
        solve: returns the best plan for the weights of time and energy. These are integers >= 0,
            not both 0, and at most as large as the energies and times that it has returned.
        most_solves: after so many solves, the best plan so far is returned, with a bound.
    """
    lines = [_Line(1, 0, solve(1, 0)), _Line(0, 1, solve(0, 1))]
    tried = {(1, 0), (0, 1)}
    while len(lines) < most_solves:
        best = _best(lines)
        weights = _next_weights(_corners(lines), best.time * best.energy, tried)
        if weights is None:
            break
        tried.add(weights)
        lines.append(_Line(*weights, solve(*weights)))
    best = _best(lines)
    bound = min(time * energy for _, _, time, energy in _corners(lines))
    least = min(bound, Fraction(best.time * best.energy))
    return Found(best.plan, best.time, best.energy, least, len(lines))


def _best(lines: Sequence[_Line[P]]) -> Answer[P]:
    return min((line.answer for line in lines), key=lambda a: (a.time * a.energy, a.time))


_Corner = tuple[_Line[P], _Line[P], Fraction, Fraction]


def _next_weights(
    corners: Sequence[_Corner[P]], best: int, tried: set[tuple[int, int]]
) -> tuple[int, int] | None:
    """Returns the weights to solve for next: those of the chord above the lowest corner.

    Returns None if no corner has a product below `best`, or if all such weights were tried.
    """
    for left, right, time, energy in sorted(corners, key=lambda corner: corner[2] * corner[3]):
        if time * energy >= best:
            return None
        first, last = left.answer, right.answer
        weights = first.energy - last.energy, last.time - first.time
        if min(weights) > 0:
            divisor = math.gcd(*weights)
            reduced = weights[0] // divisor, weights[1] // divisor
            if reduced not in tried:
                return reduced
    return None


def _corners(lines: Sequence[_Line[P]]) -> list[_Corner[P]]:
    """Returns the corners of the region in which all lines hold, in the order of rising time.

    A corner is two neighbouring lines, and the time and energy at which they meet.
    """
    hull: list[_Line[P]] = []
    # From the vertical line to the horizontal one. No two lines have the same direction.
    for line in sorted(lines, key=lambda own: Fraction(own.energy_weight, _sum_of_weights(own))):
        while len(hull) > 1 and hull[-1].holds(*_meeting(hull[-2], line)):
            hull.pop()
        hull.append(line)
    return [(a, b, *_meeting(a, b)) for a, b in itertools.pairwise(hull)]


def _sum_of_weights(line: _Line[P]) -> int:
    return line.time_weight + line.energy_weight


def _meeting(a: _Line[P], b: _Line[P]) -> tuple[Fraction, Fraction]:
    determinant = a.time_weight * b.energy_weight - b.time_weight * a.energy_weight
    time = a.answer.least * b.energy_weight - b.answer.least * a.energy_weight
    energy = a.time_weight * b.answer.least - b.time_weight * a.answer.least
    return Fraction(time, determinant), Fraction(energy, determinant)
