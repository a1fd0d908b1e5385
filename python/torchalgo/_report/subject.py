# SPDX-License-Identifier: BSD-3-Clause
"""Holds what a report is about: a plan, and what else is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchalgo import CallTimes, Front
from torchalgo._ir.facts import FindFacts
from torchalgo._ir.plan import Plan, planned_shapes, shapes_text
from torchalgo._ir.problems import is_weight_gradient


@dataclass(frozen=True)
class Subject:
    """A plan, with functions and values that only its run has."""

    plan: Plan
    graph: str | None = None  # the text of a _C.Graph; None: that of the plan's proof, if any
    find_facts: FindFacts | None = None  # None: only the plan is known
    front: Front | None = None
    measured: CallTimes | None = None  # of the bars; None: they were not measured
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


def subjects_of(plans: Sequence[tuple[Plan, str | None]]) -> list[Subject]:
    """Returns the plans of a file with their graphs. The regions of a training step get names."""
    return [
        Subject(plan, graph, name=f"Region {i}" if is_of_training(plan) else "")
        for i, (plan, graph) in enumerate(plans, start=1)
    ]


def is_of_training(plan: Plan) -> bool:
    """Returns whether the plan is of a region of a training step: it has gradients of weights."""
    return any(is_weight_gradient(node.problem) for node in plan.nodes)
