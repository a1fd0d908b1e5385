# SPDX-License-Identifier: BSD-3-Clause
"""The facts behind a plan that its file does not hold: all candidates with costs, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Refused:
    """A primitive that cannot run the problem, and the reason."""

    primitive: str
    reason: str


@dataclass(frozen=True)
class KnownCost:
    """A candidate of a node, with what is known of it."""

    problem: str
    primitive: str
    src: str
    dst: str
    cost: float | None = None  # in the unit of the plan's costs; None: nothing is known
    source: str = ""  # of the cost: "measured", "bound", "model" or "construction"
    error: float | None = None  # relative L2 error against f64; None: not checked
    # Time in us at the machine's highest rates; None: not known. Source: Williams et al. 2009,
    # Communications of the ACM 52(4), "Roofline".
    roofline: float | None = None


@dataclass(frozen=True)
class Facts:
    """The candidates and the refusals of a plan's nodes."""

    candidates: Mapping[str, Sequence[KnownCost]] = field(default_factory=dict)  # by node
    refusals: Mapping[str, Sequence[Refused]] = field(default_factory=dict)  # by node


FindFacts = Callable[[], Facts]


def without_layouts(reason: str) -> str:
    """Returns the reason without the layouts that it holds for. Tables leave these out."""
    return reason.partition("; as src/weights/dst")[0]
