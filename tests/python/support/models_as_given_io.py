# SPDX-License-Identifier: BSD-3-Clause
"""Small models as people write them: part two, unusual inputs and outputs."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.models_as_given import conv_bn_relu, given, image


class ModelOutput(OrderedDict[str, Any]):
    """Keys are attributes too; None is left out: as in transformers."""

    def __init__(self, **fields: Any) -> None:
        super().__init__((k, v) for k, v in fields.items() if v is not None)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())


def flag_and_image(batch: int, size: int) -> Any:
    return (image(batch, size),), {"output_hidden_states": True}


@given(flag_and_image)
class HuggingFaceLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = {"num_labels": 4, "use_return_dict": True}
        self.embed, self.layer = conv_bn_relu(3, 8, stride=2), conv_bn_relu(8, 8)
        self.classifier = nn.Linear(8, self.config["num_labels"])

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        return_dict = self.config["use_return_dict"] if return_dict is None else return_dict
        states = (self.embed(pixel_values),)
        states = (*states, self.layer(states[-1]))
        logits = self.classifier(states[-1].mean((2, 3)))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        hidden = states if output_hidden_states else None
        if not return_dict:
            return tuple(v for v in (loss, logits, hidden) if v is not None)
        return ModelOutput(loss=loss, logits=logits, hidden_states=hidden)


@dataclasses.dataclass
class Segmentation:
    mask: Tensor
    size: tuple[int, int]
    score: Tensor | None = None


@given()
class DataclassOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = conv_bn_relu(3, 8, stride=2), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Segmentation:
        y = self.head(self.stem(x))
        y = F.interpolate(y, scale_factor=2.0, mode="bilinear")
        return Segmentation(y, (y.shape[2], y.shape[3]), y.amax((1, 2, 3)))


Pair = namedtuple("Pair", ["logits", "aux"])


@given(sizes=(16, 24, 32))
class NamedTupleOutput(nn.Module):
    """An Inception-like block with asymmetric kernels and a fixed-size auxiliary head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn_relu(3, 8)
        self.wide, self.tall = nn.Conv2d(8, 8, (1, 5), padding=(0, 2)), nn.Conv2d(8, 8, (5, 1))
        self.fc, self.aux = nn.Linear(16, 4), nn.Linear(8 * 4 * 4, 4)

    def forward(self, x: Tensor) -> Pair:
        y = self.stem(x)
        aux = self.aux(torch.flatten(F.adaptive_avg_pool2d(y, 4), 1))
        y = torch.cat([self.wide(y), self.tall(F.pad(y, (0, 0, 2, 2)))], 1)
        return Pair(self.fc(y.mean([-2, -1])), aux)


@given(lambda n, s: [torch.randn(3, s, s) for _ in range(n)], sizes=(32, 40, 48), planned=(1, 32))
class Detector(nn.Module):
    """Anchors by the image's size, the best ten by score, one dictionary for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_bn_relu(3, 8, stride=2), conv_bn_relu(8, 16, stride=2))
        self.boxes, self.scores = nn.Conv2d(16, 8, 3, 1, 1), nn.Conv2d(16, 2, 3, 1, 1)

    def anchors(self, rows: int, columns: int, stride: float) -> Tensor:
        ys, xs = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        centres = torch.stack([xs, ys], -1).reshape(-1, 1, 2) * stride
        half = torch.tensor([[4.0, 4.0], [8.0, 6.0]]).view(1, 2, 2)
        return torch.cat([centres - half, centres + half], -1).reshape(-1, 4)

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        x = torch.stack(images)
        y = self.body(x)
        rows, columns = y.shape[-2:]
        anchors = self.anchors(rows, columns, x.shape[-1] / columns)
        scores = self.scores(y).permute(0, 2, 3, 1).reshape(len(images), -1)
        boxes = self.boxes(y).permute(0, 2, 3, 1).reshape(len(images), -1, 4) + anchors
        detections = []
        for score, box in zip(scores.sigmoid(), boxes, strict=True):
            best = score.topk(min(10, score.numel()))
            kept = box[best.indices].clamp(0, x.shape[-1])
            labels = torch.ones(len(kept), dtype=torch.int64)
            detections.append({"boxes": kept, "scores": best.values, "labels": labels})
        return detections


@given(lambda n, s: ((image(n, s), image(n, s)), {}))
class Siamese(nn.Module):
    """One backbone for both inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_bn_relu(3, 8, stride=2), conv_bn_relu(8, 16))

    def embed(self, x: Tensor) -> Tensor:
        return F.normalize(self.backbone(x).flatten(2).mean(-1), dim=1)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        first, second = self.embed(a), self.embed(b)
        return (first - second).pow(2).sum(1).sqrt(), (first, second)


