# SPDX-License-Identifier: BSD-3-Clause
"""Times steps of a planned model and of the model as it was given, in turns."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchalgo._base.overlap import one_at_a_time
from torchalgo._base.stats import is_faster
from torchalgo._base.time_budget import Deadline
from torchalgo._ir.plan import GuardVerdict
from torchalgo._measure.guard import synchronizer
from torchalgo._train.known_ops import is_altered
from torchalgo._train.module import TrainingModule

ROUNDS = 6  # the fewest with which a clean sweep is significant
PLAN, AS_GIVEN = "plan", "the model as it was given"

Side = tuple[torch.nn.Module, Callable[..., Any]]  # the owner of the parameters, and what runs


def compare_steps(
    planned: TrainingModule, inputs: Sequence[Tensor], deadline: Deadline
) -> GuardVerdict | None:
    """Times steps of the plan and of the model as it was given, in turns.

    The plan loses if its median is worse, significant or not. A copy runs, so parameters, gradients
    and statistics stay as they are. Rounds end with the time budget, but at least one runs. Returns
    None for a model with hooks, since a copy would call them.
    """
    if any(is_altered(module) for module in planned.modules()):
        return None
    copied = copy.deepcopy(planned)
    # The model as it was given has the same modules, so both are in the same state.
    sides: dict[str, Side] = {
        PLAN: (copied, copied.forward),
        AS_GIVEN: (copied, copied.given.forward),
    }
    times = time_steps(sides, inputs, ROUNDS, lambda: deadline.left_s("finish") <= 0)
    result = is_faster(times[PLAN], times[AS_GIVEN])
    return GuardVerdict(
        verdict=result.verdict,
        runs="baseline" if result.ratio > 1 else "plan",
        baseline=AS_GIVEN,
        plan_us=statistics.median(times[PLAN]) / 1000,
        baseline_us=statistics.median(times[AS_GIVEN]) / 1000,
        ratio=result.ratio,
        low=result.low,
        high=result.high,
        rounds=len(times[PLAN]),
        reason="",
    )


def time_steps(
    sides: Mapping[str, Side],
    inputs: Sequence[Tensor],
    rounds: int,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[str, list[float]]:
    """Returns the times in ns of training steps. In each round, each side makes one step.

    At least one round runs. No further one begins if `is_over`. Random numbers that the steps draw
    leave the state of PyTorch's generator as it was.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    gpus = [x.device for x in inputs if x.is_cuda]
    synchronize = synchronizer(gpus[0] if gpus else torch.device("cpu"))
    with one_at_a_time("it times steps of training"), torch.random.fork_rng(devices=gpus[:1]):
        for model, run in sides.values():
            _step(model, run, inputs)
        synchronize()
        for number in range(rounds):
            if number and is_over():
                break
            for name, (model, run) in sides.items():
                begin = time.perf_counter_ns()
                _step(model, run, inputs)
                synchronize()
                times[name].append(float(time.perf_counter_ns() - begin))
    return times


def _step(model: torch.nn.Module, run: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
    """Runs the forward and the backward pass, for the sum of all results as the loss."""
    own = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
    with torch.enable_grad():
        results = [y for y in tree_leaves(run(*own)) if isinstance(y, Tensor) and y.requires_grad]
        if results:
            torch.autograd.backward([y.sum() for y in results])
    model.zero_grad(set_to_none=True)
