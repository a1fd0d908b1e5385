# SPDX-License-Identifier: BSD-3-Clause
"""Models that a trace would not repeat are errors, and later changes of a model are noticed."""

from __future__ import annotations

import copy
import random
import types
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from support.training_models import images, options, trio


class OneConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.results: list[Tensor] = []
        self.steps = 0

    def forward(self, x: Tensor) -> Any:
        return self.conv(x)


# ---- what a trace cannot repeat ------------------------------------------------------------------


class Masked(OneConv):
    def forward(self, x: Tensor) -> Tensor:
        self.conv.weight.data *= torch.arange(3.0)
        return self.conv(x)


class NoteOnTensor(OneConv):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y.note = 1  # type: ignore[attr-defined]
        return y


class Noise(OneConv):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x + torch.randn(x.shape))


class NoiseBehind(OneConv):
    def forward(self, x: Tensor) -> Any:
        return self.conv(x), torch.rand(1)


class BranchOfChance(OneConv):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if random.random() < 2 else x


class KeptInList(OneConv):
    def forward(self, x: Tensor) -> Tensor:
        self.results = [self.conv(x)]
        return self.results[0]


class Counter(OneConv):
    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return self.conv(x)


class ChangedSettings(OneConv):
    def forward(self, x: Tensor) -> Tensor:
        for d in (1, 2):
            self.conv.dilation = self.conv.padding = (d, d)
            x = self.conv(x)
        return x


class Sum(OneConv):
    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(x.shape)
        out += self.conv(x)
        return out


class Named(OneConv):
    def forward(self, x: Tensor) -> Any:
        return OrderedDict(y=self.conv(x))


class AnyNumber(OneConv):
    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        return self.conv(x) / len(rest)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Masked, "sets the attribute data of a tensor"),
        (NoteOnTensor, "sets the attribute note of a tensor"),
        (Noise, "draws random numbers"),
        (NoiseBehind, "draws random numbers"),
        (BranchOfChance, "draws random numbers"),
        (KeptInList, "assigns a tensor to results"),
        (Counter, "changes steps in each call"),
        (ChangedSettings, "gives other results than forward"),
        (Sum, "gives other results than forward"),
        (Named, "gives other results than forward"),
    ],
)
def test_code_that_a_trace_does_not_repeat_is_an_error(
    model: type[OneConv], text: str, tmp_path: Path
) -> None:
    net = model()
    state = torch.get_rng_state()
    with pytest.raises(torchalgo.Error, match=f"TA1601.*{text}"):
        torchalgo.optimize_training(net, (images(),), **options(tmp_path))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_forward_with_any_number_of_tensors_is_an_error(tmp_path: Path) -> None:
    inputs = (images(), images(), images())
    with pytest.raises(torchalgo.Error, match=r"TA1601.*\*rest"):
        torchalgo.optimize_training(AnyNumber(), inputs, **options(tmp_path))


class IfTensor(OneConv):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x / 2 if isinstance(x, Tensor) else x)


class Sizes(OneConv):
    """It keeps the last size, which is the same in each call with a plan."""

    def forward(self, x: Tensor) -> Tensor:
        self.size, self.unknown = tuple(x.shape[2:]), float("nan")
        return self.conv(x)


@pytest.mark.parametrize("model", [IfTensor, Sizes])
def test_harmless_code_is_planned(model: type[OneConv], tmp_path: Path) -> None:
    both = trio(model(), images(), tmp_path)
    both.check_step(images())
    assert both.planned.planned_runs == 1


# ---- what users change on a model ----------------------------------------------------------------


