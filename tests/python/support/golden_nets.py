# SPDX-License-Identifier: BSD-3-Clause
"""The networks of the golden files (scripts/make_golden.py writes them, test_golden.py reads them).

A network here never changes: the files of earlier versions hold plans and results of it. Weights
and inputs come from formulas, since torch's random numbers may differ between its versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import torchalgo.nn

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class GoldenNet:
    """A network, what it is planned for, and what its file must hold."""

    make: Callable[[], nn.Module]
    sizes: tuple[Sizes, ...]  # of the inputs that are planned, one plan for each
    overrides: Mapping[str, str]
    # {glob of layer names: primitive} that each plan must contain; a name stands for its variants.
    holds: Mapping[str, str] = field(default_factory=dict)
    # Inputs that the file runs as well.
    other_sizes: tuple[Sizes, ...] = ()
    is_portable: bool = False


def golden_input(sizes: Sizes) -> Tensor:
    return torch.linspace(-1, 1, math.prod(sizes)).reshape(sizes)


def fill(model: nn.Module) -> nn.Module:
    """Sets every weight and statistic by a formula, and returns the model in eval mode."""
    for number, (name, tensor) in enumerate(sorted(model.state_dict().items())):
        if not tensor.is_floating_point():
            continue
        # The phase grows by squares, so that no two filters are alike.
        index = torch.arange(tensor.numel(), dtype=torch.float64)
        wave = torch.sin(0.61803398875 * index * index + number).reshape(tensor.shape)
        if name.endswith("running_var"):
            value = 1 + 0.5 * wave
        elif tensor.dim() > 1:
            value = wave * math.sqrt(3 / math.prod(tensor.shape[1:]))
        elif name.endswith("weight"):  # of a batch norm
            value = 1 + 0.3 * wave
        else:
            value = 0.2 * wave
        tensor.copy_(value)
    return model.eval()


class ConvChain(nn.Module):
    """Two inverted residuals: one with a residual, one with stride 2."""

    def __init__(self) -> None:
        super().__init__()
        self.expand1 = nn.Conv2d(16, 32, 1)
        self.depthwise1 = nn.Conv2d(32, 32, 3, 1, 1, groups=32)
        self.project1 = nn.Conv2d(32, 16, 1)
        self.expand2 = nn.Conv2d(16, 40, 1)
        self.depthwise2 = nn.Conv2d(40, 40, 3, 2, 1, groups=40)
        self.project2 = nn.Conv2d(40, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.depthwise1(F.relu6(self.expand1(x))))
        x = x + self.project1(y)
        return self.project2(F.silu(self.depthwise2(F.silu(self.expand2(x)))))


class Concat(nn.Module):
    """Branches whose results lie side by side in one buffer.

    All but the last have two blocks of 16 channels: one block would lie as it does in nhwc.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(16, 32, 1)
        self.right = nn.Conv2d(16, 32, 3, padding=1)
        self.pooled = nn.Conv2d(16, 20, 1)
        self.end = nn.Conv2d(84, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(F.max_pool2d(x, 3, 1, 1))
        joined = torch.cat((F.relu(self.left(x)), F.relu(self.right(x)), pooled), 1)
        return self.end(joined)


class Views(nn.Module):
    """A concatenation into which a pool and a layout change write, and slices that are views."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(8, 64, 3, padding=1)
        self.left = nn.Conv2d(32, 32, 1)
        self.end = nn.Conv2d(64, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.relu(self.stem(x)).chunk(2, 1)
        return self.end(torch.cat((self.left(a), F.max_pool2d(b, 3, 1, 1)), 1))


class SqueezeExcite(nn.Module):
    """Factors per channel, which the projection's call multiplies by."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(24, 8, 1)
        self.factors = nn.Conv2d(8, 24, 1)
        self.project = nn.Conv2d(24, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))
        return self.project(x * torch.sigmoid(self.factors(y)))


class ScaleShift(nn.Module):
    """A batch norm and an activation before a 1x1 convolution, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(24)
        self.grow1 = nn.Conv2d(24, 32, 1, bias=False)
        self.conv = nn.Conv2d(32, 16, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(40)
        self.grow2 = nn.Conv2d(40, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.grow1(F.relu(self.norm1(x))))
        return self.grow2(F.relu(self.norm2(torch.cat((x, y), 1))))


class Residual(nn.Module):
    """A residual block, for several shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.conv1 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.fc = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(self.conv2(F.relu(self.conv1(x))) + x)
        return torch.cat((x.amax(1).flatten(1), self.fc(x.mean((2, 3)))), 1)


