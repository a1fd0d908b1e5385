#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Check a plan without trusting the planner: exact integers, standard library only.

    python check_plan.py net.plan.json                       # a plan with its proof
    torchalgo.check_plan(plan, graph_text, cost_rows)        # your own graph and costs

From the graph and the costs alone this derives what each node may run, adds up what the plan costs,
writes down the PBQP whose optimum is the cheapest plan, and checks the certificate against it.
docs/pbqp.md says what that proves. No code is shared with the planner.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

try:
    from torchalgo.check_certificate import check as check_certificate
except ImportError:  # these two files alone
    from check_certificate import check as check_certificate  # type: ignore[no-redef]

INF = math.inf  # forbidden
LAYOUTS = ("nchw", "nhwc", "nChw8c", "nChw16c")
BITS = {layout: 1 << i for i, layout in enumerate(LAYOUTS)}  # a set of layouts is a sum of these
ALL = (1 << len(LAYOUTS)) - 1
ACTIVATIONS = ("relu", "relu6", "hardswish", "silu", "sigmoid", "hardsigmoid")
CONVOLUTIONS = ("fwd_", "bwd_data_", "bwd_filter_")
TICKS_PER_US = 1024 * 1000

CostRows = Mapping[str, Mapping[str, int]]  # problem -> "primitive src->dst" -> ticks
Refused = set[tuple[str, str, str]]  # node, problem, "primitive src->dst": may not be chosen there


def require(claim: object, text: str) -> None:
    if not claim:
        raise ValueError(text)


# ---- the graph -----------------------------------------------------------------------------------


@dataclass
class Value:
    name: str
    sizes: list[int]
    dtype: str
    producer: int = -1  # any node
    readers: list[int] = field(default_factory=list)  # once per use
    border: int = 0  # layouts that opaque readers and the caller ask for
    fixed: str = "nchw"  # the layout of what no planned node writes
    is_output: bool = False
    is_gradient_of_weights: bool = False  # its layout is in the name of its primitive


@dataclass
class Node:
    name: str
    inputs: list[int]
    outputs: list[int]
    problem: str  # empty: opaque


@dataclass
class Graph:
    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    hash: str = ""

    def writer(self, value: int) -> int:
        """The planned node that writes a value, or -1."""
        producer = self.values[value].producer
        return producer if producer >= 0 and self.nodes[producer].problem else -1

    def planned_readers(self, value: int) -> list[int]:
        readers = self.values[value].readers
        return [n for n in dict.fromkeys(readers) if self.nodes[n].problem]


def fnv1a64(text: str) -> str:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def numbers(word: str) -> list[int]:
    return [] if word == "-" else [int(part) for part in word.split(",")]


def read_graph(text: str) -> Graph:
    """Reads the text of a graph; `hash` is the planner's id of its structure."""
    first, *lines = text.split("\n")
    require(first == "torchalgo graph 1", "this is no torchalgo graph 1")
    graph, outputs, inputs = Graph(), [], []
    hashed = {"value": [], "node": [], "input": []}  # type: dict[str, list[str]]
    for word, *rest in (line.split("\t") for line in lines if line):
        if word == "value":
            name, sizes, dtype = rest
            graph.values.append(Value(name, numbers(sizes), dtype))
            sizes = ",".join(map(str, numbers(sizes)))
            hashed[word].append(f"value {name} [{sizes}] {dtype}")
        elif word == "node":
            name, kind, reads, writes, problem, _note = rest
            node = Node(name, numbers(reads), numbers(writes), "" if problem == "-" else problem)
            graph.nodes.append(node)
            reads, writes = (",".join(map(str, part)) for part in (node.inputs, node.outputs))
            hashed[word].append(f"node {name} {kind} ({reads}) -> ({writes}) {problem}")
        elif word == "input":
            inputs.append((int(rest[0]), rest[1]))
            hashed[word].append(f"input {rest[0]} {rest[1]}")
        else:
            require(word == "output", f"{word} is no word of a graph")
            outputs.append(int(rest[0]))
    spelled = ["torchalgo graph 1", *hashed["value"], *hashed["node"], *hashed["input"]]
    spelled.append(f"outputs {','.join(map(str, outputs))}")
    graph.hash = fnv1a64(spelled[0] + "".join(line + "\n" for line in spelled[1:]))
    connect(graph, inputs, outputs)
    return graph


