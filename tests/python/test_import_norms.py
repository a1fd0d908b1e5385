# SPDX-License-Identifier: BSD-3-Clause
"""Norms over channels that a model writes down itself are planned as one op."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from support.graph_models import freeze
from support.imported_graphs import import_model
from support.nets import fp64_error, run_plan
from support.random_plans import any_plan, assert_close, rewrite
from torchalgo import _C

C = 12  # channels
SIZES = ((2, 3, 9, 7), (1, 3, 4, 4))

Norm = Callable[[Tensor, Tensor, Tensor], Tensor]


def layer_first(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    return w[:, None, None] * ((x - u) / torch.sqrt(s + 1e-6)) + b[:, None, None]


def layer_of_variance(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    v = x.var(dim=1, unbiased=False, keepdim=True)
    return (x - x.mean(dim=1, keepdim=True)) * torch.rsqrt(1e-5 + v) * w.view(1, -1, 1, 1)


def layer_last(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x.permute(0, 2, 3, 1)
    centered = x - x.mean(-1, keepdim=True)
    x = centered / ((centered * centered).mean(-1, keepdim=True) + 1e-3).sqrt() * w + b
    return x.permute(0, 3, 1, 2)


def rms_first(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    v = torch.mean(x.pow(2), dim=1, keepdim=True)
    return x * torch.rsqrt(v + 1e-6) * w.reshape(1, -1, 1, 1)


def rms_without_weights(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x / torch.sqrt(torch.square(x).mean((1,), keepdim=True) + 1e-6)


def rms_last(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x.permute(0, 2, 3, 1)
    v = torch.mean(x.pow(2), dim=-1).unsqueeze(-1)
    return (x * torch.rsqrt(v + 1e-6) * w).permute(0, 3, 1, 2)


def layer_of_correction(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    v = torch.var(x, dim=1, correction=0, keepdim=True)
    return (x - x.mean(-3, keepdim=True)) / (v + 1e-6).sqrt()


def rms_of_torch(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return nn.functional.rms_norm(x.permute(0, 2, 3, 1), (C,), w).permute(0, 3, 1, 2)


def variance_first(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.rsqrt(x.var(1, keepdim=True) + 1e-6) * w[:, None, None]


def variance_last(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x.permute(0, 2, 3, 1)
    v = torch.var(x, dim=(-1,), keepdim=True)
    return (x * torch.rsqrt(v + 1e-6) * w).permute(0, 3, 1, 2)


NORMS: dict[Norm, str] = {
    layer_first: "layernorm_f32_n2c12h9w7_eps1e-06",
    layer_of_variance: "layernorm_f32_n2c12h9w7_eps1e-05",
    layer_of_correction: "layernorm_f32_n2c12h9w7_eps1e-06",
    layer_last: "layernorm_f32_n2c12h9w7_eps0.001",
    rms_first: "rmsnorm_f32_n2c12h9w7_eps1e-06",
    rms_without_weights: "rmsnorm_f32_n2c12h9w7_eps1e-06",
    rms_last: "rmsnorm_f32_n2c12h9w7_eps1e-06",
    rms_of_torch: "rmsnorm_f32_n2c12h9w7_eps1.1920928955078125e-07",
    variance_first: "variancenorm_f32_n2c12h9w7_eps1e-06",
    variance_last: "variancenorm_f32_n2c12h9w7_eps1e-06",
}


class Net(nn.Module):
    """A norm between two convolutions. Its result is also added, as in a residual network."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.norm = norm
        self.first, self.last = nn.Conv2d(3, C, 3, padding=1), nn.Conv2d(C, C, 1)
        self.weight, self.bias = nn.Parameter(torch.rand(C) + 0.5), nn.Parameter(torch.rand(C))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x + self.last(self.norm(x, self.weight, self.bias))


