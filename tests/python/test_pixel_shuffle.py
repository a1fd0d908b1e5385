# SPDX-License-Identifier: BSD-3-Clause
"""Networks that make a larger image with a pixel shuffle."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from support.graph_models import freeze
from support.nets import arguments, fp64_error
from support.random_plans import any_plan, assert_close, priced_plan, rewrite
from support.training_models import trio
from torchalgo import _C
from torchalgo._capture.fx_model import exported_model

LAYOUTS = (
    ("nhwc", "nhwc"), ("nChw16c", "nChw16c"), ("nhwc", "nchw"), ("nChw16c", "nchw"),
    ("nChw16c", "nhwc"),
)  # fmt: skip


class Espcn(nn.Sequential):
    """ESPCN, whose result is what the pixel shuffle makes."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 8, 3, padding=1), nn.Tanh(),
            nn.Conv2d(8, 9, 3, padding=1), nn.PixelShuffle(3),
        )  # fmt: skip


class Edsr(nn.Module):
    """EDSR with one block, twice the size in two steps. An activation follows one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 16, 3, padding=1)
        self.body = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)
        )
        self.tail = nn.Sequential(
            nn.Conv2d(16, 64, 3, padding=1), nn.PixelShuffle(2), nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(16, 80, 1), nn.PixelShuffle(2), nn.Conv2d(20, 3, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x)
        return self.tail(self.body(x) + x)


class Written(nn.Module):
    """Two pixel shuffles as views, which read the sizes of their inputs."""

    def __init__(self, order: tuple[int, ...] = (0, 1, 4, 2, 5, 3)) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 36, 3, padding=1)
        self.tail = nn.Conv2d(4, 16, 1)
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x)
        n, c, h, w = x.shape
        x = x.view(n, c // 9, 3, 3, h, w).permute(self.order)
        x = self.tail(x.contiguous().view(n, c // 9, h * 3, w * 3))
        split = x.reshape(x.size(0), -1, 2, 2, x.size(2), x.size(3)).permute(self.order)
        return split.reshape(x.size(0), 4, 2 * x.size(2), 2 * x.size(3))


CASES: dict[str, tuple[type[nn.Module], tuple[int, ...], set[str]]] = {
    "espcn": (Espcn, (1, 1, 9, 10), {"pixelshuffle_f32_n1c9h9w10_x3"}),
    "edsr": (
        Edsr,
        (2, 3, 8, 9),
        {"pixelshuffle_f32_n2c64h8w9_x2", "pixelshuffle_f32_n2c80h16w18_x2"},
    ),
    "written": (
        Written,
        (2, 3, 8, 9),
        {"pixelshuffle_f32_n2c36h8w9_x3", "pixelshuffle_f32_n2c16h24w27_x2"},
    ),
}


def make(name: str) -> tuple[nn.Module, Tensor, set[str]]:
    model, sizes, problems = CASES[name]
    torch.manual_seed(0)
    return model().eval(), torch.rand(sizes), problems


def shuffles_of(graph: _C.Graph) -> set[str]:
    problems = (node.problem for node in graph.nodes)
    return {text for text in problems if text is not None and text.startswith("pixelshuffle_")}


@pytest.mark.parametrize("capture", ["trace", "script", "export"])
@pytest.mark.parametrize("name", CASES)
def test_a_pixel_shuffle_is_known_however_it_is_captured(name: str, capture: str) -> None:
    model, x, problems = make(name)
    # Views of constant sizes are a pixel shuffle for these sizes only, which the graph compares.
    is_pinned = (name, capture) == ("written", "export")
    if capture == "export":
        model, capture = exported_model(torch.export.export(model, (x,))), "trace"
    graph = _C.import_graph(freeze(model, (x,), capture)._c, (x,)).graph
    assert shuffles_of(graph) == problems
    left = [node.name for node in graph.nodes if node.problem is None]
    assert is_pinned or not left, left


def test_views_that_are_no_pixel_shuffle_stay() -> None:
    class Constant(nn.Module):
        def __init__(self, batch: int) -> None:
            super().__init__()
            self.batch = batch

        def forward(self, x: Tensor) -> Tensor:
            # The sizes of the example, so that an image of 4x16 counts as one of 8x8.
            x = x.view(self.batch, 2, 2, 2, 8, 8).permute(0, 1, 4, 2, 5, 3)
            return x.reshape(self.batch, 2, 16, 16)

    class Turned(Written):
        def forward(self, x: Tensor) -> Tensor:
            n, c, h, w = x.shape  # of the example, height and width are the same
            x = x.view(n, c // 4, 2, 2, w, h).permute(self.order)
            return x.reshape(n, c // 4, 2 * h, 2 * w)

    x = torch.rand(2, 8, 8, 8)
    for model in (Turned(), Written((0, 1, 4, 3, 5, 2)), Written((0, 1, 5, 2, 4, 3))):
        example = x[:, :3] if model.order != (0, 1, 4, 2, 5, 3) else x
        graph = _C.import_graph(freeze(model.eval(), (example,), "trace")._c, (example,)).graph
        assert not shuffles_of(graph)
    for batch in (-1, 2):
        model = Constant(batch).eval()
        exported = exported_model(torch.export.export(model, (x,)))
        for captured in (model, exported):
            module = rewrite(
                imported := _C.import_graph(freeze(captured, (x,), "trace")._c, (x,)),
                any_plan(imported.graph, 0),
            )
            assert shuffles_of(imported.graph) and torch.equal(module(x), model(x))
            with pytest.raises(RuntimeError):  # not the image of another shape
                module(torch.rand(2, 8, 4, 16))
        fast = torchalgo.optimize(model, x, settings=torchalgo.Settings(run_untimed=True))
        for given in (x, torch.rand(2, 8, 4, 16)):
            assert torch.equal(fast(given), model(given))


@pytest.mark.parametrize(("src", "dst"), LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_plans_are_right_in_each_layout_and_for_other_sizes(name: str, src: str, dst: str) -> None:
    model, x, problems = make(name)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))

    def price(key: _C.CostKey) -> int:
        wanted = ("cpu.pixel_shuffle", src, dst)
        is_wanted = (key.primitive, key.src, key.dst) == wanted or key.problem not in problems
        return 10 if is_wanted else 100_000

    plan = priced_plan(imported.graph, price)
    chosen = [node.primitive for node in plan.nodes if node.primitive.name == "cpu.pixel_shuffle"]
    assert [(p.src, p.dst) for p in chosen] == [(src, dst)] * len(problems)
    module = rewrite(imported, plan)
    runner = _C.GraphRunner.make(module._c, [])
    assert runner is not None
    for sizes in (x.shape, (3, x.shape[1], 6, 7), (1, x.shape[1], 20, 70)):
        y = torch.rand(sizes)
        with torch.no_grad():
            assert_close(module(y), model, (y,))
            assert torch.equal(runner.run(y), module(y))


@pytest.mark.parametrize("name", CASES)
def test_random_plans_are_right(name: str) -> None:
    model, x, _ = make(name)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    for seed in range(5):
        module = rewrite(imported, any_plan(imported.graph, seed))
        with torch.no_grad():
            assert_close(module(x), model, (x,))


@torch.no_grad()
def test_an_optimized_module_is_saved_and_loaded_with_its_pixel_shuffle(tmp_path: Path) -> None:
    model, x, _ = make("edsr")
    settings = arguments(run_untimed=True, overrides={"*pixel_shuffle*": "cpu.pixel_shuffle"})
    fast = torchalgo.optimize(model, (x,), **settings)
    assert fast.runs == "plan"
    assert fp64_error(model, fast, x) < 1e-5
    fast.save(tmp_path / "edsr.pt")
    loaded = torchalgo.load(tmp_path / "edsr.pt")
    assert loaded.plan == fast.plan
    for y in (x, torch.rand(1, 3, 11, 5)):
        assert torch.equal(loaded(y), fast(y))


def test_training_leaves_a_pixel_shuffle_to_pytorch(tmp_path: Path) -> None:
    model, x, _ = make("edsr")
    both = trio(model.train(), x, tmp_path)
    both.check_step(x)
    both.check_step(torch.rand(1, 3, 12, 7))
