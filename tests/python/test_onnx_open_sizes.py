# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files with several inputs whose open sizes have no common name."""

# ruff: noqa: E402
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx")

from onnx import helper

import torchalgo
from support.nets import arguments
from support.onnx_files import load, model_of, weight
from torchalgo._onnx_ops.open_sizes import more_equal

node = helper.make_node
FILTER = [weight("w", np.random.default_rng(0).standard_normal((4, 3, 3, 3)))]
IMAGES = [
    node("Conv", [name, "w"], [f"conv_{name}"], pads=[1, 1, 1, 1]) for name in ("left", "right")
]
JOINED = node("Concat", ["conv_left", "conv_right"], ["y"], axis=1)
ADDED = node("Add", ["conv_left", "conv_right"], ["y"])
Sizes = list[Any]

# The nodes, the inputs, the sizes of a call, and those of a call that is refused.
CASES: dict[str, tuple[list[Any], dict[str, Sizes], list[Sizes], list[Sizes]]] = {
    "no names, Concat": (
        [*IMAGES, JOINED], {"left": [None, 3, 8, 8], "right": [None, 3, 8, 8]},
        [[2, 3, 8, 8]] * 2, [[2, 3, 8, 8], [3, 3, 8, 8]],
    ),
    "the names of torch.onnx, Add": (
        [*IMAGES, ADDED],
        {"left": ["left_dynamic_axes_1", 3, 8, 8], "right": ["right_dynamic_axes_1", 3, 8, 8]},
        [[2, 3, 8, 8]] * 2, [[2, 3, 8, 8], [1, 3, 8, 8]],
    ),
    "no names, height and width too": (
        [*IMAGES, JOINED], {"left": [None, 3, None, None], "right": [None, 3, None, None]},
        [[2, 3, 6, 9]] * 2, [[2, 3, 6, 9], [2, 3, 9, 6]],
    ),
    "one open and one fixed": (
        [*IMAGES, JOINED], {"left": [None, 3, 8, 8], "right": [2, 3, 8, 8]},
        [[2, 3, 8, 8]] * 2, [[3, 3, 8, 8], [2, 3, 8, 8]],
    ),
    "three inputs": (
        [*IMAGES, node("Concat", ["conv_left", "conv_right"], ["j"], axis=1),
         node("Concat", ["j", "third"], ["y"], axis=1)],
        {"left": [None, 3, 8, 8], "right": ["m", 3, 8, 8], "third": ["k", 5, 8, 8]},
        [[2, 3, 8, 8], [2, 3, 8, 8], [2, 5, 8, 8]], [[2, 3, 8, 8], [2, 3, 8, 8], [1, 5, 8, 8]],
    ),
    "three inputs of one node": (
        [node("Concat", ["a", "b", "c"], ["y"], axis=1)],
        {name: [None, 2, None, 4] for name in "abc"}, [[3, 2, 5, 4]] * 3,
        [[3, 2, 5, 4], [3, 2, 5, 4], [3, 2, 6, 4]],
    ),
    "the length of a sequence and of its mask": (
        [node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), node("MatMul", ["x", "t"], ["s"]),
         node("Add", ["s", "mask"], ["y"])],
        {"x": [None, None, 6], "mask": [None, None, None]}, [[2, 5, 6], [2, 5, 5]],
        [[2, 5, 6], [2, 5, 1]],
    ),
    "a size that a reshape takes from another input": (
        [node("Shape", ["x"], ["n"], start=0, end=1), node("Concat", ["n", "rest"], ["s"], axis=0),
         node("Reshape", ["z", "s"], ["r"]), node("Add", ["x", "r"], ["y"])],
        {"x": [None, 6], "z": [None, 2, 3]}, [[4, 6], [4, 2, 3]], [[4, 6], [1, 2, 3]],
    ),
}  # fmt: skip


def made(name: str) -> tuple[Any, list[Sizes], list[Sizes]]:
    nodes, inputs, sizes, others = CASES[name]
    return model_of(nodes, inputs, [*FILTER, weight("rest", np.int64([6]))]), sizes, others


