# SPDX-License-Identifier: BSD-3-Clause
"""Reads operations on lists of sizes, which each call computes from sizes of its inputs.

Exporters write `x.reshape(n, -1)` as Shape, Gather, Unsqueeze, Concat and Reshape. If a size is
open, the numbers in between are numbers of Python in each call, not tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchalgo._onnx_ops import tensors
from torchalgo._onnx_ops.op import Op
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError
from torchalgo._onnx_ops.shapes import read_identity
from torchalgo._onnx_ops.values import Constant, Number, Size, Sizes, Value, as_value, numbers_of


def are_sizes(inputs: Sequence[Value | None]) -> bool:
    """Returns True if an input is a list of sizes, and the others are lists of integers."""
    given = [each for each in inputs if each is not None]
    return any(isinstance(each, Sizes) for each in given) and all(
        isinstance(each, Sizes)
        or (isinstance(each, Constant) and each.tensor.dim() <= 1 and each.tensor.numel() < 1 << 16)
        for each in given
    )


def _list(op: Op, i: int) -> tuple[list[Number], bool]:
    value = op.value(i)
    is_scalar = value.is_scalar if isinstance(value, Sizes) else value.tensor.dim() == 0  # type: ignore[union-attr]
    return numbers_of(value, f"input {i}"), is_scalar


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Op], Value]:
    def read(op: Op) -> Value:
        (a, is_a_scalar), (b, is_b_scalar) = _list(op, 0), _list(op, 1)
        if len(a) != len(b) and 1 not in (len(a), len(b)):
            raise DamagedError(f"its inputs have {len(a)} and {len(b)} elements")
        count = max(len(a), len(b)) if min(len(a), len(b)) else 0
        a, b = (each * count if len(each) == 1 else each for each in (a, b))
        found = [op.builder.compute(function, x, y) for x, y in zip(a, b, strict=True)]
        return as_value(found, is_a_scalar and is_b_scalar)

    return read


def _read_div(op: Op) -> Value:
    divisors, _ = _list(op, 1)
    if any(not isinstance(each, int) or each < 1 for each in divisors):
        raise NotSupportedError("it divides sizes by other numbers than positive constants")
    if any(isinstance(each, Size) and not _is_a_count(each.node) for each in _list(op, 0)[0]):
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


def _read_gather(op: Op) -> Value:
    numbers, _ = _list(op, 0)
    index = op.constant(1)
    if op.axis(op.integer("axis", 0), 1) or index.dim() > 1 or index.is_floating_point():
        raise NotSupportedError("it takes sizes by another list than one of integers")
    where = [int(each) for each in index.reshape(-1).tolist()]
    if any(not -len(numbers) <= each < len(numbers) for each in where):
        raise DamagedError(f"an index is out of range for {len(numbers)} sizes")
    return as_value([numbers[each] for each in where], index.dim() == 0)


def _read_concat(op: Op) -> Value:
    op.axis(op.integer("axis"), 1)
    return as_value([each for i in range(len(op.inputs)) for each in _list(op, i)[0]])


def _read_slice(op: Op) -> Value:
    numbers, _ = _list(op, 0)
    starts, ends = op.fixed_numbers(1), op.fixed_numbers(2)
    steps = op.fixed_numbers(4) if op.has(4) else [1]
    if not len(starts) == len(ends) == len(steps) == 1 or steps[0] < 1:
        raise NotSupportedError("it takes sizes in another order")
    return as_value(numbers[slice(starts[0], ends[0], steps[0])])


def _read_unsqueeze(op: Op) -> Value:
    numbers, is_scalar = _list(op, 0)
    if not is_scalar or op.fixed_numbers(1) not in ([0], [-1]):
        raise NotSupportedError("it makes a matrix of sizes")
    return as_value(numbers)


def _read_squeeze(op: Op) -> Value:
    numbers, _ = _list(op, 0)
    if len(numbers) != 1 or (op.has(1) and op.fixed_numbers(1) not in ([0], [-1])):
        raise DamagedError(f"it removes the axis of {len(numbers)} sizes")
    return as_value(numbers, is_scalar=True)


def _read_reshape(op: Op) -> Value:
    numbers, _ = _list(op, 0)
    op.ignore("allowzero")
    shape = op.fixed_numbers(1)
    if shape == [] and len(numbers) == 1:
        return as_value(numbers, is_scalar=True)
    if shape not in ([-1], [len(numbers)]):
        raise NotSupportedError("it makes a matrix of sizes")
    return as_value(numbers)


def _read_equal(op: Op) -> Value:
    """Compares sizes with negative numbers, which they never equal, or constants."""
    (a, _), (b, _) = _list(op, 0), _list(op, 1)
    if 1 in (len(a), len(b)):
        a, b = (each * max(len(a), len(b)) if len(each) == 1 else each for each in (a, b))
    found = []
    for x, y in zip(a, b, strict=len(a) == len(b)):
        if isinstance(x, int) and isinstance(y, int):
            found.append(x == y)
            continue
        number, size = (x, y) if isinstance(x, int) else (y, x)
        is_below = isinstance(number, int) and number < 0
        if not is_below or not isinstance(size, Size) or not _is_a_count(size.node):
            raise NotSupportedError("it compares open sizes")
        found.append(False)
    return Constant(torch.tensor(found, dtype=torch.bool))


def _read_where(op: Op) -> Value:
    condition = op.constant(0)
    (a, _), (b, _) = _list(op, 1), _list(op, 2)
    if condition.dtype != torch.bool or not condition.numel() == len(a) == len(b):
        raise NotSupportedError("it chooses among lists of several lengths")
    chosen = zip(condition.reshape(-1).tolist(), a, b, strict=True)
    return as_value([x if is_first else y for is_first, x, y in chosen])


SIZES: dict[str, Callable[[Op], Value]] = {
    "Add": _arithmetic(operator.add), "Sub": _arithmetic(operator.sub),
    "Mul": _arithmetic(operator.mul), "Div": _read_div, "Cast": _read_cast,
    "Gather": _read_gather, "Concat": _read_concat, "Slice": _read_slice,
    "Unsqueeze": _read_unsqueeze, "Squeeze": _read_squeeze, "Reshape": _read_reshape,
    "Identity": read_identity, "Equal": _read_equal, "Where": _read_where,
}  # fmt: skip
