# SPDX-License-Identifier: BSD-3-Clause
"""Collects the facts behind a plan that its file does not hold."""

from __future__ import annotations

from collections.abc import Callable

from torchalgo import _C
from torchalgo._ir.costs import key_of, native_key
from torchalgo._ir.facts import Facts, KnownCost, Refused
from torchalgo._ir.plan import micro
from torchalgo._measure.tuning import Tuning


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
