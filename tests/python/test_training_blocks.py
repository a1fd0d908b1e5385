# SPDX-License-Identifier: BSD-3-Clause
"""Activations, products and squeeze-and-excitation blocks in regions: gradients as in eager."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from check_training import smooth
from support.gated_models import (
    PRODUCTS,
    Excite,
    LikeEfficientNet,
    LikeMobileNetV3,
    LikeRegNetY,
)
from support.training_models import check_one_region, images, trio
from torchalgo._train.trace import trace


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# ---- activations ---------------------------------------------------------------------------------


class Activations(nn.Module):
    """Each activation behind a convolution of its own, whose gradient depends on no other."""

    def __init__(self, activations: list[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in activations)
        self.activations = activations
        self.modules_of_it = nn.ModuleList(a for a in activations if isinstance(a, nn.Module))
        for conv in self.convolutions:
            nn.init.normal_(conv.weight, std=1.5)  # values beyond the kinks at -3, 3 and 6

    def forward(self, x: Tensor) -> Tensor:
        pairs = zip(self.convolutions, self.activations, strict=True)
        return torch.cat([act(conv(x)) for conv, act in pairs], 1)


def modules(*, inplace: bool) -> list[Callable[[Tensor], Tensor]]:
    kinds = [nn.ReLU, nn.ReLU6, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid]
    others = [nn.Sigmoid(), nn.Tanh(), nn.GELU(), nn.GELU(approximate="tanh")]
    return [
        *(kind(inplace=inplace) for kind in kinds),
        nn.Hardtanh(-1.5, 2, inplace=inplace),
        nn.LeakyReLU(0.2, inplace=inplace),
        nn.ELU(0.7, inplace=inplace),
        *others,
    ]


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    functional.relu, functional.relu6, functional.silu, functional.mish, functional.hardswish,
    functional.hardsigmoid, lambda x: functional.hardtanh(x, -1.5, 2, inplace=True),
    lambda x: functional.leaky_relu(x, 0.2, True), lambda x: functional.elu(x, alpha=0.7),
    torch.sigmoid, torch.tanh, functional.gelu, lambda x: functional.gelu(x, approximate="tanh"),
]  # fmt: skip
METHODS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.relu_(), lambda x: functional.relu6(x, inplace=True),
    lambda x: functional.silu(x, inplace=True), lambda x: functional.mish(x, inplace=True),
    lambda x: functional.hardswish(x, inplace=True),
    lambda x: functional.hardsigmoid(x, inplace=True), nn.Hardtanh(-1.5, 2), nn.LeakyReLU(0.2),
    nn.ELU(0.7), lambda x: x.sigmoid_(), lambda x: x.tanh(), nn.GELU(), nn.GELU("tanh"),
]  # fmt: skip
KINDS = [
    "relu", "relu6", "silu", "mish", "hardswish", "hardsigmoid", "clamp-1.5x2", "leaky_relu0.2",
    "elu0.7", "sigmoid", "tanh", "gelu", "gelu_tanh",
]  # fmt: skip


@pytest.mark.parametrize(
    "activations", [modules(inplace=False), modules(inplace=True), FUNCTIONS, METHODS],
    ids=["modules", "modules in place", "functions", "methods"],
)  # fmt: skip
def test_gradients_of_each_activation(
    tmp_path: Path, activations: list[Callable[[Tensor], Tensor]]
) -> None:
    problems = check_one_region(trio(Activations(activations), images(), tmp_path), images())
    assert {f"bwd_{kind}_f32_n2c8h16w16" for kind in KINDS} <= set(problems)


def test_an_activation_that_no_problem_equals_stays_pytorchs(tmp_path: Path) -> None:
    others = [nn.Hardtanh(1, 2), nn.LeakyReLU(1e7), nn.CELU(0.5)]
    both = trio(Activations([*others, nn.SiLU()]), images(), tmp_path)
    both.check_step(images())
    problems = [node.problem for plan in both.planned.plan.regions for node in plan.nodes]
    assert sum(problem.startswith("bwd_silu") for problem in problems) == 1
    assert not any("clamp" in problem or "leaky" in problem for problem in problems)


def test_a_slope_that_changes_after_planning_is_used(tmp_path: Path) -> None:
    both = trio(nn.Sequential(nn.Conv2d(8, 8, 1), nn.LeakyReLU(0.2)), images(), tmp_path)
    for model, _ in both.each():
        model.get_submodule("1").negative_slope = 0.5
    both.check_step(images())
    assert both.planned.original_runs.total() == 1


class ReadBefore(nn.Module):
    """A SiLU in place on a tensor that a sum has read before."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        before = y + x
        functional.silu(y, inplace=True)
        return before, y


