# SPDX-License-Identifier: BSD-3-Clause
"""Checks whether a plan can run for the tensors of a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

from torchalgo._base.trees import type_text
from torchalgo._C import Error


def why_original(
    tensors: Sequence[Any], names: Sequence[str], device: torch.device, in_autocast: bool
) -> str:
    """Returns why the original model has to run for these tensors; empty if a plan can run.

    Args:
        in_autocast: True if the plan is for calls inside of torch.autocast in bf16.
    """
    if torch.is_autocast_enabled(device.type):
        type_ = torch.get_autocast_dtype(device.type)
        if not in_autocast or type_ != torch.bfloat16:
            return "inside torch.autocast" + f" in {type_}" * in_autocast
    elif in_autocast:
        return "outside of torch.autocast, inside of which it was planned"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "inside a transform of torch.func"
    for name, tensor in _named(tensors, names):
        if type(tensor) not in (torch.Tensor, nn.Parameter):
            return f"input {name} is a {type_text(type(tensor))}"
        if tensor.requires_grad and torch.is_grad_enabled():
            return f"input {name} requires a gradient"
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
            return f"input {name} has a forward-mode gradient"
    return ""


def check_tensors(
    tensors: Sequence[Any],
    names: Sequence[str],
    device: torch.device,
    dtypes: Sequence[set[torch.dtype]],
) -> None:
    """Raises torchalgo.Error if a tensor has another device, or none of the planned dtypes.

    Args:
        dtypes: the planned ones of each tensor; none if they are not known.
    """
    for i, (name, tensor) in enumerate(_named(tensors, names)):
        if tensor.device != device:
            raise Error(
                f"TA1203 forward: input {name} is on {tensor.device}, expected {device}: call"
                f" .to({str(device)!r}) on it"
            )
        planned = dtypes[i] if i < len(dtypes) else {tensor.dtype}
        if tensor.dtype not in planned:
            want = " or ".join(sorted(map(str, planned)))
            raise Error(
                f"TA1204 forward: input {name} is {tensor.dtype}, the plan was made for {want}:"
                " convert it, or optimize the model in that dtype"
            )


def _named(tensors: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, torch.Tensor):
            yield names[i] if i < len(names) else str(i), tensor
