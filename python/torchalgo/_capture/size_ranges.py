# SPDX-License-Identifier: BSD-3-Clause
"""Finds the ranges of sizes in which interval arithmetic proves all recorded conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torchalgo._capture.symbolic_run import (
    MOST_OPERATIONS,
    NotProvenError,
    SizeRecorder,
)

MOST_SIZE = 1 << 31

Ranges = dict[sympy.Symbol, ValueRanges[Any]]


def is_pinned(symbol: sympy.Symbol, ranges: Ranges) -> bool:
    """Returns whether no size but the planned one is proven to be right."""
    return symbol not in ranges or ranges[symbol].is_singleton()


def proven_ranges(recorder: SizeRecorder) -> Ranges:
    """Returns the sizes for which all conditions are proven, for each free symbol of the inputs."""
    planned: dict[sympy.Symbol, int] = {}
    loose: set[sympy.Symbol] = set()  # symbols that stand for different planned sizes
    for tensor in recorder.inputs:
        for size, symbol in zip(tensor.planned, tensor.symbols, strict=True):
            root = None if symbol is None else recorder.replace(symbol)
            if root is None:
                continue
            if not isinstance(root, sympy.Symbol) or planned.setdefault(root, size) != size:
                loose |= root.free_symbols
    ranges: Ranges = {s: ValueRanges(1, int_oo) for s in planned if s not in loose}
    for condition in _conditions(recorder):
        _restrict(condition, ranges, planned)
    return ranges


def _conditions(recorder: SizeRecorder) -> list[sympy.Basic]:
    """Returns the recorded questions as conditions on the sizes of the inputs."""
    conditions = dict.fromkeys(recorder.asked)
    found = []
    for condition in conditions:
        for _ in range(len(recorder.formulas) + 1):
            condition = recorder.replace(condition)
            deeper = {s: recorder.formulas[s] for s in condition.free_symbols
                      if s in recorder.formulas}  # fmt: skip
            if not deeper:
                break
            condition = condition.xreplace(deeper)
            if condition.count_ops() > MOST_OPERATIONS:
                raise NotProvenError("its sizes are computed by long formulas")
        found.append(condition)
    return found


def _restrict(condition: sympy.Basic, ranges: Ranges, planned: Mapping[sympy.Symbol, int]) -> None:
    """Narrows `ranges` until interval arithmetic proves `condition` in all of them.

    Pins the symbols of a condition that cannot be proven.
    """
    if condition in (sympy.true, True) or _is_proven(condition, ranges):
        return
    symbols = [s for s in condition.free_symbols if s in planned]
    free = [s for s in symbols if s in ranges]

    def within(low: int, high: int) -> Ranges:
        """Returns the ranges, limited to sizes from `low` to `high` and to the planned sizes."""
        narrowed = dict(ranges)
        for s in free:
            lower = max(ranges[s].lower, min(planned[s], low))
            upper = min(ranges[s].upper, int_oo if high >= MOST_SIZE else max(planned[s], high))
            narrowed[s] = ValueRanges(lower, upper)
        return narrowed

    top = max((planned[s] for s in free), default=1)
    high = _largest(lambda high: _is_proven(condition, within(top, high)), top)
    if free and high is not None:
        low = top - (_largest(lambda n: _is_proven(condition, within(top - n, high)), 0, top) or 0)
        ranges.update(within(low, high))
        return
    for s in free:
        del ranges[s]


def _largest(holds: Callable[[int], bool], least: int, most: int = MOST_SIZE) -> int | None:
    """Returns the largest number from `least` to `most` for which `holds` is true.

    `holds` must be monotone. Returns None if `holds(least)` is false.
    """
    if holds(most):
        return most
    if not holds(least):
        return None
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if holds(middle) else (least, middle)
    return least


def _is_proven(condition: sympy.Basic, ranges: Ranges) -> bool:
    """Returns whether `condition` is proven for all sizes in `ranges`."""
    try:
        bounds = bound_sympy(condition, ranges)
    except Exception:  # an expression that interval arithmetic does not know
        return False
    return bool(bounds.is_singleton()) and bounds.lower in (sympy.true, True)
