#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks a plan without trusting the planner: exact integers, standard library only.

    python check_claims.py net.plan.json                       # a plan with its proof
    torchalgo.check_plan(plan, graph_text, cost_rows, refused, pairs)   # with your own inputs

From the graph and the costs alone, this file derives what each node may run. It then writes the
PBQP whose optimum is the cheapest plan. The certificate must be valid for this PBQP, and the plan
must be its choice. docs/pbqp.md says what that proves. This file shares no code with the planner.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

try:
    from torchalgo.verify.check_certificate import (
        ENTRY,
        INF,
        STEP,
        Work,
        as_proof_errors,
        check,
        main,
        require,
    )  # fmt: skip
except ImportError:  # these two files run without torchalgo
    from check_certificate import *  # type: ignore  # noqa: F403

LAYOUTS = {"nchw": 1, "nhwc": 2, "nhwc.bf16": 4, "nChw16c": 8}  # a set of layouts is their sum
COARSE = LAYOUTS["nhwc.bf16"]
TICKS_PER_US = 1024 * 1000
# A sum or an activation alone: its type is followed by the sizes of one tensor. A product looks
# alike, but no problem that ends with "+mul" has costs.
APPENDED = re.compile(r"([a-z][\w.-]*?)_(?:f64|f32|tf32|f16|bf16)_n\d+c\d+h\d+w\d+")
# Operations that may come before a convolution in one call, with the ends of their problems.
HEADS = {"scaleshift": "", "mul": "_channelwise", "avgpool": "_p1q1"}
MAX_CHAIN = 32  # most nodes of one call; longer chains have no costs
MAX_TICKS = 1 << 63

PROVEN = {"nodes", "name", "problem", "primitive", "src", "dst", "absorbed_by", "ticks", "pairs"}
PROVEN |= {"transforms", "value", "producer", "cost_ticks", "lower_bound_ticks", "status", "proof"}
CostRows = Mapping[str, Mapping[str, int]]  # problem -> "primitive src->dst" -> ticks
Reader = tuple[int, tuple[int, ...]]  # a PBQP node, and the layouts that each alternative reads


@dataclass
class Value:
    name: str
    shape: str  # as in transforms; empty if its layout cannot change
    producer: int = -1  # node
    problem: str = ""  # its producer's; empty if that is not planned
    written: int = 1  # its layout if no planned node writes it
    border: int = 0  # layouts that opaque readers and the caller need
    readers: list[int] = field(default_factory=list)  # nodes, one per use


class Node(NamedTuple):
    name: str
    inputs: list[int]
    outputs: list[int]
    problem: str  # empty if the node is opaque


class Option(NamedTuple):
    """One way to compute a node, as seen by the other nodes."""

    said: dict[str, Any]  # the fields of a plan that chooses it
    reads: dict[int, int]  # set of layouts by value
    leaves: int  # the layout of the result


def bit_of(layout: str) -> int:
    """Returns the set of one layout. Raises ProofError for any other word."""
    is_gone = "is no longer a layout, since no algorithm used it"
    why = is_gone if layout == "nChw8c" else "is no layout"
    require(layout in LAYOUTS, f"'{layout}' {why}: expected one of {', '.join(LAYOUTS)}")
    return LAYOUTS[layout]


Options = list[list[Option]]  # per node, in the order in which the PBQP numbers them


class Graph:
    """The data flow of a graph's text. A node comes after the nodes whose results it reads."""

    def __init__(self, text: str, work: Work | None = None):
        first, *lines = text.split("\n")
        require(first == "torchalgo graph 1", "this is no torchalgo graph 1")
        self.values: list[Value] = []
        self.work = work or Work(len(text))
        self.nodes: list[Node] = []
        for word, name, *rest in (line.split("\t") for line in lines if line):
            if word == "value":
                self.values.append(Value(name, shape_of(numbers(rest[0]), rest[1])))
            elif word == "node":
                reads, arrow, makes = rest[3].partition("->")  # the layouts of an opaque node
                problem = "" if arrow or rest[3] in ("-", "shape") else rest[3]
                node = Node(name, numbers(rest[1]), numbers(rest[2]), problem)
                border = bit_of(reads) if arrow else 0 if problem or rest[3] == "shape" else 1
                self.add(node, border, bit_of(makes) if arrow else 1)
            else:
                [value] = (self.values[v] for v in numbers(name))
                if word == "input":
                    value.written = bit_of(rest[0]) if value.shape else 1
                else:
                    require(word == "output", f"{word} is no word of a graph")
                    value.border |= 0 if value.problem.startswith("bwd_filter_") else 1
        for some in (self.values, self.nodes):
            require(len({one.name for one in some}) == len(some), "two nodes or values of one name")
        planned = [n for n, node in enumerate(self.nodes) if node.problem]
        self.planned = sorted(planned, key=lambda n: self.nodes[n].name.encode())

    def add(self, node: Node, border: int, written: int) -> None:
        for v in node.inputs:
            self.values[v].readers.append(len(self.nodes))
            self.values[v].border |= border
        for value in (self.values[v] for v in node.outputs):
            is_new = value.producer < 0 and not value.readers
            require(is_new, f"{node.name} writes {value.name}, which was written or read before")
            value.producer, value.problem = len(self.nodes), node.problem
            value.written = written
            if node.problem.startswith("bwd_filter_"):  # the primitive's name holds its layout
                value.shape = ""
        self.nodes.append(node)


