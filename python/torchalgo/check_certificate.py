#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Check the answer to a PBQP without trusting the solver: exact integers, standard library only.

    python scripts/check_certificate.py problem.pbqp answer.cert

docs/pbqp.md describes both formats and why each step is sound. No code is shared with the solver.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

INF = math.inf  # forbidden; compares exactly with integers of any size
Scope = tuple[int, ...]  # nodes, ascending; () is the constant
Names = dict[int, list[int]]  # of the values left, per node
Table = tuple[dict[int, dict[int, int]], list[Any]]  # per node and value an offset; cells
HEADS = ("problem", "status", "choice", "cost", "bound", "kind")


def require(claim: object, text: str) -> None:
    if not claim:
        raise ValueError(text)


class State:
    """What is left of a problem: the values of each node, and the tables that are summed up."""

    def __init__(self, names: Names, tables: dict[Scope, Table]):
        self.names, self.tables = dict(names), dict(tables)
        self.index: dict[int, set[Scope]] = {n: set() for n in names}  # some may be gone
        for n, key in [(n, scope) for scope in tables for n in scope]:
            self.index[n].add(key)

    def scopes(self, node: int) -> list[Scope]:
        """Of the tables that hold a node."""
        return [scope for scope in self.index[node] if scope in self.tables]

    def read(self, scope: Scope, wide: Scope, kept: Names = {}) -> list[Any]:  # noqa: B006
        """The cells of a table along the nodes of `wide`, the last fastest; of some only `kept`."""
        (offsets, cells), at, steps = self.tables[scope], [0], [0]
        for n in wide:
            values = kept.get(n, self.names[n])
            at = [i + step for i in at for step in steps]
            steps = [offsets[n][x] for x in values] if n in offsets else [0] * len(values)
        return [cells[i + step] for i in at for step in steps]

    def rows(self, scope: Scope, node: int) -> dict[int, list[Any]]:
        """The cells of a table per value of a node."""
        cells = self.read(scope, (node, *(n for n in scope if n != node)))
        size = len(cells) // max(len(self.names[node]), 1)
        return {x: cells[i * size : (i + 1) * size] for i, x in enumerate(self.names[node])}

    def add(self, order: Scope, cells: list[Any]) -> None:
        scope, offsets, stride = tuple(sorted(order)), {}, 1
        if scope in self.tables:
            cells = [a + b for a, b in zip(self.read(scope, order), cells, strict=True)]
        for n in reversed(order):
            offsets[n] = {x: a * stride for a, x in enumerate(self.names[n])}
            stride *= len(self.names[n])
            self.index[n].add(scope)
        require(len(cells) == stride, f"{len(cells)} costs for the {stride} that {scope} has left")
        self.tables[scope] = offsets, cells

    def trim(self, scopes: Iterable[Scope]) -> None:
        """Take out the values that are forbidden."""
        for n in {n for scope in scopes for n in scope}:
            costs = zip(self.names[n], self.read((n,), (n,)), strict=True)
            self.names[n] = [x for x, cost in costs if cost < INF]

    def eliminate(self, *nodes: int) -> None:
        for node in nodes:
            scopes = self.scopes(node)
            self.trim(scopes)
            size = len(self.names[node])
            for group in [[s] for s in scopes] if size == 1 else [scopes]:  # one value: singly
                wide = tuple(sorted({n for scope in group for n in scope} - {node}))
                tables = (self.read(scope, (*wide, node)) for scope in group)
                sums = list(map(sum, zip(*tables, strict=True)))
                least = [min(sums[i : i + size]) for i in range(0, len(sums), size or 1)]
                self.add(wide if size else (), least if size else [INF])
            for key in scopes:
                del self.tables[key]
            del self.names[node]

    def move(self, u: int, v: int, *costs: int) -> None:
        """Costs per value of u, then of v, from their table to the nodes."""
        self.trim([(u, v)])
        rows, cols = costs[: len(self.names[u])], costs[len(self.names[u]) :]
        self.add((u,), list(rows))
        self.add((v,), list(cols))
        self.add((u, v), [-a - b for a in rows for b in cols])
        if not any(self.read((u, v), (u, v))):
            del self.tables[u, v]

    def drop(self, node: int, *values: int) -> None:
        """Per pair a, b: a is superfluous if b, which stays, is never dearer, come what may."""
        self.trim(self.scopes(node))
        tables = [self.rows(scope, node) for scope in self.scopes(node)]
        for a, b in zip(values[::2], values[1::2], strict=True):
            pairs = (zip(table[b], table[a], strict=True) for table in tables)
            loss = [max((c - d for c, d in pair if d < INF), default=-INF) for pair in pairs]
            is_sound = a != b and {a, b} <= set(self.names[node])
            is_sound &= -INF in loss or sum(loss) <= 0
            require(is_sound, f"drop: value {b} of node {node} may be dearer than {a}")
            self.names[node] = [x for x in self.names[node] if x != a]

    def bounds(self) -> dict[int, list[Any]]:
        """Per node and value: no choice with it costs less than all tables' minima given it."""
        total: Any = 0
        gaps: dict[int, list[Any]] = {n: [0] * len(values) for n, values in self.names.items()}
        for scope in self.tables:
            least = min(self.read(scope, scope), default=INF)
            total += least
            for n in scope if least < INF else ():
                lows = map(min, self.rows(scope, n).values())
                gaps[n] = [gap + low - least for gap, low in zip(gaps[n], lows, strict=True)]
        return {-1: [total], **{n: [total + gap for gap in gaps[n]] for n in gaps}}


