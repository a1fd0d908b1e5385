# SPDX-License-Identifier: BSD-3-Clause
"""Compares the plan with plans of simpler choices, as the figures of the CGO 2018 paper do.

Source: Anderson & Gregg 2018, CGO, pp. 340-351, doi:10.1145/3168805.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torchalgo import CallTimes, Error
from torchalgo._ir.costs import algorithm_of
from torchalgo._ir.facts import Facts
from torchalgo._ir.plan import Plan, format_value, value_of
from torchalgo._ir.problems import has_convolution

Group = Literal["pytorch", "layout", "algorithm", "other", "local", "plan"]
SINGLE = "single_layout_"
# Algorithms that can run fewer of the convolutions have no bar: their plan is mostly the optimum.
LEAST_PART = 0.25
_MISSING = {
    "aten_only": "only PyTorch's algorithms",
    "local_optimum": "the fastest primitive of each convolution (local optimum)",
}
_TEXTS = {
    **_MISSING,
    "without_limits": "the best plan without the limits",
    "optimum": "the best choice of all layers together (global optimum)",
    "fastest": "the fastest plan",
    "staged": "one direction after the other",
}


@dataclass(frozen=True)
class Bar:
    """The predicted cost of one plan, relative to the plan of the report."""

    group: Group
    label: str
    value: float  # of the objective
    text: str  # the value with its unit
    ratio: float | None  # to the plan of the report; None if that costs nothing
    percent: float  # of the longest bar
    measured: tuple[str, str] | None = None  # texts of the time, and of its ratio to the plan's


@dataclass(frozen=True)
class Bars:
    """The plan and the simpler choices, and what is not known of these."""

    bars: tuple[Bar, ...]
    missing: tuple[str, ...]
    has_algorithms: bool

    @property
    def are_measured(self) -> bool:
        return any(bar.measured is not None for bar in self.bars)

    @property
    def without_time(self) -> list[str]:
        """The bars of plans that can be timed and were not. Those of one algorithm cannot."""
        every = [bar for bar in self.bars if bar.group != "algorithm"]
        return [bar.label for bar in every if bar.measured is None]

    def ratio_of(self, group: Group) -> float | None:
        """Returns the least ratio of a group, or None if it has no bar."""
        found = [bar.ratio for bar in self.bars if bar.group == group and bar.ratio is not None]
        return min(found, default=None)


def bars_of(plan: Plan, facts: Facts | None, measured: CallTimes | None = None) -> Bars:
    """Returns the bars that are known: those of the plan, and with its run one per algorithm.

    `measured` has times by the names of plan.comparisons, after the plan's own one as "plan".
    """
    known, times = plan.comparisons, {} if measured is None else _time_texts(measured)
    values: list[tuple[Group, str, float, str]] = []

    def add(group: Group, label: str, name: str) -> None:
        values.append((group, label, known[name], name))

    if "aten_only" in known:
        add("pytorch", _TEXTS["aten_only"], "aten_only")
    layouts = sorted(name for name in known if name.startswith(SINGLE))
    for name in layouts:
        add("layout", f"all layers in {name.removeprefix(SINGLE)}", name)
    algorithms = algorithm_values(plan, facts)
    values += [("algorithm", label, value, "") for label, value in algorithms]
    if "local_optimum" in known:
        add("local", _TEXTS["local_optimum"], "local_optimum")
    for name in known:
        if name not in ("aten_only", "local_optimum", "best_single_layout", *layouts):
            add("other", _TEXTS.get(name, name.replace("_", " ")), name)
    own = value_of(plan)
    values.append(("plan", _own_label(plan), own, "plan"))
    most = max([value for _, _, value, _ in values] + [1e-9])
    bars = tuple(
        Bar(group, label, value, format_value(plan.objective, value),
            value / own if own else None, 100 * value / most, times.get(name))
        for group, label, value, name in values
    )  # fmt: skip
    missing = [text for name, text in _MISSING.items() if name not in known]
    missing += [] if layouts else ["all layers in a single layout"]
    return Bars(bars, tuple(missing), bool(algorithms))


def _time_texts(measured: CallTimes) -> dict[str, tuple[str, str]]:
    """Returns the texts of each median, and of its ratio to the time of the plan, by name."""
    ratios = {
        name: f"{it.ratio:.2f}x [{it.low:.2f}, {it.high:.2f}]"
        for name, it in measured.ratios.items()
    }
    return {
        name: (format_value("latency", statistics.median(ns) / 1000), ratios.get(name, "1.000x"))
        for name, ns in measured.ns.items()
    }


def _own_label(plan: Plan) -> str:
    if plan.guard is not None and plan.guard.runs == "single_layout":
        return "this plan: the best plan in one layout"
    if plan.status == "optimal" and not plan.unproven:
        return "this plan: all chosen together (global optimum)"
    return "this plan: all chosen together (not proven optimal)"


def algorithm_values(plan: Plan, facts: Facts | None) -> list[tuple[str, float]]:
    """Returns the values of plans that use one algorithm for every convolution that it can run.

    They are solved from known costs, some of which are rough: most candidates ran only until they
    had lost. A plan of a file has no costs in memory, and gets none. An algorithm is left out if it
    can run only few convolutions, or if its costs are not known.
    """
    if plan.resolve is None or facts is None:
        return []
    offered = _offered_algorithms(plan, facts)
    found = []
    for name in sorted({name for some in offered.values() for name in some}):
        layers = [layer for layer, some in offered.items() if name in some]
        if len(layers) < LEAST_PART * len(offered):
            continue
        try:
            value = value_of(plan.resolve(dict.fromkeys(map(_as_glob, layers), name)))
        except Error:
            continue
        found.append((f"{name}: {len(layers)} of {len(offered)} layers", value))
    return found


def _offered_algorithms(plan: Plan, facts: Facts) -> Mapping[str, set[str]]:
    """Returns the algorithms that can run each convolution."""
    convolutions = [node.name for node in plan.nodes if has_convolution(node.problem)]
    return {
        name: {algorithm_of(c.primitive) or c.primitive for c in facts.candidates[name]}
        for name in convolutions
        if facts.candidates.get(name)
    }


def _as_glob(name: str) -> str:
    """Returns a glob that matches this name only."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
