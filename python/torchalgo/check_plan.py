#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Check a plan without trusting the planner: exact integers, standard library only.

    python check_plan.py net.plan.json                       # a plan with its proof
    torchalgo.check_plan(plan, graph_text, cost_rows)        # your own graph and costs

From the graph and the costs alone this derives what each node may run, and writes down the PBQP
whose optimum is the cheapest plan. The certificate must hold of it, and the plan be its choice.
docs/pbqp.md says what that proves. No code is shared with the planner.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

try:
    from torchalgo.check_certificate import FALSE, INF, check, require
except ImportError:  # these two files alone
    from check_certificate import FALSE, INF, check, require  # type: ignore[no-redef]

LAYOUTS = {"nchw": 1, "nhwc": 2, "nChw8c": 4, "nChw16c": 8}  # a set of layouts is a sum of these
ACTIVATIONS = ("relu", "relu6", "hardswish", "silu", "sigmoid", "hardsigmoid")
TICKS_PER_US = 1024 * 1000
HEADS = re.compile(  # what a chain may begin with
    r"scaleshift_(?P<sizes>\w+?)(?P<then>(\+\w+)*)"
    r"|mul_(?P<product>\w+?)_channelwise(?P<after>(\+\w+)*)"
    r"|avgpool_(?P<pooled>\w+?)_p1q1"
)
POINTWISE = re.compile(r"\d+r1s1_st1x1_pad0x0_dil\d+x\d+_g1(\+.*)?")
FILTERS = re.compile(r"(?P<k>\d+)r.*_g(?P<g>\d+)(\+.*)?")  # of a 2-D convolution, behind "_k"

CostRows = Mapping[str, Mapping[str, int]]  # problem -> "primitive src->dst" -> ticks
Pair = Mapping[str, Any]  # as a plan's file has them: plan.PairCost
Chain = tuple[int, ...]  # nodes that one call computes
Reader = tuple[int, tuple[int, ...]]  # a node of the PBQP, and what each of its alternatives reads


@dataclass
class Value:
    name: str
    rank: int
    shape: str  # as transforms spell it; empty: it cannot change its layout
    producer: int = -1  # node
    written: int = 1  # its layout, if no planned node writes it
    border: int = 0  # layouts that opaque readers and the caller ask for
    readers: list[int] = field(default_factory=list)  # nodes, once per use


class Node(NamedTuple):
    name: str
    inputs: list[int]
    outputs: list[int]
    problem: str  # empty: opaque, not planned


class Option(NamedTuple):
    """One way to compute a node, as the rest of the graph sees it."""

    said: dict[str, Any]  # by a plan that takes it
    reads: dict[int, int]  # per value a set of layouts
    leaves: int  # the layout of the result


class Graph:
    """Of the text; `hash` is the planner's id of its structure."""

    def __init__(self, text: str):
        first, *lines = text.split("\n")
        require(first == "torchalgo graph 1", "this is no torchalgo graph 1")
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        outputs = []
        for word, *rest in (line.split("\t") for line in lines if line):
            if word == "value":
                first += f"value {rest[0]} [{bare(rest[1])}] {rest[2]}\n"
                sizes = numbers(rest[1])
                self.values.append(Value(rest[0], len(sizes), shape_of(sizes, rest[2])))
            elif word == "node":
                name, kind, reads, writes, problem, _ = rest
                first += f"node {name} {kind} ({bare(reads)}) -> ({bare(writes)}) {problem}\n"
                self.add(Node(name, numbers(reads), numbers(writes), bare(problem)))
            elif word == "input":
                first += f"input {rest[0]} {rest[1]}\n"
                value = self.values[int(rest[0])]
                value.written = LAYOUTS[rest[1]] if value.shape else 1
            else:
                require(word == "output", f"{word} is no word of a graph")
                outputs.append(rest[0])
                producer = self.values[int(rest[0])].producer
                is_free = producer >= 0 and self.nodes[producer].problem.startswith("bwd_filter_")
                self.values[int(rest[0])].border |= 0 if is_free else 1
        self.hash = fnv1a64(first + f"outputs {','.join(outputs)}\n")
        planned = [n for n, node in enumerate(self.nodes) if node.problem]
        self.planned = sorted(planned, key=lambda n: self.nodes[n].name.encode())

    def add(self, node: Node) -> None:
        for v in node.inputs:
            self.values[v].readers.append(len(self.nodes))
            self.values[v].border |= 0 if node.problem else 1
        for v in node.outputs:
            require(self.values[v].producer < 0, f"{node.name} writes what is there")
            self.values[v].producer = len(self.nodes)
            if node.problem.startswith("bwd_filter_"):  # its layout is in the primitive's name
                self.values[v].shape = ""
        self.nodes.append(node)

    def writer(self, value: int) -> int:
        """The planned node that writes a value, or -1."""
        producer = self.values[value].producer
        return producer if producer >= 0 and self.nodes[producer].problem else -1


