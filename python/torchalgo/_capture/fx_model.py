# SPDX-License-Identifier: BSD-3-Clause
"""Makes an nn.Module of an fx graph, so that optimize plans it as it plans the user's model.

torch.compile and torch.export give a model as an fx graph. Its nodes know which module of the user
called them. `fx_model` rebuilds these modules, without code, around the weights of the graph. While
the graph is traced, each node runs in the scope of its module. So the trace has the names of the
user's model.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from torchalgo._C import Error

_ROOT = re.compile(r"^[LG]\['([^']+)'\]")
_STEP = re.compile(r"_(?:modules|parameters|buffers)\['([^']*)'\]|\['?([^'\]]*)'?\]|([^.\[\]]+)")


@dataclass(frozen=True)
class SizeOf:
    """A number of a graph: the size of dimension `dim` of the tensor with this position."""

    tensor: int
    dim: int


@dataclass(frozen=True)
class Boxed:
    """A float that Dynamo passes as a tensor. The graph calls nothing but `item` on it."""

    value: float

    def item(self) -> float:
        return self.value


@dataclass(frozen=True)
class FxInputs:
    """The inputs of a graph, by the names of its nodes.

    Args:
        weights: the tensors that belong to the model, with their paths, such as "conv1.weight".
        tensors: the other tensors, in the order of the model's arguments.
        arguments: a name for each of these, as the user's code has it.
        shapes: the sizes of each of these that the graph relies on; None for others. Sizes with
            the same word are equal.
        sizes: the numbers that are sizes of these tensors.
        numbers: the other numbers, which become constants.
    """

    weights: Mapping[str, tuple[str, torch.Tensor]]
    tensors: Sequence[str]
    arguments: Sequence[str]
    shapes: Sequence[Sequence[int | str | None]]
    sizes: Mapping[str, SizeOf]
    numbers: Mapping[str, Any]


def path_of(source: str) -> tuple[str, str]:
    """Splits the text with which Dynamo names a value into the variable and a dotted path.

    Example: "L['self']._modules['layer1']._parameters['weight']" is ("self", "layer1.weight").
    """
    root = _ROOT.match(source)
    rest = source[root.end() :] if root else source
    steps = ("".join(step) for step in _STEP.findall(rest))
    return (root[1] if root else ""), ".".join(step for step in steps if step)


def fx_model(graph_module: fx.GraphModule, inputs: FxInputs, root: str) -> nn.Module:
    """Returns a module in eval mode that runs the graph and returns its outputs.

    Args:
        graph_module: calls functions of torch. It is not modified.
        root: the variable whose modules get paths without a prefix; usually "self".
    Returns: a module whose forward takes the tensors that are no weights. Its parameters and
        buffers are the tensors of `inputs.weights` themselves, under their paths.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(n, kind) for n in ("self", *inputs.arguments)])

    def forward(self: FxModel, *tensors: torch.Tensor) -> Any:
        return self.run_graph(tensors)

    forward.__signature__ = signature  # type: ignore[attr-defined]
    # A class of its own, because a deep copy of a module does not copy the functions in it.
    own_class = type("FxModel", (FxModel,), {"forward": forward, "__module__": __name__})
    model: nn.Module = own_class(graph_module, inputs, root)
    return model.eval()


