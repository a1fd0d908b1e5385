# SPDX-License-Identifier: BSD-3-Clause
"""Small networks in the style of their fields: part two, dense prediction and detection."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.other_styles import conv_bn, conv_bn_relu, style


class AttentionGate(nn.Module):
    """The gate of Attention U-Net: the decoder's signal weights the encoder's features."""

    def __init__(self, f_g: int, f_l: int, f_int: int) -> None:
        super().__init__()
        self.w_g = nn.Sequential(nn.Conv2d(f_g, f_int, 1), nn.BatchNorm2d(f_int))
        self.w_x = nn.Sequential(nn.Conv2d(f_l, f_int, 1), nn.BatchNorm2d(f_int))
        self.psi = nn.Sequential(nn.Conv2d(f_int, 1, 1), nn.BatchNorm2d(1), nn.Sigmoid())
        self.relu = nn.ReLU(inplace=True)

    def forward(self, g: Tensor, x: Tensor) -> Tensor:
        psi = self.relu(self.w_g(g) + self.w_x(x))
        psi = self.psi(psi)
        return x * psi


@style((1, 1, 20, 28), other=((2, 1, 24, 17),))
class AttentionUNet(nn.Module):
    """Gates at both skips; one level grows by a transposed convolution, one by resizing."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1 = nn.Sequential(*conv_bn_relu(1, 8), *conv_bn_relu(8, 8))
        self.enc2, self.enc3 = conv_bn_relu(8, 16), conv_bn_relu(16, 24)
        self.up2 = nn.ConvTranspose2d(24, 16, kernel_size=2, stride=2)
        self.up1 = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), *conv_bn_relu(16, 8)
        )
        self.gate2, self.gate1 = AttentionGate(16, 16, 8), AttentionGate(8, 8, 4)
        self.dec2, self.dec1 = conv_bn_relu(32, 16), conv_bn_relu(16, 8)
        self.out = nn.Conv2d(8, 2, 1)

    def join(self, x1: Tensor, x2: Tensor, gate: nn.Module) -> Tensor:
        # input is CHW
        dy, dx = x2.size()[2] - x1.size()[2], x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return torch.cat((gate(x1, x2), x1), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        e3 = self.enc3(F.max_pool2d(e2, 2))
        d2 = self.dec2(self.join(self.up2(e3), e2, self.gate2))
        d1 = self.dec1(self.join(self.up1(d2), e1, self.gate1))
        return self.out(d1)


class Aspp(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        dilated = [
            nn.Sequential(
                nn.Conv2d(channels, 8, 3, padding=d, dilation=d, bias=False),
                nn.BatchNorm2d(8), nn.ReLU(),
            )
            for d in (2, 4)
        ]  # fmt: skip
        self.convs = nn.ModuleList([conv_bn_relu(channels, 8, 1), *dilated])
        self.pooling = nn.Sequential(nn.AdaptiveAvgPool2d(1), *conv_bn_relu(channels, 8, 1))
        self.project = nn.Sequential(*conv_bn_relu(32, 16, 1), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        res = [conv(x) for conv in self.convs]
        size = x.shape[-2:]
        pooled = F.interpolate(self.pooling(x), size=size, mode="bilinear", align_corners=False)
        res.append(pooled)
        return self.project(torch.cat(res, dim=1))


@style((1, 3, 32, 40), other=((2, 3, 24, 24),))
class DeepLab(nn.Module):
    """DeepLabv3+: pooling over the image, low-level features, an auxiliary head, a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = conv_bn_relu(3, 12, stride=2), conv_bn_relu(12, 16, stride=2)
        self.aspp, self.reduce = Aspp(16), conv_bn_relu(12, 6, 1)
        self.classifier = nn.Sequential(*conv_bn_relu(22, 16), nn.Conv2d(16, 5, 1))
        self.aux = nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        input_shape = x.shape[-2:]
        low = self.low(x)
        high = self.high(low)
        y = F.interpolate(self.aspp(high), low.shape[2:], mode="bilinear", align_corners=True)
        y = self.classifier(torch.cat((y, self.reduce(low)), dim=1))
        result = {"out": F.interpolate(y, input_shape, mode="bilinear", align_corners=False)}
        result["aux"] = F.interpolate(self.aux(high), size=input_shape, mode="bilinear")
        return result


class Separable(nn.Module):
    """Depthwise, pointwise, norm, and the swish that EfficientDet writes by hand."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, 1, 1, groups=channels, bias=False)
        self.pointwise, self.bn = nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.pointwise(self.depthwise(x)))


def swish(x: Tensor) -> Tensor:
    return x * x.sigmoid()


class BiFpnLayer(nn.Module):
    """Fast normalized fusion: learned weights, made positive and divided by their sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.epsilon = 1e-4
        self.fusion_up = nn.Parameter(torch.ones(2))
        self.fusion_down = nn.Parameter(torch.ones(3))
        self.conv_up, self.conv_mid, self.conv_down = (Separable(channels) for _ in range(3))

    def forward(self, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        p3, p4, p5 = inputs
        w = F.relu(self.fusion_up)
        weight = w / (torch.sum(w, dim=0) + self.epsilon)
        up = F.interpolate(p5, scale_factor=2, mode="nearest")
        p4_up = self.conv_up(swish(weight[0] * p4 + weight[1] * up))
        p3_out = self.conv_mid(swish(p3 + F.interpolate(p4_up, scale_factor=2, mode="nearest")))
        w = F.relu(self.fusion_down)
        weight = w / (torch.sum(w, dim=0) + self.epsilon)
        down = F.max_pool2d(p3_out, 3, 2, 1)
        p4_out = self.conv_down(swish(weight[0] * p4 + weight[1] * p4_up + weight[2] * down))
        return p3_out, p4_out, F.max_pool2d(p4_out, kernel_size=2) + p5


@style((1, 3, 32, 32), other=((3, 3, 32, 32),))
class BiFpn(nn.Module):
    """EfficientDet in small: two layers of BiFPN, and one head for all levels."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.stem = conv_bn_relu(3, 12, stride=2)
        self.stages = nn.ModuleList(conv_bn_relu(12, 12, stride=2) for _ in range(3))
        self.bifpn = nn.Sequential(BiFpnLayer(12), BiFpnLayer(12))
        self.head = nn.Conv2d(12, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem((x - self.mean) / self.std)
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        found = []
        for level in self.bifpn(tuple(levels)):
            y = self.head(level).permute(0, 2, 3, 1)
            found.append(y.contiguous().view(y.shape[0], -1, 3))
        return torch.cat(found, dim=1).sigmoid()


class Csp(nn.Module):
    """The C2f block: chunks of a list that grows, joined at the end."""

    def __init__(self, c1: int, c2: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = conv_bn_relu(c1, c2, 1), conv_bn_relu(2 * c2, c2, 1)
        self.m = nn.ModuleList(
            nn.Sequential(*conv_bn_relu(c2 // 2, c2 // 2), *conv_bn_relu(c2 // 2, c2 // 2))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(x).chunk(2, 1))
        y.extend(y[-1] + m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


class Sppf(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = conv_bn_relu(channels, 8, 1), conv_bn_relu(32, channels, 1)
        self.m = nn.MaxPool2d(kernel_size=5, stride=1, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(x)
        y1 = self.m(x)
        y2 = self.m(y1)
        return self.cv2(torch.cat([x, y1, y2, self.m(y2)], 1))


@style((1, 3, 64, 64), other=((2, 3, 32, 96),))
class Yolo(nn.Module):
    """Focus slices, CSP blocks, a path aggregation network, and boxes decoded on a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors = ((1.25, 1.6), (2.0, 3.75))
        self.focus = nn.Sequential(nn.Conv2d(12, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8))
        self.act = nn.SiLU(inplace=True)
        self.p3 = nn.Sequential(*conv_bn_relu(8, 16, stride=2), Csp(16, 16))
        self.p4 = nn.Sequential(*conv_bn_relu(16, 16, stride=2), Sppf(16))
        self.up, self.fuse = nn.Upsample(None, 2, "nearest"), Csp(32, 16)
        self.down, self.last = conv_bn_relu(16, 16, stride=2), Csp(32, 16)
        self.detect = nn.ModuleList(nn.Conv2d(16, 2 * 7, 1) for _ in range(2))

    def decode(self, level: int, x: Tensor) -> Tensor:
        x = self.detect[level](x)
        bs, _, ny, nx = x.shape
        x = x.view(bs, 2, 7, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
        stride = float(4 << level)
        yv, xv = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
        grid = torch.stack((xv, yv), 2).view(1, 1, ny, nx, 2).to(x.dtype)
        anchors = torch.tensor(self.anchors, dtype=x.dtype).view(1, 2, 1, 1, 2) * stride
        y = x.sigmoid()
        y[..., 0:2] = (y[..., 0:2] * 2.0 - 0.5 + grid) * stride
        y[..., 2:4] = (y[..., 2:4] * 2) ** 2 * anchors
        return y.view(bs, -1, 7)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat(
            [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1
        )
        p3 = self.p3(self.act(self.focus(x)))
        p4 = self.p4(p3)
        p3 = self.fuse(torch.cat([self.up(p4), p3], 1))
        p4 = self.last(torch.cat([self.down(p3), p4], 1))
        return torch.cat([self.decode(0, p3), self.decode(1, p4)], 1), p3


class Hourglass(nn.Module):
    """Recursive: pools, runs itself, grows by the nearest pixel, adds."""

    def __init__(self, depth: int, channels: int) -> None:
        super().__init__()
        self.up1, self.low1 = conv_bn_relu(channels, channels), conv_bn_relu(channels, channels)
        self.low2 = Hourglass(depth - 1, channels) if depth > 1 else conv_bn(channels, channels)
        self.up2 = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x: Tensor) -> Tensor:
        up1 = self.up1(x)
        low = self.low2(self.low1(F.max_pool2d(x, 2, stride=2)))
        return up1 + self.up2(low)


class Exchange(nn.Module):
    """HRNet's fusion of three resolutions: sums of resized and of strided branches."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(conv_bn_relu(c, c) for c in widths)
        self.fuse = nn.ModuleList()
        for i, k in enumerate(widths):
            row: list[Any] = []
            for j, c in enumerate(widths):
                steps = [conv_bn(c, c, 3, 2) for _ in range(i - j)]
                row.append(nn.Sequential(*steps, *conv_bn(c, k, 1)) if i != j else None)
            self.fuse.append(nn.ModuleList(row))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        x = [branch(each) for branch, each in zip(self.branches, x, strict=True)]
        fused = []
        for i, row in enumerate(self.fuse):
            y = x[0] if i == 0 else row[0](x[0])  # type: ignore[index]
            for j in range(1, len(x)):
                if i == j:
                    y = y + x[j]
                elif j > i:
                    size = [x[i].shape[-2], x[i].shape[-1]]
                    grown = F.interpolate(row[j](x[j]), size=size, mode="bilinear")  # type: ignore[index]
                    y = y + grown
                else:
                    y = y + row[j](x[j])  # type: ignore[index]
            fused.append(self.relu(y))
        return fused


@style((1, 3, 32, 32), other=((2, 3, 16, 48),))
class Pose(nn.Module):
    """An exchange unit of HRNet before a stacked hourglass; heat maps of both are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn_relu(3, 8, stride=2)
        self.down = nn.ModuleList([conv_bn_relu(8, 12, stride=2), conv_bn_relu(12, 16, stride=2)])
        self.exchange = nn.Sequential(Exchange((8, 12, 16)), Exchange((8, 12, 16)))
        self.hourglass, self.heat = Hourglass(2, 8), nn.Conv2d(8, 3, 1)
        self.merge_features, self.merge_heat = nn.Conv2d(8, 8, 1), nn.Conv2d(3, 8, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        levels = [x]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = self.exchange(levels)[0]
        heats = []
        for _ in range(2):
            features = self.hourglass(x)
            heats.append(self.heat(features))
            x = x + self.merge_features(features) + self.merge_heat(heats[-1])
        return heats


class DenseBlock(nn.Module):
    """A dense block of torchvision: each layer reads the list of all tensors before it."""

    def __init__(self, channels: int, layers: int, growth: int = 8) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels + i * growth) for i in range(layers))
        self.convs = nn.ModuleList(
            nn.Conv2d(channels + i * growth, growth, 3, padding=1, bias=False)
            for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            concated = torch.cat(features, 1)
            features.append(conv(F.relu(norm(concated), inplace=True)))
        return torch.cat(features, 1)


@style((1, 3, 24, 32), other=((2, 3, 30, 21),))
class HolisticEdges(nn.Module):
    """HED on dense blocks: side outputs, grown by fixed bilinear kernels, cropped, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block1, self.block2 = DenseBlock(8, 2), DenseBlock(12, 2)
        self.transition = nn.Sequential(
            nn.BatchNorm2d(24), nn.ReLU(inplace=True), nn.Conv2d(24, 12, 1, bias=False),
            nn.AvgPool2d(kernel_size=2, stride=2),
        )  # fmt: skip
        self.side1, self.side2 = nn.Conv2d(24, 1, 1), nn.Conv2d(28, 1, 1)
        ramp = torch.tensor([0.25, 0.75, 0.75, 0.25])
        self.register_buffer("kernel", (ramp[:, None] * ramp).view(1, 1, 4, 4))
        self.fuse = nn.Conv2d(2, 1, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        height, width = x.shape[2:]
        one = self.block1(self.stem(x))
        two = self.block2(self.transition(one))
        side1 = self.side1(one)
        side2 = F.conv_transpose2d(self.side2(two), self.kernel, stride=2)
        side2 = side2[:, :, 1 : 1 + height // 2 * 2, 1 : 1 + width // 2 * 2]
        side2 = F.pad(side2, (0, width % 2, 0, height % 2), mode="replicate")
        fused = self.fuse(torch.cat((side1, side2), dim=1))
        return [torch.sigmoid(r) for r in (side1, side2, fused)]
