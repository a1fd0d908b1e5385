# SPDX-License-Identifier: BSD-3-Clause
"""The values of a plan in the units of its objective, and their texts."""

from __future__ import annotations

import typing
from collections.abc import Sequence

from .parts import Objective, PlanNode, PlanTransform

if typing.TYPE_CHECKING:
    from .plan import Plan


def in_ms(us: float) -> str:
    return f"{us / 1000:.3f} ms" if us < 10_000 else f"{us / 1000:.1f} ms"


def in_mj(uj: float) -> str:
    return f"{uj / 1000:.3f} mJ" if uj < 10_000 else f"{uj / 1000:.1f} mJ"


def format_value(objective: Objective, value: float) -> str:
    """Formats a value of the objective with its unit."""
    return in_ms(value) if objective == "latency" else in_mj(value)


def unit_of(plan: Plan) -> str:
    """Returns the unit of the layers' costs."""
    return "us" if plan.energy is None else "uJ"


def cost_of(part: PlanNode | PlanTransform, plan: Plan) -> float:
    """Returns the predicted cost of a part of `plan`, in the unit of `unit_of`."""
    return part.predicted_us if plan.energy is None else part.predicted_uj or 0.0


def regret_of(node: PlanNode, plan: Plan) -> float | None:
    return node.regret_us if plan.energy is None else node.regret_uj


def value_of(plan: Plan) -> float:
    """Returns the plan's value of the objective in us or uJ."""
    return plan.cost_us if plan.energy is None else plan.energy.cost_uj


def lower_bound_of(plan: Plan) -> float:
    """Returns a value that no plan goes below, in the unit of `value_of`."""
    return plan.lower_bound_us if plan.energy is None else plan.energy.lower_bound


def gap_of(plan: Plan) -> float:
    """Returns by how many percent the plan may be above the optimum of its costs."""
    own, bound = value_of(plan), lower_bound_of(plan)
    if plan.status == "optimal" or not own:
        return 0.0
    return 100 * (own / bound - 1) if bound else float("inf")


def format_bytes(count: int) -> str:
    """Formats a number of bytes in B, kB (1000 bytes) or MB."""
    if count < 10_000:
        return f"{count} B"
    return f"{count / 1e3:.0f} kB" if count < 10_000_000 else f"{count / 1e6:.0f} MB"


def planned_shapes(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes for which a plan was made."""
    return tuple(tuple(each.shape) for each in plan.inputs)


def shapes_text(shapes: Sequence[Sequence[int]]) -> str:
    """Returns a text such as "1x3x224x224", or "1x3x224x224,1x10" for two tensors.

    A tensor without dimensions is "scalar".
    """
    return ",".join("x".join(map(str, sizes)) or "scalar" for sizes in shapes)
