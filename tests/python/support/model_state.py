# SPDX-License-Identifier: BSD-3-Clause
"""The state of a model and of the process, to be compared before and after a call."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def content(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else [*value] if isinstance(value, list) else 0


def state_of(model: nn.Module) -> list[Any]:
    """Returns what a call of optimize must leave as it is: the model, and the state of torch."""
    tensors = [t for _, t in [*model.named_parameters(), *model.named_buffers()]]
    return [
        [(id(t), t.data_ptr(), t._version, t.clone()) for t in tensors],
        [{k: (id(v), content(v)) for k, v in m.__dict__.items()} for m in model.modules()],
        torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(),
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(),
        torch.Tensor.stride, torch.SymInt.__repr__, torch.jit._trace._trace_module_map,
    ]  # fmt: skip


def is_same(one: Any, other: Any) -> bool:
    """Compares two states."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[k], other[k]) for k in one)
    return bool(one == other)
