# SPDX-License-Identifier: BSD-3-Clause
"""Models that ask for the sizes of their tensors and compute with them."""

from __future__ import annotations

import io

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.graph_models import freeze
from support.random_plans import any_plan, assert_close, op_counts, priced_plan, rewrite
from torchalgo import _C
from torchalgo._refine.binding import rewrite_with_origins
from torchalgo._refine.left_ops import left_times

CAPTURES = ("trace", "script")


class ShapeQueries(nn.Module):
    """Asks for the shape of a tensor that only convolutions read, in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 20, 3, padding=1)
        self.conv2 = nn.Conv2d(20, 20, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(x))
        n, c, h, _ = y.size()
        z = self.conv2(y).reshape(n, c * h, y.shape[-1])
        count = len(y) if torch.jit.is_scripting() else y.size(0)  # len is a constant of a trace
        return z * (y.numel() // (count * y.size(1))) + y.shape[3]


def imported_as(model: nn.Module, inputs: tuple[Tensor, ...], capture: str) -> _C.Imported:
    return _C.import_graph(freeze(model, inputs, capture)._c, inputs)


def blocked_plan(graph: _C.Graph) -> _C.Plan:
    """The best plan where everything but blocks of channels is dear."""

    def price(key: _C.CostKey) -> int:
        is_cheap = key.dst == "nChw16c" or key.problem.startswith("transform_")
        return 10 if is_cheap else 1000

    return priced_plan(graph, price)


def assert_same_at(
    imported: _C.Imported, plan: _C.Plan, model: nn.Module, *shapes: tuple[int, ...]
) -> None:
    """Compares the rewritten model and its runner with `model` for inputs of these shapes."""
    module = rewrite(imported, plan)
    runner = _C.GraphRunner.make(module._c, [])
    assert runner is not None
    for shape in shapes:
        x = torch.rand(shape)
        with torch.no_grad():
            assert_close(module(x), model, (x,))
            assert_close(runner.run(x), model, (x,))


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_query_of_the_shape_takes_any_layout(capture: str) -> None:
    model = ShapeQueries().eval()
    imported = imported_as(model, (torch.rand(2, 4, 8, 9),), capture)
    graph = imported.graph
    asked = next(v for v, value in enumerate(graph.values) if value.name.startswith("relu"))
    queries = [node for node in graph.nodes if asked in node.inputs and node.problem is None]
    assert len(queries) > 3
    assert all(node.reads_shape_only for node in queries)
    shapes = [(2, 4, 8, 9), (3, 4, 5, 7), (1, 4, 12, 4)]
    for seed in range(3):
        assert_same_at(imported, any_plan(graph, seed, prefix="cpu."), model, *shapes)
    plan = blocked_plan(graph)
    assert [t.value for t in plan.transforms if t.primitive.dst == "nchw"] == ["conv2"]
    assert_same_at(imported, plan, model, *shapes)


def test_a_query_of_the_shape_is_not_left_to_pytorch() -> None:
    imported = imported_as(ShapeQueries().eval(), (torch.rand(2, 4, 8, 9),), "trace")
    nodes = imported.graph.nodes
    _, origins = rewrite_with_origins(imported, any_plan(imported.graph, 0))
    left = {i: nodes[origin] for i, origin in enumerate(origins) if origin >= 0}
    assert any(node.reads_shape_only for node in left.values())
    found = left_times({i: [1000.0] for i in left}, imported.graph, origins)
    shapes = {node.name for node in left.values() if node.reads_shape_only}
    assert set(found) == {n.name for n in left.values() if not n.problem} - shapes
    assert found


def test_the_shape_of_a_one_dimensional_tensor_is_read_in_nchw() -> None:
    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv1d(4, 16, 3, padding=1)
            self.conv2 = nn.Conv1d(16, 16, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.conv1(x))
            return self.conv2(y).reshape(y.size(0), -1) * y.size(2)

    model = Line().eval()
    imported = imported_as(model, (torch.rand(2, 4, 9),), "script")
    assert not any(node.reads_shape_only for node in imported.graph.nodes)
    for seed in range(3):
        plan = any_plan(imported.graph, seed, prefix="cpu.")
        assert_same_at(imported, plan, model, (2, 4, 9), (1, 4, 6))


class UNet(nn.Module):
    """Brings each map to the size of an earlier one, and joins both."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 16, 3, padding=1)
        self.down = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.bottom = nn.Conv2d(32, 16, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(48, 16, 3, padding=1)
        self.end = nn.Conv2d(32, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.stem(x))
        b = F.relu(self.down(a))
        c = F.interpolate(self.bottom(b), size=b.shape[-2:], mode="bilinear")
        d = F.interpolate(self.middle(torch.cat((c, b), 1)), a.shape[2:], mode="nearest")
        y = self.end(torch.cat((a, d), 1))
        return F.interpolate(y, (x.size(2), x.size(3)), mode="bilinear", align_corners=True)


class Pools(nn.Module):
    """Poolings whose windows follow the image, and one number for height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 16, 3, padding=1)
        self.gate = nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv(x))
        half = F.adaptive_avg_pool2d(y, (y.size(2) // 2, y.size(3) // 2))
        gate = self.gate(F.avg_pool2d(y, kernel_size=y.shape[-2:]))
        mean = F.avg_pool2d(y, y.size()[2:], stride=(1, 1))
        side = x.shape[-1] + 1
        return F.interpolate(half * gate + half * mean, size=side)


SIZED = {
    UNet: {
        "bilinear_f32_n1c16h3w4_p5q7",
        "nearest_f32_n1c16h5w7_p9q13",
        "bilinear_f32_n1c5h9w13_p9q13_align",
    },
    Pools: {
        "avgpool_f32_n1c16h9w13_p4q6",
        "avgpool_f32_n1c16h9w13_p1q1",
        "nearest_f32_n1c16h4w6_p14q14",
    },
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("make", SIZED)
def test_a_size_that_the_graph_computes_is_passed_to_the_op(
    make: type[nn.Module], capture: str
) -> None:
    model = make().eval()
    imported = imported_as(model, (torch.rand(1, 4, 9, 13),), capture)
    graph = imported.graph
    found = {node.problem for node in graph.nodes if node.problem}
    assert found >= SIZED[make]
    assert not [n for n in graph.nodes if not n.problem and n.inputs and not n.reads_shape_only]
    shapes = [(1, 4, 9, 13), (2, 4, 12, 8), (1, 4, 17, 16), (1, 4, 9, 13)]
    for seed in range(4):
        assert_same_at(imported, any_plan(graph, seed, prefix="cpu."), model, *shapes)
    assert_same_at(imported, blocked_plan(graph), model, *shapes)
    module = rewrite(imported, blocked_plan(graph))
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    x = torch.rand(shapes[1])
    with torch.no_grad():
        assert torch.equal(torch.jit.load(buffer)(x), module(x))
    assert {"torchalgo::run_sized"} <= set(op_counts(module))


class Excite(nn.Module):
    """A squeeze-and-excitation block with views, as its authors wrote it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(channels, 4, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(4, channels, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = self.pool(x).view(b, c)
        y = self.fc(y).view(b, c, 1, 1)
        return x * y.expand_as(x)


class Gate(nn.Module):
    """Squeezes by two means, and has another number of channels between the linear layers."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.narrow = nn.Linear(channels, 8)
        self.wide = nn.Linear(8, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.narrow(x.mean((2, 3))))
        z = self.wide(F.gelu(self.narrow(x.mean(-1).mean(-1))))
        return x * torch.sigmoid(self.wide(y))[:, :, None, None] * z.unsqueeze(-1).unsqueeze(-1)


class Excited(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 16, 3, padding=1)
        self.excite = Excite(16)
        self.gate = Gate(16)
        self.end = nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.gate(self.excite(F.relu(self.conv(x)))))


@pytest.mark.parametrize("capture", CAPTURES)
def test_squeeze_and_excitation_with_views_is_planned_as_convolutions(capture: str) -> None:
    model = Excited().eval()
    imported = imported_as(model, (torch.rand(2, 4, 9, 13),), capture)
    graph = imported.graph
    assert not [n.kind for n in graph.nodes if not n.problem and not n.reads_shape_only]
    found = {node.name: node.problem for node in graph.nodes if node.problem}
    assert found["excite.fc.0"] == "fwd_f32_n2c16h1w1_k4r1s1_st1x1_pad0x0_dil1x1_g1"
    assert found["gate.wide#1"] == "fwd_f32_n2c8h1w1_k16r1s1_st1x1_pad0x0_dil1x1_g1+bias"
    assert sum(str(problem).endswith("_channelwise") for problem in found.values()) == 3
    shapes = [(2, 4, 9, 13), (1, 4, 9, 13), (3, 4, 6, 5)]
    for seed in range(4):
        assert_same_at(imported, any_plan(graph, seed, prefix="cpu."), model, *shapes)


class NotKept(nn.Module):
    """Views like those of a squeeze-and-excitation block which mean something else."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.fc = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, _ = x.size()
        if self.kind == "swapped":  # reads as [n, c, 1, 1] where n == c only
            return x * self.fc(x.mean((2, 3))).view(c, n, 1, 1)
        if self.kind == "rows":
            y = F.adaptive_avg_pool2d(x, 1).view(h * 8, -1)
            return x * self.fc(y).view(n, c, 1, 1)
        y = self.fc(x.mean((2, 3)))
        return x * y.view(n, c, 1, 1) + y.sum()


@pytest.mark.parametrize("kind", ["swapped", "rows", "read twice"])
def test_other_views_stay_as_they_are(kind: str) -> None:
    model = NotKept(kind).eval()
    imported = imported_as(model, (torch.rand(16, 16, 2, 3),), "trace")
    assert any(n.problem and n.problem.startswith("linear_") for n in imported.graph.nodes)
    for seed in range(2):
        assert_same_at(imported, any_plan(imported.graph, seed), model, (16, 16, 2, 3))


class OtherGates(nn.Module):
    """Gates of CBAM, which adds two matrices, and of MobileOne, whose last view changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16))
        self.reduce = nn.Conv2d(16, 4, 1)
        self.expand = nn.Conv2d(4, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        window = (x.size(2), x.size(3))
        mean = self.mlp(F.avg_pool2d(x, window, stride=window))
        most = self.mlp(F.max_pool2d(x, window, stride=window))
        x = x * torch.sigmoid(mean + most).unsqueeze(2).unsqueeze(3).expand_as(x)
        _, c, h, w = x.size()
        y = self.expand(F.relu(self.reduce(F.avg_pool2d(x, kernel_size=[h, w]))))
        return x * torch.sigmoid(y).view(-1, c, 1, 1)


@pytest.mark.parametrize("capture", CAPTURES)
def test_gates_of_two_poolings_and_views_that_change_nothing(capture: str) -> None:
    model = OtherGates().eval()
    imported = imported_as(model, (torch.rand(2, 16, 9, 13),), capture)
    left = [n for n in imported.graph.nodes if not n.problem and not n.reads_shape_only]
    assert [n.kind for n in left] == ["aten::max_pool2d"]
    shapes = [(2, 16, 9, 13), (1, 16, 9, 13), (3, 16, 6, 5)]
    for seed in range(4):
        plan = any_plan(imported.graph, seed, prefix="cpu.")
        assert_same_at(imported, plan, model, *shapes)
