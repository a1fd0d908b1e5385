# SPDX-License-Identifier: BSD-3-Clause
"""Runs one graph of Dynamo by a plan, for any weights and any sizes of its inputs."""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any

import torch
from torch import fx, nn

from torchalgo._api.optimize import optimize
from torchalgo._base.overlap import Claims, fork_lock
from torchalgo._base.user_warning import warn_user
from torchalgo._C import Error
from torchalgo._capture.fx_model import Boxed, FxInputs, fx_model
from torchalgo._capture.shapes import Shapes, shapes_of
from torchalgo._dynamo.effects import why_not_planned
from torchalgo._dynamo.options import BackendOptions
from torchalgo._dynamo.read_graph import GraphInputs
from torchalgo._run.optimized import Optimized

MOST_WEIGHT_SETS = 16  # of one graph; the one that was used the longest ago is dropped
# Further weight sets than FREE_SETS are planned only if one set ran at least CALLS_PER_SET times on
# average: a model may have new weights in each call.
FREE_SETS, CALLS_PER_SET = 24, 100
MOST_SHAPES = 64  # of one weight set that get plans of their own; others run the first plan
MOST_NUMBERS = 4  # values of a graph's numbers that are not sizes
NO_CONVOLUTIONS = "it has no convolutions"
_REPLACED = f"its weights were replaced more than {FREE_SETS} times"
# The database lacks costs, LightGBM is missing, the device cannot be predicted, or another option
# excludes predictions.
_CANNOT_PREDICT = ("TA3201", "TA3202", "TA3203", "TA1002")
# Errors of these kinds say that a model or its inputs cannot be planned. All others are about the
# options, or are failures.
_OF_MODEL = ("TA11", "TA12")
_OF_CALL = (*_OF_MODEL, "TA2204")  # TA2204: the plan is not exact enough with the changed weights
# Errors of these kinds say that a plan does not fit a graph.
_OF_FIT = (*_OF_MODEL, "TA13", "TA22", "TA43")


