# SPDX-License-Identifier: BSD-3-Clause
"""Attention becomes one op, which computes what PyTorch's ops do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from support.graph_models import freeze
from support.nets import fp64_error
from support.random_plans import any_plan, assert_close, rewrite
from torchalgo import _C

attention = torch.ops.torchalgo.attention
linear_attention = torch.ops.torchalgo.linear_attention


def expected(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    scores = q @ k.transpose(-2, -1) * scale
    return (scores if bias is None else scores + bias).softmax(-1) @ v


@pytest.mark.parametrize("shape", [(2, 3), (4,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_op_equals_pytorchs_ops(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    q, k = torch.randn(*shape, 9, 8, dtype=dtype), torch.randn(*shape, 21, 8, dtype=dtype)
    v = torch.randn(*shape, 21, 5, dtype=dtype)
    rank = q.dim()
    orders = [list(range(rank)), [*range(rank - 2), rank - 1, rank - 2]]
    for bias in (None, torch.randn(9, 21, dtype=dtype), torch.randn(*shape, 1, 21, dtype=dtype)):
        for order in orders:
            found = attention(q, k, v, bias, 0.3, order)
            torch.testing.assert_close(found, expected(q, k, v, bias, 0.3))
            assert found.permute(order).is_contiguous()
    default = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(attention(q, k, v, None, None, orders[0]), default)


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("change", [torch._neg_view, Tensor.double, lambda t: t.mT.contiguous().mT])
def test_the_op_reads_each_operand_as_it_is(part: int, change: Callable[[Tensor], Tensor]) -> None:
    """A negative view has other numbers in its memory than its elements."""
    operands = [torch.randn(1, 2, 5, 4) for _ in range(3)]
    if change is Tensor.double:  # PyTorch takes no two types at once
        operands = [change(operand) for operand in operands]
    operands[part] = change(operands[part])
    with torch.no_grad():
        found = attention(*operands, None, 0.5, [0, 2, 1, 3])
        torch.testing.assert_close(found, expected(*operands, None, 0.5))


def test_the_op_has_gradients() -> None:
    q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))
    order = [0, 2, 1, 3]
    found = torch.autograd.grad(attention(q, k, v, None, 0.5, order).square().sum(), (q, k, v))
    wanted = torch.autograd.grad(expected(q, k, v, None, 0.5).square().sum(), (q, k, v))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(
            attention(q, k, v, None, 0.5, order), expected(q, k, v, None, 0.5)
        )


def test_the_op_runs_on_meta_tensors_and_under_autocast() -> None:
    q = torch.randn(1, 2, 6, 4)
    order = [0, 2, 1, 3]
    result = attention(*(q.to("meta") for _ in range(3)), None, 1.0, order)
    assert result.shape == q.shape and result.permute(order).is_contiguous()
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q, q, q, None, 1.0, order).dtype == expected(q, q, q).dtype


def test_a_wrong_order_is_refused() -> None:
    q = torch.randn(1, 2, 6, 4)
    with pytest.raises(RuntimeError, match="each of its dimensions once"):
        attention(q, q, q, None, 1.0, [0, 1, 2])
    with pytest.raises(RuntimeError, match="each of its dimensions once"):
        attention(q, q, q, None, 1.0, [0, 1, 2, 2])
    with pytest.raises(RuntimeError, match="expected a bias of rank 4 or less, got 5"):
        attention(q, q, q, torch.zeros(1, 1, 1, 1, 6), 1.0, [0, 1, 2, 3])


def expected_linear(q: Tensor, k: Tensor, v: Tensor, epsilon: float) -> Tensor:
    ones = torch.nn.functional.pad(v, (0, 1), value=1.0)
    sums = q.relu() @ (k.relu().transpose(-2, -1) @ ones)
    return sums[..., :-1] / (sums[..., -1:] + epsilon)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_attention_equals_pytorchs_ops(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    for shape, order in (((2, 3), [0, 1, 3, 2]), ((2, 3), [0, 2, 1, 3]), ((4,), [0, 1, 2])):
        q, k = torch.randn(*shape, 9, 8, dtype=dtype), torch.randn(*shape, 21, 8, dtype=dtype)
        v = torch.randn(*shape, 21, 5, dtype=dtype)
        found = linear_attention(q, k, v, 0.1, order)
        torch.testing.assert_close(found, expected_linear(q, k, v, 0.1))
        assert found.permute(order).is_contiguous()
        on_meta = linear_attention(*(x.to("meta") for x in (q, k, v)), 0.1, order)
        assert on_meta.shape == found.shape and on_meta.permute(order).is_contiguous()
    with torch.autocast("cpu", torch.bfloat16):
        half = linear_attention(q.float(), k.float(), v.float(), 0.1, order)
        assert half.dtype == expected_linear(q.float(), k.float(), v.float(), 0.1).dtype
    with pytest.raises(RuntimeError, match=r"linear_attention: the order .* dimensions once"):
        linear_attention(q, k, v, 0.1, [0, 0, 1])


def test_linear_attention_has_gradients() -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))
    found = linear_attention(q, k, v, 0.1, [0, 1, 2, 3]).square().sum()
    wanted = expected_linear(q, k, v, 0.1).square().sum()
    for a, b in zip(
        torch.autograd.grad(found, (q, k, v)), torch.autograd.grad(wanted, (q, k, v)), strict=True
    ):
        torch.testing.assert_close(a, b)


class Attention(nn.Module):
    """A convolution that makes queries, keys and values, and an attention of some spelling."""

    def __init__(self, attend: Callable[[Attention, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(6, 36, 1)
        self.proj = nn.Conv2d(12, 6, 1)
        self.biases = nn.Parameter(torch.randn(2, 20, 20))
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q, k, v = self.qkv(x).view(b, 2, -1, h * w).split([6, 6, 6], dim=2)
        return self.proj(self.attend(self, q, k, v).reshape(b, 12, h, w))


def by_channel(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q.transpose(-2, -1) @ k) * 0.25 + m.biases
    return v @ weights.softmax(dim=-1).transpose(-2, -1)


def by_token(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.permute(0, 1, 3, 2) for x in (q, k, v))
    weights = (q @ k.transpose(-2, -1)) / 4
    return (weights.softmax(dim=3) @ v).transpose(1, 2).flatten(2).transpose(1, 2)


def scaled_query(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(m.biases + torch.matmul(0.5 * q.transpose(2, 3), k), -1)
    return torch.matmul(weights, v.transpose(2, 3)).permute(0, 1, 3, 2)


def fused(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(-2, -1) for x in (q, k, v))
    x = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m.biases)
    return x.transpose(1, 2).reshape(x.shape[0], 20, 12).transpose(1, 2)


def one_head(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(1, 2) for x in (q, k, v))
    return v @ (q.transpose(-2, -1) @ k * 0.3).softmax(dim=-1).transpose(-2, -1)


def changed_before(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = q.transpose(-2, -1) @ k
    weights *= 0.25
    weights += m.biases
    return v @ weights.softmax(dim=-1).transpose(-2, -1)


def bias_is_scaled(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q.transpose(-2, -1) @ k + m.biases) * 0.25
    return v @ weights.softmax(dim=-1).transpose(-2, -1)


def over_queries(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q.transpose(-2, -1) @ k).softmax(dim=-2)
    return v @ weights.transpose(-2, -1)


def weights_read_again(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q.transpose(-2, -1) @ k).softmax(dim=-1)
    return v @ weights.transpose(-2, -1) * weights.amax()


def values_are_changed(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    found = v @ (q.transpose(-2, -1) @ k).softmax(dim=-1).transpose(-2, -1)
    v[:, :, 0] += 1
    return found * v


def causal(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(-2, -1) for x in (q, k, v))
    x = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x.transpose(-2, -1)


def temperatures(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q.transpose(-2, -1) @ k) * m.biases[:, :1, :1]
    return v @ weights.softmax(dim=-1).transpose(-2, -1)


def returned(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(-2, -1) for x in (q, k, v))
    x = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return x.transpose(1, 2).contiguous().view(x.shape[0], 20, 12).transpose(1, 2)


def bias_of_higher_rank(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(1, 2) for x in (q, k, v))
    weights = q.transpose(-2, -1) @ k + m.biases[None]
    return (weights.softmax(dim=-1) @ v[:, None].transpose(-2, -1)).sum(1).transpose(-2, -1)


FUSED = [by_channel, by_token, scaled_query, one_head, changed_before]
FUSED_IN_F32 = [fused, returned]
NOT_FUSED = [bias_is_scaled, over_queries, weights_read_again, values_are_changed, causal]
NOT_FUSED += [temperatures, bias_of_higher_rank]


def fusions_of(graph: _C.Graph) -> int:
    return sum(node.kind == "torchalgo::attention" for node in graph.nodes)


@pytest.mark.parametrize("attend", [*FUSED, *FUSED_IN_F32, *NOT_FUSED])
def test_attention_is_found_and_equals_the_model(
    attend: Callable[[Attention, Tensor, Tensor, Tensor], Tensor],
) -> None:
    torch.manual_seed(2)
    model = Attention(attend).eval().double()
    x = torch.randn(2, 6, 4, 5, dtype=torch.double)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    assert fusions_of(imported.graph) == (attend in FUSED)
    for seed in (1, 2):
        module = rewrite(imported, any_plan(imported.graph, seed))
        for given in (x, x.flip(0).mul(3)):
            with torch.no_grad():
                assert_close(module(given), model, (given,))


@pytest.mark.parametrize("attend", [by_channel, *FUSED_IN_F32])
def test_attention_in_f32_runs_in_our_kernel(
    attend: Callable[[Attention, Tensor, Tensor, Tensor], Tensor],
) -> None:
    torch.manual_seed(3)
    model = Attention(attend).eval()
    x = torch.randn(1, 6, 4, 5)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    assert fusions_of(imported.graph) == 1
    module = rewrite(imported, any_plan(imported.graph, 1))
    with torch.no_grad():
        assert_close(module(x), model, (x,))


@pytest.mark.parametrize("name", ["cpu.attention", "aten.attention"])
def test_an_override_chooses_the_primitive_of_an_attention(name: str) -> None:
    torch.manual_seed(3)
    model, x = Attention(by_channel).eval(), torch.randn(1, 6, 4, 5)
    settings = torchalgo.Settings(progress=False)
    tuned = torchalgo.optimize(model, x, overrides={"attention*": name}, settings=settings)
    plan = dataclasses.replace(tuned.plan, guard=None)  # it may be slower on a busy machine
    fast = torchalgo.optimize(model, x, plan=plan, settings=settings)
    (node,) = [node for node in fast.plan.nodes if node.problem.startswith("attention_")]
    assert node.problem == "attention_f32_n1h2q20k20d6w6_bias2x20x20_scale0.25"
    assert (node.primitive, node.src, node.dst) == (name, "nchw", "nchw")
    assert node.ticks > 0
    # The op has the name. Otherwise it would run our kernel, whatever the plan says.
    code: Any = fast.scripted.inlined_graph
    (op,) = code.findAllNodes("torchalgo::attention")
    assert op.namedInput("primitive").toIValue() == name
    torchalgo.check_plan(tuned.plan.with_proof())
    assert fp64_error(model, fast, x) <= 1e-5
    assert fp64_error(model, fast, torch.randn(3, 6, 4, 5)) <= 1e-5


def test_the_op_runs_the_primitive_that_it_is_given() -> None:
    """The results of ours and of PyTorch's differ in some bits."""
    torch.manual_seed(4)
    q, k, v = (
        torch.randn(1, 2, 60, 16).transpose(1, 2).contiguous().transpose(1, 2) for _ in "qkv"
    )
    order = [0, 2, 1, 3]
    own = attention(q, k, v, None, 0.5, order)
    assert torch.equal(attention(q, k, v, None, 0.5, order, "cpu.attention"), own)
    theirs = expected(q, k, v, None, 0.5)
    found = attention(q, k, v, None, 0.5, order, "aten.attention")
    assert torch.equal(found, theirs) and not torch.equal(own, theirs)
    assert found.permute(order).is_contiguous()
    _C.reset_fallbacks()
    again = attention(q, k, v, None, 0.5, order, "cpu.gone")
    torch.testing.assert_close(again, own)
    ((problem, (_, reason)),) = torchalgo.fallbacks().items()
    assert problem == "attention_f32_n1h2q60k60d16w16_scale0.5"
    assert reason == "this build has no cpu.gone"
    _C.reset_fallbacks()


