# SPDX-License-Identifier: BSD-3-Clause
"""Networks that change tensors in place compute what they compute in PyTorch, planned or not."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn

from support.graph_models import freeze
from support.random_in_place import random_in_place_net
from support.random_plans import any_plan, assert_close, rewrite
from torchalgo import _C
from torchalgo._base.compare_outputs import output_error

# More seeds: TORCHALGO_IN_PLACE_SEEDS=2000 python -m pytest tests/python/test_functionalize.py
SEEDS = int(os.environ.get("TORCHALGO_IN_PLACE_SEEDS", "60"))


def planned_share(seed: int) -> tuple[int, int]:
    """Compares the rewritten network. Returns its convolutions, planned and all."""
    net = random_in_place_net(seed)
    x = torch.rand(2, 8, 5, 6, generator=torch.Generator().manual_seed(seed))
    imported = _C.import_graph(torch.jit.freeze(net)._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, seed))
    with torch.no_grad():
        for batch in (x, torch.cat((x, x + 0.25))):
            got, models = module(batch.clone()), (net.run(batch.clone()), net(batch.clone()))
            for one, *others in zip(got, *models, strict=True):
                assert min(output_error(one, other) for other in others) <= 1e-5, net.source
    convolutions = [n for n in imported.graph.nodes if n.name.startswith(("conv", "join"))]
    return sum(n.problem is not None for n in convolutions), len(convolutions)


class ListBeforeChange(nn.Module):
    """A list holds a tensor that is changed in place before the list is read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        both = [y]
        both.append(y)
        first = torch.stack(both, 0).amax(0)
        y.sigmoid_()
        return torch.stack(both, 0).mean(0) + first


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_a_list_sees_the_changes_of_its_tensors(capture: str) -> None:
    model, inputs = ListBeforeChange().eval(), (torch.randn(1, 4, 5, 5),)
    imported = _C.import_graph(freeze(model, inputs, capture)._c, inputs)
    with torch.no_grad():
        assert_close(rewrite(imported, any_plan(imported.graph, 1))(*inputs), model, inputs)


@pytest.mark.parametrize("part", range(4))
def test_random_networks_with_in_place_ops_equal_the_model(part: int) -> None:
    shares = [planned_share(seed) for seed in range(part, SEEDS, 4)]
    planned, convolutions = map(sum, zip(*shares, strict=True))
    assert planned >= 0.5 * convolutions, (planned, convolutions)
