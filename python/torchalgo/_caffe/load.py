# SPDX-License-Identifier: BSD-3-Clause
"""Reads the files of Caffe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchalgo import Error
from torchalgo._base.read_file import file_at, path_of
from torchalgo._caffe.network import read_network
from torchalgo._caffe.schema import messages, unread_field
from torchalgo._onnx_ops.network import MOST_BYTES, Calls, Model
from torchalgo._onnx_ops.open_sizes import open_shapes
from torchalgo._onnx_ops.refusal import DataError, NotSupportedError, RefusalError, TooLargeError
from torchalgo._onnx_ops.to_fx import NodeError, build

MOST_TEXT_BYTES = 4 << 20


def read_caffe(prototxt: str | Path, caffemodel: str | Path | None) -> Calls:
    """Returns a network of Caffe as calls of torch's functions.

    Raises: torchalgo.Error that names the file, the layer and its type.
    """
    text = path_of(prototxt, "load_caffe")
    weights = None if caffemodel is None else path_of(caffemodel, "load_caffe")
    try:
        net = _parse_text(text)
        stored = None if weights is None else _parse_weights(weights)
        try:
            return _calls(read_network(net, stored))
        except NodeError as problem:
            raise _as_error(problem.refusal, text, problem.where) from None
    except MemoryError:
        raise Error(f"TA1806 load_caffe: {text}: the model does not fit into the memory") from None


def _calls(model: Model) -> Calls:
    """Returns calls for any batch size, or for that of the file if it does not fit others."""
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
