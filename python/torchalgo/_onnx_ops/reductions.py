# SPDX-License-Identifier: BSD-3-Clause
"""Reads reductions: sums, means and extremes over some of the dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from torchalgo._onnx_ops.op import Op
from torchalgo._onnx_ops.refusal import NotSupportedError
from torchalgo._onnx_ops.values import Live, Tensor, Value, dims_of, dtype_of, rank_of

Reduce = Callable[[Op, Tensor, list[int], bool], Value]


def _reduction(reduce: Reduce, since: int, is_any_type: bool = False) -> Callable[[Op], Value]:
    """Returns the function that reads a reduction, whose axes are an input since this opset."""

    def read(op: Op) -> Value:
        src = op.tensor(0) if is_any_type else op.floating(0)
        keeps = op.flag("keepdims", 1)
        given = op.optional_axes(since)
        is_noop = op.opset >= since and op.flag("noop_with_empty_axes")
        if not given and is_noop:
            if rank_of(src) == 0 or reduce in (_sum, _mean, _largest, _least, _product):
                return src
            raise NotSupportedError("noop_with_empty_axes=1 without axes")
        axes = op.axes(given or range(rank_of(src)), rank_of(src))
        return reduce(op, src, axes, keeps) if axes else _of_scalar(op, reduce, src, keeps)

    return read


def _of_scalar(op: Op, reduce: Reduce, src: Tensor, keeps: bool) -> Value:
    one = op.call(torch.reshape, src, [1])
    return op.call(torch.reshape, reduce(op, one, [0], keeps), [])


def _sum(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    return op.call(torch.sum, src, axes, keeps, dtype=dtype_of(src))


def _mean(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    # Exporters write global average poolings as means.
    is_pooling = isinstance(src, Live) and keeps and rank_of(src) == 4 and sorted(axes) == [2, 3]
    if is_pooling:
        return op.call(functional.adaptive_avg_pool2d, src, 1)
    return op.call(torch.mean, src, axes, keeps)


def _refuse_empty(src: Tensor, axes: list[int]) -> None:
    if any(dims_of(src)[axis] == 0 for axis in axes):
        raise NotSupportedError("it reduces a tensor without elements")


def _largest(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    _refuse_empty(src, axes)
    return op.call(torch.amax, src, axes, keeps)


def _least(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    _refuse_empty(src, axes)
    return op.call(torch.amin, src, axes, keeps)


def _product(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    for axis in sorted(axes, reverse=True):
        src = op.call(torch.prod, src, axis, keeps, dtype=dtype_of(src))
    return src


def _l1(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    return _sum(op, op.call(torch.abs, src), axes, keeps)


def _squares(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    return _sum(op, op.call(torch.square, src), axes, keeps)


def _l2(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    return op.call(torch.sqrt, _squares(op, src, axes, keeps))


def _log_sum(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    return op.call(torch.log, _sum(op, src, axes, keeps))


def _log_sum_exp(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    return op.call(torch.logsumexp, src, axes, keeps)


def _arg(function: Callable[..., Any]) -> Callable[[Op], Value]:
    def read(op: Op) -> Value:
        src = op.floating(0)
        if op.flag("select_last_index"):
            raise NotSupportedError("select_last_index=1")
        axis = op.axis(op.integer("axis", 0), rank_of(src))
        _refuse_empty(src, [axis] if rank_of(src) else [])
        return op.call(function, src, axis, op.flag("keepdims", 1))

    return read


def read_cumulative_sum(op: Op) -> Value:
    src, axis = op.floating(0), op.number(1)
    if op.flag("exclusive") or op.flag("reverse"):
        raise NotSupportedError("exclusive=1 or reverse=1")
    return op.call(torch.cumsum, src, op.axis(int(axis), rank_of(src)))


REDUCTIONS: dict[str, Callable[[Op], Value]] = {
    "ReduceSum": _reduction(_sum, 13, True),
    "ReduceMean": _reduction(_mean, 18),
    "ReduceMax": _reduction(_largest, 18, True),
    "ReduceMin": _reduction(_least, 18, True),
    "ReduceProd": _reduction(_product, 18, True),
    "ReduceL1": _reduction(_l1, 18),
    "ReduceL2": _reduction(_l2, 18),
    "ReduceSumSquare": _reduction(_squares, 18),
    "ReduceLogSum": _reduction(_log_sum, 18),
    "ReduceLogSumExp": _reduction(_log_sum_exp, 18),
    "CumSum": read_cumulative_sum,
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
}
