# SPDX-License-Identifier: BSD-3-Clause
"""Small networks in the style of their fields: part four, norms, branches, video, text lines."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.other_styles import conv_bn, conv_bn_relu, style


class StdConv2d(nn.Conv2d):
    """Weight standardization, as in Big Transfer."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        v, m = torch.var_mean(w, dim=[1, 2, 3], keepdim=True, unbiased=False)
        w = (w - m) / torch.sqrt(v + 1e-10)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ScaledStdConv2d(nn.Conv2d):
    """The convolution of NFNets: batch_norm standardizes its weights, and gains scale them."""

    def __init__(self, c: int, k: int, kernel: int) -> None:
        super().__init__(c, k, kernel, padding=kernel // 2)
        self.gain = nn.Parameter(torch.full((k, 1, 1, 1), 1.0))
        self.scale = self.weight[0].numel() ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(
            self.weight.reshape(1, self.out_channels, -1), None, None,
            weight=(self.gain * self.scale).view(-1), training=True, momentum=0.0, eps=1e-6,
        ).reshape_as(self.weight)  # fmt: skip
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class BlurPool(nn.Module):
    """Reflection padding, then a fixed binomial filter for each channel, with stride 2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        ramp = torch.tensor([1.0, 2.0, 1.0])
        kernel = ramp[:, None] * ramp[None, :] / 16
        self.register_buffer("filt", kernel[None, None].repeat(channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (1, 1, 1, 1), "reflect")
        return F.conv2d(x, self.filt, stride=2, groups=x.shape[1])


@style((1, 3, 32, 32), other=((2, 3, 24, 30),))
class BlurResNet(nn.Module):
    """Anti-aliased, pre-activated, with standardized weights, GroupNorm and SkipInit."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = StdConv2d(3, 16, 3, padding=1)
        self.pool = nn.Sequential(nn.MaxPool2d(kernel_size=2, stride=1), BlurPool(16))
        self.norm1, self.norm2 = nn.GroupNorm(4, 16), nn.GroupNorm(8, 16)
        self.conv1, self.conv2 = StdConv2d(16, 16, 3, padding=1), ScaledStdConv2d(16, 16, 3)
        self.down = nn.Sequential(nn.ReLU(inplace=True), BlurPool(16), nn.Conv2d(16, 24, 1))
        self.short = nn.Sequential(nn.AvgPool2d(2, 2, ceil_mode=True), nn.Conv2d(16, 24, 1))
        self.skipinit_gain = nn.Parameter(torch.zeros(()))
        self.alpha, self.beta = 0.2, 1.3
        self.fc = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stem(x))
        out = self.conv1(F.relu(self.norm1(x)))
        x = x + out
        out = F.silu(self.norm2(x)) * self.beta
        out = self.conv2(out)
        out.mul_(self.skipinit_gain)
        x = out * self.alpha + x
        x = self.short(x) + self.down(x)
        return self.fc(x.mean([-2, -1]))


class LayerNormFirst(nn.Module):
    """LayerNorm of channels first, by hand as in ConvNeXt's own code."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ResponseNorm(nn.Module):
    """GRN of ConvNeXt V2, channels last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, 1, 1, channels))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, channels))

    def forward(self, x: Tensor) -> Tensor:
        gx = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        nx = gx / (gx.mean(dim=-1, keepdim=True) + 1e-6)
        return self.gamma * (x * nx) + self.beta + x


class NextBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1, self.act = nn.Linear(channels, 4 * channels), nn.GELU()
        self.grn, self.pwconv2 = ResponseNorm(4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(1e-6 * torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        inp = x
        x = self.dwconv(x).permute(0, 2, 3, 1)  # (N, C, H, W) -> (N, H, W, C)
        x = self.pwconv2(self.grn(self.act(self.pwconv1(self.norm(x)))))
        x = self.gamma * x
        return inp + x.permute(0, 3, 1, 2)


class MetaBlock(nn.Module):
    """PoolFormer: a pool minus the identity, a mixer of 1x1 convolutions, LayerScale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, channels), nn.GroupNorm(1, channels)
        self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        self.mlp = nn.Sequential(
            nn.Conv2d(channels, 2 * channels, 1), nn.GELU(), nn.Conv2d(2 * channels, channels, 1)
        )
        self.layer_scale_1 = nn.Parameter(torch.ones(channels))
        self.layer_scale_2 = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.layer_scale_1.unsqueeze(-1).unsqueeze(-1) * (self.pool(y) - y)
        return x + self.layer_scale_2.unsqueeze(-1).unsqueeze(-1) * self.mlp(self.norm2(x))


@style((1, 3, 32, 32), other=((3, 3, 32, 32),))
class NextNet(nn.Module):
    """ConvNeXt V2 and PoolFormer blocks between layer norms in both orders of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), LayerNormFirst(16))
        self.block1, self.block2 = NextBlock(16), NextBlock(16)
        self.down = nn.Sequential(LayerNormFirst(16), nn.Conv2d(16, 24, 2, stride=2))
        self.meta, self.norm = MetaBlock(24), nn.LayerNorm(24)
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.meta(self.down(self.block2(self.block1(self.stem(x)))))
        return self.head(self.norm(x.mean([-2, -1])))


