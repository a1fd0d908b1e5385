# SPDX-License-Identifier: BSD-3-Clause
"""Reads what a graph of Dynamo says of its inputs: weights, the user's tensors, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.source import TensorProperty, TensorPropertySource

from torchalgo._capture.calls import script_names
from torchalgo._capture.fx_model import SizeOf, path_of, stack_path


@dataclass(frozen=True)
class GraphInputs:
    """The inputs of a graph by their positions.

    Args:
        weights: the positions of the model's weights.
        paths: their paths, such as "layer1.0.conv1.weight".
        tensors: the positions of the user's tensors.
        arguments: the variables that held these.
        shapes: the sizes of each of these for which the graph was made; None for any size.
        sizes: numbers that are sizes of the user's tensors.
        numbers: the positions of other numbers. Dynamo passes a float as a tensor in f64.
        root: the variable that held the model, usually "self".
        refusal: the reason why the graph cannot be planned; empty if it can.
        enables_grad: True if the graph itself enables gradients.
    """

    weights: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()
    tensors: tuple[int, ...] = ()
    arguments: tuple[str, ...] = ()
    shapes: tuple[tuple[int | None, ...], ...] = ()
    sizes: tuple[tuple[int, SizeOf], ...] = ()
    numbers: tuple[int, ...] = ()
    root: str = "self"
    refusal: str = ""
    enables_grad: bool = False


def read_inputs(graph_module: fx.GraphModule, examples: Sequence[Any]) -> GraphInputs:
    """Sorts the inputs of a graph. `examples` are those that Dynamo gives to a backend."""
    nodes = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    if len(nodes) != len(examples):
        return GraphInputs(refusal=f"it has {len(nodes)} inputs and {len(examples)} examples")
    sources = [getattr(node.meta.get("grapharg"), "source", None) for node in nodes]
    weights = [i for i, example in enumerate(examples) if is_weight(example)]
    tensors = [
        i
        for i, example in enumerate(examples)
        if isinstance(example, torch.Tensor) and i not in set(weights) and not _is_float(nodes[i])
    ]
    if not tensors:
        return GraphInputs(refusal="it takes no tensor")
    names = [_name_of(source) for source in sources]
    variables = {path_of(names[i])[0] for i in weights}
    root = "self" if "self" in variables or len(variables) != 1 else variables.pop()
    by_name = {names[i]: position for position, i in enumerate(tensors)}
    sizes: list[tuple[int, SizeOf]] = []
    numbers: list[int] = []
    for i in sorted({*range(len(examples))} - {*weights, *tensors}):
        size = _size_of(sources[i], by_name)
        if size is not None:
            sizes.append((i, size))
        elif isinstance(examples[i], (int, torch.SymInt)) or _is_float(nodes[i]):
            numbers.append(i)
        else:
            kind = type(examples[i]).__name__
            return GraphInputs(refusal=f"its input {names[i] or nodes[i].name} is a {kind}")
    return GraphInputs(
        tuple(weights),
        tuple(stack_path(names[i], root) for i in weights),
        tuple(tensors),
        tuple(script_names([".".join(path_of(names[i] or nodes[i].name)) for i in tensors])),
        tuple(_sizes_of(nodes[i], examples[i]) for i in tensors),
        tuple(sizes),
        tuple(numbers),
        root,
        enables_grad=any(
            node.target is torch._C._set_grad_enabled and node.args[:1] == (True,)
            for node in graph_module.graph.nodes
        ),
    )


def is_weight(example: Any) -> bool:
    """Returns whether an input of a graph belongs to the model. Dynamo marks buffers as static."""
    return isinstance(example, nn.Parameter) or (
        isinstance(example, torch.Tensor) and hasattr(example, "_dynamo_static_input_type")
    )


def _is_float(node: fx.Node) -> bool:
    """Returns whether an input is a float as a tensor, of which the graph reads the value only."""
    is_boxed = getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)
    return bool(is_boxed) and all(
        user.op == "call_method" and user.target == "item" for user in node.users
    )


def _sizes_of(node: fx.Node, example: torch.Tensor) -> tuple[int | None, ...]:
    known = node.meta.get("example_value", example)
    return tuple(size if isinstance(size, int) else None for size in known.shape)


def _name_of(source: Any) -> str:
    """Returns Dynamo's text for a source. In some versions of torch `name` is a method."""
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def _size_of(source: Any, positions: dict[str, int]) -> SizeOf | None:
    is_size = isinstance(source, TensorPropertySource) and source.prop is TensorProperty.SIZE
    position = positions.get(_name_of(source.base)) if is_size else None
    return None if position is None else SizeOf(position, int(source.idx))
