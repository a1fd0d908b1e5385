# SPDX-License-Identifier: BSD-3-Clause
"""Imports a frozen model as a graph, and says what its device allows."""

from __future__ import annotations

from typing import Any

import torch

from torchalgo import _C
from torchalgo._base.f32_precision import convolutions_use_tf32
from torchalgo._capture.freeze import ScriptModule
from torchalgo._ir.overrides import is_convolution
from torchalgo._ir.problems import dtype_of

LEAST_SM_WITH_TF32 = 80  # the architecture of the A100


def native_device(device: torch.device) -> _C.Device | None:
    """Returns the GPU that `device` names; None for the CPU."""
    if device.type != "cuda":
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return _C.cuda_device(index)


def import_model(
    device: _C.Device | None, frozen: ScriptModule, inputs: tuple[Any, ...]
) -> _C.Imported:
    """Imports the graph to plan. On a GPU, f32 convolutions may use TF32 if torch allows it."""
    imported = _C.import_graph(frozen._c, inputs)
    if device is not None and convolutions_use_tf32():
        return _C.with_tf32_convolutions(imported)
    return imported


def strict_f32_note(device: _C.Device | None, graph: _C.Graph) -> list[str]:
    """Returns a note if a setting keeps the convolutions of a GPU from TF32, else nothing.

    Args:
        graph: as import_model makes it, with TF32 in its problems if torch allows this.
    """
    if device is None or int(device.isa.removeprefix("sm_")) < LEAST_SM_WITH_TF32:
        return []
    types = {dtype_of(str(node.problem)) for node in graph.nodes if is_convolution(node)}
    if "f32" not in types:
        return []
    return [
        "convolutions are in strict f32, as torch.backends.cudnn.conv.fp32_precision says. On an"
        ' H100, a 3x3 convolution took a quarter of the time with "tf32"'
    ]


def is_deterministic(device: _C.Device | None) -> bool:
    """Returns whether only deterministic primitives may run: on a GPU, if torch's flags say so."""
    return device is not None and (
        torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    )


def has_convolutions(graph: _C.Graph) -> bool:
    """Returns whether there is anything to plan."""
    return any(is_convolution(node) for node in graph.nodes)
