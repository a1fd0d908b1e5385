# SPDX-License-Identifier: BSD-3-Clause
"""Stores the results of the original model, and compares other results with them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchalgo._base.compare_outputs import output_error, worst_output_error
from torchalgo._base.trees import copied
from torchalgo._C import Error
from torchalgo._capture.freeze import tensors_in
from torchalgo._ir.bounds import COARSE_BOUND

# A larger error means that the capture is wrong. A smaller one is rounding.
MOST_CAPTURE_ERROR = 1e-4
_COARSE = {torch.float16: 4 * COARSE_BOUND["f16"], torch.bfloat16: 4 * COARSE_BOUND["bf16"]}
# Largest relative L2 error of two runs of one model with the same inputs. Atomic sums have no fixed
# order.
MOST_NOISE = 1e-6


@dataclass(frozen=True)
class Reference:
    """A model's inputs and results. Inputs that a model changes are results too."""

    inputs: tuple[Any, ...]
    outputs: Any
    inputs_after: tuple[Any, ...]
    seconds: float = 0.0  # the time of the run

    @classmethod
    def of(cls, model: Callable[..., Any], inputs: Sequence[Any]) -> Reference:
        """Runs `model` on a copy of `inputs`, without gradients."""
        before, after = copied(tuple(inputs)), copied(tuple(inputs))
        started = time.monotonic()
        with torch.no_grad():
            outputs = model(*after)
        return cls(before, copied(outputs), after, time.monotonic() - started)

    def error_of(self, module: Callable[..., Any]) -> float:
        """Returns the greatest relative L2 error of the results of `module` for the same inputs."""
        return self.errors_of(module)[0]

    def errors_of(self, module: Callable[..., Any]) -> tuple[float, float]:
        """Returns what error_of returns, and the worst_output_error of the results."""
        after = copied(self.inputs)
        with torch.no_grad():
            outputs = module(*after)
        error = max(output_error(outputs, self.outputs), output_error(after, self.inputs_after))
        is_equal = error in (0.0, math.inf)
        return error, error if is_equal else worst_output_error(outputs, self.outputs)


def most_error(inputs: Sequence[Any]) -> float:
    """Returns the greatest relative L2 error that rounding explains for inputs of these types."""
    coarse = [_COARSE.get(tensor.dtype, 0.0) for tensor in tensors_in(tuple(inputs))]
    return max([MOST_CAPTURE_ERROR, *coarse])


def check_finite(reference: Reference) -> None:
    """Raises torchalgo.Error if a non-empty result holds only NaN and infinite values."""
    for tensor in tensors_in(reference.outputs):
        is_checked = tensor.is_floating_point() or tensor.is_complex()
        if is_checked and tensor.numel() > 0 and not bool(tensor.isfinite().any()):
            raise Error(
                "TA1112 optimize: a result of the model holds only NaN and infinite values for"
                " these example inputs, so no result can be checked: give inputs like those of real"
                " use"
            )


def check_repeats(model: nn.Module, reference: Reference) -> None:
    """Raises torchalgo.Error if a second run of the model returns other results."""
    error = reference.error_of(model)
    if error > MOST_NOISE:
        raise Error(
            "TA1111 optimize: two runs of the model with the same inputs differ (relative L2"
            f" {error:.1e}), so no result can be checked. The model draws random numbers or keeps"
            " values of earlier calls. Expected a deterministic model: F.dropout, for example,"
            " needs training=self.training"
        )


def other_values(inputs: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns four variants of the inputs with other values.

    Floating-point and complex tensors are multiplied by -1, 0, -10 and 10. Other tensors are
    reversed. If one has a single element, a number grows by 1 and a bool is negated. Other values
    stay.
    """

    def changed(value: Any, factor: float) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_floating_point() or value.is_complex():
            return value * factor
        if value.numel() == 1:
            return value.logical_not() if value.dtype is torch.bool else value + 1
        return value.flip(tuple(range(value.dim())))

    return [tuple(changed(value, factor) for value in inputs) for factor in (-1, 0, -10, 10)]