class CompiledGraph:
    """The function that torch.compile calls instead of a graph.

    It plans the graph at its first call, when the inputs are known. torch.compile makes another
    graph of the same code for inputs of other sizes. With new_shapes="nearest", such a graph takes
    over the plan of the first one.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: GraphInputs,
        weights: Sequence[torch.Tensor],
        options: BackendOptions,
        others: Callable[[], Iterable[CompiledGraph]] = tuple,
    ) -> None:
        """Plans nothing yet.

        Args:
            weights: those for which torch.compile made the graph.
            others: returns all graphs, among which there may be others of the same code.
        """
        self.graph_module, self.inputs, self.options = graph_module, inputs, options
        self.calls = 0
        self.repacked = 0  # times that changed weights were packed again
        self.not_planned: Counter[str] = Counter()  # calls by reason
        self.weight_sets: tuple[WeightSet, ...] = ()  # the last one was used last
        self._names = [n.name for n in graph_module.graph.nodes if n.op == "placeholder"]
        self._first_weights = [weakref.ref(weight) for weight in weights]
        self._numbers: set[tuple[Any, ...]] = set()
        self._made = 0  # number of weight sets so far
        # The first text of each code: texts may hold numbers that differ in each call.
        self._errors: dict[str, str] = {}
        self._others = others
        self._planning = Claims()
        self._lock = fork_lock()

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        numbers = tuple(_number(args[i]) for i in self.inputs.numbers)
        why = self.inputs.refusal or self._why_not_now(args) or self._why_too_many(numbers)
        if why:
            return self._run_graph(why, args)
        tensors = [args[i] for i in self.inputs.tensors]
        found = self._weight_set([args[i] for i in self.inputs.weights], numbers, tensors)
        if isinstance(found, str):
            return self._run_graph(found, args)
        if found.refusal:
            return self._run_graph(found.refusal, args)
        try:
            return found.run(tensors)
        except Error as problem:  # the model's weights changed, or it has inputs of another kind
            if not problem.code.startswith(_OF_CALL):
                raise
            why = self._errors.setdefault(problem.code, str(problem))
            return self._run_graph(why, args)

    def _why_not_now(self, args: Sequence[Any]) -> str:
        """Returns why this call cannot run by a plan; empty if it can."""
        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            return "torch.autocast is on"
        if not (torch.is_grad_enabled() or self.inputs.enables_grad):
            return ""
        if any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
            return "gradients are enabled and a tensor requires one: use torch.no_grad()"
        return ""

    def _why_too_many(self, numbers: tuple[Any, ...]) -> str:
        """Returns a reason if the numbers have had many values. Each needs a capture of its own."""
        if len(self._numbers) <= MOST_NUMBERS:
            self._numbers.add(numbers)
        if len(self._numbers) <= MOST_NUMBERS:
            return ""
        return f"its arguments that are numbers have had more than {MOST_NUMBERS} values"

    def _weight_set(
        self,
        weights: Sequence[torch.Tensor],
        numbers: tuple[Any, ...],
        tensors: Sequence[torch.Tensor],
    ) -> WeightSet | str:
        """Returns the plans with these weights, or the reason why there are none for this call."""
        if self.weight_sets and self.weight_sets[-1].has(weights, numbers):
            return self.weight_sets[-1]
        with self._lock:
            known = (each for each in self.weight_sets if each.has(weights, numbers))
            found = next(known, None)
            if found is not None:
                return self._used(found)
            if self._made >= FREE_SETS and self.calls < CALLS_PER_SET * self._made:
                return _REPLACED
        with self._planning.claim() as is_mine:
            if not is_mine:
                return "another call is planning it"
            self._made += 1
            found = WeightSet(self, weights, numbers, tensors)
        with self._lock:
            return self._used(found)

    def _used(self, found: WeightSet) -> WeightSet:
        """Makes `found` the weight set that was used last. The caller holds the lock."""
        others = [each for each in self.weight_sets if each is not found]
        self.weight_sets = (*others, found)[-MOST_WEIGHT_SETS:]
        return found

    def model_of(self, weights: Sequence[torch.Tensor], numbers: Sequence[Any] = ()) -> nn.Module:
        """Returns the graph with these weights and numbers as a module of the user's tensors."""
        inputs, names = self.inputs, self._names
        bound = zip(inputs.weights, inputs.paths, weights, strict=True)
        given = FxInputs(
            weights={names[i]: (path, tensor) for i, path, tensor in bound},
            tensors=[names[i] for i in inputs.tensors],
            arguments=inputs.arguments,
            shapes=inputs.shapes,
            sizes={names[i]: size for i, size in inputs.sizes},
            numbers={
                names[i]: Boxed(number) if isinstance(number, float) else number
                for i, number in zip(inputs.numbers, numbers, strict=True)
            },
        )
        return fx_model(self.graph_module, given, inputs.root)

    def planned_before(self, weights: Sequence[torch.Tensor]) -> list[Optimized]:
        """Returns modules whose plans may fit: of this graph with any weights, and of other graphs
        with these weights under the same paths."""
        found = [each.first for each in self.weight_sets]
        for other in self._others():
            is_same_code = other is not self and other.inputs.paths == self.inputs.paths
            if is_same_code and other.options == self.options:
                found += [each.first for each in other.weight_sets if each.has(weights)]
        return [each for each in found if each is not None]

    def _run_graph(self, why: str, args: Sequence[Any]) -> Any:
        """Runs the graph with PyTorch. Warns at the first call."""
        is_first = not self.not_planned
        self.not_planned[why] += 1
        if is_first and why != NO_CONVOLUTIONS:
            warn_user(
                f"PyTorch runs this graph of torch.compile, since {why}. This warning appears once"
                " per graph; torchalgo.dynamo.report() counts such calls"
            )
        return self.graph_module.forward(*args)

    def weights(self) -> list[torch.Tensor]:
        """Returns the weights for which the graph was compiled, and those with which it ran."""
        first = [weight for ref in self._first_weights if (weight := ref()) is not None]
        return first + [weight for each in self.weight_sets for weight in each.weights]

    def refresh(self) -> None:
        """Packs the present weights of all weight sets."""
        for each in self.weight_sets:
            each.repack()


