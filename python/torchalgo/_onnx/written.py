# SPDX-License-Identifier: BSD-3-Clause
"""Replaces several nodes by the one function of torch that an exporter wrote as these nodes.

These are GELU, written with Erf, and the channel shuffle, written as two reshapes and a transpose.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from torchalgo._onnx.values import Live, dims_of

_FUNCTIONS = {"mul": torch.mul, "add": torch.add, "erf": torch.erf, "div": torch.div}


def fuse_gelu(graph: fx.Graph) -> None:
    """Replaces each GELU that is written with erf. The graph is changed."""
    for node in list(graph.nodes):
        src = _gelu_source(node)
        if src is None:
            continue
        _replace(node, functional.gelu, (src,))


def _replace(node: fx.Node, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with node.graph.inserting_before(node):
        fused = node.graph.call_function(function, args)
    fused.meta = dict(node.meta)
    node.replace_all_uses_with(fused)


def _is_call(node: object, name: str) -> bool:
    return isinstance(node, fx.Node) and node.target is _FUNCTIONS[name]


def _factors(node: fx.Node) -> list[object]:
    """Returns the factors of a product of up to three, whose parts nothing else reads."""
    found: list[object] = []
    for each in node.args:
        is_part = _is_call(each, "mul") and len(each.users) == 1  # type: ignore[union-attr]
        found += each.args if is_part else [each]  # type: ignore[union-attr]
    return found


def _gelu_source(node: fx.Node) -> fx.Node | None:
    """Returns x if the node is `0.5 * x * (1 + erf(x / sqrt(2)))`, in any order."""
    if not _is_call(node, "mul"):
        return None
    factors = _factors(node)
    halves = [each for each in factors if each == 0.5 and isinstance(each, float)]
    gates = [each for each in factors if _is_call(each, "add")]
    if len(factors) != 3 or len(halves) != 1 or len(gates) != 1:
        return None
    gate = gates[0]
    src = next(each for each in factors if each not in (halves[0], gate))
    assert isinstance(gate, fx.Node)
    if not isinstance(src, fx.Node) or gate.args[1:] != (1.0,) or not _is_call(gate.args[0], "erf"):
        return None
    scaled = gate.args[0].args[0]  # type: ignore[union-attr]
    if _is_call(scaled, "div"):
        is_scale = _is_near(scaled.args[1], math.sqrt(2))  # type: ignore[union-attr]
    elif _is_call(scaled, "mul"):
        is_scale = _is_near(scaled.args[1], math.sqrt(0.5))  # type: ignore[union-attr]
    else:
        return None
    return src if is_scale and operator.is_(scaled.args[0], src) else None  # type: ignore[union-attr]


def _is_near(value: object, wanted: float) -> bool:
    return isinstance(value, float) and abs(value - wanted) < 1e-6


def fuse_shuffles(graph: fx.Graph, values: Iterable[object]) -> None:
    """Replaces each channel shuffle of images. The graph is changed.

    Args:
        values: those of the graph, whose sizes are known.
    """
    known = {value.node: value for value in values if isinstance(value, Live)}
    for node in list(graph.nodes):
        found = _shuffle(node, known)
        if found is None:
            continue
        _replace(node, torch.channel_shuffle, found)


def _shuffle(last: fx.Node, known: dict[fx.Node, Live]) -> tuple[fx.Node, int] | None:
    """Returns the source and the groups if `last` ends a shuffle of channels."""
    swap = last.args[0] if last.target is torch.reshape else None
    if not isinstance(swap, fx.Node) or swap.target is not torch.permute:
        return None
    first = swap.args[0]
    if list(swap.args[1]) != [0, 2, 1, 3, 4] or not isinstance(first, fx.Node):  # type: ignore[arg-type]
        return None
    src = first.args[0] if first.target is torch.reshape else None
    if src not in known or first not in known or last not in known:
        return None
    sizes, split = dims_of(known[src]), dims_of(known[first])  # type: ignore[index]
    groups, each = split[1], split[2]
    if len(sizes) != 4 or not groups or not each or groups * each != sizes[1]:
        return None
    # The batch may be open; its size then follows from those of the others.
    is_same = sizes[1:] == dims_of(known[last])[1:] and split[3:] == sizes[2:]
    if not is_same or None in sizes[2:] or split[0] != sizes[0]:
        return None
    return src, groups  # type: ignore[return-value]
