# SPDX-License-Identifier: BSD-3-Clause
"""Times steps of a planned model and of the model as it was given, in turns."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchalgo._base.call_context import CallContext
from torchalgo._base.overlap import one_at_a_time
from torchalgo._base.stats import is_faster
from torchalgo._base.time_budget import Deadline
from torchalgo._capture.settings import cpu_autocasts_to_bf16
from torchalgo._ir.plan import AS_GIVEN, GuardVerdict
from torchalgo._measure.guard import (
    CLEAR_ROUNDS,
    PLAN,
    expect_s,
    guard_verdict,
    has_verdict,
    out_of_time,
    reserve,
    synchronizer,
    time_interleaved,
)
from torchalgo._train.known_ops import is_altered
from torchalgo._train.module import TrainingModule

ROUNDS = 6  # the fewest with which a clean sweep is significant
# Steps before each timed one, if there is time. Memory that a step of another side has freed in
# other sizes makes the next step up to a third slower. A training loop has no such steps.
UNTIMED = 1
CHANNELS_LAST = "the model in channels_last"

Side = tuple[torch.nn.Module, Callable[..., Any]]  # the owner of the parameters, and what runs


def reserve_guard(model: torch.nn.Module, inputs: Sequence[Tensor], call: CallContext) -> None:
    """Reserves the time for `compare_steps`.

    A step of the model as it was given is timed, to learn how much time that is.
    """
    deadline = call.deadline
    if not deadline.has_end or _has_hooks(model):
        return
    with call.timings.step("try"):
        copied = copy.deepcopy(model)
        ((step_ns,),) = time_steps({AS_GIVEN: (copied, copied.forward)}, inputs, 1).values()
    sides = 3 if cpu_autocasts_to_bf16() else 2  # see compare_steps
    reserve(
        deadline,
        [
            expect_s(sides, 1e-9 * step_ns, warmup=1, rounds=n)
            for n in ((1 + UNTIMED) * ROUNDS, ROUNDS, CLEAR_ROUNDS)
        ],
    )


def compare_steps(
    planned: TrainingModule, inputs: Sequence[Tensor], deadline: Deadline
) -> GuardVerdict | None:
    """Times steps of the plan and of the model as it was given, in turns.

    As in inference, the plan loses only if it is slower at 95 % confidence. Rounds end with the
    time budget. If there were too few for a verdict, the plan runs only if each of its steps was
    faster than each of the model. A copy runs, so parameters, gradients and statistics stay as they
    are. Returns None for a model with hooks, since a copy would call them.

    Inside of torch.autocast, the model in channels_last is timed too, since it is often PyTorch's
    fastest way there. If it is faster than the plan, the verdict's reason says so.
    """
    if _has_hooks(planned):
        return None
    copied = copy.deepcopy(planned)
    # The model as it was given has the same modules, so both are in the same state.
    sides: dict[str, Side] = {
        PLAN: (copied, copied.forward),
        AS_GIVEN: (copied, copied.given.forward),
    }
    if cpu_autocasts_to_bf16():
        other = copy.deepcopy(planned.given).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        sides[CHANNELS_LAST] = (other, other.forward)
    times = time_steps(sides, inputs, ROUNDS, deadline.left_s("finish"))
    both = {side: times[side] for side in (PLAN, AS_GIVEN)}
    verdict = guard_verdict(both)
    if has_verdict(both, ROUNDS):
        return dataclasses.replace(verdict, reason=_other_way(times))
    when = f"after {verdict.rounds} of {ROUNDS} rounds, too few for a verdict"
    reason = out_of_time(deadline, when)
    return dataclasses.replace(verdict, runs="baseline", reason=reason)


def _other_way(times: Mapping[str, Sequence[float]]) -> str:
    """Returns that the model in channels_last is faster than the plan; empty if it is not."""
    if CHANNELS_LAST not in times:
        return ""
    result = is_faster(times[PLAN], times[CHANNELS_LAST])
    if result.verdict != "slower":
        return ""
    return (
        f"{CHANNELS_LAST} is {result.ratio:.2f} times as fast as the plan: train it without a plan,"
        " after model.to(memory_format=torch.channels_last)"
    )


def _has_hooks(model: torch.nn.Module) -> bool:
    return any(is_altered(module) for module in model.modules())


def time_steps(
    sides: Mapping[str, Side], inputs: Sequence[Tensor], rounds: int, most_s: float = math.inf
) -> dict[str, list[float]]:
    """Returns the times in ns of training steps. In each round, each side has one timed step.

    At least one round runs. No further one begins after `most_s`. Random numbers that the steps
    draw leave the state of PyTorch's generator as it was.
    """
    gpus = [x.device for x in inputs if x.is_cuda]
    steps = {name: functools.partial(_step, *side, inputs) for name, side in sides.items()}
    synchronize = synchronizer(gpus[0] if gpus else torch.device("cpu"))
    with one_at_a_time("it times steps of training"), torch.random.fork_rng(devices=gpus[:1]):
        started = time.perf_counter()
        for step in steps.values():
            if time.perf_counter() - started < most_s:
                step()
                synchronize()
        round_s = time.perf_counter() - started
        left_s = most_s - round_s
        return time_interleaved(
            steps,
            rounds=rounds,
            budget_s=math.inf,
            warmup=0,
            synchronize=synchronize,
            most_s=left_s,
            least=1,
            untimed=UNTIMED if (1 + UNTIMED) * rounds * round_s <= left_s else 0,
        )


def _step(model: torch.nn.Module, run: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
    """Runs the forward and the backward pass, for the sum of all results as the loss.

    The backward pass is outside of torch.autocast, as PyTorch advises.
    """
    own = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
    with torch.enable_grad():
        results = [y for y in tree_leaves(run(*own)) if isinstance(y, Tensor) and y.requires_grad]
        with torch.autocast("cpu", enabled=False):
            if results:
                torch.autograd.backward([y.sum() for y in results])
    model.zero_grad(set_to_none=True)
