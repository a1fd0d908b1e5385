# SPDX-License-Identifier: BSD-3-Clause
"""Attention over stacks of images is planned image by image and computes what the model does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from support.graph_models import freeze
from support.imported_graphs import import_model
from support.random_plans import any_plan, assert_close, rewrite
from torchalgo import _C


class Branches(nn.Module):
    """Images of one shape, and the logits of an attention over them."""

    def __init__(self, count: int, bias: bool = True) -> None:
        super().__init__()
        self.count = count
        self.paths = nn.ModuleList(
            nn.Conv2d(8, 8, 3, padding=1 + i, dilation=1 + i) for i in range(count)
        )
        self.reduce = nn.Conv2d(8, 4, 1)
        self.select = nn.Conv2d(4, 8 * count, 1, bias=bias)

    def logits(self, x: Tensor) -> Tensor:
        return self.select(self.reduce(x.mean((2, 3), keepdim=True)).relu())


class SelectiveKernel(Branches):
    def forward(self, x: Tensor) -> Tensor:
        images = torch.stack([path(x) for path in self.paths], dim=1)
        logits = self.logits(images.sum(1))
        b, c, h, w = logits.shape
        attention = logits.view(b, self.count, c // self.count, h, w).softmax(dim=1)
        return torch.sum(images * attention, dim=1)


class SplitAttention(Branches):
    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.conv = nn.Conv2d(8, 8 * count, 3, padding=1, groups=count)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu()
        b, rc, h, w = x.shape
        x = x.reshape((b, self.count, rc // self.count, h, w))
        logits = self.logits(x.sum(dim=1))
        attention = logits.view(logits.size(0), 1, self.count, -1).transpose(1, 2).softmax(dim=1)
        attention = attention.reshape(logits.size(0), -1).view(b, -1, 1, 1)
        out = (x * attention.reshape((b, self.count, rc // self.count, 1, 1))).sum(dim=1)
        return self.paths[0](out.contiguous())


class LinearSelection(nn.Module):
    """One linear layer per image, images stacked in front of the batch."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.paths = nn.ModuleList(nn.Conv2d(8, 8, 1 + 2 * i, padding=i) for i in range(count))
        self.reduce = nn.Linear(8, 4)
        self.select = nn.ModuleList(nn.Linear(4, 8) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        b, c = x.shape[0], x.shape[1]
        images = torch.stack([path(x) for path in self.paths], 0)
        z = self.reduce(images.sum(0).mean(-1).mean(-1))
        logits = torch.stack([layer(z).view(b, c, 1, 1) for layer in self.select], 0)
        return (torch.softmax(logits, dim=0) * images).sum(0)


class JoinedOneByOne(LinearSelection):
    """As SKNet was first written for PyTorch."""

    def forward(self, x: Tensor) -> Tensor:
        images = self.paths[0](x).unsqueeze(1)
        for path in list(self.paths)[1:]:
            images = torch.cat([images, path(x).unsqueeze(1)], dim=1)
        z = self.reduce(images.sum(1).mean(-1).mean(-1))
        logits = self.select[0](z).unsqueeze(1)
        for layer in list(self.select)[1:]:
            logits = torch.cat([logits, layer(z).unsqueeze(1)], dim=1)
        attention = torch.softmax(logits, dim=1).unsqueeze(-1).unsqueeze(-1)
        return (images * attention).sum(1)


class JoinedLogits(Branches):
    def __init__(self) -> None:
        super().__init__(2)
        self.selects = nn.ModuleList(nn.Conv2d(4, 8, 1, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        images = torch.cat([path(x) for path in self.paths], dim=1)
        images = images.view(x.shape[0], 2, 8, images.shape[2], images.shape[3])
        pooled = self.reduce(nn.functional.adaptive_avg_pool2d(images.sum(dim=1), 1))
        logits = torch.cat([select(pooled) for select in self.selects], dim=1)
        attention = logits.view(x.shape[0], 2, 8, 1, 1).softmax(dim=1)
        return (images * attention).sum(dim=1)


class Gates(Branches):
    """Sigmoids instead of a softmax; the images are taken out one by one."""

    def forward(self, x: Tensor) -> Tensor:
        images = torch.stack([path(x) for path in self.paths], dim=1).relu()
        gates = self.logits(images.sum(1)).unflatten(1, (self.count, -1)).sigmoid()
        first, second = (images * gates).unbind(1)
        return first * second + images.select(1, 0)


class SqueezeExcite(nn.Module):
    """The usual way to write it with linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        b, c, _, _ = x.size()
        y = nn.functional.adaptive_avg_pool2d(x, 1).view(b, c)
        return x * self.fc(y).view(b, c, 1, 1)


class ByMeans(SqueezeExcite):
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return sum([x * self.fc(x.mean([2, 3])).unsqueeze(2).unsqueeze(3), x])  # type: ignore


class CastLinear(nn.Linear):
    """timm's linear layer in TorchScript."""

    def forward(self, input: Tensor) -> Tensor:
        bias = self.bias.to(dtype=input.dtype) if self.bias is not None else None
        return nn.functional.linear(input, self.weight.to(dtype=input.dtype), bias=bias)


class CastHead(SqueezeExcite):
    """Ends in linear layers with casts, one of them without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Sequential(CastLinear(8, 4), CastLinear(4, 8, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(nn.functional.adaptive_avg_pool2d(self.conv(x), 1).flatten(1))


class OfPixels(Branches):
    """A view with numbers in it: for an image of 5x6, it would mix rows."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([path(x) for path in self.paths], 1)
        return x.view(x.shape[0], 2, 8, 6, 5).sum(1)


class OfBatch(Branches):
    """The batch is a number."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([path(x) for path in self.paths], 1)
        return x.view(2, 2, -1, x.shape[2], x.shape[3]).sum(1)


class Changed(Branches):
    """Somebody writes to the stack between two reads."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        images = torch.stack([path(x) for path in self.paths], dim=1)
        before = images.sum(1)
        images[:, 0, 1] += 1.0
        return before, images.sum(1)


PLANNED: dict[str, Callable[[], nn.Module]] = {
    "selective_kernel": lambda: SelectiveKernel(2),
    "selective_kernel_without_bias": lambda: SelectiveKernel(2, bias=False),
    "split_attention": lambda: SplitAttention(2),
    "joined_logits": JoinedLogits,
    "squeeze_excite": SqueezeExcite,
    "squeeze_excite_by_means": ByMeans,
}
IN_PART: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "selective_kernel_of_3": (
        lambda: SelectiveKernel(3),
        {"view", "softmax", "select"},
    ),
    "split_attention_of_4": (
        lambda: SplitAttention(4),
        {"view", "transpose", "softmax", "reshape"},
    ),
}


def left_of(model: nn.Module, x: Tensor, capture: str = "trace") -> Counter[str]:
    """The kinds of the nodes without a problem; questions for sizes do not count."""
    nodes = import_model(model, (x,), capture).nodes
    kinds = [node.kind.split("::")[1] for node in nodes if node.problem is None]
    return Counter(kind for kind in kinds if kind != "size")


def check_values(model: nn.Module, capture: str) -> None:
    x = torch.rand(2, 8, 6, 5)
    imported = _C.import_graph(freeze(model, (x,), capture)._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    for shape in ((2, 8, 6, 5), (3, 8, 7, 9), (1, 8, 1, 4)):
        y = torch.rand(shape)
        with torch.no_grad():
            assert_close(module(y), model, (y,))


def build(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().eval()


@pytest.mark.parametrize(
    ("name", "capture"),
    # TorchScript has no sum() of tensors.
    [(name, capture) for name in PLANNED for capture in ("trace", "script")
     if (name, capture) != ("squeeze_excite_by_means", "script")],
)  # fmt: skip
def test_attention_over_images_leaves_nothing(name: str, capture: str) -> None:
    model = build(PLANNED[name])
    check_values(model, capture)
    assert not left_of(model, torch.rand(2, 8, 6, 5), capture)


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_linear_layers_that_cast_their_weights_are_planned(capture: str) -> None:
    model = build(CastHead)
    check_values(model, capture)
    assert set(left_of(model, torch.rand(2, 8, 6, 5), capture)) == {"flatten"}


@pytest.mark.parametrize("name", IN_PART)
def test_a_softmax_over_more_images_stays_small(name: str) -> None:
    """PyTorch computes the attention itself, on vectors; sums and products are planned."""
    make, kinds = IN_PART[name]
    model = build(make)
    check_values(model, "trace")
    assert set(left_of(model, torch.rand(2, 8, 6, 5))) == kinds


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinearSelection(2),
        lambda: JoinedOneByOne(2),
        lambda: JoinedOneByOne(3),
        lambda: Gates(2),
    ],
)
def test_other_forms_of_attention_give_the_models_values(make: Callable[[], nn.Module]) -> None:
    model = build(make)
    check_values(model, "trace")
    assert not {"stack", "sum", "unbind"} & set(left_of(model, torch.rand(2, 8, 6, 5)))


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda: OfPixels(2), [(2, 8, 6, 5), (2, 8, 5, 6)]),
        (lambda: OfBatch(2), [(2, 8, 6, 5), (1, 8, 8, 4)]),
        (lambda: Changed(2), [(2, 8, 6, 5), (1, 8, 8, 4)]),
    ],
)
def test_what_is_no_stack_for_every_input_stays(
    make: Callable[[], nn.Module], shapes: list[tuple[int, ...]]
) -> None:
    model = build(make)
    x = torch.rand(shapes[0])
    assert left_of(model, x)["sum"] > 0
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    for shape in shapes:
        y = torch.rand(shape)
        with torch.no_grad():
            assert_close(module(y), model, (y,))
