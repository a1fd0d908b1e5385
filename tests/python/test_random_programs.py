# SPDX-License-Identifier: BSD-3-Clause
"""Random programs with broadcasts, constants, in-place ops, views and lists equal the model."""

from __future__ import annotations

import copy
import os
from collections import Counter

import pytest
import torch
from torch import Tensor

from support.graph_models import freeze
from support.random_plans import any_plan, rewrite
from support.random_programs import RandomProgram, random_batch, random_program
from torchalgo import _C

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch.jit: programs may return an input

# More seeds: TORCHALGO_PROGRAM_SEEDS=2000 python -m pytest tests/python/test_random_programs.py
SEEDS = int(os.environ.get("TORCHALGO_PROGRAM_SEEDS", "200"))
PARTS = 5
LIMIT = 1e-4


def relative_error(got: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> float:
    """Returns the greatest relative L2 error. Norms below 0.01 per element count as 0.01."""
    assert [a.shape for a in got] == [b.shape for b in exact]
    return max(
        float((a.double() - b).norm() / b.norm().clamp_min(0.01 * b.numel() ** 0.5))
        for a, b in zip(got, exact, strict=True)
    )


def check_program(seed: int) -> Counter[str]:
    """Compares the rewritten program with the model in f64, also what both leave in the input.

    Where torch.jit.freeze computes something else than the model, the frozen module is compared.
    """
    model = random_program(seed)
    example = (random_batch(seed),)
    exact_model = copy.deepcopy(model).double()
    capture = "script" if seed % 3 == 0 else "trace"
    frozen = freeze(model, (example[0].clone(),), capture)
    imported = _C.import_graph(frozen._c, example)
    module = rewrite(imported, any_plan(imported.graph, seed))
    counts = Counter(nodes=len(imported.graph.nodes))
    counts["planned"] = sum(node.problem is not None for node in imported.graph.nodes)
    for batch in (random_batch(seed), random_batch(seed, 3)):
        ours, theirs = batch.clone(), batch.double()
        with torch.no_grad():
            got, exact = (*module(ours), ours), (*exact_model(theirs), theirs)
            if relative_error(got, exact) > LIMIT:
                counts["lost by torch"] = 1
                assert relative_error(got, frozen_result(model, example, capture, batch)) <= LIMIT
    return counts


def frozen_result(
    model: RandomProgram, example: tuple[Tensor, ...], capture: str, batch: Tensor
) -> tuple[Tensor, ...]:
    """Returns what the frozen module gives, and leaves in its input, before any import."""
    batch = batch.clone()
    results = freeze(model, (example[0].clone(),), capture)(batch)
    return tuple(value.double() for value in (*results, batch))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_equal_the_model(part: int) -> None:
    total: Counter[str] = Counter()
    wrong: dict[int, str] = {}
    for seed in range(part, SEEDS, PARTS):
        try:
            total += check_program(seed)
        except (AssertionError, RuntimeError) as error:
            wrong[seed] = f"{error}\n{random_program(seed).source}"
    assert not wrong, "".join(f"\nseed {seed}: {text}" for seed, text in wrong.items())
    assert total["planned"] >= 0.2 * total["nodes"], total
    assert total["lost by torch"] <= 0.01 * SEEDS, total
