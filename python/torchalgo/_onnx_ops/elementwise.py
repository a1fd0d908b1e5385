# SPDX-License-Identifier: BSD-3-Clause
"""Reads operations element by element: activations, arithmetic and comparisons."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from torchalgo._onnx_ops.op import Op
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError
from torchalgo._onnx_ops.values import Constant, Tensor, Value, dims_of, dtype_of, rank_of

Read = Callable[[Op], Value]
# The defaults of Selu, which are those of torch.
_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


def _unary(function: Callable[..., Any], is_any_type: bool = False, **defaults: float) -> Read:
    """Returns what reads a function of a tensor and of these attributes, in this order."""

    def read(op: Op) -> Value:
        src = op.tensor(0) if is_any_type else op.floating(0)
        return op.call(function, src, *(op.real(*each) for each in defaults.items()))

    return read


def _same_types(op: Op, first: int, last: int) -> list[Tensor]:
    values = [op.tensor(i) for i in range(first, last + 1)]
    if len({dtype_of(value) for value in values}) > 1:
        raise DamagedError(f"its inputs have the types {[str(dtype_of(v)) for v in values][:8]}")
    return values


def _plain(value: Tensor) -> Any:
    """Returns a constant of rank 0 as a number, as models write it."""
    if isinstance(value, Constant) and value.tensor.dim() == 0 and value.tensor.is_floating_point():
        return value.tensor.item()
    return value


def _binary(function: Callable[..., Any]) -> Read:
    def read(op: Op) -> Value:
        a, b = _same_types(op, 0, 1)
        if dtype_of(a) == torch.bool:
            raise NotSupportedError("its inputs are bool")
        if not isinstance(a, Constant):
            return op.call(function, a, _plain(b))
        if not isinstance(b, Constant) and function in (torch.add, torch.mul):
            return op.call(function, b, _plain(a))
        return op.call(function, a, b)

    return read


def read_div(op: Op) -> Value:
    a, b = _same_types(op, 0, 1)
    if dtype_of(a).is_floating_point:
        return op.call(torch.div, a, b if isinstance(a, Constant) else _plain(b))
    if isinstance(b, Constant) and not bool((b.tensor != 0).all()):
        raise DamagedError("it divides integers by 0")
    if not isinstance(b, Constant):
        raise NotSupportedError("it divides integers by values that each call computes")
    if bool((b.tensor == -1).any()):  # PyTorch divides the least integer by -1, which is a signal
        raise NotSupportedError("it divides integers by -1")
    return op.call(torch.div, a, b, rounding_mode="trunc")


def read_pow(op: Op) -> Value:
    base, power = op.floating(0), op.tensor(1)
    if isinstance(power, Constant) and power.tensor.dim() == 0:
        return op.call(torch.pow, base, power.tensor.item())
    return op.call(torch.pow, base, op.call(torch.Tensor.to, power, dtype_of(base)))


def _many(function: Callable[..., Any]) -> Read:
    def read(op: Op) -> Value:
        values = _same_types(op, 0, max(0, len(op.inputs) - 1))
        return functools.reduce(lambda a, b: op.call(function, a, b), values)

    return read


def read_mean(op: Op) -> Value:
    total = _many(torch.add)(op)
    return op.call(torch.div, total, float(len(op.inputs)))


def read_where(op: Op) -> Value:
    if dtype_of(op.tensor(0)) != torch.bool:
        raise DamagedError("its condition is not bool")
    return op.call(torch.where, op.tensor(0), *_same_types(op, 1, 2))


def _of_alike(function: Callable[..., Any], count: int = 2, is_bool: bool = False) -> Read:
    """Returns what reads a function of so many tensors of one type."""

    def read(op: Op) -> Value:
        values = _same_types(op, 0, count - 1)
        if is_bool and dtype_of(values[0]) != torch.bool:
            raise DamagedError("its inputs are not bool")
        return op.call(function, *values)

    return read


# ---- activations ---------------------------------------------------------------------------------


def read_prelu(op: Op) -> Value:
    src, slope = _same_types(op, 0, 1)
    if not dtype_of(src).is_floating_point:
        raise NotSupportedError("its input is not floating point")
    dims, whole = dims_of(slope), dims_of(src)
    count = 1
    for size in dims:
        count *= size or 0
    is_by_channel = rank_of(src) >= 2 and len(dims) == rank_of(src) - 1 and dims[0] == whole[1]
    if count == 1 or (is_by_channel and count == whole[1]):
        return op.call(functional.prelu, src, op.call(torch.reshape, slope, [count]))
    if len(dims) > rank_of(src):
        raise DamagedError("its slopes have more dimensions than its input")
    return op.call(torch.where, op.call(torch.ge, src, 0), src, op.call(torch.mul, src, slope))


def read_selu(op: Op) -> Value:
    src, alpha, gamma = op.floating(0), op.real("alpha", _SELU[0]), op.real("gamma", _SELU[1])
    if max(abs(alpha - _SELU[0]), abs(gamma - _SELU[1])) < 1e-6:
        return op.call(functional.selu, src)
    return op.call(torch.mul, op.call(functional.elu, src, alpha), gamma)


def read_gelu(op: Op) -> Value:
    approximate = op.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise DamagedError(f"approximate is {approximate[:40]!r}, expected none or tanh")
    return op.call(functional.gelu, op.floating(0), approximate=approximate)


def read_hard_sigmoid(op: Op) -> Value:
    src, alpha, beta = op.floating(0), op.real("alpha", 0.2), op.real("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-7 and beta == 0.5:
        return op.call(functional.hardsigmoid, src)
    line = op.call(torch.add, op.call(torch.mul, src, alpha), beta)
    return op.call(torch.clamp, line, 0.0, 1.0)


def read_thresholded_relu(op: Op) -> Value:
    src, alpha = op.floating(0), op.real("alpha", 1.0)
    zeros = op.call(torch.zeros_like, src)
    return op.call(torch.where, op.call(torch.gt, src, alpha), src, zeros)


def read_swish(op: Op) -> Value:
    src, alpha = op.floating(0), op.real("alpha", 1.0)
    if alpha == 1.0:
        return op.call(functional.silu, src)
    gate = op.call(torch.sigmoid, op.call(torch.mul, src, alpha))
    return op.call(torch.mul, src, gate)


def read_clip(op: Op) -> Value:
    src = op.tensor(0)
    low = op.number(1) if op.has(1) else None
    high = op.number(2) if op.has(2) else None
    if low is None and high is None:
        return src
    if low != low or high != high:
        raise NotSupportedError("a bound is NaN")
    is_float = dtype_of(src).is_floating_point
    if is_float and low is not None and high is not None and low <= high:
        return op.call(functional.hardtanh, src, float(low), float(high))
    return op.call(torch.clamp, src, low, high)


def _softmax(function: Callable[..., Any]) -> Read:
    def read(op: Op) -> Value:
        src = op.floating(0)
        return op.call(function, src, op.axis(op.integer("axis", -1), rank_of(src)))

    return read


ELEMENTWISE: dict[str, Read] = {
    "Relu": _unary(functional.relu, True), "Sigmoid": _unary(torch.sigmoid),
    "Tanh": _unary(torch.tanh), "Mish": _unary(functional.mish),
    "Softplus": _unary(functional.softplus), "Softsign": _unary(functional.softsign),
    "HardSwish": _unary(functional.hardswish), "PRelu": read_prelu,
    "LeakyRelu": _unary(functional.leaky_relu, alpha=0.01),
    "Elu": _unary(functional.elu, alpha=1.0), "Celu": _unary(functional.celu, alpha=1.0),
    "Selu": read_selu, "Gelu": read_gelu,
    "HardSigmoid": read_hard_sigmoid, "ThresholdedRelu": read_thresholded_relu,
    "Swish": read_swish, "Clip": read_clip, "Softmax": _softmax(torch.softmax),
    "LogSoftmax": _softmax(torch.log_softmax),
    "Sqrt": _unary(torch.sqrt), "Exp": _unary(torch.exp), "Log": _unary(torch.log),
    "Neg": _unary(torch.neg, True), "Abs": _unary(torch.abs, True), "Erf": _unary(torch.erf),
    "Reciprocal": _unary(torch.reciprocal), "Floor": _unary(torch.floor),
    "Ceil": _unary(torch.ceil), "Round": _unary(torch.round), "Sin": _unary(torch.sin),
    "Cos": _unary(torch.cos), "Sign": _unary(torch.sign, True),
    "Add": _binary(torch.add), "Sub": _binary(torch.sub), "Mul": _binary(torch.mul),
    "Div": read_div, "Pow": read_pow, "Min": _many(torch.minimum), "Max": _many(torch.maximum),
    "Sum": _many(torch.add), "Mean": read_mean, "Where": read_where,
    "Equal": _of_alike(torch.eq), "Less": _of_alike(torch.lt), "Greater": _of_alike(torch.gt),
    "LessOrEqual": _of_alike(torch.le), "GreaterOrEqual": _of_alike(torch.ge),
    "And": _of_alike(torch.logical_and, is_bool=True),
    "Or": _of_alike(torch.logical_or, is_bool=True),
    "Xor": _of_alike(torch.logical_xor, is_bool=True),
    "Not": _of_alike(torch.logical_not, 1, is_bool=True),
}  # fmt: skip
