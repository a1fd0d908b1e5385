# SPDX-License-Identifier: BSD-3-Clause
"""The planner on the kept structures of networks: inference and training, proven or not, and when.

    python benchmarks/bench_planner.py                      # all of benchmarks/graphs/inference.zip
    python benchmarks/bench_planner.py --check              # and the proofs by the checker
    python benchmarks/bench_planner.py --quick              # the five smallest: seconds
    python benchmarks/bench_planner.py --only 'resnet*' --modes training
    python benchmarks/bench_planner.py --trace              # traces the networks that are missing
    python benchmarks/bench_planner.py --trace resnet50 timm/dla102

Costs are drawn: --choices ways to run each convolution, with layouts drawn too, and every other op
in each layout. Layout changes cost what their bytes do. With "preferred" each step away from a
preferred layout is 10 % dearer, as in tables of real machines; "adversarial" prefers none, which no
machine does. The seconds of a record are those of make_plan: prices, encoding, proof and plan.
Takes about ten minutes for all networks. Appends one JSON line per network, mode and kind of costs
to benchmarks/results/planner.jsonl.

--trace plans nothing. It traces networks of torchvision and timm, each in a process of its own, and
adds their graphs to benchmarks/graphs/inference.zip. Takes up to four minutes per network.
"""

from __future__ import annotations

import argparse
import fnmatch
import random
import statistics
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import harness
from network_graphs import GRAPHS, LIMIT_S, all_names, graph_name, trace, write_graphs
from network_graphs import read_graphs as read_texts
from torchalgo import _C
from torchalgo.verify.check_certificate import check
from torchalgo.verify.check_claims import problem_text

SCHEMA = 1
LAYOUTS = ("nhwc", "nchw", "nChw16c")  # from the preferred one on
PREFERENCE = {"preferred": 0.1, "adversarial": 0.0}  # dearer by, per step
TICKS_PER_FLOP, TICKS_PER_BYTE = 20, 100  # 50 GFLOP/s, 10 GB/s
CONVERSION = {  # bytes' cost times this; drawn once, like a machine
    (a, b): 0.6 + 0.2 * ((3 * i + 5 * j) % 7)
    for i, a in enumerate(LAYOUTS)
    for j, b in enumerate(LAYOUTS)
}


def read_graphs(path: Path, pattern: str, quick: bool) -> Iterator[tuple[str, _C.Graph]]:
    with zipfile.ZipFile(path) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: (entry.file_size, entry.filename))
        chosen = [e for e in entries if fnmatch.fnmatchcase(e.filename, pattern)]
        for entry in chosen[:5] if quick else chosen:
            yield entry.filename, _C.parse_graph(archive.read(entry).decode())


def draw_candidates(graph: _C.Graph, choices: int, pick: random.Random) -> _C.Candidates:
    primitives: list[list[_C.Primitive]] = []
    for node in graph.nodes:
        ranks = {len(graph.values[v].sizes) for v in [*node.inputs, *node.outputs]}
        layouts: tuple[str, ...] = LAYOUTS if ranks == {4} else ("nchw",)
        own = [] if node.problem is None else [_C.Primitive("drawn.same", x, x) for x in layouts]
        if node.problem is not None and node.problem.startswith(
            ("fwd_", "bwd_data_", "bwd_filter_")
        ):
            own = [_C.Primitive("drawn.plain", "nchw", "nchw")]
            layouts = LAYOUTS if ranks == {4} else ("nchw", "nhwc")
            own += [
                _C.Primitive(f"drawn.c{i}", pick.choice(layouts), pick.choice(layouts))
                for i in range(1, choices)
            ]
        primitives.append(own)
    return _C.single_candidates(graph, primitives)


def draw_costs(
    candidates: Iterable[_C.Candidate], preference: float, pick: random.Random
) -> dict[_C.CostKey, int]:
    costs: dict[_C.CostKey, int] = {}
    base: dict[str, float] = {}
    for c in candidates:
        p = c.primitive
        if c.problem not in base:
            inputs, result = _C.tensor_sizes(c.problem)
            count = sum(_product(sizes) for sizes in [*inputs, result])
            base[c.problem] = max(
                _C.flop_count(c.problem) * TICKS_PER_FLOP, 4 * count * TICKS_PER_BYTE, 1024
            )
        steps = LAYOUTS.index(p.src) + LAYOUTS.index(p.dst)
        if c.problem.startswith("transform_"):
            factor = CONVERSION[p.src, p.dst]
        else:
            factor = (1 + pick.random()) * (1 + preference * steps / 2)
        costs.setdefault(
            _C.CostKey(c.problem, p.name, p.src, p.dst), round(base[c.problem] * factor)
        )
    return costs


