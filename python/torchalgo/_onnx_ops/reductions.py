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

Function = Callable[..., Any]
Reduce = Callable[[Op, Tensor, list[int], bool], Value]


def _reduction(
    reduce: Reduce, since: int, is_any_type: bool = False, keeps_one: bool = False
) -> Callable[[Op], Value]:
    """Returns the function that reads a reduction.

    Args:
        since: the opset since which its axes are an input.
        keeps_one: True if the result of a single element is that element.
    """

    def read(op: Op) -> Value:
        src = op.tensor(0) if is_any_type else op.floating(0)
        keeps = op.flag("keepdims", 1)
        given = op.optional_axes(since)
        is_noop = op.opset >= since and op.flag("noop_with_empty_axes")
        if not given and is_noop:
            if rank_of(src) == 0 or keeps_one:
                return src
            raise NotSupportedError("noop_with_empty_axes=1 without axes")
        axes = op.axes(given or range(rank_of(src)), rank_of(src))
        if axes:
            return reduce(op, src, axes, keeps)
        one = op.call(torch.reshape, src, [1])
        return op.call(torch.reshape, reduce(op, one, [0], keeps), [])

    return read


def _sum_of(function: Function | None = None, of_sum: Function | None = None) -> Reduce:
    """Returns what sums a function of each element, and takes a function of the sum."""

    def reduce(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
        terms = src if function is None else op.call(function, src)
        total = op.call(torch.sum, terms, axes, keeps, dtype=dtype_of(src))
        return total if of_sum is None else op.call(of_sum, total)

    return reduce


def _mean(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    # Exporters write global average poolings as means.
    is_pooling = isinstance(src, Live) and keeps and rank_of(src) == 4 and sorted(axes) == [2, 3]
    if is_pooling:
        return op.call(functional.adaptive_avg_pool2d, src, 1)
    return op.call(torch.mean, src, axes, keeps)


def _refuse_empty(src: Tensor, axes: list[int]) -> None:
    if any(dims_of(src)[axis] == 0 for axis in axes):
        raise NotSupportedError("it reduces a tensor without elements")


def _extreme(function: Function) -> Reduce:
    def reduce(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
        _refuse_empty(src, axes)
        return op.call(function, src, axes, keeps)

    return reduce


def _product(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    for axis in sorted(axes, reverse=True):
        src = op.call(torch.prod, src, axis, keeps, dtype=dtype_of(src))
    return src


def _log_sum_exp(op: Op, src: Tensor, axes: list[int], keeps: bool) -> Value:
    return op.call(torch.logsumexp, src, axes, keeps)


def _arg(function: Function) -> Callable[[Op], Value]:
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
    "ReduceSum": _reduction(_sum_of(), 13, True, True),
    "ReduceMean": _reduction(_mean, 18, keeps_one=True),
    "ReduceMax": _reduction(_extreme(torch.amax), 18, True, True),
    "ReduceMin": _reduction(_extreme(torch.amin), 18, True, True),
    "ReduceProd": _reduction(_product, 18, True, True),
    "ReduceL1": _reduction(_sum_of(torch.abs), 18),
    "ReduceL2": _reduction(_sum_of(torch.square, torch.sqrt), 18),
    "ReduceSumSquare": _reduction(_sum_of(torch.square), 18),
    "ReduceLogSum": _reduction(_sum_of(of_sum=torch.log), 18),
    "ReduceLogSumExp": _reduction(_log_sum_exp, 18),
    "CumSum": read_cumulative_sum,
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
}
