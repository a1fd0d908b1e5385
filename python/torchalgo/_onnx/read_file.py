# SPDX-License-Identifier: BSD-3-Clause
"""Reads an ONNX file into plain data, and checks its names and attributes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchalgo import Error
from torchalgo._base.read_file import file_at
from torchalgo._onnx_ops.network import MOST_BYTES, Attribute, Input, Model, Node
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError
from torchalgo._onnx_ops.tensors import MOST_DIMS, Tensors, dtype_of

OLDEST_OPSET = 13
NEWEST_OPSET = 28
MOST_INPUTS = 1000


def parse_file(path: Path) -> Any:
    """Returns the ModelProto of a file.

    Raises: torchalgo.Error if onnx is missing, or the file cannot be read or is no ONNX model.
    """
    try:
        from onnx import ModelProto
    except ImportError:
        raise Error("TA1501 load_onnx: the package onnx is missing: pip install onnx") from None
    data = _bytes_of(path)
    try:
        proto = ModelProto.FromString(data)
    except Exception as problem:
        raise no_model(path, f", or it is damaged ({type(problem).__name__})") from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise no_model(path, ": it holds no graph or no opset")
    return proto


def no_model(path: Path, why: str) -> Error:
    """Returns the error that a file is no ONNX model. `why` follows these words."""
    return Error(
        f"TA1502 load_onnx: {path} is no ONNX model{why}; expected a file of torch.onnx.export or"
        " another exporter"
    )


def _bytes_of(path: Path) -> bytes:
    try:
        with file_at(path, "load_onnx").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # A model begins with the version, a number, or with a text or a part, each of
            # which has a tag above 0. This refuses large files of other kinds before reading them.
            if file.read(1) in (b"", b"\0", b"P") or size > MOST_BYTES:
                raise no_model(path, " of at most 2 GiB")
            file.seek(0)
            return file.read(size)
    except OSError as problem:
        raise Error(f"TA2004 load_onnx: cannot read {path}: {problem.strerror}") from None


def read_model(proto: Any, folder: Path) -> Model:
    """Returns the contents of a model as plain data.

    Args:
        folder: the folder of the file, which may hold data of weights.
    Raises: RefusalError if the model breaks a rule, or if it has a part that is not supported.
    """
    opset = _opset(proto)
    graph = proto.graph
    if proto.functions:
        raise NotSupportedError("the model defines functions of its own")
    if graph.sparse_initializer:
        raise NotSupportedError("the model has sparse weights")
    tensors = Tensors(folder)
    weights: dict[str, torch.Tensor] = {}
    for initializer in graph.initializer:
        name = text_of(initializer.name)
        if name in weights or not name:
            raise DamagedError(f"the weight {_short(name)} is there twice or has no name")
        weights[name] = tensors.read(initializer, f"weight {_short(name)}")
    inputs = [_input(each) for each in graph.input if text_of(each.name) not in weights]
    nodes = [_node(each, i, tensors) for i, each in enumerate(graph.node)]
    outputs = [text_of(each.name) for each in graph.output]
    _check_names(inputs, weights, nodes, outputs)
    return Model(opset, inputs, outputs, nodes, weights)


def _opset(proto: Any) -> int:
    versions = [each.version for each in proto.opset_import if each.domain in ("", "ai.onnx")]
    if len(versions) != 1:
        raise DamagedError(
            f"the model has {len(versions)} versions of the ONNX opset, expected one"
        )
    if not OLDEST_OPSET <= versions[0] <= NEWEST_OPSET:
        raise NotSupportedError(
            f"the model has opset {versions[0]}, expected {OLDEST_OPSET} to {NEWEST_OPSET}: export"
            " it again, or convert it with onnx.version_converter"
        )
    return int(versions[0])


def text_of(value: Any) -> str:
    """Returns a name. protobuf gives a name that is no UTF-8 as bytes."""
    if not isinstance(value, str):
        raise DamagedError(f"the name {value[:40]!r} is no text in UTF-8")
    return value


def _short(name: str) -> str:
    return repr(name if len(name) <= 100 else f"{name[:97]}...")


def _input(proto: Any) -> Input:
    what = f"input {_short(proto.name)}"
    if proto.type.WhichOneof("value") != "tensor_type":
        raise NotSupportedError(f"{what} is not a tensor")
    tensor = proto.type.tensor_type
    if not tensor.HasField("shape") or len(tensor.shape.dim) > MOST_DIMS:
        raise NotSupportedError(f"{what} has no shape, expected a fixed number of dimensions")
    sizes: list[int | str | None] = []
    for dim in tensor.shape.dim:
        kind = dim.WhichOneof("value")
        size = {"dim_value": dim.dim_value, "dim_param": text_of(dim.dim_param) or None}.get(kind)
        if isinstance(size, int) and not 1 <= size <= 1 << 31:
            raise DamagedError(f"{what} has the size {size}, expected 1 or more")
        sizes.append(size)
    return Input(proto.name, dtype_of(tensor.elem_type, what), sizes)


def _node(proto: Any, position: int, tensors: Tensors) -> Node:
    op = text_of(proto.op_type)
    name = text_of(proto.name) or f"{op}_{position}"
    what = f"node {_short(name)} ({_short(op)[1:-1]})"
    if text_of(proto.domain) not in ("", "ai.onnx"):
        raise NotSupportedError(f"{what} is an op of the domain {_short(proto.domain)}")
    if getattr(proto, "overload", ""):
        raise NotSupportedError(f"{what} is an overload of a function")
    attributes: dict[str, Attribute] = {}
    for attribute in proto.attribute:
        key = text_of(attribute.name)
        if key in attributes:
            raise DamagedError(f"{what} has the attribute {_short(key)} twice")
        attributes[key] = _attribute(attribute, what, tensors)
    notes = {text_of(each.key): text_of(each.value) for each in proto.metadata_props}
    inputs, outputs = tuple(map(text_of, proto.input)), tuple(map(text_of, proto.output))
    return Node(name, op, inputs, outputs, attributes, notes)


def _attribute(proto: Any, node: str, tensors: Tensors) -> Attribute:
    what = f"{node}: attribute {_short(proto.name)}"
    if proto.ref_attr_name:
        raise NotSupportedError(f"{what} refers to an attribute of a function")
    kind = proto.type
    if kind == 1:
        return float(proto.f)
    if kind == 2:
        return int(proto.i)
    if kind == 3:
        return _text(proto.s, what)
    if kind == 4:
        return tensors.read(proto.t, what)
    if kind == 6:
        return tuple(proto.floats)
    if kind == 7:
        return tuple(proto.ints)
    if kind == 8:
        return tuple(_text(each, what) for each in proto.strings)
    if kind in (5, 10):
        raise NotSupportedError(f"{what} is a graph: branches and loops are not read")
    raise NotSupportedError(f"{what} has the type {kind}, expected numbers, text or a tensor")


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise DamagedError(f"{what} is no text in UTF-8") from None


def _check_names(
    inputs: Sequence[Input],
    weights: Mapping[str, torch.Tensor],
    nodes: Sequence[Node],
    outputs: Sequence[str],
) -> None:
    """Refuses a value that is made twice, or read before it is made. So there are no circles."""
    known = set(weights)
    for each in inputs:
        if each.name in known or not each.name:
            raise DamagedError(f"the input {_short(each.name)} is there twice or has no name")
        known.add(each.name)
    for node in nodes:
        for name in node.inputs:
            if name and name not in known:
                raise DamagedError(
                    f"node {_short(node.name)} reads {_short(name)}, which no earlier node makes"
                )
        for name in filter(None, node.outputs):
            if name in known:
                raise DamagedError(f"node {_short(node.name)} makes {_short(name)} a second time")
            known.add(name)
    for name in outputs:
        if name not in known:
            raise DamagedError(f"no node makes the output {_short(name)}")
    if not outputs or not inputs:
        raise DamagedError("the model has no input or no output")
    if len(inputs) > MOST_INPUTS or len(outputs) > MOST_INPUTS:
        raise NotSupportedError(f"the model has more than {MOST_INPUTS} inputs or outputs")
