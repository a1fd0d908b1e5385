# SPDX-License-Identifier: BSD-3-Clause
"""Imports a frozen model as a graph, and finds the candidates of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchalgo import _C
from torchalgo._base.f32_precision import convolutions_use_tf32
from torchalgo._capture.freeze import ScriptModule
from torchalgo._ir.overrides import is_convolution


def native_device(device: torch.device) -> _C.Device | None:
    """Returns the GPU that `device` names; None for the CPU."""
    if device.type != "cuda":
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return _C.cuda_device(index)


def torch_name(device: _C.Device | None) -> str:
    """Returns torch's name of a device: "cpu" or "cuda:0". None is the CPU."""
    return "cpu" if device is None else f"cuda:{device.index}"


def import_model(
    device: _C.Device | None, frozen: ScriptModule, inputs: tuple[Any, ...]
) -> _C.Imported:
    """Imports the graph to plan. On a GPU, f32 convolutions may use TF32 if torch allows it."""
    imported = _C.import_graph(frozen._c, inputs)
    if device is not None and convolutions_use_tf32():
        return _C.with_tf32_convolutions(imported)
    return imported


def find_candidates(
    graph: _C.Graph,
    workspace_limit_bytes: int,
    device: _C.Device | None,
    drop_dominated: bool = True,
    runtime_compiled: bool = True,
    all_knobs: bool = False,
    named: Sequence[str] = (),
    coarse_types: bool = False,
) -> _C.Candidates:
    """Returns the candidates of each node.

    If `drop_dominated`, candidates that are not worth measuring are left out, unless `named` names
    them. For cuDNN, this leaves a few of hundreds of engines and knobs: see without_dominated() in
    csrc/provider/dominated.h. Engines that are compiled when they first run
    are left out unless `runtime_compiled`. On a CPU, a call without the activation behind it
    is left out if the same primitive can apply the activation. On a GPU, only deterministic
    primitives are returned if torch's flags ask for them. If `coarse_types`, primitives that store
    data in coarser types than the model's are candidates too.
    """
    return _C.find_candidates(
        graph, workspace_limit_bytes, device, is_deterministic(device), drop_dominated,
        runtime_compiled, all_knobs, named, coarse_types,
    )  # fmt: skip


def is_deterministic(device: _C.Device | None) -> bool:
    """Returns whether only deterministic primitives may run: on a GPU, if torch's flags say so."""
    return device is not None and (
        torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    )


def has_convolutions(graph: _C.Graph) -> bool:
    """Returns whether there is anything to plan."""
    return any(is_convolution(node) for node in graph.nodes)
