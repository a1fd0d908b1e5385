# SPDX-License-Identifier: BSD-3-Clause
"""Looks at a model by a run on fake tensors, before the model runs for real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchalgo._C import Error
from torchalgo._ir.plan import PlanDim

Dims = list[list[PlanDim]]  # by tensor and dimension


class NoCaptureError(Error):
    """The error of a model that can only run as it was given. Its text says why."""


@dataclass(frozen=True)
class Seen:
    """The facts about a model that a run on fake tensors has shown.

    Args:
        dims: the range of each dimension in which a trace is right. None if the run failed, so that
            nothing is proven.
        reads: the op by which Python code reads a value that depends on the inputs; empty if none
            is seen.
        writes: a weight, a buffer or an attribute that each run changes; empty if none is seen.
        reads_strides: True if Python code asks for the order in memory of such a tensor.
        why: the reason why the run failed; empty if it did not.
    """

    dims: Dims | None = None
    reads: str = ""
    writes: str = ""
    reads_strides: bool = False
    why: str = "no run"

    @property
    def is_whole(self) -> bool:
        """True if all ops of the model ran on fake tensors."""
        return not self.why


def look_at(
    model: nn.Module,
    inputs: Sequence[Any],
    arguments: Callable[[Sequence[torch.Tensor]], tuple[Any, Any]] = lambda given: (given, {}),
) -> Seen:
    """Returns what free_sizes.look_at does. Imports sympy only when it is called."""
    if isinstance(model, torch.jit.ScriptModule):
        return Seen(why="TorchScript")
    from torchalgo._capture import free_sizes

    return free_sizes.look_at(model, inputs, arguments)