def numbers(word: str) -> list[int]:
    parts = [] if word == "-" else word.split(",")
    require(all(part.isascii() and part.isdigit() for part in parts), f"{word} is no list of sizes")
    return [int(part) for part in parts]


def shape_of(sizes: list[int], dtype: str) -> str:
    if dtype == "-" or not 3 <= len(sizes) <= 5:
        return ""
    sizes = [*sizes[:2], 1, sizes[2]] if len(sizes) == 3 else sizes
    letters = "ncdhw" if len(sizes) == 5 else "nchw"
    return f"{dtype}_" + "".join(f"{a}{size}" for a, size in zip(letters, sizes, strict=True))


# ---- what each node may run ----------------------------------------------------------------------


def chains_from(graph: Graph, anchor: int) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yields the nodes and the problem of each call that may start at `anchor`."""
    covers: tuple[int, ...] = (anchor,)
    problem = graph.nodes[anchor].problem
    while problem and len(covers) < MAX_CHAIN:
        yield covers, problem
        link = graph.nodes[covers[-1]].outputs[0]
        readers = graph.values[link].readers
        if len(readers) != 1 or graph.values[link].border:
            return
        covers = (*covers, readers[0])
        problem = appended(problem, graph.nodes[readers[0]].problem)


def appended(problem: str, other: str) -> str:
    """Returns the problem of one call that computes `problem` and then `other`.

    Returns "" if no call computes both. A problem that no algorithm offers has no costs.
    """
    kind, _, own = problem.partition("_")
    if other.startswith("fwd_") and own.split("_")[0] == other.split("_")[1]:
        source, *then = own.split("+")
        if kind in HEADS and source.endswith(HEADS[kind]):
            own = "_".join((source.removesuffix(HEADS[kind]), "+".join((kind, *then))))
        elif kind not in ("fwd", "chain"):
            return ""
        return f"chain_{own}_k{other.split('_k')[1]}"
    if other.startswith("shuffle_") and kind == "concat" and "_shuffle" not in own:
        return f"{problem}_shuffle{other.rpartition('_g')[2]}"
    named = APPENDED.fullmatch(other)
    return f"{problem}+{named[1]}" if named else ""


def layouts_of(problem: str, row: str) -> tuple[tuple[int, int, int], int]:
    """Returns the layouts of a primitive's first, second and further inputs, and of its result.

    `row` is a primitive of the costs of `problem`, as "primitive src->dst".
    """
    name, _, layouts = row.rpartition(" ")
    src, dst = (bit_of(layout) for layout in layouts.split("->"))
    if problem.startswith("bwd_data_"):  # src and dst mean the tensors or their gradients
        return (dst, dst, dst), src
    if problem.startswith("bwd_filter_"):
        variants = name.replace("@", "{").split("{")[0].split(".")[1:]
        return (src, dst, dst), bit_of("nhwc" if "krsc" in variants else "nchw")
    # The numbers per channel that steps of a batch norm read have no layout with a type.
    plain = bit_of("nhwc") if src == COARSE else src
    if problem.startswith("normalize_"):
        return (src, plain, plain), dst
    if problem.startswith("bwd_normalize_"):
        return (src, src, plain), dst
    return (src, src, src), dst


def ends_of(pair: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields node, problem and primitive of both choices of a pair, the producer's first."""
    for end in ("producer", "reader"):
        yield pair[end], pair[f"{end}_problem"], pair[f"{end}_primitive"]