class FxModel(nn.Module):
    """A module that runs an fx graph; see fx_model."""

    def __init__(self, graph_module: fx.GraphModule, inputs: FxInputs, root: str) -> None:
        super().__init__()
        self._fx_graph = _Graph(graph_module)
        self._fx_tensors = tuple(inputs.tensors)
        self._fx_arguments, self._fx_shapes = tuple(inputs.arguments), tuple(inputs.shapes)
        self._fx_sizes, self._fx_numbers = dict(inputs.sizes), dict(inputs.numbers)
        self._fx_weights: dict[str, tuple[str, str]] = {}  # path of the module and the last name
        self._fx_scopes: dict[str, list[str]] = {}
        for node in graph_module.graph.nodes:
            calls = _calls_of(node, root)
            self._fx_scopes[node.name] = [path for path, _ in calls]
            for path, made_by in calls:
                self._module_at(path, made_by)
        places = {name: path.rpartition(".") for name, (path, _) in inputs.weights.items()}
        for owner, _, _ in places.values():  # before any weight gets such a name
            self._module_at(owner)
        for name, (owner, _, last) in places.items():
            self._register(name, owner, last, inputs.weights[name][1])

    def run_graph(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Runs the graph with the present weights.

        Raises: torchalgo.Error for sizes that differ from those on which the graph relies.
        """
        # The comparisons also tell the symbolic run (free_sizes.py) which sizes are pinned.
        if torch._C._get_tracing_state() is None:
            _check_sizes(self._fx_arguments, tensors, self._fx_shapes)
        values: dict[str, Any] = dict(zip(self._fx_tensors, tensors, strict=True))
        values |= self._fx_numbers
        for name, size in self._fx_sizes.items():
            values[name] = tensors[size.tensor].shape[size.dim]
        for name, (owner, last) in self._fx_weights.items():
            values[name] = getattr(self.get_submodule(owner), last)
        graph_module = self._fx_graph.module
        arguments = [values[n.name] for n in graph_module.graph.nodes if n.op == "placeholder"]
        return _Scoped(graph_module, self._fx_scopes, values).run(*arguments)

    def _module_at(self, path: str, made_by: Any = nn.Module) -> nn.Module:
        module: nn.Module = self
        parts = path.split(".") if path else []
        for i, part in enumerate(parts):
            if part not in module._modules:
                is_last = i + 1 == len(parts)
                module._modules[part] = _empty(made_by if is_last else nn.Module)
            module = module._modules[part]  # type: ignore[assignment]
        return module

    def _register(self, name: str, owner: str, last: str, tensor: torch.Tensor) -> None:
        module = self._module_at(owner)
        taken = {**module._modules, **module._parameters, **module._buffers}
        # Two variables may have a module of the same path, and a weight may have the name of an
        # attribute.
        while last in taken or hasattr(module, last) or last.startswith("_fx_"):
            last += "_"
        table = module._parameters if isinstance(tensor, nn.Parameter) else module._buffers
        table[last] = tensor  # type: ignore[assignment]
        self._fx_weights[name] = owner, last


class _Graph:
    """Holds the graph, which is no submodule: its weights are those of the modules around it.

    Deep copies of a model share it, since nothing changes it.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module

    def __deepcopy__(self, memo: dict[int, Any]) -> _Graph:
        return self


class _Scoped(fx.Interpreter):
    """Runs a graph. While it is traced, each node runs in the scope of its module."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        scopes: Mapping[str, list[str]],
        values: Mapping[str, Any],
    ) -> None:
        super().__init__(graph_module)
        self.extra_traceback = False  # an error of the model is told without a listing of the graph
        self._scopes, self._values = scopes, values

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "get_attr" and n.name in self._values:
            return self._values[n.name]
        state: Any = torch._C._get_tracing_state()
        paths = self._scopes.get(n.name, []) if state is not None else []
        for path in paths:
            state.push_scope(f"__module.{path}")
        try:
            return super().run_node(n)
        finally:
            for _ in paths:
                state.pop_scope()

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a function of a node. In a trace, sizes are tensors, which it must not read."""
        if torch._C._get_tracing_state() is not None:
            if target in _OF_TENSORS:
                return _OF_TENSORS[target](*args)
            if isinstance(target, torch._ops.OpOverload) and _gets_sizes(target, args):
                target = _function_of(target)
        return super().call_function(target, args, kwargs)


def _of_number(function: Callable[[torch.Tensor], torch.Tensor], otherwise: Any) -> Any:
    return lambda x: function(x).long() if isinstance(x, torch.Tensor) else otherwise(x)


def _sliced(
    x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> torch.Tensor:
    return x[(slice(None),) * (dim % x.dim()) + (slice(start, end, step),)]


# Functions of sizes whose results would be constants of a trace, and what a trace keeps instead.
_OF_TENSORS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.sym_size.int: lambda x, dim: x.shape[dim],
    torch.ops.aten.sym_numel.default: lambda x: x.numel(),
    torch.ops.aten._assert_scalar.default: lambda *_: None,
    torch.sym_float: lambda x: x.double() if isinstance(x, torch.Tensor) else float(x),
    torch.sym_sqrt: lambda x: torch.as_tensor(x).sqrt(),
    torch.sym_max: lambda a, b: torch.maximum(*map(torch.as_tensor, (a, b))),
    torch.sym_min: lambda a, b: torch.minimum(*map(torch.as_tensor, (a, b))),
    math.floor: _of_number(torch.floor, math.floor),
    math.ceil: _of_number(torch.ceil, math.ceil),
    math.trunc: _of_number(torch.trunc, math.trunc),
}


def _gets_sizes(op: torch._ops.OpOverload, args: tuple[Any, ...]) -> bool:
    """Returns whether an argument that is a number, or a list of them, holds a size of a trace."""
    return any(
        isinstance(leaf, torch.Tensor)
        for argument, given in zip(op._schema.arguments, args, strict=False)
        if "Tensor" not in str(argument.type)
        for leaf in tree_leaves(given)
    )


def _function_of(op: torch._ops.OpOverload) -> Any:
    """Returns the function of torch that calls an op. A trace keeps the sizes that it gets."""
    if op is torch.ops.aten.slice.Tensor:
        return _sliced
    name = op._schema.name.removeprefix("aten::")
    owners = (torch.Tensor, torch, torch._C._nn)
    return next((getattr(owner, name) for owner in owners if hasattr(owner, name)), op)


def _check_sizes(
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    shapes: Sequence[Sequence[int | str | None]],
) -> None:
    first: dict[int | str, tuple[str, int, int]] = {}  # input and dimension with each size
    for name, tensor, sizes in zip(names, tensors, shapes, strict=True):
        is_right = tensor.dim() == len(sizes)
        for dim, (size, wanted) in enumerate(zip(tensor.shape, sizes, strict=False)):
            if isinstance(wanted, int):
                is_right = is_right and size == wanted
            elif wanted is not None and size != first.setdefault(wanted, (name, dim, size))[2]:
                other, of_other, same = first[wanted]
                raise Error(
                    f"TA4301 forward: dimension {dim} of input {name} is {size}, and dimension"
                    f" {of_other} of input {other} is {same}, expected equal sizes: the graph was"
                    " made for these"
                )
        if not is_right:
            expected = "x".join(str(size) if isinstance(size, int) else "?" for size in sizes)
            raise Error(
                f"TA4301 forward: input {name} has sizes {list(tensor.shape)}, expected {expected}:"
                " the graph was made for these. Export the model with dynamic_shapes, or give such"
                " inputs"
            )


def _calls_of(node: fx.Node, root: str) -> list[tuple[str, Any]]:
    """Returns path and class of the modules whose calls led to a node, the outermost first."""
    calls = []
    for source, made_by in (node.meta.get("nn_module_stack") or {}).values():
        path = stack_path(source, root)
        if path:
            calls.append((path, made_by))
    return calls


def stack_path(source: str, root: str) -> str:
    """Returns the path of a module or a weight below `root`; others begin with their variable."""
    variable, path = path_of(source)
    return path if variable in ("", root) else ".".join(part for part in (variable, path) if part)


def _empty(made_by: Any) -> nn.Module:
    """Returns a module of this class of torch.nn without attributes; else a plain nn.Module.

    The importer asks for the class of modules that are one op.
    """
    module = nn.Module()
    is_named = isinstance(made_by, str) and made_by.startswith("torch.nn.modules.")
    found = getattr(nn, made_by.rpartition(".")[2], None) if is_named else made_by
    if isinstance(found, type) and found.__module__.startswith("torch.nn.modules."):
        module = cast(Any, found).__new__(found)
        nn.Module.__init__(module)
    return module


_READ_VALUES = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)


