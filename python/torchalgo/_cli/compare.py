# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo compare`: compares the plans of two files."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from torch import nn

from torchalgo._api.optimize import optimize
from torchalgo._base.write_file import write_file
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._capture.settings import Settings
from torchalgo._cli.tuning_flags import loaded, print_result
from torchalgo._measure.guard import LEAST_ROUNDS
from torchalgo._report.difference import Comparison, compare
from torchalgo._report.page import html_page
from torchalgo._report.subject import Subject
from torchalgo._run.call_times import CallTimes, compare_calls
from torchalgo._run.load import load_plans
from torchalgo_cli.arguments import shapes as read_shapes

BUDGET_S = 60.0  # the most seconds for timing the calls of two plans


def run(args: argparse.Namespace) -> int:
    """Prints the differences of the plans for each shape that both files have.

    With `--model`, also times both plans.
    """
    if args.fail_below is not None and args.model is None:
        raise Error("TA7201 compare: --fail-below needs the model that is timed: --model MODEL")
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
    texts = {shape: f"plans for {shape}\n{item}" for shape, item in found.items()}
    data = {shape: _as_data(item) for shape, item in found.items()}
    is_below = False
    if args.model is not None:
        model = loaded(args, args.model)
        for shape, item in found.items():
            times = _times(model, shape, item, args)
            (speed,) = times.ratios.values()
            data[shape] |= {"times": times.records(), "speed": [speed.ratio, speed.low, speed.high]}
            texts[shape] += (
                f"\n\n{times}\nThe second plan is {speed.ratio:.2f} times as fast as the first"
                f" (95 % interval: {speed.low:.2f} to {speed.high:.2f})"
            )
            rounds = len(times.ns["first"])
            if args.fail_below is not None and rounds < LEAST_ROUNDS:
                raise Error(
                    f"TA7204 compare: --fail-below needs at least {LEAST_ROUNDS} rounds, and there"
                    f" were {rounds} in {BUDGET_S:.0f} s: raise --rounds, or time a smaller input"
                )
            if args.fail_below is not None and speed.high < args.fail_below:
                is_below = True
                texts[shape] += f", below {args.fail_below:g}"
    print_result(args, data, "\n\n".join(texts.values()))
    return int(is_below)


def _times(model: nn.Module, shape: str, pair: Comparison, args: argparse.Namespace) -> CallTimes:
    """Times calls of `model` with both plans, in turns. Ratios are those over the second plan."""
    try:
        inputs = random_inputs(model, read_shapes(shape))
    except argparse.ArgumentTypeError:
        raise Error(
            f"TA7204 compare: --model cannot time plans for {shape}: expected two plans for one"
            " shape"
        ) from None
    calls = {}
    for word, plan in (("second", pair.after), ("first", pair.before)):
        # The verdict of another machine does not say what is faster on this one.
        plan = dataclasses.replace(plan, guard=None)
        fast = optimize(model, inputs, plan=plan, settings=Settings(progress=False))
        calls[word] = functools.partial(fast, *inputs)
    return compare_calls(calls, {}, inputs[0].device, rounds=args.rounds, budget_s=BUDGET_S)


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
