# SPDX-License-Identifier: BSD-3-Clause
"""Compares the ops and constants of two frozen modules."""

from __future__ import annotations

import itertools
import re
from typing import Any

import torch

from torchalgo._capture.freeze import ScriptModule


def difference(one: ScriptModule, other: ScriptModule) -> str:
    """Returns the first difference between the programs of two modules; empty if there is none.

    Two captures of one model at different sizes have equal programs if they compute the same
    function. Sizes that a trace stores with its values are not part of the program.
    """
    graphs = [_plain(module.graph) for module in (one, other)]
    # A module's type has another number in each capture, and none in the first one of a process.
    texts = [re.sub(r"___torch_mangle_\d+\.", "", each.str(False)).splitlines() for each in graphs]
    for lines in itertools.zip_longest(*texts, fillvalue="no op"):
        if lines[0] != lines[1]:
            return " and ".join(line.strip()[:80] for line in lines)
    constants = [_constants(graph) for graph in graphs]
    return "" if all(map(_equal, *constants)) else "a constant"


def _plain(graph: Any) -> Any:
    """Returns a copy of a graph without sizes of values, and with numbers as names of values."""
    copied = graph.copy()
    torch._C._jit_pass_erase_shape_information(copied)
    return torch._C._jit_pass_canonicalize(copied, False)


def _constants(graph: Any) -> list[Any]:
    """Returns the constants of a graph, whose text shows no elements of large tensors."""
    return [n.output().toIValue() for n in graph.findAllNodes("prim::Constant")]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _same_tensor(one, other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.data_ptr() == other.data_ptr() and one.stride() == other.stride():
        return True
    if one.is_floating_point():
        one, other = one.nan_to_num(nan=12345.0), other.nan_to_num(nan=12345.0)
    return torch.equal(one, other)
