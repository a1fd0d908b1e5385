# SPDX-License-Identifier: BSD-3-Clause
"""Holds the result of `optimize` for one set of inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchalgo import _C
from torchalgo._base.timings import StepTime
from torchalgo._C import Error
from torchalgo._capture.freeze import ScriptModule
from torchalgo._capture.shapes import Dims, Shapes, planned_dims, planned_shapes
from torchalgo._ir.plan import Plan
from torchalgo._plan.pareto import Front, Memory


@dataclass(frozen=True)
class Result:
    """The result of `optimize` for one set of inputs.

    Only `scripted` and `plan` are kept by save and pickle.
    """

    scripted: ScriptModule
    plan: Plan
    frozen: ScriptModule | None = None
    costs: _C.CostTable = field(default_factory=_C.CostTable)
    alternatives: dict[str, Plan] = field(default_factory=dict)
    device: str = "cpu"  # the device on which it runs, for example "cuda:0"
    # Takes the kind of memory, the most points, and the seconds per point.
    find_front: Callable[[Memory, int, float], Front] | None = None
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


def packed_bytes(scripted: ScriptModule) -> int:
    module: Any = scripted._c
    names = itertools.takewhile(module.hasattr, map("_torchalgo_{}".format, itertools.count()))
    return sum(module.getattr(name).packed_bytes() for name in names)


def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Error(f"plan: an input is of dtype {name!r}, expected one of torch's, as float32")
    return dtype


def runner_of(result: Result) -> _C.GraphRunner | None:
    if not result.device.startswith("cpu"):
        return None
    inputs = [(planned.shape, dtype_named(planned.dtype)) for planned in result.plan.inputs]
    return _C.GraphRunner.make(result.scripted._c, inputs)


def own_error(problem: RuntimeError) -> Error | None:
    """Returns the error that one of our ops raised, without the interpreter's traceback.

    Returns None if another op raised it.
    """
    if isinstance(problem, Error):  # from a runner
        return Error(f"forward: {str(problem).removeprefix('torchalgo: ')}")
    _, mark, text = str(problem).rpartition("RuntimeError: torchalgo: ")
    return Error(f"forward: {text.strip()}") if mark else None


def plain_error(problem: RuntimeError) -> Error:
    """Returns torch's error, without the interpreter's traceback."""
    text = str(problem).rpartition("RuntimeError: ")[2].strip()
    return Error(f"forward: {text}")
