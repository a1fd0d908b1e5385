# SPDX-License-Identifier: BSD-3-Clause
"""Small models as people write them: part one, forwards that read sizes.

They were written before reading how torchalgo captures a model. `models_as_given_io.py` and
`models_as_given_layers.py` hold the others. `GIVEN` lists all models that were imported.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm2d, nn.BatchNorm3d)
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Given:
    """A model and the inputs that it is called with."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int, int], Any]
    batches: tuple[int, ...]
    sizes: tuple[int, ...]
    planned: tuple[int, int]

    @property
    def name(self) -> str:
        return self.make.__name__

    def model(self) -> nn.Module:
        """Returns a new model in eval mode: the same weights at each call."""
        torch.manual_seed(zlib.crc32(self.name.encode()))
        model = self.make()
        for module in model.modules():
            if isinstance(module, BATCH_NORMS) and module.track_running_stats:
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
                nn.init.uniform_(module.weight, 0.5, 1.5)
        return model.eval()

    def arguments(self, batch: int, size: int) -> Arguments:
        """Returns new args and kwargs: the same values at each call."""
        torch.manual_seed(1000 * batch + size)
        inputs = self.inputs(batch, size)
        args, kwargs = inputs if isinstance(inputs, tuple) else ((inputs,), {})
        return args, kwargs


GIVEN: dict[str, Given] = {}


def image(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 3, size, size)