def test_a_reader_before_an_activation_in_place_sees_what_it_should(tmp_path: Path) -> None:
    check_one_region(trio(ReadBefore(), images(), tmp_path), images())


# ---- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", PRODUCTS)
def test_gradients_of_a_scale_per_channel(tmp_path: Path, product: str) -> None:
    net = nn.Sequential(nn.Conv2d(8, 8, 3), Excite(8, 4, nn.ReLU(), nn.Sigmoid(), product))
    problems = check_one_region(trio(net, images(), tmp_path), images())
    assert "mul_f32_n2c8h14w14_channelwise" in problems
    assert "channelsums_f32_n2c8h14w14_perimage_product" in problems


class Products(nn.Module):
    """Products of images, a square, and a sum with numbers per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.mean = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.left(x), self.right(x)
        a = a * b
        a *= b
        return b * b + self.mean(b) + a


def test_gradients_of_products_of_images(tmp_path: Path) -> None:
    problems = check_one_region(trio(Products(), images(), tmp_path), images())
    assert "add_f32_n2c8h16w16_channelwise" in problems
    assert "channelsums_f32_n2c8h16w16_perimage" in problems


class ScaledByParameter(nn.Module):
    """For a batch of one, the parameter has the sizes of a scale per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3)
        self.scale = nn.Parameter(torch.rand(1, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x * self.scale)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_parameter_that_scales_channels(tmp_path: Path, batch: int) -> None:
    both = trio(ScaledByParameter(), images(batch, 8, 9, 9), tmp_path)
    both.check_step(images(batch, 8, 9, 9))
    assert both.planned.planned_runs == 1


class ScaledByInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.conv(x) * scale


@pytest.mark.parametrize(
    ("shape", "is_known"),
    [((2, 8, 16, 16), True), ((2, 8, 1, 1), True), ((2, 1, 16, 16), False), ((2, 8, 16, 1), False),
     ((1, 8, 1, 1), False), ((8, 1, 1), False)],
)  # fmt: skip
def test_only_some_shapes_of_products_are_known(shape: tuple[int, ...], is_known: bool) -> None:
    (region,) = trace(ScaledByInput(), (images(), images(*shape))).regions.values()
    assert any("mul" in node.name for node in region.graph.nodes) == is_known


# ---- networks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LikeEfficientNet, LikeMobileNetV3, LikeRegNetY])
def test_gradients_of_networks_with_squeeze_and_excitation(
    tmp_path: Path, kind: type[nn.Module]
) -> None:
    problems = check_one_region(trio(kind(), images(4, 8, 16, 16), tmp_path), images(4, 8, 16, 16))
    assert any("perimage_product" in problem for problem in problems)


@pytest.mark.parametrize(
    "name",
    ["mobilenet_v3_small", "mobilenet_v3_large", "regnet_y_400mf", "efficientnet_b0",
     "shufflenet_v2_x1_0", "densenet121"],
)  # fmt: skip
def test_networks_of_torchvision_are_one_region(name: str) -> None:
    model = getattr(torchvision.models, name)(weights=None).train()
    assert len(trace(model, (torch.rand(2, 3, 64, 64),)).regions) == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_smooth", [True, False])
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "regnet_y_400mf", "efficientnet_b0"])
def test_gradients_of_networks_of_torchvision(tmp_path: Path, name: str, is_smooth: bool) -> None:
    model = getattr(torchvision.models, name)(weights=None)
    model = smooth(model) if is_smooth else model
    x = torch.rand(4, 3, 64, 64)
    both = trio(model, x, tmp_path)
    both.step(x)
    if is_smooth:
        both.check_gradients(bound=1e-3)  # terms may cancel, as they do in the means of a batch
    else:  # one kink that is decided otherwise moves the gradients of all layers before it
        ours, eager = both.errors()
        assert statistics.median(ours) <= max(5e-2, 3 * statistics.median(eager))
        both.check_buffers()
    assert both.planned.planned_runs == len(both.planned.plan.regions) > 0
    assert both.planned.original_runs.total() == 0
