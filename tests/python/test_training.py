# SPDX-License-Identifier: BSD-3-Clause
"""A model of optimize_training computes what eager does: results, gradients, statistics."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchalgo
from support.training_models import (
    Chain,
    Mixed,
    Residual,
    images,
    options,
    trio,
    weighted,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inplace", [False, True])
def test_gradients_of_a_net_with_all_kinds_of_layers(tmp_path: Path, inplace: bool) -> None:
    both = trio(Mixed(inplace=inplace), images(), tmp_path)
    both.check_step(images())
    assert both.planned.planned_runs == 1 and both.planned.original_runs.total() == 0
    (plan,) = both.planned.plan.regions
    kinds = {name.rpartition(".")[2] for name in (node.name for node in plan.nodes)}
    assert {"bwd_filter", "bwd_data", "bwd_sums", "bwd_bias"} <= kinds


class TwoResults(nn.Module):
    """The results of the region are read in another order than they are made."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.first(x)
        b = self.second(a)
        return torch.tanh(b), torch.sin(a)


def test_several_results_of_a_region_get_their_own_gradients(tmp_path: Path) -> None:
    trio(TwoResults(), images(), tmp_path).check_step(images())


def test_a_result_without_a_gradient_in_the_loss_is_right(tmp_path: Path) -> None:
    both = trio(TwoResults(), images(), tmp_path)
    both.check_step(images(), loss=lambda y: weighted(y[0]))
    both.check_step(images(), loss=lambda y: weighted(y[1]))


class Heads(nn.Module):
    """Two heads on a trunk, whose gradients meet in a sum, a concatenation and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.left, self.right = Residual(8), nn.Conv2d(8, 8, 1)
        self.third = nn.Sequential(nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.MaxPool2d(2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.trunk(x)
        a, b = x.chunk(2, 1)
        scale = self.right(x).mean((2, 3), keepdim=True)
        return self.left(x), x * scale, self.third(a), torch.cat([b, a], 1)


@pytest.mark.parametrize("number", range(4))
def test_layers_on_which_the_loss_does_not_depend_have_no_gradient(
    tmp_path: Path, number: int
) -> None:
    both = trio(Heads(), images(), tmp_path)
    both.check_step(images(), loss=lambda y: weighted(y[number]))
    assert both.planned.planned_runs == 1
    missing = [name for name, p in both.planned.named_parameters() if p.grad is None]
    heads = ["left.", "right.", "third.", "none"]
    assert {f"{name.partition('.')[0]}." for name in missing} == set(heads[:3]) - {heads[number]}
    both.check_step(images(), loss=lambda y: weighted(y[number - 1]))


class PooledInput(nn.Module):
    """One result of the region depends on no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(x)
        return torch.cos(self.conv(x)) * torch.sin(x)


def test_a_result_that_depends_on_no_parameter_has_no_effect_on_gradients(tmp_path: Path) -> None:
    trio(PooledInput(), images(), tmp_path).check_step(images())


class Unread(nn.Module):
    """Layers whose results nobody reads; one of them has statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.unread = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv(x))
        self.norm(self.unread(x))
        return x


def test_layers_whose_results_nobody_reads_keep_their_statistics(tmp_path: Path) -> None:
    both = trio(Unread(), images(), tmp_path)
    both.check_step(images())
    assert both.planned.get_buffer("norm.num_batches_tracked") == 1


class InPlaceBetween(nn.Module):
    """An unknown operation changes a tensor that a region has made and another one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.leaky = nn.LeakyReLU(0.1, inplace=True)
        self.last = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        other = self.leaky(y)
        return self.last(y) + other


class SetItem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        before = functional.relu(y)
        y[:, 0] = 1.0
        return self.last(y) + before


class FillOfAView(SetItem):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        before = functional.relu(y)
        y[:, 0].fill_(1.0)
        return self.last(y) + before