def connect(graph: Graph, inputs: list[tuple[int, str]], outputs: list[int]) -> None:
    names = [node.name for node in graph.nodes]
    require(len(set(names)) == len(names), "two nodes have one name")
    require(len({v.name for v in graph.values}) == len(graph.values), "two values have one name")
    defined = {value for value, _ in inputs}
    for n, node in enumerate(graph.nodes):
        require(defined.issuperset(node.inputs), f"{node.name} reads what is not there")
        for value in node.inputs:
            graph.values[value].readers.append(n)
            graph.values[value].border |= 0 if node.problem else BITS["nchw"]
        for value in node.outputs:
            require(value not in defined, f"{node.name} writes a value that is there")
            graph.values[value].producer = n
            graph.values[value].is_gradient_of_weights = node.problem.startswith("bwd_filter_")
            defined.add(value)
    for value, layout in inputs:
        if shape_of(graph.values[value]):
            graph.values[value].fixed = layout
    for value in outputs:
        graph.values[value].is_output = True
        is_free = graph.values[value].is_gradient_of_weights
        graph.values[value].border |= 0 if is_free else BITS["nchw"]


def shape_of(value: Value) -> str:
    """As transforms spell it; empty: the value cannot change its layout."""
    sizes = value.sizes
    if value.dtype == "-" or value.is_gradient_of_weights or not 3 <= len(sizes) <= 5:
        return ""
    sizes = [*sizes[:2], 1, sizes[2]] if len(sizes) == 3 else sizes
    letters = "ncdhw" if len(sizes) == 5 else "nchw"
    return f"{value.dtype}_" + "".join(f"{a}{size}" for a, size in zip(letters, sizes, strict=True))


# ---- what each node may run ----------------------------------------------------------------------


class Layouts(NamedTuple):
    """Around a call, in the order of reading and writing."""

    src: str  # of its first input
    later: str  # of its other inputs: src, but of the gradient of weights dst
    dst: str  # of its result and of residuals


class Option(NamedTuple):
    """What the rest of the graph sees of a way to compute a node."""

    covers: tuple[int, ...]  # the nodes that are computed at once
    position: int  # of this node among them; above 0: absorbed
    layouts: Layouts
    primitive: str  # the cheapest; of an absorbed node none
    ticks: int

    @property
    def writes(self) -> bool:
        return self.position + 1 == len(self.covers)

    def goes_on_in(self, other: Option) -> bool:
        """Whether `other` computes the next node in the same call."""
        following = (self.covers, self.position + 1, self.layouts.dst)
        return following == (other.covers, other.position, other.layouts.dst)


def epilogue_of(problem: str) -> list[str]:
    head, *after = problem.split("+")
    kind = head.split("_")[0]
    return [kind] if kind in ACTIVATIONS else after


def dtype_of(problem: str) -> str:
    types = ("f64", "f32", "tf32", "f16", "bf16")
    found = next(part for part in problem.split("+")[0].split("_") if part in types)
    return "f32" if found == "tf32" else found


def chains_from(graph: Graph, anchor: int) -> list[tuple[tuple[int, ...], str, list[int]]]:
    """The chains that one call may compute: nodes, spelled problem, values read."""
    covers: tuple[int, ...] = (anchor,)
    problem, inputs = graph.nodes[anchor].problem, graph.nodes[anchor].inputs
    chains = [(covers, problem, list(inputs))]
    kinds = (*CONVOLUTIONS, "linear_", "scaleshift_", "add_", "mul_")
    while problem.startswith(kinds) and not set(epilogue_of(problem)[-1:]) & set(ACTIVATIONS):
        link = graph.values[graph.nodes[covers[-1]].outputs[0]]
        if len(link.readers) != 1 or link.border or link.is_output:
            break
        follower = graph.nodes[link.readers[0]]
        kind = follower.problem.split("_")[0]
        if not follower.problem or dtype_of(follower.problem) != dtype_of(problem):
            break
        if kind == "add":
            plain = "+" not in follower.problem and not follower.problem.endswith("_channelwise")
            if not plain or "add" in epilogue_of(problem) or not problem.startswith(CONVOLUTIONS):
                break
            other = [v for v in follower.inputs if graph.values[v] is not link]
            inputs = [*inputs, *other]
        elif kind not in ACTIVATIONS:
            break
        covers, problem = (*covers, link.readers[0]), f"{problem}+{kind}"
        chains.append((covers, problem, list(inputs)))
    return chains


