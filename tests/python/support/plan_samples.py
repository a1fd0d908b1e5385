# SPDX-License-Identifier: BSD-3-Clause
"""Random graphs with costs, and plans with their proofs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

from torchalgo import _C
from torchalgo.verify.check_claims import (
    LAYOUTS,
    TICKS_PER_US,
    Graph,
    Option,
)


class GraphText:
    """A random data flow of convolutions, sums, activations, concatenations, slices, shuffles and
    opaque ops; in half of them some convolutions are gradients."""

    def __init__(self, seed: int, nodes: int):
        self.pick = random.Random(seed)
        self.kinds = ["conv", "conv", "conv", "relu", "add", "add", "concat", "opaque", "size"]
        self.kinds += ["slice", "shuffle", "concat"] if seed % 3 == 0 else []
        self.kinds += ["data", "filter", "filter"] if seed % 2 else []
        self.weights: list[int] = []  # gradients, which nobody reads
        self.joined: list[int] = []  # concatenations that nobody has shuffled
        self.values: list[str] = []
        self.channels: list[int] = []
        self.nodes: list[str] = []
        inputs = [self.value(16) for _ in range(self.pick.choice([1, 1, 2]))]
        while len(self.nodes) < nodes:
            self.add_node()
        self.lines = [f"input\t{v}\t{self.pick.choice(['nchw', 'nhwc'])}" for v in inputs]
        outputs = {len(self.values) - 1, self.pick.randrange(len(self.values)), *self.weights[1:]}
        self.lines += [f"output\t{v}" for v in sorted(outputs)]

    def value(self, channels: int, sizes: str = "") -> int:
        name = f"v{self.pick.randrange(10**6)}_{len(self.values)}"  # the order of names is not ours
        self.values.append(f"value\t{name}\t{sizes or f'1,{channels},8,8'}\tf32")
        self.channels.append(channels)
        return len(self.values) - 1

    def recent(self, channels: int | None = None) -> int:
        like = [v for v, c in enumerate(self.channels) if c and channels in (None, c)]
        return self.pick.choice(like[-4:])

    def add_node(self) -> None:
        kind = self.pick.choice(self.kinds)
        reads = [self.joined.pop() if kind == "shuffle" and self.joined else self.recent()]
        c = self.channels[reads[0]]
        shape, writes, problem = f"f32_n1c{c}h8w8", c, ""
        if kind == "conv":
            writes = self.pick.choice([16, 32])
            fused = self.pick.choice(["", "+bias", "+bias", "+bias+add", "+bias+relu"])
            problem = f"fwd_{shape}_k{writes}r3s3_st1x1_pad1x1_dil1x1_g1{fused}"
            if "add" in fused:
                same = [v for v, other in enumerate(self.channels) if other == writes]
                if not same:
                    return
                reads.append(self.pick.choice(same))
        elif kind == "data":
            writes = self.pick.choice([16, 32])
            shape = f"f32_n1c{writes}h8w8_k{c}"
            problem = f"bwd_data_{shape}r3s3_st1x1_pad1x1_dil1x1_g1"
        elif kind == "filter":
            reads.append(self.recent())
            k, writes = self.channels[reads[1]], 0
            problem = f"bwd_filter_{shape}_k{k}r3s3_st1x1_pad1x1_dil1x1_g1"
        elif kind == "relu":
            problem = f"relu_{shape}"
        elif kind == "add":
            reads.append(self.recent(c))
            problem = f"add_{shape}" + self.pick.choice(["", "", "+relu"])
        elif kind == "concat":
            reads.append(self.recent())
            writes = c + self.channels[reads[1]]
            problem = f"concat_f32_n1c{c}x{self.channels[reads[1]]}h8w8"
            if writes > 64:
                return
        elif kind == "slice":
            writes = 16
            problem = f"slice_{shape}_k16from{self.pick.choice([0, c - 16])}"
        elif kind == "shuffle":
            problem = f"shuffle_{shape}_g2"
        elif kind == "opaque" and len(self.nodes) % 3 == 0:  # a view
            problem = "nhwc->nchw" if len(self.nodes) % 2 else "nchw->nhwc"
        name = f"n{self.pick.randrange(10**6)}_{len(self.nodes)}"
        if kind == "size":  # it reads the shape only, and its result is no tensor
            self.nodes.append(f"node\t{name}\t{kind}\t{reads[0]}\t-\tshape\t")
            return
        made, listed = (
            self.value(writes, "" if writes else f"{k},{c},3,3"),
            ",".join(map(str, reads)),
        )
        self.weights += [] if writes else [made]
        self.joined += [made] if kind == "concat" else []
        self.nodes.append(f"node\t{name}\t{kind}\t{listed}\t{made}\t{problem or '-'}\t")

    def __str__(self) -> str:
        lines = ["torchalgo graph 1", *self.values, *self.nodes, *self.lines]
        return "\n".join(lines) + "\n"


def random_costs(pick: random.Random, candidates: list[_C.Candidate]) -> _C.CostTable:
    table = _C.CostTable()
    for c in candidates:
        key = _C.CostKey(c.problem, c.primitive.name, c.primitive.src, c.primitive.dst)
        us = pick.uniform(2, 8) if c.problem.startswith("transform") else pick.uniform(50, 80)
        is_view = _C.is_view(c.primitive.name)  # costs nothing whatever the table says
        table.set(key, 0 if is_view else int(us * TICKS_PER_US), "measured")
    return table


class Sample:
    """A graph, costs, and what the planner makes of them: a plan's file with its proof.

    With `in_bf16`, candidates are those of a processor with AMX, in coarser types too.
    """

    def __init__(self, text: str, seed: int, allowed: float = 1.0, *, in_bf16: bool = False):
        pick = random.Random(seed)
        graph = _C.parse_graph(text)
        own = _C.cpu_device()
        device = _C.Device(
            kind="cpu",
            name=own.name,
            isa=own.isa,
            threads=own.threads,
            bf16_isa="amx" if in_bf16 else "",
        )
        found = _C.find_candidates(graph, device=device, coarse_types=in_bf16)
        transforms = _C.transform_candidates(graph, found)
        everything = [c for some in found.by_anchor for c in some]
        costs = random_costs(pick, [*everything, *transforms])
        banned = {
            (c.covers[0], c.problem, repr(c.primitive))
            for c in everything
            if not (len(c.covers) == 1 and c.primitive.name.startswith("aten."))
            and pick.random() > allowed
        }

        def allow(c: _C.Candidate) -> bool:
            return (c.covers[0], c.problem, repr(c.primitive)) not in banned

        args = (graph, found, transforms, costs)
        native, wanted = _C.make_plan(*args, allow=allow, with_certificate=True)
        assert not wanted
        self.problem = _C.plan_problem_text(*args, allow=allow)
        self.rows: dict[str, dict[str, int]] = {}
        for key, ticks, _ in costs.items():
            row = f"{key.primitive} {key.src}->{key.dst}"
            self.rows.setdefault(key.problem, {})[row] = ticks
        # A view is offered where its inputs can lie side by side, not at every node of a problem.
        offered = {(c.covers[0], c.problem, repr(c.primitive)) for c in everything}
        elsewhere = {
            (n, problem, row)
            for n, problem, _ in offered
            for row in self.rows[problem]
            if (n, problem, row) not in offered
        }
        refused = sorted(banned | elsewhere)
        self.refused = [[graph.nodes[n].name, problem, row] for n, problem, row in refused]
        self.text = text
        self.plan = self._described(native)

    def _described(self, native: _C.Plan) -> dict[str, Any]:
        return {
            "structure_hash": native.structure_hash,
            "structure_version": native.structure_version,
            "status": native.status,
            "cost_us": us(native.cost),
            "lower_bound_us": us(native.lower_bound),
            "cost_ticks": native.cost,
            "lower_bound_ticks": native.lower_bound,
            "nodes": [
                {"name": n.name, "absorbed_by": n.absorbed_by, **described(n)} for n in native.nodes
            ],
            "transforms": [
                {"value": t.value, "producer": t.producer, **described(t)}
                for t in native.transforms
            ],
            "proof": {
                "problem_hash": native.certificate.split("\n")[1].split()[1],
                "certificate": native.certificate,
                "graph": self.text,
                "costs": self.rows,
                "refused": self.refused,
            },
        }


def us(ticks: int) -> float:
    return round(ticks / TICKS_PER_US, 3)


def described(part: Any) -> dict[str, Any]:
    primitive = part.primitive
    layouts = {"primitive": primitive.name, "src": primitive.src, "dst": primitive.dst}
    return {
        "problem": part.problem,
        **layouts,
        "ticks": part.cost,
        "predicted_us": us(part.cost),
    }


def changes_cost(rows: dict[str, dict[str, int]], shape: str, have: int, wanted: int) -> float:
    """Returns the cost of the cheapest way from some layouts to others, or inf if there is none."""
    cheapest: dict[int, float] = {have: 0}
    for _ in LAYOUTS:
        for made, cost in list(cheapest.items()):
            for (src, a), (dst, b) in itertools.permutations(LAYOUTS.items(), 2):
                ticks = min(rows.get(f"transform_{shape}_{src}_{dst}", {"": float("inf")}).values())
                if made & a:
                    cheapest[made | b] = min(cheapest.get(made | b, float("inf")), cost + ticks)
    return min((c for made, c in cheapest.items() if not wanted & ~made), default=float("inf"))


def true_cost(
    graph: Graph, changes: Callable[[str, int, int], float], chosen: dict[int, Option]
) -> float:
    """Returns the cost of a choice whose transforms are paid once per value.

    Returns inf if the choice lacks a transform that it needs.
    """
    total: float = sum(option.said["ticks"] for option in chosen.values())
    for v, value in enumerate(graph.values):
        writer = value.producer if value.problem else -1
        have = chosen[writer].leaves if writer >= 0 else value.written
        wanted = value.border
        for reader in value.readers:
            wanted |= chosen[reader].reads[v] if reader in chosen else 0
        if wanted & ~have:
            total += changes(value.shape, have, wanted)
    return total
