# SPDX-License-Identifier: BSD-3-Clause
"""The backend "torchalgo" of torch.compile.

    compiled = torch.compile(model.eval(), backend="torchalgo")
    with torch.no_grad():
        y = compiled(x)
    print(torchalgo.dynamo.report(compiled))

Each graph that torch.compile finds is planned at its first call, as torchalgo.optimize plans a
model. docs/compile.md says what runs a plan and what does not.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx, nn

from torchalgo._C import Error
from torchalgo._ir.plan import Plan
from torchalgo._ir.plan.text_table import ShownAsText

if TYPE_CHECKING:
    from torchalgo._dynamo.compiled_graph import CompiledGraph

__all__ = ["GraphReport", "Report", "backend", "refresh", "report"]

_graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose", "convolution", "Conv")


def backend(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph for torch.compile, which calls this function.

        compiled = torch.compile(model, backend="torchalgo", options={"budget_s": 30.0})

    Args:
        graph_module: the graph.
        example_inputs: its inputs, weights included.
        mode: "default" (or None) predicts costs that the database lacks. It measures if it cannot
            predict. "max-autotune" measures.
        options: arguments of torchalgo.optimize (overrides, plan, budget_s, objective), of
            torchalgo.Settings, and "new_shapes". This one says what runs inputs of sizes that have
            no plan: "nearest", the plan of the nearest sizes (default), or a new plan, made as by
            "predict" or "tune".
    Returns: the function that runs the graph. A graph without convolutions is run by PyTorch.
    Raises: torchalgo.Error if the mode or an option is unknown, or if a value is not allowed.
    """
    # These import torch._dynamo, which takes a second. torchalgo imports this module at once:
    # torch.compile raises "duplicate name" if a second thread loads the backend meanwhile.
    from torchalgo._dynamo.compiled_graph import NO_CONVOLUTIONS, CompiledGraph
    from torchalgo._dynamo.options import read_options
    from torchalgo._dynamo.read_graph import is_weight, read_inputs

    read = read_options(mode, options)
    inputs = read_inputs(graph_module, example_inputs)
    if not _has_convolutions(graph_module):
        inputs = dataclasses.replace(inputs, refusal=NO_CONVOLUTIONS)
    weights = [example for example in example_inputs if is_weight(example)]
    compiled = CompiledGraph(graph_module, inputs, weights, read, lambda: list(_graphs))
    _graphs.add(compiled)
    return compiled


def _has_convolutions(graph_module: fx.GraphModule) -> bool:
    for module in graph_module.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op == "call_module":
                text = type(module.get_submodule(str(node.target))).__name__
            else:
                text = getattr(node.target, "__name__", str(node.target))
            if any(word in text for word in _CONVOLUTIONS):
                return True
    return False


@dataclass(frozen=True)
class GraphReport:
    """Counts the calls of one graph of torch.compile, and holds its plans.

        print(torchalgo.dynamo.report(compiled).graphs[0].plans)

    Args:
        weights: the number of its weights.
        calls: the number of calls.
        plans: the plans, by the shapes of the inputs, of the weights that were used last.
        original_runs: the calls that PyTorch ran, by reason. It includes calls that had no plan for
            the sizes of their inputs.
        repacked: how many times changed weights were packed again.
        weight_sets: the number of models whose weights are packed for this graph.
    """

    weights: int
    calls: int
    plans: Mapping[str, Plan]
    original_runs: Mapping[str, int]
    repacked: int
    weight_sets: int

    @property
    def planned_runs(self) -> int:
        """The number of calls that ran a plan."""
        return self.calls - sum(self.original_runs.values())

    def __str__(self) -> str:
        lines = [
            f"graph with {self.weights} weights: {self.planned_runs} of {self.calls} calls ran a"
            f" plan; weights packed again {self.repacked} times, for {self.weight_sets} models"
        ]
        lines += [
            f"  inputs {shapes}: predicted {plan.cost_us / 1000:.3g} ms"
            for shapes, plan in self.plans.items()
        ]
        lines += [
            f"  PyTorch ran {count} calls: {why}" for why, count in self.original_runs.items()
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Report(ShownAsText):
    """Holds the reports of all graphs of a compiled module. `print` shows a few lines for each.

        print(torchalgo.dynamo.report(compiled).original_runs)

    Args:
        graphs: a part for each graph.
    """

    graphs: tuple[GraphReport, ...]

    @property
    def original_runs(self) -> Counter[str]:
        """The calls that PyTorch ran instead of a plan, by reason, of all graphs."""
        return sum((Counter(each.original_runs) for each in self.graphs), Counter())

    def __str__(self) -> str:
        return "\n".join(map(str, self.graphs)) or "no graph was compiled yet"


def report(compiled: nn.Module | None = None) -> Report:
    """Returns what the graphs of a compiled module did so far.

        print(torchalgo.dynamo.report(compiled))

    Args:
        compiled: a module from torch.compile, or the original one. Its graphs are those that run
            its weights. None: all graphs.
    Raises: torchalgo.Error if `compiled` is not a module.
    """
    return Report(tuple(_report_of(each) for each in _graphs_of(compiled, "report")))


def refresh(compiled: nn.Module | None = None) -> None:
    """Packs the present weights again, for the same plans. Measures nothing.

    Changes by optimizers, load_state_dict, copy_ and assignments to `.data` are seen without it.
    Writes through `.data` are seen only if they change the middle element of the weight, so call
    this function after them.

        model.fc.weight.data[0].mul_(2)
        torchalgo.dynamo.refresh(compiled)

    Args:
        compiled: as in `report`.
    Raises: torchalgo.Error if `compiled` is not a module.
    """
    for each in _graphs_of(compiled, "refresh"):
        each.refresh()


def _graphs_of(compiled: nn.Module | None, what: str) -> list[CompiledGraph]:
    graphs = list(_graphs)
    if compiled is None:
        return graphs
    if not isinstance(compiled, nn.Module):
        raise Error(
            f"TA1101 dynamo.{what}: compiled is {type(compiled).__name__}, expected the module that"
            " torch.compile returned, or None for all graphs"
        )
    own = {id(tensor) for tensor in [*compiled.parameters(), *compiled.buffers()]}
    return [graph for graph in graphs if any(id(weight) in own for weight in graph.weights())]


def _report_of(graph: CompiledGraph) -> GraphReport:
    sets = graph.weight_sets
    reasons = Counter(graph.not_planned)
    for each in sets:
        for optimized in each.modules():
            reasons.update(optimized.original_runs)
    plans = {
        shapes: plan
        for each in sets[-1:]
        for optimized in each.modules()
        for shapes, plan in optimized.plans.items()
    }
    return GraphReport(
        len(graph.inputs.weights),
        graph.calls,
        plans,
        dict(reasons),
        graph.repacked,
        len(sets),
    )
