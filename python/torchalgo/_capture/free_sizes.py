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


def find_dims(model: nn.Module, inputs: Sequence[Any]) -> list[list[PlanDim]] | None:
    """Returns the range of each dimension in which a capture of `model` at `inputs` is right.

    Args:
        model: runs Python code, in eval mode. It is unchanged afterwards.
        inputs: the model's arguments. Nothing is proven if one is not a dense tensor.
    Returns: the ranges by tensor and dimension, or None if nothing is proven. A result also proves
        that no Python code reads the value of a tensor, since fake tensors have no values.
    """
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    is_simple = len(tensors) == len(inputs) and not any(t.is_sparse for t in tensors)
    attempts: list[Callable[[int, int], bool]] = [lambda i, dim: False, lambda i, dim: dim > 0]
    if is_simple:
        for is_static in attempts:
            try:
                return _proven(model, tensors, is_static)
            except NotProvenError:
                continue
    return None


def pinned(size: int) -> PlanDim:
    return PlanDim("", size, size)


def _proven(
    model: nn.Module, tensors: Sequence[torch.Tensor], is_static: Callable[[int, int], bool]
) -> list[list[PlanDim]]:
    recorder, given = run_with_symbols(model, tensors, is_static)
    ranges = proven_ranges(recorder, given)
    # These dimensions ran as 2 and are pinned to 1. The run took another path, so it is repeated.
    changed = {
        (i, dim)
        for i, tensor in enumerate(given)
        for dim, symbol in enumerate(tensor.symbols)
        if symbol is not None and tensor.planned[dim] == 1 and is_pinned(symbol, ranges)
    }
    if changed:
        recorder, given = run_with_symbols(
            model, tensors, lambda i, dim: is_static(i, dim) or (i, dim) in changed
        )
        ranges = proven_ranges(recorder, given)
    return [_dims_of(tensor, recorder, ranges, given) for tensor in given]


def _dims_of(
    tensor: SymbolicInput, recorder: SizeRecorder, ranges: Ranges, given: Sequence[SymbolicInput]
) -> list[PlanDim]:
    names = {
        recorder.replace(symbol): f"{i}.{dim}"
        for i, other in reversed(list(enumerate(given)))
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


def only_batch(dims: Sequence[Sequence[PlanDim]], planned: Sizes) -> list[list[PlanDim]]:
    """Pins all dimensions except the first one of each tensor."""
    return [
        [dim if i == 0 else pinned(size) for i, (dim, size) in enumerate(zip(*both, strict=True))]
        for both in zip(dims, planned, strict=True)
    ]


def free_dims(sizes: Sequence[Sequence[int]]) -> list[list[PlanDim]]:
    """Returns dims that are all free, for a model without Python code.

    TorchScript reads the sizes of each call itself.
    """
    return [
        [PlanDim(f"{i}.{dim}", 0, None) for dim in range(len(tensor))]
        for i, tensor in enumerate(sizes)
    ]