def layouts_of(problem: str, row: str) -> Layouts:
    """Of "primitive src->dst", where src and dst mean the tensors or their gradients."""
    name, _, layouts = row.rpartition(" ")
    src, dst = layouts.split("->")
    if problem.startswith("bwd_data_"):
        return Layouts(dst, dst, src)
    if problem.startswith("bwd_filter_"):
        variants = name.replace("@", "{").split("{")[0].split(".")[1:]
        return Layouts(src, dst, "nhwc" if "krsc" in variants else "nchw")
    return Layouts(src, src, dst)


def fits(value: Value, layout: str) -> bool:
    rank = len(value.sizes)
    return rank == 4 if layout.startswith("nChw") else layout == "nchw" or rank >= 3


def options_of(graph: Graph, rows: CostRows, refused: Refused) -> list[list[Option]]:
    """Per node, in the order in which the PBQP numbers them."""
    options: list[list[Option]] = [[] for _ in graph.nodes]
    for anchor, node in enumerate(graph.nodes):
        best: dict[tuple[tuple[int, ...], Layouts], tuple[int, str]] = {}
        for covers, problem, inputs in chains_from(graph, anchor) if node.problem else ():
            result = graph.values[graph.nodes[covers[-1]].outputs[0]]
            for row, ticks in rows.get(problem, {}).items():
                name, layouts = row.rpartition(" ")[0], layouts_of(problem, row)
                is_fit = all(fits(graph.values[v], layouts.src) for v in inputs)
                is_fit &= fits(result, layouts.dst)
                if is_fit and (node.name, problem, row) not in refused:
                    key = covers, layouts
                    best[key] = min(best.get(key, (ticks, name)), (ticks, name))
        for (covers, layouts), (ticks, name) in best.items():
            options[anchor].append(Option(covers, 0, layouts, name, ticks))
        for covers, dst in dict.fromkeys((covers, layouts.dst) for covers, layouts in best):
            for i in range(1, len(covers)):
                options[covers[i]].append(Option(covers, i, Layouts(dst, dst, dst), "", 0))

    def order(o: Option) -> tuple[Any, ...]:
        chain = [graph.nodes[n].name.encode() for n in o.covers]
        src, later, dst = map(LAYOUTS.index, o.layouts)
        return o.position > 0, o.primitive.encode(), src, dst, later, chain

    for node, own in zip(graph.nodes, options, strict=True):
        require(own or not node.problem, f"{node.name}: no costs of {node.problem}")
        own.sort(key=order)
    return options


def layouts_read(graph: Graph, option: Option, value: int) -> int:
    """In which layouts the node of an option reads a value."""
    node = graph.nodes[option.covers[option.position]]
    if option.position > 0:
        comes_from = option.covers[option.position - 1]
        return 0 if graph.values[value].producer == comes_from else BITS[option.layouts.dst]
    inputs = [
        option.layouts.src if i == 0 else option.layouts.later for i in range(len(node.inputs))
    ]
    if "add" in node.problem.split("+")[1:]:
        inputs[-1] = option.layouts.dst
    asked = [layout for v, layout in zip(node.inputs, inputs, strict=True) if v == value]
    return sum(BITS[layout] for layout in set(asked))


# ---- what changes of layout cost -----------------------------------------------------------------


def hops_of(rows: CostRows) -> dict[str, dict[tuple[str, str], int]]:
    """Per shape: the cheapest change from one layout to another."""
    hops: dict[str, dict[tuple[str, str], int]] = {}
    for problem, primitives in rows.items():
        if problem.startswith("transform_"):
            _, dtype, sizes, src, dst = problem.split("_")
            for row, ticks in primitives.items():
                require(row.endswith(f" {src}->{dst}"), f"{row} is no {problem}")
                shape = hops.setdefault(f"{dtype}_{sizes}", {})
                shape[src, dst] = min(shape.get((src, dst), ticks), ticks)
    return hops


