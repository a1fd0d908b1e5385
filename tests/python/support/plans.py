# SPDX-License-Identifier: BSD-3-Clause
"""Plans that were never made."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchalgo._ir.plan import GuardVerdict, LeftAlone, Plan, PlanInput, PlanNode, PlanTransform

CONV = "fwd_f32_n1c16h56w56_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu"


def make_node(name: str, **changes: Any) -> PlanNode:
    node = PlanNode(
        name=name,
        problem=CONV,
        primitive="cpu.winograd_f4x4_3x3.t14",
        src="nChw16c",
        dst="nChw16c",
        absorbed_by="",
        predicted_us=12.5,
        ticks=12_800_000,
        cost_source="measured",
        runner_up="aten.prepacked nhwc->nhwc",
        regret_us=3.25,
    )
    return dataclasses.replace(node, **changes)


def make_plan(**changes: Any) -> Plan:
    absorbed = make_node("relu", primitive="", absorbed_by="conv1", ticks=0, predicted_us=0.0)
    plan = Plan(
        structure_hash="00112233445566ff",
        inputs=[PlanInput([1, 3, 224, 224], "float32", "nchw")],
        environment={"torch": "2.11.0", "cpu": "a CPU", "threads": "2"},
        status="optimal",
        cost_us=20.5,
        lower_bound_us=20.5,
        cost_ticks=20_992_000,
        lower_bound_ticks=20_992_000,
        method="reductions",
        nodes=[make_node("conv1"), dataclasses.replace(absorbed, runner_up="", regret_us=None)],
        transforms=[
            PlanTransform("x", "", "transform_f32_n1c16h56w56_nchw_nChw16c", "layout.tiled",
                          "nchw", "nChw16c", 8.0, 8_192_000)
        ],
        comparisons={"aten_only": 30.0, "local_optimum": 21.0},
        guard=GuardVerdict("faster", "plan", "eager", 21.0, 42.0, 0.5, 0.48, 0.52, 25, ""),
        left_alone=[LeftAlone("conv9", "inside a loop")],
    )  # fmt: skip
    return dataclasses.replace(plan, **changes)
