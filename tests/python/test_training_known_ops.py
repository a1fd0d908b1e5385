# SPDX-License-Identifier: BSD-3-Clause
"""Operations that regions know by several names: pooling, paddings, views, derived norms, noise."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import StochasticDepth

import torchalgo
from support.random_views import random_views_net
from support.training_models import check_one_region, images, options, trio, weighted
from torchalgo import _C
from torchalgo._train import known_ops
from torchalgo._train.trace import trace


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_each_activation_of_the_table_is_known() -> None:
    # gelu_tanh is a gelu whose argument `approximate` is "tanh".
    assert {*known_ops._ACTIVATIONS.values(), "gelu_tanh"} == set(_C.activation_names())


# ---- pooling by functions, and paddings by words -------------------------------------------------


class Pools(nn.Module):
    """Pooling of images by functions and methods, between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        pooled = [
            functional.max_pool2d(x, 3, stride=2, padding=1),
            functional.max_pool2d(x, (2, 2)),
            functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            functional.avg_pool2d(x, 2),
        ]
        means = [
            functional.adaptive_avg_pool2d(x, 1),
            functional.adaptive_avg_pool2d(x, (1, 1)),
            x.mean((2, 3), keepdim=True),
            x.mean([-1, -2], True),
            torch.mean(x, dim=(2, 3), keepdim=True),
        ]
        image = pooled[0] + pooled[1] + pooled[2] + pooled[3]
        for mean in means:
            image = image * mean
        return self.last(image)


def test_pooling_functions_are_parts_of_a_region(tmp_path: Path) -> None:
    problems = check_one_region(trio(Pools(), images(), tmp_path), images(), steps=2)
    assert sum(problem.startswith("maxpool_f32_") for problem in problems) == 2
    assert sum(problem.startswith("avgpool_f32_") for problem in problems) == 2 + 5


class OtherMeans(nn.Module):
    """Means and pools that are no pooling of whole images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.conv(x)
        found, places = functional.max_pool2d(x, 2, return_indices=True)
        return (
            x.mean((2, 3)),
            x.mean(),
            x.mean((1, 2), keepdim=True),
            x.mean((2, 3), keepdim=True, dtype=torch.float64),
            functional.avg_pool2d(x, 2, divisor_override=3),
            functional.adaptive_avg_pool2d(x, 2),
            functional.max_pool2d(input=x, kernel_size=2),
            found + places,
        )


def test_other_means_run_in_pytorch(tmp_path: Path) -> None:
    left = trace(OtherMeans(), [images()]).left_alone
    assert left.count("mean") == 4 and "adaptive_avg_pool2d" in left and "avg_pool2d" in left
    trio(OtherMeans(), images(), tmp_path).check_step(images())


def test_padding_by_words(tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(8, 8, (3, 5), padding="same", dilation=(2, 1)),
        nn.Conv2d(8, 8, 3, padding="valid", stride=2),
    )
    problems = check_one_region(trio(model, images(), tmp_path), images(), steps=2)
    assert "_pad2x2_dil2x1_" in problems[0] and "_pad0x0_" in problems[1]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_padding_that_differs_between_the_sides_runs_in_pytorch(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 2, padding="same"), nn.Conv2d(8, 8, 1))
    both = trio(model, images(), tmp_path)
    both.check_step(images())
    assert both.planned.plan.left_alone == ["0"]


class Slices(nn.Module):
    """Slices that take all channels, before a change in place, as GhostNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = torch.cat([y, y.relu()], 1)[:, :8, :, :]
        y += x
        return self.last(y[:, 0:8])


def test_slices_that_take_all_channels_do_not_cut_a_region(tmp_path: Path) -> None:
    both = trio(Slices(), images(), tmp_path)
    check_one_region(both, images(), steps=2)
    both.check_step(images(2, 8, 9, 9))
    assert both.planned.original_runs.total() == 1