def tree_costs(hops: Mapping[tuple[str, str], int]) -> dict[str, list[Any]]:
    """[layout][set]: the least sum of changes after which the value exists in all of the set."""
    trees = {}
    for root in LAYOUTS:
        exact: list[Any] = [INF] * (ALL + 1)  # to have this set and nothing else
        exact[BITS[root]] = 0
        for have in range(ALL + 1):
            for (src, dst), ticks in hops.items() if exact[have] < INF else ():
                if have & BITS[src] and not have & BITS[dst]:
                    grown = have | BITS[dst]
                    exact[grown] = min(exact[grown], exact[have] + ticks)
        trees[root] = [
            min(exact[have] for have in range(ALL + 1) if have & wanted == wanted)
            for wanted in range(ALL + 1)
        ]
    return trees


def trees_at_values(
    graph: Graph, options: list[list[Option]], rows: CostRows
) -> list[dict[str, list[Any]]]:
    hops = hops_of(rows)
    trees = {shape: tree_costs(changes) for shape, changes in hops.items()}
    rigid = tree_costs({})
    at_value = []
    for v, value in enumerate(graph.values):
        writer = graph.writer(v)
        present = value.border | (BITS[value.fixed] if writer < 0 else 0)
        for option in options[writer] if writer >= 0 else ():
            present |= BITS[option.layouts.dst] if option.writes else 0
        for reader in graph.planned_readers(v):
            for option in options[reader]:
                present |= layouts_read(graph, option, v)
        is_rigid = present.bit_count() < 2
        at_value.append(rigid if is_rigid else trees.get(shape_of(value), rigid))
    return at_value


# ---- the PBQP ------------------------------------------------------------------------------------

Reads = tuple[int, ...]  # per option of a node, the layouts in which it reads some value
Port = tuple[int, Reads]  # a node that reads, and how
Suffix = tuple[Port, ...]


class Encoder:
    """Writes down the PBQP; docs/pbqp.md, "From a graph to a PBQP", tells its order of lines."""

    def __init__(self, graph: Graph, options: list[list[Option]], rows: CostRows):
        self.graph, self.options = graph, options
        self.trees = trees_at_values(graph, options, rows)
        self.costs: list[list[Any]] = []
        self.edges: list[tuple[int, int, list[Any]]] = []
        self.constant: Any = 0
        self.sets: dict[Suffix, tuple[int, list[int]]] = {}  # its variable, the sets it may be

    def text(self) -> str:
        nodes = sorted(range(len(self.options)), key=lambda n: self.graph.nodes[n].name.encode())
        planned = [n for n in nodes if self.graph.nodes[n].problem]
        self.variable = {n: i for i, n in enumerate(planned)}
        self.costs = [[option.ticks for option in self.options[n]] for n in planned]
        values = sorted(range(len(self.trees)), key=lambda v: self.graph.values[v].name.encode())
        ports = {v: self.ports_of(v) for v in values}
        shared: dict[Port, int] = {}
        for port in (port for some in ports.values() if len(some) > 1 for port in some):
            shared[port] = shared.get(port, 0) + 1
        for v, some in ports.items():  # the most shared last
            name = {port: self.graph.nodes[port[0]].name.encode() for port in some}
            self.add_value(v, tuple(sorted(some, key=lambda p: (shared.get(p, 0), name[p]))))
        self.costs += [[self.constant]] if self.constant else []
        lines = [["node", *costs] for costs in self.costs]
        lines += [["edge", u, v, *matrix] for u, v, matrix in self.edges]
        words = (" ".join("-" if word == INF else str(word) for word in line) for line in lines)
        return "pbqp 1\n" + "".join(line + "\n" for line in words)

    def ports_of(self, value: int) -> list[Port]:
        readers = self.graph.planned_readers(value)
        return [
            (n, tuple(layouts_read(self.graph, option, value) for option in self.options[n]))
            for n in readers
        ]

    def cost(self, value: int, written: str, wanted: int) -> Any:
        return self.trees[value][written][wanted | self.graph.values[value].border]

    def add_value(self, value: int, ports: Suffix) -> None:
        writer = self.graph.writer(value)
        writers = self.options[writer] if writer >= 0 else []
        if len(ports) > 1:
            variable, wanted = self.set_of(ports)
        elif ports:
            variable, wanted = self.variable[ports[0][0]], list(ports[0][1])
        elif writer < 0:
            self.constant += self.cost(value, self.graph.values[value].fixed, 0)
            return
        else:
            row = self.costs[self.variable[writer]]
            for i, option in enumerate(writers):
                row[i] += self.cost(value, option.layouts.dst, 0) if option.writes else 0
            return
        if writer < 0:
            row = self.costs[variable]
            for i, layouts in enumerate(wanted):
                row[i] += self.cost(value, self.graph.values[value].fixed, layouts)
            return
        matrix: list[Any] = []
        for option in writers:
            for i, layouts in enumerate(wanted):
                if option.writes and (layouts or len(ports) > 1):
                    matrix.append(self.cost(value, option.layouts.dst, layouts))
                else:
                    goes_on = len(ports) == 1 and option.goes_on_in(self.options[ports[0][0]][i])
                    matrix.append(0 if goes_on else INF)
        self.edges.append((self.variable[writer], variable, matrix))

    def set_of(self, ports: Suffix) -> tuple[int, list[int]]:
        """The variable of the layouts in which all values with these last readers must exist."""
        if ports in self.sets:
            return self.sets[ports]
        parts = [(self.variable[n], list(reads)) for n, reads in ports[:2]]
        if len(ports) > 2:
            parts[1] = self.set_of(ports[1:])
        may, must = 0, 0
        for _, reads in ports:
            always = ALL
            for layouts in reads:
                may |= layouts
                always &= layouts
            must |= always
        wholes = [s for s in range(1, ALL + 1) if s & may == s and s & must == must]
        variable = len(self.costs)
        self.costs.append([0] * len(wholes))
        for other, inner in parts:
            matrix = [0 if whole & part == part else INF for whole in wholes for part in inner]
            self.edges.append((variable, other, matrix))
        self.sets[ports] = variable, wholes
        return self.sets[ports]


