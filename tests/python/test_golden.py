# SPDX-License-Identifier: BSD-3-Clause
"""What earlier versions wrote must load and compute the same for ever (scripts/make_golden.py)."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import pytest
import torch

import torchalgo

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
STEMS = sorted(path.name.removesuffix(".pt") for path in GOLDEN.glob("*.pt"))


def expected_of(stem: str) -> tuple[torch.Tensor, torch.Tensor]:
    expected = json.loads((GOLDEN / f"{stem}.expected.json").read_text())
    sizes = expected["input"]
    x = torch.linspace(-1, 1, math.prod(sizes)).reshape(sizes)
    return x, torch.tensor(expected["output"])


def test_there_is_a_golden_file() -> None:
    assert STEMS


@pytest.mark.parametrize("stem", STEMS)
def test_golden_file_loads_and_computes_what_it_did(stem: str) -> None:
    x, expected = expected_of(stem)
    plan = json.loads((GOLDEN / f"{stem}.plan.json").read_text())
    says_sizes = all("dims" in tensor for tensor in plan["inputs"])
    warns = contextlib.nullcontext() if says_sizes else pytest.warns(UserWarning, match="sizes")
    with warns:
        loaded = torchalgo.load(GOLDEN / f"{stem}.pt")
    with torch.no_grad():
        result = loaded(x).flatten()
    assert (result - expected).norm() / expected.norm() <= 1e-5
    assert loaded.plan.nodes


@pytest.mark.parametrize("stem", STEMS)
def test_golden_plan_loads_and_prints(stem: str) -> None:
    plan = torchalgo.load_plan(GOLDEN / f"{stem}.plan.json")
    assert str(plan)
    assert torchalgo.load_plan(GOLDEN / f"{stem}.pt") == plan
