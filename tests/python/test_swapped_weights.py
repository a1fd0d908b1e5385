# SPDX-License-Identifier: BSD-3-Clause
"""torch.utils.swap_tensors, which refuses tensors that C++ or a weak reference holds."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import torchalgo

pytestmark = pytest.mark.usefixtures("drawn_costs")

SETTINGS = torchalgo.Settings(progress=False, run_untimed=True, cost_db=False)
X = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NAMES = ("0.weight", "0.bias", "1.weight", "1.running_mean")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()).eval()


def planned(model: nn.Module) -> torchalgo.Optimized:
    fast = torchalgo.optimize(model, X, budget_s=2, settings=SETTINGS)
    gc.collect()  # fake tensors of the capture refer to the weights weakly
    return fast


@pytest.fixture
def _swaps() -> Iterator[None]:
    """Conversions and load_state_dict swap tensors."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("needs_gradient", [True, False])
@torch.no_grad()
def test_a_swapped_weight_is_seen_and_refreshed(name: str, needs_gradient: bool) -> None:
    model = net().requires_grad_(needs_gradient)
    fast = planned(model)
    weight = model.state_dict(keep_vars=True)[name]
    other = copy.deepcopy(weight).copy_(torch.rand(weight.shape))
    torch.utils.swap_tensors(weight, other)
    with pytest.raises(torchalgo.Error, match=rf"^TA1404 forward: weight '{name}'"):
        fast(X)
    torch.testing.assert_close(fast.refresh()(X), model(X), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_swaps")
@torch.no_grad()
def test_load_state_dict_may_swap_the_weights() -> None:
    model = net()
    fast = planned(model)
    other = {name: torch.rand(value.shape).to(value) for name, value in net().state_dict().items()}
    model.load_state_dict(other)
    with pytest.raises(torchalgo.Error, match=r"^TA1404"):
        fast(X)
    gc.collect()
    fast.load_state_dict({name: value.clone().mul_(2) for name, value in other.items()})
    torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_swaps")
@torch.no_grad()
def test_a_conversion_may_swap_the_weights() -> None:
    model = net()
    fast = planned(model)
    model.double()
    with pytest.raises(torchalgo.Error, match=r"^TA1404"):
        fast(X)
    model.float()
    torch.testing.assert_close(fast.refresh()(X), model(X), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_swaps")
def test_a_model_that_is_trained_may_swap_its_weights() -> None:
    model = net().train()
    with torch.no_grad():
        expected = copy.deepcopy(model)
    trained = torchalgo.optimize_training(
        model, (X,), budget_s=4,
        settings=torchalgo.Settings(progress=False, cost_db=False),
    )  # fmt: skip
    trained(X).sum().backward()
    model.zero_grad()
    gc.collect()
    other = {name: value * 2 for name, value in expected.state_dict().items()}
    model.load_state_dict(other)
    expected.load_state_dict(other)
    torch.testing.assert_close(trained(X), expected(X), rtol=1e-4, atol=1e-5)


def test_weights_that_two_layers_share_are_held_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 3, 3, padding=1, bias=False).requires_grad_(False)
            self.second = nn.Conv2d(3, 3, 3, padding=1, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.second(self.first(x))
            return y

    fast = planned(Tied().eval())
    frozen = fast._results[0].frozen
    assert frozen is not None
    graph: object = frozen.graph
    held = {
        node.t("value").data_ptr()
        for node in graph.findAllNodes("prim::Constant")  # type: ignore[attr-defined]
        if node.hasAttribute("value") and node.kindOf("value") == "t"
    }
    assert len(held) == 1