# ---- the plan ------------------------------------------------------------------------------------


def check_choice(graph: Graph, plan: Mapping[str, Any], rows: CostRows, refused: Refused) -> int:
    """Whether the plan can run as it says, and what it costs."""
    planned = {node["name"]: node for node in plan["nodes"]}
    expected = [node.name for node in graph.nodes if node.problem]
    require([node["name"] for node in plan["nodes"]] == expected, "the plan has other nodes")
    chosen: dict[int, Option] = {}
    for n, node in enumerate(graph.nodes):
        if not node.problem or planned[node.name]["absorbed_by"]:
            continue
        said = planned[node.name]
        row = f"{said['primitive']} {said['src']}->{said['dst']}"
        ticks = rows.get(said["problem"], {}).get(row)
        require(said["ticks"] == ticks, f"{node.name}: {row} costs {ticks}")
        require((node.name, said["problem"], row) not in refused, f"{node.name}: {row} is refused")
        chains = [c for c in chains_from(graph, n) if c[1] == said["problem"]]
        require(chains, f"{node.name}: cannot compute {said['problem']}")
        layouts, (covers, _, inputs) = layouts_of(said["problem"], row), chains[0]
        is_fit = all(fits(graph.values[v], layouts.src) for v in inputs)
        is_fit &= fits(graph.values[graph.nodes[covers[-1]].outputs[0]], layouts.dst)
        require(is_fit, f"{node.name}: a tensor cannot lie as {row} wants it")
        for i, other in enumerate(covers):
            require(other not in chosen, f"{graph.nodes[other].name} is computed twice")
            chosen[other] = Option(covers, i, layouts, "", 0)
    for n, node in enumerate(graph.nodes):
        said = planned[node.name] if node.problem else {"absorbed_by": ""}
        require(n in chosen or not node.problem, f"{node.name}: nothing computes it")
        if said["absorbed_by"]:
            anchor = graph.nodes[chosen[n].covers[0]].name
            is_absorbed = said["absorbed_by"] == anchor and chosen[n].position > 0
            is_absorbed &= said["problem"] == node.problem and not said["primitive"]
            require(is_absorbed and said["ticks"] == 0, f"{node.name}: {anchor} computes it")
    check_layouts(graph, plan, rows, chosen)
    return sum(part["ticks"] for part in [*plan["nodes"], *plan["transforms"]])


