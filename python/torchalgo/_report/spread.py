# SPDX-License-Identifier: BSD-3-Clause
"""Compares what the choice of an algorithm is worth with what the choice of its variant is worth.

A variant is a layout, a size of tiles, an order of weights, or a knob of cuDNN.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torchalgo._ir.costs import algorithm_of
from torchalgo._ir.facts import Facts
from torchalgo._ir.plan import Plan, PlanNode
from torchalgo._ir.problems import has_convolution


@dataclass(frozen=True)
class Spread:
    """Geometric means over the convolutions that have other algorithms and other variants."""

    algorithms: float  # a typical other algorithm, by its best variant, over the best algorithm
    variants: float  # a typical other variant of the best algorithm, over its best one
    convolutions: int


def spread_of(plan: Plan, facts: Facts | None) -> Spread | None:
    """Returns the spread of the measured costs; None if no convolution has enough of them.

    The median stands for the typical one. The costs of slow candidates are rough, because these
    ran only until they had lost.
    """
    if facts is None:
        return None
    spreads = [_spread_of(node, facts) for node in plan.nodes if has_convolution(node.problem)]
    pairs = [pair for pair in spreads if pair is not None]
    if not pairs:
        return None
    algorithms, variants = (statistics.geometric_mean(each) for each in zip(*pairs, strict=True))
    return Spread(algorithms, variants, len(pairs))


def _spread_of(node: PlanNode, facts: Facts) -> tuple[float, float] | None:
    """Returns the two numbers of one convolution; None if too few of its costs are measured."""
    costs: dict[str, list[float]] = {}
    for candidate in facts.candidates.get(node.name, ()):
        # A candidate with another epilogue computes another problem.
        is_same = candidate.problem == node.problem and candidate.source == "measured"
        if is_same and candidate.cost:
            algorithm = algorithm_of(candidate.primitive) or candidate.primitive
            costs.setdefault(algorithm, []).append(candidate.cost)
    best_first = sorted((sorted(each) for each in costs.values()), key=lambda each: each[0])
    if len(best_first) < 2 or len(best_first[0]) < 2:
        return None
    return _typical([each[0] for each in best_first]), _typical(best_first[0])


def _typical(costs: Sequence[float]) -> float:
    """Returns the median of all but the first, which is the least, over the first."""
    return statistics.median(costs[1:]) / costs[0]
