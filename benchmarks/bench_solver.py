# SPDX-License-Identifier: BSD-3-Clause
"""The solver alone: time and memory against size, and beside toulbar2, HiGHS and a heuristic.

    python benchmarks/bench_solver.py scale --ops 1000 10000
    python benchmarks/bench_solver.py peers --ops 20 50 --limit 60
    python benchmarks/bench_solver.py agree --problems 200       # with toulbar2

Each measurement runs in a process of its own (its peak of memory is one of the answers) and adds a
JSON line to benchmarks/results/solver.jsonl. Costs are drawn per choice: a choice fixes the layouts
that it reads and writes, an edge charges for changing between them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from records import record

SCHEMA = 1
RESULTS = Path(__file__).with_name("results") / "solver.jsonl"
LAYOUTS = 4
CHANGE = [[0, 300, 500, 800], [300, 0, 700, 600], [500, 700, 0, 200], [800, 600, 200, 0]]

Edge = tuple[int, int, list[list[int | None]]]
Parts = tuple[list[list[int | None]], list[Edge]]


class Network:
    """Ops with `choices` ways to run each, in a data flow."""

    def __init__(self, seed: int, choices: int) -> None:
        self.random = random.Random(seed)
        self.choices = choices
        self.costs: list[list[int | None]] = []
        self.layouts: list[list[tuple[int, int]]] = []  # per choice: read, written
        self.edges: list[Edge] = []

    def op(self, *inputs: int) -> int:
        """Reads what earlier ops wrote; of several inputs one changes to the layout of each."""
        node, pick = len(self.costs), self.random.randrange
        base = 1000 + pick(9000)
        self.layouts.append([(pick(LAYOUTS), pick(LAYOUTS)) for _ in range(self.choices)])
        self.costs.append([base + pick(base) for _ in range(self.choices)])
        for source in dict.fromkeys(inputs):
            size = 1 + pick(8)
            matrix: list[list[int | None]] = [
                [CHANGE[out][into] * size for into, _ in self.layouts[node]]
                for _, out in self.layouts[source]
            ]
            self.edges.append((source, node, matrix))
        return node


def chain(net: Network, ops: int) -> None:
    last = net.op()
    for _ in range(ops - 1):
        last = net.op(last)


def residual(net: Network, ops: int) -> None:
    last = net.op()
    while len(net.costs) < ops:
        last = net.op(net.op(net.op(net.op(last))), last)


def inception(net: Network, ops: int) -> None:
    last = net.op()
    while len(net.costs) < ops:
        a, b, c = net.op(last), net.op(net.op(last)), net.op(net.op(net.op(last)))
        last = net.op(a, b, c, net.op(last))


def dense(net: Network, ops: int) -> None:
    """Blocks of four in which every op reads all before it; width 4 or so."""
    last = net.op()
    while len(net.costs) < ops:
        block = [last]
        for _ in range(4):
            block.append(net.op(*block))
        last = net.op(block[-1])


KINDS: dict[str, Callable[[Network, int], None]] = {
    "chain": chain, "residual": residual, "inception": inception, "dense": dense,
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


# The engines: parts and a limit in seconds -> what is recorded. Building is not timed.


def run_torchalgo(parts: Parts, limit_s: float, **options: bool) -> dict[str, Any]:
    from torchalgo import pbqp

    problem = pbqp.Problem(*parts)
    start = time.perf_counter()
    solution = pbqp.solve(problem, limit_s, **{"marginals": False, **options})
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "cost": solution.cost,
        "bound": solution.lower_bound,
        "status": solution.status,
        "method": solution.method,
        "certificate": solution.certificate.kind,
        "certificate_bytes": len(solution.certificate.text),
    }


def run_marginals(parts: Parts, limit_s: float) -> dict[str, Any]:
    return run_torchalgo(parts, limit_s, marginals=True)


def run_check(parts: Parts, limit_s: float) -> dict[str, Any]:
    """The time of the independent checker, reading both texts included."""
    from torchalgo import check_certificate, pbqp

    problem = pbqp.Problem(*parts)
    solution = pbqp.solve(problem, limit_s, marginals=False)
    text = problem.to_text()
    start = time.perf_counter()
    check_certificate.check(text, solution.certificate.text)
    return {"seconds": time.perf_counter() - start, "cost": solution.cost, "status": "checked"}


def run_toulbar2(parts: Parts, limit_s: float) -> dict[str, Any]:
    import pytoulbar2

    costs, edges = parts
    top = sum(max((c for c in row if c is not None), default=0) for row in costs) + 1
    top += sum(max((c for row in m for c in row if c is not None), default=0) for _, _, m in edges)
    model = pytoulbar2.CFN(float(top), verbose=-1)
    for u, row in enumerate(costs):
        model.AddVariable(f"x{u}", range(len(row)))
        model.AddFunction([u], [top if c is None else c for c in row])
    for u, v, matrix in edges:
        model.AddFunction([u, v], [top if c is None else c for row in matrix for c in row])
    start = time.perf_counter()
    found = model.Solve(timeLimit=max(1, round(limit_s)))
    seconds = time.perf_counter() - start
    is_over = seconds >= max(1, round(limit_s))
    cost = None if found is None else round(found[1])
    status = "feasible" if is_over else "infeasible" if found is None else "optimal"
    return {"seconds": seconds, "cost": cost, "status": status}


def run_highs(parts: Parts, limit_s: float) -> dict[str, Any]:
    """The usual linearization: a variable per value and per pair of values, rows that join them."""
    import numpy as np
    from scipy.optimize import (
        Bounds,
        LinearConstraint,
        milp,
    )
    from scipy.sparse import coo_array

    costs, edges = parts
    first = np.cumsum([0] + [len(row) for row in costs])
    objective = [c if c is not None else 0 for row in costs for c in row]
    upper = [0 if c is None else 1 for row in costs for c in row]
    rows: list[int] = []
    cols: list[int] = []
    values: list[int] = []
    right: list[int] = []

    def add_row(entries: Iterator[tuple[int, int]], sum_to: int) -> None:
        for col, value in entries:
            rows.append(len(right))
            cols.append(col)
            values.append(value)
        right.append(sum_to)

    for u, row in enumerate(costs):
        add_row(((int(first[u]) + a, 1) for a in range(len(row))), 1)
    for u, v, matrix in edges:
        at, width = len(objective), len(costs[v])
        objective += [c if c is not None else 0 for row in matrix for c in row]
        upper += [0 if c is None else 1 for row in matrix for c in row]
        for a in range(len(costs[u])):
            pairs = [(at + a * width + b, 1) for b in range(width)]
            add_row(iter([*pairs, (int(first[u]) + a, -1)]), 0)
        for b in range(width):
            pairs = [(at + a * width + b, 1) for a in range(len(costs[u]))]
            add_row(iter([*pairs, (int(first[v]) + b, -1)]), 0)
    matrix = coo_array((values, (rows, cols)), shape=(len(right), len(objective))).tocsr()
    is_integer = np.zeros(len(objective))
    is_integer[: first[-1]] = 1
    start = time.perf_counter()
    result = milp(
        np.array(objective, dtype=float),
        constraints=LinearConstraint(matrix, right, right),
        integrality=is_integer,
        bounds=Bounds(0, np.array(upper, dtype=float)),
        options={"time_limit": limit_s, "mip_rel_gap": 0},
    )
    seconds = time.perf_counter() - start
    status = {0: "optimal", 2: "infeasible"}.get(result.status, "feasible")
    cost = None if result.x is None else round(float(result.fun))
    return {"seconds": seconds, "cost": cost, "status": status}


def run_heuristic(parts: Parts, limit_s: float) -> dict[str, Any]:
    """R0-R2, and RN where none applies: the node of highest degree takes its locally best value.

    What LLVM, TVM and the CGO 2018 paper's solver fall back on; Hames & Scholz 2006, JMLC.
    """
    import numpy as np

    costs, edges = parts
    inf = float("inf")
    start = time.perf_counter()
    node = {
        u: np.array([inf if c is None else c for c in row], float) for u, row in enumerate(costs)
    }
    table: dict[int, dict[int, Any]] = {u: {} for u in node}
    for u, v, matrix in edges:
        cells = np.array([[inf if c is None else c for c in row] for row in matrix], float)
        for a, b, own in ((u, v, cells), (v, u, cells.T)):
            table[a][b] = table[a][b] + own if b in table[a] else own
    order: list[tuple[int, Any, dict[int, Any]]] = []
    todo = {u for u in node if len(table[u]) <= 2}
    while node:
        if todo:
            u = todo.pop()
            if u not in node or len(table[u]) > 2:
                continue
            picked = None
        else:
            u = max(node, key=lambda n: len(table[n]))
            picked = int(np.argmin(node[u] + sum(t.min(axis=1) for t in _joint(node, table[u]))))
        own, around = node.pop(u), table.pop(u)
        order.append((u, own if picked is None else _only(own, picked), around))
        for v in around:
            del table[v][u]
        if picked is not None:
            for v, cells in around.items():
                node[v] = node[v] + cells[picked]
        elif len(around) == 1:
            ((v, cells),) = around.items()
            node[v] = node[v] + (own[:, None] + cells).min(axis=0)
        elif len(around) == 2:
            (v, left), (w, right) = around.items()
            joined = (own[:, None, None] + left[:, :, None] + right[:, None, :]).min(axis=0)
            table[v][w] = table[v][w] + joined if w in table[v] else joined
            table[w][v] = table[v][w].T
        todo |= {v for v in around if len(table[v]) <= 2}
    choice: dict[int, int] = {}
    for u, own, around in reversed(order):
        total = own + sum(cells[:, choice[v]] for v, cells in around.items() if v in choice)
        choice[u] = int(np.argmin(total))
    seconds = time.perf_counter() - start
    cost = cost_of(parts, [choice[u] for u in range(len(costs))])
    return {"seconds": seconds, "cost": cost, "status": "unknown" if cost is None else "feasible"}


def _joint(node: dict[int, Any], around: dict[int, Any]) -> Iterator[Any]:
    for v, cells in around.items():
        yield cells + node[v][None, :]


def _only(own: Any, picked: int) -> Any:
    import numpy as np

    kept = np.full_like(own, float("inf"))
    kept[picked] = own[picked]
    return kept


def cost_of(parts: Parts, choice: list[int]) -> int | None:
    costs, edges = parts
    paid = [row[a] for row, a in zip(costs, choice, strict=True)]
    paid += [matrix[choice[u]][choice[v]] for u, v, matrix in edges]
    return None if None in paid else sum(c for c in paid if c is not None)


ENGINES: dict[str, Callable[[Parts, float], dict[str, Any]]] = {
    "torchalgo": run_torchalgo,
    "torchalgo_marginals": run_marginals,
    "check": run_check,
    "toulbar2": run_toulbar2,
    "highs": run_highs,
    "heuristic": run_heuristic,
}


def in_child(queue: Any, engine: str, make: Callable[..., Parts], args: Any, limit: float) -> None:
    try:
        parts = make(*args)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = ENGINES[engine](parts, limit)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        queue.put({**answer, "peak_mib": round((peak - before) / 1024, 1)})
    except Exception as error:  # an engine that cannot is a result, not an end
        queue.put({"failure": f"{type(error).__name__}: {str(error)[:200]}"})


def measure(engine: str, make: Callable[..., Parts], args: Any, limit_s: float) -> dict[str, Any]:
    """In a process of its own; killed at three times its limit."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=in_child, args=(queue, engine, make, args, limit_s))
    child.start()
    try:
        return dict(queue.get(timeout=3 * limit_s + 120))
    except Exception:
        return {"failure": "killed: out of time or memory"}
    finally:
        child.kill()
        child.join()


