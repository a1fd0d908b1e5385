# SPDX-License-Identifier: BSD-3-Clause
"""Collects what is known of each operation: its work, its candidates and the refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchalgo import _C, Error
from torchalgo._ir.costs import engine_of
from torchalgo._ir.facts import Facts, Refused, without_layouts
from torchalgo._report.operations import Operation

MOST_CANDIDATES, MOST_REFUSALS = 12, 12  # that are listed for one operation
_SOURCES = {
    "measured": "measured",
    "bound": "lower bound",
    "model": "predicted",
    "construction": "moves no data",
    "proof": "from the plan's proof",
    "": "not known",
}


@dataclass(frozen=True)
class CandidateLine:
    """A candidate for the same problem as the chosen primitive."""

    primitive: str
    src: str
    dst: str
    cost: float | None
    source: str
    error: float | None
    is_chosen: bool


@dataclass(frozen=True)
class Details:
    """The facts about one operation that its row of the table does not show."""

    mflop: float | None
    gflop_per_s: float | None  # at the predicted time
    roofline: float | None  # its time at the machine's highest rates, in percent of the cost
    source: str
    candidates: tuple[CandidateLine, ...]
    more_candidates: int
    refusals: tuple[tuple[str, str], ...]  # algorithms, and their common reason
    is_known: bool  # False: the candidates and the refusals are not known


def details_of(operation: Operation, facts: Facts | None, unit: str) -> Details:
    """Returns the details. Without the facts of a run, there are no candidates and refusals."""
    flops = _flops(operation.problem)
    rate = None
    if flops and operation.cost and unit == "us":
        rate = flops / operation.cost / 1e3
    lines = _candidates(operation, facts)
    refused = [] if facts is None else list(facts.refusals.get(operation.name, ()))
    return Details(
        mflop=None if flops is None else flops / 1e6,
        gflop_per_s=rate,
        roofline=_roofline(operation, facts) if unit == "us" else None,
        source=_SOURCES.get(operation.source, operation.source),
        candidates=tuple(lines[:MOST_CANDIDATES]),
        more_candidates=max(0, len(lines) - MOST_CANDIDATES),
        refusals=_grouped(refused if operation.kind == "planned" else []),
        is_known=bool(lines),
    )


def _flops(problem: str) -> float | None:
    if not problem:
        return None
    try:
        return _C.flop_count(problem) or None
    except Error:  # a plan of another version may have problems that this one does not know
        return None


def _roofline(operation: Operation, facts: Facts | None) -> float | None:
    if facts is None or not operation.cost:
        return None
    chosen = (operation.problem, operation.primitive, operation.src, operation.dst)
    for candidate in facts.candidates.get(operation.name, ()):
        known = (candidate.problem, candidate.primitive, candidate.src, candidate.dst)
        if known == chosen and candidate.roofline is not None:
            return 100 * candidate.roofline / operation.cost
    return None


def _candidates(operation: Operation, facts: Facts | None) -> list[CandidateLine]:
    """Returns the candidates: the cheapest known ones first, then those without a cost."""
    if facts is None or operation.kind != "planned":
        return []
    chosen = (operation.primitive, operation.src, operation.dst)
    lines = {
        (c.primitive, c.src, c.dst): CandidateLine(
            c.primitive, c.src, c.dst, c.cost, _SOURCES.get(c.source, c.source), c.error,
            (c.primitive, c.src, c.dst) == chosen,
        )
        for c in facts.candidates.get(operation.name, ())
        if c.problem == operation.problem
    }  # fmt: skip
    is_guess = {_SOURCES["bound"]: 1, _SOURCES[""]: 2}

    def rank(line: CandidateLine) -> tuple[bool, int, float, str]:
        return (not line.is_chosen, is_guess.get(line.source, 0), line.cost or 0.0, line.primitive)

    return sorted(lines.values(), key=rank)


def _grouped(refused: Sequence[Refused]) -> tuple[tuple[str, str], ...]:
    """Returns the algorithms that refuse for the same reason, with this reason."""
    reasons: dict[str, list[str]] = {}
    for item in refused:
        names = reasons.setdefault(without_layouts(item.reason), [])
        if (name := engine_of(item.primitive)) not in names:
            names.append(name)
    return tuple((", ".join(names), reason) for reason, names in reasons.items())[:MOST_REFUSALS]
