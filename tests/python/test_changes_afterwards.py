# SPDX-License-Identifier: BSD-3-Clause
"""Layers, hooks, methods and settings of a model that were changed after it was optimized."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import torchalgo
from support.small_models import rand

QUICK = torchalgo.Settings(progress=False, run_untimed=True, cost_db=False)
X = rand(1, 3, 16, 16)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*weight_norm"), pytest.mark.usefixtures("drawn_costs")
]  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2)])
        self.act, self.pool = nn.LeakyReLU(0.1), nn.MaxPool2d(3, 2, 1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = self.pool(self.act(block(x)))
        return self.last(x)

    def last(self, x: Tensor) -> Tensor:
        return self.head(x)


class Twice(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Adapter(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.more = layer, nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.more(x)


def doubled(*arguments: Any) -> Any:
    """A hook, or a method without its module, that doubles its last argument."""
    return arguments[-1] * 2


def double_input(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0] * 2,)


@functools.cache
def plan() -> torchalgo.Plan:
    with torch.no_grad():
        return torchalgo.optimize(net(), X, budget_s=5.0, settings=QUICK).plan


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def optimized(model: nn.Module) -> torchalgo.Optimized:
    return torchalgo.optimize(model, X, plan=plan(), settings=QUICK)


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def conv(*sizes: int, **settings: Any) -> nn.Module:
    return nn.Conv2d(*sizes, **settings).eval()


def put(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


Change = Callable[[Net], Any]
# Changes of the model, what the reason says, and whether the plan fits the model afterwards.
CHANGES: dict[str, tuple[Change, str, bool]] = {
    "layer set": (lambda m: put(m, "head", conv(8, 4, 1)), "layer 'head' was replaced", True),
    "wider layer": (lambda m: put(m, "head", conv(8, 6, 1)), "layer 'head' was replaced", False),
    "item of Sequential": (
        lambda m: m.stem.__setitem__(0, conv(3, 8, 3, padding=1)),
        r"layer 'stem\.0' was replaced",
        True,
    ),
    "item deleted": (lambda m: m.stem.__delitem__(1), r"layer 'stem\.1' was replaced", False),
    "last item deleted": (lambda m: m.stem.__delitem__(2), r"layer 'stem\.2' was removed", False),
    "item of ModuleList": (
        lambda m: put(m.blocks, "1", conv(8, 8, 3, padding=1, bias=False)),
        r"layer 'blocks\.1' was replaced",
        True,
    ),
    "appended": (
        lambda m: m.blocks.append(conv(8, 8, 3, padding=1, bias=False)),
        r"layer 'blocks\.2' was added",
        False,
    ),
    "added module": (
        lambda m: m.stem.add_module("more", nn.ReLU().eval()),
        r"layer 'stem\.more' was added",
        False,
    ),
    "other order": (
        lambda m: m.stem._modules.update({"1": m.stem._modules.pop("1")}),
        "layers of layer 'stem' were put in another order",
        False,
    ),
    "adapter": (
        lambda m: put(m, "head", Adapter(m.head).eval()),
        "layer 'head' was replaced",
        False,
    ),
    "hook": (lambda m: m.head.register_forward_hook(doubled), "hook of layer 'head'", False),
    "pre-hook": (
        lambda m: m.head.register_forward_pre_hook(double_input),
        "hook of layer 'head'",
        False,
    ),
    "hook with kwargs": (
        lambda m: m.pool.register_forward_hook(lambda *a: a[-1] * 2, with_kwargs=True),
        "hook of layer 'pool'",
        False,
    ),
    "hook of the model": (
        lambda m: m.register_forward_hook(doubled),
        "hook of the model was added",
        False,
    ),
    "forward of a layer": (
        lambda m: put(m.head, "forward", doubled),
        "method of layer 'head' was replaced",
        False,
    ),
    "forward of the model": (
        lambda m: put(m, "forward", doubled),
        "method of the model was replaced",
        False,
    ),
    "another method": (
        lambda m: put(m, "last", doubled),
        "method of the model was replaced",
        False,
    ),
    "class of a layer": (
        lambda m: put(m.head, "__class__", Twice),
        "class of layer 'head' was changed",
        False,
    ),
    "parametrization": (
        lambda m: nn.utils.parametrizations.weight_norm(m.head).eval(),
        "class of layer 'head' was changed",
        True,
    ),
    "weight norm": (lambda m: nn.utils.weight_norm(m.head), "hook of layer 'head'", True),
    "eps": (lambda m: put(m.stem[1], "eps", 0.5), r"'eps' of layer 'stem\.1' was changed", True),
    "stride": (lambda m: put(m.head, "stride", (2, 2)), "'stride' of layer 'head'", False),
    "padding": (lambda m: put(m.head, "padding", (1, 1)), "'padding' of layer 'head'", False),
    "padding mode": (
        lambda m: put(m.blocks[0], "padding_mode", "circular"),
        r"'padding_mode' of layer 'blocks\.0' was changed",
        False,
    ),
    "slope": (
        lambda m: put(m.act, "negative_slope", 0.3),
        "'negative_slope' of layer 'act' was changed",
        False,
    ),
    "window": (lambda m: put(m.pool, "ceil_mode", True), "'ceil_mode' of layer 'pool'", False),
    "new bias": (
        lambda m: put(m.blocks[0], "bias", nn.Parameter(torch.ones(8))),
        r"'bias' of layer 'blocks\.0' was changed",
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_runs_as_it_is_and_the_first_call_says_why(name: str) -> None:
    change, reason, _ = CHANGES[name]
    model = net()
    fast = optimized(model)
    close(fast(X), model(X))
    assert not fast.original_runs
    change(model)
    with pytest.warns(UserWarning, match=reason):
        found = fast(X)
    assert torch.equal(found, model(X))
    assert torch.equal(fast(X), model(X))
    assert list(fast.original_runs.values()) == [2]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore:torchalgo. ")
def test_refresh_applies_the_plan_to_the_changed_model_or_says_what_was_changed(name: str) -> None:
    change, _, fits = CHANGES[name]
    model = net()
    fast = optimized(model)
    change(model)
    if fits:
        close(fast.refresh()(X), model(X))
        assert not fast.original_runs
        return
    try:
        fast.refresh()
    except torchalgo.Error as problem:
        assert problem.code in ("TA1404", "TA2201")
    close(fast(X), model(X))


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.LeakyReLU, Net])
def test_a_patched_class_is_noticed_and_the_plan_runs_again_afterwards(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, before = net(), kind.forward
    fast = optimized(model)
    monkeypatch.setattr(kind, "forward", lambda self, x: before(self, x) * 2)
    with pytest.warns(UserWarning, match=f"method 'forward' of class {kind.__name__} was replaced"):
        assert torch.equal(fast(X), model(X))
    monkeypatch.undo()
    close(fast(X), model(X))
    assert fast.original_runs.total() == 1


@pytest.mark.parametrize(
    "register",
    [
        lambda m: m.head.register_forward_hook(doubled),
        lambda m: m.stem[2].register_forward_pre_hook(double_input),
        lambda m: m.register_forward_hook(doubled),
        lambda m: nn.modules.module.register_module_forward_hook(lambda *given: None),
        lambda m: nn.modules.module.register_module_forward_pre_hook(lambda *given: None),
    ],
)
@pytest.mark.filterwarnings("ignore:torchalgo. ")
def test_the_plan_runs_again_after_a_hook_was_removed(register: Change) -> None:
    model = net()
    fast = optimized(model)
    handle = register(model)
    try:
        assert torch.equal(fast(X), model(X))
    finally:
        handle.remove()
    close(fast(X), model(X))
    assert fast.original_runs.total() == 1


@pytest.mark.parametrize("layer", ["stem.2", "head", ""])
def test_hooks_that_were_there_at_capture_run_in_each_call(
    layer: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model, seen = net(), list[Tensor]()
    handle = model.get_submodule(layer).register_forward_hook(lambda *given: seen.append(given[-1]))
    loud = torchalgo.Settings(run_untimed=True, cost_db=False)
    fast = torchalgo.optimize(model, X, plan=plan(), settings=loud)
    subject = f"layer '{layer}'" if layer else "the model"
    assert f"{subject} had a forward hook" in capfd.readouterr().err
    seen.clear()
    with pytest.warns(UserWarning, match=f"{subject} had a forward hook when it was planned"):
        assert torch.equal(fast(X), model(X))
    assert len(seen) == 2
    handle.remove()
    fast(X)
    assert fast.original_runs.total() == 2
    close(fast.refresh()(X), model(X))
    assert fast.original_runs.total() == 2


def test_a_global_hook_that_was_there_at_capture_runs_in_each_call() -> None:
    model, seen = net(), list[nn.Module]()
    handle = nn.modules.module.register_module_forward_hook(lambda *given: seen.append(given[0]))
    try:
        fast = optimized(model)
        seen.clear()
        with pytest.warns(UserWarning, match="there was a global forward hook"):
            fast(X)
        assert model.head in seen
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "add",
    [
        lambda m: nn.utils.weight_norm(m.head),
        lambda m: nn.utils.spectral_norm(m.head),
        lambda m: prune.l1_unstructured(m.head, "weight", 0.5),
        lambda m: nn.utils.parametrizations.weight_norm(m.head),
    ],
)
def test_hooks_of_torch_that_compute_weights_are_a_part_of_the_plan(add: Change) -> None:
    model = net()
    add(model)
    model.eval()
    fast = torchalgo.optimize(model, X, budget_s=2.0, settings=QUICK)
    for _ in range(2):
        close(fast(X), model(X))
        model(X)  # the hook sets its weight again
    assert not fast.original_runs


@pytest.mark.filterwarnings("ignore:torchalgo. ")
def test_a_change_is_told_although_the_original_ran_before_for_another_reason() -> None:
    model = net()
    fast = optimized(model)
    with torch.enable_grad():
        fast(X.clone().requires_grad_())
    model.head.padding = (1, 1)
    with pytest.warns(UserWarning, match="'padding' of layer 'head'.*refresh"):
        fast(X)


def test_equal_values_and_new_attributes_are_no_changes() -> None:
    model = net()
    fast = optimized(model)
    model.head.stride, model.stem[1].eps = (int("1"), 1), float("1e-5")
    model.head.note, model.epoch = "new", 3  # type: ignore[assignment]
    close(fast(X), model(X))
    assert not fast.original_runs


class Lazily(nn.Module):
    """A model that makes a layer and a buffer when it first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.layer is None:
            self.layer = nn.Conv2d(3, 4, 1).eval()
            self.register_buffer("offset", torch.ones(1))
        return self.layer(x) + self.offset


