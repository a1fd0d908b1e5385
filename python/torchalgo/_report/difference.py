# SPDX-License-Identifier: BSD-3-Clause
"""Compares two plans of one model: which choices differ, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchalgo import Error
from torchalgo._ir.plan import (
    Plan,
    cost_of,
    format_value,
    planned_shapes,
    shapes_text,
    unit_of,
    value_of,
)
from torchalgo._ir.plan.text import layouts_text
from torchalgo._ir.plan.text_table import ShownAsText, text_table

MAX_COLUMNS = 120


@dataclass(frozen=True)
class Choice:
    """The choice of a plan for one operation or layout change."""

    text: str  # such as "cpu.direct nhwc", or "in conv1" if it is absorbed
    cost: float


@dataclass(frozen=True)
class Difference:
    """An operation or a layout change for which two plans differ. None: a plan lacks it."""

    name: str
    before: Choice | None
    after: Choice | None

    @property
    def more(self) -> float:
        """How much more the second plan costs here."""
        costs = [0.0 if side is None else side.cost for side in (self.before, self.after)]
        return round(costs[1] - costs[0], 3)


@dataclass(frozen=True)
class Comparison(ShownAsText):
    """Two plans and their differences, the largest change of cost first."""

    before: Plan
    after: Plan
    differences: tuple[Difference, ...]
    same: int  # number of operations and layout changes with the same choice
    same_costs: tuple[float, float]  # their costs in both plans

    @property
    def unit(self) -> str:
        return unit_of(self.before)

    @property
    def shapes(self) -> str:
        return shapes_text(planned_shapes(self.before))

    @property
    def facts(self) -> list[str]:
        """Lines on the costs and times of both plans, and on what differs of their machines."""
        lines = [f"predicted: {_change(self.before, self.after)}"]
        if self.before.guard is not None and self.after.guard is not None:
            lines += _measured(self)
        return lines + _environment(self.before.environment, self.after.environment)

    @property
    def summary(self) -> str:
        """The numbers of other and of equal choices, and what the equal ones cost."""
        (one, other), count, unit = self.same_costs, len(self.differences), self.unit
        return (
            f"{count} choice{'s' * (count != 1)} differ{'s' * (count == 1)}; {self.same} are the"
            f" same: {one:.1f} {unit} in the first plan, {other:.1f} {unit} in the second"
        )

    def __str__(self) -> str:
        table = ["", *_table(self.differences, self.unit), ""] if self.differences else []
        return "\n".join([*self.facts, *table, self.summary])


def compare(before: Plan, after: Plan) -> Comparison:
    """Returns the differences of two plans. Operations are found by their names.

    Raises: torchalgo.Error if the plans have other units, or no operation in common.
    """
    if unit_of(before) != unit_of(after):
        raise Error(
            f"TA7204 compare: one plan is for {before.objective} and the other for"
            f" {after.objective}, expected two plans for time or two for energy"
        )
    one, other = _choices(before), _choices(after)
    shared = [name for name in one if name in other]
    if not shared and (one or other):
        raise Error(
            "TA7204 compare: the plans have no operation with the same name, expected two plans of"
            " one model"
        )
    found = [
        Difference(name, one.get(name), other.get(name))
        for name in dict.fromkeys([*one, *other])
        if name not in one or name not in other or one[name].text != other[name].text
    ]
    found.sort(key=lambda item: -abs(item.more))
    same = [name for name in shared if one[name].text == other[name].text]
    sums = sum(one[name].cost for name in same), sum(other[name].cost for name in same)
    return Comparison(before, after, tuple(found), len(same), sums)


def _choices(plan: Plan) -> Mapping[str, Choice]:
    """Returns the choices by the name of an operation, or "> layout of value"."""
    found = {}
    for node in plan.nodes:
        text = f"in {node.absorbed_by}"
        if node.primitive:
            text = f"{node.primitive} {layouts_text(node.src, node.dst)}"
        found[node.name] = Choice(text, cost_of(node, plan))
    for transform in plan.transforms:
        text = f"{transform.primitive} {layouts_text(transform.src, transform.dst)}"
        found[f"> {transform.dst} of {transform.value}"] = Choice(text, cost_of(transform, plan))
    return found


def _change(before: Plan, after: Plan) -> str:
    one, other = value_of(before), value_of(after)
    ratio = f" ({other / one:.3f}x)" if one else ""
    texts = [format_value(plan.objective, value_of(plan)) for plan in (before, after)]
    kinds = [plan.status for plan in (before, after)]
    return f"{texts[0]} ({kinds[0]}) -> {texts[1]} ({kinds[1]}){ratio}"


def _measured(comparison: Comparison) -> list[str]:
    one, other = comparison.before.guard, comparison.after.guard
    assert one is not None and other is not None
    if not one.rounds or not other.rounds:
        return []
    times = f"{one.plan_us / 1000:.3f} ms -> {other.plan_us / 1000:.3f} ms"
    return [f"measured: {times}, in two runs, so the difference may be noise"]


def _environment(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Returns a line for each part of the environment that differs."""
    names = dict.fromkeys([*before, *after])
    return [
        f"{name}: {before.get(name, 'not known')} -> {after.get(name, 'not known')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _table(differences: Sequence[Difference], unit: str) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("operation", "first plan", unit, "second plan", unit, f"{unit} more")
    ]
    for item in differences:
        cells = [
            cell
            for side in (item.before, item.after)
            for cell in (("-", "") if side is None else (side.text, f"{side.cost:.1f}"))
        ]
        rows.append((item.name, *cells, f"{item.more:+.1f}"))
    shrink = ({0: 20, 1: 24, 3: 24},)
    return text_table(rows, right=(2, 4, 5), columns=MAX_COLUMNS, shrink=shrink)
