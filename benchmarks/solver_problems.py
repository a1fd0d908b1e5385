# SPDX-License-Identifier: BSD-3-Clause
"""Problems of any size for the solver, of the shapes that networks have.

An op has `choices` ways to run, each with a drawn cost and with the layouts that it reads and
writes; an edge charges for changing between two. `dense` and `training` are encoded as the planner
does it (docs/pbqp.md, "From a graph to a PBQP"): a value with several readers has a node whose
alternatives are the sets of layouts in which it exists, and nested lists of readers share these.
"""

from __future__ import annotations

import random
from collections.abc import Callable

LAYOUTS = 4
CHANGE = [[0, 300, 500, 800], [300, 0, 700, 600], [500, 700, 0, 200], [800, 600, 200, 0]]
SETS = range(1, 1 << LAYOUTS)  # of layouts, as bits
DENSE_LAYERS = 48  # of DenseNet-201's and -264's longest blocks

Matrix = list[list[int | None]]
Edge = tuple[int, int, Matrix]
Parts = tuple[list[list[int | None]], list[Edge]]


def tree_costs() -> list[list[int]]:
    """[layout][set]: the cheapest changes from the layout after which all of the set exist."""
    costs = []
    for root in range(LAYOUTS):
        cost = {1 << root: 0}
        for have in range(1 << LAYOUTS):  # changes only add layouts: ascending is enough
            for src in range(LAYOUTS) if have in cost else ():
                for dst in range(LAYOUTS):
                    if have >> src & 1 and not have >> dst & 1:
                        grown, paid = have | 1 << dst, cost[have] + CHANGE[src][dst]
                        cost[grown] = min(cost.get(grown, paid), paid)
        costs.append([min(c for s, c in cost.items() if s & want == want) for want in SETS])
    return costs


TREE = tree_costs()


class Network:
    """Nodes and edges so far. Rows of a matrix that are equal are one list."""

    def __init__(self, seed: int, choices: int) -> None:
        self.random = random.Random(seed)
        self.choices = choices
        self.ops = 0
        self.costs: list[list[int | None]] = []
        self.layouts: list[list[tuple[int, int]]] = []  # per choice: read, written
        self.edges: list[Edge] = []

    def add_op(self) -> int:
        """Adds an op without edges to the ops that it reads."""
        pick = self.random.randrange
        base = 1000 + pick(9000)
        layouts = [(pick(LAYOUTS), pick(LAYOUTS)) for _ in range(self.choices)]
        return self._add([base + pick(base) for _ in range(self.choices)], layouts)

    def add_concat(self) -> int:
        """Runs in each layout and keeps it."""
        pick = self.random.randrange
        base = 100 + pick(900)
        return self._add([base + pick(100) for _ in range(LAYOUTS)], [(x, x) for x in range(4)])

    def _add(self, costs: list[int], layouts: list[tuple[int, int]]) -> int:
        self.ops += 1
        self.costs.append(list(costs))
        self.layouts.append(layouts)
        return len(self.costs) - 1

    def add_set(self) -> int:
        """The layouts in which a value exists."""
        self.costs.append([0] * len(SETS))
        self.layouts.append([])
        return len(self.costs) - 1

    def op(self, *inputs: int) -> int:
        """Reads what earlier ops wrote; of several inputs one changes to the layout of each."""
        node = self.add_op()
        for source in dict.fromkeys(inputs):
            self.join(source, node)
        return node

    def join(self, source: int, reader: int) -> None:
        """The reader alone reads what the source writes."""
        size = 1 + self.random.randrange(8)
        rows: Matrix = [[cost[into] * size for into, _ in self.layouts[reader]] for cost in CHANGE]
        self.edges.append((source, reader, [rows[out] for _, out in self.layouts[source]]))

    def write(self, source: int, held: int) -> None:
        """Makes the source's result exist in all layouts of the set node `held`."""
        size = 1 + self.random.randrange(8)
        rows: Matrix = [[cost * size for cost in costs] for costs in TREE]
        self.edges.append((source, held, [rows[out] for _, out in self.layouts[source]]))

    def read(self, held: int, reader: int, side: int = 0) -> None:
        """`side` 1: what is read is in the second layout of a choice (bwd_filter: the gradient)."""
        self.include(held, reader, [1 << layouts[side] for layouts in self.layouts[reader]])

    def include(self, held: int, other: int, parts: list[int]) -> None:
        """Forbids what does not hold the part that each alternative of `other` needs."""
        matrix: Matrix = [[0 if has & part == part else None for part in parts] for has in SETS]
        self.edges.append((held, other, matrix))


