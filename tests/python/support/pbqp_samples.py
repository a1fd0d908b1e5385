# SPDX-License-Identifier: BSD-3-Clause
"""Random PBQPs, their marginals by trying, and damaged proofs."""

from __future__ import annotations

import itertools
import random

from torchalgo.pbqp import Problem

Costs = list[list[int | None]]


def random_problem(pick: random.Random, nodes: int, values: int, density: float = 0.6) -> Problem:
    largest, forbidden = pick.choice([3, 100, 10**12]), pick.choice([0, 0, 0.1, 0.3])

    def cost() -> int | None:
        return None if pick.random() < forbidden else pick.randrange(largest + 1)

    costs: Costs = [
        [pick.randrange(largest + 1) for _ in range(pick.randrange(1, values + 1))]
        for _ in range(nodes)
    ]
    edges = [
        (u, v, [[cost() for _ in costs[v]] for _ in costs[u]])
        for u in range(nodes)
        for v in range(nodes)
        if u != v and pick.random() < density
    ]
    return Problem(costs, edges)


def marginals_by_trying(problem: Problem) -> list[list[int | None]]:
    best: list[list[int | None]] = [[None] * len(costs) for costs in problem.node_costs]
    for choice in itertools.product(*(range(len(costs)) for costs in problem.node_costs)):
        cost = problem.cost(choice)
        for row, a in zip(best, choice, strict=True):
            known = row[a]
            if cost is not None and (known is None or cost < known):
                row[a] = cost
    return best


def with_line(text: str, head: str, rest: str) -> str:
    lines = text.splitlines()
    return "\n".join(f"{head} {rest}" if line.split()[0] == head else line for line in lines)


def mutated_proof(pick: random.Random, text: str) -> str | None:
    """One number, word or line of the proof changed; None if there is none."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("bound")) + 1
    if first >= len(lines):
        return None
    at = pick.randrange(first, len(lines))
    words = lines[at].split()
    kind = pick.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[pick.randrange(first, len(lines))])
    elif len(words) > 1:
        word = pick.randrange(1, len(words))
        if words[word].lstrip("-").isdigit():
            words[word] = str(int(words[word]) + pick.choice([-1000, -1, 1, 1000]))
        else:
            words[word] = words[word] + ",0"
        lines[at] = " ".join(words)
    else:
        lines[at] = pick.choice(
            ["close", "exclude", "drop 0 0 1", "exclude 0:0", "branch 0 0", "part 0 0"]
        )
    return "\n".join(lines)
