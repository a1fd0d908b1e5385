# SPDX-License-Identifier: BSD-3-Clause
"""What the import computes ahead: products and sums with constants, branches of one convolution,
and parts of a network that have their channels last."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.graph_models import freeze
from support.random_plans import any_plan, assert_close, rewrite
from torchalgo import _C
from torchalgo._cli.demo import randomize_batch_norms

C = 8


class Net(nn.Module):
    """Layers and constants that the small networks below use."""

    def __init__(self, forward: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = forward
        self.conv = nn.Conv2d(C, C, 3, padding=1)
        self.open = nn.Conv2d(C, C, 3, bias=False)  # without padding
        self.grouped = nn.Conv2d(C, 2 * C, 3, padding=1, groups=4)
        self.depthwise = nn.Conv2d(C, C, 5, padding=2, groups=C, bias=False)
        self.one = nn.Conv2d(C, C, 1)
        self.wide = nn.Conv2d(C, C, (1, 3), padding=(0, 1))
        self.tall = nn.Conv2d(C, C, (3, 1), padding=(1, 0))
        self.dilated = nn.Conv2d(C, C, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(C, 2 * C, 3, stride=2, groups=2)
        self.steps = nn.ModuleList(nn.Conv2d(C, 4, r, 2, r // 2) for r in (1, 3))
        self.norm, self.norm2 = nn.BatchNorm2d(C), nn.BatchNorm2d(C)
        self.linear, self.linear2 = nn.Linear(C, 5), nn.Linear(C, 5, bias=False)
        self.norm3, self.norm4 = nn.BatchNorm1d(C), nn.BatchNorm1d(C)
        self.norm5 = nn.BatchNorm1d(5)
        self.scale = nn.Parameter(torch.rand(1, C, 1, 1) + 0.5)
        self.shift = nn.Parameter(torch.rand(C, 1, 1) - 0.5)
        self.gain = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("mean", torch.rand(1, C, 1, 1))
        self.register_buffer("std", torch.rand(1, C, 1, 1) + 0.5)
        self.register_buffer("row", torch.rand(9))

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def check(
    forward: Callable[[Net, Tensor], Tensor], size: int = 9
) -> tuple[Counter[str], dict[str, str | None]]:
    """Returns how many nodes of each kind are planned (or left: their op), after comparing values.

    Two plans are compared with the model in double precision, on two sizes of the input.
    """
    torch.manual_seed(1)
    model = Net(forward).eval()
    randomize_batch_norms(model)
    x = torch.rand(2, C, size, size) - 0.3
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    for seed in (1, 2):
        module = rewrite(imported, any_plan(imported.graph, seed))
        for inputs in ((x,), (torch.rand(1, C, size, size + 4),)):
            with torch.no_grad():
                assert_close(module(*inputs), model, inputs)
    problems = {node.name: node.problem for node in imported.graph.nodes}
    kinds = Counter(
        node.problem.split("_")[0] if node.problem else node.kind for node in imported.graph.nodes
    )
    return kinds, problems


AFTER: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "number": lambda m, x: m.conv(x) * 0.5 + 1,
    "from a number": lambda m, x: 2 - m.conv(x),
    "rsub with alpha": lambda m, x: torch.rsub(m.conv(x), m.shift, alpha=2),
    "sum with alpha": lambda m, x: torch.add(m.shift, m.conv(x), alpha=-1.5),
    "quotient": lambda m, x: (m.conv(x) - m.mean) / m.std,
    "gain": lambda m, x: m.gain * m.conv(x),
    "no bias": lambda m, x: m.open(x) * m.scale + m.shift,
    "groups": lambda m, x: m.grouped(x) * torch.cat((m.scale, m.std), 1),
    "transposed": lambda m, x: m.up(x) * torch.cat((m.scale, m.std), 1) - 0.25,
    "in place": lambda m, x: m.conv(x).mul_(m.scale).sub_(0.25),
    "expanded": lambda m, x: (y := m.conv(x)) * m.scale.expand_as(y),
    "batch norms": lambda m, x: m.norm2(m.norm(m.conv(x)) * m.gain),
    "integer": lambda m, x: m.conv(x) * 3,
}


@pytest.mark.parametrize("name", AFTER)
def test_a_convolution_takes_the_constants_after_it(name: str) -> None:
    kinds, _ = check(AFTER[name])
    assert kinds == {"bwd" if name == "transposed" else "fwd": 1}


BEFORE: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "scale before padding": lambda m, x: m.conv(x * m.scale * 2),
    "scale before groups": lambda m, x: m.grouped(F.relu(x) / m.std),
    "shift without padding": lambda m, x: m.open((x - m.mean) / m.std),
    "shift before 1x1": lambda m, x: m.one(m.norm(x)),
    "two readers": lambda m, x: torch.cat([m.conv(y := x * m.gain), m.grouped(y)], 1),
    "an image of 0 to 255": lambda m, x: m.open((x * 255 - 123.7) / 58.4),
    "only the mean of such an image": lambda m, x: m.open(x - 123.7),
    "then a small factor": lambda m, x: m.open((x - m.mean) / m.std * 1e-3),
}


@pytest.mark.parametrize("name", BEFORE)
def test_convolutions_take_the_constants_before_them(name: str) -> None:
    kinds, _ = check(BEFORE[name])
    assert not kinds["scaleshift"] and not any(kind.startswith("aten::") for kind in kinds)


HEADS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "batch norm": lambda m, x: m.linear(m.norm3(x.mean((2, 3)))),
    "batch norm behind": lambda m, x: m.norm5(m.linear2(x.mean(-1).mean(-1))) * 2,
    "two of one vector": lambda m, x: (
        (m.linear(m.norm3(y := x.flatten(2).mean(-1))) + m.linear2(m.norm4(y))) / 2
    ),
    "tokens": lambda m, x: m.linear(x.flatten(2).transpose(1, 2).mean(1) / 3 - 0.1),
    "sizes": lambda m, x: m.linear2(x.view(*x.shape[:2], -1).mean(2)) + 1,
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_of_an_image_is_a_pooling_and_a_linear_layer(name: str) -> None:
    kinds, _ = check(HEADS[name])
    assert kinds == {"avgpool": 1, "aten::flatten": 1, "linear": 1}


CANCELLING: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "without padding": lambda m, x: m.open((x - 101325.0) / 10),
    "before 1x1": lambda m, x: m.one((x - 101325.0) / 10),
    "per channel": lambda m, x: m.open((x - torch.full_like(m.mean, 101325.0)) / m.std / 10),
    "then a small factor": lambda m, x: m.open((x - 101325.0) / 10 * 1e-4),
    "then a bias": lambda m, x: m.one(x - 101325.0 + m.shift),
    "a sum": lambda m, x: m.one((x + -101325.0) * 0.1),
    "from a number": lambda m, x: m.one((101325.0 - x) * 0.1),
    "a chain that no convolution reads": lambda m, x: F.relu((x - 101325.0) / 10 * m.scale),
    "a batch norm": lambda m, x: m.one(
        F.batch_norm(x, torch.full_like(m.shift, 101325.0).flatten(), m.std.flatten() * 100)
    ),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_a_difference_of_large_numbers_is_as_exact_as_in_the_model(name: str) -> None:
    torch.manual_seed(1)
    model = Net(CANCELLING[name]).eval()
    x = 101325 + 10 * torch.randn(2, C, 9, 9)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    with torch.no_grad():
        given = model(x).double()
        found = module(x).double()
        exact = copy.deepcopy(model).double()(x.double())
    error, error_of_model = ((y - exact).norm() / exact.norm() for y in (found, given))
    assert error < max(1e-5, 4 * error_of_model)


KEPT: dict[str, tuple[Callable[[Net, Tensor], Tensor], dict[str, int]]] = {
    "a shift before padding": (lambda m, x: m.conv(x + m.shift), {"scaleshift": 1, "fwd": 1}),
    "a chain is one op": (
        lambda m, x: F.relu(m.norm(x * 2 - 1) / m.std),
        {"scaleshift": 1, "relu": 1},
    ),
    "a result with two readers": (
        lambda m, x: (y := m.conv(x)) * m.scale + F.relu(y),
        {"fwd": 1, "scaleshift": 1, "relu": 1, "add": 1},
    ),
    "another reader than convolutions": (
        lambda m, x: m.conv(y := x * m.scale) + F.relu(y),
        {"fwd": 1, "scaleshift": 1, "relu": 1, "add": 1},
    ),
    "numbers along a row": (
        lambda m, x: m.conv(x)[..., :9] * m.row,
        {"fwd": 1, "aten::slice": 1, "aten::mul": 1},
    ),
    "a sum that grows the tensor": (
        lambda m, x: m.conv(x).mean(1, keepdim=True) + m.shift,
        {"fwd": 1, "aten::mean": 1, "aten::add": 1},
    ),
    "a number over a tensor": (
        lambda m, x: 1 / (m.conv(x).abs() + 1),
        {"fwd": 1, "aten::abs": 1, "scaleshift": 2, "aten::reciprocal": 1},
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_products_and_sums_stay(name: str) -> None:
    forward, expected = KEPT[name]
    kinds, _ = check(forward)
    assert +kinds == expected


MERGED: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "3x3 + 1x1": lambda m, x: m.conv(x) + m.one(x),
    "1x1 + 3x3 + batch norm, as in RepVGG": lambda m, x: (
        m.norm(m.one(x)) + m.norm2(m.conv(x)) + m.norm(x)
    ),
    "in place": lambda m, x: m.one(x).add_(m.conv(x)).relu_(),
    "with the tensor itself": lambda m, x: x + m.depthwise(x),
    "groups and a batch norm": lambda m, x: m.norm(x) + m.depthwise(x),
    "1x3 + 1x1": lambda m, x: m.wide(x) + m.one(x),
    "strides": lambda m, x: m.steps[0](x) + m.steps[1](x),  # type: ignore[operator]
    "a difference": lambda m, x: m.conv(x) - m.one(x),
    "RepMixer of FastViT": lambda m, x: x + m.scale * (m.depthwise(x) - m.norm(x)),
    "the tensor less its convolution": lambda m, x: x - m.depthwise(x),
    "scaled": lambda m, x: m.gain * m.conv(x) + m.scale * m.one(x) + 1,
}


@pytest.mark.parametrize("name", MERGED)
def test_a_sum_of_convolutions_of_one_tensor_is_one_convolution(name: str) -> None:
    kinds, _ = check(MERGED[name])
    assert kinds["fwd"] == 1 and not kinds["add"] and not kinds["scaleshift"]


APART: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "no filter holds both": lambda m, x: m.wide(x) + m.tall(x),
    "dilation": lambda m, x: m.conv(x) + m.dilated(x),
    "groups": lambda m, x: m.conv(x) + m.depthwise(x),
    "two readers": lambda m, x: (y := m.conv(x)) + m.one(x) * y,
    "two inputs": lambda m, x: m.conv(x) + m.one(F.relu(x)),
    "alpha": lambda m, x: torch.add(m.conv(x), m.one(x), alpha=2),
    "broadcast": lambda m, x: m.conv(x) + m.one(x[:, :, :1, :1]),
    "changed between": lambda m, x: m.conv(x) + m.one(x[:, :, :4].mul_(2))[:, :, :1],
}


@pytest.mark.parametrize("name", APART)
def test_other_sums_of_convolutions_stay(name: str) -> None:
    forward = APART[name]
    kinds, _ = check(forward if name != "changed between" else lambda m, x: forward(m, x.clone()))
    assert kinds["fwd"] == 2


class ChangedBetween(nn.Module):
    """Changes its input between two convolutions of it. The caller sees this, so it stays."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.one = nn.Conv2d(C, C, 3, padding=1), nn.Conv2d(C, C, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        x.mul_(2)
        return y + self.one(x)