class LateReader(SetItem):
    """A sum needs a longer way than the change that comes after it in the code."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        before = y + torch.tanh(self.last(y + 1.0))
        y[:, 0].fill_(1.0)
        return before + y


class SecondName(SetItem):
    """y and z are one tensor."""

    def forward(self, x: Tensor) -> Tensor:
        y = z = self.conv(x)
        y += x
        return self.last(y) + z


class ViewBefore(nn.Module):
    """A view of a tensor that is changed later."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        rows = y.flatten(2)
        y += x
        return rows.mean(2)


class ReadBeforeChange(nn.Module):
    """A tensor is read, in part by an operation that must wait for dropout, before it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.dropout, self.unread = nn.Dropout(0.0), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.second(x))
        x = self.first(x)
        self.unread(x)
        y = x + y
        return y * x.relu_()


def test_operations_that_wait_read_a_tensor_before_it_is_changed(tmp_path: Path) -> None:
    both = trio(ReadBeforeChange(), images(), tmp_path)
    both.check_step(images())
    both.check_step(images(3, 8, 16, 16))  # as it was given
    assert both.planned.planned_runs > 0 and both.planned.original_runs.total() > 0


class InPlaceOnInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(x, inplace=True)
        return self.conv(x)


@pytest.mark.parametrize(
    "kind", [InPlaceBetween, SetItem, FillOfAView, LateReader, SecondName, ViewBefore]
)
def test_changes_in_place_are_seen_by_all_later_readers(
    tmp_path: Path, kind: type[nn.Module]
) -> None:
    both = trio(kind(), images(), tmp_path)
    both.check_step(images())
    assert both.planned.planned_runs > 0


def test_a_change_of_the_callers_tensor_is_seen_by_the_caller(tmp_path: Path) -> None:
    both = trio(InPlaceOnInput(), images(), tmp_path)
    x = images()
    both.planned(x)
    assert torch.equal(x, images().relu())
    both.check_step(images())


class Shared(nn.Module):
    """A convolution that runs twice, and two that have the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.one, self.other = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1, bias=False)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.twice(self.norm(self.twice(x))))
        return self.other(functional.relu(self.one(x)))


def test_shared_layers_and_shared_weights(tmp_path: Path) -> None:
    both = trio(Shared(), images(), tmp_path)
    both.check_step(images())
    assert both.planned.get_buffer("norm.num_batches_tracked") == 2


def test_weights_that_are_tied_later_are_right(tmp_path: Path) -> None:
    both = trio(nn.Sequential(Chain(), Chain()), images(), tmp_path)
    for model, _ in both.each():
        first, second = (model.get_submodule(name) for name in ("0.0", "1.0"))
        second.weight = first.weight
    both.check_step(images())
    assert both.planned.original_runs.total() == 1


