# SPDX-License-Identifier: BSD-3-Clause
"""Lists the operations of a plan in the order of a call, and the tensors between them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torchalgo import _C, Error
from torchalgo._ir.native_plan import native_plan
from torchalgo._ir.plan import LeftAlone, Plan, PlanNode, PlanTransform, cost_of, regret_of
from torchalgo._ir.plan.text import in_order, runner_up_text
from torchalgo._ir.problems import OWN_KIND

Kind = Literal["planned", "transform", "left", "input", "output"]
LAYOUT_OF_TORCH = "nchw"  # ops that are left to PyTorch read and write it, except views


@dataclass(frozen=True)
class Operation:
    """A call of a primitive, a layout change, an op left to PyTorch, an input or an output.

    Operations that the same call computes are in `fused`. They have no entry of their own.
    """

    kind: Kind
    name: str
    problem: str = ""
    primitive: str = ""
    src: str = ""
    dst: str = ""
    fused: tuple[str, ...] = ()
    cost: float | None = None  # in the unit of the plan's costs; None if it is not known
    source: str = ""  # of the cost, as in PlanNode
    runner_up: str = ""
    regret: float | None = None
    us: float | None = None  # predicted; of an operation that is left to PyTorch, measured
    packed_bytes: int | None = None
    note: str = ""  # why PyTorch runs it
    line: str = ""  # of the model's code
    sizes: str = ""  # of its result, such as "1x64x56x56"


@dataclass(frozen=True)
class Tensor:
    """A tensor in one layout: the operation that writes it, and those that read it."""

    producer: int  # index of an operation
    readers: tuple[int, ...]  # in the order of the operations
    layout: str


@dataclass(frozen=True)
class Flow:
    """The operations in the order of a call. Without a graph, `tensors` is None."""

    operations: tuple[Operation, ...]
    tensors: tuple[Tensor, ...] | None


def flow_of(plan: Plan, graph_text: str | None) -> Flow:
    """Returns the operations of `plan`.

    Without the text of its graph, they have the order of the plan, and the tensors are not known.
    """
    if graph_text is not None:
        graph = _C.parse_graph(graph_text)
        # The plan may be of another graph, or name its parts otherwise.
        with contextlib.suppress(Error, KeyError):
            return _flow(plan, graph, _C.lower(graph, native_plan(plan)))
    return Flow(tuple(_listed(plan)), None)


def _flow(plan: Plan, graph: _C.Graph, schedule: _C.Schedule) -> Flow:
    """Returns the inputs, the steps and the outputs of a schedule, and the tensors between them."""
    describe, slots = _Describer(plan), schedule.slots  # each access copies a list
    nodes, values = graph.nodes, graph.values
    planned = {node.name: node for node in plan.nodes}
    transforms: dict[tuple[str, str, str], PlanTransform] = {
        (each.value, each.src, each.dst): each for each in plan.transforms
    }
    operations: list[Operation] = []
    made: dict[int, int] = {}  # the operation that writes a slot
    readers: dict[int, list[int]] = {}

    def add(operation: Operation, reads: Iterable[int], writes: Iterable[int]) -> None:
        for slot in dict.fromkeys(reads):
            readers.setdefault(slot, []).append(len(operations))
        made.update((slot, len(operations)) for slot in writes)
        operations.append(operation)

    def sizes(some: Sequence[int]) -> str:
        return "x".join(map(str, values[slots[some[0]].value].sizes)) if some else ""

    for slot in dict.fromkeys(schedule.inputs):
        name, layout = values[slots[slot].value].name, slots[slot].layout
        add(Operation("input", name, dst=layout, sizes=sizes([slot])), (), [slot])
    for step in schedule.steps:
        ends = (step.src, step.dst)
        src, dst = (slots[end[0]].layout if end else LAYOUT_OF_TORCH for end in ends)
        if step.covers and nodes[step.covers[0]].reads_shape_only:
            continue
        if not step.covers:
            operation = describe.transform(transforms[step.layer, src, dst], sizes(step.dst))
        elif step.problem is None:
            operation = describe.left(nodes[step.covers[0]], (src, dst), sizes(step.dst))
        else:
            operation = describe.node(planned[step.layer], sizes(step.dst))
        add(operation, [*step.src, *([] if step.residual is None else [step.residual])], step.dst)
    for slot in dict.fromkeys(schedule.outputs):
        name, layout = values[slots[slot].value].name, slots[slot].layout
        add(Operation("output", name, src=layout, sizes=sizes([slot])), [slot], ())
    tensors = (
        Tensor(at, tuple(readers.get(slot, ())), slots[slot].layout) for slot, at in made.items()
    )
    return Flow(tuple(operations), tuple(tensors))


def _listed(plan: Plan) -> Iterable[Operation]:
    """Yields the operations in the order of the plan; each layout change behind its producer.

    Those that are left to PyTorch come last.
    """
    describe = _Describer(plan)
    for part in in_order(plan):
        if isinstance(part, PlanTransform):
            yield describe.transform(part)
        elif part.primitive:
            yield describe.node(part)
    for item in plan.left_alone:
        if item.name:
            yield Operation(
                "left", item.name, us=item.measured_us, note=item.note, line=item.source
            )


class _Describer:
    """Makes operations of the parts of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._left = {item.name: item for item in plan.left_alone if item.name}
        self._fused: dict[str, list[str]] = {}
        for node in plan.nodes:
            if node.absorbed_by:
                self._fused.setdefault(node.absorbed_by, []).append(node.name)

    def node(self, node: PlanNode, sizes: str = "") -> Operation:
        return Operation(
            "planned", node.name, node.problem, node.primitive, node.src, node.dst,
            fused=tuple(self._fused.get(node.name, ())),
            cost=cost_of(node, self._plan), source=node.cost_source,
            runner_up=runner_up_text(node), regret=regret_of(node, self._plan),
            us=node.predicted_us, packed_bytes=node.packed_bytes, sizes=sizes,
        )  # fmt: skip

    def transform(self, transform: PlanTransform, sizes: str = "") -> Operation:
        return Operation(
            "transform", transform.value, transform.problem, transform.primitive,
            transform.src, transform.dst,
            cost=cost_of(transform, self._plan), source=transform.cost_source,
            us=transform.predicted_us, sizes=sizes,
        )  # fmt: skip

    def left(self, node: _C.Node, layouts: tuple[str, str], sizes: str) -> Operation:
        known = self._left.get(node.name, LeftAlone(node.name, node.note))
        is_own = node.kind.startswith(OWN_KIND)
        why = "it is torchalgo's own" if is_own else f"torchalgo does not plan {node.kind}"
        note = known.note or why
        return Operation(
            "left", node.name, primitive=node.kind, src=layouts[0], dst=layouts[1],
            us=known.measured_us, note=note, line=known.source, sizes=sizes,
        )  # fmt: skip
