# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo diff`: compares the plans of two files."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from torchalgo._C import Error
from torchalgo._report.difference import Comparison, compare
from torchalgo._run.load import load_plans


def run(args: argparse.Namespace) -> int:
    """Prints the differences of the plans for each shape that both files have."""
    before, after = load_plans(args.first), load_plans(args.second)
    shapes = [shape for shape in before if shape in after]
    if len(before) == len(after) == 1 and not shapes:  # plans of one model for other sizes
        pairs = [(*before, *after)]
    else:
        pairs = [(shape, shape) for shape in shapes]
    if not pairs:
        raise Error(
            f"TA7204 diff: {args.first} has plans for {'; '.join(before)}, and {args.second} for"
            f" {'; '.join(after)}: expected a shape that both have"
        )
    found = {
        one if one == other else f"{one} -> {other}": compare(before[one], after[other])
        for one, other in pairs
    }
    if args.json:
        print(json.dumps({shape: _as_data(item) for shape, item in found.items()}, indent=1))
    else:
        print("\n\n".join(f"plans for {shape}\n{item}" for shape, item in found.items()))
    return 0


def _as_data(comparison: Comparison) -> dict[str, Any]:
    return {
        "cost": [comparison.before.cost_us, comparison.after.cost_us],
        "differences": [
            {**dataclasses.asdict(item), "more": item.more} for item in comparison.differences
        ],
        "same": comparison.same,
        "same_costs": comparison.same_costs,
    }
