# SPDX-License-Identifier: BSD-3-Clause
"""Makes an optimized module one op of a model that torch.compile compiles."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._capture.calls import CallForm
from torchalgo._capture.formats import Formats, ResultFormats, with_formats
from torchalgo._capture.freeze import writes_to_inputs
from torchalgo._capture.shapes import Shapes
from torchalgo._plan.result import Result
from torchalgo._run.exported import (
    ResultType,
    nested,
    plan_object,
    planned_inputs,
    result_type,
)
from torchalgo._run.unseen_shapes import UnseenShapes


class AsOp:
    """The plans of an optimized module as one op."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        results: Sequence[Result],
        form: CallForm,
        formats: ResultFormats | None,
        watch: _C.ModelWatch | None,
        others: UnseenShapes,
    ) -> None:
        self._results, self._form, self._watch = results, form, watch
        self._others = others
        self._formats = formats
        self._type: ResultType = None
        self._plan: Any = None
        self.number = next(self._numbers)  # torch.compile compiles again if it differs

    def handle(self, shapes: Shapes, dtypes: Sequence[torch.dtype], devices: Sequence[str]) -> int:
        """Returns the handle for torch.ops.torchalgo.run_held_plan.

        Returns 0 if no plan is right for such tensors, if the plans cannot become one op, or if the
        model has changed.
        """
        is_usual = self._form.is_positional and self._form.output is None
        on_cpu = self._results[0].device == "cpu" and all(device == "cpu" for device in devices)
        if not is_usual or not on_cpu:
            return 0
        if list(dtypes) != [dtype for _, dtype in planned_inputs(self._results[0].plan)]:
            return 0
        if self._others.planned(shapes) < 0:
            return 0
        # A call outside of compiled code raises an error, or runs the original model.
        if self._watch is not None and self._watch.first_change() is not None:
            return 0
        if self._plan is None:
            # The op's schema promises that it changes no input.
            if any(writes_to_inputs(result.scripted) for result in self._results):
                return 0
            try:
                self._type = result_type(self._results[0].scripted)
                self._plan = plan_object(self._results, self._watch)
            except Error:  # a module branches, or returns a dict
                return 0
        return 0 if _meta_results(self._plan, shapes, dtypes) is None else int(self._plan.handle())

    def formats(
        self, shapes: Shapes, dtypes: Sequence[torch.dtype], formats: Formats
    ) -> Formats | None:
        """Returns the formats of the results for inputs of these shapes and formats.

        The original runs once on zeros, if it has not run inputs of such a layout. Returns None if
        the formats are not known: after load, in train mode, or if the original cannot run zeros.
        """
        if self._formats is None or all(each is torch.contiguous_format for each in formats):
            return None if self._formats is None else self._formats.of_contiguous
        results = _meta_results(self._plan, shapes, dtypes)
        with _disable_current_modes():
            zeros = [
                torch.zeros(shape, dtype=dtype).contiguous(
                    memory_format=each or torch.contiguous_format
                )
                for shape, dtype, each in zip(shapes, dtypes, formats, strict=True)
            ]
            try:
                return self._formats.of(zeros, results)
            except Exception:  # the user's code may raise anything
                return None

    def result(self, flat: Sequence[torch.Tensor], formats: Formats | None) -> Any:
        """Returns the model's result in these formats, built from all tensors in it."""
        result = nested(list(flat), self._type)
        return result if formats is None else with_formats(result, iter(formats))


def _meta_results(
    plan: Any, shapes: Shapes, dtypes: Sequence[torch.dtype]
) -> list[torch.Tensor] | None:
    """Returns the results of inputs of these shapes, without data.

    Returns None if their sizes depend on values of tensors.
    """
    with _disable_current_modes():
        inputs = [
            torch.empty(shape, dtype=dtype, device="meta")
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        try:
            found: list[torch.Tensor] = torch.ops.torchalgo.run_plan(inputs, plan)
        except RuntimeError:
            return None
    return found
