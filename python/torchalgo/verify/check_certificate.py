#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks the answer to a PBQP without trusting the solver: exact integers, standard library only.

    python scripts/check_certificate.py problem.pbqp answer.cert

docs/pbqp.md describes both formats and why each step is sound. This file shares no code with the
solver. For any texts, `check` returns proven claims or raises ProofError.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import add
from pathlib import Path
from typing import Any

INF = math.inf  # forbidden; compares exactly with integers of any size
HEADS = ("pbqp-certificate", "problem", "choice", "cost", "bound")
MAX_CELLS = 50_000_000  # most cells of one table
MAX_WORK = 100_000_000, 500  # most cells that a check may read: this, plus so many per character
COMMENT = re.compile(r"^[ \t\r]*#.*$", re.MULTILINE)
ODD = re.compile(r"[^a-z0-9:, \t\r\n-]|[a-z0-9-]{65}")  # text that neither format allows
Scope = tuple[int, ...]  # different nodes, ascending; () is the constant
Names = dict[int, list[int]]  # the values left, by node
Table = tuple[dict[int, dict[int, int]], list[Any]]  # offsets by node and value; cells


class ProofError(ValueError):
    """The error for a false claim, a wrong proof, or a check that takes too much work."""


def require(claim: object, text: str) -> None:
    if not claim:
        raise ProofError(text[:500])


@contextmanager
def as_proof_errors() -> Iterator[None]:
    """Converts all exceptions of the block to ProofError: a malformed text proves nothing."""
    try:
        yield
    except ProofError:
        raise
    except Exception as error:
        raise ProofError(f"malformed, or too large: {error!r:.300}") from error


class Work:
    """The number of cells that a check may still read. Short texts must not cause much work."""

    def __init__(self, characters: int):
        self.left = MAX_WORK[0] + MAX_WORK[1] * characters

    def spend(self, cells: int) -> None:
        self.left -= cells
        if cells > MAX_CELLS or self.left < 0:
            raise ProofError(f"too much work: {cells} cells at once, {self.left} left in all")


