# SPDX-License-Identifier: BSD-3-Clause
"""Small models, one per thing a graph can do, and how to capture them; no test here."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.down = nn.Conv2d(3, 8, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.down(x)
        return self.relu(y)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.relu(self.conv(x)))


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.SiLU()) for _ in range(2)
        )
        self.heads = nn.ModuleList(nn.Conv2d(4, 2, 1) for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        found = []
        for stage, head in zip(self.stages, self.heads):  # noqa: B905 (TorchScript)
            x = stage(x)
            found.append(head(x))
        return found


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(6, 4, 3, 3))
        self.pointwise = nn.Parameter(torch.randn(4, 6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.hardswish(F.conv2d(x, self.kernel, stride=2)), self.pointwise)


class Padding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Conv2d(4, 4, 5, padding="same", dilation=2)
        self.valid = nn.Conv2d(4, 4, 3, padding="valid")
        self.reflect = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.one_sided = nn.Conv2d(4, 4, 2, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        return self.one_sided(self.reflect(self.valid(self.same(x))))


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 4, 3, padding=1)
        self.bright = nn.Conv2d(4, 4, 3, padding=1)
        self.dark = nn.Conv2d(4, 4, 1)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if x.sum() > 0:  # noqa: SIM108
            x = self.bright(x)
        else:
            x = self.dark(x)
        return self.head(x)


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x[0, 0, 0, 0] * 0) + 2):
            x = torch.relu(self.step(x))
        for _ in range(2):
            x = torch.relu(self.step(x))
        return self.head(x)


class ManyOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Conv2d(4, 8, 3, padding=1)
        self.high = nn.Conv2d(8, 8, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        low = self.low(x).relu()
        high = self.high(low)
        return {"low": low, "high": high}, F.max_pool2d(high, 3, 2, 1, ceil_mode=True)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(3, 6, 3, padding=1)
        self.mask = nn.Conv2d(1, 6, 3, padding=1)

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return torch.add(self.image(image), self.mask(mask)).sigmoid()


class Concat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(4, 20, 1)
        self.right = nn.Conv2d(4, 12, 3, padding=1)
        self.join = nn.Conv2d(36, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        parts.append(self.left(x))
        parts.append(F.relu6(self.right(x)))
        return self.join(torch.cat(parts, 1))


class Pieces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 1)
        self.left = nn.Conv2d(8, 4, 3, padding=1)
        self.right = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.conv(x).chunk(2, 2)
        c, d = torch.split(self.left(a), 2, dim=1)
        return torch.cat((c, self.right(b), d), 1)


class Shuffle(nn.Module):
    """A unit of ShuffleNet v2, and the ways to write its shuffle."""

    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, channels, 1)
        self.conv = nn.Conv2d(channels // 2, channels // 2, 3, padding=1, groups=channels // 2)
        self.end = nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        a, b = x.chunk(2, 1)
        x = torch.cat((a, self.conv(b)), 1)
        n, c, h, w = x.size()
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        y = F.channel_shuffle(F.relu(x), 3)
        z = y.reshape(y.shape[0], 4, -1, y.shape[2], y.shape[3]).permute(0, 2, 1, 3, 4)
        return self.end(z.reshape(y.shape))


class Split(nn.Module):
    """Parts of channels that are computed on and joined again, as in CSP networks; others."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 32, 1)
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.end = nn.Conv2d(48, 8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.stem(x).split((16, 16), 1)
        joined = self.end(torch.cat((a, b, self.conv(b)), 1))
        return joined[:, 3:], joined[:, :-2] + joined.narrow(1, 1, 6)


class LayerNorm2d(nn.LayerNorm):
    """Over the channels, as ConvNeXt spells it."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class LayerNorms(nn.Module):
    """Three that are planned, the last one with two readers, and one of other dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 24, 3, padding=1)
        self.norm = LayerNorm2d(24, eps=1e-6)
        self.plain = LayerNorm2d(24, bias=False)
        self.rows = nn.LayerNorm(9)
        self.last = nn.LayerNorm(24)
        self.end = nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.plain(self.norm(self.conv(x)).relu())
        y = self.last(self.rows(x).permute(0, 2, 3, 1))
        return self.end(y.permute(0, 3, 1, 2)), y.sigmoid()