def planned(model: nn.Module, x: Tensor, capture: str = "trace") -> list[str]:
    nodes = import_model(model, (x,), capture).nodes
    return [node.problem for node in nodes if node.problem and "norm_" in node.problem]


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.__name__)
def test_a_written_norm_is_one_planned_op(norm: Norm) -> None:
    model, x = Net(norm).eval(), torch.randn(SIZES[0])
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    assert [node.problem.partition("_")[0] for node in imported.graph.nodes if node.problem] == [
        "fwd", NORMS[norm].partition("_")[0], "fwd", "add",
    ]  # fmt: skip
    assert planned(model, x) == [NORMS[norm]]
    assert all(node.problem for node in imported.graph.nodes)
    for seed in range(3):
        module = rewrite(imported, any_plan(imported.graph, seed))
        for sizes in SIZES:
            for given in (torch.randn(sizes), 100 + torch.randn(sizes)):
                with torch.no_grad():
                    assert_close(module(given), model, (given,))


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.bfloat16, 0.05), (torch.float16, 0.01)]
)
def test_norms_of_other_types_are_planned(dtype: torch.dtype, bound: float) -> None:
    for norm in (layer_first, rms_first, rms_of_torch, variance_last):
        model, x = Net(norm).eval().to(dtype), torch.randn(SIZES[0]).to(dtype)
        imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
        assert any(node.problem and "norm_" in node.problem for node in imported.graph.nodes)
        with torch.no_grad():
            result = rewrite(imported, any_plan(imported.graph, 2))(x)
            expected = copy.deepcopy(model).double()(x.double())
        assert result.dtype == dtype
        assert float((result - expected).norm() / expected.norm()) <= bound


class Signals(nn.Module):
    """Norms of a signal [n, c, w], one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Conv1d(3, C, 3), nn.Conv1d(C, C, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)
        x = x * torch.rsqrt(x.var(1, keepdim=True) + 1e-6)
        return self.last(x)


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_norms_of_signals_are_planned_also_in_a_row(capture: str) -> None:
    model, x = Signals().eval(), torch.randn(1, 3, 9)
    assert planned(model, x, capture) == [
        "rmsnorm_f32_n1c12h1w7_eps1e-06", "variancenorm_f32_n1c12h1w7_eps1e-06",
    ]  # fmt: skip
    assert fp64_error(model, run_plan(model, x), x) <= 1e-5


def test_tokens_have_norms_too() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mlp = nn.Conv2d(3, C, 2, stride=2), nn.Linear(C, C)
            self.norm = nn.RMSNorm(C, eps=1e-6)

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x).flatten(2).transpose(1, 2)
            return x + self.mlp(self.norm(x))

    model, x = Tokens().eval(), torch.randn(1, 3, 8, 8)
    assert planned(model, x) == ["rmsnorm_f32_n1c12h1w16_eps1e-06"]
    assert fp64_error(model, run_plan(model, x), x) <= 1e-5


# ---- what only looks like a norm -----------------------------------------------------------------


def over_rows(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(2, keepdim=True) + 1e-6)


def over_pixels(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean((1, 2), keepdim=True) + 1e-6)


def biased_variance(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.rsqrt(x.var(1, unbiased=False, keepdim=True) + 1e-6)


def of_another_tensor(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.rsqrt((2 * x).sigmoid().pow(2).mean(1, keepdim=True) + 1e-6)


def other_center(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centered = x - x.mean(3, keepdim=True)
    return centered / torch.sqrt(x.var(1, unbiased=False, keepdim=True) + 1e-6)


def cubed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.rsqrt(x.abs().pow(3).mean(1, keepdim=True) + 1e-6)


def large_epsilon(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 2)


def weights_of_pixels(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Only the norm is planned: these constants do not belong to channels."""
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * w[:7] * w[:9, None]


LOOK_ALIKES: dict[Norm, int] = {
    over_rows: 0, over_pixels: 0, biased_variance: 0, of_another_tensor: 0, other_center: 0,
    cubed: 0, large_epsilon: 0, weights_of_pixels: 1,
}  # fmt: skip


@pytest.mark.parametrize("norm", LOOK_ALIKES, ids=lambda norm: norm.__name__)
def test_other_quotients_stay_as_they_are(norm: Norm) -> None:
    model, x = Net(norm).eval(), torch.randn(SIZES[0])
    assert len(planned(model, x)) == LOOK_ALIKES[norm]
    assert fp64_error(model, run_plan(model, x), x) <= 1e-5


