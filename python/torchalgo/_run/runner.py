# SPDX-License-Identifier: BSD-3-Clause
"""Runs the module of a plan: its runner, its inputs' types, its errors and its memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._capture.freeze import ScriptModule
from torchalgo._ir.plan import Plan
from torchalgo._plan.result import Result


def held_weight_bytes(scripted: ScriptModule) -> int:
    """Returns the bytes of the packed weights that a module holds now."""
    return sum(held.packed_bytes() for held in _held(scripted))


def held_problems(scripted: ScriptModule) -> list[tuple[str, str]]:
    """Returns layer and problem of each planned operation that a module holds."""
    states = (held._get_method("__getstate__")() for held in _held(scripted))
    return [(layer, problem) for _, problem, _, _, _, layer, *_ in states]


def held_constants(scripted: ScriptModule) -> dict[tuple[str, str], list[torch.Tensor | None]]:
    """Returns weights and bias of each layer of the planned operations, by layer and problem."""
    states = (held._get_method("__getstate__")() for held in _held(scripted))
    return {(layer, problem): tensors for _, problem, _, _, _, layer, tensors in states}


def mean_dims(scripted: ScriptModule) -> list[tuple[int, ...] | None]:
    """Returns the dimensions of each aten::mean in order; None if they are no constants."""
    nodes = scripted._c._get_method("forward").graph.findAllNodes("aten::mean", recurse=False)
    dims = [list(node.inputs())[1].toIValue() for node in nodes]
    return [tuple(each) if isinstance(each, list) else None for each in dims]


def _held(scripted: ScriptModule) -> Iterator[Any]:
    """Yields the packed operations of a module."""
    module: Any = scripted._c
    names = map("_torchalgo_{}".format, itertools.count())
    return map(module.getattr, itertools.takewhile(module.hasattr, names))


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
