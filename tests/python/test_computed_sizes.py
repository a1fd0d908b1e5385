# SPDX-License-Identifier: BSD-3-Clause
"""Models that ask for the sizes of their tensors and compute with them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.graph_models import freeze
from support.random_plans import any_plan, assert_close, priced_plan, rewrite
from torchalgo import _C

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