class Frozen(OneConv):
    """Its batch norm stays in eval mode, as often in fine-tuning."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


def test_the_models_own_train_method_is_called(tmp_path: Path) -> None:
    both = trio(Frozen().train(), images(), tmp_path)
    for model, _ in both.each():
        assert model.eval().train().training
    assert not both.planned.norm.training
    both.check_step(images())


class InAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("is_added", [False, True])
def test_a_layer_that_is_replaced_or_added_in_a_list_is_used(
    is_added: bool, tmp_path: Path
) -> None:
    both = trio(InAList(), images(), tmp_path)
    new = nn.Conv2d(8, 5, 1)
    for model, dtype in both.each():
        layers = model.layers
        assert isinstance(layers, nn.ModuleList)
        own = copy.deepcopy(new).to(dtype)
        if is_added:
            layers.append(own)
        else:
            layers[1] = own
    both.check_step(images())


def _doubled(layer: nn.Conv2d, x: Tensor) -> Tensor:
    return 2 * nn.Conv2d.forward(layer, x)


@pytest.mark.parametrize("is_before", [True, False])
def test_a_forward_that_is_set_on_a_layer_is_called(is_before: bool, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1))

    def patch(net: Any) -> None:
        net[0].forward = types.MethodType(_doubled, net[0])

    eager = copy.deepcopy(model)
    patch(eager)
    if is_before:
        patch(model)
    planned = torchalgo.optimize_training(model, (images(),), **options(tmp_path))
    if not is_before:
        patch(model)
    torch.testing.assert_close(planned(images()), eager(images()))


def test_a_forward_that_is_set_on_the_model_is_an_error_or_runs(tmp_path: Path) -> None:
    model = OneConv()
    planned = torchalgo.optimize_training(model, (images(),), **options(tmp_path))
    model.forward = types.MethodType(lambda self, x: 2 * self.conv(x), model)
    torch.testing.assert_close(planned(images()), 2 * model.conv(images()))
    with pytest.raises(torchalgo.Error, match=r"TA1601.*forward was set on the model"):
        torchalgo.optimize_training(model, (images(),), **options(tmp_path))


class OwnState(nn.Sequential):
    def get_extra_state(self) -> Any:
        return {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        self.loaded = state


def test_the_models_own_state_is_saved_and_loaded(tmp_path: Path) -> None:
    model = OwnState(nn.Conv2d(8, 8, 1))
    planned = torchalgo.optimize_training(model, (images(),), **options(tmp_path))
    state = copy.deepcopy(model.state_dict())
    assert planned.state_dict().keys() == state.keys() >= {"_extra_state"}
    assert nn.Sequential(planned).state_dict().keys() >= {"0._extra_state", "0.0.weight"}
    planned.load_state_dict(state)
    assert model.loaded == {"version": 1}
    nn.Sequential(planned).double()
    assert model[0].weight.dtype is torch.float64


# ---- one region instead of many nodes of autograd ------------------------------------------------


class SharedNorm(nn.Module):
    """Its norm runs twice. The call that comes second needs nothing of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        first = self.norm(torch.cos(y))  # cos is in no region, so it waits
        return first, self.norm(y)


def test_a_batch_norm_that_runs_twice_updates_its_statistics_in_order(tmp_path: Path) -> None:
    both = trio(SharedNorm(), images(), tmp_path)
    both.check_step(images())


class TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 1), nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


def test_results_of_frozen_layers_need_no_gradient(tmp_path: Path) -> None:
    both = trio(TwoBranches(), images(), tmp_path)
    for frozen, other in (("a", "b"), ("b", "a")):
        for model, _ in both.each():
            model.get_submodule(frozen).requires_grad_(False)
            model.get_submodule(other).requires_grad_(True)
        found, expected = both.planned(images()), both.eager(images())
        assert [y.requires_grad for y in found] == [y.requires_grad for y in expected]
        both.check_step(images())
    for model, _ in both.each():
        model.requires_grad_(True)
    both.check_step(images())


def test_weights_of_norms_with_gaps_are_read_right(tmp_path: Path) -> None:
    both = trio(nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)), images(), tmp_path)
    for model, dtype in both.each():
        wide = torch.arange(16.0, dtype=dtype).reshape(8, 2)
        model.get_submodule("1").weight = nn.Parameter(wide[:, 0])
    both.check_step(images())
    assert both.planned.planned_runs == 1


def test_hooks_of_saved_tensors_may_change_their_order_in_memory(tmp_path: Path) -> None:
    layers = [m for _ in range(3) for m in (nn.Conv2d(8, 8, 1), nn.ReLU())]
    both = trio(nn.Sequential(*layers), images(), tmp_path)

    def pack(x: Tensor) -> Tensor:
        return x.mT.contiguous().mT if x.dim() == 4 else x

    for model, dtype in both.each():
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            y = model(images().to(dtype))
        y.square().sum().backward()
    both.check_gradients()
    assert both.planned.planned_runs == 1