def run_grid(args: argparse.Namespace, benchmark: str, engines: list[str]) -> None:
    for kind in args.kinds:
        for ops in args.ops:
            head = {
                "schema": SCHEMA, "benchmark": benchmark, "kind": kind, "ops": ops,
                "choices": args.choices, "seed": args.seed, "limit_s": args.limit,
                "machine": platform.machine(), "python": platform.python_version(),
            }  # fmt: skip
            answers = {
                engine: measure(
                    engine, make_parts, (kind, ops, args.choices, args.seed), args.limit
                )
                for engine in engines
            }
            best = answers.get("torchalgo", {}).get("cost")
            for answer in answers.values():
                if best and answer.get("cost") is not None:
                    answer["excess"] = round(answer["cost"] / best - 1, 6)
            record(args.out, {**head, "engines": answers})


def run_agree(args: argparse.Namespace) -> None:
    """Both prove the same cost, or that there is none; a difference is an error."""
    same = 0
    for seed in range(args.seed, args.seed + args.problems):
        parts = random_parts(seed)
        own, other = run_torchalgo(parts, args.limit), run_toulbar2(parts, args.limit)
        if other["status"] == "feasible":
            continue
        if (own["status"], own["cost"]) != (other["status"], other["cost"]):
            raise SystemExit(f"seed {seed}: torchalgo {own}, toulbar2 {other}")
        same += 1
    line = {"schema": SCHEMA, "benchmark": "solver_agree", "problems": args.problems, "same": same}
    record(args.out, {**line, "seed": args.seed})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=["scale", "peers", "agree"])
    parser.add_argument("--ops", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--choices", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60, help="seconds per engine and problem")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.what == "scale":
        run_grid(args, "solver_scale", ["torchalgo", "torchalgo_marginals", "check"])
    elif args.what == "peers":
        run_grid(args, "solver_peers", ["torchalgo", "toulbar2", "highs", "heuristic"])
    else:
        run_agree(args)


if __name__ == "__main__":
    main()
