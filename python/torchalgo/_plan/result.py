# SPDX-License-Identifier: BSD-3-Clause
"""Holds the result of `optimize` for one set of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchalgo import _C
from torchalgo._base.timings import StepTime
from torchalgo._capture.freeze import ScriptModule
from torchalgo._capture.shapes import Dims, Shapes, planned_dims
from torchalgo._ir.facts import FindFacts
from torchalgo._ir.plan import Plan, planned_shapes
from torchalgo._plan.pareto import Front, Quantity


@dataclass(frozen=True)
class Result:
    """The result of `optimize` for one set of inputs.

    Only `scripted`, `plan` and `graph` are kept by save and pickle.
    """

    scripted: ScriptModule
    plan: Plan
    frozen: ScriptModule | None = None
    costs: _C.CostTable = field(default_factory=_C.CostTable)
    alternatives: dict[str, Plan] = field(default_factory=dict)
    device: str = "cpu"  # the device on which it runs, for example "cuda:0"
    # Takes the kind of front, the most points, and the seconds per point.
    find_front: Callable[[Quantity, int, float], Front] | None = None
    graph: str | None = None  # the text of a _C.Graph, for reports; None: it is not known
    find_facts: FindFacts | None = None  # for reports; None: they are not known
    is_interrupted: bool = False  # True if Ctrl-C ended tuning early
    timings: Mapping[str, StepTime] = field(default_factory=dict)

    @property
    def shapes(self) -> Shapes:
        """The shapes for which the plan was made."""
        return planned_shapes(self.plan)

    @property
    def dims(self) -> Dims | None:
        """The sizes for which the module is right; None if they are not known."""
        return planned_dims(self.plan)