class State:
    """A reduced problem: the values left of each node, and the tables to sum up."""

    def __init__(self, names: Names, tables: dict[Scope, Table], work: Work):
        self.names, self.tables, self.work = dict(names), dict(tables), work
        self.index: dict[int, set[Scope]] = defaultdict(set)  # scopes by node; some may be gone
        work.spend(len(names) + len(tables))
        for key in tables:
            for n in key:
                self.index[n].add(key)

    def scopes(self, node: int) -> list[Scope]:
        """Returns the scopes of the tables that contain a node."""
        self.work.spend(len(self.index[node]))
        return [scope for scope in self.index[node] if scope in self.tables]

    def read(self, scope: Scope, wide: Scope, kept: Names = {}) -> list[Any]:  # noqa: B006
        """Returns a table's cells along the nodes of `wide`, the last one fastest.

        `kept` restricts some nodes to these values.
        """
        (offsets, cells), at, steps = self.tables[scope], [0], [0]
        values = [kept.get(n, self.names[n]) for n in wide]
        self.work.spend(10 + math.prod(map(len, values)))
        for n, own in zip(wide, values if all(values) else [[]] * len(wide), strict=True):
            at = [i + step for i in at for step in steps]
            steps = [offsets[n][x] for x in own] if n in offsets else [0] * len(own)
        size = len(steps)
        if steps == list(range(size)):  # the two common cases, faster than the general one
            return list(chain.from_iterable(cells[i : i + size] for i in at))
        if not any(steps):
            return list(chain.from_iterable([cells[i]] * size for i in at))
        return [cells[i + step] for i in at for step in steps]

    def least(self, scope: Scope, kept: Names = {}) -> Any:  # noqa: B006
        return min(self.read(scope, scope, kept), default=INF)

    def add(self, order: Scope, cells: list[Any]) -> None:
        """Adds a table to the one on the same nodes.

        A table of one node also removes the values that it forbids.
        """
        scope, offsets, stride = tuple(sorted(set(order))), {}, 1
        require(len(scope) == len(order), f"a table of nodes {order}, two of which are the same")
        for n in reversed(order):
            offsets[n] = {x: a * stride for a, x in enumerate(self.names[n])}
            stride *= len(self.names[n])
            self.index[n].add(scope)
        require(len(cells) == stride, f"{len(cells)} costs for the {stride} that {scope} has left")
        if scope in self.tables:
            cells = list(map(add, self.read(scope, order), cells))
        self.tables[scope] = offsets, cells
        if len(order) == 1:
            self.names[order[0]] = [x for x, i in offsets[order[0]].items() if cells[i] < INF]

    def eliminate(self, *nodes: int) -> None:
        """Replaces the sum of a node's tables by its minimum over the node's values."""
        for node in nodes:
            size, scopes = len(self.names[node]), self.scopes(node)
            while size > 1 and len(scopes) > 1:  # joins the two narrowest tables
                a, b = sorted(scopes, key=len)[:2]
                wide = (*sorted({*a, *b} - {node}), node)
                sums = list(map(add, self.read(a, wide), self.read(b, wide)))
                del self.tables[a], self.tables[b]
                self.add(wide, sums)
                scopes = self.scopes(node)
            for scope in scopes:
                rest = tuple(n for n in scope if n != node)
                cells = self.read(scope, (*rest, node))
                least = [min(cells[i : i + size]) for i in range(0, len(cells), size or 1)]
                self.add(rest if cells else (), least or [INF])
                del self.tables[scope]
            del self.names[node]

    def move(self, u: int, v: int, *costs: int) -> None:
        """Moves costs from the table of u and v to the two nodes.

        `costs` holds a cost per value of u, and then a cost per value of v.
        """
        rows, cols = list(costs[: len(self.names[u])]), list(costs[len(self.names[u]) :])
        self.work.spend(len(rows) * len(cols))
        self.add((u, v), [-a - b for a in rows for b in cols])
        # Only here, as in the solver: later steps name values by what both have left.
        if not any(self.tables[scope := tuple(sorted((u, v)))][1]):
            del self.tables[scope]
        self.add((u,), rows)
        self.add((v,), cols)

    def drop(self, node: int, *values: int) -> None:
        """Removes the value a for each pair a, b.

        Raises ProofError unless b stays and never costs more.
        """
        for a, b in zip(values[::2], values[1::2], strict=True):
            loss = []  # by table: how much more b can cost than a, at most
            for scope in self.scopes(node):
                rows = (self.read(scope, scope, {node: [x]}) for x in (b, a))
                pairs = zip(*rows, strict=True)
                loss.append(max((c - d for c, d in pairs if d < INF), default=-INF))
            is_sound = a != b and (-INF in loss or sum(loss) <= 0)
            require(is_sound and {a, b} <= {*self.names[node]}, f"drop: {node} may need {a}")
            self.names[node] = [x for x in self.names[node] if x != a]
            self.work.spend(len(self.names[node]))

    def exclude(self, goal: Any, items: list[str], left: Names) -> None:
        """Removes values from `left` whose lower bound reaches the goal.

        The bound of a value is the sum of the least cells of all tables with this value.
        """
        lows = {scope: self.least(scope) for scope in self.tables}
        total = sum(lows.values())  # INF: there is no choice, so all values may be removed
        for node, *values in (map(int, item.replace(":", ",").split(",")) for item in items):
            scopes, out = self.scopes(node), set(values)
            for x in out & set(self.names[node]):  # dropped values need no check
                low = total - sum(lows[scope] for scope in scopes) if total < INF else INF
                low += sum(self.least(scope, {node: [x]}) for scope in scopes)
                require(low >= goal, f"exclude: value {x} of node {node} may be needed")
            self.work.spend(len(left[node]))
            left[node] = [x for x in left[node] if x not in out]