def test_convolutions_of_an_input_that_changes_between_them_stay() -> None:
    model, x = ChangedBetween().eval(), torch.rand(1, C, 5, 6)
    imported = _C.import_graph(freeze(model, (x.clone(),), "script")._c, (x.clone(),))
    module = rewrite(imported, any_plan(imported.graph, 1))
    assert_close(module(x.clone()), model, (x,))


class Last(nn.Module):
    """Layers on tensors that have their channels last."""

    def __init__(self, forward: Callable[[Last, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = forward
        self.conv = nn.Conv2d(C, C, 3, padding=1)
        self.norm = nn.LayerNorm(C)
        self.wide, self.narrow = nn.Linear(C, 3 * C), nn.Linear(2 * C, C)
        self.scale = nn.Parameter(torch.rand(C))
        self.plane = nn.Parameter(torch.rand(1, 1, 1, 2 * C))

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def mamba_out(m: Last, x: Tensor) -> Tensor:
    shortcut = m.conv(x).permute(0, 2, 3, 1)
    gate, inner, image = torch.split(m.wide(m.norm(shortcut)), (2 * C, C // 2, C // 2), dim=-1)
    padded = F.pad(image.permute(0, 3, 1, 2), (0, 0, 0, 0, 0, C // 2))
    image = m.conv(padded).permute(0, 2, 3, 1)
    y = m.narrow(F.gelu(gate) * m.plane) + torch.cat((inner, image[..., C // 2 :]), dim=-1)
    return (m.scale * y + shortcut).permute(0, 3, 1, 2)


def squeezed(m: Last, x: Tensor) -> Tensor:
    y = m.wide(x.permute(0, 2, 3, 1))[..., :C]
    y = y * torch.sigmoid(y.mean((1, 2), keepdim=True))
    return y.permute(0, 3, 1, 2)


def chunks(m: Last, x: Tensor) -> Tensor:
    parts = m.wide(x.permute(0, 2, 3, 1)).chunk(3, -1)
    return torch.cat(parts[1:], -1).permute(0, 3, 1, 2)


def another(m: Last, x: Tensor) -> Tensor:
    other = F.softmax(x, 3).transpose(1, 2).transpose(2, 3)
    return (m.norm(x.permute(0, 2, 3, 1)) + other).permute(0, 3, 1, 2)


def viewed(m: Last, x: Tensor) -> Tensor:
    y = m.wide(x.permute(0, 2, 3, 1))
    return y.view(y.shape[0], -1, 3 * C).sum(1) + y.permute(0, 3, 1, 2).sum((2, 3))


def contiguous(m: Last, x: Tensor) -> Tensor:
    y = m.wide(x.permute(0, 2, 3, 1).contiguous())
    return F.gelu(y).permute(0, 3, 1, 2).contiguous()


LAST: dict[str, tuple[Callable[[Last, Tensor], Tensor], set[str]]] = {
    "MambaOut's block": (mamba_out, {"aten::pad", "aten::constant_pad_nd"}),
    "squeezed": (squeezed, set()),
    "chunks": (chunks, set()),
    "another tensor": (another, {"aten::softmax", "aten::transpose"}),
    "a view needs it last": (
        viewed,
        {"aten::view", "aten::sum", "aten::contiguous", "aten::size", "aten::add"},
    ),
    "made contiguous": (contiguous, {"aten::contiguous"}),
}


@pytest.mark.parametrize("name", LAST)
def test_linear_layers_on_the_last_dimension_are_planned(name: str) -> None:
    forward, left = LAST[name]
    torch.manual_seed(2)
    model = Last(forward).eval()
    x = torch.rand(2, C, 6, 5)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    for seed in (1, 2):
        module = rewrite(imported, any_plan(imported.graph, seed))
        for inputs in ((x,), (torch.rand(1, C, 9, 4),)):
            with torch.no_grad():
                assert_close(module(*inputs), model, inputs)
    opaque = {node.kind for node in imported.graph.nodes if node.problem is None}
    assert opaque - {"aten::permute"} <= left
    assert "aten::linear" not in opaque


def test_a_tensor_changed_in_place_keeps_its_channels_last() -> None:
    def forward(m: Last, x: Tensor) -> Tensor:
        y = m.wide(x.permute(0, 2, 3, 1))
        rows = [y[:, 0], y]
        y[:, :, 1].mul_(2)  # a list holds the tensor, so the change stays in place
        return torch.stack([r.sum() for r in rows]) + y.permute(0, 3, 1, 2).mean()

    model = Last(forward).eval()
    x = torch.rand(1, C, 6, 5)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    with torch.no_grad():
        assert_close(rewrite(imported, any_plan(imported.graph, 1))(x), model, (x,))