def given(
    inputs: Callable[[int, int], Any] = image,
    batches: tuple[int, ...] = (1, 2, 5),
    sizes: tuple[int, ...] = (16, 24, 33),
    planned: tuple[int, int] = (1, 16),
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Registers a model. The plan is made for `planned`; calls use all `batches` and `sizes`."""

    def register(model: type[nn.Module]) -> type[nn.Module]:
        GIVEN[model.__name__] = Given(model, inputs, batches, sizes, planned)
        return model

    return register


def conv_bn_relu(c: int, k: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    conv = nn.Conv2d(c, k, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(k), nn.ReLU(inplace=True))


@given(batches=(1, 2, 25), sizes=(32, 20, 40), planned=(1, 32))
class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(400, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.conv1(x)), 2)
        y = F.max_pool2d(F.relu(self.conv2(y)), 2)
        y = y.view(-1, 400)
        return self.fc2(F.relu(self.fc1(y)))


@given(sizes=(16, 18, 32))
class FlattenByComputedSize(nn.Module):
    """Flattens by a computed size, pools only where the image is large, as tutorials do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_bn_relu(3, 8, stride=2)
        self.fc = nn.Linear(8 * 8 * 8, 5)

    def features(self, x: Tensor) -> int:
        count = 1
        for size in x.size()[1:]:
            count *= size
        return count

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if y.shape[2] > 8:
            y = F.adaptive_avg_pool2d(y, (8, 8))
        y = y.view(-1, self.features(y))
        return self.fc(y)


@given()
class MeanOverTheBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y / len(x) + y.sum(dim=0) / y.numel()


@given()
class LoopOverTheBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = conv_bn_relu(3, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        results = []
        for i in range(x.shape[0]):
            y = self.conv(x[i : i + 1])
            results.append(self.head(y * (y.max() + i)))
        return torch.cat(results)


@given(sizes=(16, 20, 24))
class SizeTable(nn.Module):
    SHIFT: ClassVar = {16: 1.0, 20: 2.0}

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.SHIFT.get(x.shape[-1], 3.0)


@given(sizes=(16, 32, 33))
class HalveUntilSmall(nn.Module):
    """One block, applied until the image is small."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 8, 3, padding=1), conv_bn_relu(8, 8, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        while y.shape[-1] > 4:
            y = self.block(y)
        return y.mean((2, 3))


@given()
class ChannelsByShape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_bn_relu(3, 16)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        kept = min(y.shape[1], x.shape[-1] // 2)
        mask = torch.zeros(16)
        mask[:kept] = 16 / kept
        return self.head(y * mask.view(1, -1, 1, 1))


@given(sizes=(24, 16, 33), planned=(2, 24))
class EarlyReturn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = conv_bn_relu(3, 8), conv_bn_relu(8, 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.small(x)
        if x.size(2) < 20:
            return y
        y = self.large(y)
        if x.size(0) > 4:
            return y.mean(0, keepdim=True)
        return y


@given(sizes=(16, 17, 32))
class CachedGrid(nn.Module):
    """CoordConv, which keeps the grid of the last size as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_bn_relu(5, 8)
        self.grid: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        if self.grid is None or self.grid.shape[-2:] != (h, w):
            ys, xs = torch.linspace(-1, 1, h), torch.linspace(-1, 1, w)
            self.grid = torch.stack(torch.meshgrid(ys, xs, indexing="ij"))
        return self.conv(torch.cat([x, self.grid.expand(n, -1, -1, -1)], 1))


@given(sizes=(16, 20, 36))
class UNet(nn.Module):
    """Skips are cropped to the size of what is upsampled, as in the paper without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = conv_bn_relu(3, 8), conv_bn_relu(8, 16)
        self.bottom = conv_bn_relu(16, 16)
        self.up1 = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.up2 = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.merge1, self.merge2 = conv_bn_relu(24, 8), nn.Conv2d(16, 8, 3)
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def crop(skip: Tensor, like: Tensor) -> Tensor:
        dy = (skip.size(2) - like.size(2)) // 2
        dx = (skip.size(3) - like.size(3)) // 2
        return skip[:, :, dy : dy + like.size(2), dx : dx + like.size(3)]

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        y = self.up1(self.bottom(F.max_pool2d(b, 2)))
        y = self.up2(self.merge1(torch.cat([self.crop(b, y), y], 1)))
        y = self.merge2(torch.cat([self.crop(a, y), y], 1))
        return self.head(y)


@given(sizes=(32, 48, 50), planned=(1, 32))
class FeaturePyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            [conv_bn_relu(3, 8, stride=2), conv_bn_relu(8, 16, stride=2), conv_bn_relu(16, 24)]
        )
        self.lateral = nn.ModuleList([nn.Conv2d(c, 8, 1) for c in (8, 16, 24)])
        self.smooth = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = []
        for i, stage in enumerate(self.stages):
            x = F.max_pool2d(stage(x), 2) if i == 2 else stage(x)
            features.append(x)
        levels = [lateral(f) for lateral, f in zip(self.lateral, features, strict=True)]
        for i in range(len(levels) - 1, 0, -1):
            up = F.interpolate(levels[i], size=levels[i - 1].shape[-2:], mode="nearest")
            levels[i - 1] = levels[i - 1] + up
        return {
            f"p{i}": smooth(y)
            for i, (smooth, y) in enumerate(zip(self.smooth, levels, strict=True))
        }


@given(sizes=(16, 12, 24))
class PixelAttention(nn.Module):
    """A non-local block: every pixel attends to every other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn_relu(3, 16, stride=2)
        self.qkv, self.out = nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        b, c, h, w = y.shape
        q, k, v = self.qkv(y).reshape(b, 3, 4, c // 4, h * w).unbind(1)
        weights = (q.transpose(-1, -2) @ k / math.sqrt(h * w)).softmax(-1)
        mixed = (v @ weights.transpose(-1, -2)).reshape(b, c, h, w)
        return y + self.out(mixed)


@given(sizes=(16, 24, 40))
class SmallViT(nn.Module):
    """Position embeddings are sliced by the number of patches; more than 64 raise."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 65, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), y], dim=1)
        y = y + self.positions[:, : y.size(1)]
        return self.head(self.encoder(y)[:, 0])


@given(sizes=(16, 18, 23))
class WindowAttention(nn.Module):
    """Pads to whole windows, mixes inside each, and crops: as Swin does."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.mix = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        b, c, h, w = y.shape
        right, bottom = (8 - w % 8) % 8, (8 - h % 8) % 8
        if right > 0 or bottom > 0:
            y = F.pad(y, (0, right, 0, bottom))
        rows, columns = y.shape[2] // 8, y.shape[3] // 8
        y = y.view(b, c, rows, 8, columns, 8).permute(0, 2, 4, 1, 3, 5).reshape(-1, c, 64)
        y = y + self.mix(y)
        y = y.view(b, rows, columns, c, 8, 8).permute(0, 3, 1, 4, 2, 5)
        return self.head(y.reshape(b, c, rows * 8, columns * 8)[:, :, :h, :w].contiguous())


@given(sizes=(24, 32, 27), planned=(1, 24))
class PyramidPooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn_relu(3, 8, stride=2)
        self.reduce = nn.ModuleList([nn.Conv2d(8, 4, 1) for _ in range(3)])
        self.head = nn.Conv2d(20, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        size = [int(s) for s in y.shape[2:]]
        parts = [y]
        for bins, reduce in zip((1, 2, 3), self.reduce, strict=True):
            pooled = reduce(F.adaptive_avg_pool2d(y, bins))
            parts.append(F.interpolate(pooled, size, mode="bilinear", align_corners=False))
        kernel = (size[0] // 2, size[1] // 2)
        whole = F.avg_pool2d(y, kernel_size=kernel).amax((2, 3), keepdim=True)
        return self.head(torch.cat(parts, 1)) * torch.sigmoid(whole.mean(1, keepdim=True))


@given(sizes=(15, 16, 33), planned=(1, 15))
class Autoencoder(nn.Module):
    """Transposed convolutions with output_padding and with output_size of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = conv_bn_relu(3, 8, stride=2), conv_bn_relu(8, 12, stride=2)
        self.up1 = nn.ConvTranspose2d(12, 8, 3, stride=2, padding=1, output_padding=1)
        self.up2 = nn.ConvTranspose2d(8, 3, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        y = F.relu(self.up1(self.down2(a)))
        y = y[..., : a.shape[-2], : a.shape[-1]]
        return self.up2(y + a, output_size=x.size())


@given()
class ChannelShuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.grouped = conv_bn_relu(3, 16), conv_bn_relu(8, 8, groups=4)
        self.squeeze, self.excite = nn.Linear(16, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, 1)
        y = torch.cat([left, self.grouped(right)], 1)
        b, c, h, w = y.size()
        y = y.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)
        scale = y.sum((2, 3)) / (h * w)
        scale = self.excite(F.relu(self.squeeze(scale))).sigmoid().view(b, c, 1, 1)
        return y * scale.expand_as(y)


@given(sizes=(16, 21, 32))
class HyperNetwork(nn.Module):
    """Each image has filters of its own: one grouped convolution with the batch as groups."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.weights = conv_bn_relu(3, 8), nn.Linear(8, 4 * 8 * 9)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        b, c, h, w = y.shape
        filters = self.weights(y.mean((2, 3))).view(b * 4, c, 3, 3)
        y = F.conv2d(y.reshape(1, b * c, h, w), filters, padding=1, groups=b)
        return y.view(b, 4, h, w)


@given(sizes=(16, 20, 30))
class Patches(nn.Module):
    """unfold and fold with sizes computed in Python; divides by how often a pixel was covered."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix = nn.Conv2d(3, 4, 3, padding=1), nn.Conv1d(64, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        h, w = y.shape[-2:]
        count = ((h - 4) // 2 + 1) * ((w - 4) // 2 + 1)
        columns = F.unfold(y, 4, stride=2)
        assert columns.shape[-1] == count, "the image has an odd size"
        columns = self.mix(columns)
        cover = F.fold(torch.ones(1, 64, count), (h, w), 4, stride=2)
        return F.fold(columns, output_size=(h, w), kernel_size=4, stride=2) / cover


@given()
class BatchStatistics(nn.Module):
    """Batch norm without running statistics normalizes by the batch, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8, track_running_stats=False)
        self.instance = nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return self.instance(y) if x.shape[0] > 1 and x.shape[2] > 1 else y
