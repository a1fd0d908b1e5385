# SPDX-License-Identifier: BSD-3-Clause
"""The solvers that bench_solver.py compares, each from a problem and a limit to what is recorded.

Building a solver's model is not timed.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from solver_problems import Parts


def run_torchalgo(parts: Parts, limit_s: float, **options: bool) -> dict[str, Any]:
    from torchalgo import pbqp

    problem = pbqp.Problem(*parts)
    reset_peak()
    memory = memory_mib("VmRSS")
    start, cpu_start = time.perf_counter(), time.process_time()
    solution = pbqp.solve(problem, limit_s, **{"marginals": False, **options})
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return {
        "seconds": round(seconds, 4),
        "cpu_seconds": round(cpu_seconds, 4),
        "problem_mib": round(memory, 1),  # the whole process before it solves
        "peak_mib": round(memory_mib("VmHWM") - memory, 1),  # on top of that
        "cost": solution.cost,
        "bound": solution.lower_bound,
        "status": solution.status,
        "method": solution.method,
        "certificate": solution.certificate.kind,
        "certificate_bytes": len(solution.certificate.text),
        "exact_marginals": sum(m.is_exact for row in solution.marginals for m in row),
        "marginals": sum(map(len, solution.marginals)),
    }


def memory_mib(field: str) -> float:
    """Returns the memory of this process; "VmHWM" is the most since reset_peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"bench_solver: /proc/self/status has no {field}")


def reset_peak() -> None:
    """Freed memory goes back first, so that what is used again counts."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def run_marginals(parts: Parts, limit_s: float) -> dict[str, Any]:
    return run_torchalgo(parts, limit_s, marginals=True)


def run_check(parts: Parts, limit_s: float) -> dict[str, Any]:
    """The time of the independent checker, reading both texts included."""
    from torchalgo import pbqp
    from torchalgo.verify import check_certificate

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
