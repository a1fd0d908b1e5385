# SPDX-License-Identifier: BSD-3-Clause
"""The plan of a model that is trained: the plans of its regions, and what follows from them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchalgo._ir.plan import (
    GuardVerdict,
    LeftAlone,
    Plan,
    PlanNode,
    format_bytes,
    read_plans,
    runs_text,
    save_plans,
    unclear_text,
)
from torchalgo._ir.plan.text import MAX_COLUMNS
from torchalgo._ir.plan.text_table import ShownAsText, text_table
from torchalgo._ir.plan.units import in_ms
from torchalgo._ir.problems import DIRECTION_WORDS

STAGED = "staged"  # the comparison with three choices in a row
_SHRINK = ({0: 22, 2: 30},)
_MOST_NAMES = 12  # of operations that are left to PyTorch


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that the forward pass keeps for the gradients, as the plan lays it out."""

    value: str
    layout: str
    bytes: int


@dataclass(frozen=True)
class LayerPlan:
    """The primitives of one convolution. A direction that the step does not need is missing."""

    name: str
    directions: dict[str, PlanNode]  # "forward", "backward_data", "backward_filter"

    @property
    def predicted_us(self) -> float:
        """The time of all directions together."""
        return sum(node.predicted_us for node in self.directions.values())


@dataclass(frozen=True)
class TrainingPlan(ShownAsText):
    """The plan of a training step: the primitives that run in it. `print(plan)` explains it.

    A region is a part of the model that has one plan. `print(plan.regions[0])` lists all of its
    operations with their layouts, rivals and costs.

    Example:
        planned = torchalgo.optimize_training(model, (x,))
        planned.plan.save("net.train.json")
        plan = torchalgo.TrainingPlan.load("net.train.json")
        planned = torchalgo.optimize_training(model, (x,), plan=plan)
    """

    regions: list[Plan]
    saved: list[SavedTensor] = field(default_factory=list)  # empty if the plan is from a file
    left_alone: list[str] = field(default_factory=list)  # operations that PyTorch runs
    guard: GuardVerdict | None = None  # None if it was not timed
    # The graphs of the regions, for reports; empty if the plan is from a file.
    graphs: list[str] = field(default_factory=list, repr=False, compare=False)

    @property
    def predicted_us(self) -> float:
        """The time of a step in the regions: the sum of the measured costs."""
        return sum(plan.cost_us for plan in self.regions)

    @property
    def layers(self) -> list[LayerPlan]:
        """The convolutions, in the order of the model."""
        return [layer for plan in self.regions for layer in _layers(plan)]

    def save(self, path: str | Path) -> None:
        """Writes the plan to a file. Raises torchalgo.Error if that fails."""
        save_plans(noted_regions(self), path)

    @classmethod
    def load(cls, path: str | Path) -> TrainingPlan:
        """Reads a file that `save` wrote. Raises torchalgo.Error if it is damaged or missing."""
        first, *_ = regions = read_plans(path)
        plain = [dataclasses.replace(region, guard=None, left_alone=[]) for region in regions]
        return cls(plain, left_alone=[op.name for op in first.left_alone], guard=first.guard)

    def __repr__(self) -> str:
        number = f"{len(self.layers)} convolutions in {len(self.regions)} regions"
        return f"<torchalgo.TrainingPlan: {number}, {in_ms(self.predicted_us)} predicted>"

    def __str__(self) -> str:
        return "\n".join([*_table(self.layers), "", *_summary(self)])


def noted_regions(plan: TrainingPlan) -> list[Plan]:
    """Returns the regions with what is known of the whole step, for files and reports.

    Each has the verdict, and the first one lists what is left to PyTorch.
    """
    left = [LeftAlone(name, "it is in no region that has a plan") for name in plan.left_alone]
    return [
        dataclasses.replace(region, guard=plan.guard, left_alone=[] if i else left)
        for i, region in enumerate(plan.regions)
    ]


def is_gradient(node: PlanNode) -> bool:
    """Returns whether the node belongs to the backward pass."""
    return ".bwd" in node.name


def _layers(plan: Plan) -> list[LayerPlan]:
    nodes = {node.name: node for node in plan.nodes}
    found = []
    for name, node in nodes.items():
        if f"{name}.bwd_filter" not in nodes:
            continue
        directions = {"forward": node}
        for word, spelling in DIRECTION_WORDS.items():
            if (gradient := nodes.get(f"{name}.{spelling}")) is not None:
                directions[word] = gradient
        found.append(LayerPlan(name, directions))
    return found


