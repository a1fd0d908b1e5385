# SPDX-License-Identifier: BSD-3-Clause
"""Holds the original model, from which an optimized module was made."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchalgo import _C
from torchalgo._base.kept_model import kept_model
from torchalgo._base.time_budget import Deadline
from torchalgo._C import Error
from torchalgo._capture.calls import CallForm, copy_of
from torchalgo._capture.example_calls import ModelCall
from torchalgo._capture.formats import Formats, Key
from torchalgo._ir.plan import Plan
from torchalgo._plan.result import Result
from torchalgo._run.as_given import AsGiven
from torchalgo._run.model_watch import watch_layers, watch_weights


@dataclass(frozen=True)
class Planned:
    """The result of planning for one or several calls of a model."""

    results: tuple[Result, ...]  # none if `as_given` is set
    form: CallForm
    tensor_model: nn.Module | None = None  # takes tensors; see calls.py
    formats: Mapping[Key, Formats] = field(default_factory=dict)  # of results; see formats.py
    as_given: AsGiven | None = None
    watch: _C.ModelWatch | None = None  # of the model that was planned


# A function that plans calls of a model. If plans by shapes are given, it applies these and
# measures nothing. Called like plan_calls, after its options.
Planner = Callable[..., Planned]


class Original:
    """The model that was optimized. It owns the weights and runs the calls that have no plan.

    The model is not modified. This class records its state, because a plan holds packed copies of
    its weights, and algorithms for its layers as they were.
    """

    def __init__(
        self,
        model: nn.Module,
        planner: Planner,
        calls: Sequence[ModelCall] = (),
        tensor_model: nn.Module | None = None,
        formats: Mapping[Key, Formats] | None = None,
        watch: _C.ModelWatch | None = None,
    ) -> None:
        """Holds a model.

        Args:
            planner: plans calls of the model.
            calls: the example inputs for which the model was planned, if any.
            tensor_model: the model as a function of tensors only; None before it was planned.
            formats: the formats of results, see formats.py.
            watch: the model as it was when it was planned. Changes are detected relative to it.
                None: the model's present state.
        """
        self.model, self.calls, self.tensor_model = model, list(calls), tensor_model
        self.formats = formats or {}
        self._planner = planner
        if watch is None:
            watch = watch_weights(model)
            watch_layers(watch, model)
        self.watch = watch

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the model.

        Raises: torchalgo.Error if the model is in train mode now.
        """
        self._check_mode()
        return self.model(*args, **kwargs)

    def run_tensors(self, tensors: Sequence[Any]) -> Any:
        """Calls the tensor model, whose result has the same form as a plan's, without gradients.

        Raises: torchalgo.Error if the model is in train mode now.
        """
        self._check_mode()
        assert self.tensor_model is not None
        with torch.no_grad(), kept_model(self.model):
            return self.tensor_model(*map(copy_of, tensors))

    def _check_mode(self) -> None:
        for name, module in self.model.named_modules():
            if getattr(module, "training", False):  # a frozen ScriptModule has no mode
                raise Error(
                    "TA1103 forward: only the original model can run this call, but"
                    f" {repr(name) + ' in it' if name else 'it'} is in train mode now: call .eval()"
                    " on it"
                )

    def plan(
        self,
        calls: Sequence[ModelCall],
        plans: Mapping[str, Plan] | None = None,
        deadline: Deadline | None = None,
    ) -> Planned:
        """Plans `calls` with the present weights, or applies `plans` if they are given.

        If this raises, changes are still detected relative to the state that was planned before.
        """
        watch = watch_weights(self.model)
        planned = self._planner(self.model, calls, plans, deadline)
        watch_layers(watch, self.model)
        self.watch = watch
        planned = dataclasses.replace(planned, watch=watch)
        self.calls, self.tensor_model = list(calls), planned.tensor_model
        self.formats = planned.formats
        return planned

    def alone(self, i: int) -> Original:
        """Returns an Original of the same model with only the example inputs at `i`."""
        calls = self.calls[i : i + 1]
        return Original(
            self.model, self._planner, calls, self.tensor_model, self.formats, self.watch
        )

    def copy(self, memo: dict[int, Any]) -> Original:
        """Returns a deep copy with its own weights. The example inputs are shared."""
        model, tensor_model = copy.deepcopy((self.model, self.tensor_model), memo)
        return Original(model, self._planner, self.calls, tensor_model, self.formats)