class PartOfRows(Slices):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.first(x)] * 2, 1)[:, :, :9][:, :8, 1:])


def test_slices_of_rows_run_in_pytorch(tmp_path: Path) -> None:
    both = trio(PartOfRows(), images(), tmp_path)
    both.check_step(images())
    assert both.planned.plan.left_alone.count("getitem") == 2


class Views(nn.Module):
    """A convolution, the views of a subclass, and a convolution of 8 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.inner = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.views(self.first(x)))

    def views(self, x: Tensor) -> Any:
        raise NotImplementedError


class Halves(Views):
    def views(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        return torch.cat([self.inner(a), b], 1)


class Thirds(Views):
    """Slices of slices, a slice with two readers, and a sliced tensor with another reader."""

    def views(self, x: Tensor) -> Tensor:
        a, b, c = torch.split(x, [2, 4, 2], 1)
        b1, b2 = b[:, :1], b[:, 1:4, :]
        return torch.cat([c, self.inner(b), a], 1) + x * torch.cat([b2, b1, b], 1)


class FrontAndRest(Views):
    """Adds to the first channels and joins the rest to them, as RexNet does."""

    def views(self, x: Tensor) -> Tensor:
        front = x[:, 0:4] + self.inner(x[:, 4:].contiguous())
        return torch.cat([front, x[:, 4:, :, :]], dim=1)


class Shuffled(Views):
    """Shuffles channels as ShuffleNet does. The sizes come from the tensor."""

    def views(self, x: Tensor) -> Tensor:
        n, c, h, w = x.size()
        x = x.view(n, 4, c // 4, h, w)
        x = torch.transpose(x, 1, 2).contiguous()
        return x.view(n, -1, h, w)


@pytest.mark.parametrize(
    ("model", "kinds"),
    [(Halves, {"slice": 4, "concat": 2}), (Shuffled, {"shuffle": 2}), (FrontAndRest, {"slice": 4})],
)
def test_views_of_channels_are_parts_of_a_region(
    tmp_path: Path, model: type[Views], kinds: dict[str, int]
) -> None:
    both = trio(model(), images(), tmp_path)
    problems = check_one_region(both, images(), steps=2)
    for kind, count in kinds.items():  # of both directions
        assert sum(problem.startswith(f"{kind}_") for problem in problems) == count, kind
    both.check_step(images(2, 8, 9, 9))
    both.check_step(images(3, 8, 8, 8))
    assert both.planned.original_runs.total() == 2


class RowsAsChannels(Views):
    """The rows of the image are channels for a while: other inputs have another number of them."""

    def views(self, x: Tensor) -> Tensor:
        rows = x.permute(0, 2, 1, 3)[:, :16].relu()
        a, b = rows.chunk(2, 1)
        return torch.cat([b, a], 1).permute(0, 2, 1, 3)


class OnePart(Views):
    def views(self, x: Tensor) -> Tensor:
        return torch.cat([self.inner(x[:, :4]), self.inner(x[:, 2:6])], 1)


class OneRead(Views):
    def views(self, x: Tensor) -> Tensor:
        y = self.inner(x[:, 4:])
        return torch.cat([y, y], 1)


class ChangedSlice(Views):
    def views(self, x: Tensor) -> Tensor:
        x = x * 1.5
        x[:, :4].relu_()
        return torch.cat([x[:, 4:], x[:, :4]], 1)


class ChangedSum(Views):
    def views(self, x: Tensor) -> Tensor:
        x = x * 1.5
        a, b = x[:, :4], x[:, 4:]
        a += b
        return x + torch.cat([b, a], 1)


class ChangedSource(Views):
    def views(self, x: Tensor) -> Tensor:
        x = self.first(x)
        a, b = x[:, :4], x[:, 4:]
        x.relu_()
        return torch.cat([b, a], 1)


class ReturnedSlices(Views):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.first(x)
        a, b = x.split(4, 1)
        return self.last(torch.cat([b, a], 1)), a, x


class SlicedInput(Views):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.inner(x[:, :4]), self.inner(x[:, 4:])], 1))


class OtherShuffle(Views):
    """Has the view of a shuffle, but exchanges rows and columns instead of groups."""

    def views(self, x: Tensor) -> Tensor:
        n, c, h, w = x.size()
        return x.view(n, 4, c // 4, h, w).transpose(3, 4).reshape(n, c, h, w)


class ShuffleOfGroupsOfOne(Views):
    def views(self, x: Tensor) -> Tensor:
        n, c, h, w = x.size()
        return x.view(n, c, 1, h, w).transpose(1, 2).reshape(n, c, h, w)


class ChangedShuffle(Views):
    def views(self, x: Tensor) -> Tensor:
        n, c, h, w = x.size()
        parts = x.view(n, 4, c // 4, h, w).transpose(1, 2).contiguous()
        parts[:, 0] *= 2
        return parts.view(n, c, h, w)


class ShuffleByKeyword(Views):
    def views(self, x: Tensor) -> Tensor:
        n, c, h, w = x.size()
        parts = torch.reshape(input=x, shape=(n, 4, c // 4, h, w))
        parts = torch.transpose(input=parts, dim0=1, dim1=2)
        return torch.reshape(torch.chunk(input=parts, chunks=1)[0], (n, c, h, w))


class UnreadView(Views):
    """No result depends on one of the convolutions, so it has no gradient."""

    def views(self, x: Tensor) -> Tensor:
        self.inner(x[:, :4]).permute(0, 1, 3, 2)
        return x


@pytest.mark.parametrize(
    "model",
    [Thirds, RowsAsChannels, OnePart, OneRead, ChangedSlice, ChangedSum,
     ChangedSource, ReturnedSlices, SlicedInput, OtherShuffle, ShuffleOfGroupsOfOne, ChangedShuffle,
     ShuffleByKeyword, UnreadView],
)  # fmt: skip
def test_views_of_channels_are_right_with_any_reader(tmp_path: Path, model: type[Views]) -> None:
    both = trio(model(), images(), tmp_path)
    both.check_step(images())
    both.check_step(images(2, 8, 20, 20))


def test_a_slice_that_the_caller_changes_changes_its_source(tmp_path: Path) -> None:
    both = trio(ReturnedSlices(), images(), tmp_path)
    with torch.no_grad():
        _, part, whole = both.planned(images())
        part.zero_()
    assert torch.equal(whole[:, :4], torch.zeros(2, 4, 16, 16))


@pytest.mark.parametrize("seed", range(12))
def test_random_views_and_changes_in_place_are_right(tmp_path: Path, seed: int) -> None:
    x = images(2, 8, 8, 8)
    both = trio(random_views_net(seed, x), x, tmp_path, budget_s=0.7)
    both.check_step(x)
    for model, _ in both.each():
        model.zero_grad()
    both.check_step(images(2, 8, 8, 8, seed=2), loss=lambda y: weighted(y[0]))
    both.check_step(images(2, 8, 7, 7))


# ---- decisions by sizes --------------------------------------------------------------------------


class DecidesBySizes(Views):
    """Sizes in conditions, loops and views, as in code that pads or splits by the image."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        n, c, h, w = x.size()
        if h > 12 and x.ndim == 4 and len(x) == n:
            x = torch.cat([self.inner(part) for part in x.chunk(c // 4, 1)], 1)
        for _ in range(x.shape[-1] // 8):
            x = x + self.last(x).relu()
        return x.flatten(2).view(n, c, h, w) * torch.tensor([2.0])


def test_code_may_decide_by_sizes(tmp_path: Path) -> None:
    model = DecidesBySizes()
    before = set(vars(model))
    both = trio(model, images(), tmp_path)
    assert set(vars(model)) == before  # no constant of the trace
    both.check_step(images())
    assert both.planned.planned_runs == 1 and len(both.planned.plan.layers) == 5
    both.check_step(images(2, 8, 9, 9))  # another branch, and one run of the loop
    copied = copy.deepcopy(both.planned)
    assert torch.allclose(copied(images()), both.planned(images()), atol=1e-5)


class DecidesByValues(Views):
    def views(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


def test_code_that_decides_by_values_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(torchalgo.Error, match=r"TA1601 .* torch.fx.wrap"):
        torchalgo.optimize_training(DecidesByValues(), (images(),), **options(tmp_path))


def test_planning_changes_neither_the_model_nor_random_numbers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.ReLU())
    x = images()
    kept, before = x.clone(), copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    torchalgo.optimize_training(model, (x,), **options(tmp_path))
    assert torch.equal(torch.rand(1), expected) and torch.equal(x, kept)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ---- batch norms that are derived from PyTorch's -------------------------------------------------


class OwnNorm(nn.BatchNorm2d):
    """A batch norm with its own forward, which counts the batches as PyTorch does."""

    def forward(self, x: Tensor) -> Tensor:
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        momentum = 0.1 if self.momentum is None else self.momentum
        return functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, True, momentum, self.eps
        )


def test_a_buffer_that_forward_changes_is_changed_by_each_step_and_not_by_planning(
    tmp_path: Path,
) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), OwnNorm(8), nn.ReLU(), nn.Conv2d(8, 8, 1))
    both = trio(model, images(), tmp_path)
    assert model.get_buffer("1.num_batches_tracked") == 0
    both.check_step(images())
    both.check_step(images(seed=2))
    assert model.get_buffer("1.num_batches_tracked") == 2


class Counting(nn.Module):
    """Counts its calls in a buffer, and knows the name of an operation for its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)
        self.register_buffer("count", torch.tensor(0))

    def forward(self, mul: Tensor) -> Tensor:
        self.count += 1
        mul += self.conv(mul)
        return self.conv(mul) * self.count


def test_a_counter_counts_and_an_argument_is_changed(tmp_path: Path) -> None:
    model, x = Counting(), images()
    both = trio(model, x, tmp_path)
    with torch.no_grad():
        for _ in range(2):
            ours, eagers = x.clone(), x.clone()
            assert torch.allclose(both.planned(ours), both.eager(eagers), atol=1e-5)
            assert torch.allclose(ours, eagers, atol=1e-5) and not torch.equal(ours, x)
    assert model.count == 2


class Remembering(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return self.conv(x)


class Showing(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.features = self.conv(x)
        return self.features.relu()


@pytest.mark.parametrize("model", [Remembering, Showing])
def test_a_forward_that_assigns_a_tensor_is_an_error(tmp_path: Path, model: type[Counting]) -> None:
    net = nn.Sequential(model())
    with pytest.raises(torchalgo.Error, match=r"TA1601 .*assigns a tensor to 0\.(count|features)"):
        torchalgo.optimize_training(net, (images(),), **options(tmp_path))
    assert not hasattr(net[0], "features")


def test_a_forward_that_decides_by_a_buffer_is_an_error(tmp_path: Path) -> None:
    class Deciding(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2.0 if self.is_doubled else 1.0)

    model = Deciding(8, 8, 1)
    model.register_buffer("is_doubled", torch.tensor(True))
    with pytest.raises(torchalgo.Error, match="TA1601"):
        torchalgo.optimize_training(model, (images(),), **options(tmp_path))


class BatchNormAct2d(nn.BatchNorm2d):
    """Imitates timm's class of this name: a batch norm, then `drop`, then `act`."""

    __module__ = "timm.layers.norm_act"

    def __init__(self, c: int, act: nn.Module, drop: nn.Module | None = None, **more: Any) -> None:
        super().__init__(c, **more)
        self.drop, self.act = nn.Identity() if drop is None else drop, act

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.ndim == 4, f"expected 4D input (got {x.ndim}D input)")
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        x = functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, factor,
            self.eps,
        )  # fmt: skip
        return self.act(self.drop(x))


