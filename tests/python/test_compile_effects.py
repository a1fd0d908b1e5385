# SPDX-License-Identifier: BSD-3-Clause
"""Compiled code changes buffers, weights and inputs as often as eager code, also while it plans."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.testing._internal.two_tensor import TwoTensor

from torchalgo import dynamo
from torchalgo._dynamo.effects import why_not_planned

QUICK = {"budget_s": 3.0, "cost_db": False}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


class Stateful(nn.Module):
    """A convolution and a norm, and a change of some tensor that the result depends on."""

    def __init__(self, change: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.register_buffer("state", torch.ones(4, 1, 1))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("pair", TwoTensor(torch.ones(4), torch.ones(4)))
        self.plain = torch.ones(4, 1, 1)  # no buffer
        self.held = [torch.ones(4, 1, 1)]
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        self.change(self, x)
        y = self.norm(self.conv(x)) * self.state * self.plain * self.held[0]
        return y + self.count


CHANGES: dict[str, Callable[[Any, Tensor], Any]] = {
    "a product": lambda m, x: m.state.mul_(0.5),
    "a sum": lambda m, x: m.state.add_(1),
    "a quotient": lambda m, x: m.state.div_(2),
    "a difference": lambda m, x: m.state.sub_(0.25),
    "a counter": lambda m, x: m.count.add_(1),
    "a part": lambda m, x: m.state[:2].mul_(0.5),
    "a view": lambda m, x: m.state.view(2, 2)[:, 0].mul_(0.5),
    "a copy": lambda m, x: m.state.copy_(m.state * 0.5),
    "an element": lambda m, x: m.state.__setitem__(0, m.state[0] * 0.5),
    "a fill": lambda m, x: m.state.fill_(3).mul_(0.5),
    "several": lambda m, x: torch._foreach_mul_([m.state, m.plain], 0.5),
    "out": lambda m, x: torch.mul(m.state, 0.5, out=m.state),
    "data": lambda m, x: m.state.data.mul_(0.5),
    "new data": lambda m, x: setattr(m.state, "data", m.state * 0.5),
    "new data of a weight": lambda m, x: setattr(m.conv.weight, "data", m.conv.weight * 0.5),
    "a subclass": lambda m, x: m.pair.mul_(0.5),
    "detached": lambda m, x: m.state.detach().mul_(0.5),
    "an attribute": lambda m, x: m.plain.mul_(0.5),
    "a list": lambda m, x: m.held[0].mul_(0.5),
    "a weight": lambda m, x: m.conv.weight.mul_(0.5),
    "a clamped weight": lambda m, x: m.conv.weight.clamp_(-0.1, 0.1).mul_(0.5),
    "statistics": lambda m, x: m.norm.running_mean.mul_(0.5).add_(1),
    "an input": lambda m, x: x.mul_(2),
    "an assigned buffer": lambda m, x: setattr(m, "state", m.state * 0.5),
}


def tensors_of(model: Any) -> list[Tensor]:
    return [*model.parameters(), *model.buffers(), model.plain, *model.held]


def expect_eager(model: nn.Module) -> None:
    """Calls the compiled model three times beside a copy. All results and tensors must be equal."""
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="torchalgo", options=QUICK)
    for i in range(3):
        x = torch.rand(1, 3, 8, 8) + i
        given = x.clone()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torchalgo: PyTorch runs this graph")
            found = compiled(x)
        torch.testing.assert_close(found, eager(given))
        assert torch.equal(x, given)
        for mine, expected in zip(tensors_of(model), tensors_of(eager), strict=True):
            torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_in_place_happens_once_per_call(change: Callable[[Any, Tensor], Any]) -> None:
    expect_eager(Stateful(change).eval())


def test_a_tensor_of_a_closure_is_changed_once_per_call() -> None:
    gain, expected = torch.ones(4, 1, 1), torch.ones(4, 1, 1)
    conv = nn.Conv2d(3, 4, 3, padding=1).eval()

    @torch.compile(backend="torchalgo", options=QUICK)
    def call(x: Tensor) -> Tensor:
        gain.mul_(0.5)
        return conv(x) * gain

    for _ in range(3):
        x = torch.rand(1, 3, 8, 8)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torchalgo: PyTorch runs this graph")
            found = call(x)
        torch.testing.assert_close(found, conv(x) * expected.mul_(0.5))
        assert torch.equal(gain, expected)


def test_train_mode_counts_each_batch_once() -> None:
    model = Stateful(lambda m, x: None).train()
    expect_eager(model)
    assert int(model.norm.num_batches_tracked) == 3  # type: ignore[arg-type]


def test_random_numbers_are_those_of_eager_also_in_the_first_call() -> None:
    model = Stateful(lambda m, x: m.state.copy_(torch.rand(4, 1, 1))).eval()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="torchalgo", options=QUICK)
    x = torch.rand(1, 3, 8, 8)
    states = []
    for call in (eager, compiled):
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(x)
        states.append((model if call is compiled else eager).state.clone())
        states.append(torch.get_rng_state())
    assert torch.equal(states[0], states[2]) and torch.equal(states[1], states[3])


def test_the_look_for_effects_leaves_values_and_versions() -> None:
    for change in CHANGES.values():
        if change is CHANGES["an input"]:
            continue
        model = Stateful(change).eval()
        before = [(t, t.clone(), t._version) for t in tensors_of(model)]
        why_not_planned(model, [torch.rand(1, 3, 8, 8)])
        weights = [*model.parameters(), *model.buffers()]
        for tensor, value, version in before:
            assert torch.equal(tensor, value)
            is_weight = any(tensor is each for each in weights)
            assert not is_weight or tensor._version == version
        assert all(a is b for a, (b, _, _) in zip(tensors_of(model), before, strict=True))


def test_a_write_to_a_constant_of_a_graph_is_found_and_does_not_happen() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    written = graph.call_method("mul_", (graph.get_attr("constant"), 0.5))
    graph.output(graph.call_function(torch.add, (x, written)))
    inner = fx.GraphModule({"constant": torch.ones(3)}, graph)

    class Outer(nn.Module):
        """Runs a graph that is no submodule, as the module of a graph of Dynamo does."""

        def forward(self, x: Tensor) -> Tensor:
            return inner(x)

    assert "writes to a tensor of the model" in why_not_planned(Outer(), [torch.rand(3)])
    assert inner.constant.tolist() == [1.0, 1.0, 1.0]  # type: ignore[union-attr, operator]


def test_code_whose_effects_cannot_be_seen_is_not_planned() -> None:
    class Hidden(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return hidden(x)

    assert "its effects cannot be found" in why_not_planned(Hidden(), [torch.rand(3)])


@torch.library.custom_op("torchalgo_test::hidden", mutates_args=())
def hidden(x: Tensor) -> Tensor:
    return x.clone()


def test_results_whose_sizes_depend_on_values_are_planned_unless_code_reads_them() -> None:
    class Chosen(nn.Module):
        def __init__(self, reads: bool) -> None:
            super().__init__()
            self.reads = reads

        def forward(self, x: Tensor) -> Tensor:
            y = x[x > 0.5]
            return y + 1 if self.reads and y.shape[0] > 3 else y

    assert why_not_planned(Chosen(False), [torch.rand(9)]) == ""
    assert "reads the value" in why_not_planned(Chosen(True), [torch.rand(9)])


@pytest.mark.parametrize("dims", [2, 3])
def test_inputs_in_channels_last_run_a_plan_and_keep_eager_s_formats(dims: int) -> None:
    conv = nn.Conv2d if dims == 2 else nn.Conv3d
    layout = torch.channels_last if dims == 2 else torch.channels_last_3d

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv(3, 4, 3)

        def forward(self, x: Tensor) -> Any:
            y = self.conv(x)
            return y, y.contiguous(), y.to(memory_format=layout), y + y.contiguous()

    model = Parts().eval()
    compiled = torch.compile(model, backend="torchalgo", options=QUICK)
    for shape in ((1, 3, 8, 8, 8), (2, 3, 8, 8, 8)):
        x = torch.rand(shape[: dims + 2])
        for each in (x, x.contiguous(memory_format=layout)):
            for mine, expected in zip(compiled(each), model(each), strict=True):
                torch.testing.assert_close(mine, expected)
                assert mine.stride() == expected.stride()
    assert not dynamo.report(compiled).original_runs
