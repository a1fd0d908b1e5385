# SPDX-License-Identifier: BSD-3-Clause
"""Random networks of the blocks that people use: residual, inverted, concatenated, shuffled, gated.

A network is a list of steps; each step is a module that reads earlier values and makes new ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

CHANNELS = (3, 4, 8, 12, 16, 16, 17, 24, 32, 32, 48, 64, 30)
ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.Hardswish, nn.SiLU, nn.Sigmoid, nn.Hardsigmoid,
    nn.LeakyReLU, nn.GELU, nn.Identity, nn.Identity, nn.Tanh,
)  # fmt: skip


class Shuffle(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = x.view(b, self.groups, c // self.groups, h, w).transpose(1, 2).contiguous()
        return y.view(b, c, h, w)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, inner: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        narrow = max(1, channels // 4)
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, narrow, 1), inner,
            nn.Conv2d(narrow, channels, 1), gate,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x * self.body(x)


class Add(nn.Module):
    """Adds two values if their images have one size; else gives the first one."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.activation(x + y if tuple(x.shape[2:]) == tuple(y.shape[2:]) else x)


class Cat(nn.Module):
    def forward(self, *values: Tensor) -> Tensor:
        return torch.cat(values, 1)


class Split(nn.Module):
    """Splits the channels: by chunk, by split or by slices."""

    def __init__(self, sizes: Sequence[int], how: str) -> None:
        super().__init__()
        self.sizes, self.how = list(sizes), how

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.how == "chunk":
            return x.chunk(2, 1)
        if self.how == "split":
            return torch.split(x, self.sizes, 1)
        ends = [sum(self.sizes[: i + 1]) for i in range(len(self.sizes))]
        return tuple(x[:, end - size : end] for size, end in zip(self.sizes, ends, strict=True))


