# SPDX-License-Identifier: BSD-3-Clause
"""Reads the layers of a network in their order: which ones run, what they read, what they write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchalgo._caffe.layer import OPSET, Layer, Nodes
from torchalgo._caffe.layers import LAYERS
from torchalgo._caffe.schema import type_of
from torchalgo._onnx_ops.network import Model
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError, RefusalError
from torchalgo._onnx_ops.to_fx import NodeError

MOST_LAYERS = 1 << 14
_DATA = {"Data", "DummyData", "HDF5Data", "ImageData", "MemoryData", "WindowData"}
# Layers for training. Nothing that they read counts as read, so it is a result of the network.
_LOSSES = {
    "Accuracy", "ContrastiveLoss", "EuclideanLoss", "HDF5Output", "HingeLoss", "InfogainLoss",
    "MultinomialLogisticLoss", "SigmoidCrossEntropyLoss", "SoftmaxWithLoss",
}  # fmt: skip
_TEST = 1


def read_network(net: Any, stored: Mapping[str, Sequence[Any]] | None) -> Model:
    """Returns a network as the nodes of an ONNX file.

    Args:
        stored: the blobs of a file of weights, by layer; None if all weights are random.
    Raises: NodeError.
    """
    nodes, state = Nodes(stored), _State()
    layers = [*net.layers, *net.layer]
    try:
        if len(layers) > MOST_LAYERS:
            raise NotSupportedError(f"the network has {len(layers)} layers")
        for blob, sizes in _inputs(net):
            state.write(blob, nodes.input(blob, sizes))
    except RefusalError as refusal:
        raise NodeError(refusal, "", 0) from None
    for position, proto in enumerate(layers):
        try:
            if _runs(proto, net.state):
                _read_layer(nodes, state, proto, position)
        except RefusalError as refusal:
            where = f"layer {proto.name[:100]!r} ({type_of(proto)[:50]}): "
            raise NodeError(refusal, where, position) from None
    outputs = [each for each in state.unread.values() if each not in {i.name for i in nodes.inputs}]
    if not nodes.inputs or not outputs:
        problem = DamagedError("the network has no input or no layer that is read")
        raise NodeError(problem, "", len(layers))
    return Model(OPSET, nodes.inputs, outputs, nodes.nodes, nodes.weights)


class _State:
    """The values of the blobs. A layer in place gives a blob another value."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.unread: dict[str, str] = {}  # blobs that no layer has read after they were written
        self.left_out: dict[str, str] = {}  # blobs that only a layer for training makes

    def write(self, blob: str, value: str) -> None:
        self.values[blob] = self.unread[blob] = value
        self.left_out.pop(blob, None)

    def read(self, blob: str) -> str:
        if blob in self.left_out:
            raise NotSupportedError(
                f"it reads {blob[:100]!r} of the {self.left_out[blob]}, which is left out: give the"
                ' network for deployment, or put `layer { type: "Input" }` in its place'
            )
        if blob not in self.values:
            raise DamagedError(f"it reads {blob[:100]!r}, which no earlier layer makes")
        self.unread.pop(blob, None)
        return self.values[blob]


def _inputs(net: Any) -> Iterator[tuple[str, Sequence[int]]]:
    """Yields the inputs of a network that are no layers."""
    dims = list(net.input_dim)
    shapes = [each.dim for each in net.input_shape] or [
        dims[i : i + 4] for i in range(0, len(dims), 4)
    ]
    if len(shapes) != len(net.input) or len(dims) % 4:
        raise DamagedError(
            f"the network has {len(net.input)} inputs and {len(shapes)} shapes of them; give each"
            " one four input_dim or one input_shape"
        )
    yield from zip(net.input, shapes, strict=True)


def _runs(layer: Any, state: Any) -> bool:
    """Returns True if a layer is a part of the network for tests."""

    def is_met(rule: Any) -> bool:
        return (
            (not rule.HasField("phase") or rule.phase == _TEST)
            and (not rule.HasField("min_level") or rule.min_level <= state.level)
            and (not rule.HasField("max_level") or rule.max_level >= state.level)
            and set(rule.stage) <= set(state.stage)
            and not set(rule.not_stage) & set(state.stage)
        )

    if layer.include:
        return any(map(is_met, layer.include))
    return not any(map(is_met, layer.exclude))


def _read_layer(nodes: Nodes, state: _State, proto: Any, position: int) -> None:
    kind, tops = type_of(proto), list(proto.top)
    if kind == "Input":
        shapes = [each.dim for each in proto.input_param.shape]
        shapes *= len(tops) if len(shapes) == 1 else 1
        if len(shapes) != len(tops):
            raise DamagedError(f"it has {len(shapes)} shapes for {len(tops)} tops")
        for top, sizes in zip(tops, shapes, strict=True):
            state.write(top, nodes.input(top, sizes))
        return
    if kind in _DATA | _LOSSES:
        new = [top for top in tops if top not in state.values]
        state.left_out |= dict.fromkeys(new, f"layer {proto.name[:100]!r} ({kind})")
        return
    if kind not in LAYERS and kind != "Silence":
        raise NotSupportedError("this type of layer is unknown")
    sources = [state.read(blob) for blob in proto.bottom]
    if kind == "Silence":
        return
    read, least, most = LAYERS[kind]
    if not least <= len(sources) <= most:
        raise DamagedError(f"it has {len(sources)} bottoms, expected {least} or more")
    results = read(Layer(nodes, proto, sources, position))
    results = [results] if isinstance(results, str) else results
    if not tops or len(results) != len(tops):
        raise NotSupportedError(f"it has {len(tops)} tops, expected {len(results) or 1}")
    for top, result in zip(tops, results, strict=True):
        state.write(top, result)
