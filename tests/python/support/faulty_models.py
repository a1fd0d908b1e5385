# SPDX-License-Identifier: BSD-3-Clause
"""Small models with one known fault each, and clean twins of them, for test_lint.py.

`# fault` marks the line that a linter has to name. With is_faulty=False, a model is the clean twin.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

LAST = torch.channels_last


@dataclass(frozen=True)
class Case:
    """A model with one fault: its kind, and the layer that a finding names."""

    kind: str
    layer: str
    model: type[Model]

    def make(self, is_faulty: bool) -> tuple[nn.Module, Tensor]:
        """Returns the model and an input. The seed decides all weights."""
        torch.manual_seed(0)
        model = self.model(is_faulty)
        return model.prepared(), model.example()

    def line(self) -> int:
        """Returns the number of the marked line."""
        parts = [type(part) for part in self.model(True).modules()]
        for part in (part for part in parts if part.__module__ == __name__):
            lines, first = inspect.getsourcelines(part)
            for i, line in enumerate(lines):
                if "# fault" in line:
                    return first + i
        raise AssertionError(f"{self.model.__name__} has no marked line")


class Model(nn.Module):
    """A model that has its fault if `is_faulty`."""

    shape = (2, 16, 56, 56)

    def __init__(self, is_faulty: bool) -> None:
        super().__init__()
        self.is_faulty = is_faulty
        self.build()

    def build(self) -> None:
        self.first = nn.Conv2d(16, 16, 3, padding=1)
        self.last = nn.Conv2d(16, 16, 3, padding=1)

    def prepared(self) -> nn.Module:
        return self.eval()

    def example(self) -> Tensor:
        return torch.rand(self.shape)


CASES: list[Case] = []


def case(kind: str, layer: str = "") -> Callable[[type[Model]], type[Model]]:
    """Adds a model to the suite."""

    def add(model: type[Model]) -> type[Model]:
        CASES.append(Case(kind, layer, model))
        return model

    return add


# ---- copies --------------------------------------------------------------------------------------


@case("hidden-copy")
class Clone(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_faulty:
            x = x.clone()  # fault
        return self.last(x)


@case("hidden-copy")
class PermuteBeforeMean(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).permute(0, 2, 3, 1)
        if self.is_faulty:
            x = x.contiguous()  # fault
        return x.mean((1, 2))


class Product(nn.Module):
    def __init__(self, is_faulty: bool) -> None:
        super().__init__()
        self.is_faulty = is_faulty

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        k = k.transpose(1, 2)
        if self.is_faulty:
            k = k.contiguous()  # fault
        return torch.bmm(q, k)


@case("hidden-copy", "product")
class TransposedKeys(Model):
    shape = (4, 256, 256)

    def build(self) -> None:
        self.product = Product(self.is_faulty)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, x.relu())


@case("channels-last-lost")
class ContiguousInChannelsLast(Model):
    def prepared(self) -> nn.Module:
        return self.eval().to(memory_format=LAST)

    def example(self) -> Tensor:
        return super().example().contiguous(memory_format=LAST)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_faulty:
            x = x.contiguous()  # fault
        return self.last(x)


@case("channels-last-lost")
class ChannelsLastAndBack(ContiguousInChannelsLast):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_faulty:
            x = x.contiguous()  # fault
            x = x.relu().contiguous(memory_format=LAST)
        else:
            x = x.relu()
        return self.last(x)


@case("copied-back")
class ContiguousAndBack(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_faulty:
            x = x.contiguous(memory_format=LAST)  # fault
            x = x.sigmoid().contiguous()
        else:
            x = x.sigmoid()
        return self.last(x)


@case("broadcast-copied")
class ExpandedGate(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        gate = x.mean((2, 3), keepdim=True).sigmoid()
        if self.is_faulty:
            gate = gate.expand_as(x).contiguous()  # fault
        return self.last(x * gate)


@case("broadcast-copied")
class RepeatedRow(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        row = x.amax(2, keepdim=True)
        if self.is_faulty:
            row = row.repeat(1, 1, 56, 1)  # fault
        return self.last(x - row)


@case("layout-dropped")
class ContiguousBuffer(ContiguousInChannelsLast):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_faulty:
            y = torch.zeros(2, 16, 56, 56)  # fault
        else:
            y = torch.empty(2, 16, 56, 56, memory_format=LAST).zero_()
        y[:, :, 1:] = x[:, :, :-1]
        return self.last(y)


@case("dtype-round-trip")
class HalfAndBack(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_faulty:
            x = x.half()  # fault
            x = x.float()
        return self.last(x)


# ---- data types ----------------------------------------------------------------------------------


@case("float64-weights")
class WideScale(Model):
    def build(self) -> None:
        super().build()
        dtype = torch.float64 if self.is_faulty else torch.float32
        self.register_buffer("scale", torch.rand(1, 16, 1, 1, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) * self.scale  # fault
        return self.last(x.float())


@case("float64-weights", "first")
class WideModel(Model):
    def prepared(self) -> nn.Module:
        return self.eval().double() if self.is_faulty else self.eval()

    def example(self) -> Tensor:
        return super().example().double() if self.is_faulty else super().example()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)  # fault
        return self.last(x)


@case("float64-input")
class WideInput(Model):
    def example(self) -> Tensor:
        return super().example().double() if self.is_faulty else super().example()

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.5) / 0.25  # fault
        return self.last(self.first(x.float()))


@case("float64-intermediate")
class WideRamp(Model):
    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.float64 if self.is_faulty else torch.float32
        ramp = torch.linspace(0, 1, 56, dtype=dtype)  # fault
        return self.last((self.first(x) + ramp).float())


# ---- train mode and gradients --------------------------------------------------------------------


@case("train-mode")
class LeftInTrainMode(Model):
    def build(self) -> None:
        super().build()
        self.norm, self.drop = nn.BatchNorm2d(16), nn.Dropout(0.3)

    def prepared(self) -> nn.Module:
        return self.train(self.is_faulty)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))  # fault
        return self.last(self.drop(x))


@case("train-mode", "norm")
class NormInTrainMode(LeftInTrainMode):
    def prepared(self) -> nn.Module:
        self.eval()
        self.norm.train(self.is_faulty)
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.norm(x)  # fault
        return self.last(x)


@case("active-dropout")
class FunctionalDropout(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_faulty:
            x = functional.dropout(x, 0.2)  # fault
        else:
            x = functional.dropout(x, 0.2, self.training)
        return self.last(x)


@case("gradients-enabled", "last")
class GradientsInForward(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        with torch.set_grad_enabled(self.is_faulty):
            x = self.last(x).relu()  # fault
        return x.detach()


# ---- norms ---------------------------------------------------------------------------------------


@case("batch-norm-not-folded", "norm")
class NormBehindPooling(Model):
    def build(self) -> None:
        super().build()
        self.norm, self.pool = nn.BatchNorm2d(16), nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_faulty:
            x = self.norm(self.pool(self.first(x)))  # fault
        else:
            x = self.pool(self.norm(self.first(x)))
        return self.last(x.relu())


@case("batch-norm-batch-statistics", "norm")
class NormOfBatch(Model):
    def build(self) -> None:
        super().build()
        self.norm = nn.BatchNorm2d(16, track_running_stats=not self.is_faulty)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.norm(x)  # fault
        return self.last(x.relu())


# ---- sizes of convolutions -----------------------------------------------------------------------


@case("channels-miss-block", "first")
class OneChannelTooMany(Model):
    def build(self) -> None:
        width = 33 if self.is_faulty else 32
        self.first = nn.Conv2d(16, width, 3, padding=1)
        self.last = nn.Conv2d(width, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)  # fault
        return self.last(x.relu())


@case("slow-groups", "grouped")
class ManyGroups(Model):
    shape = (2, 32, 28, 28)

    def build(self) -> None:
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=16 if self.is_faulty else 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.grouped(x).relu()  # fault


@case("padding-apart")
class PaddedBefore(Model):
    def build(self) -> None:
        super().build()
        self.last = nn.Conv2d(16, 16, 3, padding=0 if self.is_faulty else 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_faulty:
            x = functional.pad(x, (1, 1, 1, 1))  # fault
        return self.last(x)


@case("padding-apart", "blocks.1.0")
class ZeroPadInBlock(Model):
    def build(self) -> None:
        padded = [nn.ZeroPad2d(1), nn.Conv2d(16, 16, 3)]
        block = padded if self.is_faulty else [nn.Conv2d(16, 16, 3, padding=1)]
        self.blocks = nn.Sequential(nn.Conv2d(16, 16, 1), nn.Sequential(*block))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).relu()  # fault


# ---- work that need not be done ------------------------------------------------------------------


@case("computed-twice", "first")
class CalledTwice(Model):
    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.first(x) if self.is_faulty else a  # fault
        return self.last(a * b.sigmoid())


@case("constant-recomputed", "standard")
class StandardizedWeights(Model):
    def build(self) -> None:
        self.standard = Standard(self.is_faulty)

    def forward(self, x: Tensor) -> Tensor:
        return self.standard(x)


class Standard(nn.Conv2d):
    def __init__(self, is_faulty: bool) -> None:
        super().__init__(16, 64, 3, padding=1)
        self.is_faulty = is_faulty

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if self.is_faulty:
            weight = weight - weight.mean((1, 2, 3), keepdim=True)  # fault
        return functional.conv2d(x, weight, self.bias, padding=1)


@case("unused-result", "extra")
class UnusedHead(Model):
    def build(self) -> None:
        super().build()
        self.extra = nn.Conv2d(16, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_faulty:
            self.extra(x)  # fault
        return self.last(x)


@case("value-read")
class BranchOnValue(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_faulty and (x.exp().std() < 0):  # fault
            x = x + 1
        return self.last(x)


@case("read-by-python")
class ThroughNumpy(Model):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_faulty:
            x = torch.from_numpy(x.numpy() ** 3)  # fault
        return self.last(x)


@case("duplicate-weights", "last")
class CopiedLayer(Model):
    def build(self) -> None:
        self.first = nn.Conv2d(16, 32, 3, padding=1)
        middle = nn.Conv2d(32, 32, 3, padding=1)
        self.middle = middle
        self.last = copy.deepcopy(middle) if self.is_faulty else middle

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(self.first(x).relu())
        return self.last(x.relu())  # fault
