# SPDX-License-Identifier: BSD-3-Clause
"""Corners of ONNX files: names, integers and sizes that a reader gets wrong easily."""

# ruff: noqa: E402
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper

import torchalgo
from support.onnx_files import load, model_of, weight

node = helper.make_node


def runtime(model: Any, *inputs: torch.Tensor) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    given = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    result: np.ndarray[Any, Any] = session.run(None, given)[0]
    return result


@pytest.mark.parametrize(
    ("mode", "scales", "size"),
    [
        ("nearest", [1, 1, 1.05, 2], 10), ("nearest", [1, 1, 1.09, 2], 10),
        ("nearest", [1, 1, 1.09, 1], 10), ("linear", [1, 1, 1.09, 1], 10),
        ("linear", [1, 1, 1.05, 2], 10), ("linear", [1, 1, 1.05, 2], "H"),
        ("linear", [1, 1, 1.15, 2], 10), ("linear", [1, 1, 2, 2], 10),
    ],
)  # fmt: skip
def test_a_scale_near_one_moves_the_positions_as_in_onnx_runtime(
    mode: str, scales: list[float], size: Any, tmp_path: Path
) -> None:
    kind = "half_pixel" if mode == "linear" else "asymmetric"
    resize = node("Resize", ["x", "", "s"], ["y"], mode=mode, coordinate_transformation_mode=kind,
                  **({} if mode == "linear" else {"nearest_mode": "floor"}))  # fmt: skip
    scale = weight("s", np.array(scales, np.float32))
    model = model_of([resize], {"x": [1, 1, size, 10]}, [scale])
    x = torch.rand(1, 1, 10, 10)
    if mode == "linear" and 1.05 in scales:  # PyTorch computes something else
        with pytest.raises(torchalgo.Error, match="near 1"):
            load(model, tmp_path)
        return
    found = load(model, tmp_path)(x)
    torch.testing.assert_close(found.numpy(), runtime(model, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "names", [("training", "w"), ("_parameters", "forward"), ("a.b.c", "a.b"), ("a.b", "a.b.c")]
)
def test_weights_may_have_any_names(names: tuple[str, str], tmp_path: Path) -> None:
    first, second = names
    nodes = [node("Mul", ["x", first], ["z"]), node("Add", ["z", second], ["y"])]
    weights = [weight(first, [2.0, 3.0, 4.0]), weight(second, [5.0, 6.0, 7.0])]
    model = model_of(nodes, {"x": [2, 3]}, weights)
    x = torch.rand(2, 3)
    torch.testing.assert_close(load(model, tmp_path)(x).numpy(), runtime(model, x))


@pytest.mark.parametrize("name", ["weight_0", "weight.1", "__debug__", "self"])
def test_inputs_may_have_any_names(name: str, tmp_path: Path) -> None:
    nodes = [node("Add", [name, "w"], ["z"]), node("Mul", ["z", "v"], ["y"])]
    weights = [weight("w", [2.0, 3.0, 4.0]), weight("v", [5.0, 6.0, 7.0])]
    model = model_of(nodes, {name: [2, 3]}, weights)
    x = torch.rand(2, 3)
    torch.testing.assert_close(load(model, tmp_path)(x).numpy(), runtime(model, x))


def numbers(name: str, *values: int) -> Any:
    return weight(name, np.array(values, np.int64))


REFUSED = {
    "a slice up to an open size": (
        [node("Shape", ["t"], ["n"]), node("Slice", ["x", "zero", "n"], ["s"]),
         node("Size", ["s"], ["c"]), node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
         node("ReduceSum", ["s"], ["r"], keepdims=0), node("Div", ["r", "f"], ["y"])],
        {"x": [10], "t": ["n"]}, [numbers("zero", 0)],
    ),
    "a division of a number below zero": (
        [node("Shape", ["x"], ["h"], start=1, end=2), node("Sub", ["one", "h"], ["d"]),
         node("Div", ["d", "two"], ["b"]), node("Slice", ["x", "b", "last", "one"], ["y"])],
        {"x": [1, "H"]}, [numbers("one", 1), numbers("two", 2), numbers("last", 2**62)],
    ),
    "a comparison with a number below zero": (
        [node("Shape", ["x"], ["h"], start=1, end=2), node("Sub", ["h", "nine"], ["d"]),
         node("Equal", ["d", "below"], ["e"]), node("Where", ["e", "zero", "h"], ["b"]),
         node("Slice", ["x", "zero", "b", "one"], ["y"])],
        {"x": [1, "H"]},
        [numbers("zero", 0), numbers("one", 1), numbers("nine", 9), numbers("below", -1)],
    ),
    "a division of integers by -1": (
        [node("Div", ["a", "b"], ["c"]), node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
         node("Add", ["x", "f"], ["y"])],
        {"x": [1]}, [numbers("a", -(2**63)), numbers("b", -1)],
    ),
    "an output that no op makes": (
        [node("Relu", ["x"], ["z", "extra"]), node("Add", ["z", "extra"], ["y"])], {"x": [1]}, [],
    ),
    "a node without outputs": (
        [node("Split", ["x"], []), node("Relu", ["x"], ["y"])], {"x": [4]}, [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_wrong_or_crash_is_refused(case: str, tmp_path: Path) -> None:
    nodes, inputs, weights = REFUSED[case]
    with pytest.raises(torchalgo.Error, match=r"TA\d{4}"):
        load(model_of(nodes, inputs, weights), tmp_path)
