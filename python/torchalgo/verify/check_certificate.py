#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks the answer to a PBQP without trusting the solver: exact integers, standard library only.

    python check_certificate.py problem.pbqp answer.cert

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
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import add
from pathlib import Path
from typing import Any

INF = math.inf  # forbidden; compares exactly with integers of any size
HEADS = ("pbqp-certificate", "problem", "choice", "cost", "bound")
MAX_CELLS = 50_000_000  # most cells of one table
MAX_WORK = 100_000_000, 500  # most work of a check: this, plus so much per character
# The work of one cell is 1; of 10^9 it takes about 20 to 40 s. The other steps, in cells:
STEP, ENTRY = 100, 20  # a table that is read; a node or value of it
COMMENT = re.compile(r"^[ \t\r]*#.*$", re.MULTILINE)
ODD = re.compile(r"[^a-z0-9:, \t\r\n-]|[a-z0-9-]{65}")  # text that neither format allows
Scope = tuple[int, ...]  # different nodes, ascending; () is the constant
Names = dict[int, list[int]]  # the values left, by node
# A number that stays when costs are added; offsets by node and value; cells.
Table = tuple[int, dict[int, dict[int, int]], list[Any]]


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
    """The work that a check may still do, in cells. Short texts must not cause much work."""

    def __init__(self, characters: int):
        self.left = MAX_WORK[0] + MAX_WORK[1] * characters

    def spend(self, cells: int) -> None:
        self.left -= cells
        require(cells <= MAX_CELLS and self.left >= 0, "too much work: more cells than are allowed")