def prove(base: State, goal: Any, lines: Iterator[list[str]]) -> None:
    """Follows the steps until they prove that no choice of `base` costs less than `goal`.

    Raises: ProofError if they do not.
    """
    if goal == INF:  # a goal above the cost of every choice is enough
        finite = ([c for c in base.read(s, s) if c < INF] for s in base.tables)
        goal = sum(max(cells, default=0) for cells in finite) + 1
    state, left = State(base.names, base.tables, base.work), dict(base.names)
    for word, *rest in lines:
        if word == "close":
            return require(sum(map(state.least, state.tables)) >= goal, "closed below the bound")
        if word == "part":
            cost = INF if rest[0] == "-" else int(rest[0])
            names = {n: state.names.pop(n) for n in map(int, rest[1:])}
            tables = {s: state.tables.pop(s) for n in names for s in state.scopes(n)}
            require({n for scope in tables for n in scope} <= {*names}, "a table joins two parts")
            prove(State(names, tables, base.work), cost, lines)
            state.add((), [cost])
        elif word in ("branch", "exclude"):
            if word == "branch":
                node, value = map(int, rest)
                prove(State({**left, node: [value]}, base.tables, base.work), goal, lines)
                left[node] = [x for x in left[node] if x != value]
            else:
                state.exclude(goal, rest, left)
            state = State(left, base.tables, base.work)
        else:
            require(word in ("eliminate", "move", "drop"), f"unknown step {word}")
            getattr(state, word)(*map(int, rest))
    raise ProofError("the proof ends early")


def words_of(text: str) -> list[list[str]]:
    """Splits each line into words, without blank lines and comments."""
    text = COMMENT.sub("", text)
    odd = ODD.search(text)
    require(not odd, f"{odd} is too long a word, or not in the format's alphabet")
    return [line.split() for line in text.split("\n") if line.strip()]


def read_problem(lines: list[list[str]], work: Work) -> State:
    state, nodes = State({}, {}, work), list[list[Any]]()
    for word, *rest in lines:
        costs = [INF if cost == "-" else int(cost) for cost in rest[0 if word == "node" else 2 :]]
        require(min(costs, default=0) >= 0, "a cost is negative")
        if word == "node":
            state.names[len(nodes)] = list(range(len(costs)))
            nodes.append(costs)
        else:
            require(word == "edge", f"{word} is neither node nor edge")
            state.add((int(rest[0]), int(rest[1])), costs)
    for n, costs in enumerate(nodes):  # last, since edges have entries for forbidden values too
        state.add((n,), costs)
    return state


@as_proof_errors()
def check(problem_text: str, certificate: str) -> dict[str, list[str]]:
    """Returns the claims of a certificate.

    Raises ProofError unless all of them hold for the problem.
    """
    problem_lines, lines = words_of(problem_text), words_of(certificate)
    claims = {head: lines.pop(0)[1:] for head in HEADS if lines and lines[0][0] == head}
    require(problem_lines[0] == ["pbqp", "1"], "the problem is no pbqp 1")
    require(claims["pbqp-certificate"] == ["2"], "this is no pbqp-certificate 2")
    text = "".join(" ".join(words) + "\n" for words in problem_lines)
    require(claims["problem"] == [hashlib.sha256(text.encode()).hexdigest()], "another problem")
    work = Work(len(problem_text) + len(certificate))
    problem, [bound] = read_problem(problem_lines[1:], work), claims["bound"]
    require(bound == "-" or bound == str(int(bound)), f"the bound {bound} is no plain number")
    if "choice" in claims or "cost" in claims:
        choice = {n: [int(word)] for n, word in enumerate(claims["choice"])}
        require(len(choice) == len(problem.names), "the choice has another number of nodes")
        cost = sum(problem.least(scope, choice) for scope in problem.tables)
        require(cost < INF and claims["cost"] == [str(cost)], f"the choice costs {cost}")
    proof = iter(lines)
    prove(problem, INF if bound == "-" else int(bound), proof)
    require(next(proof, None) is None, "the proof goes on after its end")
    return claims


def main(check: Callable[..., dict[str, Any]]) -> None:
    """Checks the files named on the command line, and prints the result."""
    try:
        found = check(*(Path(path).read_text(encoding="utf-8") for path in sys.argv[1:]))
    except (OSError, UnicodeError, ProofError) as error:
        sys.exit(f"rejected: {error}")
    print(*map("{0[0]}: {0[1]}".format, found.items()), "every claim holds", sep="\n")


if __name__ == "__main__":
    main(check)