def exported_model(program: torch.export.ExportedProgram) -> nn.Module:
    """Returns an exported program as a module in eval mode, which shares the program's weights.

    Raises: torchalgo.Error if it takes or returns anything but tensors in tuples and lists, if it
        reads the value of a tensor, or if it is optimized already.
    """
    graph_module = program.module(check_guards=False)
    graph = graph_module.graph
    if any(node.target is torch.ops.torchalgo.run_plan.default for node in graph.nodes):
        raise Error("TA1102 optimize: the program is already optimized; pass the original one")
    weights: dict[str, tuple[str, torch.Tensor]] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            value = functools.reduce(getattr, str(node.target).split("."), graph_module)
            if isinstance(value, torch.Tensor):
                weights[node.name] = str(node.target), value
    read = next((node for node in graph.nodes if node.target in _READ_VALUES), None)
    if read is not None:
        raise Error(
            f"TA1115 optimize: the exported program reads the value of {read.args[0]}, which a plan"
            " would keep for all calls: compute with the tensor instead of its item()"
        )
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    positional, by_name = program.call_spec.in_spec.children()
    is_flat = not by_name.num_leaves and all(each.is_leaf() for each in positional.children())
    if not is_flat or not all(isinstance(n.meta.get("val"), torch.Tensor) for n in inputs):
        raise Error(
            "TA1207 optimize: the exported program takes more than tensors by position; expected"
            " a program whose forward takes tensors only. Export a module that does"
        )
    shapes = [
        [size if isinstance(size, int) else str(size) for size in node.meta["val"].shape]
        for node in inputs
    ]
    names = [node.name for node in inputs]
    arguments = [str(node.target) for node in inputs]  # "input" where the node is "input_1"
    return fx_model(graph_module, FxInputs(weights, names, arguments, shapes, {}, {}), root="")
