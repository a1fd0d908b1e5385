# SPDX-License-Identifier: BSD-3-Clause
"""A run on fake tensors sees reads and writes of a model's Python code, and decides what runs."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchalgo
from support.command import run
from support.model_state import is_same, state_of
from torchalgo._base.compare_outputs import output_error
from torchalgo._base.kept_model import kept_model
from torchalgo._capture.free_sizes import look_at

pytestmark = pytest.mark.usefixtures("drawn_costs")

QUIET: dict[str, Any] = {
    "settings": torchalgo.Settings(progress=False, cost_db=False), "budget_s": 2.0,
}  # fmt: skip
X = torch.rand(1, 3, 12, 14, generator=torch.Generator().manual_seed(0)) - 0.3
Head = Callable[[Any, Tensor], Any]


class Net(nn.Module):
    """Two convolutions in a submodule, and Python code after them."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("state", torch.ones(1))
        self.lists = [torch.ones(1), nn.Parameter(torch.ones(2))]
        self.calls, self.cache, self.head = 0, None, head

    def forward(self, x: Tensor) -> Any:
        return self.head(self, self.body(x))


def net(head: Head) -> Net:
    return Net(head).eval()


def caught(read: Callable[[], float]) -> float:
    with contextlib.suppress(Exception):
        return read()
    return 1.0


