# SPDX-License-Identifier: BSD-3-Clause
"""Runs the module of a plan: its runner, and its inputs' types."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._ir.plan import Plan
from torchalgo._plan.result import Result


def dtype_named(name: str) -> torch.dtype:
    """Returns torch's dtype for its name in a plan. Raises torchalgo.Error if there is none."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Error(
            f"TA2101 plan: an input has the dtype {name!r}, expected one of torch's names, such as"
            " float32"
        )
    return dtype


def planned_inputs(plan: Plan) -> list[tuple[Sequence[int], torch.dtype]]:
    """Returns the shape and the type of each input for which a plan was made."""
    return [(planned.shape, dtype_named(planned.dtype)) for planned in plan.inputs]


def runner_of(result: Result) -> _C.GraphRunner | None:
    """Returns a runner that runs the plan without TorchScript's interpreter.

    Returns None if the module needs the interpreter, or is on a GPU.
    """
    if not result.device.startswith("cpu"):
        return None
    return _C.GraphRunner.make(result.scripted._c, planned_inputs(result.plan))