def test_layers_that_the_model_makes_in_its_first_run_are_no_changes() -> None:
    model = Lazily().eval()
    fast = torchalgo.optimize(model, X, budget_s=1.0, settings=QUICK)
    close(fast(X), model(X))
    assert not fast.original_runs


class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Clamping(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.head.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class Resetting(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.stem[1].running_mean.zero_()  # type: ignore[operator]
        return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "weight"),
    [(Counting, "calls"), (Clamping, "head.weight"), (Resetting, "stem.1.running_mean")],
)
def test_a_model_that_writes_to_its_own_weights_runs_as_it_is(kind: Any, weight: str) -> None:
    model = kind().eval()
    fast = torchalgo.optimize(model, X, budget_s=2.0, settings=QUICK)
    assert fast.plan is None
    assert weight in fast.why_as_given
    assert torch.allclose(fast(X), model(X), atol=1e-5)
    assert torch.allclose(fast.refresh()(X), model(X), atol=1e-5)
    if isinstance(model, Counting):
        before = float(model.calls)
        fast(X)
        assert float(model.calls) == before + 1


def test_changed_weights_of_unchanged_layers_are_still_an_error() -> None:
    model = net()
    fast = optimized(model)
    model.head.weight.mul_(2)
    with pytest.raises(torchalgo.Error, match=r"TA1404.*weight 'head\.weight'"):
        fast(X)
    model.head = nn.Conv2d(8, 4, 1).eval()
    with pytest.warns(UserWarning, match="layer 'head' was replaced"):
        assert torch.equal(fast(X), model(X))


