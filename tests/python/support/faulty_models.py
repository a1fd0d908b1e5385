# SPDX-License-Identifier: BSD-3-Clause
"""Small models with one known fault each, and clean twins of them, for test_lint.py.

`# fault` marks the line that a linter has to name. With is_faulty=False, a model is the clean twin.
"""

from __future__ import annotations

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


# ---- sizes of convolutions -----------------------------------------------------------------------


@case("slow-groups", "grouped")
class ManyGroups(Model):
    shape = (2, 32, 28, 28)

    def build(self) -> None:
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=16 if self.is_faulty else 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.grouped(x).relu()  # fault


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
