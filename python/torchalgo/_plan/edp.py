# SPDX-License-Identifier: BSD-3-Clause
"""The least product of two sums, energy and time of a plan, from solves for weighted sums only.

The product t * e is quasi-concave where both are positive: log t + log e is concave. So over the
convex hull of all plans' points (t, e) it is least at a vertex, and since it grows with both, at a
vertex that is the optimum of a * t + b * e for some a, b >= 0. Those are found as Aneja & Nair 1979
do (Bicriteria transportation problem, Management Science 25, pp. 73-78): the weights of the chord
between two neighbours give a point below it, or prove that there is none. Each solve also proves a
half-plane; corners of their intersection bound the product, and where that bound is not below the
best point nobody looks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

P = TypeVar("P")

MOST_SOLVES = 256  # networks take a dozen


@dataclass(frozen=True)
class Answer(Generic[P]):
    """A plan that is least in a weighted sum: its point, and what the sum is at least for any plan;
    less than the point's where the solver has not proven it."""

    plan: P
    time: int
    energy: int
    least: int


@dataclass(frozen=True)
class Found(Generic[P]):
    """The plan of the least product that was found; no plan has less than `least_product`."""

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
    """All points have time_weight * time + energy_weight * energy >= answer.least."""

    time_weight: int
    energy_weight: int
    answer: Answer[P]

    def holds(self, time: Fraction, energy: Fraction) -> bool:
        return self.time_weight * time + self.energy_weight * energy >= self.answer.least


def least_product(
    solve: Callable[[int, int], Answer[P]], most_solves: int = MOST_SOLVES
) -> Found[P]:
    """The plan whose time * energy is least.

    Args:
        solve: the best plan for (time weight, energy weight), integers >= 0 and not both 0. The
            weights are at most as large as the sums of energies and times that it returned.
        most_solves: after these the best plan so far is returned, with a bound for all others.
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
    """Those of the chord below which the lowest corner lies; None: no corner is below `best`, or
    the solver proves no more there."""
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
    """Of the region where all lines hold, by rising time: two neighbours and where they meet."""
    hull: list[_Line[P]] = []
    # From the upright line to the level one. None has the direction of another one.
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