def options_of(graph: Graph, rows: CostRows, refused: Any, pairs: Any = ()) -> Options:
    options: list[dict[Any, Option]] = [{} for _ in graph.nodes]
    banned = {tuple(item) for item in refused}
    paired = {end for pair in pairs for end in ends_of(pair)}
    # A tensor inside a call has a layout of its own, from which no transform starts.
    links: dict[Any, int] = defaultdict(lambda: 16 << len(links))
    sums = ["add" in node.problem.split("+") for node in graph.nodes]
    for anchor in graph.planned:
        name = graph.nodes[anchor].name
        absorbed = {"primitive": "", "src": "nchw", "dst": "nchw", "ticks": 0, "absorbed_by": name}
        best: dict[Any, Any] = {}
        for covers, problem in chains_from(graph, anchor):
            own_rows = rows.get(problem, {})
            graph.work.spend(STEP + len(problem) + STEP * len(own_rows))
            for row, ticks in own_rows.items():
                if (name, problem, row) not in banned:
                    # A primitive that a pair names is kept, even if another one is cheaper.
                    kept = row if (name, problem, row) in paired else ""
                    key = covers, layouts_of(problem, row), kept
                    best[key] = min(best.get(key, (INF,)), (ticks, row, problem))
        for (covers, (read, last), _), (ticks, row, problem) in best.items():
            chain = tuple(graph.nodes[n].name.encode() for n in covers)
            inputs = sum(len(graph.nodes[n].inputs) for n in covers)
            graph.work.spend(len(covers) * (STEP + len(links) // 8) + 2 * ENTRY * inputs)
            for i, node in enumerate(graph.nodes[n] for n in covers):
                said = {"problem": problem, "ticks": ticks, "absorbed_by": ""}
                said |= zip(
                    ("primitive", "src", "dst"), row.replace("->", " ").split(), strict=True
                )
                if i > 0:
                    read, said = (last, last, last), {"problem": node.problem, **absorbed}
                reads = Counter[int]()
                for j, v in enumerate(node.inputs):
                    is_added = j + 1 == len(node.inputs) and sums[covers[i]]
                    is_link = i > 0 and graph.values[v].producer == covers[i - 1]
                    own = last if is_added else read[min(j, 2)]
                    reads[v] |= links[covers, i, last] if is_link else own
                leaves = last if i + 1 == len(covers) else links[covers, i + 1, last]
                order = i > 0, said["primitive"].encode(), read[0], last, read, chain
                options[covers[i]][order] = Option(said, reads, leaves)
    for node, own in zip(graph.nodes, options, strict=True):
        require(own or not node.problem, f"{node.name}: no costs of {node.problem}")
    return [[option for _, option in sorted(own.items())] for own in options]


# ---- the PBQP ------------------------------------------------------------------------------------


def changes_of(rows: CostRows) -> dict[str, dict[tuple[int, int], int]]:
    """Returns the cost of the cheapest change between two layouts, by shape."""
    changes: dict[str, dict[tuple[int, int], int]] = defaultdict(dict)
    for problem, primitives in rows.items():
        if problem.startswith("transform_"):
            _, dtype, sizes, src, dst = problem.split("_")
            changes[f"{dtype}_{sizes}"][bit_of(src), bit_of(dst)] = min(primitives.values())
    return changes


def choice_of(name: str, said: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns the name of an alternative as pairs use it. No pair names an absorbed node."""
    row = f"{said['primitive']} {said['src']}->{said['dst']}" if said["primitive"] else ""
    return name if row else "", said["problem"], row


def add_pairs(graph: Graph, options: Options, pairs: Any, costs: Any, edges: Any) -> None:
    """Adds an edge for each two nodes with pairs.

    Negative costs of a pair move to the reader's node, so that the edge has no negative cost.
    """
    place: dict[Any, tuple[int, int]] = {}
    for variable, n in enumerate(graph.planned):
        for i, option in enumerate(options[n]):
            place[choice_of(graph.nodes[n].name, option.said)] = variable, i
    between: dict[tuple[int, int], dict[tuple[int, int], int]] = defaultdict(dict)
    for pair in pairs:
        producer, reader = ends_of(pair)
        require(reader[0] and producer[0] != reader[0], f"a pair of {reader[0]} with itself")
        if reader in place and not producer[0]:
            costs[place[reader][0]][place[reader][1]] += pair["ticks"]
        elif reader in place and producer in place:
            (u, i), (v, j) = place[producer], place[reader]
            require((i, j) not in between[u, v], f"two pairs of {producer[0]} and {reader[0]}")
            between[u, v][i, j] = pair["ticks"]
    for (u, v), ticks in sorted(between.items()):
        graph.work.spend(ENTRY * len(costs[u]) * len(costs[v]))
        least = [0] * len(costs[v])
        for (_, j), t in ticks.items():
            least[j] = min(least[j], t)
        cells = itertools.product(range(len(costs[u])), range(len(costs[v])))
        edges.append((u, v, *(ticks.get((i, j), 0) - least[j] for i, j in cells)))
        costs[v] = [a + b for a, b in zip(costs[v], least, strict=True)]


def problem_of(graph: Graph, options: Options, rows: CostRows, pairs: Any) -> str:
    """Writes the PBQP; docs/pbqp.md, "From a graph to a PBQP", describes the order of its lines."""
    changes = changes_of(rows)
    variable = {n: i for i, n in enumerate(graph.planned)}
    costs: list[list[Any]] = [[o.said["ticks"] for o in options[n]] for n in graph.planned]
    edges: list[tuple[Any, ...]] = []
    constant: Any = 0
    sets: dict[tuple[Reader, Reader], Reader] = {}  # of a reader and a node that joins the others

    @cache
    def cheapest(shape: str, have: int, wanted: int, is_exact: bool) -> Any:
        """Returns the least cost of changes after which a value exists in all wanted layouts.

        If `is_exact`, the value was written in the model's type. Then no layout of this type is
        made from one of a coarser type.
        """
        if not wanted & ~have:
            return 0
        graph.work.spend(STEP + ENTRY * len(changes[shape]))
        sources = have & ~COARSE if is_exact else have
        hops = [(d, t) for (s, d), t in changes[shape].items() if s & sources and d & ~have]
        return min((t + cheapest(shape, have | d, wanted, is_exact) for d, t in hops), default=INF)

    def joined(readers: tuple[Reader, ...]) -> Reader:
        """Returns the node whose alternatives are the layouts that these readers may read."""
        whole = readers[-1]
        for reader in reversed(readers[:-1]):
            parts = reader, whole
            graph.work.spend(STEP + ENTRY * (len(reader[1]) + len(whole[1])))
            if parts not in sets:
                graph.work.spend(ENTRY * len(reader[1]) * len(whole[1]))
                wholes = sorted({a | b for a in reader[1] for b in whole[1]})
                graph.work.spend(ENTRY * len(wholes) * (len(reader[1]) + len(whole[1])))
                sets[parts] = len(costs), tuple(wholes)
                for other, reads in parts:
                    matrix = [0 if a & b == b else INF for a in wholes for b in reads]
                    edges.append((len(costs), other, *matrix))
                costs.append([0] * len(wholes))
            whole = sets[parts]
        return whole

    by_name = sorted(range(len(graph.values)), key=lambda v: graph.values[v].name.encode())
    readers: dict[int, list[Reader]] = {}
    for v in by_name:
        nodes = [n for n in dict.fromkeys(graph.values[v].readers) if graph.nodes[n].problem]
        graph.work.spend(sum(STEP + ENTRY * len(options[n]) for n in nodes))
        readers[v] = [(variable[n], tuple(o.reads[v] for o in options[n])) for n in nodes]
    shared = Counter(reader for some in readers.values() if len(some) > 1 for reader in some)
    for v in by_name:
        value = graph.values[v]
        writer = value.producer if value.problem else -1
        some = tuple(sorted(readers[v], key=lambda reader: (shared[reader], reader)))
        node, wanted = joined(some) if some else (-1, (0,))
        left = [o.leaves for o in options[writer]] if writer >= 0 else [value.written]
        graph.work.spend(ENTRY * len(left) * len(wanted))
        matrix = [
            cheapest(value.shape, a, b | value.border, not a & COARSE) for a in left for b in wanted
        ]
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


def problem_text(graph_text: str, rows: CostRows, refused: Any = (), pairs: Any = ()) -> str:
    """Returns the PBQP whose optimum is the cheapest plan."""
    graph = Graph(graph_text)
    return problem_of(graph, options_of(graph, rows, refused, pairs), rows, pairs)


# ---- the plan ------------------------------------------------------------------------------------


def cost_of_changes(graph: Graph, changes: Any, rows: CostRows, chosen: dict[int, Option]) -> int:
    """Returns the cost of the plan's layout changes.

    Raises: ProofError if a value does not exist in a layout in which it is read.
    """
    have = [chosen[v.producer].leaves if v.problem else v.written for v in graph.values]
    numbered, cost = {value.name: v for v, value in enumerate(graph.values)}, 0
    for change in changes:
        v, src, dst = numbered[change["value"]], change["src"], change["dst"]
        problem = f"transform_{graph.values[v].shape}_{src}_{dst}"
        producer = graph.values[v].producer
        ticks = rows[problem][f"{change['primitive']} {src}->{dst}"]
        name = graph.nodes[producer].name if producer >= 0 else ""
        agree({"producer": name, "problem": problem, "ticks": ticks}, change)
        require(have[v] & bit_of(src), f"{change['value']} does not exist in {src}")
        have[v] |= bit_of(dst)
        cost += ticks
    for v, value in enumerate(graph.values):
        wanted = [chosen[n].reads[v] for n in value.readers if n in chosen]
        for layouts in [value.border, *wanted]:
            require(not layouts & ~have[v], f"{value.name} lacks a layout in which it is read")
    return cost


def agree(true: dict[str, Any], said: Mapping[str, Any]) -> None:
    """Raises ProofError unless a part of the plan has these true values, with the same types."""
    for key, value in true.items():
        is_said = said[key] == value and type(said[key]) is type(value)
        require(is_said, f"{true.get('name', 'the plan')}: {key} is {value!r}, not {said[key]!r}")


def without_repeats(items: list[tuple[str, Any]]) -> dict[str, Any]:
    require(len(dict(items)) == len(items), "a JSON object has one key twice")
    return dict(items)


def check_choice(data: Any, text: str, rows: CostRows, refused: Any, pairs: Any) -> dict[str, Any]:
    """Checks nodes, transforms and pairs. Returns the true cost, bound and status of the plan."""
    ticks = [t for some in rows.values() for t in some.values()]
    is_cost = all(type(t) is int and 0 <= t < MAX_TICKS for t in ticks)
    require(is_cost, "a cost is no integer of at least 0, or above the largest one")
    is_cost = all(type(p["ticks"]) is int and abs(p["ticks"]) < MAX_TICKS for p in pairs)
    require(is_cost, "a pair's cost is no integer, or above the largest one")
    certificate = data["proof"]["certificate"]
    # The PBQP may be much longer than the texts that it is derived from. So they set the limit.
    names = [name for problem, some in rows.items() for name in (problem, *some)]
    work = Work(2 * sum(map(len, (text, certificate, *names))))
    graph = Graph(text, work)
    options = options_of(graph, rows, refused, pairs)
    proven = check(problem_of(graph, options, rows, pairs), certificate, work)
    require(proven["problem"] == [data["proof"]["problem_hash"]], "problem_hash is another one")
    chosen = {n: options[n][int(a)] for n, a in zip(graph.planned, proven["choice"], strict=False)}
    for n, said in zip(sorted(chosen), data["nodes"], strict=True):
        agree({"name": graph.nodes[n].name, **chosen[n].said}, said)
    taken = {choice_of(graph.nodes[n].name, option.said) for n, option in chosen.items()}
    apply = [p for p in pairs if all(end in taken or not end[0] for end in ends_of(p))]
    require(data.get("pairs", []) == apply, f"the pairs that apply are {apply}")
    cost = cost_of_changes(graph, data["transforms"], rows, chosen)
    cost += sum(part["ticks"] for part in [*apply, *(option.said for option in chosen.values())])
    bound = int(proven["bound"][0])
    status = "optimal" if cost == bound else "feasible"
    return {"cost_ticks": cost, "lower_bound_ticks": bound, "status": status}


@as_proof_errors()
def check_claims(plan: Any, **own: Any) -> dict[str, Any]:
    """Raises ProofError unless a plan with its proof is what it claims to be.

    The plan must fit the graph and cost `cost_ticks`. No plan that the graph, costs, refusals and
    pairs allow may be cheaper than `lower_bound_ticks`. The status is "optimal" only if the two are
    equal.

    Args:
        plan: the text of a plan's file, or its content as a dict; `plan.with_proof()` makes one.
        own: the caller's graph, costs, refused and pairs, in the form of a plan's proof. Missing
            ones come from the plan's file. But if there are costs, missing refused and pairs are
            empty.
    Returns: the proven values, the source of each trusted input, and the fields that were not
        checked.
    """
    data = plan if isinstance(plan, dict) else json.loads(plan, object_pairs_hook=without_repeats)
    proof: dict[str, Any] = data.get("proof") or {}
    require(proof, "the plan has no proof; plan.with_proof() adds it")
    own = {"refused": (), "pairs": (), **own} if "costs" in own else own
    given = {key: proof.get(key, ()) for key in ("graph", "costs", "refused", "pairs")}
    require(own.keys() <= given.keys(), f"one of {list(own)} is none of {list(given)}")
    given |= own
    true = check_choice(data, *given.values())
    agree(true, data)
    trusted = {key: "the caller" if key in own else "the plan's file" for key in given}
    fields = {key for part in (data, *data["nodes"], *data["transforms"]) for key in part}
    return {**true, "on trust, from": trusted, "not checked": sorted(fields - PROVEN)}


if __name__ == "__main__":
    main(check_claims)
