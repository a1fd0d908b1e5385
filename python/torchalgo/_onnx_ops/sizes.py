# SPDX-License-Identifier: BSD-3-Clause
"""Reads operations on lists of sizes, which each call computes from sizes of its inputs.

Exporters write `x.reshape(n, -1)` as Shape, Gather, Unsqueeze, Concat and Reshape. If a size is
open, the numbers in between are numbers of Python in each call, not tensors. An op that only moves
elements runs once, on the positions of these numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchalgo._onnx_ops import tensors
from torchalgo._onnx_ops.elementwise import read_where
from torchalgo._onnx_ops.op import Op
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError
from torchalgo._onnx_ops.shapes import SHAPES
from torchalgo._onnx_ops.values import (
    MOST_NUMBERS,
    Constant,
    Number,
    Size,
    Sizes,
    Value,
    as_value,
    numbers_of,
    with_positions,
)

Read = Callable[[Op], Value | list[Value]]


def are_sizes(inputs: Sequence[Value | None]) -> bool:
    """Returns True if an input is a list of sizes, and the others are constants."""
    given = [each for each in inputs if each is not None]
    return any(isinstance(each, Sizes) for each in given) and all(
        isinstance(each, Sizes)
        or (isinstance(each, Constant) and each.tensor.numel() <= MOST_NUMBERS)
        for each in given
    )


def _moving(read: Read, first: int = 0, last: int = 0) -> Read:
    """Returns a function that reads an op which moves the elements of these inputs."""

    def read_positions(op: Op) -> Value | list[Value]:
        inputs, entries = list(op.inputs), list[Number]()
        for i in range(first, min(last + 1, len(inputs))):
            given, positions = with_positions(op.value(i), f"input {i}")
            inputs[i] = Constant(positions + len(entries))
            entries += given
        op.inputs = inputs
        found = read(op)
        made = [
            as_value([entries[at] for at in each.tensor.reshape(-1).tolist()], each.tensor.shape)
            for each in (found if isinstance(found, list) else [found])
            if isinstance(each, Constant)
        ]
        return made if isinstance(found, list) else made[0]

    return read_positions


def _pairs(op: Op) -> tuple[list[tuple[Number, Number]], torch.Size]:
    """Returns the numbers of two inputs side by side, and the shape of the result."""
    (a, of_a), (b, of_b) = (with_positions(op.value(i), f"input {i}") for i in (0, 1))
    try:
        of_a, of_b = torch.broadcast_tensors(of_a, of_b)
    except RuntimeError:
        raise DamagedError(f"its inputs have {len(a)} and {len(b)} elements") from None
    places = zip(of_a.reshape(-1).tolist(), of_b.reshape(-1).tolist(), strict=True)
    return [(a[i], b[j]) for i, j in places], of_a.shape


def _arithmetic(function: Callable[[Any, Any], Any]) -> Read:
    def read(op: Op) -> Value:
        pairs, shape = _pairs(op)
        return as_value([op.builder.compute(function, x, y) for x, y in pairs], shape)

    return read


def _read_div(op: Op) -> Value | list[Value]:
    if any(not isinstance(each, int) or each < 1 for each in numbers_of(op.value(1), "input 1")):
        raise NotSupportedError("it divides sizes by other numbers than positive constants")
    divided = numbers_of(op.value(0), "input 0")
    if any(isinstance(each, Size) and not _is_a_count(each.node) for each in divided):
        raise NotSupportedError("it divides a number that may be negative")
    return _arithmetic(operator.floordiv)(op)


def _is_a_count(value: Any) -> bool:
    """Returns whether a number is never negative: a size, or what is made of sizes without Sub."""
    if isinstance(value, int):
        return value >= 0
    keeping = (operator.add, operator.mul, operator.floordiv)
    if not isinstance(value, fx.Node):
        return False
    is_size = value.target is torch.ops.aten.sym_size.int
    return is_size or (value.target in keeping and all(map(_is_a_count, value.args)))


def _read_cast(op: Op) -> Value:
    target = tensors.dtype_of(op.integer("to"), "its result")
    if target not in (torch.int64, torch.int32):
        raise NotSupportedError(f"it converts an open size to {target}")
    return op.value(0)


def _read_equal(op: Op) -> Value:
    """Compares sizes with negative numbers, which they never equal, or constants."""
    pairs, shape = _pairs(op)
    found = []
    for x, y in pairs:
        number, size = (x, y) if isinstance(x, int) else (y, x)
        is_below = isinstance(number, int) and number < 0
        is_count = isinstance(size, Size) and _is_a_count(size.node)
        if isinstance(size, Size) and not (is_below and is_count):
            raise NotSupportedError("it compares open sizes")
        found.append(number == size)
    return Constant(torch.tensor(found, dtype=torch.bool).reshape(shape))


SIZES: dict[str, Read] = {
    **{name: _moving(SHAPES[name]) for name in ("Gather", "Slice", "Unsqueeze", "Squeeze",
                                                "Reshape", "Identity")},
    "Concat": _moving(SHAPES["Concat"], last=MOST_NUMBERS), "Where": _moving(read_where, 1, 2),
    "Add": _arithmetic(operator.add), "Sub": _arithmetic(operator.sub),
    "Mul": _arithmetic(operator.mul), "Div": _read_div, "Cast": _read_cast, "Equal": _read_equal,
}  # fmt: skip
