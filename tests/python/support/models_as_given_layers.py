# SPDX-License-Identifier: BSD-3-Clause
"""Small models as people write them: part three, unusual layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from support.models_as_given import conv_bn_relu, given, image


@given(lambda n, s: torch.randn(n, 1, 16 * s))
class Audio(nn.Module):
    """1-D convolutions with dilation, gates and group norm; the remainder is cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 8, 10, stride=5)
        self.layers = nn.ModuleList([nn.Conv1d(8, 16, 3, padding=d, dilation=d) for d in (1, 2, 4)])
        self.norm, self.up = nn.GroupNorm(2, 8), nn.ConvTranspose1d(8, 1, 10, stride=5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        for layer in self.layers:
            gate, value = layer(y).chunk(2, dim=1)
            y = y + torch.sigmoid(gate) * torch.tanh(value)
        y = self.up(self.norm(y))
        return y[..., : x.shape[-1] - x.shape[-1] % 5].squeeze(1)


@given(lambda n, s: torch.randn(n, 3, s // 4, s, s), sizes=(16, 20, 24))
class Video(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(3, 8, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2))
        self.norm, self.conv2 = nn.BatchNorm3d(8), nn.Conv3d(8, 8, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose3d(8, 4, (1, 2, 2), stride=(1, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.conv1(x)))
        y = F.max_pool3d(self.conv2(y), (2, 1, 1))
        frames = self.up(y)
        return frames.transpose(1, 2).flatten(0, 1)


@given(sizes=(16, 24, 2))
class StyleTransfer(nn.Module):
    """Buffers normalize the input, reflection pads it; a size of 2 is too small for that."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.full((3, 1, 1), 0.25), persistent=False)
        self.conv1 = nn.Sequential(nn.ReflectionPad2d(2), nn.Conv2d(3, 8, 5))
        self.norm1 = nn.InstanceNorm2d(8, affine=True)
        self.conv2 = nn.Conv2d(8, 3, 3, padding=1, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1((x - self.mean) / self.std)))
        y = self.conv2(F.interpolate(y, scale_factor=2, mode="nearest"))
        return torch.tanh(y) * 0.5 + 0.5


@given()
class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular")
        self.act, self.conv2 = nn.PReLU(8), nn.Conv2d(8, 12, 3, padding=1, padding_mode="replicate")

    def forward(self, x: Tensor) -> Tensor:
        y = F.pixel_shuffle(self.conv2(self.act(self.conv1(x))), 2)
        return (y + F.interpolate(x, scale_factor=2, mode="bicubic")).clamp_(0, 1)


@given()
class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 16, 2, 2), nn.Conv2d(16, 16, 7, 1, 3, groups=16)
        self.norm, self.grow, self.shrink = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.scale, self.group = nn.Parameter(torch.full((16,), 0.5)), nn.GroupNorm(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        z = self.norm(self.depthwise(y).permute(0, 2, 3, 1))
        z = self.scale * self.shrink(F.gelu(self.grow(z)))
        return self.group(y + z.permute(0, 3, 1, 2))


@given()
class SharedWeights(nn.Module):
    """One convolution at three scales; the decoder has the encoder's transposed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.shared = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.again = self.shared

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.encode(x))
        half = F.avg_pool2d(y, 2)
        z = self.again(F.relu(self.shared(y)))
        z = z + F.interpolate(self.shared(half), size=z.shape[2:])
        return F.conv_transpose2d(z, self.encode.weight, padding=1)


class StandardizedConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


@given()
class Parametrized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = parametrizations.weight_norm(nn.Conv2d(3, 8, 3, padding=1))
        self.b = parametrizations.spectral_norm(nn.Conv2d(8, 8, 3, padding="same"))
        self.c, self.norm = StandardizedConv(8, 8, 3, padding=1), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.norm(F.leaky_relu(self.b(F.silu(self.a(x))), 0.2)))


@given()
class StochasticDepth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn_relu(3, 8)
        self.blocks = nn.ModuleList([conv_bn_relu(8, 8) for _ in range(3)])
        self.drop = nn.Dropout2d(0.3)

    def forward(self, x: Tensor) -> Any:
        y = self.stem(x)
        for i, block in enumerate(self.blocks):
            if self.training and torch.rand(1).item() < 0.1 * i:
                continue
            y = y + self.drop(block(y))
        return (y, self.blocks[0](y)) if self.training else y


@given(lambda n, s: ((image(n, s), torch.randn(n, 2, s, s)), {}))
class FlowWarp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.fuse = conv_bn_relu(3, 8), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Tensor, flow: Tensor) -> Tensor:
        y = self.features(x)
        h, w = y.shape[-2:]
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack([xs, ys]).float()[None] + flow
        scale = torch.tensor([max(w - 1, 1), max(h - 1, 1)], dtype=x.dtype).view(1, 2, 1, 1)
        warped = F.grid_sample(y, (2 * grid / scale - 1).permute(0, 2, 3, 1), align_corners=True)
        inside = ((grid >= 0) & (grid <= scale)).all(1, keepdim=True)
        return self.fuse(torch.cat([y, torch.where(inside, warped, y)], 1))


@given(lambda n, s: torch.randn(n, s // 8, 3, 16, 16), sizes=(16, 24, 40))
class ConvLSTM(nn.Module):
    """The sizes are lengths in time: one step after the other, the state comes from the last."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.hidden = nn.Conv2d(11, 32, 3, padding=1), 8

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        n, steps, _, rows, columns = x.shape
        h = c = x.new_zeros(n, self.hidden, rows, columns)
        states = []
        for t in range(steps):
            i, f, o, g = self.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states, 1), (h, c)
