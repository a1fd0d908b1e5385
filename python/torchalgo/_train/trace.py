# SPDX-License-Identifier: BSD-3-Clause
"""Traces a model in train mode, and cuts it into regions of known operations and the rest.

A region is a part of the model whose forward pass and gradients can be planned together. All else
runs as in the model: unknown operations, modules with hooks, and modules that a user has derived.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.fx.passes.split_module import split_module
from torch.nn import functional

from torchalgo import _C

_ADDITIONS: frozenset[Any] = frozenset(
    (operator.add, operator.iadd, torch.add, "add", "add_")
)  # of functions and of methods
_RELUS: frozenset[Any] = frozenset(
    (functional.relu, torch.relu, torch.relu_, functional.relu_, "relu", "relu_")
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Returns whether a user has attached a hook to the module itself."""
    return any(getattr(module, name) for name in _HOOKS)


class _Tracer(fx.Tracer):
    """Enters modules of a user, unless they have hooks: a hook needs the module's own call."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return has_hooks(m) or super().is_leaf_module(m, module_qualified_name)


@dataclass(frozen=True)
class Op:
    """A known operation of a region: how a problem is made of it."""

    kind: str  # conv, batch_norm, relu, relu6, add, maxpool, avgpool, globalpool or concat
    module: nn.Module | None


def known_op(node: fx.Node, modules: dict[str, nn.Module]) -> Op | None:
    """Returns what a node computes, or None if it is not known. `node.meta` holds the shapes."""
    if node.op == "call_module":
        return _known_module(node, modules[str(node.target)])
    if node.op not in ("call_function", "call_method"):
        return None
    if node.target in _RELUS and len(node.args) == 1 and _images(node.args):
        return Op("relu", None)
    is_plain = len(node.args) == 2 and not node.kwargs
    if node.target in _ADDITIONS and is_plain and _images(node.args):
        first, second = (_shape(each) for each in node.args)
        return Op("add", None) if first == second else None
    if (
        node.target in (torch.cat, torch.concat)
        and node.args
        and isinstance(node.args[0], list | tuple)
    ):
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if dim == 1 and len(node.args[0]) > 1 and _images(node.args[0]):
            return Op("concat", None)
    return None


def _known_module(node: fx.Node, module: nn.Module) -> Op | None:
    if has_hooks(module) or len(node.args) != 1 or node.kwargs or not _images(node.args):
        return None
    if type(module) is nn.Conv2d and module.padding_mode == "zeros":
        is_even = not isinstance(module.padding, str)
        return Op("conv", module) if is_even else None
    if type(module) is nn.BatchNorm2d and module.affine:
        return Op("batch_norm", module)
    if type(module) is nn.ReLU:
        return Op("relu", module)
    if type(module) is nn.ReLU6:
        return Op("relu6", module)
    if type(module) is nn.MaxPool2d and not module.return_indices:
        return Op("maxpool", module)
    if type(module) is nn.AvgPool2d and module.divisor_override is None:
        return Op("avgpool", module)
    if type(module) is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1)):
        return Op("globalpool", module)
    return None


def _shape(value: Any) -> tuple[int, ...] | None:
    meta = value.meta.get("tensor_meta") if isinstance(value, fx.Node) else None
    if meta is None or not hasattr(meta, "dtype") or meta.dtype is not torch.float32:
        return None
    return tuple(meta.shape)


def _images(values: Sequence[Any]) -> bool:
    """Returns whether all are images [n, c, h, w] of float32."""
    shapes = [_shape(value) for value in values]
    return all(shape is not None and len(shape) == 4 and min(shape) > 0 for shape in shapes)


@dataclass(frozen=True)
class Traced:
    """A model in parts. `whole` calls the parts, whose modules are those of the model."""

    whole: fx.GraphModule
    regions: dict[str, fx.GraphModule]  # parts of known operations, by their names in `whole`


def trace(model: nn.Module, inputs: Sequence[Tensor]) -> Traced:
    """Traces `model` and cuts it into regions. The model itself stays as it is.

    Raises: torchalgo.Error if Python code of the model depends on values, so that it has no trace.
    """
    try:
        whole = fx.GraphModule(model, _Tracer().trace(model))
    except Exception as problem:
        raise _C.Error(
            "TA1601 optimize: training=True needs a model that torch.fx can trace, and this one"
            f" it cannot ({type(problem).__name__}: {str(problem)[:300]}). Mark the part that"
            " decides by values with torch.fx.wrap, or train the model as it is"
        ) from problem
    _propagate(whole, inputs)
    _name_results_of_in_place_ops(whole.graph, dict(whole.named_modules()))
    return _split(whole)


def _propagate(whole: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
    """Runs a copy once, which notes the shapes, and changes neither statistics nor random state."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        copied = fx.GraphModule(copy.deepcopy(whole), whole.graph)
        ShapeProp(copied).propagate(*(x.detach().clone() for x in inputs))
    for node, noted in zip(whole.graph.nodes, copied.graph.nodes, strict=True):
        if "tensor_meta" in noted.meta:
            node.meta["tensor_meta"] = noted.meta["tensor_meta"]


def _writes_in_place(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    in_place = (operator.iadd, torch.relu_, functional.relu_, "relu_", "add_")
    return node.target in in_place or bool(node.kwargs.get("inplace"))


def _name_results_of_in_place_ops(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Lets later readers of a tensor that a known op changes in place read the op's result.

    Then the op may as well make a new tensor.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not _writes_in_place(node, modules) or known_op(node, modules) is None:
            continue
        changed = node.args[0]
        for reader in list(changed.users):
            if order[reader] > order[node]:
                reader.replace_input_with(changed, node)


def _split(whole: fx.GraphModule) -> Traced:
    modules = dict(whole.named_modules())
    for node in whole.graph.nodes:
        if node.op == "call_module":
            node.meta["layer"] = node.target  # split_module changes the target
    place: dict[fx.Node, tuple[int, bool]] = {}
    for node in whole.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        is_known = known_op(node, modules) is not None and not _changes_an_input(node, modules)
        before = [place[source] for source in node.all_input_nodes if source in place]
        level = max((at + (kind != is_known) for at, kind in before), default=0)
        place[node] = (level, is_known)
    numbers = {each: number for number, each in enumerate(sorted(set(place.values())))}
    split = split_module(whole, nn.Module(), lambda node: numbers[place[node]])
    regions = {
        f"submod_{number}": getattr(split, f"submod_{number}")
        for (_, is_known), number in numbers.items()
        if is_known
    }
    convolutions = {
        name: part for name, part in regions.items()
        if any(type(m) is nn.Conv2d for m in part.modules())
    }  # fmt: skip
    return Traced(split, convolutions)


def _changes_an_input(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Returns whether the op changes a tensor of the caller, who would see it."""
    is_input = isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"
    return is_input and _writes_in_place(node, modules)
