# SPDX-License-Identifier: BSD-3-Clause
"""Sensitivities of the outputs: against noise that is really added, and how a budget uses them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import arguments
from torchalgo import _C
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.plan import Plan
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.limits import Limits
from torchalgo._plan.sensitivities import Sensitivity, sensitivities_of


class Branches(nn.Module):
    """Two branches of different size that meet, then a mean over the image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.large = nn.Conv2d(8, 8, 3, padding=1)
        self.small = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = self.large(x) + torch.tanh(self.small(x))  # else both become one convolution
        y: torch.Tensor = self.head(torch.relu(x).mean((2, 3)))
        return y


def branches() -> Branches:
    torch.manual_seed(1)
    net = Branches().eval()
    with torch.no_grad():
        net.large.weight *= 5
    return net


X = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(3))


def found_in(net: nn.Module) -> tuple[_C.Graph, dict[str, Sensitivity]]:
    imported = _C.import_graph(freeze_model(net, (X,))._c, (X,))
    found = sensitivities_of(imported, (X,))
    return imported.graph, {n.name: s for n, s in zip(imported.graph.nodes, found, strict=True)}


def relative_change(change: Callable[[Branches, torch.Generator], torch.Tensor]) -> float:
    """Returns the root mean square of the outputs' relative change over several draws."""
    net, squares = branches(), []
    with torch.no_grad():
        y = net(X)
        for seed in range(200):
            other = change(copy.deepcopy(net), torch.Generator().manual_seed(seed))
            squares.append(float(((other - y).norm() / y.norm()) ** 2))
    return math.sqrt(sum(squares) / len(squares))


def noisy(tensor: torch.Tensor, generator: torch.Generator, size: float) -> torch.Tensor:
    return tensor * (1 + size * torch.randn(tensor.shape, generator=generator))


@pytest.mark.parametrize("layer", ["stem", "large", "small", "head"])
def test_a_sensitivity_is_the_change_by_noise_that_is_added(layer: str) -> None:
    size = 1e-3

    def in_result(net: Branches, generator: torch.Generator) -> torch.Tensor:
        net.get_submodule(layer).register_forward_hook(lambda _, __, y: noisy(y, generator, size))
        return net(X)  # type: ignore[no-any-return]

    def in_weights(net: Branches, generator: torch.Generator) -> torch.Tensor:
        weights = net.get_submodule(layer).weight
        weights.copy_(noisy(weights, generator, size))  # type: ignore[operator,arg-type]
        return net(X)  # type: ignore[no-any-return]

    _, found = found_in(branches())
    own = found[layer]
    assert own.weights is not None
    # Eight draws of an estimate that has few independent parts here.
    assert own.result == pytest.approx(relative_change(in_result) / size, rel=0.4)
    assert own.weights == pytest.approx(relative_change(in_weights) / size, rel=0.4)


def test_a_large_branch_counts_more_and_noise_in_pixels_averages_out() -> None:
    _, found = found_in(branches())
    assert found["large"].result > 3 * found["small"].result
    assert found["large"].weights > found["large"].result  # type: ignore[operator]
    assert found["head"].result == pytest.approx(1, rel=0.6)


def test_what_has_no_derivative_counts_fully() -> None:
    class Best(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x).argmax(1)  # type: ignore[no-any-return]

    _, found = found_in(Best().eval())
    assert found["conv"] == Sensitivity()


def test_coarse_types_are_candidates_only_if_asked_for() -> None:
    graph, _ = found_in(branches())

    def coarse(**options: bool) -> set[str]:
        lists = _C.find_candidates(graph, **options).by_anchor
        return {
            f"{c.primitive.name} {c.primitive.src}->{c.primitive.dst}"
            for own in lists
            for c in own
            if _C.rounds_coarsely(c.problem, c.primitive)
        }

    assert not coarse()
    assert coarse(coarse_types=True) or not _C.cpu_device().bf16_isa


def test_a_share_has_the_parts_that_a_coarse_type_rounds() -> None:
    graph, _ = found_in(branches())
    tuning = Tuning(graph, _C.find_candidates(graph), {}, TuneSettings())
    places = {node.name: n for n, node in enumerate(graph.nodes)}
    sensitivities = [Sensitivity(0.5, 2.0 if n == places["large"] else None)
                     for n in range(len(graph.nodes))]  # fmt: skip
    limits = Limits.of(tuning).predicting(sensitivities, 1e-2)
    problem = graph.nodes[places["large"]].problem
    assert problem is not None
    own = _C.Primitive("cpu.direct", "nChw16c", "nChw16c")
    half = _C.Primitive("aten.prepacked", "nhwc.bf16", "nhwc.bf16")
    errors = {(problem, p.name, p.src, p.dst): 3e-3 for p in (own, half)}

    def share(primitive: _C.Primitive) -> float:
        return limits._share(errors, [places["large"]], problem, primitive)  # type: ignore[arg-type]

    assert share(own) == pytest.approx(3e-3 * 0.5)
    # A third of the square each: of the input, which its writer has, of the weights, the result.
    assert share(half) == pytest.approx(3e-3 * math.sqrt((2.0**2 + 0.5**2) / 3))


def test_the_error_for_other_inputs_is_told() -> None:
    net, others = branches(), [2 * X[:1], X[1:]]
    fast = torchalgo.optimize(net, X[:1], validation=others, **arguments(budget_s=2.0))
    with torch.no_grad():
        errors = [float((fast(x) - net(x)).norm() / net(x).norm()) for x in others]
    assert fast.plan.validation_error == pytest.approx(max(errors), rel=1e-6)
    assert "validation inputs: relative L2 error at most" in str(fast.plan)
    assert Plan.from_json(fast.plan.to_json()).validation_error == fast.plan.validation_error
    assert torchalgo.optimize(net, X[:1], plan=fast.plan).plan.validation_error is not None


def test_a_plan_with_coarse_types_keeps_its_own_bound_when_it_is_applied() -> None:
    net = branches()
    options = arguments(max_error=1e-2, budget_s=4.0, run_untimed=True, cost_db=False)
    fast = torchalgo.optimize(net, X, overrides={"head": "cpu.linear.wbf16"}, **options)
    assert "cpu.linear.wbf16" in {node.primitive for node in fast.plan.nodes}
    assert fast.plan.rel_error is not None and 1e-5 < fast.plan.rel_error <= 1e-2
    assert fast.plan.max_error == pytest.approx(1e-2, rel=1e-3)
    plan = Plan.from_json(fast.plan.to_json())
    applied = torchalgo.optimize(net, X, plan=plan, **arguments(run_untimed=True))
    with torch.no_grad():
        assert torch.equal(applied(X), fast(X)) or fast.runs != applied.runs