def start(state: State, nodes: Iterable[int], bound: str) -> tuple[Any, ...]:
    """A case: no choice for some nodes of a state costs less. "-": than more than any can cost."""
    names = {n: state.names[n] for n in nodes}
    scopes = {s for n in names for s in state.scopes(n) if all(m in names for m in s)}
    case = State(names, {s: state.tables[s] for s in scopes})
    case.add((), [0])
    finite = ([c for c in case.read(s, s) if c < INF] for s in case.tables)
    goal = sum(max(cells, default=0) for cells in finite) + 1 if bound == "-" else int(bound)
    return case.tables, names, State(names, case.tables), goal


def check_proof(problem: State, bound: str, lines: list[list[str]]) -> None:
    """Follow the lines until every case has reached its goal."""
    todo = [start(problem, problem.names, bound)]
    for word, *rest in lines:
        tables, allowed, state, goal = todo.pop()  # the first tables, the values not excluded
        cases = [(tables, allowed, state, goal)]
        pairs = (item.split(":") for item in rest if ":" in item)
        lists = [(head, [int(x) for x in tail.split(",")]) for head, tail in pairs]
        if word == "close":
            least = max(min(row, default=INF) for row in state.bounds().values())
            require(least >= goal, "a case is closed below its bound")
            cases = []
        elif word == "branch":
            (node, value), cases = map(int, rest), []
            for is_with in (False, True):
                left = [x for x in allowed[node] if (x == value) == is_with]
                names = {**state.names, node: [x for x in state.names[node] if x in left]}
                cases.append((tables, {**allowed, node: left}, State(names, state.tables), goal))
        elif word == "split":
            state.trim(state.tables)
            lows = [INF if low == "-" else int(low) for low, _ in lists]
            require(sum(state.read((), ()) + lows) >= goal, "the parts do not add up to the bound")
            cases = [start(state, nodes, low) for low, nodes in reversed(lists)]
            is_whole = sorted(n for _, nodes in lists for n in nodes) == sorted(state.names)
            is_whole &= sum(len(case[0]) - 1 for case in cases) == len(state.tables) - 1
            require(is_whole, "split: a table joins two parts, or a node is not in one")
        elif word == "exclude":
            found = state.bounds()
            for node, values in ((int(head), values) for head, values in lists):
                costs = dict(zip(state.names[node], found[node], strict=True))
                require(all(costs[x] >= goal for x in values), f"exclude: node {node} needs them")
                allowed[node] = [x for x in allowed[node] if x not in values]
        elif word == "restart":
            cases = [(tables, allowed, State(allowed, tables), goal)]
        else:
            require(word in ("eliminate", "drop", "move"), f"unknown step {word}")
            getattr(state, word)(*map(int, rest))
        todo += cases
    require(not todo, "the proof ends early")


def words_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]


def read_problem(lines: list[list[str]]) -> State:
    state = State({}, {})
    for word, *rest in lines:
        order: Scope = (len(state.names),) if word == "node" else (int(rest[0]), int(rest[1]))
        costs = [INF if cost == "-" else int(cost) for cost in rest[0 if word == "node" else 2 :]]
        if word == "node":
            state.names[order[0]], state.index[order[0]] = list(range(len(costs))), set()
        is_edge = word == "edge" and order[0] != order[1]
        require(is_edge or word == "node", f"no edge or node: {word}")
        require(min(costs, default=0) >= 0, "a cost is negative")
        state.add(order, costs)
    return state


def check(problem_text: str, certificate: str) -> dict[str, list[str]]:
    """Raise an exception unless every claim of the certificate holds of the problem; the claims."""
    problem_lines, lines = map(words_of, (problem_text, certificate))
    require(problem_lines[0] == ["pbqp", "1"], "the problem is no pbqp 1")
    require(lines[0] == ["pbqp-certificate", "1"] and lines[-1] == ["end"], "a part is missing")
    claims = {word: rest for word, *rest in lines[1:-1] if word in HEADS}
    text = "".join(" ".join(words) + "\n" for words in problem_lines)
    require(claims["problem"] == [hashlib.sha256(text.encode()).hexdigest()], "another problem")
    problem, [bound], [status] = read_problem(problem_lines[1:]), claims["bound"], claims["status"]
    if "choice" in claims:
        names = {n: [int(word)] for n, word in enumerate(claims["choice"])}
        require(len(names) == len(problem.names), "the choice has another number of nodes")
        cost = sum(problem.read(scope, scope, names)[0] for scope in problem.tables)
        require(cost < INF and claims["cost"] == [str(cost)], f"the choice costs {cost}")
        require(status == ("optimal" if str(cost) == bound else "feasible"), "a wrong status")
    else:
        require(status == ("infeasible" if bound == "-" else "unknown"), "a wrong status")
    check_proof(problem, bound, [words for words in lines[1:-1] if words[0] not in HEADS])
    return claims


if __name__ == "__main__":
    try:
        check(*(Path(path).read_text() for path in sys.argv[1:3]))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        sys.exit(f"rejected: {error}")
    print("every claim holds")