def changed_input(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    rows = x[:, :, :2]
    root = torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)
    rows += 1
    return x * root


def changed_center(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centered = x - x.mean(1, keepdim=True)
    v = centered.pow(2).mean(1, keepdim=True)
    rows = centered[:, :, :2]
    rows += 1
    return centered / torch.sqrt(v + 1e-6)


def changed_square(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    square = x.pow(2)
    square[:, 0] = 0
    return x * torch.rsqrt(square.mean(1, keepdim=True) + 1e-6)


def changed_mean(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    v = x.pow(2).mean(1, keepdim=True)
    v[:, :, :2] = 1.0
    return x * torch.rsqrt(v + 1e-6)


def changed_sum(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    v = x.pow(2).mean(1, keepdim=True) + 1e-6
    v[:, :, :2] *= 4
    return x * torch.rsqrt(v)


@pytest.mark.parametrize(
    "norm", [changed_input, changed_center, changed_square, changed_mean, changed_sum],
    ids=lambda norm: norm.__name__,
)  # fmt: skip
def test_a_change_in_place_between_the_ops_is_seen(norm: Norm) -> None:
    model, x = Net(norm).eval(), torch.randn(SIZES[0])
    assert planned(model, x) == []
    assert fp64_error(model, run_plan(model, x), x) <= 1e-5


class Numbers(nn.Module):
    """A script computes with integers what looks like a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, C, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = x / math.sqrt(x.size(1) + x.size(2))
        return (x.size(2) - 1) * torch.rsqrt(x.var(1, keepdim=True) + 1e-6)


def test_integers_are_no_norms() -> None:
    model, x = Numbers().eval(), torch.randn(SIZES[0])
    assert planned(model, x, "script") == []
    assert fp64_error(model, run_plan(torch.jit.script(model), x), x) <= 1e-5


def test_a_view_of_a_norm_keeps_the_strides_that_it_needs() -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, C, 1), nn.RMSNorm(C)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x).permute(0, 2, 3, 1)).view(-1)

    model, x = Viewed().eval(), torch.randn(SIZES[0])
    assert fp64_error(model, run_plan(model, x), x) <= 1e-5


def test_without_weights_a_norm_keeps_any_number_of_channels() -> None:
    class Free(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.conv(x).mean() + y / torch.sqrt(y.pow(2).mean(1, keepdim=True) + 1e-6)

    model, x = Free().eval(), torch.randn(1, 1, 8, 8)
    given = (x, torch.randn(1, 5, 4, 4))
    imported = _C.import_graph(freeze(model, given, "trace")._c, given)
    module, y = rewrite(imported, any_plan(imported.graph, 1)), torch.randn(1, 6, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(module(x, y), model(x, y), rtol=1e-5, atol=1e-5)


def test_the_op_refuses_an_unknown_kind() -> None:
    ones = torch.ones(3)
    with pytest.raises(RuntimeError, match=r'TA4303 .* expected layer, rms or variance, .*"l2"'):
        torch.ops.torchalgo.channel_norm(torch.rand(1, 3, 2, 2), "l2", ones, ones, 1e-6, 1)


@pytest.mark.parametrize("kind", ["layer", "rms", "variance"])
def test_the_op_has_derivatives_and_the_models_strides(kind: str) -> None:
    for x in (torch.randn(2, 3, 4, 5), torch.randn(2, 4, 5, 3).permute(0, 3, 1, 2)):
        x = x.double().requires_grad_()
        w, b = torch.rand(3, dtype=torch.double), torch.rand(3, dtype=torch.double)

        def run(x: Tensor, w: Tensor = w, b: Tensor = b) -> Tensor:
            return torch.ops.torchalgo.channel_norm(x, kind, w, b, 1e-3, 1)

        assert torch.autograd.gradcheck(run, (x,))
        assert run(x).stride() == x.stride()
