# SPDX-License-Identifier: BSD-3-Clause
"""Small networks in the style of their fields: part one, blocks of classifiers.

`other_styles_dense.py` and `other_styles_signals.py` hold the others. `STYLES` lists all networks
that were imported.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Shapes = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Style:
    """A network, the shapes that its plan is made for, and the shapes of another call."""

    make: Callable[[], nn.Module]
    shapes: Shapes
    other: Shapes

    def model(self) -> nn.Module:
        """Returns a new model in eval mode. Its norms and learned scalars are as after training."""
        torch.manual_seed(zlib.crc32(self.make.__name__.encode()))
        model = self.make()
        for name, weight in model.named_parameters():
            if weight.ndim <= 1 or name.endswith(("gamma", "gain", "scale", "fusion")):
                nn.init.uniform_(weight, 0.4, 1.2)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                nn.init.normal_(buffer, std=0.2)
            elif name.endswith("running_var"):
                nn.init.uniform_(buffer, 0.5, 1.5)
        return model.eval()

    def inputs(self, shapes: Shapes) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(len(self.make.__name__))
        return tuple(torch.randn(shape, generator=generator) for shape in shapes)


STYLES: dict[str, Style] = {}


def style(*shapes: tuple[int, ...], other: Shapes) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Registers a network under the name of its class."""

    def register(model: type[nn.Module]) -> type[nn.Module]:
        STYLES[model.__name__] = Style(model, shapes, other)
        return model

    return register