class Fused(nn.Module):
    def __init__(self, *, momentum: float | None = 0.1, drop: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.bn1 = BatchNormAct2d(8, nn.SiLU(inplace=True), momentum=momentum)
        self.bn2 = BatchNormAct2d(8, nn.Identity(), drop, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(self.bn1(self.conv1(x)))) + x


@pytest.mark.parametrize("momentum", [0.1, None])
def test_norms_with_activations_are_parts_of_a_region(
    tmp_path: Path, momentum: float | None
) -> None:
    model = Fused(momentum=momentum)
    both = trio(model, images(), tmp_path)
    problems = check_one_region(both, images(), steps=2)
    assert sum(problem.startswith("normalize_") for problem in problems) == 2
    assert any(problem.startswith("silu_") or "+silu" in problem for problem in problems)
    assert model.get_buffer("bn1.num_batches_tracked") == 2
    assert [layer.name for layer in both.planned.plan.layers] == ["conv1", "conv2"]
    assert both.planned.plan.left_alone == []
    names = {node.name for node in both.planned.plan.regions[0].nodes}
    assert {"bn1.moments", "bn1", "bn1.act", "bn2"} <= names


def test_a_norm_with_dropout_draws_the_numbers_of_eager(tmp_path: Path) -> None:
    both = trio(Fused(drop=nn.Dropout(0.5)), images(), tmp_path)
    torch.manual_seed(5)
    found = both.planned(images())
    torch.manual_seed(5)
    assert torch.allclose(found, both.eager(images()), atol=1e-4)
    assert "bn2.drop" in both.planned.plan.left_alone


def hook(seen: list[Tensor]) -> Any:
    return lambda module, args, result: seen.append(result.detach().clone())


@pytest.mark.parametrize("name", ["bn1", "bn1.act", "bn2.drop"])
def test_hooks_of_norms_with_activations_see_what_they_see_in_eager(
    tmp_path: Path, name: str
) -> None:
    both = trio(Fused(), images(), tmp_path)
    seen: list[list[Tensor]] = [[], []]
    for each, model in zip(seen, (both.planned, both.eager), strict=True):
        model.get_submodule(name).register_forward_hook(hook(each))
    both.check_step(images())
    assert len(seen[0]) == len(seen[1]) == 1
    assert torch.allclose(seen[0][0], seen[1][0], atol=1e-5)
    assert both.planned.planned_runs == 0


def change_momentum(model: nn.Module) -> None:
    model.get_submodule("bn1").momentum = 0.7  # type: ignore[assignment]


def change_eps(model: nn.Module) -> None:
    model.get_submodule("bn1").eps = 0.5  # type: ignore[assignment]


def freeze(model: nn.Module) -> None:
    model.get_submodule("bn1").eval()


def replace(model: nn.Module) -> None:
    model.get_submodule("bn1").act = nn.Tanh()


@pytest.mark.parametrize("change", [change_momentum, change_eps, freeze, replace])
def test_changes_of_norms_with_activations_are_seen(tmp_path: Path, change: Any) -> None:
    both = trio(Fused(), images(), tmp_path)
    for model, _ in both.each():
        change(model)
    both.check_step(images())
    assert both.planned.planned_runs == (change is change_momentum)


def test_a_copy_of_norms_with_activations_is_on_its_own(tmp_path: Path) -> None:
    both = trio(Fused(), images(), tmp_path)
    copied = copy.deepcopy(both.planned)
    change_momentum(copied)
    copied(images()).sum().backward()
    assert copied.planned_runs == 1
    assert both.planned.get_buffer("bn1.num_batches_tracked") == 0
    both.check_step(images())
    freeze(copied)
    copied(images())
    assert copied.planned_runs == 1


def test_a_frozen_norm_with_an_activation_runs_as_it_is(tmp_path: Path) -> None:
    model = Fused()
    freeze(model)
    both = trio(model, images(), tmp_path)
    both.check_step(images())
    assert both.planned.plan.left_alone == ["bn1"]
    assert model.get_buffer("bn1.num_batches_tracked") == 0


@pytest.mark.parametrize("name", ["efficientnet_b0", "regnetx_002", "ghostnet_100", "seresnet50"])
def test_networks_of_timm_are_one_region(name: str) -> None:
    timm = pytest.importorskip("timm")
    found = trace(timm.create_model(name).train(), [torch.rand(2, 3, 64, 64)])
    assert len(found.regions) == 1


# ---- stochastic depth ----------------------------------------------------------------------------


class DropPath(nn.Module):
    """Imitates timm's class of this name: skips a layer for some images of a batch."""

    __module__ = "timm.layers.drop"

    def __init__(self, drop_prob: float, *, scale_by_keep: bool = True) -> None:
        super().__init__()
        self.drop_prob, self.scale_by_keep = drop_prob, scale_by_keep

    def forward(self, x: Tensor) -> Tensor:
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1 - self.drop_prob
        noise = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        if keep > 0.0 and self.scale_by_keep:
            noise.div_(keep)
        return x * noise


class Blocks(nn.Module):
    """Residual blocks with stochastic depth, and a dropout behind them."""

    def __init__(self, *depths: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in depths)
        self.depths = nn.ModuleList(depths)
        self.dropout, self.last = nn.Dropout(0.3), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer, depth in zip(self.layers, self.depths, strict=True):
            y = depth(layer(x))
            y += x
            x = y
        return self.last(self.dropout(x))


@pytest.mark.parametrize(
    "depths",
    [
        [StochasticDepth(0.5, "row"), StochasticDepth(0.4, "batch"), StochasticDepth(0.0, "row")],
        [DropPath(0.5), DropPath(0.0), DropPath(0.4, scale_by_keep=False)],
        [StochasticDepth(1.0, "row"), DropPath(1.0)],
    ],
)
def test_stochastic_depth_draws_the_numbers_of_eager_and_cuts_no_region(
    tmp_path: Path, depths: list[nn.Module]
) -> None:
    x = images(6, 8, 8, 8)
    both = trio(Blocks(*depths), x, tmp_path)
    for seed in range(4):
        torch.manual_seed(seed)
        found = both.planned(x)
        torch.manual_seed(seed)
        eager = both.eager(x)
        assert torch.allclose(found, eager, atol=1e-4)
        found.square().sum().backward()
        eager.square().sum().backward()
    gradients = zip(both.planned.parameters(), both.eager.parameters(), strict=True)
    assert all(torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-3) for a, b in gradients)  # type: ignore[arg-type]
    assert len(both.planned.plan.regions) == 2 and both.planned.original_runs.total() == 0
    assert both.planned.plan.left_alone.count("dropout") == 1
    assert "2 x random numbers of stochastic depth, dropout" in str(both.planned.plan)
    names = [node.name for node in both.planned.plan.regions[0].nodes]
    assert not any(name.endswith(".bwd_second") for name in names)  # the noise has no gradient


def test_stochastic_depth_with_other_sizes_and_in_eval_mode(tmp_path: Path) -> None:
    both = trio(Blocks(StochasticDepth(0.5, "row"), DropPath(0.5)), images(), tmp_path)
    for x in (images(2, 8, 9, 9), images(5, 8, 16, 16)):
        torch.manual_seed(0)
        found = both.planned(x)
        torch.manual_seed(0)
        assert torch.allclose(found, both.eager(x), atol=1e-4)
    before = both.planned.planned_runs
    for model, _ in both.each():
        model.get_submodule("depths").eval()
    torch.manual_seed(0)
    found = both.planned(images())
    torch.manual_seed(0)
    assert torch.allclose(found, both.eager(images()), atol=1e-4)
    assert both.planned.planned_runs == before
