# SPDX-License-Identifier: BSD-3-Clause
"""Collects what is known of each operation: its work, its candidates and the refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchalgo import _C, Error
from torchalgo._ir.costs import engine_of
from torchalgo._ir.facts import Facts, KnownCost, Refused, without_layouts
from torchalgo._report.operations import Operation

MOST_CANDIDATES, MOST_REFUSALS = 12, 12  # that are listed for one operation
SOURCES = {
    "measured": "measured",
    "bound": "lower bound",
    "model": "predicted",
    "construction": "moves no data",
    "": "not known",
}


def details_of(operation: Operation, facts: Facts | None, unit: str) -> dict[str, Any]:
    """Returns the facts about one operation that its row of the table does not show.

    Without the facts of a run, there are no candidates and refusals.
    """
    flops = _flops(operation.problem)
    rate = None
    if flops and operation.cost and unit == "us":
        rate = flops / operation.cost / 1e3
    lines = _candidates(operation, facts)
    refused = [] if facts is None else list(facts.refusals.get(operation.name, ()))
    return {
        "mflop": None if flops is None else flops / 1e6,
        "gflop_per_s": rate,  # at the predicted time
        "roofline": _roofline(operation, facts) if unit == "us" else None,
        "candidates": lines[:MOST_CANDIDATES],
        "more_candidates": max(0, len(lines) - MOST_CANDIDATES),
        "refusals": _grouped(refused if operation.kind == "planned" else []),
    }


def _flops(problem: str) -> float | None:
    if not problem:
        return None
    try:
        return _C.flop_count(problem) or None
    except Error:  # a plan of another version may have problems that this one does not know
        return None


def _roofline(operation: Operation, facts: Facts | None) -> float | None:
    """Returns the time at the machine's highest rates, in percent of the cost."""
    if facts is None or not operation.cost:
        return None
    chosen = (operation.problem, operation.primitive, operation.src, operation.dst)
    for candidate in facts.candidates.get(operation.name, ()):
        known = (candidate.problem, candidate.primitive, candidate.src, candidate.dst)
        if known == chosen and candidate.roofline is not None:
            return 100 * candidate.roofline / operation.cost
    return None


def _candidates(operation: Operation, facts: Facts | None) -> list[KnownCost]:
    """Returns the candidates: the cheapest known ones first, then those without a cost."""
    if facts is None or operation.kind != "planned":
        return []
    chosen = (operation.primitive, operation.src, operation.dst)
    found = {
        (c.primitive, c.src, c.dst): c
        for c in facts.candidates.get(operation.name, ())
        if c.problem == operation.problem
    }
    is_guess = {"bound": 1, "": 2}

    def rank(name: tuple[str, str, str]) -> tuple[bool, int, float, str]:
        known = found[name]
        return name != chosen, is_guess.get(known.source, 0), known.cost or 0.0, known.primitive

    return [found[name] for name in sorted(found, key=rank)]


def _grouped(refused: Sequence[Refused]) -> tuple[tuple[str, str], ...]:
    """Returns the algorithms that refuse for the same reason, with this reason."""
    reasons: dict[str, list[str]] = {}
    for item in refused:
        names = reasons.setdefault(without_layouts(item.reason), [])
        if (name := engine_of(item.primitive)) not in names:
            names.append(name)
    return tuple((", ".join(names), reason) for reason, names in reasons.items())[:MOST_REFUSALS]
