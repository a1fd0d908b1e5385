# SPDX-License-Identifier: BSD-3-Clause
"""Which of several plans runs for the shapes of a call, in Python and in TorchScript."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchalgo
from support.plans import make_plan
from support.several_shapes import nearest_by_brute_force
from torchalgo._capture.shapes import Shapes, nearest, shapes_of
from torchalgo._ir.plan import PlanInput, shapes_text
from torchalgo._plan.result import Result
from torchalgo._run.shape_dispatch import join


def random_shapes(rng: random.Random) -> Shapes:
    ranks = rng.choice([(4,), (4,), (4,), (3,), (4, 2), ()])
    return tuple(tuple(rng.choice([0, 1, 2, 3, 4, 6, 8, 12, 48]) for _ in range(r)) for r in ranks)


def as_lists(shapes: Shapes) -> list[list[int]]:
    return [list(sizes) for sizes in shapes]


def test_the_nearest_shapes_are_those_of_brute_force_with_ties_to_the_first() -> None:
    rng = random.Random(0)
    scripted = torch.jit.script(nearest)
    for _ in range(2000):
        shapes = random_shapes(rng)
        planned = [random_shapes(rng) for _ in range(rng.randrange(1, 6))]
        want = nearest_by_brute_force(shapes, planned)
        lists = [as_lists(other) for other in planned]
        assert nearest(as_lists(shapes), lists) == want, (shapes, planned)
        if shapes and all(planned):  # TorchScript cannot tell of what an empty list is
            assert scripted(as_lists(shapes), lists) == want


def test_shapes_are_spelled_with_an_x_and_commas() -> None:
    x, number = torch.empty(1, 3, 8, 9), torch.tensor(1.0)
    assert shapes_text(shapes_of((x,))) == "1x3x8x9"
    assert shapes_text(shapes_of((x, {"a": [number, x]}, 7))) == "1x3x8x9,scalar,1x3x8x9"


class Number(nn.Module):
    """Tells which module ran."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> int:
        return self.number


def numbered(*shapes: tuple[int, ...]) -> torchalgo.Optimized:
    """Plans for `shapes` whose modules return their numbers."""
    return torchalgo.Optimized(
        *(
            Result(
                torch.jit.script(Number(i)),
                dataclasses.replace(make_plan(), inputs=[PlanInput(list(s), "float32", "nchw")]),
            )
            for i, s in enumerate(shapes)
        )
    )


def test_what_runs_is_the_nearest_plan_in_python_and_in_torchscript(
    no_unseen_warning: None,
) -> None:
    shapes = ((1, 3, 8, 8), (8, 3, 8, 8), (2, 3, 32, 32), (3, 16, 16))
    fast = numbered(*shapes)
    for sizes in [
        *shapes,
        *itertools.product((1, 3, 6), (3,), (4, 16, 20, 64), (8, 20)),
        (3, 4, 4),
    ]:
        want = nearest_by_brute_force((sizes,), [(s,) for s in shapes])
        x = torch.empty(sizes)
        assert [fast(x), fast(x), fast(x=x), fast.scripted(x)] == [want] * 4
        assert fast.scripted.nearest(x) == want


def test_a_joined_module_looks_at_every_tensor_of_a_call(tmp_path: Path) -> None:
    class Many(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def forward(
            self,
            x: torch.Tensor,
            pair: tuple[torch.Tensor, torch.Tensor],
            many: list[torch.Tensor],
            named: dict[str, torch.Tensor],
            maybe: torch.Tensor | None = None,
            scale: float = 2.0,
        ) -> float:
            return self.number * scale

    def arguments(size: int, maybe: bool) -> tuple[Any, ...]:
        t = [torch.empty(size, 2) for _ in range(6)]
        return t[0], (t[1], t[2]), [t[3], t[4]], {"a": t[5]}, torch.empty(3) if maybe else None

    sets = [arguments(4, False), arguments(4, True), arguments(9, False)]
    modules = [torch.jit.script(Many(i)) for i in range(3)]
    joined = join(modules, [shapes_of(s) for s in sets], [None] * len(sets))
    joined.save(str(tmp_path / "joined.pt"))
    for module in (joined, torch.jit.load(str(tmp_path / "joined.pt"))):
        assert [module(*s) for s in sets] == [0.0, 2.0, 4.0]
        assert [module(*s, 3.0) for s in sets] == [0.0, 3.0, 6.0]
        assert module(*arguments(8, False)[:4]) == 4.0
        assert module(*arguments(8, True)[:4], maybe=torch.empty(9)) == 2.0
