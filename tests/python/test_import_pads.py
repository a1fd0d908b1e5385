# SPDX-License-Identifier: BSD-3-Clause
"""Zeros around the input of a convolution join its padding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.graph_models import freeze
from support.random_plans import any_plan, assert_close, rewrite
from torchalgo import _C


class Padded(nn.Module):
    """A convolution behind F.pad."""

    def __init__(self, pad: list[int], filter_size: int, mode: str = "constant", **of: int) -> None:
        super().__init__()
        self.pad, self.mode, self.value = pad, mode, float(of.pop("value", 0))
        self.conv = nn.Conv2d(4, 4, filter_size, **of)

    def forward(self, x: Tensor) -> Tensor:
        if self.mode != "constant":
            return self.conv(F.pad(x, self.pad, self.mode))
        return self.conv(F.pad(x, self.pad, value=self.value))


class TwoReaders(Padded):
    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, self.pad)
        return self.conv(x) + x[:, :, 1:-1, 1:-1]


class Shared(Padded):
    """Two convolutions read one padded tensor."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, self.pad)
        return self.conv(x) + self.conv(x).relu()


class Merged(Padded):
    """Two convolutions of one padded tensor whose sum is one convolution."""

    def __init__(self) -> None:
        super().__init__([0, 1, 0, 1], 3, padding=1)
        self.pointwise = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, self.pad)
        return self.conv(x) + self.pointwise(x)


class PaddedOther(nn.Module):
    """A 1-D or 3-D convolution behind F.pad."""

    def __init__(self, pad: list[int], conv: nn.Module) -> None:
        super().__init__()
        self.pad, self.conv = pad, conv

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, self.pad))


JOINED = {
    "symmetric": Padded([1, 1, 2, 2], 3),
    "beside its own": Padded([1, 1, 1, 1], 3, stride=2, padding=1),
    "dilated": Padded([2, 2, 2, 2], 3, dilation=2, groups=2),
    "2x2, behind": Padded([0, 1, 0, 1], 2),
    "2x2, in front": Padded([1, 0, 1, 0], 2, stride=2, groups=4),
    "2x2, mixed": Padded([0, 1, 2, 2], 2, padding=1),
    "shared": Shared([1, 1, 1, 1], 3),
    "3x3 on one side": Padded([0, 1, 0, 1], 3, stride=2),
    "1x1 on one side": Padded([0, 1, 0, 1], 1),
    "2x2 on one side by two": Padded([0, 2, 0, 2], 2),
    "dilated on one side": Padded([0, 1, 0, 1], 2, dilation=2),
    "beside its own, on one side": Padded([2, 1, 0, 3], 5, padding=1, groups=2),
    "columns only": Padded([1, 2], 3),
    "shared, on one side": Shared([1, 0, 0, 1], 3),
}
LEFT = {
    "ones": Padded([1, 1, 1, 1], 3, value=1),
    "negative": Padded([-1, -1, 0, 0], 3),
    "reflect": Padded([1, 1, 1, 1], 3, "reflect"),
    "another reader": TwoReaders([1, 1, 1, 1], 3),
}


def pads_left(model: nn.Module, capture: str) -> int:
    """Counts the paddings that PyTorch runs; checks the values for two sizes of the input."""
    model = model.eval()
    x = torch.rand(1, 4, 9, 8)
    imported = _C.import_graph(freeze(model, (x,), capture)._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    for shape in ((1, 4, 9, 8), (2, 4, 6, 11)):
        y = torch.rand(shape)
        with torch.no_grad():
            assert_close(module(y), model, (y,))
    return sum("pad" in node.kind for node in imported.graph.nodes if node.problem is None)


@pytest.mark.parametrize("capture", ["trace", "script"])
@pytest.mark.parametrize("name", JOINED)
def test_zeros_join_the_padding_of_the_convolution(name: str, capture: str) -> None:
    assert pads_left(JOINED[name], capture) == 0


@pytest.mark.parametrize("name", LEFT)
def test_other_paddings_stay(name: str) -> None:
    assert pads_left(LEFT[name], "trace") == 1


def test_a_sum_of_convolutions_of_one_padded_tensor_is_one_convolution() -> None:
    model, x = Merged().eval(), torch.rand(1, 4, 9, 8)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    problems = [node.problem for node in imported.graph.nodes]
    assert problems == ["fwd_f32_n1c4h9w8_k4r3s3_st1x1_pad1x1x2x2_dil1x1_g1+bias"]
    module = rewrite(imported, any_plan(imported.graph, 1))
    with torch.no_grad():
        assert_close(module(x), model, (x,))


@pytest.mark.parametrize(
    ("model", "sizes", "padding"),
    [
        (PaddedOther([2, 0], nn.Conv1d(4, 4, 3)), (2, 4, 9), "pad0x2x0x0"),
        (PaddedOther([1, 1, 2, 2], nn.Conv3d(4, 4, 3)), (1, 4, 5, 7, 8), "pad0x2x1"),
        # A 3-D problem has as many zeros on both sides, so these stay with PyTorch.
        (PaddedOther([0, 1, 0, 1], nn.Conv3d(4, 4, 3)), (1, 4, 5, 7, 8), "pad0x0x0"),
    ],
)
def test_zeros_around_other_images(model: nn.Module, sizes: tuple[int, ...], padding: str) -> None:
    model, x = model.eval(), torch.rand(sizes)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    (problem,) = [node.problem for node in imported.graph.nodes if node.problem]
    assert f"_{padding}_" in problem
    module = rewrite(imported, any_plan(imported.graph, 1))
    with torch.no_grad():
        assert_close(module(x), model, (x,))


def test_a_padded_convolution_keeps_its_name() -> None:
    x = torch.rand(1, 4, 9, 8)
    graph = _C.import_graph(freeze(JOINED["2x2, behind"].eval(), (x,), "trace")._c, (x,)).graph
    problems = {node.name: node.problem for node in graph.nodes}
    assert problems == {"conv": "fwd_f32_n1c4h9w8_k4r2s2_st1x1_pad0x0x1x1_dil1x1_g1+bias"}