READS: dict[str, Head] = {
    "item": lambda m, y: y * y.max().item(),
    "branch": lambda m, y: y if y.max() > 20 else y + 1,
    "isnan": lambda m, y: y + 1 if not y.isnan().any() else y,
    "int": lambda m, y: y[:, : 1 + int(y.abs().sum()) % 3],
    "tolist": lambda m, y: y * sum(y.mean((0, 2, 3)).tolist()),
    "equal": lambda m, y: y + 1 if torch.equal(y, y.abs()) else y,
    "contains": lambda m, y: y + 1 if 0 in y else y,
    "numpy": lambda m, y: y * float(np.abs(y.detach().numpy()).max()),
    "asarray": lambda m, y: torch.from_numpy(np.array(np.asarray(y.detach()))) * 2,
    "ufunc": lambda m, y: torch.as_tensor(np.tanh(y.detach())),
    "dlpack": lambda m, y: torch.from_dlpack(torch.utils.dlpack.to_dlpack(y)) * 2,
    "from_dlpack": lambda m, y: torch.from_numpy(np.from_dlpack(y.detach()) + 1),
    "storage": lambda m, y: y * float(y.untyped_storage()[0] > 7),
    "ctypes": lambda m, y: y * ctypes.c_float.from_address(y.data_ptr()).value,
    "length of a mask": lambda m, y: y if len(y[y > 0]) > 3 else y + 1,
    "loop over places": lambda m, y: y + sum(int(i) for i in (y > 0.2).nonzero()[:, 3]),
    "a caught error": lambda m, y: y * caught(lambda: y.max().item()),
    "random number": lambda m, y: y + torch.rand(1).item(),
    "weights and inputs": lambda m, y: y * (y.mean() * m.scale).item(),
    "data": lambda m, y: y * float(y.data.max()),
}
READS_NONE: dict[str, Head] = {
    "plain": lambda m, y: y.relu(),
    "a weight's value": lambda m, y: y * m.scale.item(),
    "a branch on a weight": lambda m, y: y * 2 if m.scale > 1 else y,
    "a buffer in NumPy": lambda m, y: y * torch.from_numpy(m.state.numpy()),
    "a norm of weights": lambda m, y: y * float(m.body[0].weight.norm()),
    "a mask of weights": lambda m, y: y * m.body[0].weight[m.body[0].weight > 0].mean(),
    "a mask": lambda m, y: y[y > 0].sum() + y,
    "unique values": lambda m, y: y + torch.unique(y).sum(),
    "a loop over sizes": lambda m, y: sum(y[:, i] for i in range(y.shape[1])),
    "resize": lambda m, y: functional.interpolate(y, scale_factor=2.0),
    "text of a size": lambda m, y: y + len(f"{y.shape[2]}"),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_of_a_value_is_seen(name: str) -> None:
    seen = look_at(net(READS[name]), (X,))
    assert seen.reads
    assert seen.dims is None
    assert not seen.writes


@pytest.mark.parametrize("name", READS_NONE)
def test_code_that_reads_sizes_and_weights_only_keeps_its_trace(name: str) -> None:
    seen = look_at(net(READS_NONE[name]), (X,))
    assert not seen.reads
    assert not seen.writes
    assert seen.is_whole


def write(change: Callable[[Any, Tensor], Any]) -> Head:
    def head(model: Any, y: Tensor) -> Tensor:
        change(model, y)
        return y * model.state

    return head


WRITES: dict[str, tuple[Head, str]] = {
    "in place": (write(lambda m, y: m.state.mul_(0.9)), "state"),
    "copy": (write(lambda m, y: m.state.copy_(y.mean()[None])), "state"),
    "of a view": (write(lambda m, y: m.state[:1].add_(1)), "state"),
    "another buffer": (write(lambda m, y: setattr(m, "state", m.state + 1)), "state"),
    "data of a weight": (
        write(lambda m, y: setattr(m.scale, "data", m.scale.data * 0.9)), "scale",
    ),
    "in place in data": (write(lambda m, y: m.scale.data.clamp_(0, 1)), "scale"),
    "of a tensor in a list": (write(lambda m, y: m.lists[0].add_(1)), "a tensor of the model"),
    "statistics": (
        write(lambda m, y: functional.batch_norm(
            y[:, :1], m.state, m.state.clone(), training=True)), "state",
    ),
    "a counter": (write(lambda m, y: setattr(m, "calls", m.calls + 1)), "calls"),
    "a list that grows": (write(lambda m, y: m.lists.append(1)), "lists"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_a_model_that_changes_itself_in_each_call_runs_as_it_was_given(name: str) -> None:
    head, what = WRITES[name]
    model = net(head)
    assert look_at(model, (X,)).writes.startswith(what)
    fast, other = torchalgo.optimize(model, X, **QUIET), copy.deepcopy(model)
    assert fast.plan is None
    assert what.split(" ")[0] in fast.why_as_given
    for _ in range(3):  # the state goes on as in another model
        assert output_error(fast(X), other(X)) <= 1e-5
        assert torch.equal(model.state, other.state)
        assert model.calls == other.calls


def keep(model: Any, y: Tensor) -> Tensor:
    if model.cache is None:
        model.cache = torch.arange(y.shape[3])
    return y + model.cache


def change_made_tensor(model: Any, y: Tensor) -> Tensor:
    return y * functional.softplus(model.state).add_(1)


@pytest.mark.parametrize(
    "head", [keep, lambda m, y: setattr(m, "cache", y) or y, change_made_tensor]
)
def test_what_a_model_makes_or_keeps_in_a_call_is_no_change(head: Head) -> None:
    model = net(head)
    assert not look_at(model, (X,)).writes
    fast = torchalgo.optimize(model, X, **QUIET)
    assert fast.plan is not None
    assert model.cache is None


# ---- the model is given back as it was -----------------------------------------------------------


def shakes(model: Any, y: Tensor) -> Tensor:
    random.random(), np.random.rand(), torch.rand(1)
    torch.set_default_dtype(torch.float64)
    try:
        model.calls += 1
        model.lists.append(y)
        model.scale.data.mul_(0.5)
        return y * torch.rand(1).float()
    finally:
        torch.set_default_dtype(torch.float32)


def fails(model: Any, y: Tensor) -> Tensor:
    model.state = model.state + 1
    model.new = 3
    raise ValueError("not today")


@pytest.mark.parametrize(
    "head",
    [READS_NONE["plain"], READS["numpy"], WRITES["data of a weight"][0], shakes, keep, fails,
     functional.dropout],
)  # fmt: skip
def test_the_model_and_the_state_of_torch_are_what_they_were(head: Head) -> None:
    model = net(head if head is not functional.dropout else lambda m, y: functional.dropout(y))
    before = state_of(model)
    for call in (lambda: torchalgo.optimize(model, X, **QUIET), lambda: torchalgo.optimize(
            model, **QUIET)(X)):  # fmt: skip
        with contextlib.suppress(torchalgo.Error, ValueError):
            fast = call()
            if isinstance(fast, torchalgo.Optimized) and fast.runs == "plan":
                fast.refresh()
                torchalgo.optimize(model, X, plan=fast.plan, settings=QUIET["settings"])
        if head in (WRITES["data of a weight"][0], shakes):
            break  # the second one calls the model itself, which changes it
    assert is_same(before, state_of(model))


LOOKS: dict[str, Callable[[nn.Module], object]] = {
    "lint": lambda model: torchalgo.lint(model, X, budget_s=0.1),
    "candidates": lambda model: torchalgo.candidates(model, X),
    "candidates of gradients": lambda model: torchalgo.candidates(model, X, directions="all"),
    "profile": lambda model: torchalgo.profile(model, X, directions="forward", budget_s=1e-3),
    "optimize_training": lambda model: torchalgo.optimize_training(model.train(), X, **QUIET),
}


def sets_and_fails(model: Any, y: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    random.random()
    return fails(model, y * torch.rand(1))


@pytest.mark.parametrize("head", [READS_NONE["plain"], keep, sets_and_fails])
@pytest.mark.parametrize("look", LOOKS)
def test_what_only_looks_at_a_model_leaves_everything_as_it_was(look: str, head: Head) -> None:
    model = net(head)
    if look == "optimize_training":
        model.train()
    before = state_of(model)
    with contextlib.suppress(torchalgo.Error, ValueError):
        LOOKS[look](model)
    assert is_same(before, state_of(model))


class CountsInABuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.conv(x)


def test_lint_restores_the_values_of_buffers() -> None:
    model = CountsInABuffer().eval()
    torchalgo.lint(model, torch.rand(1, 3, 8, 8), budget_s=0.1)
    assert model.calls.item() == 0


class ReadsItsWidth(nn.Module):
    """Only one test captures this class, because torch names the first capture otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if str(x.shape[-1]) != "7" else -self.conv(x)


def test_the_first_capture_of_a_class_is_the_same_program_as_the_next_one() -> None:
    fast = torchalgo.optimize(ReadsItsWidth().eval(), torch.rand(1, 3, 16, 16), **QUIET)
    assert fast.plan.inputs[0].dims[3].most == 16
    with torch.no_grad():
        fast(torch.rand(1, 3, 16, 18))
    assert not fast.original_runs and fast.unseen == {"1x3x16x18": 1}


def test_values_that_no_version_tells_are_restored() -> None:
    model = net(READS_NONE["plain"])
    weight, values = model.body[0].weight, model.body[0].weight.detach().clone()
    with kept_model(model) as kept:
        kept.copy_weights()
        model.body[0].weight.data.zero_()
        assert kept.written() == ["body.0.weight"]
    assert model.body[0].weight is weight
    assert torch.equal(weight, values)


# ---- what runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "branch", "dlpack", "loop over places", "isnan"])
def test_the_largest_parts_that_read_no_values_are_planned(name: str) -> None:
    model = net(READS[name])
    fast = torchalgo.optimize(model, X, **QUIET)
    assert fast.runs == "parts"
    assert list(fast.parts) == ["body"]
    assert fast.parts["body"].plan.nodes
    for x in (X, X * 30, -X, torch.rand(2, 3, 9, 20), X * float("nan")):
        want = model(x)
        assert torch.allclose(fast(x), want, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert list(model._modules) == ["body"]


def test_a_model_without_such_parts_runs_as_the_original() -> None:
    class Alone(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * float(x.numpy().max())

    model = Alone(3, 4, 3).eval()
    fast = torchalgo.optimize(model, X, **QUIET)
    assert (fast.runs, fast.plan, dict(fast.parts)) == ("original", None, {})
    assert "reads values" in fast.why_as_given
    assert torch.equal(fast(X), model(X))
    assert torch.equal(fast.refresh()(2 * X), model(2 * X))
    assert "original" in repr(fast)


def test_what_needs_a_plan_of_the_whole_raises_one_error_with_the_reason(tmp_path: Path) -> None:
    fast = torchalgo.optimize(net(READS["numpy"]), X, **QUIET)
    for call in (
        lambda: fast.save(tmp_path / "fast.pt"), lambda: fast.save(tmp_path / "fast.pt2"),
        lambda: fast.scripted, lambda: fast.costs, lambda: fast.pareto(),
        lambda: fast.report(tmp_path / "report.html"), lambda: copy.copy(fast).by_shape,
    ):  # fmt: skip
        with pytest.raises(torchalgo.Error, match=r"TA1408 .*Tensor\.numpy.*'body'") as raised:
            call()
        assert ":. " not in str(raised.value) and ".. " not in str(raised.value)
    with pytest.raises(torchalgo.Error, match="TA1408 save: "):
        fast.save(tmp_path / "fast.pt")
    assert not list(tmp_path.iterdir())


def test_strict_mode_and_a_plan_of_another_model_refuse_such_a_model() -> None:
    strict = torchalgo.Settings(progress=False, cost_db=False, strict=True)
    with pytest.raises(torchalgo.Error, match=r"TA1108 .*reads values"):
        torchalgo.optimize(net(READS["numpy"]), X, settings=strict, budget_s=2.0)
    plan = torchalgo.optimize(net(READS_NONE["plain"]), X, **QUIET).plan
    with pytest.raises(torchalgo.Error, match=r"TA1108 .*reads values"):
        torchalgo.optimize(net(READS["numpy"]), X, plan=plan, settings=QUIET["settings"])


def test_parts_follow_changes_around_them() -> None:
    model = net(lambda m, y: y * float(y.detach().numpy().max()) * m.calls)
    fast = torchalgo.optimize(model, X, **QUIET)
    model.calls = 3  # an attribute that the code around the parts reads
    assert output_error(fast(X), model(X)) <= 1e-5
    model.body = nn.Conv2d(3, 5, 1).eval()  # the part is gone
    assert torch.equal(fast(X), model(X))


def test_new_weights_of_a_model_in_parts_are_packed() -> None:
    model = net(READS["numpy"])
    fast = torchalgo.optimize(model, X, **QUIET)
    other = {name: weight * 1.5 for name, weight in model.state_dict().items()}
    fast.load_state_dict(other)
    assert output_error(fast(X), model(X)) <= 1e-5
    with torch.no_grad():
        model.body[0].weight.mul_(2)
    with pytest.raises(torchalgo.Error, match="TA1404"):
        fast(X)
    assert output_error(fast.refresh()(X), model(X)) <= 1e-5


def test_gradients_of_inputs_flow_through_a_model_in_parts() -> None:
    model = net(lambda m, y: y * float(y.detach().numpy().max()))
    fast, x = torchalgo.optimize(model, X, **QUIET), X.clone().requires_grad_()
    fast(x).sum().backward()
    assert x.grad is not None
    assert not fast(X).requires_grad


class MadeForTheCommand(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(x.numpy().max())


def test_the_command_says_why_such_a_model_has_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"{__name__}:MadeForTheCommand"
    argv = ("optimize", model, "--quiet", "--input", "1x3x8x8", "-o", tmp_path / "fast.pt")
    text = run(capsys, *argv, code=1)
    assert "TA1408" in text
    assert "Tensor.numpy" in text
    assert not (tmp_path / "fast.pt").exists()


def test_copies_of_a_model_in_parts_have_parts_of_their_own() -> None:
    fast = torchalgo.optimize(net(READS["numpy"]), X, **QUIET)
    other = copy.deepcopy(fast)
    model = other.original_model
    assert model is not None
    assert other.parts["body"].original_model is model.body  # type: ignore[union-attr]
    assert torch.equal(other(X), fast(X))


def test_overrides_of_a_model_in_parts_name_layers_of_the_whole() -> None:
    overrides = {"body.0": "aten.conv"}
    fast = torchalgo.optimize(net(READS["numpy"]), X, overrides=overrides, **QUIET)
    names = {node.name: node.primitive for node in fast.parts["body"].plan.nodes}
    assert names["0"].startswith("aten.conv")


class Sensitive(Net):
    """Results that rounding changes, as those of a detector that keeps what exceeds a threshold."""

    def __init__(self, head: Head) -> None:
        super().__init__(head)
        self.body.append(nn.BatchNorm2d(4))
        self.body[-1].running_var.mul_(0.3)


@pytest.mark.parametrize(
    "head",
    [lambda m, y: (y * 1e7).floor() % 2, lambda m, y: y[(y * 1e7).floor() % 2 > 0],
     lambda m, y: (y * 1e7 % 7).flatten().argsort().float()],
)  # fmt: skip
def test_a_model_that_chooses_by_values_that_rounding_changes_has_planned_parts(head: Head) -> None:
    model = Sensitive(head).eval()
    fast = torchalgo.optimize(model, X, **QUIET)
    assert (fast.runs, list(fast.parts)) == ("parts", ["body"])
    assert "changes the outputs" in fast.why_as_given
    with pytest.raises(torchalgo.Error, match=r"TA1113 .*sorts values, or chooses"):
        strict = torchalgo.Settings(progress=False, cost_db=False, strict=True)
        torchalgo.optimize(model, X, budget_s=2.0, settings=strict)


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ({"body.*": "aten.conv"}, ""),
        ({"*": "aten.conv"}, ""),
        ({"bdoy.*": "aten.conv"}, r"TA4202 .*'bdoy.\*' matches no module of a planned part"),
        ({"body.0": "aten.conf"}, "TA4004 .*did you mean 'aten.conv'"),
        ({"body.2": "cpu.winograd_f4x4_3x3"}, "TA4203 .*refuses"),
        (["body.0"], "TA4201 .*got list"),
        ({"body.0": 1}, "TA4201 .*'body.0': 1"),
    ],
)
def test_overrides_that_cannot_be_kept_are_errors_in_parts_too(overrides: Any, error: str) -> None:
    model = net(READS["numpy"])
    if error:
        with pytest.raises(torchalgo.Error, match=error):
            torchalgo.optimize(model, X, overrides=overrides, **QUIET)
        return
    fast = torchalgo.optimize(model, X, overrides=overrides, **QUIET)
    convolutions = [each for each in fast.parts["body"].plan.nodes if each.name in ("0", "2")]
    assert [each.primitive.partition(":")[0] for each in convolutions] == ["aten.conv"] * 2


def test_several_shapes_of_a_model_in_parts() -> None:
    model, shapes = net(READS["numpy"]), [(1, 3, 12, 14), (2, 3, 8, 8)]
    fast = torchalgo.optimize(model, shapes=shapes, **QUIET)
    assert sorted(fast.parts["body"].plans) == ["1x3x12x14", "2x3x8x8"]


def test_a_model_that_asks_for_the_order_in_memory_has_a_plan_for_one_order() -> None:
    model = net(lambda m, y: y)
    model.forward = lambda x: model.body(x) * (1 + x.stride(1) % 7)  # type: ignore[method-assign]
    fast = torchalgo.optimize(model, X, **QUIET)
    assert fast.plan is not None
    assert output_error(fast(X), model(X)) <= 1e-5
    with pytest.warns(UserWarning, match="x is in the order channels_last, planned in contiguous"):
        y = fast(X.contiguous(memory_format=torch.channels_last))
    assert output_error(y, model(X.contiguous(memory_format=torch.channels_last))) <= 1e-5


def test_looks_may_overlap() -> None:
    heads = [READS_NONE["text of a size"], READS_NONE["a loop over sizes"], READS["numpy"]] * 4
    expected = [look_at(net(head), (X,)) for head in heads]
    found: dict[int, Any] = {}

    def look(i: int) -> None:
        found[i] = look_at(net(heads[i]), (X,))

    threads = [threading.Thread(target=look, args=(i,)) for i in range(len(heads))]
    before = (torch.SymInt.__repr__, torch.SymFloat.__floor__)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(len(heads))] == expected
    assert (torch.SymInt.__repr__, torch.SymFloat.__floor__) == before
