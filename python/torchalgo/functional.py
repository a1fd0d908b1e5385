# SPDX-License-Identifier: BSD-3-Clause
"""torch.nn.functional's convolutions with a choice of algorithms.

Each function has torch's own arguments and `forward`, `backward_data` and `backward_filter`. They
choose the primitives that compute the result, the gradient of `input` and the gradient of `weight`.
docs/choosing.md lists what can be written as a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchalgo._C import Error
from torchalgo._ir.choices import Choice, Direction, choice_text

Sizes = int | Sequence[int]


def texts_of(
    forward: Choice, backward_data: Choice, backward_filter: Choice, transposed: bool = False
) -> tuple[str, str, str]:
    """Returns the texts of a convolution's three choices, in this order.

    Raises: torchalgo.Error if one is no choice for its direction.
    """
    directions = directions_of(transposed)
    return (
        choice_text(forward, directions[0], "forward"),
        choice_text(backward_data, directions[1], "backward_data"),
        choice_text(backward_filter, directions[2], "backward_filter"),
    )


def directions_of(transposed: bool) -> tuple[Direction, Direction, Direction]:
    """Returns the directions of a convolution's forward, backward_data and backward_filter.

    A transposed convolution computes the gradient of another convolution's input, and its own
    gradient is the result of that convolution.
    """
    if transposed:
        return "bwd_data", "fwd", "bwd_filter"
    return "fwd", "bwd_data", "bwd_filter"


def conv1d(
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
    """Computes torch.nn.functional.conv1d with the chosen algorithms.

    The arguments before `forward` are those of torch.nn.functional.conv1d.

    Args:
        forward: choice of the primitive for the result. None makes no choice here. docs/choosing.md
            lists the possible values.
        backward_data: the same for the gradient of `input`.
        backward_filter: the same for the gradient of `weight`.
    Returns: the result of the convolution. A primitive that cannot run is replaced by a fallback;
        after torchalgo.set_strict(True) this is an error.
    Raises: torchalgo.Error if a choice is unknown or for another direction, or if padding is "same"
        with a stride other than 1.

    Example: torchalgo.conv1d(x, weight, padding=1, forward="aten.conv")
    """
    texts = texts_of(forward, backward_data, backward_filter)
    op = torch.ops.torchalgo.conv1d
    return _conv(op, 1, input, weight, bias, stride, padding, dilation, groups, texts)


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

    Example: torchalgo.conv2d(x, weight, padding=1, forward="cpu.direct")
    """
    texts = texts_of(forward, backward_data, backward_filter)
    op = torch.ops.torchalgo.conv2d
    return _conv(op, 2, input, weight, bias, stride, padding, dilation, groups, texts)


def conv3d(
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
    """Computes torch.nn.functional.conv3d with the chosen algorithms.

    The arguments before `forward` are those of torch.nn.functional.conv3d.

    Args:
        forward: choice of the primitive for the result. None makes no choice here. docs/choosing.md
            lists the possible values.
        backward_data: the same for the gradient of `input`.
        backward_filter: the same for the gradient of `weight`.
    Returns: the result of the convolution. A primitive that cannot run is replaced by a fallback;
        after torchalgo.set_strict(True) this is an error.
    Raises: torchalgo.Error if a choice is unknown or for another direction, or if padding is "same"
        with a stride other than 1.

    Example: torchalgo.conv3d(x, weight, padding=1, forward="aten.conv")
    """
    texts = texts_of(forward, backward_data, backward_filter)
    op = torch.ops.torchalgo.conv3d
    return _conv(op, 3, input, weight, bias, stride, padding, dilation, groups, texts)


def conv_transpose1d(
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
    """Computes torch.nn.functional.conv_transpose1d with the chosen algorithms.

    The arguments before `forward` are those of torch.nn.functional.conv_transpose1d.

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

    Example: torchalgo.conv_transpose1d(x, weight, padding=1, forward="aten.conv")
    """
    texts = texts_of(forward, backward_data, backward_filter, transposed=True)
    op = torch.ops.torchalgo.conv_transpose1d
    return _conv_transpose(
        op, 1, input, weight, bias, stride, padding, output_padding, groups, dilation, texts
    )


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
    texts = texts_of(forward, backward_data, backward_filter, transposed=True)
    op = torch.ops.torchalgo.conv_transpose2d
    return _conv_transpose(
        op, 2, input, weight, bias, stride, padding, output_padding, groups, dilation, texts
    )


def conv_transpose3d(
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
    """Computes torch.nn.functional.conv_transpose3d with the chosen algorithms.

    The arguments before `forward` are those of torch.nn.functional.conv_transpose3d.

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

    Example: torchalgo.conv_transpose3d(x, weight, padding=1, forward="aten.conv")
    """
    texts = texts_of(forward, backward_data, backward_filter, transposed=True)
    op = torch.ops.torchalgo.conv_transpose3d
    return _conv_transpose(
        op, 3, input, weight, bias, stride, padding, output_padding, groups, dilation, texts
    )


def _conv(
    op: Callable[..., Any],
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    groups: int,
    texts: tuple[str, str, str],
) -> Tensor:
    stride, dilation = _sizes(stride, dims), _sizes(dilation, dims)
    if isinstance(padding, str):
        input, padding = _pad(input, weight, stride, padding, dilation, dims)
    result: Tensor = op(
        input,
        weight,
        bias,
        stride,
        _sizes(padding, dims),
        dilation,
        groups,
        forward=texts[0],
        backward_data=texts[1],
        backward_filter=texts[2],
    )
    return result


def _conv_transpose(
    op: Callable[..., Any],
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
    texts: tuple[str, str, str],
) -> Tensor:
    result: Tensor = op(
        input,
        weight,
        bias,
        _sizes(stride, dims),
        _sizes(padding, dims),
        _sizes(output_padding, dims),
        groups,
        _sizes(dilation, dims),
        forward=texts[0],
        backward_data=texts[1],
        backward_filter=texts[2],
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
