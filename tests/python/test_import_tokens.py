# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers, norms, activations and sums of tokens [n, t, c] are planned as images."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.graph_models import freeze
from support.imported_graphs import import_model
from support.nets import fp64_error, run_plan
from support.random_plans import any_plan, assert_close, rewrite
from support.token_nets import NETS, Gated, ReturnsTokens
from torchalgo import _C
from torchalgo.verify.check_plan import check_plan

SIZES = ((2, 8, 4, 6), (1, 8, 8, 4))
# Ops that the planner knows, and that may not be left to torch in these networks.
KNOWN = {"linear", "layer_norm", "gelu", "silu", "hardswish", "batch_norm", "conv2d"}
# How many sums and products are left: those of attention, and with constants for each token.
SUMS_LEFT = {"CrossCovariance": 2, "PartsOfTokens": 1}


def build(name: str) -> nn.Module:
    torch.manual_seed(5)
    return NETS[name]().eval()


def left_of(model: nn.Module, x: Tensor) -> Counter[str]:
    nodes = import_model(model, (x,), "trace").nodes
    return Counter(node.kind.split("::")[1] for node in nodes if node.problem is None)


@pytest.mark.parametrize("name", NETS)
def test_values_sizes_and_types_are_the_models_at_both_sizes(name: str) -> None:
    model, x = build(name), torch.rand(SIZES[0])
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    for seed in (1, 2):
        module = rewrite(imported, any_plan(imported.graph, seed))
        for sizes in SIZES:
            image = torch.rand(sizes)
            for given in (image, image.contiguous(memory_format=torch.channels_last)):
                with torch.no_grad():
                    assert_close(module(given), model, (given,))


@pytest.mark.parametrize("name", [name for name in NETS if name != "ChangedTokens"])
def test_layers_of_tokens_are_planned(name: str) -> None:
    left = left_of(build(name), torch.rand(SIZES[0]))
    assert not KNOWN & set(left), left
    sums = left["add"] + left["mul"] + left["div"] + left["sub"]
    assert sums == SUMS_LEFT.get(name, 0), left


def test_layers_of_tokens_that_change_in_place_stay() -> None:
    left = left_of(build("ChangedTokens"), torch.rand(SIZES[0]))
    assert left["linear"] == 2  # those that read the tokens; not the ones behind them


def test_only_views_lie_between_attention_and_the_layers_around_it() -> None:
    """In nhwc, an image has the memory of tokens: a plan whose layers write nhwc copies nothing."""
    model, x = build("Vit"), torch.rand(1, 8, 8, 8)
    graph = import_model(model, (x,), "trace")
    permutes = [line for line in graph.to_text().split("\n") if "aten::permute" in line]
    layouts = Counter(line.split("\t")[5] for line in permutes)
    # The embedding is read once. Each attention takes tokens once and gives them back once.
    assert layouts["nhwc->nchw"] == 4
    assert layouts["nchw->nhwc"] == 3


def test_the_caller_gets_tokens_in_the_models_memory() -> None:
    model, x = ReturnsTokens().eval(), torch.rand(2, 8, 4, 6)
    fast = run_plan(model, x)
    for got, expected in zip(fast(x), model(x), strict=True):
        assert got.is_contiguous() == expected.is_contiguous()
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_written_graph_keeps_the_layouts_of_views() -> None:
    graph = import_model(build("CrossCovariance"), (torch.rand(SIZES[0]),), "trace")
    again = _C.parse_graph(graph.to_text())
    assert again.to_text() == graph.to_text()
    assert again.structure_hash == graph.structure_hash
    assert graph.structure_hash_of(2) != graph.structure_hash


@pytest.mark.parametrize("name", ["Vit", "CrossCovariance", "BackToAnImage"])
def test_the_checker_of_plans_knows_the_layouts_of_views(name: str) -> None:
    model, x = build(name), torch.rand(SIZES[0])
    fast = run_plan(model, x)
    check_plan(fast.plan.with_proof())
    for sizes in SIZES:
        assert fp64_error(model, fast, torch.rand(sizes)) <= 1e-5


# ---- branches on sizes ---------------------------------------------------------------------------


class Resized(nn.Module):
    """Odd images are resized first, as MobileViT does. Tracing would fix this."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 1), nn.GroupNorm(2, 8)
        self.tokens = Gated()

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        is_odd = False
        if h % 2 != 0 or w % 2 != 0:
            x = nn.functional.interpolate(x, size=(h + h % 2, w + w % 2), mode="bilinear")
            is_odd = True
        x = self.norm(self.conv(x))
        if is_odd:
            x = x[:, :, :h, :w]
        return x + 1 if is_odd else self.tokens(x)


class Cropped(Resized):
    """The result of an upsampling is cut to the size of the input, as CPUBone does."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        y = nn.functional.pad(x, (0, w % 2, 0, h % 2)) if h % 2 != 0 or w % 2 != 0 else x
        y = self.up(nn.functional.max_pool2d(self.conv(y), 2))
        return x + y[..., :h, :w]


