# SPDX-License-Identifier: BSD-3-Clause
"""Holds what a report is about: a plan, and what else is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchalgo import Front
from torchalgo._ir.facts import Facts, FindFacts, KnownCost
from torchalgo._ir.plan import Plan, micro, planned_shapes, shapes_text
from torchalgo._report.bars import Measured


@dataclass(frozen=True)
class Subject:
    """A plan, with functions and values that only its run has."""

    plan: Plan
    graph: str | None = None  # the text of a _C.Graph; None: that of the plan's proof, if any
    find_facts: FindFacts | None = None  # None: only the plan is known
    front: Front | None = None
    measured: Mapping[str, Measured] | None = None  # of the bars; None: they were not measured
    name: str = ""  # what to call the plan; empty: the plan for its shapes

    @property
    def title(self) -> str:
        return f"{self.name or 'Plan'} for {self.shapes}"

    @property
    def shapes(self) -> str:
        return shapes_text(planned_shapes(self.plan))

    @property
    def graph_text(self) -> str | None:
        """The text of the graph, or None if it is not known."""
        proof = self.plan.proof
        return self.graph if self.graph is not None or proof is None else proof.graph

    def facts(self) -> Facts | None:
        """Returns the facts of the run or, without a run, those of the plan's proof."""
        if self.find_facts is not None:
            return self.find_facts()
        return None if self.plan.proof is None else facts_of_proof(self.plan)


def facts_of_proof(plan: Plan) -> Facts:
    """Returns the candidates of a plan's proof. It has no refusals."""
    proof = plan.proof
    assert proof is not None
    banned = {tuple(row) for row in proof.refused}
    candidates = {
        node.name: [
            _candidate(node.problem, text, ticks)
            for text, ticks in proof.costs.get(node.problem, {}).items()
            if (node.name, node.problem, text) not in banned
        ]
        for node in plan.nodes
    }
    return Facts(candidates)


def _candidate(problem: str, text: str, ticks: int) -> KnownCost:
    name, _, layouts = text.partition(" ")
    src, _, dst = layouts.partition("->")
    return KnownCost(problem, name, src, dst, micro(ticks), "proof")
