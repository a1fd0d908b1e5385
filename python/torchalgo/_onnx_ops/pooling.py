# SPDX-License-Identifier: BSD-3-Clause
"""Reads poolings."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from torchalgo._onnx_ops.op import Op, spatial_rank
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError
from torchalgo._onnx_ops.values import Tensor, Value, dims_of
from torchalgo._onnx_ops.windows import Window, padded, read_window

_MAX = (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)
_AVERAGE = (torch.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
_ADAPTIVE = (
    functional.adaptive_avg_pool1d,
    functional.adaptive_avg_pool2d,
    functional.adaptive_avg_pool3d,
)


def _pool_window(op: Op, src: Tensor) -> tuple[Window, bool]:
    """Returns the window, and whether the number of results is rounded up."""
    n = spatial_rank(src)
    window = read_window(op, src, op.integers_of_length("kernel_shape", n, None, 1))
    is_ceil = op.flag("ceil_mode") and not window.is_auto
    return window, is_ceil


def _has_torch_pads(window: Window) -> bool:
    """Returns True if torch's pooling takes these pads: equal ones, at most half the window."""
    return window.is_symmetric and all(
        2 * pad <= size for pad, size in zip(window.begin, window.sizes, strict=True)
    )


def _refuse_ceil(op: Op, src: Tensor, window: Window, is_ceil: bool) -> None:
    """Refuses pads in front of a pooling that rounds up, unless rounding changes nothing."""
    for i, size in enumerate(op.fixed_dims(src)[2:] if is_ceil else ()):
        extent = (window.sizes[i] - 1) * window.dilations[i] + 1
        if (size + window.begin[i] + window.end[i] - extent) % window.strides[i]:
            raise NotSupportedError("ceil_mode=1 with pads that torch's pooling does not take")


def _mean(op: Op, src: Tensor, window: Window, pads: list[int], *more: bool) -> Tensor:
    if any(dilation != 1 for dilation in window.dilations):
        raise NotSupportedError("a pooling with dilations")
    pool = _AVERAGE[len(window.sizes) - 1]
    return op.call(pool, src, window.sizes, window.strides, pads, *more)


def _padded_mean(op: Op, src: Tensor, window: Window) -> Tensor:
    """Returns the mean of each window, in which pads count as zeros."""
    whole = padded(op, src, window.begin, window.end)
    return _mean(op, whole, window, [0] * len(window.sizes), False, True)


def read_max_pool(op: Op) -> Value:
    op.one_output()
    op.ignore("storage_order")
    src = op.computed(0)
    window, is_ceil = _pool_window(op, src)
    pads = window.begin
    if not _has_torch_pads(window):
        _refuse_ceil(op, src, window, is_ceil)
        src = padded(op, src, window.begin, window.end, float("-inf"))
        pads, is_ceil = [0] * len(pads), False
    pool = _MAX[len(pads) - 1]
    return op.call(pool, src, window.sizes, window.strides, pads, window.dilations, is_ceil)


def read_average_pool(op: Op) -> Value:
    op.one_output()
    src = op.computed(0)
    window, is_ceil = _pool_window(op, src)
    counts_pads = op.flag("count_include_pad")
    ones = [1] * len(window.sizes)
    if window.sizes == window.strides == ones and not any(window.begin + window.end):
        # Exporters write so an adaptive pooling to the size that its input has already.
        sizes = [op.size(src, i + 2) for i in range(len(ones))]
        return op.call(_ADAPTIVE[len(ones) - 1], src, sizes)
    if _has_torch_pads(window):
        return _mean(op, src, window, window.begin, is_ceil, counts_pads)
    _refuse_ceil(op, src, window, is_ceil)
    mean = _padded_mean(op, src, window)
    if counts_pads:
        return mean
    ones_like = op.call(torch.ones_like, src)
    share = _padded_mean(op, ones_like, window)  # of each window's elements that are no pads
    return op.call(torch.div, mean, share)


def _power(op: Op) -> int:
    power = op.integer("p", 2)
    if power < 1 or power > 64:
        raise NotSupportedError(f"p is {power}, expected 1 to 64")
    return power


def read_lp_pool(op: Op) -> Value:
    op.one_output()
    src = op.computed(0)
    window, is_ceil = _pool_window(op, src)
    power = _power(op)
    _refuse_ceil(op, src, window, is_ceil)
    mean = _padded_mean(op, op.call(torch.pow, op.call(torch.abs, src), power), window)
    total = op.call(torch.mul, mean, float(math.prod(window.sizes)))
    return op.call(torch.pow, total, 1.0 / power)


def _spatial(op: Op, src: Tensor) -> list[int]:
    if len(dims_of(src)) < 3:
        raise DamagedError("its input has no dimensions behind the channels")
    return list(range(2, len(dims_of(src))))


def read_global_average_pool(op: Op) -> Value:
    src = op.computed(0)
    dims = _spatial(op, src)
    if len(dims) <= 3:
        return op.call(_ADAPTIVE[len(dims) - 1], src, 1)
    return op.call(torch.mean, src, dims, True)


def read_global_max_pool(op: Op) -> Value:
    src = op.computed(0)
    return op.call(torch.amax, src, _spatial(op, src), True)


def read_global_lp_pool(op: Op) -> Value:
    src = op.computed(0)
    power = _power(op)
    powers = op.call(torch.pow, op.call(torch.abs, src), power)
    total = op.call(torch.sum, powers, _spatial(op, src), True)
    return op.call(torch.pow, total, 1.0 / power)


POOLING = {
    "MaxPool": read_max_pool,
    "AveragePool": read_average_pool,
    "LpPool": read_lp_pool,
    "GlobalAveragePool": read_global_average_pool,
    "GlobalMaxPool": read_global_max_pool,
    "GlobalLpPool": read_global_lp_pool,
}