# Linear attention: relu(q) (relu(k)^T [v, 1]), divided by its last column.


def with_linear(
    m: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    of_keys: Callable[[Tensor], Tensor] = torch.relu,
    ones: tuple[tuple[int, int], float] = ((0, 1), 1.0),
    last: int = -1,
) -> Tensor:
    q, k, v = (x.transpose(-2, -1) for x in (q, k, v))
    v = torch.nn.functional.pad(v, ones[0], value=ones[1])
    sums = torch.relu(q) @ (of_keys(k).transpose(-2, -1) @ v)
    return (sums[..., :-1] / (sums[..., last:][..., :1] + 1e-5)).transpose(-2, -1)


def as_efficientvit(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(-2, -1) for x in (q, k, v))
    q, k = torch.relu(q), torch.relu(k)
    v = torch.nn.functional.pad(v, (0, 1), mode="constant", value=1.0)
    dtype = v.dtype
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    sums = q @ (k.transpose(-1, -2) @ v)
    return (sums[..., :-1] / (sums[..., -1:] + 1e-5)).to(dtype).transpose(-2, -1)


def keys_by_channel(m: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    v = torch.nn.functional.pad(v.transpose(-2, -1), (0, 1), value=1.0)
    sums = torch.relu(q.transpose(-2, -1)) @ (torch.relu(k) @ v)
    return (sums[..., :-1] / (sums[..., -1:] + 1e-5)).transpose(-2, -1)


LINEAR = [as_efficientvit, keys_by_channel]
NOT_LINEAR = [
    lambda m, q, k, v: with_linear(m, q, k, v, of_keys=torch.sigmoid),
    lambda m, q, k, v: with_linear(m, q, k, v, ones=((0, 1), 2.0)),
    lambda m, q, k, v: with_linear(m, q, k, v, ones=((1, 0), 1.0)),
    lambda m, q, k, v: with_linear(m, q, k, v, last=-2),
]


@pytest.mark.parametrize("attend", [*LINEAR, *NOT_LINEAR])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_attention_is_found_and_equals_the_model(
    attend: Callable[[Attention, Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype
) -> None:
    torch.manual_seed(2)
    model = Attention(attend).eval().to(dtype)
    x = torch.randn(2, 6, 4, 5, dtype=dtype)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    kinds = [node.kind for node in imported.graph.nodes]
    assert kinds.count("torchalgo::linear_attention") == (attend in LINEAR), kinds
    if attend is as_efficientvit:
        assert "aten::to" not in kinds
    module = rewrite(imported, any_plan(imported.graph, 1))
    for given in (x, x.flip(0).mul(3)):
        with torch.no_grad():
            assert_close(module(given), model, (given,))


class Viewed(nn.Module):
    """A view that needs the strides in which PyTorch's attention writes its result."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return o.transpose(1, 2).view(n, t, -1)


def test_a_result_whose_strides_are_needed_stays_pytorchs() -> None:
    torch.manual_seed(5)
    model, x = Viewed().eval(), torch.randn(2, 6, 8)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    with torch.no_grad():
        assert_close(module(x), model, (x,))
    assert fusions_of(imported.graph) == 0


class Masked(nn.Module):
    """An attention with a mask that is an input, or a constant that hides all keys of a query."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.mask = mask

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
        given = mask if self.mask is None else self.mask
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=given)
        return o.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("is_constant", [False, True])
def test_a_query_without_keys_is_pytorchs(is_constant: bool) -> None:
    torch.manual_seed(4)
    hidden = torch.zeros(6, 6)
    hidden[2] = -torch.inf
    model = Masked(hidden if is_constant else None).eval()
    x, mask = torch.randn(2, 6, 8), torch.zeros(6, 6)
    imported = _C.import_graph(freeze(model, (x, mask), "trace")._c, (x, mask))
    module = rewrite(imported, any_plan(imported.graph, 1))
    with torch.no_grad():
        assert_close(module(x, hidden), model, (x, hidden))
    assert fusions_of(imported.graph) == 0
