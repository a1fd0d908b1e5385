# SPDX-License-Identifier: BSD-3-Clause
"""load_onnx: results, names and plans of exported models, and what it refuses."""

# ruff: noqa: E402
from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper

import torchalgo
from support.nets import arguments, make_net
from support.onnx_files import load, model_of, weight
from torchalgo._base.compare_outputs import output_error
from torchalgo._cli.demo import randomize_batch_norms
from torchalgo._onnx.read_file import NEWEST_OPSET
from torchalgo_cli import main

node = helper.make_node
WEIGHTS = [weight("w", np.random.default_rng(0).random((4, 3, 3, 3)))]
CONV = node("Conv", ["x", "w"], ["y"], "c0")


class Plain(nn.Module):
    """Has no operations in place, so torch keeps their order."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU())
        self.left, self.right = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([torch.relu(self.left(x)), self.right(x)], 1)
        return self.fc(self.pool(x).flatten(1))


def plain() -> nn.Module:
    torch.manual_seed(0)
    model = Plain().eval()
    randomize_batch_norms(model)
    return model


def export(model: nn.Module, x: Tensor, path: Path, dynamo: bool, **options: Any) -> Path:
    pytest.importorskip("onnxscript")
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        torch.onnx.export(model, (x,), path, dynamo=dynamo, input_names=["x"], **options)
    return path


def optimized(model: nn.Module, x: Tensor, **options: Any) -> torchalgo.Optimized:
    return torchalgo.optimize(model, x, **arguments(run_untimed=True, **options))


def names(fast: torchalgo.Optimized) -> list[str]:
    return sorted(n.name for n in fast.plan.nodes)


pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporters


# ---- exported models -----------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
def test_a_plan_of_the_model_applies_to_its_export(dynamo: bool, tmp_path: Path) -> None:
    model, x = plain(), torch.rand(1, 3, 32, 32)
    loaded = torchalgo.load_onnx(export(model, x, tmp_path / "model.onnx", dynamo))
    assert output_error(loaded(x), model(x)) < 1e-5
    fast = optimized(model, x)
    again = optimized(loaded, x, plan=fast.plan)
    assert again.plan.structure_hash == fast.plan.structure_hash
    assert again.plan.nodes == fast.plan.nodes
    assert output_error(again(x), model(x)) < 1e-4
    assert dict(loaded.named_parameters()).keys() <= dict(model.named_parameters()).keys()


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
def test_the_layers_have_the_names_of_the_model(dynamo: bool, tmp_path: Path) -> None:
    """Operations in place change their order in the model's own plan, but no name."""
    model, x = make_net(), torch.rand(1, 3, 24, 24)
    loaded = torchalgo.load_onnx(export(model, x, tmp_path / "model.onnx", dynamo))
    fast = optimized(loaded, x, overrides={"layer1.*.conv2": "aten.conv"})
    assert names(fast) == names(optimized(model, x))
    assert output_error(fast(x), model(x)) < 1e-4


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
def test_an_open_batch_stays_open(dynamo: bool, tmp_path: Path) -> None:
    model, x = plain(), torch.rand(2, 3, 32, 32)
    options: dict[str, Any] = {"dynamic_axes": {"x": {0: "batch"}}}
    if dynamo:
        options = {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},)}
    loaded = torchalgo.load_onnx(export(model, x, tmp_path / "model.onnx", dynamo, **options))
    for batch in (1, 2, 5):
        y = torch.rand(batch, 3, 32, 32)
        assert output_error(loaded(y), model(y)) < 1e-5
    with pytest.raises(torchalgo.Error, match="TA4301"):
        loaded(torch.rand(2, 3, 40, 32))
    fast = optimized(loaded, x)
    assert output_error(fast(torch.rand(5, 3, 32, 32)), torch.zeros(1)) >= 0