def _table(layers: Sequence[LayerPlan]) -> list[str]:
    rows = [("layer", "direction", "primitive", "layouts", "us")]
    for layer in layers:
        name = layer.name
        for word, node in layer.directions.items():
            layouts = node.src if node.src == node.dst else f"{node.src}>{node.dst}"
            primitive = node.primitive or f"in {node.absorbed_by}"
            direction = word.replace("_", " ")
            rows.append((name, direction, primitive, layouts, f"{node.predicted_us:.1f}"))
            name = ""
    head, *lines = text_table(rows, right=(4,), columns=MAX_COLUMNS, shrink=_SHRINK)
    return [head, "-" * max(map(len, [head, *lines])), *lines]


def _summary(plan: TrainingPlan) -> list[str]:
    nodes = [node for region in plan.regions for node in region.nodes]
    parts: Counter[str] = Counter()
    for node in nodes:
        direction = next(
            (d for d in ("bwd_data", "bwd_filter") if node.name.endswith(f".{d}")), "other"
        )
        parts[direction if is_gradient(node) else "forward"] += round(node.predicted_us * 1000)
    changes = [change for region in plan.regions for change in region.transforms]
    changed_us = sum(change.predicted_us for change in changes)
    times = [
        f"{words} {in_ms(parts[part] / 1000)}"
        for part, words in (
            ("forward", "forward pass"),
            ("bwd_data", "gradients of data"),
            ("bwd_filter", "gradients of weights"),
            ("other", "other gradients"),
        )
    ]
    lines = [
        f"{len(plan.layers)} convolutions and {len(nodes)} operations in {len(plan.regions)}"
        f" {'region' if len(plan.regions) == 1 else 'regions'}",
        f"predicted: {in_ms(plan.predicted_us)} in a step",
        *(f"  {time}" for time in times),
        f"  {len(changes)} layout changes {in_ms(changed_us)}",
        _proof(plan.regions),
        *_staged(plan.regions),
    ]
    if plan.saved:
        sizes: Counter[str] = Counter()
        for tensor in plan.saved:
            sizes[tensor.layout] += tensor.bytes
        texts = ", ".join(f"{layout} {format_bytes(n)}" for layout, n in sorted(sizes.items()))
        lines.append(f"kept for the gradients: {format_bytes(sizes.total())} ({texts})")
    if plan.left_alone:
        counts = Counter(plan.left_alone).items()
        names = [name if count == 1 else f"{count} x {name}" for name, count in counts]
        more = len(names) - _MOST_NAMES
        rest = f" and {more} more, see plan.left_alone" if more > 0 else ""
        lines.append(f"left to PyTorch: {', '.join(names[:_MOST_NAMES])}{rest}")
    if plan.guard is not None:
        lines.append(guard_text(plan.guard))
    return lines


def _proof(regions: Sequence[Plan]) -> str:
    if unmeasured := sum(region.unmeasured for region in regions):
        calls = sum(
            len(region.transforms) + sum(bool(node.primitive) for node in region.nodes)
            for region in regions
        )
        return f"not proven optimal: {unmeasured} of {calls} times were not measured"
    if all(p.status == "optimal" for p in regions):
        return "proven: no plan has a smaller sum of the measured costs"
    gap = sum(p.cost_us - p.lower_bound_us for p in regions)
    return f"not proven optimal: a plan may cost up to {in_ms(gap)} less"


def _staged(regions: Sequence[Plan]) -> list[str]:
    costs = [p.comparisons.get(STAGED) for p in regions]
    if None in costs or not costs:
        return []
    staged, own = sum(filter(None, costs)), sum(p.cost_us for p in regions)
    more = staged / own - 1 if own else 0.0
    return [
        f"one direction after the other: {in_ms(staged)}, so planning them together gains"
        f" {more:.1%}"
    ]


def guard_text(guard: GuardVerdict) -> str:
    """Returns what the timed steps have shown, and what runs."""
    unclear = f", {why}" if (why := unclear_text(guard)) else ""
    interval = f" [95 %: {1 / guard.high:.2f} to {1 / guard.low:.2f}]" if guard.rounds > 1 else ""
    return (
        f"timed: a step of {in_ms(guard.plan_us)} against {in_ms(guard.baseline_us)} of the model"
        f" as it was given, {1 / guard.ratio:.2f} times as fast{interval}{unclear};"
        f" {f'{guard.reason}; ' if guard.reason else ''}{runs_text(guard)}"
    )
