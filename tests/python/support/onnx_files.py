# SPDX-License-Identifier: BSD-3-Clause
"""Small ONNX files for tests, and the test cases that the onnx package ships."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

import torchalgo
from torchalgo._onnx.read_file import NEWEST_OPSET, OLDEST_OPSET
from torchalgo._onnx_ops.to_fx import OPS


def weight(name: str, values: Any) -> TensorProto:
    """Returns an initializer; lists of floats are f32."""
    array = np.asarray(values)
    return numpy_helper.from_array(
        array.astype(np.float32) if array.dtype == np.float64 else array, name
    )


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str | None]],
    weights: Sequence[TensorProto] = (),
    outputs: Sequence[str] = ("y",),
    opset: int = 20,
) -> onnx.ModelProto:
    """Returns a model of f32 inputs with these sizes."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def load(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> torch.nn.Module:
    """Writes a model to a file and loads it."""
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return torchalgo.load_onnx(path)


def node_cases() -> Iterator[Any]:
    """Yields the cases of onnx whose ops load_onnx reads, in the opsets that it reads."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    for case in cases:
        ops = {node.op_type for node in case.model.graph.node}
        versions = [each.version for each in case.model.opset_import if not each.domain]
        is_read = versions and OLDEST_OPSET <= versions[0] <= NEWEST_OPSET
        if is_read and ops <= set(OPS) and not case.model.functions:
            yield case


def with_constants(case: Any) -> onnx.ModelProto:
    """Returns the model of a case with all inputs but the first as constants.

    Models have axes, shapes, bounds and weights as constants; the cases have them as inputs.
    """
    model = copy.deepcopy(case.model)
    names = [each.name for each in model.graph.input]
    for name, value in list(zip(names, case.data_sets[0][0], strict=True))[1:]:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    for each in list(model.graph.input)[1:]:
        model.graph.input.remove(each)
    return model


def as_tensor(array: Any) -> torch.Tensor:
    is_proto = isinstance(array, TensorProto)
    array = numpy_helper.to_array(array) if is_proto else np.asarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def outcome_of(model: onnx.ModelProto, case: Any, inputs: Sequence[Any], path: Path) -> str:
    """Runs a case. Returns "equal", the text of a torchalgo.Error, or "WRONG" with a reason."""
    path.write_bytes(model.SerializeToString())
    try:
        module = torchalgo.load_onnx(path)
        with torch.no_grad():
            found = module(*(as_tensor(each) for each in inputs))
    except torchalgo.Error as error:
        return str(error)
    found = [found] if isinstance(found, torch.Tensor) else list(found)
    wanted = [as_tensor(each) for each in case.data_sets[0][1]]
    if len(found) != len(wanted):
        return f"WRONG: {len(found)} results"
    for ours, theirs in zip(found, wanted, strict=True):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"WRONG: {ours.dtype} {list(ours.shape)}, {theirs.dtype} {list(theirs.shape)}"
        if not torch.allclose(ours.double(), theirs.double(), case.rtol, case.atol, equal_nan=True):
            return "WRONG: values differ"
    return "equal"
