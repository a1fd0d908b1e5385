# SPDX-License-Identifier: BSD-3-Clause
"""torch.nn.functional's convolutions with a choice of algorithms.

Each function has torch's own arguments and `forward`, `backward_data` and `backward_filter`. They
choose the primitives that compute the result, the gradient of `input` and the gradient of `weight`.
docs/choosing.md lists what can be written as a choice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import functional

from torchalgo._C import Error
from torchalgo._ir.choices import Choice, Direction, choice_text

Sizes = int | Sequence[int]
F = TypeVar("F", bound=Callable[..., Tensor])


def directions_of(transposed: bool) -> tuple[Direction, Direction, Direction]:
    """Returns the directions of a convolution's forward, backward_data and backward_filter.

    A transposed convolution computes the gradient of another convolution's input, and its own
    gradient is the result of that convolution.
    """
    if transposed:
        return "bwd_data", "fwd", "bwd_filter"
    return "fwd", "bwd_data", "bwd_filter"


def _like(function: F) -> Callable[[Callable[..., Tensor]], F]:
    """Returns a decorator: its function has the arguments and the text of `function`."""

    def named(own: Callable[..., Tensor]) -> F:
        functools.update_wrapper(own, function, ("__module__",), ())
        own.__doc__ = (function.__doc__ or "").replace(function.__name__, own.__name__)
        return cast(F, own)

    return named


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    forward: Choice = None,
    backward_data: Choice = None,
    backward_filter: Choice = None,
) -> Tensor:
    """Computes torch.nn.functional.conv2d with the chosen algorithms.

    The arguments before `forward` are those of torch.nn.functional.conv2d.

    Args:
        forward: choice of the primitive for the result. None makes no choice here. docs/choosing.md
            lists the possible values.
        backward_data: the same for the gradient of `input`.
        backward_filter: the same for the gradient of `weight`.
    Returns: the result of the convolution. A primitive that cannot run is replaced by a fallback;
        after torchalgo.set_strict(True) this is an error.
    Raises: torchalgo.Error if a choice is unknown or for another direction, or if padding is "same"
        with a stride other than 1.

    Example: torchalgo.conv2d(x, weight, padding=1, forward="aten.conv")
    """
    return _conv(
        2, input, weight, bias, stride, padding, dilation, groups,
        forward=forward, backward_data=backward_data, backward_filter=backward_filter,
    )  # fmt: skip


@_like(conv2d)
def conv1d(*args: Any, **kwargs: Any) -> Tensor:
    return _conv(1, *args, **kwargs)


@_like(conv2d)
def conv3d(*args: Any, **kwargs: Any) -> Tensor:
    return _conv(3, *args, **kwargs)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    forward: Choice = None,
    backward_data: Choice = None,
    backward_filter: Choice = None,
) -> Tensor:
    """Computes torch.nn.functional.conv_transpose2d with the chosen algorithms.

    The arguments before `forward` are those of torch.nn.functional.conv_transpose2d.

    The forward of a transposed convolution is a bwd_data problem, and its backward_data a fwd
    problem. Use the names and numbers of the problem.

    Args:
        forward: choice of the primitive for the result. None makes no choice here. docs/choosing.md
            lists the possible values.
        backward_data: the same for the gradient of `input`.
        backward_filter: the same for the gradient of `weight`.
    Returns: the result of the convolution. A primitive that cannot run is replaced by a fallback;
        after torchalgo.set_strict(True) this is an error.
    Raises: torchalgo.Error if a choice is unknown or for another direction.

    Example: torchalgo.conv_transpose2d(x, weight, padding=1, forward="aten.conv")
    """
    return _transposed(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation,
        forward=forward, backward_data=backward_data, backward_filter=backward_filter,
    )  # fmt: skip


@_like(conv_transpose2d)
def conv_transpose1d(*args: Any, **kwargs: Any) -> Tensor:
    return _transposed(1, *args, **kwargs)


@_like(conv_transpose2d)
def conv_transpose3d(*args: Any, **kwargs: Any) -> Tensor:
    return _transposed(3, *args, **kwargs)


def _transposed(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    **choices: Any,
) -> Tensor:
    numbers = stride, padding, dilation, groups
    return _conv(dims, input, weight, bias, *numbers, _output_padding=output_padding, **choices)


def _conv(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    forward: Choice = None,
    backward_data: Choice = None,
    backward_filter: Choice = None,
    _output_padding: Sizes | None = None,
) -> Tensor:
    """Calls the op of a convolution, which is a transposed one if it has an output padding."""
    first, second, third = directions_of(_output_padding is not None)
    stride, dilation = _sizes(stride, dims), _sizes(dilation, dims)
    if isinstance(padding, str):
        input, padding = _pad(input, weight, stride, padding, dilation, dims)
    numbers: tuple[Any, ...] = dilation, groups
    if _output_padding is not None:
        numbers = _sizes(_output_padding, dims), groups, dilation
    kind = "conv" if _output_padding is None else "conv_transpose"
    result: Tensor = getattr(torch.ops.torchalgo, f"{kind}{dims}d")(
        input,
        weight,
        bias,
        stride,
        _sizes(padding, dims),
        *numbers,
        forward=choice_text(forward, first, "forward"),
        backward_data=choice_text(backward_data, second, "backward_data"),
        backward_filter=choice_text(backward_filter, third, "backward_filter"),
    )
    return result


def _sizes(value: Sizes, dims: int) -> list[int]:
    sizes = [value] if isinstance(value, int) else list(value)
    return sizes * dims if len(sizes) == 1 else sizes


def _pad(
    input: Tensor, weight: Tensor, stride: list[int], padding: str, dilation: list[int], dims: int
) -> tuple[Tensor, list[int]]:
    if padding == "valid":
        return input, [0] * dims
    if padding != "same":
        raise Error(f"TA4401 padding={padding!r}, expected numbers, 'same' or 'valid'")
    if any(s != 1 for s in stride):
        raise Error(f"TA4401 padding='same' needs stride 1, got stride {stride}")
    numbers, behind = same_padding(list(weight.shape[2:]), dilation)
    return (functional.pad(input, behind) if any(behind) else input), numbers


def same_padding(kernel_size: list[int], dilation: list[int]) -> tuple[list[int], list[int]]:
    """Returns the padding that padding="same" needs.

    The first list holds the padding on both sides of each dimension. The second list holds the
    extra element that torch adds at the end of some dimensions, in the order of functional.pad.
    TorchScript compiles this function.
    """
    padding = [d * (k - 1) // 2 for d, k in zip(dilation, kernel_size)]  # noqa: B905
    odd = [d * (k - 1) % 2 for d, k in zip(dilation, kernel_size)]  # noqa: B905
    behind = [0] * (2 * len(odd))
    for i in range(len(odd)):
        behind[2 * (len(odd) - 1 - i) + 1] = odd[i]
    return padding, behind
