# SPDX-License-Identifier: BSD-3-Clause
"""Group norms and instance norms: how models spell them, what is planned, and the values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.graph_models import freeze
from support.random_plans import any_plan, assert_close, rewrite
from torchalgo import _C

C = 24


class Net(nn.Module):
    """A convolution, and the norm of a test behind it."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, C, 3, padding=1)
        self.norm = norm
        self.end = nn.Conv2d(C, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(F.silu(self.norm(self.conv(x))))


class Written(nn.Module):
    """Norms that are calls of functions, with a weight or a bias only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(C)), nn.Parameter(torch.empty(C))

    def forward(self, x: Tensor) -> Tensor:
        x = F.group_norm(x, 3, weight=self.weight, eps=1e-3)
        return F.instance_norm(F.relu(x), bias=self.bias)


class Signal(nn.Module):
    """Images of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, C, 3, padding=1)
        self.norm = nn.GroupNorm(4, C)
        self.instance = nn.InstanceNorm1d(C)

    def forward(self, x: Tensor) -> Tensor:
        return self.instance(F.relu(self.norm(self.conv(x))))


class Images(nn.Module):
    """A norm of images whose channels nothing fixes."""

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, 2).relu()


class Volumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv3d(2, 4, 1), nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


def make(model: nn.Module) -> nn.Module:
    """Returns the model in eval mode, with random weights and statistics."""
    torch.manual_seed(3)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and tensor.dim() == 1:
            tensor.uniform_(0.5 if name.endswith(("weight", "var")) else -0.5, 1.5)
    return model.eval()


def check(model: nn.Module, x: Tensor, other: Tensor, capture: str) -> dict[str, str]:
    """Returns the problem of each node (or its op), after comparing values with f64.

    Two plans are run on `x`, from which the graph is captured, and on `other`.
    """
    imported = _C.import_graph(freeze(model, (x,), capture)._c, (x,))
    for seed in (1, 2):
        module = rewrite(imported, any_plan(imported.graph, seed))
        for inputs in ((x,), (other,)):
            with torch.no_grad():
                assert_close(module(*inputs), model, inputs)
    return {node.name: node.problem or node.kind for node in imported.graph.nodes}


def images(capture: str, make_norm: Callable[[], nn.Module]) -> dict[str, str]:
    x, other = torch.rand(2, 8, 9, 7) - 0.3, torch.rand(1, 8, 6, 11)
    return check(make(Net(make_norm())), x, other, capture)


@pytest.mark.parametrize("capture", ["trace", "script"])
@pytest.mark.parametrize("groups", [1, 6, C // 2])
def test_group_norms_are_planned(capture: str, groups: int) -> None:
    found = images(capture, lambda: nn.GroupNorm(groups, C, eps=1e-4))
    assert found["norm"] == f"groupnorm_f32_n2c24h9w7_g{groups}_eps0.0001"


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_checks_of_sizes_in_scripted_group_norms_fold_away(capture: str) -> None:
    found = images(capture, lambda: nn.Sequential(*(nn.GroupNorm(2, C) for _ in range(3))))
    assert [kind for kind in found.values() if "::" in kind] == []


def test_a_check_that_may_fail_stays() -> None:
    """torch refuses a group of one channel and one pixel, and so does the rewritten model."""
    model = make(Net(nn.GroupNorm(C, C)))
    x = torch.rand(1, 8, 5, 5)
    imported = _C.import_graph(freeze(model, (x,), "script")._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        model(torch.rand(1, 8, 1, 1))
    with pytest.raises(RuntimeError):
        module(torch.rand(1, 8, 1, 1))


@pytest.mark.parametrize("capture", ["trace", "script"])
@pytest.mark.parametrize("affine", [True, False])
def test_instance_norms_are_group_norms_of_one_channel(capture: str, affine: bool) -> None:
    found = images(capture, lambda: nn.InstanceNorm2d(C, affine=affine))
    assert found["norm"] == "groupnorm_f32_n2c24h9w7_g24_eps1e-05"


def test_instance_norms_with_running_statistics_go_into_the_convolution() -> None:
    found = images("trace", lambda: nn.InstanceNorm2d(C, affine=True, track_running_stats=True))
    assert "norm" not in found
    assert not [kind for kind in found.values() if "norm" in kind]


def test_norms_without_a_weight_or_a_bias_are_planned() -> None:
    found = images("trace", Written)
    assert [text for text in found.values() if text.startswith("groupnorm")] == [
        "groupnorm_f32_n2c24h9w7_g3_eps0.001",
        "groupnorm_f32_n2c24h9w7_g24_eps1e-05",
    ]


def test_norms_of_signals_are_planned() -> None:
    found = check(make(Signal()), torch.rand(2, 8, 30), torch.rand(1, 8, 17), "trace")
    assert found["norm"] == "groupnorm_f32_n2c24h1w30_g4_eps1e-05"
    assert found["instance"] == "groupnorm_f32_n2c24h1w30_g24_eps1e-05"


def test_a_norm_whose_channels_are_not_fixed_is_left() -> None:
    found = check(make(Images()), torch.rand(2, 8, 5, 5), torch.rand(1, 8, 4, 3), "trace")
    assert list(found.values()) == ["aten::group_norm", "relu_f32_n2c8h5w5"]


def test_a_norm_of_volumes_is_left() -> None:
    volumes = torch.rand(1, 2, 4, 5, 6), torch.rand(2, 2, 3, 3, 3)
    assert check(make(Volumes()), *volumes, "trace")["norm"] == "aten::group_norm"


def test_a_norm_takes_the_activation_behind_it() -> None:
    model = make(nn.Sequential(nn.Conv2d(8, C, 1), nn.GroupNorm(2, C), nn.SiLU()))
    x = torch.rand(1, 8, 6, 6)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    plan = any_plan(imported.graph, 1, prefix="cpu.group_norm")
    assert "groupnorm_f32_n1c24h6w6_g2_eps1e-05+silu" in {node.problem for node in plan.nodes}
    assert_close(rewrite(imported, plan)(x), model, (x,))
