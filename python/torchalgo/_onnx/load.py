# SPDX-License-Identifier: BSD-3-Clause
"""Reads ONNX files."""

from __future__ import annotations

from pathlib import Path

from torchalgo import Error
from torchalgo._base.read_file import path_of
from torchalgo._onnx.read_file import no_model, parse_file, read_model
from torchalgo._onnx_ops.network import Calls, Model
from torchalgo._onnx_ops.open_sizes import more_equal, open_shapes, remedy
from torchalgo._onnx_ops.refusal import (
    DamagedError,
    DataError,
    DoesNotFitError,
    NotSupportedError,
    RefusalError,
    TooLargeError,
)
from torchalgo._onnx_ops.to_fx import NodeError, build


def read_onnx(path: str | Path) -> Calls:
    """Returns the contents of an ONNX file as calls of torch's functions.

    Raises: torchalgo.Error that names the file, the node, its op and the opset.
    """
    file = path_of(path, "load_onnx")
    try:
        try:
            proto = parse_file(file)
            model = read_model(proto, file.absolute().parent)
        except RefusalError as refusal:
            raise _as_error(refusal, file, "") from None
        except (UnicodeError, ValueError, OverflowError) as problem:
            raise no_model(file, f", or it is damaged ({type(problem).__name__})") from None
        del proto
        return _build_fitting(model, file)
    except MemoryError:
        raise Error(f"TA1506 load_onnx: {file}: the model does not fit into the memory") from None


def _build_fitting(model: Model, path: Path) -> Calls:
    """Returns the calls of a model.

    If a node does not fit the open sizes, some of these are taken as equal. Each call then checks
    that they are.
    """
    shapes, failure = open_shapes(model.inputs), None
    attempts = iter([shapes])
    while (tried := next(attempts, None)) is not None:
        try:
            return build(model, tried)
        except NodeError as problem:
            if failure is None or problem.count > failure.count:
                failure = problem
                is_fitting = isinstance(problem.refusal, DoesNotFitError)
                attempts = more_equal(tried) if is_fitting else iter([])
    assert failure is not None
    raise _as_error(failure.refusal, path, failure.where, remedy(model.inputs)) from None


def _as_error(refusal: RefusalError, path: Path, where: str, remedy: str = "") -> Error:
    """Returns the error of a refusal.

    Args:
        where: names the node, with a colon; it may be empty.
        remedy: what to do if a node does not fit the open sizes; empty if no size is open.
    """
    if isinstance(refusal, NotSupportedError):
        return Error(f"TA1503 load_onnx: {path}: {where}{refusal}; this is not supported")
    if isinstance(refusal, TooLargeError):
        return Error(f"TA1506 load_onnx: {path}: {where}{refusal}, which is too much memory")
    if isinstance(refusal, DataError):
        return Error(f"TA1505 load_onnx: {path}: {where}{refusal}")
    if isinstance(refusal, DoesNotFitError) and remedy:
        return Error(f"TA1504 load_onnx: {path}: {where}{refusal}; {remedy}")
    if isinstance(refusal, (DamagedError, DoesNotFitError)):
        return Error(f"TA1504 load_onnx: {path}: {where}{refusal}; expected a valid ONNX model")
    raise TypeError(type(refusal))