@pytest.mark.parametrize("name", CASES)
def test_open_sizes_without_a_common_name_are_equal_where_a_node_needs_it(
    name: str, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, sizes, others = made(name)
    loaded = load(model, tmp_path)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    tensors = [torch.randn(each) for each in sizes]
    names = [each.name for each in session.get_inputs()]
    given = {name: x.numpy() for name, x in zip(names, tensors, strict=True)}
    (wanted,) = session.run(None, given)
    torch.testing.assert_close(loaded(*tensors).numpy(), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(torchalgo.Error, match="TA4301"):
        loaded(*(torch.randn(each) for each in others))


def test_a_call_with_other_sizes_names_both_inputs(tmp_path: Path) -> None:
    model, _, others = made("no names, Concat")
    with pytest.raises(
        torchalgo.Error,
        match="dimension 0 of input right is 3, and dimension 0 of input left is 2, expected equal",
    ):
        load(model, tmp_path)(*(torch.randn(each) for each in others))


def test_sizes_that_differ_on_purpose_stay_apart(tmp_path: Path) -> None:
    """Only the two images must have the same batch."""
    nodes = [*IMAGES, JOINED, node("Relu", ["points"], ["z"])]
    inputs = {
        "left": ["batch", 3, 8, 8], "right": ["right_batch", 3, 8, 8], "points": ["n_points", 3],
    }  # fmt: skip
    loaded = load(model_of(nodes, inputs, FILTER, ("y", "z")), tmp_path)
    images = torch.randn(2, 2, 3, 8, 8)
    for count in (1, 2, 7):
        y, z = loaded(images[0], images[1], torch.randn(count, 3))
        assert y.shape[0] == 2 and z.shape == (count, 3)


def test_sizes_of_the_same_name_are_not_compared_in_calls(tmp_path: Path) -> None:
    model = model_of([node("Add", ["a", "b"], ["y"])], {"a": ["n", 3], "b": ["n", 3]})
    assert load(model, tmp_path)(torch.ones(1, 3), torch.ones(4, 3)).shape == (4, 3)


@pytest.mark.parametrize("op", ["Concat", "Add"])
def test_sizes_that_cannot_be_equal_are_an_error_with_both_inputs_and_the_remedy(
    op: str, tmp_path: Path
) -> None:
    inputs = {"left": [None, 3, 8, 8], "right": [None, 3, 9, 8]}
    axis = {"axis": 1} if op == "Concat" else {}
    nodes = [*IMAGES, node(op, ["conv_left", "conv_right"], ["y"], **axis)]
    with pytest.raises(torchalgo.Error, match=rf"TA1504 .*model.onnx: node '{op}_2'") as error:
        load(model_of(nodes, inputs, FILTER), tmp_path)
    text = str(error.value)
    assert "inputs 'left', 'right' have no common name" in text
    assert "dynamic_axes={'left': {0: 'n'}, 'right': {0: 'n'}}" in text
    assert "expected a valid ONNX model" not in text  # it is one
    assert not re.search(r"\d{4,}", text.split("model.onnx", 1)[1])  # no invented sizes


def test_other_sizes_are_made_equal_only_if_fewer_do_not_do() -> None:
    tried = list(more_equal([["n", 3, "h"], ["m", 3, "g"]]))
    assert tried[0] == [["n", 3, "h"], ["n", 3, "g"]]
    assert tried[1] == [["n", 3, "h"], ["m", 3, "h"]]
    assert tried[2] == [["n", 3, "h"], ["n", 3, "h"]]
    assert list(more_equal([["n", 3], ["n", 3]])) == []
    many = [[(i, 0), 3, (i, 2)] for i in range(1000)]
    assert 1 <= len(list(more_equal(many))) <= 8


def test_a_plan_of_such_a_file_runs_other_batches(tmp_path: Path) -> None:
    model, sizes, _ = made("no names, Concat")
    loaded = load(model, tmp_path)
    inputs = tuple(torch.randn(each) for each in sizes)
    fast = torchalgo.optimize(loaded, inputs, **arguments(run_untimed=True))
    for batch in (2, 4):
        given = torch.randn(2, batch, 3, 8, 8)
        torch.testing.assert_close(fast(*given), loaded(*given), rtol=1e-3, atol=1e-4)
    with pytest.raises(torchalgo.Error, match="TA4301"):
        fast(torch.randn(2, 3, 8, 8), torch.randn(3, 3, 8, 8))
    fast.save(tmp_path / "net.pt")
    saved = torchalgo.load(tmp_path / "net.pt")
    torch.testing.assert_close(saved(*given), fast(*given))
    with pytest.raises(torchalgo.Error):  # sizes that are not right for the file
        saved(torch.randn(2, 3, 8, 8), torch.randn(3, 3, 8, 8))


class Stereo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.conv(left), self.conv(right)], 1)


@pytest.mark.filterwarnings("ignore")
def test_an_export_of_torch_with_two_dynamic_axes_loads(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    model, path = Stereo().eval(), tmp_path / "stereo.onnx"
    x = torch.randn(2, 3, 8, 8)
    torch.onnx.export(
        model, (x, x), path, dynamo=False, input_names=["left", "right"],
        dynamic_axes={"left": [0], "right": [0]},
    )  # fmt: skip
    names = [each.type.tensor_type.shape.dim[0].dim_param for each in onnx.load(path).graph.input]
    assert len(set(names)) == 2  # torch gives each input a name of its own
    given = torch.randn(2, 5, 3, 8, 8)
    torch.testing.assert_close(torchalgo.load_onnx(path)(*given), model(*given))