def check_layouts(
    graph: Graph, plan: Mapping[str, Any], rows: CostRows, chosen: dict[int, Option]
) -> None:
    """Whether every value exists in the layouts in which it is read."""
    index = {value.name: v for v, value in enumerate(graph.values)}
    have: dict[int, int] = {}
    for v, value in enumerate(graph.values):
        writer = graph.writer(v)
        written = BITS[value.fixed] if writer < 0 else BITS[chosen[writer].layouts.dst]
        have[v] = written if writer < 0 or chosen[writer].writes else 0
    for change in plan["transforms"]:
        v, src, dst = index[change["value"]], change["src"], change["dst"]
        producer = graph.values[v].producer
        name = graph.nodes[producer].name if producer >= 0 else ""
        problem = f"transform_{shape_of(graph.values[v])}_{src}_{dst}"
        ticks = rows.get(problem, {}).get(f"{change['primitive']} {src}->{dst}")
        is_true = change["problem"] == problem and change["producer"] == name
        require(is_true, f"{change['value']}: {change['problem']} is not {problem}")
        require(change["ticks"] == ticks, f"{problem} by {change['primitive']} costs {ticks}")
        require(have[v] & BITS[src], f"{change['value']} does not exist in {src}")
        have[v] |= BITS[dst]
    for v, value in enumerate(graph.values):
        wanted = value.border
        for reader in graph.planned_readers(v):
            wanted |= layouts_read(graph, chosen[reader], v)
        require(have[v] & wanted == wanted, f"{value.name} lacks a layout in which it is read")


def problem_text(graph_text: str, cost_rows: CostRows, refused: Iterable[Any] = ()) -> str:
    """The PBQP whose optimum is the cheapest plan."""
    graph, banned = read_graph(graph_text), {tuple(item) for item in refused}
    return Encoder(graph, options_of(graph, cost_rows, banned), cost_rows).text()


def check_plan(plan: Any, graph_text: str | None = None, cost_rows: CostRows | None = None) -> None:
    """Raise an exception unless a plan with its proof is what it claims to be.

    That is: it can run, it costs `cost_ticks`, no plan from these costs is cheaper than
    `lower_bound_ticks`, and it is "optimal" only if the two are equal.

    Args:
        plan: a Plan, the text of its file, or that as a dict; `plan.with_proof()` makes one.
        graph_text: of the model; None: the graph that came with the plan.
        cost_rows: `{problem: {"primitive src->dst": ticks}}`; None: those that came with the plan.
    Raises: ValueError, LookupError, TypeError or ArithmeticError, saying what is false.
    """
    data = plan if isinstance(plan, dict) else None
    data = data or json.loads(plan if isinstance(plan, str | bytes) else plan.to_json())
    proof: dict[str, Any] = data.get("proof") or {}
    require(proof, "the plan has no proof; plan.with_proof() adds it")
    text = proof["graph"] if graph_text is None else graph_text
    rows = proof["costs"] if cost_rows is None else cost_rows
    refused: Refused = {(node, problem, row) for node, problem, row in proof["refused"]}
    graph = read_graph(text)
    require(graph.hash == data["structure_hash"], "the plan was made for another graph")
    ticks = [t for some in rows.values() for t in some.values()]
    require(all(type(t) is int and t >= 0 for t in ticks), "a cost is no integer above 0")
    cost, bound = check_choice(graph, data, rows, refused), data["lower_bound_ticks"]
    require(cost == data["cost_ticks"], f"the plan costs {cost} ticks")
    require(data["status"] == ("optimal" if cost == bound else "feasible"), "a wrong status")
    claims = [(data["cost_us"], cost), (data["lower_bound_us"], bound)]
    claims += [(part["predicted_us"], part["ticks"]) for part in data["nodes"] + data["transforms"]]
    for us, exact in claims:
        require(us == round(exact / TICKS_PER_US, 3), f"{exact} ticks are not {us} us")
    problem = Encoder(graph, options_of(graph, rows, refused), rows).text()
    proven = check_certificate(problem, proof["certificate"])
    require(proven["problem"] == [proof["problem_hash"]], "the certificate is for another problem")
    require(proven["bound"] == [str(bound)], f"the certificate proves the bound {proven['bound']}")


FALSE = (ArithmeticError, LookupError, TypeError, ValueError)

if __name__ == "__main__":
    try:
        check_plan(Path(sys.argv[1]).read_text(encoding="utf-8"))
    except FALSE as error:
        sys.exit(f"rejected: {error}")
    print("every claim holds")
