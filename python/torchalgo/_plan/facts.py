# SPDX-License-Identifier: BSD-3-Clause
"""The facts behind a plan that its file does not hold: all candidates with costs, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torchalgo import _C
from torchalgo._ir.costs import key_of, native_key
from torchalgo._ir.plan import micro
from torchalgo._measure.tuning import Tuning
from torchalgo._plan.candidates import Refused


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


def facts_of_tuning(tuning: Tuning) -> Facts:
    """Returns the facts that a tuning knows."""
    peaks = tuning.knowledge.peaks

    def known(candidate: _C.Candidate) -> KnownCost:
        key = key_of(candidate.problem, candidate.primitive)
        cost = tuning.costs.get(native_key(key))
        return KnownCost(
            *_spelled(candidate),
            cost=None if cost is None else micro(cost[0]),
            source="" if cost is None else cost[1],
            error=tuning.errors.get(key),
            roofline=None
            if peaks is None
            else peaks.roofline_ns(candidate.problem, candidate.primitive) / 1e3,
        )

    return _facts(tuning.graph, tuning.found, known)


def facts_of_offers(graph: _C.Graph, found: _C.Candidates) -> Facts:
    """Returns the facts where nothing was measured."""
    return _facts(graph, found, lambda candidate: KnownCost(*_spelled(candidate)))


def _spelled(candidate: _C.Candidate) -> tuple[str, str, str, str]:
    primitive = candidate.primitive
    return candidate.problem, primitive.name, primitive.src, primitive.dst


def _facts(
    graph: _C.Graph, found: _C.Candidates, known: Callable[[_C.Candidate], KnownCost]
) -> Facts:
    names = [node.name for node in graph.nodes]
    offered = {
        name: [known(candidate) for candidate in some]
        for name, some in zip(names, found.by_anchor, strict=True)
    }
    refused = {
        name: [Refused(r.primitive, r.reason) for r in some]
        for name, some in zip(names, found.refusals, strict=True)
    }
    return Facts(offered, refused)