def fnv1a64(text: str) -> str:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def bare(word: str) -> str:
    return "" if word == "-" else word


def numbers(word: str) -> list[int]:
    return [int(part) for part in bare(word).split(",") if part]


def shape_of(sizes: list[int], dtype: str) -> str:
    if dtype == "-" or not 3 <= len(sizes) <= 5:
        return ""
    sizes = [*sizes[:2], 1, sizes[2]] if len(sizes) == 3 else sizes
    letters = "ncdhw" if len(sizes) == 5 else "nchw"
    return f"{dtype}_" + "".join(f"{a}{size}" for a, size in zip(letters, sizes, strict=True))


# ---- what each node may run ----------------------------------------------------------------------


def chains_from(graph: Graph, anchor: int) -> Iterator[tuple[Chain, str, list[int]]]:
    """What one call may compute, if it has costs: nodes, spelled problem, values read."""
    node = graph.nodes[anchor]
    covers: Chain = (anchor,)
    problem, inputs = node.problem, node.inputs
    while True:
        yield covers, problem, inputs
        link = node.outputs[0]
        readers = graph.values[link].readers
        if len(readers) != 1 or graph.values[link].border:
            return
        node = graph.nodes[readers[0]]
        kind = node.problem.split("_")[0]
        if kind == "fwd" and (longer := chained(problem, node.problem)):
            covers, problem = (*covers, readers[0]), longer
            continue
        if kind == "shuffle" and problem.startswith("concat_") and "_shuffle" not in problem:
            groups = node.problem.rpartition("_g")[2]
            covers, problem = (*covers, readers[0]), f"{problem}_shuffle{groups}"
            continue
        is_plain = "+" not in node.problem and not node.problem.endswith("_channelwise")
        if kind not in (*ACTIVATIONS, "add") or not is_plain:
            return
        covers, problem = (*covers, readers[0]), f"{problem}+{kind}"
        inputs = [*inputs, *(v for v in node.inputs if v != link)]


def chained(problem: str, conv: str) -> str:
    """What becomes a chain with the convolution `conv` behind it; empty: that is no chain.

    A scale before a 1x1 convolution; a global pooling before one or two of them; or convolutions,
    three at most, 2-D, without an addition between, of whose neighbours one has a filter per
    channel.
    """
    own, added = conv.split("_k")
    kind, dtype, *_ = problem.split("_")
    head = HEADS.fullmatch(problem)
    if head and dtype == own.split("_")[1] and POINTWISE.fullmatch(added):
        source = head["sizes"] or head["product"] or head["pooled"]
        return f"chain_{source}_{kind}{head['then'] or head['after'] or ''}_k{added}"
    if kind not in ("fwd", "chain") or "+add" in problem:
        return ""
    sizes, *before = problem.split("_k")
    filters = [FILTERS.fullmatch(text) for text in (*before, added)]
    if len(filters) > 3 or dtype != own.split("_")[1] or re.search("_(mul|scaleshift)", sizes):
        return ""
    if sizes.endswith("_avgpool"):
        is_chain = len(filters) == 2 and POINTWISE.fullmatch(added)
        return f"{problem}_k{added}" if is_chain else ""
    channels = re.findall(r"c(\d+)", sizes)
    depthwise = []
    for found in filters:
        if found is None:
            return ""
        depthwise.append(found["k"] == found["g"] == channels[-1] != "1")
        channels.append(found["k"])
    if depthwise[-2] == depthwise[-1]:
        return ""
    return f"chain_{sizes.split('_', 1)[1]}_k" + "_k".join((*before, added))


def layouts_of(problem: str, row: str) -> tuple[int, int, int]:
    """In which layouts a row reads its first input, reads the others, and writes."""
    name, _, layouts = row.rpartition(" ")
    src, dst = (LAYOUTS[layout] for layout in layouts.split("->"))
    if problem.startswith("bwd_data_"):  # src and dst mean the tensors or their gradients
        return dst, dst, src
    if problem.startswith("bwd_filter_"):
        variants = name.replace("@", "{").split("{")[0].split(".")[1:]
        return src, dst, LAYOUTS["nhwc" if "krsc" in variants else "nchw"]
    return src, src, dst


