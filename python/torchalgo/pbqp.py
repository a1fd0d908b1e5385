# SPDX-License-Identifier: BSD-3-Clause
"""Partitioned Boolean quadratic problems: choose one alternative per node at the least cost.

    problem = Problem([[3, 0], [1, 2]], [(0, 1, [[0, 5], [None, 0]])])
    solution = solve(problem)       # .choice [1, 1], .cost 2, .status "optimal"
    check(problem, solution)        # by code that shares nothing with the solver

Costs are integers >= 0. None is a forbidden choice. docs/pbqp.md says what is claimed and how it is
proven.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torchalgo import _C
from torchalgo._C import Error
from torchalgo.verify import check_certificate

_FORBIDDEN = 2**63 - 1
_MOST_CELLS = 2**40  # more would not fit into any memory


def _whole(cost: Any, where: str) -> int:
    """Returns a cost as the solver's integer.

    Raises: torchalgo.Error if it is no integer, or exceeds 63 bits.
    """
    if cost is None:
        return _FORBIDDEN
    try:
        is_whole = cost == int(cost)
    except (TypeError, ValueError, OverflowError):
        is_whole = False
    if not is_whole:
        raise Error(
            f"TA8001 pbqp: {where} has the cost {cost!r}, expected an integer, or None for a"
            " forbidden choice; scale and round floats"
        )
    if not -_FORBIDDEN <= cost < _FORBIDDEN:
        raise Error(
            f"TA8001 pbqp: {where} has the cost {cost!r}, which exceeds 63 bits: scale the costs"
            " down"
        )
    return int(cost)


def _costs(row: Any, where: str) -> array[int]:
    row = row.tolist() if hasattr(row, "tolist") else row  # None where an array is masked
    if not isinstance(row, Iterable) or isinstance(row, (str, bytes, bytearray)):
        raise Error(f"TA8001 pbqp: {where} is {row!r}, expected a list of costs")
    row = list(row)  # an iterator can be read only once
    try:
        costs = array("q", row)
    except (TypeError, OverflowError):
        return array("q", [_whole(cost, where) for cost in row])
    if _FORBIDDEN in costs:
        _whole(_FORBIDDEN, where)
    return costs


def _matrix(rows: Any, height: int, width: int, where: str) -> array[int]:
    rows = rows.tolist() if hasattr(rows, "tolist") else rows
    if not isinstance(rows, Sequence) or len(rows) != height:
        got = f"{len(rows)} rows" if isinstance(rows, Sequence) else repr(rows)
        raise Error(
            f"TA8001 pbqp: {where} has {got}, expected {height}: one for each alternative of its"
            " first node"
        )
    cells = array("q")
    for a, row in enumerate(rows):
        costs = _costs(row, f"{where}, row {a},")
        if len(costs) != width:
            raise Error(f"TA8001 pbqp: {where}, row {a}, has {len(costs)} costs, expected {width}")
        cells += costs
    return cells


class Problem:
    """A PBQP: nodes with alternatives, and edges with costs for pairs of alternatives.

    Args:
        node_costs: `node_costs[u][i]` is the cost of alternative i of node u. None forbids it.
        edges: `(u, v, matrix)`. `matrix[i][j]` is the cost if u takes i and v takes j. Several
            edges between two nodes add up. Rows may be lists or numpy arrays, masked where
            forbidden.
    Raises: torchalgo.Error for a negative, fractional or NaN cost, or if the largest sum of costs
        exceeds 63 bits. The same error is raised for a matrix that does not fit its nodes, and for
        an edge from a node to itself. A node without alternatives is no error: it makes the problem
        infeasible.

    Example: Problem([[3, 0], [1, 2]], [(0, 1, [[0, 5], [None, 0]])])
    """

    def __init__(self, node_costs: Any, edges: Iterable[tuple[int, int, Any]] = ()) -> None:
        nodes = [_costs(row, f"node {u}") for u, row in enumerate(node_costs)]
        checked = []
        for e, edge in enumerate(edges):
            try:
                u, v, matrix = edge
                u, v = u.__index__(), v.__index__()
            except (AttributeError, TypeError, ValueError):
                raise Error(
                    f"TA8001 pbqp: edge {e} is {edge!r}, expected (node, node, matrix)"
                ) from None
            where = f"edge {e} (nodes {u} and {v})"
            if not (0 <= u < len(nodes) and 0 <= v < len(nodes)):
                raise Error(
                    f"TA8001 pbqp: {where} connects a node that does not exist; expected two of the"
                    f" {len(nodes)} nodes"
                )
            checked.append((u, v, _matrix(matrix, len(nodes[u]), len(nodes[v]), where)))
        self._problem = _C.PbqpProblem(nodes, checked)

    @classmethod
    def from_text(cls, text: str) -> Problem:
        """Reads the text of `to_text`. Raises torchalgo.Error with the line of a mistake."""
        problem = cls([])
        problem._problem = _C.PbqpProblem.parse(text)
        return problem

    def to_text(self) -> str:
        """Returns the problem as lines of words. Certificates contain the hash of this text."""
        return self._problem.to_text()

    @property
    def node_costs(self) -> list[list[int | None]]:
        return self._problem.node_costs()

    @property
    def edges(self) -> list[tuple[int, int, list[list[int | None]]]]:
        sizes = [len(costs) for costs in self.node_costs]
        return [
            (u, v, [cells[i * sizes[v] : (i + 1) * sizes[v]] for i in range(sizes[u])])
            for u, v, cells in self._problem.edges()
        ]

    def cost(self, choice: Sequence[int]) -> int | None:
        """Returns the cost of a choice; None if it contains something forbidden."""
        return self._problem.evaluate(list(choice))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.to_text() == other.to_text()

    def __hash__(self) -> int:
        return hash(self.to_text())

    def __repr__(self) -> str:
        nodes, edges = len(self._problem.node_costs()), len(self._problem.edges())
        return f"<pbqp.Problem of {nodes} nodes and {edges} edges>"


@dataclass(frozen=True)
class Certificate:
    """A proof of the bound that anyone can check. `text` is the content of a file.

    Example: Path("answer.cert").write_text(solution.certificate.text)
    """

    kind: str  # "elimination", "messages", "branches"; "none" if it is too large
    text: str


@dataclass(frozen=True)
class Marginal:
    """The least cost of the problem with one alternative. `cost` is None if no choice contains it.

    Example: solution.marginals[0][1].cost  # with alternative 1 of node 0
    """

    cost: int | None
    is_exact: bool  # if False, the cost is a lower bound


@dataclass(frozen=True)
class RunnerUp:
    """The best other alternative of a node, and how much more the problem costs with it.

    Example: solution.runner_ups[0].regret
    """

    alternative: int
    regret: int
    is_exact: bool  # if False, the regret is a lower bound


@dataclass(frozen=True)
class Event:
    """The bound and the cost that the solver knew after `seconds`.

    Example: print(*solve(problem, transcript=True).transcript)
    """

    seconds: float
    text: str
    lower_bound: int | None  # None if proven infeasible
    cost: int | None  # cost of the best choice so far; None if there is none

    def __str__(self) -> str:
        bound = "infeasible" if self.lower_bound is None else f"bound {self.lower_bound}"
        best = "" if self.cost is None else f", best {self.cost}"
        return f"{self.seconds:9.6f} s  {self.text}: {bound}{best}"


@dataclass(frozen=True)
class Solution:
    """An answer of `solve`, with its proof.

    Example: solve(problem).choice
    """

    status: str  # "optimal", "feasible" (with a gap), "infeasible" (proven), "unknown"
    choice: list[int] | None
    cost: int | None
    lower_bound: int | None  # no choice costs less; None if there is no choice
    method: str
    marginals: list[list[Marginal]]  # by node and alternative; empty with marginals=False
    fixed: list[bool]  # by node: True if all other alternatives are proven to cost more
    certificate: Certificate
    transcript: list[Event]  # empty with transcript=False

    @property
    def runner_ups(self) -> list[RunnerUp | None]:
        """Returns the best other alternative of each node; None if no choice has another one.

        Returns None for all nodes if there are no marginals, and an empty list without a choice.
        """
        return [self._runner_up(node) for node in range(len(self.choice or []))]

    def _runner_up(self, node: int) -> RunnerUp | None:
        if self.choice is None or self.cost is None or not self.marginals:
            return None
        others = [
            (m.cost, not m.is_exact, a)
            for a, m in enumerate(self.marginals[node])
            if a != self.choice[node] and m.cost is not None
        ]
        if not others:
            return None
        cost, is_bound, alternative = min(others)
        is_exact = not is_bound and self.status == "optimal"
        return RunnerUp(alternative, cost - self.cost, is_exact)


def solve(
    problem: Problem,
    time_limit_s: float | None = None,
    *,
    marginals: bool = True,
    transcript: bool = False,
    table_cap: int = 30_000_000,
    proof_cap: int = 8_000_000,
) -> Solution:
    """Picks one alternative per node so that the sum of all costs is least, and proves it.

    Args:
        problem: not changed.
        time_limit_s: seconds after which the best choice and bound so far are returned; None is no
            limit. The solver reads every cost once in any case, so that there always is a bound.
        marginals: whether to compute the least cost with each alternative; about three times the
            work.
        transcript: whether to record what was done and known when.
        table_cap: most cells that one elimination may read; above it, the solver uses bounds and
            branching.
        proof_cap: most numbers in a certificate; a larger one is left out.
    Returns: the solution. Its status is "feasible" or "unknown" if the search ended early.
    Raises: torchalgo.Error if `time_limit_s` is NaN, or if a limit is negative.

    Example: solution = torchalgo.pbqp.solve(problem, time_limit_s=10)
    """
    limit = math.inf if time_limit_s is None else float(time_limit_s)
    if not limit >= 0:
        raise Error(
            f"TA8002 pbqp: time_limit_s={time_limit_s!r}, expected seconds of 0 or more, or None"
        )
    for name, cap in (("table_cap", table_cap), ("proof_cap", proof_cap)):
        if cap < 0:
            raise Error(f"TA8002 pbqp: {name}={cap!r}, expected 0 or more")
    fields: dict[str, Any] = problem._problem.solve(
        table_cap=min(table_cap, _MOST_CELLS),
        time_limit_s=limit,
        with_marginals=marginals,
        with_transcript=transcript,
        proof_cap=min(proof_cap, _MOST_CELLS),
    )
    fields["certificate"] = Certificate(fields.pop("kind"), fields["certificate"])
    fields["marginals"] = [[Marginal(*m) for m in node] for node in fields["marginals"]]
    fields["transcript"] = [Event(*event) for event in fields["transcript"]]
    return Solution(**fields)


def check(problem: Problem, solution: Solution) -> None:
    """Checks choice, cost, bound and status against the certificate, without the solver's code.

    Returns None if all of them hold.

    Raises: torchalgo.Error if a claim is false, or not proven because there is no certificate.

    Example: torchalgo.pbqp.check(problem, torchalgo.pbqp.solve(problem))
    """
    if solution.certificate.kind == "none":
        raise Error(
            "TA8003 pbqp: there is no certificate, because it would have exceeded proof_cap: raise"
            " proof_cap"
        )
    try:
        claims = check_certificate.check(problem.to_text(), solution.certificate.text)
    except check_certificate.ProofError as error:
        raise Error(f"TA8004 pbqp: the certificate does not hold: {error}") from error
    choice = None if solution.choice is None else [str(a) for a in solution.choice]
    cost = None if solution.cost is None else [str(solution.cost)]
    bound = ["-" if solution.lower_bound is None else str(solution.lower_bound)]
    for name, said in (("choice", choice), ("cost", cost), ("bound", bound)):
        if claims.get(name) != said:
            raise Error(
                f"TA8004 pbqp: the solution and its certificate differ in {name}: solve the problem"
                " again"
            )
    ends = ("infeasible", "unknown") if choice is None else ("optimal", "feasible")
    is_met = bound == (["-"] if choice is None else cost)
    if solution.status != ends[0 if is_met else 1]:
        raise Error(
            f"TA8004 pbqp: the solution has the status {solution.status!r}, its certificate another"
            " one: solve the problem again"
        )
