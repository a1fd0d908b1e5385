# SPDX-License-Identifier: BSD-3-Clause
"""Lists the operations of a plan in the order of a call, and the tensors between them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torchalgo import _C
from torchalgo._ir.plan import LeftAlone, Plan, PlanNode, PlanTransform, cost_of, regret_of
from torchalgo._ir.problems import OWN_KIND

Kind = Literal["planned", "transform", "left", "input", "output"]
LAYOUT_OF_TORCH = "nchw"  # ops that are left to PyTorch read and write it, except views
VIEW_COLUMN = 5  # of a node's line in the text of a graph


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
    measured_us: float | None = None  # of an operation that is left to PyTorch
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
    graph = None if graph_text is None else _C.parse_graph(graph_text)
    if graph is None or not _fits(plan, graph):
        return Flow(tuple(_listed(plan)), None)
    return _Builder(plan, graph, _views_of(graph_text)).build()


def _views_of(graph_text: str | None) -> dict[str, tuple[str, str]]:
    """Returns the layouts that each view of PyTorch reads and writes, by the name of its node.

    Such a node has "nchw->nhwc" in the place of a problem.
    """
    rows = [line.split("\t") for line in (graph_text or "").splitlines()]
    nodes = [row for row in rows if row[0] == "node" and len(row) > VIEW_COLUMN]
    pairs = {row[1]: row[VIEW_COLUMN].partition("->") for row in nodes}
    return {name: (src, dst) for name, (src, arrow, dst) in pairs.items() if arrow}


def _fits(plan: Plan, graph: _C.Graph) -> bool:
    nodes = {node.name for node in graph.nodes}
    values = {value.name for value in graph.values}
    has_nodes = all(node.name in nodes for node in plan.nodes)
    return has_nodes and all(transform.value in values for transform in plan.transforms)


def _listed(plan: Plan) -> Iterable[Operation]:
    """Yields the operations in the order of the plan; each layout change behind its producer."""
    after: dict[str, list[PlanTransform]] = {}
    for transform in plan.transforms:
        after.setdefault(transform.producer, []).append(transform)
    describe = _Describer(plan)
    yield from map(describe.transform, after.pop("", []))
    for node in plan.nodes:
        if node.primitive:
            yield describe.node(node)
        yield from map(describe.transform, after.pop(node.name, []))
    for rest in after.values():
        yield from map(describe.transform, rest)


def _short(primitive: str) -> str:
    """Returns "name src->dst" with one layout if both are equal."""
    name, _, layouts = primitive.partition(" ")
    src, _, dst = layouts.partition("->")
    return f"{name} {src}" if src and src == dst else primitive


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
            runner_up=_short(node.runner_up), regret=regret_of(node, self._plan),
            packed_bytes=node.packed_bytes, sizes=sizes,
        )  # fmt: skip

    def transform(self, transform: PlanTransform, sizes: str = "") -> Operation:
        return Operation(
            "transform", transform.value, transform.problem, transform.primitive,
            transform.src, transform.dst,
            cost=cost_of(transform, self._plan), sizes=sizes,
        )  # fmt: skip

    def left(self, node: _C.Node, layouts: tuple[str, str], sizes: str) -> Operation:
        known = self._left.get(node.name, LeftAlone(node.name, node.note))
        is_own = node.kind.startswith(OWN_KIND)
        why = "it is torchalgo's own" if is_own else f"torchalgo does not plan {node.kind}"
        note = known.note or why
        return Operation(
            "left", node.name, primitive=node.kind, src=layouts[0], dst=layouts[1],
            measured_us=known.measured_us, note=note, line=known.source, sizes=sizes,
        )  # fmt: skip


@dataclass
class _Group:
    """The nodes of one call, or a layout change: what it reads and writes, as (value, layout)."""

    key: tuple[int, int]  # its place in the order of the graph
    operation: Operation
    reads: list[tuple[int, str]]
    writes: list[tuple[int, str]]


class _Builder:
    """Groups the nodes of a graph by calls, and orders the calls by the data flow."""

    def __init__(self, plan: Plan, graph: _C.Graph, views: Mapping[str, tuple[str, str]]) -> None:
        self._plan, self._graph, self._describe = plan, graph, _Describer(plan)
        self._views = views
        self._nodes, self._values = graph.nodes, graph.values  # each access copies the lists
        self._ends = set(graph.outputs)
        self._node_of = {node.name: i for i, node in enumerate(self._nodes)}
        self._planned = {node.name: node for node in plan.nodes}
        self._readers = self._anchors_that_read()
        self._layouts = self._written_layouts()
        self._made: dict[str, set[str]] = {}  # by value, the layouts into which it is changed
        for transform in plan.transforms:
            self._made.setdefault(transform.value, set()).add(transform.dst)

    def build(self) -> Flow:
        groups = [*self._inputs(), *self._calls(), *self._transforms(), *self._outputs()]
        ordered = _in_order(groups)
        if len(ordered) < len(groups):  # a circle: the plan does not fit the graph
            return Flow(tuple(_listed(self._plan)), None)
        return Flow(tuple(group.operation for group in ordered), tuple(_tensors(ordered)))

    def _anchors_that_read(self) -> dict[int, set[str]]:
        readers: dict[int, set[str]] = {}
        for node in self._nodes:
            for value in () if node.reads_shape_only else node.inputs:
                readers.setdefault(value, set()).add(self._anchor(node.name))
        return readers

    def _anchor(self, name: str) -> str:
        node = self._planned.get(name)
        return name if node is None else node.absorbed_by or name

    def _written_layouts(self) -> list[str]:
        """Returns the layout in which each value is written."""
        layouts = [LAYOUT_OF_TORCH] * len(self._values)
        for value, layout in zip(self._graph.inputs, self._graph.input_layouts, strict=True):
            layouts[value] = layout
        for node in self._nodes:
            planned = self._planned.get(self._anchor(node.name))
            for value in node.outputs:
                layouts[value] = self._left_layouts(node)[1] if planned is None else planned.dst
        return layouts

    def _left_layouts(self, node: _C.Node) -> tuple[str, str]:
        """Returns the layouts that a node which is left to PyTorch reads and writes."""
        return self._views.get(node.name, (LAYOUT_OF_TORCH, LAYOUT_OF_TORCH))

    def _read_as(self, value: int, wanted: Sequence[str]) -> tuple[int, str]:
        """Returns the layout in which a call reads a value: the first wanted one that exists."""
        own, name = self._layouts[value], self._values[value].name
        known = {own, *self._made.get(name, ())}
        return value, next((layout for layout in wanted if layout in known), own)

    def _sizes(self, values: Sequence[int]) -> str:
        return "x".join(map(str, self._values[values[0]].sizes)) if values else ""

    def _inputs(self) -> Iterable[_Group]:
        for value in self._graph.inputs:
            layout = self._layouts[value]
            name, sizes = self._values[value].name, self._sizes([value])
            yield _Group(
                (-2, value), Operation("input", name, dst=layout, sizes=sizes), [],
                [(value, layout)],
            )  # fmt: skip

    def _outputs(self) -> Iterable[_Group]:
        for value in dict.fromkeys(self._graph.outputs):
            read = self._read_as(value, (LAYOUT_OF_TORCH,))
            name, sizes = self._values[value].name, self._sizes([value])
            done = Operation("output", name, src=read[1], sizes=sizes)
            yield _Group((len(self._nodes), value), done, [read], [])

    def _transforms(self) -> Iterable[_Group]:
        values = {value.name: i for i, value in enumerate(self._values)}
        for transform in self._plan.transforms:
            value = values[transform.value]
            after = self._node_of.get(transform.producer, -1)
            yield _Group(
                (after, 1), self._describe.transform(transform, self._sizes([value])),
                [(value, transform.src)], [(value, transform.dst)],
            )  # fmt: skip

    def _calls(self) -> Iterable[_Group]:
        members: dict[str, list[_C.Node]] = {}
        for node in self._nodes:
            if not node.reads_shape_only:
                members.setdefault(self._anchor(node.name), []).append(node)
        for anchor, nodes in members.items():
            yield self._call(anchor, nodes)

    def _call(self, anchor: str, nodes: Sequence[_C.Node]) -> _Group:
        inside = {value for node in nodes for value in node.outputs}
        reads = dict.fromkeys(v for node in nodes for v in node.inputs if v not in inside)
        used_inside = {value for node in nodes for value in node.inputs}
        writes = [v for v in inside if v not in used_inside or self._is_read_outside(v, nodes)]
        writes = writes or sorted(inside)[-1:]
        planned, sizes = self._planned.get(anchor), self._sizes(writes)
        if planned is None:
            operation = self._describe.left(nodes[0], self._left_layouts(nodes[0]), sizes)
        else:
            operation = self._describe.node(planned, sizes)
        first = (operation.src, operation.dst)
        return _Group(
            (self._node_of[anchor], 0), operation,
            [self._read_as(v, first[:: 1 if i == 0 else -1]) for i, v in enumerate(reads)],
            [(v, self._layouts[v]) for v in sorted(writes)],
        )  # fmt: skip

    def _is_read_outside(self, value: int, nodes: Sequence[_C.Node]) -> bool:
        own = {self._anchor(node.name) for node in nodes}
        return value in self._ends or bool(self._readers.get(value, set()) - own)


def _in_order(groups: Sequence[_Group]) -> list[_Group]:
    """Orders the groups so that each is behind those whose results it reads; ties by `key`."""
    makers = {tensor: i for i, group in enumerate(groups) for tensor in group.writes}
    waits = [
        {makers[t] for t in group.reads if t in makers} - {i} for i, group in enumerate(groups)
    ]
    readers: Mapping[int, list[int]] = {i: [] for i in range(len(groups))}
    for i, makers_of in enumerate(waits):
        for maker in makers_of:
            readers[maker].append(i)
    ready = [(group.key, i) for i, group in enumerate(groups) if not waits[i]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, done = heapq.heappop(ready)
        ordered.append(groups[done])
        for reader in readers[done]:
            waits[reader].discard(done)
            if not waits[reader]:
                heapq.heappush(ready, (groups[reader].key, reader))
    return ordered


def _tensors(ordered: Sequence[_Group]) -> Iterable[Tensor]:
    readers: dict[tuple[int, str], list[int]] = {}
    for i, group in enumerate(ordered):
        for tensor in group.reads:
            readers.setdefault(tensor, []).append(i)
    for i, group in enumerate(ordered):
        for tensor in group.writes:
            yield Tensor(i, tuple(readers.get(tensor, ())), tensor[1])