class State:
    """A reduced problem: the values left of each node, and the tables to sum up."""

    def __init__(self, names: Names, tables: dict[Scope, Table], work: Work):
        self.names, self.tables, self.work = dict(names), dict(tables), work
        self.made = max((number for number, *_ in tables.values()), default=0)
        work.spend(STEP + 3 * (len(names) + len(tables)))

    @cached_property
    def index(self) -> dict[int, dict[int, Scope]]:
        """The scopes that contain a node, by node and by the number of the table."""
        index: dict[int, dict[int, Scope]] = defaultdict(dict)
        for scope, (number, *_) in self.tables.items():
            self.work.spend(ENTRY + ENTRY * len(scope))
            for n in scope:
                index[n][number] = scope
        return index

    def scopes(self, node: int) -> list[Scope]:
        """Returns the scopes of the tables that contain a node."""
        self.work.spend(len(self.index[node]))
        return [*self.index[node].values()]

    def read(self, scope: Scope, wide: Scope, kept: Names = {}) -> list[Any]:  # noqa: B006
        """Returns a table's cells along the nodes of `wide`, the last one fastest.

        `kept` restricts some nodes to these values.
        """
        _, offsets, cells = self.tables[scope]
        values = [kept.get(n, self.names[n]) for n in wide]
        self.work.spend(STEP + ENTRY * len(wide) + math.prod(map(len, values)))
        if not all(values):
            return []
        start, at, steps = 0, [0], [0]
        for n, own in zip(wide, values, strict=True):
            if len(own) == 1:  # a table of many nodes may have few cells
                start += offsets[n][own[0]] if n in offsets else 0
            else:
                at = [i + step for i in at for step in steps]
                steps = [offsets[n][x] for x in own] if n in offsets else [0] * len(own)
        at, size = [i + start for i in at], len(steps)
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
        require(len(scope) == len(order), "a table has one node twice")
        for n in reversed(order):
            self.work.spend(ENTRY + 3 * len(self.names[n]))
            offsets[n] = {x: a * stride for a, x in enumerate(self.names[n])}
            stride *= len(self.names[n])
        require(len(cells) == stride, "a table has more or fewer costs than values left")
        if scope in self.tables:
            number, cells = self.tables[scope][0], list(map(add, self.read(scope, order), cells))
        else:
            number = self.made = self.made + 1
            for n in scope:
                self.index[n][number] = scope
        self.tables[scope] = number, offsets, cells
        if len(order) == 1:
            self.names[order[0]] = [x for x, i in offsets[order[0]].items() if cells[i] < INF]

    def remove(self, scope: Scope) -> Table:
        """Removes a table and returns it."""
        self.work.spend(ENTRY * len(scope))
        number = self.tables[scope][0]
        for n in scope:
            del self.index[n][number]
        return self.tables.pop(scope)

    def join(self, node: int) -> None:
        """Adds up the tables that contain a node, always the two narrowest."""
        queue = [(len(scope), number, scope) for number, scope in self.index[node].items()]
        heapify(queue)
        while len(queue) > 1:
            a, b = heappop(queue)[2], heappop(queue)[2]
            wide = (*sorted({*a, *b} - {node}), node)
            sums = list(map(add, self.read(a, wide), self.read(b, wide)))
            self.remove(a)
            self.remove(b)
            made, scope = self.made, tuple(sorted(wide))
            self.add(wide, sums)
            if self.made > made:  # otherwise it was added to a table that waits in the queue
                heappush(queue, (len(scope), self.made, scope))

    def eliminate(self, *nodes: int) -> None:
        """Replaces the sum of a node's tables by its minimum over the node's values."""
        for node in nodes:
            size = len(self.names[node])
            if size > 1:
                self.join(node)
            for scope in self.scopes(node):
                rest = tuple(n for n in scope if n != node)
                cells = self.read(scope, (*rest, node))
                if size > 1:
                    self.work.spend(ENTRY * (len(cells) // size))
                    cells = [min(cells[i : i + size]) for i in range(0, len(cells), size)]
                self.remove(scope)
                self.add(rest if cells else (), cells or [INF])
            del self.names[node]

    def move(self, u: int, v: int, *costs: int) -> None:
        """Moves costs from the table of u and v to the two nodes.

        `costs` holds a cost per value of u, and then a cost per value of v.
        """
        rows, cols = list(costs[: len(self.names[u])]), list(costs[len(self.names[u]) :])
        self.work.spend(2 * len(rows) * len(cols))
        self.add((u, v), [-a - b for a in rows for b in cols])
        # Only here, as in the solver: later steps name values by what both have left.
        if not any(self.tables[scope := tuple(sorted((u, v)))][-1]):
            self.remove(scope)
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
            own = self.names[node]
            self.work.spend(3 * len(own))
            require(is_sound and a in own and b in own, f"drop: {node} may need {a}")
            self.names[node] = [x for x in own if x != a]

    def exclude(self, goal: Any, items: list[str], left: Names) -> None:
        """Removes values from `left` whose lower bound reaches the goal.

        The bound of a value is the sum of the least cells of all tables with this value.
        """
        lows = {scope: self.least(scope) for scope in self.tables}
        total = sum(lows.values())  # INF: there is no choice, so all values may be removed
        for node, *values in (map(int, item.replace(":", ",").split(",")) for item in items):
            self.work.spend(3 * len(self.names[node]) + 3 * len(left[node]))
            scopes, out = self.scopes(node), set(values)
            for x in out & set(self.names[node]):  # dropped values need no check
                low = total - sum(lows[scope] for scope in scopes) if total < INF else INF
                low += sum(self.least(scope, {node: [x]}) for scope in scopes)
                require(low >= goal, f"exclude: value {x} of node {node} may be needed")
            left[node] = [x for x in left[node] if x not in out]


def prove(
    left: Names, tables: dict[Scope, Table], work: Work, goal: Any, lines: Iterator[list[str]]
) -> None:
    """Follows the steps until they prove that no choice costs less than `goal`.

    Removes values from `left`. Raises: ProofError if the steps do not prove it.
    """
    state = State(left, tables, work)
    if goal == INF:  # a goal above the cost of every choice is enough
        finite = ([c for c in state.read(s, s) if c < INF] for s in tables)
        goal = sum(max(cells, default=0) for cells in finite) + 1
    for word, *rest in lines:
        if word == "close":
            return require(sum(map(state.least, state.tables)) >= goal, "closed below the bound")
        if word == "part":
            cost = INF if rest[0] == "-" else int(rest[0])
            names = {n: state.names.pop(n) for n in map(int, rest[1:])}
            own = {s: state.remove(s) for n in names for s in state.scopes(n)}
            require({n for scope in own for n in scope} <= {*names}, "a table joins two parts")
            prove(names, own, work, cost, lines)
            state.add((), [cost])
        elif word in ("branch", "exclude"):
            if word == "branch":
                node, value = map(int, rest)
                del state  # cases may be nested deeply
                work.spend(3 * (len(left) + len(left[node])))
                prove({**left, node: [value]}, tables, work, goal, lines)
                left[node] = [x for x in left[node] if x != value]
            else:
                state.exclude(goal, rest, left)
            state = State(left, tables, work)
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
def check(problem_text: str, certificate: str, work: Work | None = None) -> dict[str, list[str]]:
    """Returns the claims of a certificate.

    Raises ProofError unless all of them hold for the problem. `work` limits the check; None: by the
    length of both texts.
    """
    problem_lines, lines = words_of(problem_text), words_of(certificate)
    claims = {head: lines.pop(0)[1:] for head in HEADS if lines and lines[0][0] == head}
    require(problem_lines[0] == ["pbqp", "1"], "the problem is no pbqp 1")
    require(claims["pbqp-certificate"] == ["2"], "this is no pbqp-certificate 2")
    text = "".join(" ".join(words) + "\n" for words in problem_lines)
    require(claims["problem"] == [hashlib.sha256(text.encode()).hexdigest()], "another problem")
    work = work or Work(len(problem_text) + len(certificate))
    problem, [bound] = read_problem(problem_lines[1:], work), claims["bound"]
    require(bound == "-" or bound == str(int(bound)), f"the bound {bound} is no plain number")
    if "choice" in claims or "cost" in claims:
        choice = {n: [int(word)] for n, word in enumerate(claims["choice"])}
        require(len(choice) == len(problem.names), "the choice has another number of nodes")
        cost = sum(problem.least(scope, choice) for scope in problem.tables)
        require(cost < INF and claims["cost"] == [str(cost)], f"the choice costs {cost}")
    proof = iter(lines)
    prove(problem.names, problem.tables, work, INF if bound == "-" else int(bound), proof)
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
