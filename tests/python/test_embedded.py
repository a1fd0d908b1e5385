# SPDX-License-Identifier: BSD-3-Clause
"""An optimized module has the parameters, the length and the items of the model that was given."""

from __future__ import annotations

import copy
import html
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import Net, arguments, make_net

X = torch.rand(1, 3, 24, 24)


def optimized(model: nn.Module) -> torchalgo.Optimized:
    return torchalgo.optimize(model, X, budget_s=2.0, **arguments(cost_db=False, run_untimed=True))


@pytest.fixture(scope="module")
def stack() -> torchalgo.Optimized:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)
    return optimized(nn.Sequential(*layers).eval())


def test_parameters_and_buffers_are_those_of_the_original(fast: torchalgo.Optimized) -> None:
    model = fast.original_model
    assert model is not None
    assert next(fast.parameters()).device == torch.device("cpu")
    assert [*map(id, fast.parameters())] == [*map(id, model.parameters())]
    assert [*map(id, fast.buffers())] == [*map(id, model.buffers())]
    names = dict(fast.named_parameters("x", recurse=True, remove_duplicate=False))
    assert names.keys() == {f"x.{name}" for name, _ in model.named_parameters()}
    assert {*dict(fast.named_parameters()), *dict(fast.named_buffers())} == {*fast.state_dict()}


def test_a_module_that_was_not_called_yet_has_them_too() -> None:
    lazy = torchalgo.optimize(make_net())
    assert len(list(lazy.parameters())) == len(list(make_net().parameters()))


def test_a_loaded_module_says_that_it_has_no_original(
    stack: torchalgo.Optimized, tmp_path: Path
) -> None:
    stack.save(tmp_path / "net.pt")
    again = torchalgo.load(tmp_path / "net.pt")
    for use in (
        again.parameters, again.named_buffers, again.buffers, lambda: len(again), lambda: again[0],
        lambda: iter(again),
    ):  # fmt: skip
        with pytest.raises(torchalgo.Error, match="TA1403"):
            list(use())  # type: ignore[operator]
    assert again and nn.Sequential(again)(X).shape == stack(X).shape


def test_length_items_and_iteration_are_those_of_the_original(stack: torchalgo.Optimized) -> None:
    model = stack.original_model
    assert isinstance(model, nn.Sequential)
    assert len(stack) == 4 and stack[0] is model[0] and stack[-1] is model[-1]
    assert list(stack) == list(model) and list(stack[1:3]) == list(model[1:3])
    assert model[2] in stack and nn.ReLU() not in stack
    with pytest.raises(TypeError, match="item assignment"):
        stack[0] = nn.ReLU()  # type: ignore[index]


def test_a_model_without_a_length_is_true_and_raises_as_usual(fast: torchalgo.Optimized) -> None:
    assert bool(fast) and bool(torchalgo.optimize(make_net()))
    for use in (len, iter, lambda module: module[0]):
        with pytest.raises(TypeError, match="Net"):
            use(fast)


def test_weights_that_an_optimizer_changes_are_noticed(stack: torchalgo.Optimized) -> None:
    fast = optimized(copy.deepcopy(stack.original_model))  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    assert not fast(X).requires_grad  # so backward() raises
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast(X.clone().requires_grad_()).sum().backward()  # the original runs
    optimizer.step()
    with pytest.raises(torchalgo.Error, match="TA1404"):
        fast(X)
    fast.refresh()
    torch.testing.assert_close(fast(X), fast.original_model(X), rtol=1e-3, atol=1e-4)  # type: ignore[misc]
    fast.zero_grad()
    assert all(each.grad is None for each in fast.parameters())
    fast.requires_grad_(False)
    assert not any(each.requires_grad for each in fast.parameters())
    fast(X)


def test_functional_calls_with_other_weights_are_noticed(stack: torchalgo.Optimized) -> None:
    others = {name: torch.zeros_like(each) for name, each in stack.named_parameters()}
    with pytest.raises(torchalgo.Error, match="TA1404"):
        torch.func.functional_call(stack, others, (X,))
    stack(X)


def test_a_bigger_model_has_the_state_and_no_weights_that_it_could_not_train(
    stack: torchalgo.Optimized,
) -> None:
    head = nn.Conv2d(4, 2, 1)
    bigger = nn.Sequential(stack, head)
    assert [*map(id, bigger.parameters())] == [*map(id, head.parameters())]
    assert {name.split(".")[0] for name in bigger.state_dict()} == {"0", "1"}
    bigger.load_state_dict(bigger.state_dict())
    bigger.to("cpu").float().train()
    bigger(X).sum().backward()
    assert head.weight.grad is not None
    assert not any(each.grad is not None for each in stack.parameters())
    with pytest.raises(torchalgo.Error, match="TA1401"):
        bigger.double()
    copied = copy.deepcopy(bigger.float())
    assert next(copied[0].parameters()) is not next(stack.parameters())


def test_a_compiled_model_may_contain_it(stack: torchalgo.Optimized) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(nn.Sequential(stack, nn.ReLU()), backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), stack(X).relu())


def test_a_notebook_shows_the_module_and_its_plans(
    fast: torchalgo.Optimized, stack: torchalgo.Optimized
) -> None:
    for module in (fast, stack):
        shown = module._repr_html_()
        assert shown.startswith("<pre ") and "Optimized(runs=" in shown
        assert html.escape(str(module.plan)) in shown
    assert "plans on its first call" in torchalgo.optimize(Net().eval())._repr_html_()