class WeightSet:
    """The plans of one graph with the weights of one model, and with the same numbers.

    `refusal` is the reason why there is no plan; empty if there is one. `first` is the module of
    the first plan; None if there is none.
    """

    def __init__(
        self,
        graph: CompiledGraph,
        weights: Sequence[torch.Tensor],
        numbers: tuple[Any, ...],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """Plans the graph for these inputs, or takes over a plan."""
        self.weights = list(weights)
        self.first: Optimized | None = None
        self._graph, self._numbers = graph, numbers
        self._by_shapes: dict[Shapes, Optimized] = {}
        self._planning = Claims()
        self._model = graph.model_of(weights, numbers)
        self.refusal = why_not_planned(self._model, tensors)
        if self.refusal:
            return
        try:
            first = self._first_plan(tensors)
        except Error as problem:
            if not problem.code.startswith(_OF_MODEL):
                raise
            self.refusal = str(problem)
            return
        self.first = self._by_shapes[shapes_of(tensors)] = first

    def modules(self) -> list[Optimized]:
        """Returns the optimized modules, one for each plan."""
        return list(self._by_shapes.values())

    def has(self, weights: Sequence[torch.Tensor], numbers: tuple[Any, ...] | None = None) -> bool:
        """Returns whether these are the weights, and the numbers if given, of this set."""
        if numbers is not None and numbers != self._numbers:
            return False
        return len(weights) == len(self.weights) and all(map(is_, self.weights, weights))

    def optimized_for(self, tensors: Sequence[torch.Tensor]) -> Optimized:
        """Returns the optimized module that runs inputs of these sizes."""
        first, new_shapes = self.first, self._graph.options.new_shapes
        assert first is not None
        if new_shapes == "nearest" or not self._graph.inputs.sizes:
            return first
        shapes = shapes_of(tensors)
        found = self._by_shapes.get(shapes)
        if found is not None or len(self._by_shapes) >= MOST_SHAPES:
            return found or first
        with self._planning.claim(shapes) as is_mine:
            if is_mine and shapes not in self._by_shapes:
                self._by_shapes[shapes] = self._plan(tensors, mode=new_shapes)
        return self._by_shapes.get(shapes, first)

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Runs the plan. Packs the weights again if one of them has changed."""
        optimized = self.optimized_for(tensors)
        try:
            return optimized(*tensors)
        except Error as problem:
            if problem.code != "TA1404":
                raise
        self.repack()
        return optimized(*tensors)

    def repack(self) -> None:
        """Packs the present weights. Keeps the plans and measures nothing."""
        for each in self.modules():
            each.refresh()
        self._graph.repacked += 1

    def _first_plan(self, tensors: Sequence[torch.Tensor]) -> Optimized:
        if self._graph.options.new_shapes == "nearest":
            for before in self._graph.planned_before(self.weights):
                known = self._taken_over(before, tensors)
                if known is not None:
                    return known
        if self._graph.options.is_mode_free:
            try:
                return self._plan(tensors, mode="predict")
            except Error as problem:
                if problem.code not in _CANNOT_PREDICT:
                    raise
        return self._plan(tensors)

    def _plan(self, tensors: Sequence[torch.Tensor], **settings: Any) -> Optimized:
        options = self._graph.options
        changed = dataclasses.replace(options.settings, **settings)
        planned: Optimized = optimize(
            self._model, tuple(tensors), settings=changed, **options.arguments
        )
        if planned.why_as_given:
            raise Error(f"TA1108 optimize: {planned.why_as_given}")
        return planned

    def _taken_over(self, before: Optimized, tensors: Sequence[torch.Tensor]) -> Optimized | None:
        """Returns this graph with the plan of another module; None if the plan does not fit."""
        args, _ = before.example_calls()[0]
        if [(x.dtype, x.device) for x in args] != [(x.dtype, x.device) for x in tensors]:
            return None
        settings = dataclasses.replace(
            self._graph.options.settings, mode="tune", fresh=False, weight_limit_bytes=None
        )
        try:
            return optimize(self._model, args, plan=before.plan, settings=settings)
        except Error as problem:
            if not problem.code.startswith(_OF_FIT):
                raise
            return None


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, torch.Tensor) else value
