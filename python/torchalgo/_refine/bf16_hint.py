# SPDX-License-Identifier: BSD-3-Clause
"""Tells how fast a model would be in bf16, and how large its error, where bf16 is fast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._base.compare_outputs import in_f64, leaves_of, output_error
from torchalgo._base.trees import copied
from torchalgo._capture.settings import BF16_ERROR, Options
from torchalgo._ir.costs import MAX_ERROR, Key, key_of
from torchalgo._ir.plan import Plan
from torchalgo._ir.problems import has_convolution
from torchalgo._measure.sampling import cold_bytes
from torchalgo._plan.describe import Describer
from torchalgo._plan.preparation import Prepared

LEAST_SPEEDUP = 1.15  # nothing is said of a smaller one
MOST_S, MOST_SHARE = 2.0, 0.03  # the most time for the hint, in seconds and of the budget
COVERED_SHARE = 0.8  # no more is measured after this part of the time of all convolutions


def tell_bf16(
    plan: Plan, prepared: Prepared, options: Options, describe: Describer, call: CallContext
) -> None:
    """Shows a line on bf16 if the plan is one in f32 by default and bf16 is predicted to be faster.

    The plan does not change. Nothing is measured if no progress is shown, or if time is short.
    """
    if call.progress.is_silent or not _is_due(plan, prepared, options, describe):
        return
    most_s = min(MOST_S, MOST_SHARE * call.deadline.budget_s)
    call = call.within(min(most_s, call.deadline.left_s("measure")))
    layers: dict[str, list[int]] = {}  # by problem: the ticks of each layer in the plan
    for node in plan.nodes:
        if node.primitive and has_convolution(node.problem):
            layers.setdefault(node.problem, []).append(node.ticks)
    with call.timings.step("measure"):
        costs = _bf16_costs(layers, prepared, options, describe, call)
    # The speedup is a prediction, because it is a quotient of sums of costs. It leaves out casts at
    # the ends of the part in bf16, and that other operations may be faster in bf16 too. Layers
    # without a cost in bf16 keep theirs.
    saved = sum(max(0, own - costs.get(p, own)) for p, each in layers.items() for own in each)
    speedup = plan.cost_ticks / (plan.cost_ticks - saved)
    if speedup < LEAST_SPEEDUP:
        return
    error = None
    if prepared.reference.seconds <= call.deadline.left_s("finish"):
        with call.timings.step("values"):
            error = _error_in_autocast(prepared)
    if error is None or math.isfinite(error):
        call.progress.say(_line(speedup, error))


def _is_due(plan: Plan, prepared: Prepared, options: Options, describe: Describer) -> bool:
    is_default = (
        options.max_error == MAX_ERROR
        and options.max_componentwise_error is None
        and not options.overrides
        and describe.objective.name == "latency"
    )
    has_plan = plan.guard is not None and plan.guard.runs != "baseline"
    is_whole = has_plan and not describe.tuning.is_stopped
    return is_default and is_whole and prepared.device is None


def _bf16_costs(
    layers: Mapping[str, Sequence[int]],
    prepared: Prepared,
    options: Options,
    describe: Describer,
    call: CallContext,
) -> dict[str, int]:
    """Returns the least known cost of each problem in bf16, in ticks of a plan.

    Costs of the database come first. If the call has measured anyway, those of the largest of the
    other problems are measured and stored. A worker is not started for this alone. On a CPU
    that does not multiply in bf16, no convolution has a candidate in it.
    """
    tuning, objective = describe.tuning, describe.objective
    device, limit = _C.cpu_device(), options.workspace_limit_bytes
    primitives = {
        key_of(problem, p): p
        for problem in layers
        for p in _C.offers_of(problem, limit, device, coarse_types=True)[0]
        if _C.rounds_coarsely(problem, p)
    }
    costs: dict[str, int] = {}

    def learn(known: Mapping[Key, Any]) -> None:
        for key, cost in known.items():
            ticks = cost.estimate_ticks + tuning.settings.call_ticks
            costs[key.problem] = min(ticks, costs.get(key.problem, ticks))

    learn(objective.costs.read(primitives))
    sampler = objective.bench.sampler(primitives, cold_bytes(prepared.graph))
    sums = {problem: sum(each) for problem, each in layers.items()}
    for problem in sorted(sums, key=lambda p: -sums[p]) if tuning.has_measured else ():
        left_s = call.deadline.left_s("finish")
        if left_s <= 0 or sum(sums[p] for p in costs) >= COVERED_SHARE * sum(sums.values()):
            break
        key = _best_offered(problem, primitives)
        if problem not in costs and key is not None:
            taken = sampler.take([key], left_s)
            learn(taken)
            objective.costs.append(taken)
    return costs


def _best_offered(problem: str, primitives: Mapping[Key, _C.Primitive]) -> Key | None:
    """Returns torchalgo's own candidate in bf16, or else another one; None if there is none.

    Its input and its result are in bf16, as those of most layers would be.
    """
    offered = [key for key in primitives if key.problem == problem and key.src == key.dst]
    return min(offered, key=lambda key: not _C.has_own_kernel(key.primitive), default=None)


def _error_in_autocast(prepared: Prepared) -> float | None:
    """Returns the relative L2 error of the model's outputs in bf16, as PyTorch computes it.

    Returns None if the model does not run in autocast.
    """
    reference = prepared.reference
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = prepared.model(*copied(reference.inputs))
    except Exception:
        return None
    return output_error(outputs, [*map(in_f64, leaves_of(reference.outputs))])


def _line(speedup: float, error: float | None) -> str:
    bound = f"max_error={_short(BF16_ERROR)}"
    text = f"in bf16, this model is predicted to be {speedup:.1f} times as fast"
    if error is None:
        return f"{text}: pass {bound}"
    text += f", with an error of {_short(error)}"
    return f"{text}: pass {bound}" if error <= BF16_ERROR else f"{text}: {bound} allows a part"


def _short(error: float) -> str:
    return f"{error:.0e}".replace("e-0", "e-")
