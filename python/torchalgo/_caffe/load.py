# SPDX-License-Identifier: BSD-3-Clause
"""Loads the files of Caffe: load_caffe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from torchalgo._base.read_file import file_at, path_of
from torchalgo._C import Error
from torchalgo._caffe.network import LayerError, read_network
from torchalgo._caffe.schema import messages, unread_field
from torchalgo._onnx.open_sizes import open_shapes
from torchalgo._onnx.read_file import MOST_BYTES, Model
from torchalgo._onnx.refusal import DataError, NotSupportedError, RefusalError, TooLargeError
from torchalgo._onnx.to_fx import NodeError, build

MOST_TEXT_BYTES = 4 << 20


def load_caffe(prototxt: str | Path, caffemodel: str | Path | None = None) -> nn.Module:
    """Opens a network of Caffe as a module that `optimize` plans.

    A file holds data only: no code of it runs. This needs the package protobuf. docs/caffe.md lists
    what is read. The layers keep their names, with "." in the place of "/".

        model = torchalgo.load_caffe("deploy.prototxt", "net.caffemodel")
        fast = torchalgo.optimize(model, torch.rand(1, 3, 224, 224))

    Args:
        prototxt: the text that describes the network.
        caffemodel: the file of its weights. None gives random weights from a fixed seed, which
            keep the scale of the values about the same from layer to layer. Such a module is for
            measuring times.

    Returns: a module in eval mode, without the layers for training. It takes the inputs of the file
        in their order, and returns a tensor, or a tuple of the blobs that no layer reads, in the
        order of the file. It takes any batch size, unless a layer needs that of the file.
    Raises: torchalgo.Error if a file is missing or damaged, if the weights do not fit the network,
        or if a part is not supported. The text names the file, the layer and its type.
    """
    text = path_of(prototxt, "load_caffe")
    weights = None if caffemodel is None else path_of(caffemodel, "load_caffe")
    try:
        net = _parse_text(text)
        stored = None if weights is None else _parse_weights(weights)
        try:
            return _module(read_network(net, stored))
        except (LayerError, NodeError) as problem:
            raise _as_error(problem.refusal, text, problem.where) from None
    except MemoryError:
        raise Error(f"TA1806 load_caffe: {text}: the model does not fit into the memory") from None


def _module(model: Model) -> nn.Module:
    """Returns a module for any batch size, or for that of the file if it does not fit others."""
    if len({each.sizes[0] for each in model.inputs}) == 1:
        inputs = [replace(each, sizes=["batch", *each.sizes[1:]]) for each in model.inputs]
        try:
            return build(replace(model, inputs=inputs), open_shapes(inputs))
        except NodeError:
            pass
    return build(model, open_shapes(model.inputs))


def _as_error(refusal: RefusalError, path: Path, where: str) -> Error:
    if isinstance(refusal, NotSupportedError):
        return Error(f"TA1803 load_caffe: {path}: {where}{refusal}; this is not supported")
    if isinstance(refusal, TooLargeError):
        return Error(f"TA1806 load_caffe: {path}: {where}{refusal}, which is too much memory")
    if isinstance(refusal, DataError):
        return Error(f"TA1805 load_caffe: {path}: {where}{refusal}; give the network's own weights")
    return Error(f"TA1804 load_caffe: {path}: {where}{refusal}; expected a valid network")


def _parse_text(path: Path) -> Any:
    """Returns the network that a prototxt describes."""
    try:
        from google.protobuf import text_format

        net = messages()[0]()
    except ImportError:
        raise Error(
            "TA1801 load_caffe: the package protobuf is missing: pip install protobuf"
        ) from None
    text = _bytes_of(path, MOST_TEXT_BYTES).decode("utf-8-sig", errors="replace")
    try:
        text_format.Parse(text, net, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as problem:
        why = str(problem)[:300]
        raise _no_network(path, why if why.isprintable() else ascii(why)[1:-1]) from None
    if not net.layer and not net.layers:
        raise _no_network(path, "it has no layers")
    if unread := unread_field(text):
        raise _as_error(NotSupportedError("the field is unknown"), path, f"{unread}: ")
    return net


def _no_network(path: Path, why: str) -> Error:
    return Error(
        f"TA1802 load_caffe: {path} is no network of Caffe: {why}; expected a .prototxt, and its"
        " .caffemodel as the second argument"
    )


def _parse_weights(path: Path) -> dict[str, Sequence[Any]]:
    """Returns the blobs of a caffemodel by the names of their layers."""
    weights = messages()[1]()
    try:
        weights.ParseFromString(_bytes_of(path, MOST_BYTES))
        stored = {
            layer.name.decode(errors="replace"): layer.blobs
            for layer in [*weights.layers, *weights.layer]
            if layer.blobs
        }
    except Exception as problem:
        if isinstance(problem, (Error, MemoryError)):
            raise
        raise _no_weights(path, f"it is damaged ({type(problem).__name__})") from None
    if not stored:
        raise _no_weights(path, "it holds no weights")
    return stored


def _no_weights(path: Path, why: str) -> Error:
    return Error(
        f"TA1805 load_caffe: {path} is no caffemodel: {why}; expected the binary weights of the"
        " network (not HDF5)"
    )


def _bytes_of(path: Path, most: int) -> bytes:
    try:
        with file_at(path, "load_caffe").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # Refuses large files of other kinds before reading them. No text or message has these.
            if file.read(1) in (b"", b"\0", b"P", b"\x89") or size > most:
                why = f"it has {size} bytes, or is of another kind"
                raise (_no_network if most == MOST_TEXT_BYTES else _no_weights)(path, why)
            file.seek(0)
            return file.read(size)
    except OSError as problem:
        raise Error(f"TA2004 load_caffe: cannot read {path}: {problem.strerror}") from None