def _product(sizes: Iterable[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def conversions(graph: _C.Graph, found: _C.Candidates) -> list[_C.Candidate]:
    """One per pair of layouts."""
    seen: dict[str, _C.Candidate] = {}
    for candidate in _C.transform_candidates(graph, found):
        seen.setdefault(candidate.problem, candidate)
    return list(seen.values())


def measure(name: str, graph: _C.Graph, args: argparse.Namespace, costs: str) -> dict[str, Any]:
    pick = random.Random(f"{args.seed} {name}")
    found = draw_candidates(graph, args.choices, pick)
    transforms = conversions(graph, found)
    table = _C.CostTable()
    every = [c for list_ in found.by_anchor for c in list_]
    for key, ticks in draw_costs([*every, *transforms], PREFERENCE[costs], pick).items():
        table.set(key, ticks, "measured")
    start = time.perf_counter()
    plan, wanted = _C.make_plan(graph, found, transforms, table, time_limit_s=args.limit)
    seconds = time.perf_counter() - start
    assert not wanted, wanted[:3]
    checked = {}
    if args.check:
        checked["check_seconds"] = check_seconds(graph, found, transforms, table, args.limit)
    return {
        **checked,
        "nodes": len(graph.nodes), "candidates": len(every), "seconds": round(seconds, 4),
        "status": plan.status, "cost": plan.cost, "bound": plan.lower_bound,
        "gap": round(plan.cost / plan.lower_bound - 1, 6) if plan.lower_bound else None,
        "transforms": len(plan.transforms), "method": plan.method,
    }  # fmt: skip


def check_seconds(
    graph: _C.Graph,
    found: _C.Candidates,
    transforms: list[_C.Candidate],
    table: _C.CostTable,
    limit_s: float,
) -> float | None:
    """Times the independent checker, which writes the PBQP and checks the bound's proof.

    Returns None if the proof was too long to be kept.
    """
    plan, _ = _C.make_plan(
        graph, found, transforms, table, time_limit_s=limit_s, with_certificate=True
    )
    if not plan.certificate.endswith("\nclose\n"):
        return None
    rows: dict[str, dict[str, int]] = {}
    for c in [*(c for list_ in found.by_anchor for c in list_), *transforms]:
        key = _C.CostKey(c.problem, c.primitive.name, c.primitive.src, c.primitive.dst)
        cost = table.get(key)
        assert cost is not None, key
        rows.setdefault(c.problem, {})[repr(c.primitive)] = cost[0]
    refused = []  # rows that were drawn for another node with the same problem
    for node, own in zip(graph.nodes, found.by_anchor, strict=True):
        drawn = {(c.problem, repr(c.primitive)) for c in own}
        of_problem = ((p, row) for p in {p for p, _ in drawn} for row in rows[p])
        refused += [(node.name, *pair) for pair in of_problem if pair not in drawn]
    text = graph.to_text()
    start = time.perf_counter()
    check(problem_text(text, rows, refused), plan.certificate)
    return round(time.perf_counter() - start, 4)


def summary(mode: str, costs: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = sorted(row["seconds"] for row in rows)
    checks = [s for row in rows if (s := row.get("check_seconds")) is not None]
    return {
        "benchmark": "planner_summary", "mode": mode, "costs": costs, "networks": len(rows),
        "proven": sum(row["status"] == "optimal" for row in rows),
        "max_gap": max(row["gap"] or 0.0 for row in rows),
        "p50_s": statistics.median(seconds), "p99_s": seconds[(99 * len(seconds) - 1) // 100],
        "max_s": seconds[-1],
        **({"max_check_s": max(checks), "checked": len(checks)} if checks else {}),
    }  # fmt: skip


def trace_all(names: list[str]) -> int:
    """Adds the graphs of networks to the file, each as soon as it is traced."""
    graphs = read_texts() if GRAPHS.exists() else {}
    failures = 0
    for name in names or [name for name in all_names() if name not in graphs]:
        answer = harness.run_child(trace, name, limit_s=LIMIT_S)
        if answer.failure:
            failures += 1
            harness.tell_failure(name, answer.failure, harness.repro_line(trace, name))
            continue
        graphs[name] = answer.values[-1]
        print(f"{name}: {graphs[name].count(chr(10) + 'node')} ops", flush=True)
        write_graphs(graphs)
    print(f"{len(graphs)} networks in {GRAPHS}, {failures} failed")
    return 1 if failures else 0


def run_all(args: argparse.Namespace) -> None:
    head = {
        "schema": SCHEMA, "choices": args.choices, "seed": args.seed, "limit_s": args.limit,
        "version": _C.version,
    }  # fmt: skip
    graphs = list(read_graphs(args.graphs, args.only, args.quick))
    for mode in args.modes:
        for costs in args.costs:
            rows = []
            for name, inference in graphs:
                graph = _C.training_graph(inference) if mode == "training" else inference
                try:
                    rows.append(measure(name, graph, args, costs))
                except Exception as problem:
                    repro = harness.script_line(
                        "bench_planner.py", "--only", name, "--modes", mode, "--costs", costs,
                        "--seed", args.seed, "--choices", args.choices, "--limit", args.limit,
                        *(["--check"] if args.check else []),
                    )  # fmt: skip
                    harness.tell_failure(name, str(problem), repro)
                    raise
                line = {"benchmark": "planner", "mode": mode, "costs": costs, "network": name}
                harness.record(args.out, {**head, **line, **rows[-1]})
            if rows:
                harness.record(args.out, {**head, **summary(mode, costs, rows)})


def main() -> int:
    parser = harness.make_parser(__doc__, harness.RESULTS / "planner.jsonl")
    parser.add_argument("--trace", nargs="*", type=graph_name, metavar="NETWORK", help="see above")
    parser.add_argument("--graphs", type=Path, default=GRAPHS, help="as --trace writes it")
    parser.add_argument("--only", default="*", help="networks, by pattern")
    parser.add_argument("--quick", action="store_true", help="the five smallest")
    modes = ["inference", "training"]
    parser.add_argument("--modes", nargs="+", default=modes, choices=modes, help="of the graphs")
    parser.add_argument(
        "--costs", nargs="+", default=list(PREFERENCE), choices=list(PREFERENCE), help="see above"
    )
    parser.add_argument("--choices", type=harness.count, default=30, help="per convolution")
    parser.add_argument("--limit", type=harness.seconds, default=2.0, help="of each search")
    parser.add_argument("--check", action="store_true", help="time the independent checker too")
    parser.add_argument("--seed", type=int, default=1, help="of the costs")
    args = parser.parse_args()
    if args.trace is not None:
        return trace_all(args.trace)
    run_all(args)
    return 0


if __name__ == "__main__":
    harness.run_script(main)
