# SPDX-License-Identifier: BSD-3-Clause
"""Reads the module of a plan: its planned operations, their constants, and its C++ program."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from torchalgo import _C
from torchalgo._capture.freeze import ScriptModule

if TYPE_CHECKING:
    from torchalgo._emit.network import Network


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


def program_of(
    schedule: _C.Schedule, graph: _C.Graph, scripted: ScriptModule, device: _C.Device, packs: bool
) -> Network:
    """Returns the steps of a C++ program for `device` that computes what a module computes.

    Args:
        schedule: that of the plan which the module runs.
        packs: True packs the weights for the kernels.

    Raises: torchalgo.Error with the layer and the reason, if a step has no kernel of torchalgo.
    """
    from torchalgo._emit.network import Facts, network_of

    facts = Facts(held_constants(scripted), mean_dims(scripted))
    return network_of(schedule, graph, facts, device, packs)
