# SPDX-License-Identifier: BSD-3-Clause
"""The solver from Python: what it accepts, what it claims, and that its claims can be checked."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import torchalgo
from support.pbqp_samples import Costs, marginals_by_trying, random_problem
from torchalgo.pbqp import Problem, Solution, check, solve

CHECKER = Path(torchalgo.__file__).parent / "verify" / "check_certificate.py"


def test_the_readme_example_is_solved_and_checked() -> None:
    problem = Problem([[3, 0], [1, 2]], [(0, 1, [[0, 5], [None, 0]])])
    solution = solve(problem)
    assert (solution.status, solution.choice, solution.cost) == ("optimal", [1, 1], 2)
    check(problem, solution)


@pytest.mark.parametrize("table_cap", [30_000_000, 60, 0])
def test_optimum_and_marginals_equal_trying_every_choice(table_cap: int) -> None:
    pick = random.Random(table_cap)
    exact = bounds = fixed = 0
    for _ in range(120):
        problem = random_problem(pick, pick.randrange(1, 6), 3)
        expected = marginals_by_trying(problem)
        best = min((c for row in expected for c in row if c is not None), default=None)
        solution = solve(problem, table_cap=table_cap)
        check(problem, solution)
        assert solution.cost == best, problem.to_text()
        assert solution.status == ("infeasible" if best is None else "optimal")
        for i, (row, found) in enumerate(zip(expected, solution.marginals, strict=True)):
            for cost, marginal in zip(row, found, strict=True):
                exact += marginal.is_exact
                bounds += not marginal.is_exact
                if marginal.is_exact:
                    assert marginal.cost == cost, problem.to_text()
                elif cost is not None:
                    assert marginal.cost is not None and marginal.cost <= cost, problem.to_text()
            if solution.choice is not None and solution.fixed[i]:
                fixed += 1
                others = [c for a, c in enumerate(row) if a != solution.choice[i]]
                assert all(c is None or best is None or c > best for c in others)
    assert exact > 500 and fixed > 100
    assert (bounds > 20) == (table_cap == 0)


def test_runner_ups_are_what_forbidding_the_choice_gives() -> None:
    pick = random.Random(3)
    compared = 0
    for table_cap in (30_000_000, 0):
        for _ in range(40):
            problem = random_problem(pick, 5, 4)
            solution = solve(problem, table_cap=table_cap)
            if solution.choice is None or solution.cost is None:
                continue
            for node, runner_up in enumerate(solution.runner_ups):
                costs = problem.node_costs
                costs[node][solution.choice[node]] = None
                other = solve(Problem(costs, problem.edges))
                if other.cost is None:
                    assert runner_up is None
                    continue
                assert runner_up is not None and runner_up.is_exact
                assert runner_up.regret == other.cost - solution.cost, problem.to_text()
                compared += 1
    assert compared > 100


def large_problem(nodes: int, values: int) -> Problem:
    """Returns a problem with a random table between each two nodes."""
    pick = random.Random(6)

    def row() -> list[int | None]:
        return [pick.randrange(10**6) for _ in range(values)]

    pairs = [(u, v) for u in range(nodes) for v in range(u)]
    edges = [(u, v, [row() for _ in range(values)]) for u, v in pairs]
    return Problem([row() for _ in range(nodes)], edges)


@pytest.mark.parametrize("limit", [0.0, 1e-4, 0.05])
def test_any_time_limit_gives_a_checked_bound(limit: float) -> None:
    pick = random.Random(4)
    gaps = 0
    for _ in range(8):
        size = pick.choice([6, 14])
        values = 5 if size == 6 else 8
        costs: Costs = [[pick.randrange(1000) for _ in range(values)] for _ in range(size)]
        edges = [
            (u, v, [[pick.randrange(1000) for _ in range(values)] for _ in range(values)])
            for u in range(size)
            for v in range(u)
        ]
        problem = Problem(costs, edges)
        solution = solve(problem, limit, table_cap=1000, transcript=True)
        check(problem, solution)
        assert solution.lower_bound is not None and solution.cost is not None
        assert solution.lower_bound <= solution.cost
        gaps += solution.lower_bound < solution.cost
        known = [(event.lower_bound, event.cost) for event in solution.transcript]
        lows = [low for low, _ in known if low is not None]
        costs_seen = [math.inf if cost is None else cost for _, cost in known]
        assert lows == sorted(lows) and costs_seen == sorted(costs_seen, reverse=True)
        assert lows[-1] == solution.lower_bound and costs_seen[-1] == solution.cost
    assert gaps > 0


def test_a_transcript_reads_from_the_reductions_to_the_method() -> None:
    problem = Problem([[1, 2], [3, 4]], [(0, 1, [[5, 0], [0, 5]])])
    solution = solve(problem, transcript=True)
    lines = [str(event) for event in solution.transcript]
    assert "reduced: R0 1, R1 1" in lines[0]
    assert any(solution.method in line and "best 5" in line for line in lines)
    assert solve(problem).transcript == []


def test_problems_go_through_text() -> None:
    pick = random.Random(5)
    for _ in range(50):
        problem = random_problem(pick, pick.randrange(6), 3)
        again = Problem.from_text("# a comment\n\n" + problem.to_text())
        assert again == problem and hash(again) == hash(problem)
        assert Problem(again.node_costs, again.edges) == problem


def test_numpy_arrays_with_masks_are_taken() -> None:
    masked = np.ma.array([[0, 5], [7, 0]], mask=[[False, False], [True, False]])
    problem = Problem([np.array([3, 0]), np.array([1.0, 2.0])], [(np.int64(0), 1, masked)])
    assert problem == Problem([[3, 0], [1, 2]], [(0, 1, [[0, 5], [None, 0]])])


@pytest.mark.parametrize(
    ("node_costs", "edges", "says"),
    [
        ([[1, -1]], [], "negative cost -1"),
        ([[1, float("nan")]], [], "nan"),
        ([[1, float("inf")]], [], "None for a forbidden choice"),
        ([[1.5]], [], "1.5"),
        ([["1"]], [], "'1'"),
        ([[2**63]], [], "exceeds 63 bits"),
        ([[2**63 - 1]], [], "exceeds 63 bits"),
        ([[2**62], [2**62]], [], "coarser unit"),
        ([7], [], "expected a list of costs"),
        (["12"], [], "expected a list of costs"),
        ([b"12345678"], [], "expected a list of costs"),
        ([[1], [1]], [(0, 0, [[1]])], "to itself"),
        ([[1], [1]], [(0, 2, [[1]])], "does not exist"),
        ([[1], [1]], [(-1, 0, [[1]])], "does not exist"),
        ([[1], [1]], [(0, 1)], "expected (node, node, matrix)"),
        ([[1], [1]], [(0, 1.0, [[1]])], "expected (node, node, matrix)"),
        ([[1, 2], [1, 2]], [(0, 1, [[1, 2], [3]])], "row 1, has 1 costs, expected 2"),
        ([[1, 2], [1, 2]], [(0, 1, [[1, 2]])], "has 1 rows, expected 2"),
        ([[1, 2], [1, 2]], [(0, 1, 5)], "expected 2"),
    ],
)
def test_a_malformed_problem_is_an_error_that_says_so(
    node_costs: object, edges: list[tuple[object, ...]], says: str
) -> None:
    with pytest.raises(torchalgo.Error) as error:
        Problem(node_costs, edges)  # type: ignore[arg-type]
    assert says in str(error.value)


def test_malformed_text_and_limits_are_errors() -> None:
    with pytest.raises(torchalgo.Error, match="line 2"):
        Problem.from_text("pbqp 1\nknot 3\n")
    for limit in (-1.0, float("nan")):
        with pytest.raises(torchalgo.Error, match="time_limit_s"):
            solve(Problem([[1]]), limit)
    for caps in ({"table_cap": -1}, {"proof_cap": -1}):
        with pytest.raises(torchalgo.Error, match="expected 0 or more"):
            solve(Problem([[1]]), **caps)  # type: ignore[arg-type]
    with pytest.raises(torchalgo.Error, match="alternative 3"):
        Problem([[1]]).cost([3])


def test_costs_may_come_from_iterators() -> None:
    rows = [[3, None], [1.0, 2.0]]
    assert Problem(iter(row) for row in rows) == Problem(rows)
    assert Problem([map(float, (1, 2, 3))]).node_costs == [[1, 2, 3]]


def test_the_largest_cap_is_no_cap() -> None:
    problem = large_problem(6, 4)
    solution = solve(problem, table_cap=2**63 - 1, proof_cap=2**63 - 1)
    assert all(marginal.is_exact for row in solution.marginals for marginal in row)
    check(problem, solution)


@pytest.mark.parametrize("node_costs", [[[]], [[1], []], [[None]]])
def test_a_node_without_alternatives_is_proven_infeasible(node_costs: Costs) -> None:
    problem = Problem(node_costs)
    solution = solve(problem)
    assert (solution.status, solution.choice, solution.lower_bound) == ("infeasible", None, None)
    check(problem, solution)


def test_the_empty_problem_costs_nothing() -> None:
    solution = solve(Problem([]))
    assert (solution.status, solution.choice, solution.cost) == ("optimal", [], 0)
    check(Problem([]), solution)


def change(solution: Solution, **fields: object) -> Solution:
    return replace(solution, **fields)  # type: ignore[arg-type]


def test_check_refuses_a_solution_that_is_not_its_certificates() -> None:
    problem = Problem([[3, 0], [1, 2]], [(0, 1, [[0, 5], [None, 0]])])
    solution = solve(problem)
    for wrong in (
        change(solution, choice=[0, 0]),
        change(solution, cost=1),
        change(solution, lower_bound=3),
        change(solution, status="feasible"),
    ):
        with pytest.raises(torchalgo.Error, match="certificate"):
            check(problem, wrong)
    with pytest.raises(torchalgo.Error, match="another problem"):
        check(Problem([[3, 0], [1, 2]]), solution)


def test_without_room_there_is_no_certificate_and_check_says_so() -> None:
    pick = random.Random(6)
    costs: Costs = [[pick.randrange(100) for _ in range(4)] for _ in range(6)]
    edges = [
        (u, v, [[pick.randrange(100) for _ in range(4)] for _ in range(4)])
        for u in range(6)
        for v in range(u)
    ]
    problem = Problem(costs, edges)
    solution = solve(problem, table_cap=0, proof_cap=10)
    assert solution.status == "optimal" and solution.certificate.kind == "none"
    with pytest.raises(torchalgo.Error, match="no certificate"):
        check(problem, solution)


def test_the_room_counts_reductions_and_eliminations_too() -> None:
    chain = Problem([[3, 0], [1, 2]], [(0, 1, [[0, 5], [None, 0]])])
    for problem in (chain, large_problem(5, 3)):
        assert solve(problem).certificate.kind != "none"
        assert solve(problem, proof_cap=0).certificate.kind == "none"


@pytest.mark.slow
def test_a_bound_at_any_time_of_the_messages_is_proven() -> None:
    problem = large_problem(120, 8)
    gaps = 0
    for limit in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5):
        solution = solve(problem, limit, marginals=False)
        check(problem, solution)
        gaps += solution.status == "feasible"
    assert gaps > 0


def test_the_checker_runs_on_its_own(tmp_path: Path) -> None:
    problem = Problem([[3, 0], [1, 2]], [(0, 1, [[0, 5], [None, 0]])])
    files = [tmp_path / "problem.pbqp", tmp_path / "answer.cert"]
    text = solve(problem).certificate.text
    for expected, certificate in ((0, text), (1, text.replace("cost 2", "cost 1"))):
        for file, content in zip(files, (problem.to_text(), certificate), strict=True):
            file.write_text(content)
        run = subprocess.run(
            [sys.executable, "-I", CHECKER, *files], capture_output=True, text=True, check=False
        )
        assert run.returncode == expected, run.stdout + run.stderr
    assert "torchalgo" not in [word for line in CHECKER.read_text().splitlines()
                               if "import" in line for word in line.split()]  # fmt: skip


@pytest.mark.slow
def test_answers_equal_toulbar2() -> None:
    pytest.importorskip("pytoulbar2")
    from solver_engines import run_torchalgo, run_toulbar2
    from solver_problems import random_parts

    proven = 0
    for seed in range(25):
        parts = random_parts(seed)
        other = run_toulbar2(parts, 5)
        if other["status"] == "feasible":
            continue
        own = run_torchalgo(parts, 60)
        assert (own["status"], own["cost"]) == (other["status"], other["cost"]), seed
        proven += 1
    assert proven > 20