@torch.no_grad()
def test_the_sizes_of_an_open_image_are_computed_in_each_call(tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "two"], ["h"]),
        node("Div", ["h", "two"], ["half"]),
        node("Unsqueeze", ["half", "zero"], ["h1"]),
        node("Concat", ["first", "h1", "last"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["y"]),
    ]
    weights = [
        weight("two", np.int64(2)), weight("zero", np.int64([0])),
        weight("first", np.int64([0, 0])), weight("last", np.int64([2, -1])),
    ]  # fmt: skip
    loaded = load(model_of(nodes, {"x": ["N", 3, "H", 8]}, weights), tmp_path)
    for n, h in ((1, 4), (3, 10)):
        assert loaded(torch.rand(n, 3, h, 8)).shape == (n, 3, h // 2, 2, 8)


@torch.no_grad()
def test_a_slice_backwards_may_start_before_the_first_element(tmp_path: Path) -> None:
    """ONNX clamps such a start to 0. Python's slices are empty then."""
    weights = [weight(n, np.int64([v])) for n, v in (("s", -99), ("e", -99), ("a", 1), ("t", -1))]
    cut = node("Slice", ["x", "s", "e", "a", "t"], ["y"])
    x = torch.rand(2, 5)
    assert torch.equal(load(model_of([cut], {"x": [2, 5]}, weights), tmp_path)(x), x[:, :1])


@torch.no_grad()
def test_gelu_that_is_written_with_erf_is_one_activation(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], "/stem/Conv"),
        node("Div", ["c", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["a"]),
        node("Mul", ["c", "a"], ["m"]),
        node("Mul", ["m", "half"], ["y"]),
    ]
    numbers = [weight("root", np.float32(2**0.5)), weight("one", np.float32(1))]
    loaded = load(
        model_of(nodes, {"x": [1, 3, 8, 8]}, [*WEIGHTS, *numbers, weight("half", np.float32(0.5))]),
        tmp_path,
    )
    x = torch.rand(1, 3, 8, 8)
    found = torchalgo.candidates(loaded, x)
    assert [layer.problem.split("_")[0] for layer in found] == ["fwd", "gelu"]
    weights = loaded.get_parameter("stem.weight")
    assert output_error(loaded(x), nn.functional.gelu(torch.conv2d(x, weights))) < 1e-6


@pytest.mark.slow
def test_the_command_line_takes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(model_of([CONV], {"x": [1, 3, 16, 16]}, WEIGHTS), tmp_path)
    path, shape = str(tmp_path / "model.onnx"), ("--input", "1x3x16x16")
    assert main(["explain", path, *shape, "--candidates"]) == 0
    assert "fwd_f32_n1c3h16w16_k4r3s3" in capsys.readouterr().out
    out = str(tmp_path / "fast.pt")
    assert main(["optimize", path, *shape, "-o", out, "--budget", "2"]) == 0
    assert torchalgo.load(out)(torch.rand(1, 3, 16, 16)).shape == (1, 4, 14, 14)
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07")
    assert main(["explain", str(tmp_path / "bad.onnx"), *shape, "--candidates"]) != 0
    assert "TA1502" in capsys.readouterr().err


# ---- refusals ------------------------------------------------------------------------------------


def with_attribute(name: str, value: Any) -> Any:
    return node("Conv", ["x", "w"], ["y"], "c0", **{name: value})