class MobileOneBlock(nn.Module):
    """A sum of over-parameterized branches, not merged: k convolutions, a scale, a norm."""

    def __init__(self, c: int, k: int, stride: int = 1, groups: int = 1, branches: int = 2) -> None:
        super().__init__()
        self.skip = nn.BatchNorm2d(c) if c == k and stride == 1 else None
        self.convs = nn.ModuleList(conv_bn(c, k, 3, stride, groups) for _ in range(branches))
        self.scale = nn.Sequential(
            nn.Conv2d(c, k, 1, stride, groups=groups, bias=False), nn.BatchNorm2d(k)
        )
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        identity_out = 0
        if self.skip is not None:
            identity_out = self.skip(x)
        out = self.scale(x) + identity_out
        for conv in self.convs:
            out += conv(x)
        return self.activation(out)


class SqueezeMobile(nn.Module):
    """MobileOne's own squeeze and excitation: pools by the sizes that it reads."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, channels // 4, 1)
        self.expand = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        _, c, h, w = inputs.size()
        x = F.avg_pool2d(inputs, kernel_size=[h, w])
        x = torch.sigmoid(self.expand(F.relu(self.reduce(x))))
        return inputs * x.view(-1, c, 1, 1)


@style((1, 3, 24, 24), other=((2, 3, 32, 16),))
class MobileOne(nn.Module):
    """Branches as during training, with a channel shuffle and a partial convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depth = MobileOneBlock(3, 16, 2), MobileOneBlock(16, 16, 1, 16)
        self.squeeze, self.point = SqueezeMobile(16), conv_bn_relu(16, 16, 1)
        self.partial = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.wide = MobileOneBlock(16, 16)
        self.linear = nn.Linear(16, 5)

    def shuffle(self, x: Tensor, groups: int = 4) -> Tensor:
        b, c, h, w = x.size()
        x = x.view(b, groups, c // groups, h, w)
        return torch.transpose(x, 1, 2).contiguous().view(b, -1, h, w)

    def forward(self, x: Tensor) -> Tensor:
        x = self.point(self.squeeze(self.depth(self.stem(x))))
        x1, x2 = torch.split(x, [4, 12], dim=1)  # as in FasterNet
        x = torch.cat((self.partial(x1), x2), 1)
        x = self.wide(self.shuffle(x))
        x = F.adaptive_avg_pool2d(x, output_size=1)
        return self.linear(x.view(x.size(0), -1))


class TwoPlusOne(nn.Sequential):
    """R(2+1)D: a convolution in space, then one in time."""

    def __init__(self, c: int, k: int, stride: int = 1) -> None:
        middle = 10
        super().__init__(
            nn.Conv3d(c, middle, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False),
            nn.BatchNorm3d(middle), nn.ReLU(inplace=True),
            nn.Conv3d(middle, k, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False),
            nn.BatchNorm3d(k),
        )  # fmt: skip


@style((1, 4, 3, 16, 16), other=((2, 4, 3, 16, 20),))
class Video(nn.Module):
    """R(2+1)D blocks on clips, and a temporal shift module on the same frames as a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = nn.Conv2d(3, 8, 3, padding=1)
        self.stem, self.body = TwoPlusOne(3, 8), TwoPlusOne(8, 8)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Conv3d(8, 4, 1)
        self.fc = nn.Linear(8, 4)

    def shift(self, x: Tensor, n_segment: int, fold: int = 2) -> Tensor:
        nt, c, h, w = x.size()
        x = x.view(nt // n_segment, n_segment, c, h, w)
        out = torch.zeros_like(x)
        out[:, :-1, :fold] = x[:, 1:, :fold]  # shift left
        out[:, 1:, fold : 2 * fold] = x[:, :-1, fold : 2 * fold]  # shift right
        out[:, :, 2 * fold :] = x[:, :, 2 * fold :]  # not shift
        return out.view(nt, c, h, w)

    def forward(self, clip: Tensor) -> Tensor:
        b, t = clip.shape[:2]
        frames = self.frame(self.shift(self.frame_input(clip), t))
        frames = self.fc(frames.relu().mean((2, 3))).view(b, t, -1).mean(1)
        y = self.relu(self.stem(clip.transpose(1, 2)))
        out = self.body(y)
        out += y
        y = self.head(self.relu(out))
        return F.adaptive_avg_pool3d(y, 1).flatten(1) + frames

    def frame_input(self, clip: Tensor) -> Tensor:
        flat = clip.reshape(-1, clip.shape[2], clip.shape[3], clip.shape[4])
        return torch.cat((flat, flat * 0.5), 1)[:, :3]


@style((1, 1, 32, 48), other=((1, 1, 32, 64),))
class TextLine(nn.Module):
    """CRNN without its RNN: the height is pooled to one, then time comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 8, 3, 1, 1), nn.ReLU(True), nn.MaxPool2d(2, 2),
            *conv_bn_relu(8, 12), nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
            *conv_bn_relu(12, 16), nn.MaxPool2d(kernel_size=(2, 1), stride=(2, 1)),
            nn.Conv2d(16, 16, (4, 2), 1, 0), nn.BatchNorm2d(16), nn.LeakyReLU(0.2, inplace=True),
        )  # fmt: skip
        self.gate, self.mix = nn.Conv1d(16, 32, 3, padding=1), nn.Linear(16, 16)
        self.norm, self.embedding = nn.LayerNorm(16), nn.Linear(16, 11)

    def forward(self, x: Tensor) -> Tensor:
        conv = self.cnn(x)
        _, _, h, _ = conv.size()
        assert h == 1, "the height of conv must be 1"
        conv = conv.squeeze(2)
        conv = conv + F.glu(self.gate(conv), dim=1)
        conv = conv.permute(2, 0, 1)  # [w, b, c]
        t, b, h = conv.size()
        conv = self.norm(conv + torch.tanh(self.mix(conv)))
        output = self.embedding(conv.view(t * b, h)).view(t, b, -1)
        return F.log_softmax(output, dim=2)