@given(lambda n, s: ((image(n, s),), {"scale": 0.5, "mask": torch.rand(n, 1, s, s) > 0.5}))
class KeywordOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv_bn_relu(3, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor, scale: float = 1.0, *, mask: Tensor | None = None) -> Tensor:
        y = self.conv1(x) * scale
        if mask is not None:
            y = y.masked_fill(~mask, 0.0)
        return self.conv2(y)


@given(lambda n, s: ((image(n, s), None if s == 24 else image(n, s), 2), {}))
class NoneAndNumber(nn.Module):
    """An optional tensor that is sometimes None, and a Python integer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.guide = conv_bn_relu(3, 8), nn.Conv2d(3, 8, 1)

    def forward(self, x: Tensor, guide: Tensor | None, repeat: int) -> Tensor:
        y = self.conv(x)
        if guide is not None:
            y = y + self.guide(guide)
        return y.repeat_interleave(repeat, dim=-1)


@given(lambda n, s: {"image": image(n, s), "depth": torch.rand(n, 1, s, s)})
class DictInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.colour, self.depth = conv_bn_relu(3, 8), conv_bn_relu(1, 8)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        y = self.colour(batch["image"])
        if "depth" in batch:
            y = y + self.depth(batch["depth"])
        head = self.head(y)
        return {"out": head, "pooled": {"mean": head.mean((2, 3)), "max": [head.amax((2, 3))]}}


@given(lambda n, s: [image(n, s), image(n, s // 2)][: 1 + (s != 24)])
class ImagePyramid(nn.Module):
    """A list of one or two images; one set of weights for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = conv_bn_relu(3, 8), nn.Conv2d(8, 2, 1)

    def forward(self, images: list[Tensor]) -> list[Tensor]:
        return [self.head(self.body(x)) for x in images]


@given()
class ChangesItsInput(nn.Module):
    """Normalizes the caller's tensor in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_bn_relu(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5).div_(2)
        y = self.conv(x)
        y[:, 0] = 1.0
        y[..., -1] += x.mean()
        return y.mul_(2)


@given()
class BranchOnValues(nn.Module):
    """An `if` on a mean and an early exit by confidence: both differ between the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.more = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        if x.mean() > 0:
            y = self.more(y)
        return -y if float(x[0, 0, 0, 0]) > 0.3 else y


@given(sizes=(16, 24, 32))
class Fourier(nn.Module):
    """Complex outputs, and a filter in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_bn_relu(3, 4)
        self.filter = nn.Parameter(torch.randn(4, 8, 5, dtype=torch.complex64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.fft.rfft2(self.conv(x), norm="ortho")
        low = torch.zeros_like(spectrum)
        low[..., :8, :5] = spectrum[..., :8, :5] * self.filter
        return spectrum, torch.fft.irfft2(low, s=x.shape[-2:], norm="ortho")


@given()
class IntegersAndNumbers(nn.Module):
    """Tensors of integers and booleans, numbers and a string beside a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = conv_bn_relu(3, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Any:
        y = self.head(self.stem(x)).mean((2, 3))
        best = y.argmax(1)
        return {"label": best, "sure": y.amax(1) > 0.1, "mean": y.mean()}, x.shape[-1], 0.5, "eval"


def lengths_and_audio(batch: int, size: int) -> Any:
    lengths = torch.randint(size // 2, size + 1, (batch,))
    return (torch.randn(batch, 4, size), lengths), {}


@given(lengths_and_audio)
class MaskByLengths(nn.Module):
    """The longest length, a value of a tensor, decides how much is read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(4, 8, 3, padding=1), nn.Conv1d(8, 4, 3, padding=1)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        longest = int(lengths.max())
        mask = torch.arange(longest)[None, :] < lengths[:, None]
        y = self.conv1(x[..., :longest])
        y = self.conv2(torch.where(mask[:, None], y, torch.zeros(()).to(y)))
        return y, (y * mask[:, None]).sum(-1) / lengths[:, None]


@given(lambda n, s: ((image(n, s), 0.1 * s + n), {}))
class Diffusion(nn.Module):
    """A step that gets the time as a Python number."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.time = nn.Linear(8, 8)

    def forward(self, x: Tensor, t: float) -> Tensor:
        angles = t * torch.exp(-torch.arange(4) / 4.0)
        embedding = self.time(torch.cat([angles.sin(), angles.cos()]).expand(len(x), -1))
        return self.out(F.silu(self.stem(x) + embedding[:, :, None, None]))