def chain(net: Network, ops: int) -> None:
    last = net.op()
    while net.ops < ops:
        last = net.op(last)


def residual(net: Network, ops: int) -> None:
    last = net.op()
    while net.ops < ops:
        last = net.op(net.op(net.op(net.op(last))), last)


def inception(net: Network, ops: int) -> None:
    last = net.op()
    while net.ops < ops:
        a, b, c = net.op(last), net.op(net.op(last)), net.op(net.op(net.op(last)))
        last = net.op(a, b, c, net.op(last))


def dense(net: Network, ops: int) -> None:
    """DenseNet: each layer concatenates all before it in its block, as the planner encodes it."""
    last = net.op()
    while net.ops < ops:
        writers, concats = [last], []
        for _ in range(DENSE_LAYERS):
            concats.append(net.add_concat())
            writers.append(net.op(concats[-1]))
        concats.append(net.add_concat())
        net.join(writers[-1], concats[-1])
        rest = concats[-1]  # who reads the values: ever more concatenations, from the end on
        for writer, concat in zip(reversed(writers[:-1]), reversed(concats[:-1]), strict=True):
            held = net.add_set()
            net.read(held, concat)
            if rest == concats[-1]:
                net.read(held, rest)
            else:
                net.include(held, rest, list(SETS))
            net.write(writer, held)
            rest = held
        last = net.op(concats[-1])


def all_to_all(net: Network, ops: int) -> None:
    """Blocks of four in which every op reads all before it, an edge each; no network is so."""
    last = net.op()
    while net.ops < ops:
        block = [last]
        for _ in range(4):
            block.append(net.op(*block))
        last = net.op(block[-1])


def training(net: Network, ops: int) -> None:
    """A chain of convolutions forward and back: fwd, bwd_data and bwd_filter share what they read.

    fwd reads x, bwd_filter x and the gradient, bwd_data the gradient.
    """
    before, gradient = net.op(), net.add_set()  # the first op; the gradient of what it writes
    _weights(net, None, gradient)
    while net.ops < ops:
        value, next_gradient = net.add_set(), net.add_set()
        forward, data = net.op(), net.op()
        net.write(before, value)
        net.read(value, forward)
        net.read(next_gradient, data)
        net.write(data, gradient)
        _weights(net, value, next_gradient)
        before, gradient = forward, next_gradient


def _weights(net: Network, value: int | None, gradient: int) -> None:
    """bwd_filter: a choice's layouts are those of x (fixed: None) and of the gradient."""
    node = net.op()
    if value is not None:
        net.read(value, node)
    net.read(gradient, node, side=1)


KINDS: dict[str, Callable[[Network, int], None]] = {
    "chain": chain, "residual": residual, "inception": inception, "dense": dense,
    "all_to_all": all_to_all, "training": training,
}  # fmt: skip


def make_parts(kind: str, ops: int, choices: int, seed: int) -> Parts:
    net = Network(seed, choices)
    KINDS[kind](net, ops)
    return net.costs, net.edges


def random_parts(seed: int) -> Parts:
    """Small, dense, with forbidden entries: what a network is not."""
    pick = random.Random(seed)
    nodes, values = pick.randrange(4, 13), pick.randrange(2, 7)
    forbidden, largest = pick.choice([0, 0.1, 0.3]), pick.choice([5, 1000, 10**9])

    def cost() -> int | None:
        return None if pick.random() < forbidden else pick.randrange(largest + 1)

    costs: list[list[int | None]] = [
        [pick.randrange(largest + 1) for _ in range(values)] for _ in range(nodes)
    ]
    edges: list[Edge] = [
        (u, v, [[cost() for _ in range(values)] for _ in range(values)])
        for u in range(nodes)
        for v in range(u + 1, nodes)
        if pick.random() < 0.7
    ]
    return costs, edges