class Shuffle(nn.Module):
    """Parts of channels, and a shuffle, as in ShuffleNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 32, 1)
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.mix = nn.Conv2d(16, 32, 1)
        self.end = nn.Conv2d(32, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.relu(self.stem(x)).chunk(2, 1)
        y = F.relu(self.mix(F.relu(self.conv(b)) + a))
        return self.end(F.channel_shuffle(y, 4))


class Line(nn.Module):
    """1-D convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(8, 16, 5, stride=2, padding=4, dilation=2)
        self.conv2 = nn.Conv1d(16, 16, 3, padding=1)
        self.conv3 = nn.Conv1d(16, 12, 1)
        self.depthwise = nn.Conv1d(12, 12, 3, padding=1, groups=12)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x) + x)
        return self.depthwise(F.relu(self.conv3(x)))


class Volume(nn.Module):
    """3-D convolutions and a 2-D one behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(2, 6, 3, stride=(1, 2, 2), padding=1)
        self.conv2 = nn.Conv3d(6, 8, (1, 3, 3), padding=(0, 1, 1), groups=2)
        self.flat = nn.Conv2d(8, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.flat(x.mean(2))


class Transposed(nn.Module):
    """Transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 16, 3, 2, 1)
        self.same = nn.ConvTranspose2d(16, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1, output_padding=1)
        self.line = nn.ConvTranspose1d(8, 4, 4, stride=2, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(F.relu(self.same(F.relu(self.down(x)))))
        return self.line(y.mean(2))


class Algorithms(nn.Module):
    """One layer for each own algorithm that the other networks do not force."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.winograd_f2 = nn.Conv2d(16, 16, 3, padding=1)
        self.winograd_f4 = nn.Conv2d(16, 16, 3, padding=1)
        self.winograd_5x5 = nn.Conv2d(16, 16, 5, padding=2)
        self.im2col = nn.Conv2d(16, 16, 3, padding=2, dilation=2)
        self.im2row = nn.Conv2d(16, 16, 3, padding=1)
        self.fft = nn.Conv2d(16, 4, 7, padding=3)
        self.widen = nn.Conv2d(4, 64, 1)
        self.strassen = nn.Conv2d(64, 64, 1)
        self.narrow = nn.Conv2d(64, 16, 1)
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.depthwise = nn.Conv2d(16, 16, 5, padding=2, groups=16)
        self.norm = nn.BatchNorm2d(16)
        self.last = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.fc1 = nn.Linear(16, 32)
        self.fc2 = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + self.winograd_f4(F.silu(self.winograd_f2(x)))
        x = F.hardswish(self.im2col(F.relu6(self.winograd_5x5(x))))
        x = F.gelu(self.fft(torch.tanh(self.im2row(x))))
        x = self.narrow(F.relu(self.strassen(F.relu(self.widen(x)))))
        x = self.depthwise(F.relu(self.grouped(x)))
        x = F.relu(self.norm(F.avg_pool2d(x, 2)))
        x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        x = F.relu(self.last(F.max_pool2d(x, 3, 1, 1)))
        y = self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1).flatten(1))))
        return torch.cat((x.flatten(1), y), 1)


class Portable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 8, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(F.relu(self.norm(self.conv1(x))))


class Modules(nn.Module):
    """Every convolution module of torchalgo.nn; with torch.nn, what they must compute."""

    def __init__(self, layers: ModuleType) -> None:
        super().__init__()
        self.conv1 = layers.Conv1d(4, 8, 3, padding=1)
        self.up1 = layers.ConvTranspose1d(8, 6, 4, stride=2)
        self.conv2 = layers.Conv2d(6, 16, 3, padding=1, padding_mode="circular")
        self.up2 = layers.ConvTranspose2d(16, 8, 2, stride=2, bias=False)
        self.conv3 = layers.Conv3d(8, 4, (1, 3, 3), padding="same")
        self.up3 = layers.ConvTranspose3d(4, 2, (1, 2, 2), stride=(1, 2, 2), groups=2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.up1(torch.relu(self.conv1(x))))
        x = torch.relu(self.up2(torch.relu(self.conv2(x.unsqueeze(2).repeat(1, 1, 4, 1)))))
        return self.up3(torch.relu(self.conv3(x.unsqueeze(2)))).mean(4).flatten(1)


def torchalgo_modules() -> nn.Module:
    """The modules with algorithms of their own, so that the file holds their names."""
    model = fill(Modules(torchalgo.nn))
    for layer, forward in {
        "conv1": "cpu.direct",
        "conv2": "cpu.direct",
        "up2": "aten.conv",
    }.items():
        setattr(getattr(model, layer), "forward_algorithm", forward)  # noqa: B010
    model.get_submodule("conv2").backward_data_algorithm = "aten.conv"  # type: ignore[assignment]
    return model


def torch_modules() -> nn.Module:
    return fill(Modules(nn))


MODULES_SIZES: Sizes = (2, 4, 7)

ALGORITHMS = {
    "stem": "cpu.stem",
    "winograd_f2": "cpu.winograd_f2x2_3x3",
    "winograd_f4": "cpu.winograd_f4x4_3x3",
    "winograd_5x5": "cpu.winograd_f4x4_5x5",
    "im2col": "cpu.im2col_gemm",
    "im2row": "cpu.im2row_gemm",
    "fft": "cpu.fft",
    "widen": "cpu.conv1x1",
    "strassen": "cpu.strassen_1x1",
    "grouped": "cpu.grouped",
    "depthwise": "cpu.depthwise",
    "last": "cpu.direct",
    "max_pool*": "cpu.pool",
    "norm": "cpu.scale_shift",
    "upsample*": "cpu.resize",
    "fc1": "cpu.linear",
}

NETS: dict[str, GoldenNet] = {
    "conv_chain": GoldenNet(
        lambda: fill(ConvChain()),
        ((1, 16, 10, 11),),
        {"expand*": "cpu.conv_chain"},
        other_sizes=((2, 16, 6, 5),),
    ),
    "concat": GoldenNet(
        lambda: fill(Concat()),
        ((1, 16, 8, 9),),
        {"cat*": "view.concat"},
        other_sizes=((2, 16, 4, 6),),
    ),
    "views": GoldenNet(
        lambda: fill(Views()),
        ((1, 8, 8, 9),),
        {
            "cat*": "view.concat",
            "narrow*": "view.slice",
            "stem": "cpu.direct",
            "left": "aten.conv",
            "max_pool*": "cpu.pool",
        },
        other_sizes=((1, 8, 5, 6),),
    ),
    "squeeze_excite": GoldenNet(
        lambda: fill(SqueezeExcite()),
        ((1, 24, 7, 8),),
        {"mean*": "cpu.squeeze_excite", "mul*": "cpu.scaled_conv1x1"},
    ),
    "scale_shift": GoldenNet(
        lambda: fill(ScaleShift()),
        ((1, 24, 7, 8),),
        {"norm*": "cpu.scaled_conv1x1"},
        other_sizes=((2, 24, 4, 5),),
    ),
    "shapes": GoldenNet(
        lambda: fill(Residual()),
        ((1, 3, 16, 16), (2, 3, 12, 20)),
        {"conv1": "cpu.direct", "conv2": "cpu.winograd_f2x2_3x3"},
        other_sizes=((1, 3, 14, 18), (3, 3, 12, 12)),
    ),
    "shuffle": GoldenNet(
        lambda: fill(Shuffle()),
        ((1, 4, 8, 10),),
        {"channel_shuffle*": "cpu.shuffle", "narrow*": "cpu.slice"},
    ),
    "conv1d": GoldenNet(
        lambda: fill(Line()),
        ((2, 8, 40),),
        {"conv1": "cpu.im2col_gemm", "conv2": "cpu.im2row_gemm"},
        other_sizes=((1, 8, 33),),
    ),
    "conv3d": GoldenNet(
        lambda: fill(Volume()),
        ((1, 2, 4, 12, 14),),
        {"flat": "cpu.direct"},
        holds={"conv?": "aten.conv"},
    ),
    "transposed": GoldenNet(
        lambda: fill(Transposed()),
        ((1, 3, 12, 14),),
        {"same": "cpu.direct"},
        holds={"up": "aten.conv", "line": "aten.conv"},
    ),
    "algorithms": GoldenNet(lambda: fill(Algorithms()), ((1, 3, 16, 18),), ALGORITHMS),
    "portable": GoldenNet(
        lambda: fill(Portable()), ((1, 3, 12, 12),), {"conv1": "cpu.direct"}, is_portable=True
    ),
}
