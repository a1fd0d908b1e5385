# SPDX-License-Identifier: BSD-3-Clause
"""What the importer leaves opaque or refuses, and operations that it knows in several spellings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from support.graph_models import Concat, Residual, freeze, make_model
from support.imported_graphs import graph_of, import_model, notes, problems, reads
from torchalgo import _C
from torchalgo._capture.fx_model import exported_model


class OneConv(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class ComputedWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.conv.weight * x.mean())


@pytest.mark.parametrize(
    ("model", "shape", "reason"),
    [
        (OneConv(nn.Conv2d(4, 4, 3)), (4, 8, 8), "no batch dimension"),
        (OneConv(nn.Conv1d(4, 4, 3)), (4, 8), "no batch dimension"),
        (ComputedWeight(), (1, 4, 8, 8), "weight is not a constant"),
    ],
)
def test_an_opaque_convolution_says_why(
    model: nn.Module, shape: tuple[int, ...], reason: str
) -> None:
    graph = import_model(model.eval(), (torch.rand(shape),), "script")
    convolutions = [n for n in graph.nodes if "conv" in n.kind]
    assert [n.problem for n in convolutions] == [None]
    assert reason in convolutions[0].note


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_floating_types_are_spelled(dtype: torch.dtype) -> None:
    model = OneConv(nn.Conv2d(4, 4, 1)).eval().to(dtype)
    graph = import_model(model, (torch.rand(1, 4, 8, 8).to(dtype),), "trace")
    word = {torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
    assert graph.values[0].dtype == word
    assert problems(graph)["conv"] == f"fwd_{word}_n1c4h8w8_k4r1s1_st1x1_pad0x0_dil1x1_g1+bias"


def test_broadcasts_and_constants_stay_opaque() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Parameter(torch.rand(1, 4, 8, 8))

        def forward(self, x: Tensor) -> Tensor:
            y = x + self.offset
            y = torch.add(y, x, alpha=2)
            return y * x.mean((1, 2, 3), keepdim=True) + 1.0

    graph = import_model(Mixed().eval(), (torch.rand(1, 4, 8, 8),), "script")
    assert not [node.name for node in graph.nodes if node.problem]
    assert notes(graph)["add_1"] == "alpha is not 1"


def test_a_window_that_follows_the_image_is_planned_only_if_it_is_the_image() -> None:
    class Windows(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            half = nn.functional.avg_pool2d(x, x.size(2) // 2)
            swapped = nn.functional.avg_pool2d(x, (x.size(3), x.size(2)))
            padded = nn.functional.avg_pool2d(x, x.shape[-2:], padding=1)
            one = nn.functional.adaptive_avg_pool2d(x, (x.size(2) // 8, x.size(3) // 8))
            return half, swapped, padded, one

    graph = import_model(Windows().eval(), (torch.rand(1, 4, 8, 8),), "script")
    pools = [node for node in graph.nodes if "pool" in node.kind]
    assert [node.problem for node in pools] == [None] * 4
    assert {node.note for node in pools[:3]} == {"kernel_size is not a constant"}
    assert pools[3].note == "output_size is not a constant"


def test_importing_neither_runs_the_module_nor_changes_it_nor_the_inputs() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x.add_(1.0)
            return self.conv(x).relu_()

    x = torch.rand(1, 4, 8, 8)
    kept = x.clone()
    frozen = freeze(Writes().eval(), (x.clone(),), "script")
    graph: Any = frozen.graph
    before = str(graph)
    imported = _C.import_graph(frozen._c, (x,))
    assert str(graph) == before
    assert torch.equal(x, kept)
    assert problems(imported.graph)["conv"] is None
    with pytest.raises(RuntimeError, match="optimized_plan_"):  # the executor has made none
        frozen.get_debug_state()


def test_channels_last_inputs_are_noted() -> None:
    model = Concat().eval()
    x = torch.rand(2, 4, 8, 8).to(memory_format=torch.channels_last)
    assert import_model(model, (x,), "trace").input_layouts == ["nhwc"]
    # Both formats at once: one channel.
    flat = OneConv(nn.Conv2d(1, 4, 3)).eval()
    y = torch.rand(2, 1, 8, 8).to(memory_format=torch.channels_last)
    assert import_model(flat, (y,), "trace").input_layouts == ["nchw"]


def test_a_module_that_is_not_frozen_is_refused() -> None:
    model = Residual().eval()
    x = torch.rand(1, 3, 8, 8)
    scripted: Any = torch.jit.script(model)
    with pytest.raises(_C.Error, match=r"not frozen: call torch\.jit\.freeze"):
        _C.import_graph(scripted._c, (x,))
    training: Any = torch.jit.script(Residual())
    with pytest.raises(_C.Error, match=r"in train mode: call eval\(\)"):
        _C.import_graph(training._c, (x,))


def test_inputs_that_do_not_fit_are_refused() -> None:
    model, inputs = make_model("residual")
    frozen = freeze(model, inputs, "trace")
    with pytest.raises(_C.Error, match="the inputs do not fit forward"):
        _C.import_graph(frozen._c, ())
    with pytest.raises(_C.Error, match="forward fails on example inputs of sizes"):
        _C.import_graph(frozen._c, (torch.rand(1, 5, 8, 8),))


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_a_shuffle_is_known_however_it_is_written(capture: str) -> None:
    found = problems(graph_of("shuffle", capture))
    assert {name: found[name] for name in found if "shuffle" in name or "narrow" in name} == {
        "narrow_0": "slice_f32_n2c12h8w9_k6from0",
        "narrow_1": "slice_f32_n2c12h8w9_k6from6",
        "channel_shuffle_0": "shuffle_f32_n2c12h8w9_g2",
        "channel_shuffle_1": "shuffle_f32_n2c12h8w9_g3",
        "channel_shuffle_2": "shuffle_f32_n2c12h8w9_g4",
    }


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_parts_that_are_joined_again_are_the_whole(capture: str) -> None:
    graph = graph_of("split", capture)
    found = problems(graph)
    assert found["cat_0"] == "concat_f32_n1c32x16h8w8"
    assert reads(graph, "cat_0") == ["stem", "conv"]
    assert found["narrow_0"] == "slice_f32_n1c32h8w8_k16from16"  # nobody reads the other part
    assert found["slice_0"] == "slice_f32_n1c8h8w8_k5from3"
    assert found["slice_1"] == "slice_f32_n1c8h8w8_k6from0"
    assert found["narrow_1"] == "slice_f32_n1c8h8w8_k6from1"


def test_a_view_that_is_no_shuffle_for_other_sizes_stays() -> None:
    class Square(nn.Module):
        def __init__(self, sizes: tuple[int, ...] | None) -> None:
            super().__init__()
            self.sizes = sizes

        def forward(self, x: Tensor) -> Tensor:
            n, c, h, w = x.shape
            five = (n, 2, c // 2, w, h) if self.sizes is None else self.sizes
            return x.view(five).transpose(1, 2).reshape(n, c, h, w)

    # h and w change places, or are those of the example.
    for sizes in (None, (1, 2, 4, 8, 8)):
        found = problems(import_model(Square(sizes).eval(), (torch.rand(1, 8, 8, 8),), "trace"))
        assert "channel_shuffle_0" not in found


def test_a_part_that_is_the_whole_is_nothing_in_a_graph_of_torch_export() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.conv(x)[:, :8, :, :]) + 1

    model, x = Parts().eval(), torch.rand(1, 4, 8, 8)
    exported = exported_model(torch.export.export(model, (x,)))
    assert not any("alias" in name for name in problems(import_model(exported, (x,), "trace")))


@pytest.mark.filterwarnings("ignore:torchalgo. inputs are [12]x4x")
@pytest.mark.parametrize("batch", [1, -1, None])
@torch.no_grad()
def test_a_shuffle_of_constant_sizes_is_known_and_right_for_others(batch: int | None) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            n = y.shape[0] if batch is None else batch
            y = y.view(n, 2, 4, 8, 8).transpose(1, 2)
            return y.contiguous().view(n, 8, 8, 8)

    model, x = Constant().eval(), torch.rand(1, 4, 8, 8)
    assert problems(import_model(model, (x,), "trace"))["channel_shuffle_0"] is not None
    exported = exported_model(torch.export.export(model, (x,)))
    assert problems(import_model(exported, (x,), "trace"))["channel_shuffle_0"] is not None
    fast = torchalgo.optimize(model, x, settings=torchalgo.Settings(run_untimed=True))
    others = [torch.rand(1, 4, 4, 16)]
    if batch != 1:
        others.append(torch.rand(3, 4, 8, 8))
    if batch == -1:
        others.append(torch.rand(2, 4, 4, 8))  # the images of two inputs become one
    for given in (x, *others):
        torch.testing.assert_close(fast(given), model(given), rtol=1e-4, atol=1e-5)


def test_parts_that_are_written_stay_parts_of_one_tensor() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            a, b = x.chunk(2, 1)
            a.add_(1.0)
            return x + torch.cat((b, a), 1)

    found = problems(import_model(Written().eval(), (torch.rand(1, 4, 8, 8),), "trace"))
    assert not any(name.startswith("narrow") for name in found)


def test_a_trace_shows_the_graph_after_each_step(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout(), nn.ReLU(inplace=True)).eval()
    frozen = freeze(model, (torch.randn(1, 3, 4, 4),), "trace")._c
    _C.import_graph(frozen, (torch.randn(1, 3, 4, 4),))
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("TORCHALGO_TRACE_IMPORT", "1")
    _C.import_graph(frozen, (torch.randn(1, 3, 4, 4),))
    steps = capfd.readouterr().err.split("torchalgo import: ")
    assert "growing lists (unchanged)\n" in steps
    assert any(s.startswith("mutated tensors:\ngraph(") and "aten::relu(" in s for s in steps)


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_each_gelu_is_an_activation(capture: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GELU(), nn.Conv2d(4, 4, 1), nn.GELU("tanh"))
    graph = import_model(model.eval(), (torch.randn(1, 3, 5, 6),), capture)
    found = [p for p in problems(graph).values() if p and "gelu" in p]
    assert found == ["gelu_f32_n1c4h5w6", "gelu_tanh_f32_n1c4h5w6"]