class WithIdentity(Residual):
    """A shortcut that may be a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.shortcut = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x))
        y += self.shortcut(x)
        return self.conv2(self.relu(y))


def test_an_identity_does_not_cut_a_region(tmp_path: Path) -> None:
    both = trio(WithIdentity(), images(), tmp_path)
    both.check_step(images())
    assert both.planned.planned_runs == 1
    seen = []
    both.planned.get_submodule("shortcut").register_forward_hook(lambda *_: seen.append(1))
    both.check_step(images())
    assert seen == [1] and both.planned.original_runs.total() == 1


def test_an_input_that_requires_a_gradient_gets_it(tmp_path: Path) -> None:
    both = trio(Chain(), images(), tmp_path)
    found, _, exact = (images().to(dtype).requires_grad_() for _, dtype in both.each())
    for x, model in ((found, both.planned), (exact, both.exact)):
        weighted(model(x)).backward()
    assert found.grad is not None and exact.grad is not None
    assert torch.allclose(found.grad.double(), exact.grad, atol=1e-4)
    assert both.planned.original_runs.total() == 1 and both.planned.planned_runs == 0


def test_an_example_that_requires_a_gradient_has_it_planned(tmp_path: Path) -> None:
    model = Chain()
    exact = copy.deepcopy(model).double()
    planned = torchalgo.optimize_training(model, (images().requires_grad_(),), **options(tmp_path))
    found, want = images().requires_grad_(), images().double().requires_grad_()
    weighted(planned(found)).backward()
    weighted(exact(want)).backward()
    assert found.grad is not None and want.grad is not None
    assert torch.allclose(found.grad.double(), want.grad, atol=1e-4)
    assert planned.planned_runs == 1 and planned.original_runs.total() == 0


def test_frozen_layers_get_no_gradient_and_others_the_right_one(tmp_path: Path) -> None:
    model = Mixed()
    for part in (model.stem, model.left):
        part.requires_grad_(False)
    both = trio(model, images(), tmp_path)
    both.check_step(images())
    assert model.left.weight.grad is None
    for each, _ in both.each():  # thawed later
        each.requires_grad_(True)
    both.check_step(images())
    assert model.left.weight.grad is not None


def test_gradients_of_some_parameters_only(tmp_path: Path) -> None:
    both = trio(Mixed(), images(), tmp_path)
    grads = []
    for model, dtype in both.each():
        torch.manual_seed(3)
        loss = weighted(model(images().to(dtype)))
        parameter = model.get_parameter("block.conv1.weight")
        grads.append(torch.autograd.grad(loss, parameter)[0])
    assert torch.allclose(grads[0].double(), grads[2], atol=1e-4)


def test_gradients_are_added_over_several_batches(tmp_path: Path) -> None:
    both = trio(Residual(), images(), tmp_path)
    for seed in range(3):
        both.check_step(images(seed=seed))


def test_backward_runs_twice_and_a_second_derivative_is_an_error(tmp_path: Path) -> None:
    both = trio(Chain(), images(), tmp_path)
    for model, dtype in both.each():
        loss = weighted(model(images().to(dtype)))
        loss.backward(retain_graph=True)
        loss.backward()
    both.check_gradients()
    loss = weighted(both.planned(images()))
    with pytest.raises(torchalgo.Error) as caught:
        torch.autograd.grad(loss, list(both.planned.parameters()), create_graph=True)
    assert caught.value.code == "TA2702"


@pytest.mark.parametrize("kind", [Chain, Mixed])
def test_a_nan_in_the_input_or_in_a_gradient_goes_where_it_does_in_eager(
    tmp_path: Path, kind: type[nn.Module]
) -> None:
    both = trio(kind(), images(), tmp_path)
    x = images()
    x[0, 0, 3, 3] = torch.nan
    both.step(x)
    for found, eager in zip(both.planned.parameters(), both.eager.parameters(), strict=True):
        assert found.grad is not None and eager.grad is not None
        assert torch.equal(found.grad.isnan(), eager.grad.isnan())
    for model, _ in both.each():
        model.zero_grad()
    both.step(images(), loss=lambda y: (y * torch.tensor(torch.nan)).sum())
    for found, eager in zip(both.planned.parameters(), both.eager.parameters(), strict=True):
        assert found.grad is not None and eager.grad is not None
        assert torch.equal(found.grad.isnan(), eager.grad.isnan())


# ---- statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, 0.7, 0.0, None])
def test_running_statistics_after_several_batches(tmp_path: Path, momentum: float | None) -> None:
    model = Chain()
    model[1].momentum = momentum  # type: ignore[assignment]
    both = trio(model, images(), tmp_path)
    for seed in range(3):
        both.step(images(seed=seed) * 3 + 1)
        both.check_buffers()
    assert both.planned.get_buffer("1.num_batches_tracked") == 3


def test_the_running_variance_is_unbiased(tmp_path: Path) -> None:
    x = images(2, 8, 2, 2)  # 8 numbers of a channel
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8, momentum=1.0))
    both = trio(model, x, tmp_path)
    both.step(x)
    assert both.planned.planned_runs == 1
    exact = model[0](x).detach().double().var((0, 2, 3), unbiased=True)
    assert torch.allclose(both.planned.get_buffer("1.running_var").double(), exact, rtol=1e-5)


def test_batch_norms_without_statistics(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8, track_running_stats=False))
    trio(model, images(), tmp_path).check_step(images())


def test_a_batch_norm_without_a_counter_has_statistics(tmp_path: Path) -> None:
    model = Chain()
    model[1].num_batches_tracked = None  # as in old checkpoints
    trio(model, images(), tmp_path).check_step(images())


@pytest.mark.parametrize("is_frozen_before", [True, False])
def test_frozen_batch_norms_keep_their_statistics(tmp_path: Path, is_frozen_before: bool) -> None:
    model = Residual()
    model.bn1.running_mean.fill_(0.3)
    if is_frozen_before:
        model.bn1.eval()
    both = trio(model, images(), tmp_path)
    for each, _ in both.each():
        each.get_submodule("bn1").eval()
    both.check_step(images())
    assert both.planned.get_buffer("bn1.num_batches_tracked") == 0
    assert both.planned.get_buffer("bn2.num_batches_tracked") == 1
    assert (both.planned.planned_runs > 0) == is_frozen_before


def test_a_batch_norm_whose_eps_changes_is_right(tmp_path: Path) -> None:
    both = trio(Chain(), images(), tmp_path)
    for model, _ in both.each():
        model.get_submodule("1").eps = 0.5  # type: ignore[assignment]
    both.check_step(images())
    assert both.planned.original_runs.total() == 1


# ---- the model stays what it is ------------------------------------------------------------------


def test_parameters_names_and_modules_are_those_of_the_model(tmp_path: Path) -> None:
    model = Mixed()
    names = [name for name, _ in model.named_modules()]
    keys = list(model.state_dict())
    parameters = dict(model.named_parameters())
    planned = torchalgo.optimize_training(model, (images(),), **options(tmp_path))
    assert isinstance(planned, torchalgo.TrainingModule)
    assert [name for name, _ in planned.named_modules()] == names
    assert list(planned.state_dict()) == keys
    for name, parameter in planned.named_parameters():
        assert parameter is parameters[name]
    assert all(p.grad is None for p in model.parameters())
    assert model.stem[1].num_batches_tracked == 0


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_ten_steps_have_the_losses_of_eager(tmp_path: Path, kind: str) -> None:
    both = trio(Mixed(), images(4, 8, 16, 16), tmp_path)
    target = torch.tensor([0, 1, 2, 3])
    losses = []
    for model, dtype in both.each():
        torch.manual_seed(5)
        if kind == "sgd":
            sgd = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
            optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), **sgd)
        else:
            optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        own = []
        for seed in range(10):
            optimizer.zero_grad()
            x = images(4, 8, 16, 16, seed=seed).to(dtype)
            loss = functional.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            own.append(loss.item())
        losses.append(torch.tensor(own, dtype=torch.float64))
    found, eager, exact = losses
    far = float((eager - exact).abs().max())
    assert float((found - exact).abs().max()) <= max(1e-3, 5 * far)
    assert both.planned.planned_runs == 10 and both.planned.original_runs.total() == 0


@pytest.mark.parametrize("assign", [False, True])
def test_a_loaded_state_dict_is_used(tmp_path: Path, assign: bool) -> None:
    both = trio(Scaled(), images(), tmp_path)
    torch.manual_seed(9)
    other = Scaled()
    nn.init.constant_(other.scale, 3.0)
    both.planned.load_state_dict(copy.deepcopy(other.state_dict()), assign=assign)
    both.eager.load_state_dict(other.state_dict())
    both.exact.load_state_dict(other.state_dict())
    both.check_step(images())


class Scaled(nn.Module):
    """A parameter and a buffer that the model itself reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.scale = nn.Parameter(torch.rand(1, 8, 1, 1))
        self.register_buffer("shift", torch.rand(1, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x * self.scale + self.shift)


def test_parameters_of_the_model_itself_and_changes_of_data_are_seen(tmp_path: Path) -> None:
    both = trio(Scaled(), images(), tmp_path)
    both.check_step(images())
    for model, dtype in both.each():
        model.get_parameter("conv.weight").data = torch.ones(8, 8, 3, 3, dtype=dtype)
        model.get_parameter("scale").data.mul_(2)
    both.check_step(images())
    assert both.planned.planned_runs == 2
    for model, dtype in both.each():
        model.scale = nn.Parameter(torch.full((1, 8, 1, 1), 0.5, dtype=dtype))
    both.check_step(images())


def test_a_layer_that_is_replaced_is_used(tmp_path: Path) -> None:
    both = trio(nn.Sequential(Chain(), Chain()), images(), tmp_path)
    new = nn.Conv2d(8, 3, 1)
    for model, dtype in both.each():
        model.set_submodule("1", copy.deepcopy(new).to(dtype))
    both.check_step(images())
    assert both.planned.original_runs.total() == 1


def test_eval_runs_the_model_as_it_was_given_and_train_the_plan(tmp_path: Path) -> None:
    both = trio(Mixed(), images(), tmp_path)
    both.step(images())
    for model, _ in both.each():
        assert not model.eval().training
    with torch.no_grad():
        assert torch.allclose(both.planned(images()), both.eager(images()), atol=1e-5)
    assert both.planned.planned_runs == 1
    for model, _ in both.each():
        assert model.train().training
    both.check_step(images())
    assert both.planned.planned_runs == 2


class FunctionalDropout(nn.Module):
    """A part whose mode is in its Python code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.conv(x), 0.5, self.training)


def test_a_part_in_eval_mode_is_right(tmp_path: Path) -> None:
    both = trio(nn.Sequential(FunctionalDropout(), Chain()), images(), tmp_path)
    both.check_step(images())
    for model, _ in both.each():
        model.get_submodule("0").eval()
    both.check_step(images())
    assert both.planned.planned_runs > 0 and both.planned.original_runs.total() > 0


class TwoDropouts(nn.Module):
    """The first one is behind more layers than the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.last = Chain(), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        far = functional.dropout(torch.tanh(self.conv(torch.tanh(self.stem(x)))), 0.5)
        return self.last(far + functional.dropout(x, 0.5))


def test_random_numbers_are_drawn_in_the_order_of_eager(tmp_path: Path) -> None:
    trio(TwoDropouts(), images(), tmp_path).check_step(images())


@pytest.mark.parametrize("shape", [(3, 8, 16, 16), (2, 8, 20, 12)])
def test_other_sizes_run_right_and_are_counted(tmp_path: Path, shape: tuple[int, ...]) -> None:
    both = trio(Mixed(), images(), tmp_path)
    both.check_step(images(*shape))
    assert both.planned.planned_runs == 0 and both.planned.original_runs.total() == 1


def test_a_tensor_in_channels_last_and_a_part_of_a_tensor_run_the_plan(tmp_path: Path) -> None:
    both = trio(Mixed(), images(), tmp_path)
    both.check_step(images().to(memory_format=torch.channels_last))
    both.check_step(images(2, 8, 32, 32)[:, :, ::2, ::2])
    for model, _ in both.each():
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    both.check_step(images())
    assert both.planned.planned_runs == 3


def test_without_gradients_the_statistics_still_change(tmp_path: Path) -> None:
    both = trio(Residual(), images(), tmp_path)
    for model, dtype in both.each():
        with torch.no_grad():
            y = model(images().to(dtype))
        assert not y.requires_grad
    both.check_buffers()
    with torch.inference_mode():
        both.planned(images())
    assert both.planned.planned_runs == 2


def test_a_model_in_double_precision_runs_as_it_was_given(tmp_path: Path) -> None:
    both = trio(Mixed(), images(), tmp_path)
    both.planned.double()
    torch.manual_seed(3)
    found = both.planned(images().double())
    torch.manual_seed(3)
    assert torch.allclose(found, both.exact(images().double()))
    assert both.planned.planned_runs == 0


class OneConcat(nn.Module):
    """Concatenations of one tensor: a plain one, and one whose copy is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.cat([self.first(x)], 1))
        return self.last(y, torch.cat([y], 1), x)

    def last(self, y: Tensor, z: Tensor, _: Tensor) -> Tensor:
        return self.third(z) * y


class ChangedCopy(OneConcat):
    def last(self, y: Tensor, z: Tensor, x: Tensor) -> Tensor:
        z[:, :1] += x[:, :1]
        return self.third(y) * z


class ChangedView(OneConcat):
    """The copy is made before its source changes."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        part, z = y[:, :2], torch.cat([y], 1)
        part.add_(1)
        return self.third(z)


class ChainOfChanges(OneConcat):
    """An op in place changes the result of an op in place, which is a tensor with another name."""

    def forward(self, x: Tensor) -> Tensor:
        h = x.clone()
        s = h.relu_().sigmoid_()
        return self.third(s) + h


@pytest.mark.parametrize("model", [OneConcat, ChangedCopy, ChangedView, ChainOfChanges])
def test_copies_of_one_tensor_and_changes_of_it(model: type[nn.Module], tmp_path: Path) -> None:
    both = trio(model(), images(), tmp_path)
    both.check_step(images())
    if model is OneConcat:
        assert len(both.planned.plan.layers) == 3 and both.planned.plan.left_alone == []


def test_a_returned_copy_is_a_tensor_of_its_own(tmp_path: Path) -> None:
    class Returned(OneConcat):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.first(x)
            return y, torch.cat([y])

    both = trio(Returned(), images(), tmp_path)
    first, second = both.planned(images())
    assert first.data_ptr() != second.data_ptr()


def test_bounds_of_a_relu6_are_respected(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU6(), nn.Conv2d(8, 8, 1))
    model[1].max_val = 0.25
    both = trio(model, images(), tmp_path)
    both.check_step(images())
    assert both.planned.planned_runs == 1


class ChangedResult(SetItem):
    """An unknown op changes a tensor that the plan keeps and that PyTorch does not keep."""

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu6(self.conv(x))
        self.change(y)
        return self.last(y)

    def change(self, y: Tensor) -> None:
        y.div_(6)


class ChangedViewOfResult(ChangedResult):
    def change(self, y: Tensor) -> None:
        y.flatten(1)[:, :100].exp_()


class ChangedByCaller(ChangedResult):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu6(self.conv(x))


@pytest.mark.parametrize(
    "name", ["conv2.bias", "bn1.bias", "bn2.bias", "conv1.weight",
             "conv2.weight", "bn1.weight", "x"],
)  # fmt: skip
def test_a_change_in_place_before_the_backward_pass_is_what_it_is_in_eager(
    tmp_path: Path, name: str
) -> None:
    both = trio(Residual(), images(), tmp_path)
    errors = []
    for model, dtype in both.each():
        tensors = {"x": images().to(dtype), **model.state_dict(keep_vars=True)}
        loss = weighted(model(tensors["x"]))
        with torch.no_grad():
            tensors[name].mul_(0.5)
        try:
            loss.backward()
            errors.append("")
        except RuntimeError as problem:
            errors.append(str(problem).partition(":")[0])
    if name != "x":  # a plan may keep a copy in its own layout, which no change spoils
        assert errors[0] == errors[1]
        assert bool(errors[0]) == name.endswith("weight")
    if not any(errors):
        both.check_gradients()
    assert both.planned.planned_runs > 0


@pytest.mark.parametrize("kind", [ChangedResult, ChangedViewOfResult, ChangedByCaller])
def test_a_result_that_the_plan_keeps_may_be_changed_in_place(
    tmp_path: Path, kind: type[nn.Module]
) -> None:
    both = trio(kind(), images(), tmp_path)
    both.check_step(images(), loss=lambda y: weighted(y.mul_(2.0)))
    assert both.planned.planned_runs > 0