REFUSED_NODES: dict[str, tuple[Any, str, str]] = {
    "an op": (node("Foo", ["x"], ["y"], "n"), "TA1503", "'n' .Foo, opset 20.*not read"),
    "a domain": (node("Conv", ["x", "w"], ["y"], domain="other.org"), "TA1503", "other.org"),
    "an attribute": (with_attribute("zzz", 1), "TA1503", "'c0' .Conv, opset 20.: the attr.*'zzz'"),
    "its type": (with_attribute("group", [1.5]), "TA1504", "'group' has a wrong type"),
    "a stride": (with_attribute("strides", [0, 1]), "TA1504", "'strides' is .0, 1."),
    "a pad": (with_attribute("pads", [2**62, 0, 0, 0]), "TA1504", "out of range"),
    "pads": (with_attribute("pads", [1 << 20] * 4), "TA1506", "too much memory"),
    "a filter": (with_attribute("kernel_shape", [0, 3]), "TA1504", "kernel_shape"),
    "groups": (with_attribute("group", 0), "TA1504", "group is 0"),
    "sizes": (node("Concat", ["x", "w"], ["y"], axis=1), "TA1504", "torch refuses"),
    "a value": (node("Conv", ["x", "nothing"], ["y"]), "TA1504", "reads 'nothing'"),
    "itself": (node("Conv", ["y", "w"], ["y"]), "TA1504", "reads 'y'"),
    "twice": (node("Conv", ["x", "w"], ["w"]), "TA1504", "makes 'w' a second time"),
    "no output": (node("Conv", ["x", "w"], ["z"]), "TA1504", "no node makes the output 'y'"),
    "a branch": (
        node("If", ["x"], ["y"], then_branch=helper.make_graph([], "g", [], [])),
        "TA1503", "branches and loops",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED_NODES)
def test_a_node_is_refused_with_its_name_op_and_opset(what: str, tmp_path: Path) -> None:
    made, code, text = REFUSED_NODES[what]
    with pytest.raises(torchalgo.Error, match=rf"(?s)^{code} load_onnx: .*model.onnx: .*{text}"):
        load(model_of([made], {"x": [1, 3, 8, 8]}, WEIGHTS), tmp_path)


HUGE = np.int64([1 << 20, 1 << 20])
LARGE: dict[str, tuple[list[Any], list[Any]]] = {
    "ConstantOfShape": ([node("ConstantOfShape", ["s"], ["c"]), node("Neg", ["c"], ["d"])], []),
    "Expand": ([node("Expand", ["one", "s"], ["c"]), node("Neg", ["c"], ["d"])], []),
    "Tile": ([node("Tile", ["two", "s"], ["d"])], []),
    "Range": ([node("Range", ["zero", "end", "step"], ["d"])], []),
    "Pad": ([node("Pad", ["two", "pads"], ["d"])], []),
    "OneMore": ([node("ConstantOfShape", ["many"], ["d"])], []),
}


@pytest.mark.parametrize("what", LARGE)
def test_a_constant_that_would_fill_the_memory_is_refused(what: str, tmp_path: Path) -> None:
    nodes, more = LARGE[what]
    weights = [
        weight("s", HUGE), weight("one", np.float32([1])), weight("two", np.float32([[1]])),
        weight("zero", np.int64(0)), weight("end", np.int64(1 << 50)),
        weight("step", np.int64(1)), weight("pads", np.int64([0, 0, 1 << 39, 5])),
        weight("many", np.int64([1 << 30] * 3)), *more,
    ]  # fmt: skip
    model = model_of([*nodes, node("Add", ["x", "d"], ["y"])], {"x": [1, 1]}, weights)
    with pytest.raises(torchalgo.Error, match=r"TA150[46] load_onnx: .*model.onnx: node"):
        load(model, tmp_path)


@pytest.mark.parametrize("sizes", [[1 << 31, 3, 8, 8], ["N", 3, "H", 2_000_000_011], [1] * 20])
def test_an_input_of_absurd_sizes_is_refused(sizes: list[Any], tmp_path: Path) -> None:
    """The second one is a finding of the fuzzer."""
    with pytest.raises(torchalgo.Error, match=r"TA150[36] load_onnx: .*input"):
        load(model_of([CONV], {"x": sizes}, WEIGHTS), tmp_path)


def test_a_slice_or_a_resize_of_absurd_sizes_is_refused(tmp_path: Path) -> None:
    bounds = [
        weight(n, np.int64([v])) for n, v in (("s", -1), ("e", -(2**40)), ("a", 1), ("t", -1))
    ]
    cut = node("Slice", ["x", "s", "e", "a", "t"], ["y"])
    scales = weight("k", np.float32([1, 1, 0.25]))
    resize = node("Resize", ["x", "", "k"], ["y"], mode="nearest", nearest_mode="ceil")
    for each, sizes in ((cut, [1, 1 << 31]), (resize, [1, 1, 1 << 31])):
        with pytest.raises(torchalgo.Error, match=r"TA150[36] load_onnx: .*node"):
            load(model_of([each], {"x": sizes}, [*bounds, scales]), tmp_path)


def test_only_these_opsets_are_read(tmp_path: Path) -> None:
    for opset in (12, NEWEST_OPSET + 1):
        model = model_of([CONV], {"x": [1, 3, 8, 8]}, WEIGHTS, opset=opset)
        with pytest.raises(torchalgo.Error, match=rf"TA1503 .*opset {opset}, expected 13 to"):
            load(model, tmp_path)
    for opset in (13, NEWEST_OPSET):
        load(model_of([CONV], {"x": [1, 3, 8, 8]}, WEIGHTS, opset=opset), tmp_path)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    data = model_of([CONV], {"x": [1, 3, 8, 8]}, WEIGHTS).SerializeToString()
    torch.save({}, tmp_path / "weights.pt")
    with (tmp_path / "zeros.onnx").open("wb") as file:
        file.truncate(2_000_000_000)  # needs no disk
    files = {
        "cut.onnx": data[:-100],
        "text.onnx": b"hello",
        "empty.onnx": b"",
        "more.onnx": data * 2,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name in ("cut.onnx", "text.onnx", "empty.onnx", "zeros.onnx", "weights.pt"):
        with pytest.raises(torchalgo.Error, match=rf"^TA1502 load_onnx: .*{name} is no ONNX model"):
            torchalgo.load_onnx(tmp_path / name)
    with pytest.raises(torchalgo.Error, match=r"^TA150\d load_onnx: .*more.onnx"):
        torchalgo.load_onnx(tmp_path / "more.onnx")
    for path in (tmp_path, tmp_path / "missing.onnx", Path("/dev/null")):
        with pytest.raises(torchalgo.Error, match=r"^TA2004 load_onnx: cannot read"):
            torchalgo.load_onnx(path)


def bad_weight(change: Callable[[Any], None]) -> Any:
    model = model_of([CONV], {"x": [1, 3, 8, 8]}, WEIGHTS)
    change(model.graph.initializer[0])
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.dims.append(1 << 39),
        lambda t: t.dims.append(-1),
        lambda t: t.dims.extend([1] * 40),
        lambda t: setattr(t, "raw_data", t.raw_data[:-1]),
        lambda t: setattr(t, "data_type", TensorProto.STRING),
        lambda t: setattr(t, "data_type", TensorProto.DOUBLE),
        lambda t: setattr(t, "data_type", 99),
    ],
)
def test_a_weight_that_is_not_what_it_says_is_refused(
    change: Callable[[Any], None], tmp_path: Path
) -> None:
    with pytest.raises(torchalgo.Error, match=r"^TA150[345] load_onnx: .*weight 'w'"):
        load(bad_weight(change), tmp_path)


