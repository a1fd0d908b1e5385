# SPDX-License-Identifier: BSD-3-Clause
"""The import must not change values, types and strides. Early versions of it did in these cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.graph_models import freeze
from support.random_plans import any_plan, rewrite
from torchalgo import _C

Forward = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.run = forward
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 3, padding=1)
        self.f = nn.Conv2d(8, 16, 1)
        self.l, self.small = nn.Linear(8, 8), nn.Linear(4, 8)
        self.gain = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        self.zero = nn.Parameter(torch.tensor([1.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]))
        self.register_buffer("phase", torch.tensor(1 + 2j))

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def interleaved(m: Net, x: Tensor) -> Tensor:
    u = torch.stack([m.a(x), m.b(x)], 1)
    z = m.f(u.sum(1).mean((2, 3), keepdim=True)) * 3
    w = torch.softmax(z.view(-1, 2), 1).view(x.shape[0], 2, 8, 1, 1)
    return (u * w).sum(1)


def rows_of_a_vector(m: Net, x: Tensor) -> Tensor:
    u = torch.stack([m.a(x), m.b(x)], 1)
    v = F.adaptive_avg_pool2d(u.sum(1), 1).view(-1, 4)
    w = torch.softmax(m.small(v).view(x.shape[0], 2, 8, 1, 1), 1)
    return (u * w).sum(1)


def changed_between_means(m: Net, x: Tensor) -> Tensor:
    y = m.a(x)
    rows = y.mean(3)
    y.add_(1.0)
    w = torch.sigmoid(m.l(rows.mean(2))).view(x.shape[0], 8, 1, 1)
    return m.b(x) * w + y


def own_strides(m: Net, x: Tensor) -> Tensor:
    y = F.softplus(torch.cat([x, x], 2).contiguous())
    return m.a(x).mean() + y.view(x.shape[0], -1).sum(1)


KEPT: dict[str, Forward] = {
    "a view that moves channels into the batch": interleaved,
    "rows of a vector": rows_of_a_vector,
    "an image that is changed between two means": changed_between_means,
    "a stack of truth values": lambda m, x: torch.stack([m.a(x) > 0.1, m.b(x) > -0.1]).sum(0),
    "a stack of integers": lambda m, x: torch.stack([m.a(x).int(), m.b(x).int()], 1).sum(1),
    "an item of another type": lambda m, x: torch.stack([m.a(x), m.b(x).double()], 1).select(1, 0),
    "a gain in double": lambda m, x: (y := m.a(x)) * m.gain.expand_as(y),
    "a quotient by 0": lambda m, x: m.a(x) / m.zero.view(1, 8, 1, 1),
    "a complex constant": lambda m, x: (torch.fft.fft2(m.a(x)) * m.phase).real,
    "a view of a tensor in channels_last": own_strides,
}


@pytest.mark.parametrize("name", KEPT)
def test_values_and_types_are_the_models(name: str) -> None:
    torch.manual_seed(3)
    model = Net(KEPT[name]).eval()
    x = torch.rand(2, 3, 6, 6)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    for seed in (1, 2):
        module = rewrite(imported, any_plan(imported.graph, seed))
        for inputs in (x, x.contiguous(memory_format=torch.channels_last), torch.rand(3, 3, 6, 8)):
            with torch.no_grad():
                got, expected = module(inputs), model(inputs)
            assert got.dtype == expected.dtype and got.shape == expected.shape
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def sampled(m: Net, x: Tensor) -> Tensor:
    grid = m.a(x)[:, :2].permute(0, 2, 3, 1) * 2 - 1
    return F.grid_sample(x, grid, align_corners=True)


FREE: dict[str, tuple[Forward, list[int]]] = {
    "tokens": (lambda m, x: m.l(m.a(x).flatten(2).transpose(1, 2)) * 0.5 + 1, [2, 3, 7, 5]),
    "an activation of tokens": (lambda m, x: F.gelu(m.l(m.a(x).flatten(2).mT)), [2, 3, 7, 5]),
    "a sampling grid": (sampled, [2, 3, 5, 9]),
    "an image scaled by a number": (lambda m, x: m.b((x - 0.5) / 0.25), [1, 3, 9, 4]),
}


@pytest.mark.parametrize("name", FREE)
def test_products_with_numbers_run_at_any_size(name: str) -> None:
    forward, sizes = FREE[name]
    torch.manual_seed(4)
    model = Net(forward).eval()
    x = torch.rand(2, 3, 6, 6)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    for inputs in (x, torch.rand(*sizes)):
        with torch.no_grad():
            torch.testing.assert_close(module(inputs), model(inputs), rtol=1e-4, atol=1e-4)


def test_a_result_is_not_the_callers_tensor() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = self.conv(x)
            return y, x + 0, torch.stack([x, y], 1).select(1, 0)

    model, x = Both().eval(), torch.rand(1, 3, 4, 4)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    results = rewrite(imported, any_plan(imported.graph, 1))(x)
    assert all(result.data_ptr() != x.data_ptr() for result in results)
    torch.testing.assert_close(results, model(x))