def fits(value: Value, layout: int) -> bool:
    return value.rank == 4 if layout > LAYOUTS["nhwc"] else layout == 1 or value.rank >= 3


def ends_of(pair: Pair) -> tuple[Any, Any]:
    """Node, problem and row of both choices of a pair."""
    producer, reader = (
        tuple(pair[end + suffix] for suffix in ("", "_problem", "_primitive"))
        for end in ("producer", "reader")
    )
    return producer, reader


def options_of(
    graph: Graph, rows: CostRows, refused: Iterable[Any], pairs: Iterable[Pair] = ()
) -> list[list[Option]]:
    """Per node, in the order in which the PBQP numbers them."""
    options: list[dict[Any, Option]] = [{} for _ in graph.nodes]
    banned = {tuple(item) for item in refused}
    paired = {end for pair in pairs for end in ends_of(pair)}
    # What a call hands on in registers has a layout of its own, which no transform starts from.
    links: dict[Any, int] = defaultdict(lambda: 16 << len(links))

    def add(covers: Chain, i: int, layouts: tuple[int, int, int], said: dict[str, Any]) -> None:
        node, last, reads = graph.nodes[covers[i]], layouts[2], Counter[int]()
        for j, v in enumerate(node.inputs):
            if i > 0 and graph.values[v].producer == covers[i - 1]:
                reads[v] |= links[covers, i, last]
            elif i > 0 or (j + 1 == len(node.inputs) and "add" in node.problem.split("+")):
                reads[v] |= last
            else:
                reads[v] |= layouts[min(j, 1)]
        leaves = last if i + 1 == len(covers) else links[covers, i + 1, last]
        chain = tuple(graph.nodes[n].name.encode() for n in covers)
        order = i > 0, said["primitive"].encode(), layouts[0], last, layouts[1], chain
        options[covers[i]][order] = Option(said, reads, leaves)

    for anchor in graph.planned:
        name = graph.nodes[anchor].name
        best: dict[Any, Any] = {}
        for covers, problem, inputs in chains_from(graph, anchor):
            result = graph.values[graph.nodes[covers[-1]].outputs[0]]
            for row, ticks in rows.get(problem, {}).items():
                first, later, last = layouts_of(problem, row)
                is_fit = all(fits(graph.values[v], first) for v in inputs) and fits(result, last)
                if is_fit and (name, problem, row) not in banned:
                    # What some pair names is one by itself.
                    kept = row if (name, problem, row) in paired else ""
                    key = covers, (first, later, last), kept
                    best[key] = min(best.get(key, (INF,)), (ticks, row, problem))
        for (covers, layouts, _), (ticks, row, problem) in best.items():
            primitive, src, dst = row.replace("->", " ").split()
            said = {"problem": problem, "primitive": primitive, "src": src, "dst": dst}
            add(covers, 0, layouts, {**said, "ticks": ticks, "absorbed_by": ""})
            for i, n in enumerate(covers[1:], 1):
                said = {"problem": graph.nodes[n].problem, "primitive": "", "ticks": 0}
                add(covers, i, (layouts[2],) * 3, {**said, "absorbed_by": name})
    for node, own in zip(graph.nodes, options, strict=True):
        require(own or not node.problem, f"{node.name}: no costs of {node.problem}")
    return [[option for _, option in sorted(own.items())] for own in options]


# ---- the PBQP ------------------------------------------------------------------------------------


def changes_of(rows: CostRows) -> dict[str, dict[tuple[int, int], int]]:
    """Per shape: the cheapest change from one layout to another."""
    changes: dict[str, dict[tuple[int, int], int]] = defaultdict(dict)
    for problem, primitives in rows.items():
        if problem.startswith("transform_"):
            _, dtype, sizes, src, dst = problem.split("_")
            require(all(row.endswith(f" {src}->{dst}") for row in primitives), f"no {problem}")
            changes[f"{dtype}_{sizes}"][LAYOUTS[src], LAYOUTS[dst]] = min(primitives.values())
    return changes


