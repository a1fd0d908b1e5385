# SPDX-License-Identifier: BSD-3-Clause
"""Makes calls of torch's functions of the nodes of a file."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import fx, nn

from torchalgo._onnx_ops.convolutions import CONVOLUTIONS
from torchalgo._onnx_ops.elementwise import ELEMENTWISE
from torchalgo._onnx_ops.names import Place, checked_path, places_of
from torchalgo._onnx_ops.network import Calls, Input, Model, Node, identifier
from torchalgo._onnx_ops.norms import NORMS
from torchalgo._onnx_ops.op import Op
from torchalgo._onnx_ops.open_sizes import (
    Shapes,
    numbers_for,
    open_shapes,
    sizes_to_check,
)
from torchalgo._onnx_ops.pooling import POOLING
from torchalgo._onnx_ops.reductions import REDUCTIONS
from torchalgo._onnx_ops.refusal import (
    DamagedError,
    NotSupportedError,
    RefusalError,
)
from torchalgo._onnx_ops.resize import read_resize
from torchalgo._onnx_ops.shapes import SHAPES
from torchalgo._onnx_ops.sizes import SIZES, are_sizes
from torchalgo._onnx_ops.values import Builder, Constant, Sizes, Value

OPS: dict[str, Callable[[Op], Value | list[Value]]] = {
    **CONVOLUTIONS, **ELEMENTWISE, **NORMS, **POOLING, **REDUCTIONS, **SHAPES,
    "Resize": read_resize,
}  # fmt: skip


class NodeError(Exception):
    """A refusal, with the number of nodes that were read before."""

    def __init__(self, refusal: RefusalError, where: str, count: int) -> None:
        super().__init__(str(refusal))
        self.refusal, self.where, self.count = refusal, where, count


def build(model: Model, shapes: Shapes) -> Calls:
    """Returns the calls for inputs of these shapes. Raises NodeError."""
    choices, numbers = numbers_for(shapes)
    builder = Builder(choices)
    values: dict[str, Value] = {
        name: Constant(tensor, name) for name, tensor in model.weights.items()
    }
    given = [[numbers[size] for size in sizes] for sizes in shapes]
    try:
        inputs = _add_inputs(model.inputs, builder, values, given)
    except RefusalError as refusal:
        raise NodeError(refusal, "inputs: ", 0) from None
    places = places_of(model.nodes, model.weights)
    for count, (node, place) in enumerate(zip(model.nodes, places, strict=True)):
        builder.stack = place.stack()
        try:
            results = read_node(node, values, model.opset, builder)
        except RefusalError as refusal:
            where = f"node {node.name[:100]!r} ({node.op[:50]}, opset {model.opset}): "
            raise NodeError(refusal, where, count) from None
        for name, result in zip(node.outputs, results, strict=False):
            values[name] = _named(result, name)
    try:
        _add_outputs(model.outputs, values, builder)
    except RefusalError as refusal:
        raise NodeError(refusal, "outputs: ", len(places)) from None
    checked = sizes_to_check(open_shapes(model.inputs), shapes)
    return _calls(builder, model, inputs, places, checked)


def _named(value: Value, name: str) -> Value:
    if isinstance(value, Constant) and not value.name:
        return Constant(value.tensor, name)
    return value


def _add_inputs(
    inputs: Sequence[Input],
    builder: Builder,
    values: dict[str, Value],
    numbers: Sequence[Sequence[tuple[int, ...]]],
) -> list[fx.Node]:
    nodes = []
    names: set[str] = set()
    for each, sizes in zip(inputs, numbers, strict=True):
        name = identifier(each.name)
        # fx names the weights' arguments weight_0 and so on.
        taken = re.fullmatch(r"weight_\d+|self|__debug__", name)
        while name in names or keyword.iskeyword(name) or taken:
            name, taken = name + "_", None
        names.add(name)
        shapes = [[size[choice] for size in sizes] for choice in range(builder.choices)]
        live = builder.input(name, shapes, each.dtype)
        values[each.name] = live
        nodes.append(live.node)
    return nodes


def read_node(
    node: Node, values: Mapping[str, Value], opset: int, builder: Builder
) -> Sequence[Value]:
    """Returns the results of a node. Raises RefusalError."""
    inputs = [values[name] if name else None for name in node.inputs]
    read = SIZES.get(node.op) if are_sizes(inputs) else None
    read = read or OPS.get(node.op)  # type: ignore[assignment]
    if read is None:
        raise NotSupportedError("the op is not read by load_onnx")
    op = Op(node, inputs, opset, builder)
    if not node.outputs:
        raise DamagedError("it has no outputs")
    results = read(op)
    unread = op.unread_attributes()
    if unread:
        raise NotSupportedError(f"the attribute {unread[0][:100]!r} is not read by load_onnx")
    made = results if isinstance(results, list) else [results]
    further = [name for name in node.outputs[len(made) :] if name]
    if further:
        raise DamagedError(f"it has no output {further[0][:100]!r}")
    return made


def _add_outputs(names: Sequence[str], values: dict[str, Value], builder: Builder) -> None:
    builder.stack = {}
    found = []
    for name in names:
        value = values.get(name)
        if value is None:
            raise DamagedError(f"no node makes the output {name[:100]!r}")
        if isinstance(value, Sizes):
            raise NotSupportedError(f"the output {name[:100]!r} is an open size")
        if isinstance(value, Constant):
            raise NotSupportedError(f"the output {name[:100]!r} is a constant")
        found.append(value.node)
    builder.graph.output(found[0] if len(found) == 1 else tuple(found))


def _calls(
    builder: Builder,
    model: Model,
    inputs: Sequence[fx.Node],
    places: Sequence[Place],
    sizes: Sequence[Sequence[int | str | None]],
) -> Calls:
    graph = builder.graph
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.name in builder.weights and not node.users:
            graph.erase_node(node)
    owners = _owners(model, places)
    weights: dict[str, tuple[str, torch.Tensor]] = {}
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in builder.weights:
            constant = builder.weights[node.name]
            weights[node.name] = _weight_path(constant, owners), _as_weight(constant.tensor)
    names = [node.name for node in inputs]
    return Calls(fx.GraphModule(nn.Module(), graph), weights, names, sizes)


def _owners(model: Model, places: Sequence[Place]) -> dict[str, str]:
    """Returns paths for weights whose own names are no paths, by the first node that reads them."""
    found: dict[str, str] = {}
    for node, place in zip(model.nodes, places, strict=True):
        if place.path and node.op != "Identity":
            for name, last in zip(node.inputs[1:3], ("weight", "bias"), strict=False):
                found.setdefault(name, f"{place.path}.{last}")
    return found


def _weight_path(constant: Constant, owners: dict[str, str]) -> str:
    if "." in constant.name and checked_path(constant.name):
        return constant.name
    return owners.get(constant.name) or f"constants.{identifier(constant.name or 'value')}"


def _as_weight(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        return nn.Parameter(tensor, requires_grad=False)
    return tensor
