# SPDX-License-Identifier: BSD-3-Clause
"""torch.nn's convolutions with a choice of algorithms.

Each class is a subclass of torch's class with the same parameters, buffers and state_dict. It has
three more arguments, `forward`, `backward_data` and `backward_filter`. docs/choosing.md lists what
can be written as a choice. They can be set later too: `conv.forward_algorithm = "cpu.direct"`.
"""
# TorchScript reads the annotations, so they must not be strings. It turns tuples into lists.
# mypy: disable-error-code="arg-type,no-any-return"

from copy import copy
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  # TorchScript resolves this name
from torch import Tensor, nn

from torchalgo._C import Error
from torchalgo._ir.choices import AUTO, Choice, choice_text
from torchalgo.functional import directions_of, same_padding

Ours = TypeVar("Ours", bound="_Chosen")

# The attributes with the texts of the three choices, in the order of directions_of.
ATTRIBUTES = ("forward_algorithm", "backward_data_algorithm", "backward_filter_algorithm")


class _Chosen(nn.Module):
    """The three choices of a convolution. A TorchScript module has them as attributes."""

    forward_algorithm: str
    backward_data_algorithm: str
    backward_filter_algorithm: str

    def __init__(
        self,
        *args: Any,
        forward: Choice = None,
        backward_data: Choice = None,
        backward_filter: Choice = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        for name, choice in zip(ATTRIBUTES, (forward, backward_data, backward_filter), strict=True):
            setattr(self, name, choice)

    @classmethod
    def from_torch(
        cls: type[Ours],
        module: nn.Module,
        *,
        forward: Choice = None,
        backward_data: Choice = None,
        backward_filter: Choice = None,
    ) -> Ours:
        """Returns a convolution of this class with `module`'s parameters, buffers, hooks and flags.

        Raises: torchalgo.Error if `module` is not exactly of the torch.nn class with this name.
        """
        if OURS.get(type(module)) is not cls:
            raise Error(
                f"TA4402 {cls.__name__}.from_torch: got {type(module).__name__}, expected exactly"
                f" torch.nn.{cls.__name__}"
            )
        ours = cls.__new__(cls)
        ours.__dict__ = {k: copy(v) if isinstance(v, dict) else v for k, v in vars(module).items()}
        for name, choice in zip(ATTRIBUTES, (forward, backward_data, backward_filter), strict=True):
            setattr(ours, name, choice)
        return ours

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ATTRIBUTES:
            index = ATTRIBUTES.index(name)
            value = choice_text(value, directions_of(self.transposed)[index], name)
        super().__setattr__(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name in ATTRIBUTES:  # objects that were pickled as torch's class have none
            self.__dict__.setdefault(name, AUTO)

    def extra_repr(self) -> str:
        parts = [super().extra_repr()]
        for name in ATTRIBUTES:
            if (text := getattr(self, name, AUTO)) != AUTO:
                parts.append(f"{name.removesuffix('_algorithm')}={text!r}")
        return ", ".join(parts)


def _forward_of(op: Any) -> Any:
    """Returns the forward of a convolution that calls `op`. TorchScript compiles it for `op`."""

    # TorchScript refuses an annotation of self.
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[no-untyped-def]
        input, padding = self._padded(input, weight)
        return op(
            input,
            weight,
            bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            forward=self.forward_algorithm,
            backward_data=self.backward_data_algorithm,
            backward_filter=self.backward_filter_algorithm,
        )

    return _conv_forward


def _transposed_forward_of(op: Any) -> Any:
    """Returns the forward of a transposed convolution that calls `op`."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # type: ignore[no-untyped-def]
        assert self.padding_mode == "zeros" and not isinstance(self.padding, str)
        sizes = self.stride, self.padding, self.kernel_size
        dims = len(self.kernel_size)
        output_padding = self._output_padding(input, output_size, *sizes, dims, self.dilation)
        return op(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            output_padding,
            self.groups,
            self.dilation,
            forward=self.forward_algorithm,
            backward_data=self.backward_data_algorithm,
            backward_filter=self.backward_filter_algorithm,
        )

    return forward


class _Padded(_Chosen):
    """The padding of a convolution that is not transposed."""

    def _padded(self, input: Tensor, weight: Tensor) -> tuple[Tensor, list[int]]:
        """Returns the input with the padding that the op cannot do, and the op's own padding."""
        padding = [0 for _ in self.kernel_size]  # type: ignore[union-attr]
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
        elif isinstance(self.padding, str):
            if self.padding == "same":
                # The sizes of the weight count, as in PyTorch. In a trace they are no numbers.
                if torch.jit.is_tracing():  # type: ignore[attr-defined]
                    padding, behind = same_padding(self.kernel_size, self.dilation)
                else:
                    padding, behind = same_padding(weight.shape[2:], self.dilation)
                if sum(behind) > 0:
                    input = F.pad(input, behind)
        else:
            padding = list(self.padding)
        return input, padding


class Conv1d(_Padded, nn.Conv1d):
    """A torch.nn.Conv1d that runs the chosen algorithms, as `Conv2d` explains.

    Example: conv = torchalgo.nn.Conv1d(64, 64, 3, padding=1, forward="aten.conv")
    """

    _conv_forward = _forward_of(torch.ops.torchalgo.conv1d)


class Conv2d(_Padded, nn.Conv2d):
    """A torch.nn.Conv2d that runs the chosen algorithms.

    Args:
        forward: choice of the primitive for the result. None makes no choice here. docs/choosing.md
            lists the possible values.
        backward_data: the same for the gradient of the input.
        backward_filter: the same for the gradient of the weights.
    All other arguments are those of torch.nn.Conv2d.

    Raises: torchalgo.Error if a choice is unknown or for another direction.

    Example: conv = torchalgo.nn.Conv2d(64, 64, 3, padding=1, forward="cpu.direct")
    """

    _conv_forward = _forward_of(torch.ops.torchalgo.conv2d)


class Conv3d(_Padded, nn.Conv3d):
    """A torch.nn.Conv3d that runs the chosen algorithms, as `Conv2d` explains.

    Example: conv = torchalgo.nn.Conv3d(64, 64, 3, padding=1, forward="aten.conv")
    """

    _conv_forward = _forward_of(torch.ops.torchalgo.conv3d)


class ConvTranspose1d(_Chosen, nn.ConvTranspose1d):
    """A torch.nn.ConvTranspose1d that runs the chosen algorithms, as `ConvTranspose2d` explains.

    Example: conv = torchalgo.nn.ConvTranspose1d(64, 64, 3, padding=1, forward="aten.conv")
    """

    forward = _transposed_forward_of(torch.ops.torchalgo.conv_transpose1d)


class ConvTranspose2d(_Chosen, nn.ConvTranspose2d):
    """A torch.nn.ConvTranspose2d that runs the chosen algorithms.

    Args:
        forward: choice of the primitive for the result. None makes no choice here. docs/choosing.md
            lists the possible values.
        backward_data: the same for the gradient of the input.
        backward_filter: the same for the gradient of the weights.

    The forward of a transposed convolution is a bwd_data problem, and its backward_data a fwd
    problem.

    All other arguments are those of torch.nn.ConvTranspose2d.

    Raises: torchalgo.Error if a choice is unknown or for another direction.

    Example: conv = torchalgo.nn.ConvTranspose2d(64, 64, 3, padding=1, forward="aten.conv")
    """

    forward = _transposed_forward_of(torch.ops.torchalgo.conv_transpose2d)


class ConvTranspose3d(_Chosen, nn.ConvTranspose3d):
    """A torch.nn.ConvTranspose3d that runs the chosen algorithms, as `ConvTranspose2d` explains.

    Example: conv = torchalgo.nn.ConvTranspose3d(64, 64, 3, padding=1, forward="aten.conv")
    """

    forward = _transposed_forward_of(torch.ops.torchalgo.conv_transpose3d)


# Maps torch's classes to ours.
OURS: dict[type[nn.Module], type[_Chosen]] = {
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
    nn.ConvTranspose1d: ConvTranspose1d,
    nn.ConvTranspose2d: ConvTranspose2d,
    nn.ConvTranspose3d: ConvTranspose3d,
}
