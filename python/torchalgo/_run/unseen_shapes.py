# SPDX-License-Identifier: BSD-3-Clause
"""Finds the plan that runs a call whose shapes have no plan of their own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import torch

from torchalgo._base.compare_outputs import same_values
from torchalgo._base.error_code import without_code
from torchalgo._base.f32_precision import EXACT_CPU
from torchalgo._C import Error
from torchalgo._capture.freeze import ScriptModule, capture_model, first_lines
from torchalgo._capture.reference import Reference, most_error
from torchalgo._capture.seen import look_at
from torchalgo._capture.shapes import Shapes, as_numbers, choose, explain, nearest
from torchalgo._ir.plan import shapes_text
from torchalgo._plan.preparation import proven_trace
from torchalgo._plan.result import Result
from torchalgo._run.original import Original

MOST_REMEMBERED = 1024  # the most shapes whose result is remembered


class UnseenShapes:
    """The plans for shapes that have no plan of their own, or the reasons why there is none."""

    def __init__(self, results: Sequence[Result], original: Original | None) -> None:
        self._results, self._original = list(results), original
        self._planned = [[list(sizes) for sizes in result.shapes] for result in results]
        self._dims = [as_numbers(result.dims) for result in results]
        self._found: dict[Shapes, Result | str] = {}

    def is_remembered(self, shapes: Shapes) -> bool:
        """Returns True if the shapes are counted one by one."""
        return shapes in self._found or len(self._found) < MOST_REMEMBERED

    def planned(self, shapes: Shapes) -> int:
        """Returns the index of the nearest result that is proven to be right; -1 if none is."""
        return choose([list(size) for size in shapes], self._planned, self._dims)

    def find(self, shapes: Shapes, tensors: Sequence[Any]) -> Result | str:
        """Returns the result whose plan runs `tensors`, or the reason why the original has to.

        The nearest plan runs if its capture is proven to be right for the shapes. Otherwise, the
        model is captured for these shapes, once, and compared with the captures of the plans.

        Raises: torchalgo.Error if the model itself raises.
        """
        found = self._found.get(shapes)
        if found is not None:
            return found
        i = self.planned(shapes)
        if i >= 0:
            return self._keep(shapes, self._results[i])
        why = explain([list(size) for size in shapes], self._planned, self._dims)
        if self._original is None or self._original.tensor_model is None:
            return self._keep(shapes, why)
        if len(self._found) >= MOST_REMEMBERED:
            return why
        return self._keep(shapes, self._compared(shapes, tensors))

    def _keep(self, shapes: Shapes, found: Result | str) -> Result | str:
        if len(self._found) < MOST_REMEMBERED:
            return self._found.setdefault(shapes, found)  # another thread may have been faster
        return found

    def _compared(self, shapes: Shapes, tensors: Sequence[Any]) -> Result | str:
        """Captures the model for `shapes` and returns the nearest result with an equal capture.

        Captures are equal if their programs are. Also, the result's module must give the model's
        outputs. Returns a reason if there is no such result.

        Raises: torchalgo.Error if the model raises.
        """
        original = self._original
        assert original is not None
        assert original.tensor_model is not None
        head = f"inputs are {shapes_text(shapes)}"
        try:
            with EXACT_CPU.block():
                reference = Reference.of(lambda *values: original.run_tensors(values), tensors)
        except Exception as problem:
            raise Error(
                f"TA1110 forward: the model raises for inputs {shapes_text(shapes)}:"
                f" {first_lines(problem)}"
            ) from problem
        try:
            seen = look_at(original.tensor_model, reference.inputs)
            capture = capture_model(original.tensor_model, reference.inputs, seen=seen)
            trace = proven_trace(capture, seen)
        except Error as problem:
            return f"{head}, for which there is no capture: {without_code(str(problem))}"
        captures = [each.frozen for each in (capture, trace) if each is not None]
        sizes = [list(size) for size in shapes]
        first = nearest(sizes, self._planned)
        others = [i for i in range(len(self._results)) if i != first]
        found = "this was loaded"
        for i in (first, *others):
            result = self._results[i]
            if result.frozen is None:
                continue
            differences = [_difference(frozen, result.frozen) for frozen in captures]
            found = "" if "" in differences else differences[0]
            if not found and _is_right(result, reference):
                return result
        what = f"captured with another program ({found})" if found else "computed otherwise"
        return f"{head}, for which the model is {what}"


def _is_right(result: Result, reference: Reference) -> bool:
    most = max(most_error(reference.inputs), result.plan.max_error or 0.0)
    try:
        return reference.error_of(result.scripted) <= most
    except RuntimeError:
        return False


def _difference(one: ScriptModule, other: ScriptModule) -> str:
    """Returns the first difference between the programs of two modules; empty if there is none.

    Two captures of one model at different sizes have equal programs if they compute the same
    function. Sizes that a trace stores with its values are not part of the program.
    """
    graphs = [_plain(module.graph) for module in (one, other)]
    # A module's type has another number in each capture, and none in the first one of a process.
    texts = [re.sub(r"___torch_mangle_\d+\.", "", each.str(False)).splitlines() for each in graphs]
    for lines in itertools.zip_longest(*texts, fillvalue="no op"):
        if lines[0] != lines[1]:
            return " and ".join(line.strip()[:80] for line in lines)
    constants = [_constants(graph) for graph in graphs]
    return "" if all(map(_equal, *constants)) else "a constant"


def _plain(graph: Any) -> Any:
    """Returns a copy of a graph without sizes of values, and with numbers as names of values."""
    copied = graph.copy()
    torch._C._jit_pass_erase_shape_information(copied)
    return torch._C._jit_pass_canonicalize(copied, False)


def _constants(graph: Any) -> list[Any]:
    """Returns the constants of a graph, whose text shows no elements of large tensors."""
    return [n.output().toIValue() for n in graph.findAllNodes("prim::Constant")]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        facts = [(x.shape, x.dtype, x.device) for x in (one, other)]
        if facts[0] != facts[1] or torch.equal(one, other):
            return facts[0] == facts[1]
        return one.is_floating_point() and same_values(one, other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other or (one != one and other != other))