def add_pairs(
    graph: Graph,
    options: list[list[Option]],
    pairs: Iterable[Pair],
    costs: list[list[Any]],
    edges: list[tuple[Any, ...]],
) -> None:
    """The pairs of two nodes as an edge; what they take off is taken off the reader's node."""
    place: dict[Any, tuple[int, int]] = {}
    for variable, n in enumerate(graph.planned):
        for i, option in enumerate(options[n]):
            place[choice_of(graph.nodes[n].name, option.said)] = variable, i
    between: dict[tuple[int, int], dict[tuple[int, int], int]] = defaultdict(dict)
    for pair in pairs:
        producer, reader = ends_of(pair)
        require(producer[0] != reader[0], f"a pair of {reader[0]} with itself")
        if reader not in place or (producer[0] and producer not in place):
            continue
        v, j = place[reader]
        if producer[0]:
            u, i = place[producer]
            require((i, j) not in between[u, v], f"two pairs of {producer[0]} and {reader[0]}")
            between[u, v][i, j] = pair["ticks"]
        else:
            costs[v][j] += pair["ticks"]
    for (u, v), ticks in sorted(between.items()):
        width = range(len(costs[v]))
        least = [min([0, *(t for (_, at), t in ticks.items() if at == j)]) for j in width]
        matrix = [ticks.get((i, j), 0) - least[j] for i in range(len(costs[u])) for j in width]
        edges.append((u, v, *matrix))
        costs[v] = [a + b for a, b in zip(costs[v], least, strict=True)]


def choice_of(name: str, said: Mapping[str, Any]) -> tuple[str, str, str]:
    row = f"{said['primitive']} {said['src']}->{said['dst']}" if said["primitive"] else ""
    return name, said["problem"], row


