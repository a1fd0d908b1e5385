# SPDX-License-Identifier: BSD-3-Clause
"""Shapes of convolutions, pools and pointwise ops with symbolic sizes, without torch's formulas.

torch's own shape functions write each size as a formula of the input's sizes. These formulas grow
with every layer. Here each size of a windowed result is a symbol of its own, and its formula is
stored beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._sympy.functions import FloorDiv

from torchalgo import _C

_aten: Any = torch.ops.aten

# Ops of one tensor whose result has the same sizes and dtype.
_POINTWISE = (*_C.activation_names(), "hardtanh", "softplus")
_SAME = {
    getattr(_aten, name + suffix).default
    for name in _POINTWISE
    for suffix in ("", "_")
    if hasattr(_aten, name + suffix) and hasattr(getattr(_aten, name + suffix), "default")
}


def same_shape(func: Any, args: tuple[Any, ...]) -> Any:
    """Returns the result of a pointwise op; None for other ops."""
    if func not in _SAME or not args[0].is_floating_point():
        return None
    return args[0] if func._schema.is_mutable else _aten.detach.default(args[0])


def _batch_norm(recorder: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    empty = torch.empty(0, dtype=x.dtype, device=x.device)
    return _aten.detach.default(x), empty, empty


def _extent(size: Any) -> tuple[Any, int]:
    """Returns a size as a formula, and its value in this run."""
    return (size, size) if isinstance(size, int) else (size.node.expr, int(size.node.hint))


def _window(recorder: Any, size: Any, kernel: int, stride: int, pad: int, dilation: int) -> Any:
    """Returns the number of windows along one dimension; None if the window does not fit."""
    formula, hint = _extent(size)
    rest = 2 * pad - dilation * (kernel - 1) - 1
    if hint + rest < 0:
        return None
    count = (hint + rest) // stride + 1
    if isinstance(size, int):
        return count
    if stride == 1 and rest == 0:
        return size
    whole = formula + rest if stride == 1 else FloorDiv(formula + rest, stride)
    return recorder.atom(whole + 1, count)


def _spread(values: Sequence[int], rank: int) -> list[int]:
    values = [int(v) for v in values]
    return values * rank if len(values) == 1 else values


def _convolution(
    recorder: Any, x: Any, weight: Any, bias: Any, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Any,
    groups: int,
) -> Any:  # fmt: skip
    rank = weight.dim() - 2
    is_known = isinstance(x.shape[1], int) and x.dim() == rank + 2
    if transposed or not is_known or x.shape[1] != weight.shape[1] * groups:
        return None
    sizes = [
        _window(recorder, *each)
        for each in zip(
            x.shape[2:], weight.shape[2:], _spread(stride, rank), _spread(padding, rank),
            _spread(dilation, rank),
            strict=True,
        )
    ]  # fmt: skip
    if None in sizes:
        return None
    return torch.empty([x.shape[0], weight.shape[0], *sizes], dtype=x.dtype, device=x.device)


def _pooled(
    recorder: Any, x: Any, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool,
) -> Any:  # fmt: skip
    if ceil_mode:
        return None  # torch's own formula distinguishes cases
    sizes = [
        _window(recorder, *each)
        for each in zip(
            x.shape[-2:], _spread(kernel, 2), _spread(stride or kernel, 2), _spread(padding, 2),
            _spread(dilation, 2),
            strict=True,
        )
    ]  # fmt: skip
    if None in sizes:
        return None
    return torch.empty([*x.shape[:-2], *sizes], dtype=x.dtype, device=x.device)


def _max_pool(
    recorder: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,),
    dilation: Any = (1,), ceil_mode: bool = False,
) -> Any:  # fmt: skip
    values = _pooled(recorder, x, kernel, stride, padding, dilation, ceil_mode)
    return None if values is None else (values, values.to(torch.int64))


def _average_pool(
    recorder: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,),
    ceil_mode: bool = False, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    return _pooled(recorder, x, kernel, stride, padding, (1,), ceil_mode)


# Each function returns None if torch's own shape function has to answer.
WINDOWED: dict[Any, Callable[..., Any]] = {
    _aten.convolution.default: _convolution,
    _aten.max_pool2d_with_indices.default: _max_pool,
    _aten.avg_pool2d.default: _average_pool,
    _aten._native_batch_norm_legit_no_training.default: _batch_norm,
}