# ---- weights in other files ----------------------------------------------------------------------


def external(location: str, offset: str = "0", length: str = "432") -> Any:
    def change(tensor: Any) -> None:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", offset), ("length", length)):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value

    return bad_weight(change)


@torch.no_grad()
def test_weights_may_be_in_files_of_the_folder(tmp_path: Path) -> None:
    x, inside = torch.rand(1, 3, 8, 8), load(bad_weight(lambda t: None), tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"12345678" + WEIGHTS[0].raw_data)
    outside = load(external("data/w.bin", "8"), tmp_path)
    assert torch.equal(inside(x), outside(x))


def test_data_files_cannot_be_outside_of_the_folder(tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret", tmp_path / "model"
    folder.mkdir()
    secret.write_bytes(WEIGHTS[0].raw_data)
    os.symlink(secret, folder / "link")
    os.symlink(tmp_path, folder / "up")
    os.mkfifo(folder / "pipe")
    (folder / "w").write_bytes(WEIGHTS[0].raw_data)
    for place in (str(secret), "../secret", "link", "up/secret", "pipe", "", ".", "a/../../secret",
                  "..\\secret", "missing", "w\0"):  # fmt: skip
        with pytest.raises(torchalgo.Error, match=r"^TA1505 load_onnx: .*weight 'w'"):
            load(external(place), folder)
    for offset, length in (("1", "432"), ("0", "431"), ("-1", "432"), ("9" * 30, "432"), ("", "x")):
        with pytest.raises(torchalgo.Error, match=r"^TA1505 load_onnx: .*weight 'w'"):
            load(external("w", offset, length), folder)
    load(external("w"), folder)


def test_the_same_bytes_under_many_names_do_not_fill_the_memory(tmp_path: Path) -> None:
    model = external("w")
    (tmp_path / "w").write_bytes(WEIGHTS[0].raw_data)
    for i in range(3):
        other = model.graph.initializer.add()
        other.CopyFrom(model.graph.initializer[0])
        other.name = f"w{i}"
        other.dims[:] = [[108], [54, 2], [27, 4]][i]
    with pytest.raises(torchalgo.Error, match="TA1506"):
        load(model, tmp_path)


# ---- without onnx --------------------------------------------------------------------------------


def test_without_onnx_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(torchalgo.Error, match=r"TA1501 .*pip install onnx"):
        torchalgo.load_onnx(tmp_path / "model.onnx")


def test_importing_torchalgo_does_not_import_onnx() -> None:
    source = "import torchalgo, sys; assert 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", source], check=True)
