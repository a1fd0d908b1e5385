# SPDX-License-Identifier: BSD-3-Clause
"""Proves for which input sizes a capture computes the same as the model: docs/decisions/0015.

A capture records one run. It is right for other sizes if the model's Python code takes the same
path there. symbolic_run.py runs the model once with symbolic sizes. It records each comparison of a
size, and each number that Python code makes from a size. A dimension is free in the range in which
size_ranges.py proves that all of them stay the same. Every other dimension is pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._sympy.numbers import int_oo

from torchalgo._capture.seen import Dims, Seen
from torchalgo._capture.size_ranges import Ranges, is_pinned, proven_ranges
from torchalgo._capture.symbolic_run import (
    NotProvenError,
    SizeRecorder,
    SymbolicInput,
    run_with_symbols,
)
from torchalgo._ir.plan import PlanDim

MOST_PROBE = 256  # largest size at which a capture is tested

Sizes = tuple[tuple[int, ...], ...]


def look_at(
    model: nn.Module,
    inputs: Sequence[Any],
    arguments: Callable[[Sequence[torch.Tensor]], tuple[Any, Any]] = lambda given: (given, {}),
) -> Seen:
    """Runs a copy of `model` on fake tensors, and returns what this shows.

    Args:
        model: runs Python code, in eval mode. It is unchanged afterwards.
        inputs: the tensors of the model's arguments. Nothing is seen if one is not dense.
        arguments: returns the positional arguments and those by name that hold such tensors.
    """
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if len(tensors) != len(inputs):
        return Seen(why="an input is not a dense tensor")
    attempts: list[Callable[[int, int], bool]] = [
        lambda i, dim: False, lambda i, dim: dim > 0, lambda i, dim: True
    ]  # fmt: skip
    for is_static in attempts:
        try:
            recorder, dims = _proven(model, tensors, is_static, arguments)
            strides = recorder.run.reads_strides
            return Seen(dims, writes=recorder.changes, reads_strides=strides, why="")
        except NotProvenError as problem:
            last = problem
    reads, writes = ("", "") if last.run is None else (last.run.reads, last.run.writes)
    return Seen(reads=reads, writes=writes, why=str(last))


def pinned(size: int) -> PlanDim:
    return PlanDim("", size, size)


def _proven(
    model: nn.Module,
    tensors: Sequence[torch.Tensor],
    is_static: Callable[[int, int], bool],
    arguments: Callable[[Sequence[torch.Tensor]], tuple[Any, Any]],
) -> tuple[SizeRecorder, Dims]:
    recorder = run_with_symbols(model, tensors, is_static, arguments)
    ranges = proven_ranges(recorder)
    # These dimensions ran as 2 and are pinned to 1. The run took another path, so it is repeated.
    changed = {
        (i, dim)
        for i, tensor in enumerate(recorder.inputs)
        for dim, symbol in enumerate(tensor.symbols)
        if symbol is not None and tensor.planned[dim] == 1 and is_pinned(symbol, ranges)
    }
    if changed:
        recorder = run_with_symbols(
            model, tensors, lambda i, dim: is_static(i, dim) or (i, dim) in changed, arguments
        )
        ranges = proven_ranges(recorder)
    return recorder, [_dims_of(tensor, recorder, ranges) for tensor in recorder.inputs]


def _dims_of(tensor: SymbolicInput, recorder: SizeRecorder, ranges: Ranges) -> list[PlanDim]:
    names = {
        recorder.replace(symbol): f"{i}.{dim}"
        for i, other in reversed(list(enumerate(recorder.inputs)))
        for dim, symbol in reversed(list(enumerate(other.symbols)))
        if symbol is not None
    }
    dims = []
    for size, symbol in zip(tensor.planned, tensor.symbols, strict=True):
        root = None if symbol is None else recorder.replace(symbol)
        if root is None or root not in ranges or ranges[root].is_singleton():
            dims.append(pinned(size))
            continue
        most = ranges[root].upper
        dims.append(
            PlanDim(names[root], int(ranges[root].lower), None if most == int_oo else int(most))
        )
    return dims


def probe_sizes(dims: Sequence[Sequence[PlanDim]], planned: Sizes) -> Sizes | None:
    """Returns sizes for a test, in which each free dimension has another size.

    Returns None if all dimensions are pinned.
    """
    chosen: dict[str, int] = {}
    result = []
    for tensor, sizes in zip(dims, planned, strict=True):
        sizes_now = []
        for dim, size in zip(tensor, sizes, strict=True):
            if dim.name and dim.name not in chosen:
                smaller = max(dim.least, min(size // 2 + 1, MOST_PROBE))
                larger = size + 1 if dim.most is None else min(size + 1, dim.most)
                chosen[dim.name] = smaller if smaller < size else larger
            sizes_now.append(chosen[dim.name] if dim.name else size)
        result.append(tuple(sizes_now))
    return None if tuple(result) == tuple(map(tuple, planned)) else tuple(result)


def only_batch(dims: Sequence[Sequence[PlanDim]], planned: Sizes) -> Dims:
    """Pins all dimensions except the first one of each tensor."""
    return [
        [dim if i == 0 else pinned(size) for i, (dim, size) in enumerate(zip(*both, strict=True))]
        for both in zip(dims, planned, strict=True)
    ]


def free_dims(sizes: Sequence[Sequence[int]]) -> Dims:
    """Returns dims that are all free, for a model without Python code.

    TorchScript reads the sizes of each call itself.
    """
    return [
        [PlanDim(f"{i}.{dim}", 0, None) for dim in range(len(tensor))]
        for i, tensor in enumerate(sizes)
    ]