class Gate(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * torch.sigmoid(F.adaptive_avg_pool2d(y, 1))


class Head(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Network(nn.Module):
    """The steps in order. `outputs` are the values that nobody reads, and sometimes another one."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        builder = Builder(rng)
        for _ in range(rng.randint(3, 11)):
            builder.add_block()
        builder.add(nn.Conv2d(builder.values[-1][0], 16, 3, padding=1), [-1], (16, 0))
        self.channels = builder.values[0][0]
        self.steps, self.inputs = nn.ModuleList(builder.modules), builder.inputs
        used = {i for inputs in self.inputs for i in inputs}
        unused = [i for i in range(len(builder.values)) if i not in used]
        self.outputs = unused[:4]
        if rng.random() < 0.2:
            self.outputs.append(rng.randrange(1, len(builder.values)))
        self.head: nn.Module = nn.Identity()
        if rng.random() < 0.3:
            self.head = Head(builder.values[self.outputs[0]][0], rng.choice((10, 16, 33)))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for step, inputs in zip(self.steps, self.inputs, strict=True):
            made = step(*[values[i] for i in inputs])
            values.extend(made if isinstance(made, tuple) else [made])
        first, *others = [values[i] for i in self.outputs]
        return (self.head(first), *others)


class Builder:
    """Collects steps; knows each value's channels and its level: equal levels, equal images."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values = [(rng.choice((1, 3, 3, 4, 16, 16, 20)), 0)]
        self.modules: list[nn.Module] = []
        self.inputs: list[list[int]] = []

    def add(self, module: nn.Module, inputs: Sequence[int], *made: tuple[int, int]) -> int:
        """Adds a step; returns the index of the last value that it makes."""
        self.modules.append(module)
        self.inputs.append([i % len(self.values) for i in inputs])
        self.values.extend(made)
        return len(self.values) - 1

    def new_level(self) -> int:
        return 1 + max(level for _, level in self.values)

    def activation(self, count: int = len(ACTIVATIONS)) -> nn.Module:
        return self.rng.choice(ACTIVATIONS[:count])()

    def norm(self, channels: int) -> nn.Module:
        norm = nn.BatchNorm2d(channels)
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
        nn.init.normal_(norm.weight, 1, 0.3)
        nn.init.normal_(norm.bias)
        return norm

    def conv(self, c: int, k: int, kernel: int | tuple[int, int], **options: int) -> nn.Module:
        """A convolution that keeps the image's size at stride 1 and an odd kernel."""
        sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
        dilation = options.get("dilation", 1)
        padding = tuple(dilation * (size - 1) // 2 for size in sizes)
        bias = self.rng.random() < 0.6
        conv = nn.Conv2d(c, k, sizes, padding=padding, bias=bias, **options)
        parts = [conv, *([self.norm(k)] if self.rng.random() < 0.3 else []), self.activation()]
        return nn.Sequential(*parts)

    def add_block(self) -> None:
        rng = self.rng
        i = rng.randrange(max(0, len(self.values) - 3), len(self.values))
        block = rng.choice((
            self.convolution, self.convolution, self.convolution, self.convolution, self.separable,
            self.inverted, self.residual, self.concat, self.concat, self.split, self.split,
            self.pool, self.squeeze, self.upsample, self.normalized, self.gate, self.sum,
        ))  # fmt: skip
        block(i, *self.values[i])

    def convolution(self, i: int, c: int, level: int) -> None:
        rng, k = self.rng, self.rng.choice(CHANNELS)
        kernel = rng.choice((1, 1, 3, 3, 3, 5, 7, 2, (1, 3), (3, 1), (1, 7), (5, 1)))
        options = {"stride": rng.choice((1, 1, 1, 2))}
        groups = [g for g in (2, 3, 4, 8, 16) if c % g == 0 and k % g == 0]
        if groups and rng.random() < 0.2:
            options["groups"] = rng.choice(groups)
        if isinstance(kernel, int):
            options["dilation"] = rng.choice((1, 1, 1, 2))
        keeps = options["stride"] == 1 and kernel != 2
        made = (k, level if keeps else self.new_level())
        self.add(self.conv(c, k, kernel, **options), [i], made)

    def separable(self, i: int, c: int, level: int) -> None:
        k = self.rng.choice(CHANNELS)
        depthwise = self.conv(c, c, self.rng.choice((3, 5)), groups=c)
        self.add(nn.Sequential(depthwise, self.conv(c, k, 1)), [i], (k, level))

    def inverted(self, i: int, c: int, level: int) -> None:
        rng, wide = self.rng, self.rng.choice((1, 2, 3, 6)) * c
        k, stride = rng.choice((c, c, rng.choice(CHANNELS))), rng.choice((1, 1, 2))
        depthwise = self.conv(wide, wide, rng.choice((3, 5)), stride=stride, groups=wide)
        parts = [self.conv(c, wide, 1), depthwise]
        if rng.random() < 0.4:
            parts.append(SqueezeExcite(wide, self.activation(4), self.activation(6)))
        parts.append(nn.Conv2d(wide, k, 1))
        made = (k, level if stride == 1 else self.new_level())
        last = self.add(nn.Sequential(*parts), [i], made)
        if made == (c, level):
            self.add(Add(nn.Identity()), rng.sample([i, last], 2), made)

    def residual(self, i: int, c: int, level: int) -> None:
        last = self.add(self.conv(c, c, self.rng.choice((1, 3, 3))), [i], (c, level))
        inputs = self.rng.sample([i, last], 2)
        self.add(Add(self.activation(3)), inputs, (c, level))

    def concat(self, i: int, c: int, level: int) -> None:
        rng, parts = self.rng, [i]
        for _ in range(rng.choice((1, 2, 2, 3, 4))):
            same = [j for j, (_, other) in enumerate(self.values) if other == level]
            k = rng.choice((8, 16, 16, 32, 32, 48, 5))
            new = rng.random() < 0.6
            parts.append(
                self.add(self.conv(c, k, rng.choice((1, 3))), [i], (k, level))
                if new
                else rng.choice(same)
            )
        parts = parts[1:] if rng.random() < 0.6 else parts
        total = sum(self.values[j][0] for j in parts)
        if total > 200:
            return
        last = self.add(Cat(), parts, (total, level))
        groups = [g for g in (2, 3, 4, 8) if total % g == 0]
        if groups and rng.random() < 0.5:
            self.add(Shuffle(rng.choice(groups)), [last], (total, level))

    def split(self, i: int, c: int, level: int) -> None:
        rng = self.rng
        if c < 3:
            return
        if c % 2 == 0 and rng.random() < 0.6:
            how, sizes = rng.choice(("chunk", "split", "slices")), [c // 2, c // 2]
        else:
            a = rng.randint(1, c - 2)
            b = rng.randint(1, c - a - 1)
            how, sizes = rng.choice(("split", "slices")), [a, b, c - a - b]
        self.add(Split(sizes, how), [i], *[(size, level) for size in sizes])

    def pool(self, i: int, c: int, level: int) -> None:
        rng, kernel, stride = self.rng, self.rng.choice((2, 3, 3)), self.rng.choice((1, 2, 2))
        padding = kernel // 2 if stride == 1 or rng.random() < 0.5 else 0
        ceil = rng.random() < 0.3
        pool: nn.Module = nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil)
        if rng.random() < 0.5:
            counts = rng.random() < 0.5
            pool = nn.AvgPool2d(kernel, stride, padding, ceil, count_include_pad=counts)
        keeps = stride == 1 and kernel == 3
        self.add(pool, [i], (c, level if keeps else self.new_level()))

    def squeeze(self, i: int, c: int, level: int) -> None:
        module = SqueezeExcite(c, self.activation(4), self.activation(6))
        self.add(module, [i], (c, level))

    def upsample(self, i: int, c: int, level: int) -> None:
        module = self.rng.choice((
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
            nn.Upsample(scale_factor=1.5, mode="bilinear", align_corners=True),
            nn.Upsample(size=(9, 7), mode="nearest"),
        ))  # fmt: skip
        self.add(module, [i], (c, self.new_level()))

    def normalized(self, i: int, c: int, level: int) -> None:
        k = self.rng.choice((c, self.rng.choice(CHANNELS)))
        parts = [self.norm(c), self.activation()]
        if k != c or self.rng.random() < 0.5:
            parts.append(nn.Conv2d(c, k, 1))
        self.add(nn.Sequential(*parts), [i], (k, level))

    def gate(self, i: int, c: int, level: int) -> None:
        same = [j for j, (channels, _) in enumerate(self.values) if channels == c]
        self.add(Gate(), [i, self.rng.choice(same)], (c, level))

    def sum(self, i: int, c: int, level: int) -> None:
        same = [j for j, value in enumerate(self.values) if value == (c, level)]
        self.add(Add(self.activation(6)), [i, self.rng.choice(same)], (c, level))
