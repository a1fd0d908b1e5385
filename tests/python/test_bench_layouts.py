# SPDX-License-Identifier: BSD-3-Clause
"""The table of benchmarks/bench_layouts.py, from invented records."""

from __future__ import annotations

import pytest

from bench_layouts import FAMILIES, FIRST, layout_table, problem_of
from torchalgo import _C

pytestmark = pytest.mark.slow


def test_a_ratio_is_the_median_over_rounds_and_the_least_one_is_bold() -> None:
    wall_us = {FIRST: [10.0, 20.0, 40.0], "Winograd, nhwc": [9.0, 10.0, 36.0]}
    line = {"layer": "ResNet-50 layer1", "wall_us": wall_us}
    row = layout_table([line])[-1]
    assert row == "| ResNet-50 layer1 | 64, 64, 56 | 20 us | **0.90** | - | - | - |"


def test_every_family_is_an_algorithm_that_is_offered_in_its_layout() -> None:
    offered = _C.offers_of(problem_of(64, 64, 56))[0]
    for algorithm, layout in FAMILIES.values():
        assert any(
            _C.matches_name(p.name, algorithm) and str(p.src) == str(p.dst) == layout
            for p in offered
        ), algorithm
