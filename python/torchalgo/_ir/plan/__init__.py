# SPDX-License-Identifier: BSD-3-Clause
"""The plan: the primitive of each node, and the layout changes.

A plan's file is JSON, without pickle, code or paths.
"""

from .parts import (
    AS_GIVEN,
    LAYOUTS,
    MOST_WAITING,
    OBJECTIVES,
    OF_OTHERS,
    TICKS_PER_US,
    GuardVerdict,
    LeftAlone,
    Objective,
    PairCost,
    PlanDim,
    PlanEnergy,
    PlanInput,
    PlanNode,
    PlanProof,
    PlanTransform,
    Quarantined,
    micro,
)
from .plan import Plan, plans_from_json, plans_to_json, read_plans, save_plans, the_only_plan
from .text import guard_line, outcome_lines, runs_text, unclear_text, when_timed
from .units import (
    cost_of,
    format_bytes,
    format_value,
    planned_shapes,
    regret_of,
    shapes_text,
    unit_of,
    value_of,
)