def test_a_changed_model_is_not_saved_pickled_or_copied(tmp_path: Path) -> None:
    model = net()
    fast = optimized(model)
    model.head = nn.Conv2d(8, 4, 1).eval()
    calls: list[Callable[[], Any]] = [
        lambda: fast.save(tmp_path / "m.pt"),
        lambda: pickle.dumps(fast),
        lambda: copy.deepcopy(fast),
    ]
    for call in calls:
        with pytest.raises(torchalgo.Error, match=r"TA1404.*layer 'head' was replaced"):
            call()
    fast.refresh().save(tmp_path / "m.pt")
    close(torchalgo.load(tmp_path / "m.pt")(X), model(X))


@pytest.mark.filterwarnings("ignore:torchalgo. ")
def test_a_copy_notices_the_changes_of_its_own_model() -> None:
    model = net()
    fast = optimized(model)
    shared, deep = copy.copy(fast), copy.deepcopy(fast)
    before = model(X)
    model.head = nn.Conv2d(8, 4, 1).eval()
    assert torch.equal(shared(X), model(X)) and shared.original_runs
    close(deep(X), before)
    assert not deep.original_runs
    handle = deep.head.register_forward_hook(doubled)
    close(deep(X), 2 * before)
    handle.remove()
    fast.refresh()
    assert torch.equal(shared(X), model(X))
    assert shared.original_runs.total() == 2


def test_a_model_that_holds_its_optimized_module_is_freed() -> None:
    model = net()
    model.__dict__["fast"] = optimized(model)
    model.fast(X)
    gone = weakref.ref(model.head)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.filterwarnings("ignore:torchalgo. ")
def test_compiled_code_notices_a_change_and_runs_the_original_when_it_is_compiled_again() -> None:
    torch._dynamo.reset()
    model = net()
    fast = optimized(model)
    compiled = torch.compile(fast, backend="aot_eager")
    close(compiled(X), model(X))
    handle = model.head.register_forward_hook(doubled)
    with pytest.raises(RuntimeError, match=r"TA1404.*hook of layer 'head'"):
        compiled(X)
    torch._dynamo.reset()
    close(torch.compile(fast, backend="aot_eager")(X), model(X))
    assert fast.original_runs.total() == 1
    handle.remove()
    close(compiled(X), model(X))
    assert fast.original_runs.total() == 1
    torch._dynamo.reset()
