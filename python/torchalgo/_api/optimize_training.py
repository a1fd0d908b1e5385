# SPDX-License-Identifier: BSD-3-Clause
"""Plans a model that is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchalgo._base.call_context import CallContext
from torchalgo._base.kept_model import kept_model
from torchalgo._base.progress import Progress
from torchalgo._base.time_budget import Deadline, budget_of_call
from torchalgo._C import Error
from torchalgo._capture.keywords import known_keywords
from torchalgo._capture.settings import IN_SETTINGS, Options, Settings, in_autocast
from torchalgo._db import CostStore
from torchalgo._ir.costs import MAX_ERROR
from torchalgo._train.module import TrainingModule
from torchalgo._train.optimize import plan_training
from torchalgo._train.overrides import DirectionOverrides
from torchalgo._train.plan import TrainingPlan

OF_INFERENCE = ("example_kwargs", "shapes", "objective", "validation")


@known_keywords(
    {
        **IN_SETTINGS,
        **dict.fromkeys(
            OF_INFERENCE, "is an argument of torchalgo.optimize, which is for inference"
        ),
        "training": "is always True here: leave it out",
    }
)
def optimize_training(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    *,
    overrides: DirectionOverrides | None = None,
    plan: TrainingPlan | None = None,
    budget_s: float | None = None,
    max_error: float | None = None,
    settings: Settings | None = None,
) -> TrainingModule:
    """Returns `model` with the fastest algorithms for training steps.

    One plan chooses the primitives of the forward pass and of both gradients of each convolution.
    The result has the parameters of `model`, so the training loop stays as it is. If a step of
    the model as it was given is faster, the result runs that. Inside of torch.autocast("cpu",
    dtype=torch.bfloat16), the plan is for a loop inside of it.

        planned = torchalgo.optimize_training(model, (x,))  # x = torch.rand(8, 3, 224, 224)
        print(planned.plan)
        optimizer = torch.optim.SGD(planned.parameters(), lr=0.1)

    Args:
        model: the model in train mode, on the CPU or on a GPU. torch.fx must be able to trace it.
        example_inputs: a tensor or several, of the batch size of the training.
        overrides: a dict from globs of layer names to dicts from directions to primitives, such as
            {"layer1.*": {"backward_filter": "aten.conv"}}.
        plan: a plan to apply without measuring, as TrainingPlan.load reads it.
        budget_s: the most seconds of the whole call, except that tracing the model cannot be
            interrupted. None: 90 s. float("inf"): no limit.
        max_error: the largest relative L2 error of the results of each primitive, compared with
            f64. None: 1e-5.
        settings: the rare options, see torchalgo.Settings. None: all of them have their defaults.

    Returns: a TrainingModule, see docs/training.md.
    Raises: torchalgo.Error if the model is in eval mode, is on neither a CPU nor a GPU, or cannot
        be traced, if `plan` was made for another model, or if an argument is invalid. Also inside
        of another kind of torch.autocast.
    """
    options = Options.of(
        settings,
        training=True,
        overrides=overrides,
        plan=plan,
        budget_s=budget_s,
        max_error=MAX_ERROR if max_error is None else max_error,
        autocast=in_autocast(model),
    )
    _check_model(model)
    inputs = _tensors(example_inputs)
    call = CallContext.start(Deadline(budget_of_call(options.budget_s)), Progress(options.progress))
    with kept_model(model), CostStore.of_call(options.cost_db, is_fresh=options.fresh) as store:
        return plan_training(model, inputs, options, store, call)


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise Error(
            f"TA1003 optimize_training: model is {type(model).__name__}, expected a torch.nn.Module"
            " that is not scripted"
        )


def _tensors(inputs: Any) -> tuple[Tensor, ...]:
    tensors = (inputs,) if isinstance(inputs, Tensor) else inputs
    is_sequence = isinstance(tensors, Sequence) and not isinstance(tensors, str)
    if not is_sequence or not tensors or not all(isinstance(x, Tensor) for x in tensors):
        raise Error(
            "TA1003 optimize_training: example_inputs must be a tensor or several, got"
            f" {type(inputs).__name__}: optimize_training(model, (x,))"
        )
    return tuple(tensors)
