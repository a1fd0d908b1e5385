# SPDX-License-Identifier: BSD-3-Clause
"""Small networks in the style of their fields: part three, pairs, restoration, sound, video."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.other_styles import SqueezeExcite, conv_bn, conv_bn_relu, style


@style((1, 3, 16, 16), (1, 3, 32, 32), other=((1, 3, 16, 16), (1, 3, 40, 40)))
class SiameseTracker(nn.Module):
    """SiamRPN++: the template's features are the weights of a depthwise correlation."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            *conv_bn_relu(3, 12, stride=2), nn.MaxPool2d(2), *conv_bn(12, 16)
        )
        self.kernel, self.search = conv_bn_relu(16, 16), conv_bn_relu(16, 16)
        self.cls = nn.Sequential(*conv_bn_relu(16, 16, 1), nn.Conv2d(16, 4, 1))
        self.loc_scale = nn.Parameter(torch.ones(1))
        self.loc = nn.Conv2d(16, 4, 1)

    def correlate(self, x: Tensor, kernel: Tensor) -> Tensor:
        batch, channel = kernel.size(0), kernel.size(1)
        x = x.view(1, batch * channel, x.size(2), x.size(3))
        kernel = kernel.view(batch * channel, 1, kernel.size(2), kernel.size(3))
        out = F.conv2d(x, kernel, groups=batch * channel)
        return out.view(batch, channel, out.size(2), out.size(3))

    def forward(self, template: Tensor, search: Tensor) -> tuple[Tensor, Tensor]:
        z, x = self.backbone(template), self.backbone(search)
        y = self.correlate(self.search(x), self.kernel(z))
        logits = self.cls(y)
        b, a2, h, w = logits.size()
        logits = logits.view(b, 2, a2 // 2, h, w).permute(0, 2, 3, 4, 1).contiguous()
        return F.log_softmax(logits, dim=4), torch.exp(0.1 * self.loc_scale * self.loc(y))


@style((1, 3, 16, 32), (1, 3, 16, 32), other=((2, 3, 24, 40), (2, 3, 24, 40)))
class Stereo(nn.Module):
    """GC-Net in small: slices fill a cost volume, 3-D convolutions, a soft argmin."""

    def __init__(self, levels: int = 4) -> None:
        super().__init__()
        self.levels = levels
        self.features = nn.Sequential(*conv_bn_relu(3, 8, stride=2), nn.Conv2d(8, 6, 3, padding=1))
        self.conv1 = nn.Conv3d(13, 8, 3, padding=1)
        self.norm, self.conv2 = nn.BatchNorm3d(8), nn.Conv3d(8, 1, 3, padding=1)
        self.refine = nn.Conv2d(4, 1, 3, padding=1)

    def volume(self, left: Tensor, right: Tensor) -> Tensor:
        b, c, h, w = left.size()
        cost = left.new_zeros(b, 2 * c + 1, self.levels, h, w)
        for i in range(self.levels):
            if i > 0:
                cost[:, :c, i, :, i:] = left[:, :, :, i:]
                cost[:, c : 2 * c, i, :, i:] = right[:, :, :, :-i]
                cost[:, 2 * c, i, :, i:] = (left[:, :, :, i:] * right[:, :, :, :-i]).mean(dim=1)
            else:
                cost[:, :c, i, :, :] = left
                cost[:, c : 2 * c, i, :, :] = right
                cost[:, 2 * c, i, :, :] = (left * right).mean(dim=1)
        return cost.contiguous()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        cost = self.volume(self.features(left), self.features(right))
        cost = self.conv2(F.relu(self.norm(self.conv1(cost)), inplace=True))
        cost = F.interpolate(cost.squeeze(1), scale_factor=2, mode="bilinear", align_corners=False)
        values = torch.arange(self.levels, dtype=cost.dtype).view(1, -1, 1, 1)
        disparity = torch.sum(F.softmax(-cost, dim=1) * values, 1, keepdim=True) * 2
        residual = self.refine(torch.cat([left, disparity], dim=1))
        return F.relu(disparity + residual).squeeze(1)


class ResBlock(nn.Module):
    """EDSR's block: no norm, and a residual that is scaled in place."""

    def __init__(self, channels: int, res_scale: float = 0.1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(True),
            nn.Conv2d(channels, channels, 3, padding=1),
        )  # fmt: skip
        self.res_scale = res_scale

    def forward(self, x: Tensor) -> Tensor:
        res = self.body(x).mul(self.res_scale)
        res += x
        return res


class DenseResidual(nn.Module):
    """ESRGAN's block: dense connections, and 0.2 of the result."""

    def __init__(self, channels: int, growth: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, growth, 3, 1, 1)
        self.conv2 = nn.Conv2d(channels + growth, growth, 3, 1, 1)
        self.conv3 = nn.Conv2d(channels + 2 * growth, channels, 3, 1, 1)
        self.lrelu = nn.LeakyReLU(negative_slope=0.2, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.lrelu(self.conv1(x))
        x2 = self.lrelu(self.conv2(torch.cat((x, x1), 1)))
        x3 = self.conv3(torch.cat((x, x1, x2), 1))
        return x3 * 0.2 + x


@style((1, 3, 16, 16), other=((2, 3, 12, 20),))
class Edsr(nn.Module):
    """EDSR with a mean shift, dense residuals, channel attention, pixel (un)shuffle, a clamp."""

    def __init__(self) -> None:
        super().__init__()
        self.rgb_range = 255.0
        self.register_buffer("mean", torch.tensor([0.4488, 0.4371, 0.4040]).view(1, 3, 1, 1))
        self.head = nn.Conv2d(3, 12, 3, padding=1)
        self.body = nn.Sequential(ResBlock(12), DenseResidual(12), ResBlock(12))
        self.attention = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(12, 3, 1), nn.ReLU(inplace=True),
            nn.Conv2d(3, 12, 1), nn.Sigmoid(),
        )  # fmt: skip
        self.tail = nn.Sequential(
            nn.Conv2d(12, 48, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(12, 3, 3, padding=1)
        )
        self.detail = nn.Conv2d(12, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = x - self.mean * self.rgb_range
        x = self.head(x)
        res = self.body(x)
        res = res * self.attention(res)
        res += x
        y = self.tail(res)
        y = y + F.pixel_shuffle(self.detail(F.pixel_unshuffle(y, 2)), 2)
        return (y / self.rgb_range + self.mean).clamp_(0.0, 1.0)


class UpsampleConv(nn.Module):
    """Upsampling in Johnson's fast style transfer: it resizes, then pads by reflection."""

    def __init__(self, c: int, k: int, upsample: int = 0) -> None:
        super().__init__()
        self.upsample, self.pad = upsample, nn.ReflectionPad2d(1)
        self.conv = nn.Conv2d(c, k, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.upsample:
            x = F.interpolate(x, mode="nearest", scale_factor=self.upsample)
        return self.conv(self.pad(x))


@style((1, 3, 24, 24), (1, 3, 16, 20), other=((2, 3, 16, 32), (2, 3, 24, 24)))
class AdaptiveStyle(nn.Module):
    """AdaIN: the content's features get the style's mean and deviation; residual decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 3, 1), nn.ReflectionPad2d((1, 1, 1, 1)), nn.Conv2d(3, 12, 3), nn.ReLU(),
            nn.MaxPool2d((2, 2), (2, 2), (0, 0), ceil_mode=True), UpsampleConv(12, 16),
        )  # fmt: skip
        self.res1, self.res2 = UpsampleConv(16, 16), UpsampleConv(16, 16)
        self.in1 = nn.InstanceNorm2d(16, affine=True)
        self.in2 = nn.InstanceNorm2d(16, affine=True)
        self.decoder = nn.Sequential(UpsampleConv(16, 8, 2), nn.ReLU(), UpsampleConv(8, 3))

    def moments(self, feat: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
        n, c = feat.size()[:2]
        feat_var = feat.view(n, c, -1).var(dim=2) + eps
        feat_std = feat_var.sqrt().view(n, c, 1, 1)
        return feat.view(n, c, -1).mean(dim=2).view(n, c, 1, 1), feat_std

    def forward(self, content: Tensor, style: Tensor, alpha: float = 0.75) -> Tensor:
        content, style = self.encoder(content), self.encoder(style)
        size = content.size()
        style_mean, style_std = self.moments(style)
        mean, std = self.moments(content)
        t = (content - mean.expand(size)) / std.expand(size)
        t = t * style_std.expand(size) + style_mean.expand(size)
        t = alpha * t + (1 - alpha) * content
        t = self.in2(self.res2(F.relu(self.in1(self.res1(t))))) + t
        return (torch.tanh(self.decoder(t)) + 1) / 2


class GlobalNorm(nn.Module):
    """Conv-TasNet's gLN over channels and time."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1))

    def forward(self, y: Tensor) -> Tensor:
        mean = y.mean(dim=1, keepdim=True).mean(dim=2, keepdim=True)
        var = (torch.pow(y - mean, 2)).mean(dim=1, keepdim=True).mean(dim=2, keepdim=True)
        return self.gamma * (y - mean) / torch.pow(var + 1e-8, 0.5) + self.beta


@style((1, 160), other=((2, 240),))
class TasNet(nn.Module):
    """Separation: a learned filter bank, dilated depthwise blocks, masks for two speakers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, 16, 8, stride=4, bias=False)
        self.bottleneck = nn.Sequential(GlobalNorm(16), nn.Conv1d(16, 12, 1))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(12, 24, 1, bias=False), nn.PReLU(), GlobalNorm(24),
                nn.Conv1d(24, 24, 3, padding=d, dilation=d, groups=24, bias=False), nn.PReLU(),
                GlobalNorm(24),
            )
            for d in (1, 2, 4)
        )  # fmt: skip
        self.residuals = nn.ModuleList(nn.Conv1d(24, 12, 1) for _ in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(24, 12, 1) for _ in range(3))
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(12, 32, 1), nn.Sigmoid())
        self.decoder = nn.ConvTranspose1d(16, 1, 8, stride=4, bias=False)

    def forward(self, mixture: Tensor) -> Tensor:
        w = F.relu(self.encoder(torch.unsqueeze(mixture, 1)))
        x = self.bottleneck(w)
        skips: Tensor | float = 0.0
        for block, residual, skip in zip(self.blocks, self.residuals, self.skips, strict=True):
            y = block(x)
            x = x + residual(y)
            skips = skips + skip(y)
        b, _, frames = w.shape
        masks = self.mask(skips).view(b, 2, 16, frames)
        sources = w.unsqueeze(1) * masks
        return self.decoder(sources.view(b * 2, 16, frames)).view(b, 2, -1)


@style((1, 1, 64), other=((3, 1, 90),))
class WaveNet(nn.Module):
    """Causal padding, tanh times sigmoid, residuals times sqrt(0.5), a sum of skips."""

    def __init__(self) -> None:
        super().__init__()
        self.dilations = (1, 2, 4, 8)
        self.start = nn.Conv1d(1, 12, 1)
        self.gates = nn.ModuleList(nn.Conv1d(12, 24, 2, dilation=d) for d in self.dilations)
        self.skips = nn.ModuleList(nn.Conv1d(12, 16, 1) for _ in self.dilations)
        self.outs = nn.ModuleList(nn.Conv1d(12, 12, 1) for _ in self.dilations)
        self.end1, self.end2 = nn.Conv1d(16, 16, 1), nn.Conv1d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        skips = []
        for d, gate, skip, out in zip(
            self.dilations, self.gates, self.skips, self.outs, strict=True
        ):
            residual = x
            a, b = gate(F.pad(x, (d, 0))).split(12, dim=1)
            z = torch.tanh(a) * torch.sigmoid(b)
            skips.append(skip(z))
            x = (out(z) + residual) * (0.5**0.5)
        y = torch.stack(skips).sum(dim=0)
        return self.end2(F.relu(self.end1(F.relu(y))))


@style((1, 2, 192), other=((2, 2, 200),))
class Demucs(nn.Module):
    """A U-Net over samples: GLU, the input normalized by its own statistics, cropped skips."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        for c, k in ((2, 8), (8, 16)):
            self.encoder.append(
                nn.Sequential(
                    nn.Conv1d(c, k, 8, 4), nn.ReLU(), nn.Conv1d(k, 2 * k, 1), nn.GLU(dim=1)
                )
            )
            last: list[nn.Module] = [] if c == 2 else [nn.ReLU()]
            decode = nn.Sequential(
                nn.Conv1d(k, 2 * k, 3, padding=1), nn.GLU(dim=1),
                nn.ConvTranspose1d(k, c, 8, 4), *last,
            )  # fmt: skip
            self.decoder.insert(0, decode)

    def forward(self, mix: Tensor) -> Tensor:
        mono = mix.mean(dim=1, keepdim=True)
        mean = mono.mean(dim=-1, keepdim=True)
        std = mono.std(dim=-1, keepdim=True)
        x = (mix - mean) / (1e-5 + std)
        saved = []
        for encode in self.encoder:
            x = encode(x)
            saved.append(x)
        for decode in self.decoder:
            skip = saved.pop(-1)
            delta = skip.size(-1) - x.size(-1)
            skip = skip[..., delta // 2 : skip.size(-1) - (delta - delta // 2)]
            x = decode(x + skip)
        return x * std + mean


class BroadcastBlock(nn.Module):
    """BC-ResNet: the mean over frequencies is convolved in time and broadcast back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.f2 = nn.Sequential(
            nn.Conv2d(channels, channels, (3, 1), padding=(1, 0), groups=channels, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.f1 = nn.Sequential(
            nn.Conv2d(channels, channels, (1, 3), padding=(0, 1), groups=channels, bias=False),
            nn.BatchNorm2d(channels), nn.SiLU(inplace=True), nn.Conv2d(channels, channels, 1),
        )  # fmt: skip
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.f2(x)
        aux = out
        out = F.avg_pool2d(out, (out.size(2), 1))
        out = self.f1(out)
        return self.relu(x + out + aux)


@style((1, 1, 40, 32), other=((2, 1, 40, 50),))
class KeywordSpotting(nn.Module):
    """BC-ResNet on a spectrogram in decibels, with a DS-CNN's stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 5, stride=(2, 1), padding=2), nn.ReLU())
        self.blocks = nn.Sequential(BroadcastBlock(16), BroadcastBlock(16))
        self.separable = nn.Sequential(*conv_bn_relu(16, 16, groups=16), *conv_bn_relu(16, 20, 1))
        self.squeeze = SqueezeExcite(20)
        self.classifier = nn.Conv2d(20, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.log(x.abs() + 1e-2)
        x = (x - x.mean(dim=-1, keepdim=True)) * 0.25
        x = self.squeeze(self.separable(self.blocks(self.stem(x))))
        x = torch.mean(x, dim=2, keepdim=True)
        x = self.classifier(x)
        return F.log_softmax(x.mean(-1, keepdim=True).squeeze(), dim=-1)
