# SPDX-License-Identifier: BSD-3-Clause
"""Reads convolutions, matrix products and linear layers."""

from __future__ import annotations

import torch
from torch.nn import functional

from torchalgo._onnx_ops.op import Op, spatial_rank
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError
from torchalgo._onnx_ops.values import Constant, Live, Tensor, Value, dims_of, dtype_of, rank_of
from torchalgo._onnx_ops.windows import padded, read_pads, read_window

_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
_TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)


def _filter(op: Op, src: Tensor) -> list[int]:
    n = spatial_rank(src)
    sizes = op.fixed_dims(op.floating(1))
    if len(sizes) != n + 2:
        raise DamagedError(f"its weights have rank {len(sizes)}, expected {n + 2}")
    if op.has_attribute("kernel_shape") and op.integers("kernel_shape", None, 1) != sizes[2:]:
        raise DamagedError(f"kernel_shape differs from the sizes {sizes} of the weights")
    return sizes[2:]


def _groups(op: Op) -> int:
    groups = op.integer("group", 1)
    if groups < 1:
        raise DamagedError(f"group is {groups}, expected 1 or more")
    return groups


def read_conv(op: Op) -> Value:
    src = op.computed(0)
    window = read_window(op, src, _filter(op, src))
    pads = window.begin
    if not window.is_symmetric:
        src, pads = padded(op, src, window.begin, window.end), [0] * len(window.begin)
    groups = _groups(op)
    bias = op.tensor(2) if op.has(2) else None
    conv = _CONVOLUTIONS[len(pads) - 1]
    return op.call(conv, src, op.tensor(1), bias, window.strides, pads, window.dilations, groups)


def read_conv_transpose(op: Op) -> Value:
    src = op.computed(0)
    sizes = _filter(op, src)
    n = len(sizes)
    more = op.integers_of_length("output_padding", n, [0] * n, 0)
    strides = op.integers_of_length("strides", n, [1] * n, 1)
    dilations = op.integers_of_length("dilations", n, [1] * n, 1)
    full = [(size - 1) * d + 1 + m for size, d, m in zip(sizes, dilations, more, strict=True)]
    begin, end = _transposed_pads(op, src, strides, full)
    groups = _groups(op)
    bias = op.tensor(2) if op.has(2) else None
    conv = _TRANSPOSED[n - 1]
    if begin == end:
        return op.call(conv, src, op.tensor(1), bias, strides, begin, more, groups, dilations)
    cut = [last - m for last, m in zip(end, more, strict=True)]
    if any(each < 0 for each in cut):
        raise NotSupportedError("its pads at the end are smaller than those at the begin")
    whole = op.call(conv, src, op.tensor(1), bias, strides, [0] * n, [0] * n, groups, dilations)
    return padded(op, whole, [-each for each in begin], [-each for each in cut])


def _transposed_pads(
    op: Op, src: Tensor, strides: list[int], full: list[int]
) -> tuple[list[int], list[int]]:
    """Returns the pads at the begin and the end; `full` is the extent of one filter."""
    n = len(strides)
    auto, pads = read_pads(op, n)
    is_same = auto.startswith("SAME")
    if not op.has_attribute("output_shape") and not is_same:
        return pads[:n], pads[n:]
    if auto != "NOTSET" and any(pads):
        raise DamagedError(f"it has pads beside auto_pad={auto}")
    if op.has_attribute("output_shape"):
        src_sizes = op.fixed_dims(src)[2:]
        wanted = op.integers_of_length("output_shape", n, None, 1)
        totals = [
            stride * (size - 1) + extent - out
            for stride, size, extent, out in zip(strides, src_sizes, full, wanted, strict=True)
        ]
    else:
        totals = [extent - stride for extent, stride in zip(full, strides, strict=True)]
    if any(total < 0 for total in totals):
        raise NotSupportedError("its result is larger than the filters reach")
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (small, large) if auto == "SAME_UPPER" else (large, small)


def _transposed(op: Op, value: Tensor) -> Tensor:
    """Returns a matrix with rows and columns swapped; for constants in the usual order."""
    found = op.call(torch.t, value)
    if not isinstance(found, Constant):
        return found
    return op.call(torch.clone, found, memory_format=torch.contiguous_format)


def read_gemm(op: Op) -> Value:
    a, b = op.tensor(0), op.tensor(1)
    alpha, beta = op.real("alpha", 1.0), op.real("beta", 1.0)
    is_a_transposed, is_b_transposed = op.flag("transA"), op.flag("transB")
    if rank_of(a) != 2 or rank_of(b) != 2:
        raise DamagedError("its first two inputs are not matrices")
    if dtype_of(a) != dtype_of(b) or not dtype_of(a).is_floating_point:
        raise NotSupportedError("its inputs are not of one floating point type")
    if is_a_transposed:
        a = _transposed(op, a)
    c = op.tensor(2) if op.has(2) and beta != 0 else None
    if c is not None and dtype_of(c) != dtype_of(a):
        raise DamagedError("its inputs differ in their type")
    is_linear = alpha == 1.0 and beta == 1.0 and (is_b_transposed or isinstance(b, Constant))
    if is_linear and (c is None or dims_of(c) == [dims_of(b)[0 if is_b_transposed else 1]]):
        weights = b if is_b_transposed else _transposed(op, b)
        return op.call(functional.linear, a, weights, c)
    result = op.call(torch.matmul, a, _transposed(op, b) if is_b_transposed else b)
    if alpha != 1.0:
        result = op.call(torch.mul, result, alpha)
    if c is None:
        return result
    if beta != 1.0:
        c = op.call(torch.mul, c, beta)
    total: Tensor = op.call(torch.add, result, c)
    if dims_of(total) != dims_of(result):
        raise DamagedError("its third input is larger than the result")
    return total


def read_matmul(op: Op) -> Value:
    a, b = op.tensor(0), op.tensor(1)
    if dtype_of(a) != dtype_of(b):
        raise DamagedError("its inputs differ in their type")
    is_layer = isinstance(a, Live) and isinstance(b, Constant) and rank_of(b) == 2
    if is_layer and rank_of(a) >= 2:
        return op.call(functional.linear, a, _transposed(op, b), None)
    return op.call(torch.matmul, a, b)


CONVOLUTIONS = {
    "Conv": read_conv,
    "ConvTranspose": read_conv_transpose,
    "Gemm": read_gemm,
    "MatMul": read_matmul,
}
