# SPDX-License-Identifier: BSD-3-Clause
"""Compares the ops and constants of two frozen modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchalgo._capture.freeze import ScriptModule


def difference(one: ScriptModule, other: ScriptModule) -> str:
    """Returns the first difference between the programs of two modules; empty if there is none.

    Two captures of one model at different sizes have equal programs if they compute the same
    function. Sizes that a trace stores with its values are not part of the program.
    """
    return _Comparison().blocks(one.graph, other.graph)


class _Comparison:
    def __init__(self) -> None:
        self.numbers: tuple[dict[str, int], dict[str, int]] = ({}, {})  # numbers of values, by name

    def blocks(self, one: Any, other: Any) -> str:
        inputs = list(one.inputs()), list(other.inputs())
        if len(inputs[0]) != len(inputs[1]):
            return "the number of inputs"
        self._number(*inputs)
        nodes = list(one.nodes()), list(other.nodes())
        for a, b in zip(*nodes, strict=False):
            if found := self._node(a, b):
                return found
        if len(nodes[0]) != len(nodes[1]):
            return f"{len(nodes[0])} and {len(nodes[1])} ops"
        return "" if self._are_same(one.outputs(), other.outputs()) else "the result"

    def _number(self, one: list[Any], other: list[Any]) -> None:
        for numbers, values in zip(self.numbers, (one, other), strict=True):
            for value in values:
                numbers[value.debugName()] = len(numbers)

    def _are_same(self, one: Iterable[Any], other: Iterable[Any]) -> bool:
        named = [
            [numbers.get(value.debugName()) for value in values]
            for numbers, values in zip(self.numbers, (one, other), strict=True)
        ]
        return named[0] == named[1]

    def _node(self, one: Any, other: Any) -> str:
        if one.kind() != other.kind():
            return f"{one.kind()} and {other.kind()}"
        if not self._are_same(one.inputs(), other.inputs()):
            return f"the inputs of {one.kind()}"
        if not _equal_attributes(one, other):
            return f"a constant: {_node_text(one)} and {_node_text(other)}"
        outputs = list(one.outputs()), list(other.outputs())
        kinds = [[value.type().kind() for value in values] for values in outputs]
        blocks = list(one.blocks()), list(other.blocks())
        if kinds[0] != kinds[1] or len(blocks[0]) != len(blocks[1]):
            return f"the results of {one.kind()}"
        for a, b in zip(*blocks, strict=True):
            if found := self.blocks(a, b):
                return found
        self._number(*outputs)
        return ""


def _equal_attributes(one: Any, other: Any) -> bool:
    names = one.attributeNames()
    if sorted(names) != sorted(other.attributeNames()):
        return False
    if one.kind() == "prim::Constant" and one.hasAttribute("value"):
        return _equal(one.output().toIValue(), other.output().toIValue())
    return all(_attribute(one, name) == _attribute(other, name) for name in names)


def _attribute(node: Any, name: str) -> Any:
    kind = node.kindOf(name)
    return getattr(node, kind)(name) if kind in ("i", "f", "s", "is", "fs", "ss") else kind


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


def _node_text(node: Any) -> str:
    value = node.output().toIValue() if node.kind() == "prim::Constant" else node.kind()
    text = f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