def conv_bn(c: int, k: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(c, k, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(k))


def conv_bn_relu(c: int, k: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(*conv_bn(c, k, kernel, stride, groups), nn.ReLU(inplace=True))


class SqueezeExcite(nn.Module):
    """SENet's gate: linear layers compute the scale, and a view gives it rank 4."""

    def __init__(self, channels: int, reduction: int = 4) -> None:
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // reduction, bias=False), nn.ReLU(inplace=True),
            nn.Linear(channels // reduction, channels, bias=False), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = self.avg_pool(x).view(b, c)
        y = self.fc(y).view(b, c, 1, 1)
        return x * y.expand_as(x)


class SelectiveUnit(nn.Module):
    def __init__(self, channels: int, branches: int = 2) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            conv_bn_relu(channels, channels, 3 + 2 * i, groups=4) for i in range(branches)
        )
        self.fc = nn.Linear(channels, 8)
        self.fcs = nn.ModuleList(nn.Linear(8, channels) for _ in range(branches))

    def forward(self, x: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            fea = conv(x).unsqueeze_(dim=1)
            feas = fea if i == 0 else torch.cat([feas, fea], dim=1)  # noqa: F821
        fea_u = torch.sum(feas, dim=1)
        fea_z = self.fc(fea_u.mean(-1).mean(-1))
        vectors = torch.stack([fc(fea_z) for fc in self.fcs], dim=1)
        attention = F.softmax(vectors, dim=1).unsqueeze(-1).unsqueeze(-1)
        return (feas * attention).sum(dim=1)


class SelectiveConv(nn.Module):
    """The selective kernel of timm: it stacks the branches and takes a softmax over them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=d, dilation=d, bias=False),
                nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            )
            for d in (1, 2)
        )  # fmt: skip
        self.fc_reduce = conv_bn_relu(channels, 8, 1)
        self.fc_select = nn.Conv2d(8, 2 * channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        paths = torch.stack([op(x) for op in self.paths], dim=1)
        y = paths.sum(1).mean((2, 3), keepdim=True)
        y = self.fc_select(self.fc_reduce(y))
        b, c, h, w = y.shape
        y = torch.softmax(y.view(b, 2, c // 2, h, w), dim=1)
        return torch.sum(paths * y, dim=1)


@style((1, 3, 32, 32), other=((2, 3, 24, 40),))
class SelectiveKernels(nn.Module):
    """SKNet, written in both known ways, with a squeeze-and-excitation tail."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn_relu(3, 16, stride=2)
        self.unit, self.conv = SelectiveUnit(16), SelectiveConv(16)
        self.squeeze, self.last = SqueezeExcite(16), conv_bn(16, 16, 1)
        self.fc = nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        residual = x
        out = self.squeeze(self.last(self.conv(self.unit(x))))
        out += residual
        out = F.relu(out, inplace=True)
        return self.fc(F.adaptive_avg_pool2d(out, (1, 1)).view(out.size(0), -1))


class SplitAttentionConv(nn.Module):
    """The split attention of ResNeSt, with radix 2 and two groups."""

    def __init__(self, channels: int, radix: int = 2, cardinality: int = 2) -> None:
        super().__init__()
        self.radix, self.cardinality, self.channels = radix, cardinality, channels
        self.conv = nn.Conv2d(
            channels, channels * radix, 3, 1, 1, groups=cardinality * radix, bias=False
        )
        self.bn0, self.bn1 = nn.BatchNorm2d(channels * radix), nn.BatchNorm2d(16)
        self.fc1 = nn.Conv2d(channels, 16, 1, groups=cardinality)
        self.fc2 = nn.Conv2d(16, channels * radix, 1, groups=cardinality)
        self.relu = nn.ReLU(inplace=True)

    def r_softmax(self, x: Tensor) -> Tensor:
        batch = x.size(0)
        x = x.view(batch, self.cardinality, self.radix, -1).transpose(1, 2)
        return F.softmax(x, dim=1).reshape(batch, -1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn0(self.conv(x)))
        batch, rchannel = x.shape[:2]
        splited = torch.split(x, rchannel // self.radix, dim=1)
        gap = F.adaptive_avg_pool2d(sum(splited), 1)
        atten = self.fc2(self.relu(self.bn1(self.fc1(gap))))
        atten = self.r_softmax(atten).view(batch, -1, 1, 1)
        attens = torch.split(atten, rchannel // self.radix, dim=1)
        out = sum([att * split for (att, split) in zip(attens, splited, strict=True)])
        return out.contiguous()


@style((1, 3, 32, 32), other=((3, 3, 28, 36),))
class SplitAttention(nn.Module):
    """ResNeSt: deep stem, split attention, average pooling in the shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *conv_bn_relu(3, 8, stride=2), *conv_bn_relu(8, 16), nn.MaxPool2d(3, 2, 1)
        )
        self.conv1, self.conv2 = conv_bn_relu(16, 16, 1), SplitAttentionConv(16)
        self.avd, self.conv3 = nn.AvgPool2d(3, 2, padding=1), conv_bn(16, 32, 1)
        self.down = nn.Sequential(
            nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False), *conv_bn(16, 32, 1)
        )
        self.head = nn.Conv2d(32, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out = self.conv3(self.avd(self.conv2(self.conv1(x))))
        out += self.down(x)
        return self.head(F.relu_(out)).flatten(2).mean(-1)


class ChannelGate(nn.Module):
    """The channel attention of CBAM: one small network reads the mean and the maximum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Flatten(), nn.Linear(channels, channels // 4), nn.ReLU(),
            nn.Linear(channels // 4, channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        total = None
        for pool in (F.avg_pool2d, F.max_pool2d):
            raw = self.mlp(pool(x, (x.size(2), x.size(3)), stride=(x.size(2), x.size(3))))
            total = raw if total is None else total + raw
        scale = torch.sigmoid(total).unsqueeze(2).unsqueeze(3).expand_as(x)
        return x * scale


class SpatialGate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_bn(2, 1, 7)

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.cat((torch.max(x, 1)[0].unsqueeze(1), torch.mean(x, 1).unsqueeze(1)), dim=1)
        return x * torch.sigmoid(self.conv(pooled))


@style((1, 3, 24, 24), other=((2, 3, 32, 20),))
class Cbam(nn.Module):
    """CBAM after each block; then SimAM and ECA, two attentions with few weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv_bn_relu(3, 16), conv_bn(16, 16)
        self.channel, self.spatial = ChannelGate(16), SpatialGate()
        self.conv3 = conv_bn_relu(16, 16, stride=2)
        self.eca = nn.Conv1d(1, 1, 3, padding=1, bias=False)
        self.fc = nn.Linear(16, 4)

    def simam(self, x: Tensor) -> Tensor:
        _, _, h, w = x.size()
        d = (x - x.mean(dim=[2, 3], keepdim=True)).pow(2)
        v = d.sum(dim=[2, 3], keepdim=True) / (w * h - 1)
        return x * torch.sigmoid(d / (4 * (v + 1e-4)) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        out = self.spatial(self.channel(self.conv2(x)))
        out = (out + x).relu()
        out = self.simam(self.conv3(out))
        y = F.adaptive_avg_pool2d(out, 1)
        y = self.eca(y.squeeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        out = out * y.sigmoid().expand_as(out)
        return self.fc(out.amax(dim=(2, 3)))


class GlobalContext(nn.Module):
    """The block of GCNet: attention over positions, LayerNorm, both ways to fuse."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_mask = nn.Conv2d(channels, 1, 1)
        self.add, self.mul = (
            nn.Sequential(
                nn.Conv2d(channels, channels // 4, 1), nn.LayerNorm([channels // 4, 1, 1]),
                nn.ReLU(inplace=True), nn.Conv2d(channels // 4, channels, 1),
            )
            for _ in range(2)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        batch, channel, height, width = x.size()
        values = x.view(batch, channel, height * width).unsqueeze(1)
        mask = self.conv_mask(x).view(batch, 1, height * width)
        mask = F.softmax(mask, dim=2).unsqueeze(-1)
        context = torch.matmul(values, mask).view(batch, channel, 1, 1)
        out = x * torch.sigmoid(self.mul(context))
        return out + self.add(context)


class SelfAttention(nn.Module):
    """The non-local block of SAGAN. A learned number scales its result."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query, self.key = nn.Conv2d(channels, 4, 1), nn.Conv2d(channels, 4, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.size()
        query = self.query(x).view(b, -1, h * w).permute(0, 2, 1)
        key = self.key(F.max_pool2d(x, 2)).flatten(2)
        value = self.value(F.max_pool2d(x, 2)).flatten(2)
        attention = torch.softmax(torch.bmm(query, key), dim=-1)
        out = torch.bmm(value, attention.permute(0, 2, 1)).view(b, c, h, w)
        return self.gamma * out + x


@style((1, 3, 16, 16), other=((2, 3, 12, 20),))
class Context(nn.Module):
    """Global context and non-local blocks between residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn_relu(3, 16)
        self.context, self.attention = GlobalContext(16), SelfAttention(16)
        self.conv = conv_bn(16, 16)
        self.alpha = nn.Parameter(torch.tensor(0.0))  # ReZero
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.context(self.stem(x))
        x = x + self.alpha * F.gelu(self.conv(x))
        return self.head(self.attention(x))


class CoordinateAttention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool_h, self.pool_w = nn.AdaptiveAvgPool2d((None, 1)), nn.AdaptiveAvgPool2d((1, None))
        self.conv1, self.bn1 = nn.Conv2d(channels, 8, 1), nn.BatchNorm2d(8)
        self.relu6 = nn.ReLU6(inplace=True)
        self.conv_h, self.conv_w = nn.Conv2d(8, channels, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        _, _, h, w = x.size()
        x_h, x_w = self.pool_h(x), self.pool_w(x).permute(0, 1, 3, 2)
        y = self.bn1(self.conv1(torch.cat([x_h, x_w], dim=2)))
        y = y * (self.relu6(y + 3) / 6)
        x_h, x_w = torch.split(y, [h, w], dim=2)
        x_w = x_w.permute(0, 1, 3, 2)
        return identity * self.conv_w(x_w).sigmoid() * self.conv_h(x_h).sigmoid()


class Ghost(nn.Module):
    """Half of the channels are cheap functions of the others; the sum is cut to `oup`."""

    def __init__(self, inp: int, oup: int, relu: bool = True) -> None:
        super().__init__()
        self.oup, half = oup, (oup + 1) // 2
        self.primary = nn.Sequential(
            *conv_bn(inp, half, 1), nn.ReLU(inplace=True) if relu else nn.Sequential()
        )
        self.cheap = nn.Sequential(
            *conv_bn(half, half, 3, groups=half), nn.ReLU(inplace=True) if relu else nn.Sequential()
        )

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.primary(x)
        x2 = self.cheap(x1)
        out = torch.cat([x1, x2], dim=1)
        return out[:, : self.oup, :, :]


@style((1, 3, 32, 32), other=((2, 3, 40, 24),))
class GhostCoordinate(nn.Module):
    """GhostNet's bottleneck with an odd width, and coordinate attention in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, 15, stride=2), nn.Hardswish(inplace=True))
        self.ghost1, self.ghost2 = Ghost(15, 29), Ghost(29, 15, relu=False)
        self.attention, self.down = CoordinateAttention(29), conv_bn(29, 29, 3, 2, 29)
        self.shortcut = nn.Sequential(*conv_bn(15, 15, 3, 2, 15), *conv_bn(15, 15, 1))
        self.ghost3 = Ghost(15, 15, relu=False)
        self.classifier = nn.Conv2d(15, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.stem(x)
        x = self.attention(self.down(self.ghost1(residual)))
        x = self.ghost2(x)
        x += self.shortcut(residual)
        x = self.ghost3(x) + x
        x = self.classifier(F.adaptive_avg_pool2d(x, (1, 1)))
        return x.view(x.size(0), -1)