def applied(pairs: Iterable[Pair], nodes: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """The pairs whose choices a plan's nodes are."""
    chosen = {choice_of(said["name"], said) for said in nodes if said["primitive"]}
    return [
        pair
        for pair in pairs
        for producer, reader in [ends_of(pair)]
        if reader in chosen and (not producer[0] or producer in chosen)
    ]


def problem_of(
    graph: Graph, options: list[list[Option]], rows: CostRows, pairs: Iterable[Pair] = ()
) -> str:
    """The PBQP as text; docs/pbqp.md, "From a graph to a PBQP", tells its order of lines."""
    changes = changes_of(rows)
    variable = {n: i for i, n in enumerate(graph.planned)}
    costs: list[list[Any]] = [[o.said["ticks"] for o in options[n]] for n in graph.planned]
    edges: list[tuple[Any, ...]] = []
    constant: Any = 0
    sets: dict[tuple[Reader, ...], Reader] = {}

    @cache
    def cheapest(shape: str, have: int, wanted: int) -> Any:
        """The least sum of changes after which a value exists in all layouts of a set."""
        if not wanted & ~have:
            return 0
        hops = [(dst, t) for (src, dst), t in changes[shape].items() if src & have and dst & ~have]
        return min((t + cheapest(shape, have | dst, wanted) for dst, t in hops), default=INF)

    def joined(readers: tuple[Reader, ...]) -> Reader:
        """The node whose alternatives are what all these readers may read together."""
        if len(readers) == 1:
            return readers[0]
        if readers not in sets:
            parts = readers[0], joined(readers[1:])
            wholes = sorted({a | b for a in parts[0][1] for b in parts[1][1]})
            sets[readers] = len(costs), tuple(wholes)
            for other, reads in parts:
                matrix = [0 if a & b == b else INF for a in wholes for b in reads]
                edges.append((len(costs), other, *matrix))
            costs.append([0] * len(wholes))
        return sets[readers]

    by_name = sorted(range(len(graph.values)), key=lambda v: graph.values[v].name.encode())
    readers: dict[int, list[Reader]] = {}
    for v in by_name:
        nodes = [n for n in dict.fromkeys(graph.values[v].readers) if graph.nodes[n].problem]
        readers[v] = [(variable[n], tuple(o.reads[v] for o in options[n])) for n in nodes]
    shared = Counter(reader for some in readers.values() if len(some) > 1 for reader in some)
    for v in by_name:
        value, writer = graph.values[v], graph.writer(v)
        some = tuple(sorted(readers[v], key=lambda reader: (shared[reader], reader)))
        node, wanted = joined(some) if some else (-1, (0,))
        left = [o.leaves for o in options[writer]] if writer >= 0 else [value.written]
        matrix = [cheapest(value.shape, a, b | value.border) for a in left for b in wanted]
        ends = [end for end in (variable.get(writer, -1), node) if end >= 0]
        if len(ends) == 2:
            edges.append((*ends, *matrix))
        elif ends:
            costs[ends[0]] = [a + b for a, b in zip(costs[ends[0]], matrix, strict=True)]
        else:
            constant += matrix[0]
    add_pairs(graph, options, pairs, costs, edges)
    lines = [("node", *row) for row in [*costs, *([[constant]] if constant else [])]]
    lines += [("edge", *edge) for edge in edges]
    words = (" ".join("-" if word == INF else str(word) for word in line) for line in lines)
    return "pbqp 1\n" + "".join(line + "\n" for line in words)


# ---- the plan ------------------------------------------------------------------------------------


def check_layouts(
    graph: Graph, changes: list[dict[str, Any]], rows: CostRows, chosen: dict[int, Option]
) -> None:
    """Whether every value exists in the layouts in which it is read."""
    names, have = [value.name for value in graph.values], []
    for v, value in enumerate(graph.values):
        writer = graph.writer(v)
        have.append(value.written if writer < 0 else chosen[writer].leaves)
    for change in changes:
        v, src, dst = names.index(change["value"]), change["src"], change["dst"]
        producer = graph.values[v].producer
        problem = f"transform_{graph.values[v].shape}_{src}_{dst}"
        said = graph.nodes[producer].name if producer >= 0 else "", problem
        require((change["producer"], change["problem"]) == said, f"{problem}: not of {names[v]}")
        ticks = rows[problem][f"{change['primitive']} {src}->{dst}"]
        require(change["ticks"] == ticks, f"{problem} by {change['primitive']} costs {ticks}")
        require(have[v] & LAYOUTS[src], f"{names[v]} does not exist in {src}")
        have[v] |= LAYOUTS[dst]
    for v, value in enumerate(graph.values):
        wanted = [chosen[n].reads[v] for n in value.readers if n in chosen]
        for layouts in [value.border, *wanted]:
            require(not layouts & ~have[v], f"{value.name} lacks a layout in which it is read")


def problem_text(
    graph_text: str,
    cost_rows: CostRows,
    refused: Iterable[Any] = (),
    pairs: Sequence[Pair] = (),
) -> str:
    """The PBQP whose optimum is the cheapest plan."""
    graph = Graph(graph_text)
    return problem_of(graph, options_of(graph, cost_rows, refused, pairs), cost_rows, pairs)


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
    graph = Graph(proof["graph"] if graph_text is None else graph_text)
    require(graph.hash == data["structure_hash"], "the plan was made for another graph")
    rows: CostRows = proof["costs"] if cost_rows is None else cost_rows
    ticks = [t for some in rows.values() for t in some.values()]
    require(all(type(t) is int and t >= 0 for t in ticks), "a cost is no integer above 0")
    pairs: list[Pair] = proof.get("pairs", [])
    require(all(type(pair["ticks"]) is int for pair in pairs), "a pair's cost is no integer")
    options = options_of(graph, rows, proof["refused"], pairs)
    proven = check(problem_of(graph, options, rows, pairs), proof["certificate"])
    require(proven["problem"] == [proof["problem_hash"]], "the certificate is for another problem")
    bound, parts = data["lower_bound_ticks"], data["nodes"] + data["transforms"]
    require(proven["bound"] == [str(bound)], f"the certificate proves the bound {proven['bound']}")
    chosen = {n: options[n][int(a)] for n, a in zip(graph.planned, proven["choice"], strict=False)}
    for n, said in zip(sorted(chosen), data["nodes"], strict=True):
        true = {"name": graph.nodes[n].name, **chosen[n].said}
        require(true == {key: said[key] for key in true}, f"{true['name']}: the choice is {true}")
    check_layouts(graph, data["transforms"], rows, chosen)
    apply = applied(pairs, data["nodes"])
    require(data.get("pairs", []) == apply, f"the pairs that apply are {apply}")
    cost = sum(part["ticks"] for part in [*parts, *apply])
    require(data["cost_ticks"] == cost, f"the plan costs {cost} ticks")
    require(data["status"] == ("optimal" if cost == bound else "feasible"), "a wrong status")
    objective, energy = data.get("objective", "latency"), data.get("energy") or {}
    require(objective in ("latency", "energy"), f"no certificate is of {objective}")
    unit, claims = "us", [(data["cost_us"], cost), (data["lower_bound_us"], bound)]
    if objective == "energy":
        unit, claims = "uj", [(energy["cost_uj"], cost), (energy["lower_bound"], bound)]
    for said, exact in claims + [(part[f"predicted_{unit}"], part["ticks"]) for part in parts]:
        require(said == round(exact / TICKS_PER_US, 3), f"{exact} ticks are not {said} {unit}")


if __name__ == "__main__":
    try:
        check_plan(Path(sys.argv[1]).read_text(encoding="utf-8"))
    except FALSE as error:
        sys.exit(f"rejected: {error}")
    print("every claim holds")