class ConvNeXtBlock(nn.Module):
    """Channels at the end for a norm and two linear layers, and a learned scale per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(12, 12, 7, padding=3, groups=12)
        self.norm = nn.LayerNorm(12, eps=1e-6)
        self.wide = nn.Linear(12, 48)
        self.narrow = nn.Linear(48, 12, bias=False)
        self.scale = nn.Parameter(torch.rand(12, 1, 1))
        self.end = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(F.gelu(self.wide(y)))
        x = x + self.scale * y.permute(0, 3, 1, 2)
        last = x.permute(0, 2, 3, 1)  # with another reader, and never moved back
        return F.relu(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), self.end(last)


class InPlaceInLists(nn.Module):
    """Sums and activations in place of tensors that lists and views hold, as in DLA or GhostNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 3, padding=1)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.root = nn.Conv2d(24, 8, 1)
        self.head = nn.Conv2d(5, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shortcut = self.stem(x)
        y = self.norm(self.body(F.relu(shortcut)))
        children = [shortcut, y]
        half = y[:, :5]  # sees the sum, too
        y += shortcut
        y.relu_()
        children.append(self.stem(x).mul_(0.5))
        z = self.root(torch.cat(children, 1))
        z.add_(y)
        first, second = z.chunk(2, 1)
        z.sigmoid_()
        part = torch.cat((y, z), 1)[:, :8]  # GhostNet adds its shortcut to such a part
        part += shortcut
        return self.head(half), first * second + part.narrow(1, 2, 4)


class InPlaceButSeen(nn.Module):
    """Changes in place that must stay: through a view, or of what may be a view or a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(4, 6, 3, padding=1)
        self.two = nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.one(x)
        flat = y.reshape(1, -1)  # a view here, and a copy elsewhere
        y.add_(1.0)
        z = self.two(y)
        z[:, 1:3].add_(1.0)  # and z is read as a whole
        return flat, z.contiguous(), y.sum(1)


class ChangedBehindLinear(nn.Module):
    """A linear layer over the channels reads a tensor that is changed in place afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1)
        self.mix = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv(x)
        y = self.mix(x.permute(0, 2, 3, 1))
        x.add_(1.0)
        return y.permute(0, 3, 1, 2), x


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(8, eps=1e-3)
        self.plain = nn.BatchNorm2d(8, affine=False)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(F.relu(self.conv(F.relu(self.bn(x)))))


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.line = nn.ConvTranspose1d(4, 3, 4, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(self.up(x).mean(2))


class Dimensions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.volume = nn.Conv3d(3, 4, 3, padding=(1, 0, 1), stride=(1, 2, 1))
        self.line = nn.Conv1d(4, 6, 5, stride=2, padding=2, dilation=2)
        self.last = nn.Conv1d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        line = F.relu(self.line(F.relu(self.volume(x)).mean((2, 3))))
        return F.relu(self.last(line) + line)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.act = nn.Hardswish(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.conv1(x))
        y[:, 0] = 1.0
        z = self.conv2(y).relu_()
        z.add_(y)
        return z


class Dropouts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)
        self.drop = nn.Dropout2d(0.5)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.drop(self.conv(x)), (1, 1)).flatten(1)
        return self.fc(F.dropout(x, 0.5, self.training))


class Squeeze(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 16, 3, padding=1)
        self.fc1 = nn.Conv2d(16, 4, 1)
        self.fc2 = nn.Conv2d(4, 16, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        scale = F.hardsigmoid(self.fc2(F.relu(self.fc1(self.pool(x)))))
        x = F.avg_pool2d(scale * x, 2, 2)
        wide = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        return wide * self.up(x)


class Twice(nn.Module):
    """A tensor read twice by one op; a list that is both joined and returned."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.join = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        y = self.conv(x)
        parts = [y + y, x, y * y]
        return self.join(torch.cat(parts, 1)), parts


Model = tuple[Callable[[], nn.Module], list[tuple[int, ...]]]

MODELS: dict[str, Model] = {
    "residual": (Residual, [(2, 3, 9, 9)]),
    "shared": (Shared, [(1, 4, 8, 8)]),
    "listed": (Listed, [(1, 4, 8, 8)]),
    "functional": (Functional, [(1, 4, 9, 9)]),
    "padding": (Padding, [(1, 4, 12, 12)]),
    "branch": (Branch, [(1, 4, 8, 8)]),
    "loop": (Loop, [(1, 4, 8, 8)]),
    "many_outputs": (ManyOutputs, [(1, 4, 8, 8)]),
    "two_inputs": (TwoInputs, [(1, 3, 8, 8), (1, 1, 8, 8)]),
    "concat": (Concat, [(2, 4, 8, 8)]),
    "pieces": (Pieces, [(1, 4, 8, 8)]),
    "norms": (Norms, [(1, 8, 8, 8)]),
    "layer_norms": (LayerNorms, [(2, 4, 7, 9)]),
    "convnext": (ConvNeXtBlock, [(2, 12, 9, 8)]),
    "in_place_in_lists": (InPlaceInLists, [(2, 4, 7, 6)]),
    "in_place_but_seen": (InPlaceButSeen, [(1, 4, 6, 6)]),
    "changed_behind_linear": (ChangedBehindLinear, [(2, 4, 7, 9)]),
    "transposed": (Transposed, [(1, 6, 7, 7)]),
    "dimensions": (Dimensions, [(2, 3, 5, 9, 12)]),
    "in_place": (InPlace, [(1, 4, 8, 8)]),
    "dropouts": (Dropouts, [(2, 4, 8, 8)]),
    "twice": (Twice, [(1, 4, 8, 8)]),
    "squeeze": (Squeeze, [(2, 4, 8, 8)]),
    "shuffle": (Shuffle, [(2, 4, 8, 9)]),
    "split": (Split, [(1, 4, 8, 8)]),
}
NEEDS_SCRIPT = ("branch", "loop")  # a trace would keep one way through them


def make_model(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    make, shapes = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    return model, tuple(torch.rand(shape) for shape in shapes)


def freeze(model: nn.Module, inputs: tuple[Tensor, ...], capture: str) -> torch.jit.ScriptModule:
    """Captured by "trace" or "script", frozen, never run."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if capture == "script":
            return torch.jit.freeze(torch.jit.script(model))
        traced = torch.jit.trace(model, inputs, check_trace=False, strict=False)
        return torch.jit.freeze(traced)


CAPTURED = [
    (name, capture)
    for name in MODELS
    for capture in ("trace", "script")
    if capture == "script" or name not in NEEDS_SCRIPT
]