def test_a_crop_that_takes_everything_is_checked_and_removed() -> None:
    model, x = Cropped().eval(), torch.rand(1, 8, 4, 6)
    imported = _C.import_graph(freeze(model, (x,), "script")._c, (x,))
    assert not any(node.kind == "aten::slice" for node in imported.graph.nodes)
    module = rewrite(imported, any_plan(imported.graph, 1))
    for sizes in ((1, 8, 4, 6), (2, 8, 6, 2)):
        given = torch.rand(sizes)
        with torch.no_grad():
            assert_close(module(given), model, (given,))
    fast = run_plan(model, x)
    with pytest.warns(UserWarning, match="the original model ran"):
        assert fp64_error(model, fast, torch.rand(1, 8, 5, 6)) <= 1e-5


def kinds_of(module: Any) -> Counter[str]:
    return Counter(node.kind() for node in module.graph.nodes())


def test_branches_on_sizes_are_resolved_and_checked() -> None:
    model, x = Resized().eval(), torch.rand(1, 8, 4, 6)
    imported = _C.import_graph(freeze(model, (x,), "script")._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    assert not {"prim::If", "prim::Loop"} & set(kinds_of(module))
    with torch.no_grad():
        assert_close(module(x), model, (x,))
        other = torch.rand(3, 8, 6, 2)
        assert_close(module(other), model, (other,))
        for odd in ((1, 8, 5, 6), (1, 8, 4, 7)):
            with pytest.raises(RuntimeError, match="another branch"):
                module(torch.rand(odd))


def test_a_call_that_takes_another_branch_runs_the_model() -> None:
    model, x = Resized().eval(), torch.rand(1, 8, 4, 6)
    fast = run_plan(model, x)
    assert fast.runs == "plan"
    (planned,) = [child for _, child in fast.scripted.named_children()] or [fast.scripted]
    assert not kinds_of(planned)["prim::If"]
    assert all(dim.least == dim.most for dim in fast.plan.inputs[0].dims)
    for sizes in ((1, 8, 4, 6), (2, 8, 8, 4)):
        assert fp64_error(model, fast, torch.rand(sizes)) <= 1e-5
    with pytest.warns(UserWarning, match="the original model ran"):
        assert fp64_error(model, fast, torch.rand(1, 8, 5, 6)) <= 1e-5
    assert sum(fast.original_runs.values()) == 1


class OtherBatch(nn.Module):
    """Tokens become one image, however many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(8, 8), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.linear(x).transpose(1, 2).reshape(1, 8, 2, -1))


def test_tokens_that_become_images_of_another_batch_are_no_images() -> None:
    model, x = OtherBatch().eval(), torch.rand(1, 6, 8)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    for batch in (1, 2):
        given = torch.rand(batch, 6, 8)
        with torch.no_grad():
            assert_close(module(given), model, (given,))


class NormedRows(nn.Module):
    """LeViT's norm of tokens, behind which a view needs dense memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.conv(x).flatten(2).transpose(1, 2)
        return self.norm(tokens.flatten(0, 1)).reshape_as(tokens).view(x.shape[0], -1)


def test_normed_tokens_are_dense() -> None:
    model, x = NormedRows().eval(), torch.rand(2, 8, 4, 6)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    with torch.no_grad():
        assert_close(module(x), model, (x,))


class Selects(nn.Module):
    """A branch, and a crop, on a size that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        keep = torch.nonzero(x[:, 0, 0, 0] > 0).flatten()
        if keep.numel() == 0:
            return self.other(y) * 0
        return self.other(y)[keep]


def test_branches_on_sizes_that_depend_on_values_stay() -> None:
    model, x = Selects().eval(), torch.rand(2, 3, 16, 16) + 0.1
    imported = _C.import_graph(freeze(model, (x,), "script")._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    for given in (x, -x):
        with torch.no_grad():
            assert_close(module(given), model, (given,))


class RefusesSmall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.size(2) < 4:
            raise ValueError("too small")
        return self.conv(x)


def test_a_branch_that_raises_pins_no_size() -> None:
    scripted = torch.jit.script(RefusesSmall().eval())
    fast = run_plan(scripted, torch.rand(1, 8, 4, 6))
    assert any(dim.name for dim in fast.plan.inputs[0].dims)
    with pytest.raises(RuntimeError):
        fast.scripted(torch.rand(1, 8, 3, 6))


class OnValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if int(x.sum()) > 10 * x.size(0):
            y = y + 1
        return y


def test_a_branch_on_values_stays() -> None:
    model, x = OnValues().eval(), torch.rand(1, 8, 4, 6)
    imported = _C.import_graph(freeze(model, (x,), "script")._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    assert kinds_of(module)["prim::If"] == 1
    for given in (x, x * 0, x * 100):
        with torch.no_grad():
            assert_close(module(given), model, (given,))
