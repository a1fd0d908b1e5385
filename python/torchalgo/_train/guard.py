# SPDX-License-Identifier: BSD-3-Clause
"""Times steps of a planned model and of the model as it was given, in turns."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchalgo._base.stats import is_faster
from torchalgo._base.time_budget import Deadline
from torchalgo._train.module import TrainingModule
from torchalgo._train.trace import has_hooks

ROUNDS = 6  # the fewest with which a clean sweep is significant


def is_slower(planned: TrainingModule, inputs: Sequence[Tensor], deadline: Deadline) -> bool:
    """Returns whether steps of the plan take longer than those of the model.

    A copy runs, so parameters, gradients and statistics stay as they are. A model with hooks is not
    timed, since a copy would call them. Rounds end with the time budget, but at least one runs.
    """
    if any(has_hooks(module) for module in planned.modules()):
        return False
    with torch.random.fork_rng(devices=[]):
        copied = copy.deepcopy(planned)
        # The model as it was given has the same modules, so both are in the same state.
        sides = {"plan": copied.forward, "model": copied.given.forward}
        times: dict[str, list[float]] = {name: [] for name in sides}
        for run in sides.values():
            _step(copied, run, inputs)
        for number in range(ROUNDS):
            if number and deadline.left_s("finish") <= 0:
                break
            for name, run in sides.items():
                begin = time.perf_counter()
                _step(copied, run, inputs)
                times[name].append(time.perf_counter() - begin)
    return is_faster(times["model"], times["plan"]).ratio < 1


def _step(model: torch.nn.Module, run: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
    """Runs the forward and the backward pass, for the sum of all results as the loss."""
    own = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
    with torch.enable_grad():
        results = [y for y in tree_leaves(run(*own)) if isinstance(y, Tensor) and y.requires_grad]
        if results:
            torch.autograd.backward([y.sum() for y in results])
    model.zero_grad(set_to_none=True)
