# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo compare`: compares the plans of two files."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from torchalgo._base.write_file import write_file
from torchalgo._C import Error
from torchalgo._cli.tuning_flags import print_result
from torchalgo._report.difference import Comparison, compare
from torchalgo._report.page import html_page
from torchalgo._report.subject import Subject
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
            f"TA7204 compare: {args.first} has plans for {'; '.join(before)}, and {args.second} for"
            f" {'; '.join(after)}: expected a shape that both have"
        )
    found = {
        one if one == other else f"{one} -> {other}": compare(before[one], after[other])
        for one, other in pairs
    }
    if args.report is not None:
        _write_page(list(found.values()), args)
    texts = [f"plans for {shape}\n{item}" for shape, item in found.items()]
    data = {shape: _as_data(item) for shape, item in found.items()}
    print_result(args, data, "\n\n".join(texts))
    return 0


def _write_page(comparisons: Sequence[Comparison], args: argparse.Namespace) -> None:
    if args.report.suffix.lower() != ".html":
        raise Error(
            f"TA2010 compare: {args.report} ends in {args.report.suffix!r}, expected .html; the"
            " text and, with --json, the data are printed"
        )
    subjects = [
        Subject(plan, name=f"{word} plan, {path.name},")
        for each in comparisons
        for plan, word, path in (
            (each.before, "First", args.first), (each.after, "Second", args.second)
        )
    ]  # fmt: skip
    title = f"{args.first.name} and {args.second.name}"
    write_file(args.report, html_page(subjects, title, comparisons), "report")


def _as_data(comparison: Comparison) -> dict[str, Any]:
    return {
        "cost": [comparison.before.cost_us, comparison.after.cost_us],
        "differences": [
            {**dataclasses.asdict(item), "more": item.more} for item in comparison.differences
        ],
        "same": comparison.same,
        "same_costs": comparison.same_costs,
    }
