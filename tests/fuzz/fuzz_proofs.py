# SPDX-License-Identifier: BSD-3-Clause
"""Attacks the checkers of certificates and plans with proofs that are made at random.

    python tests/fuzz/fuzz_proofs.py certificates --cases 1000000 --seed 0

certificates: random problems (some entries and alternatives forbidden) and random proofs, most of
them unsound. Trying every choice tells which bound is true: the checker may accept no other one. A
proof by elimination of a true bound must be accepted.
solver: what the solver proves must be accepted, and is compared with trying every choice; a proof
of a higher bound, changed at random, must be refused.
plans: plans with proofs, changed at random in structure and values. An accepted one must have the
cost that it says, and a bound that no plan is below. Nothing but torchalgo.Error may be raised.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from campaign import FindingError, main

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from support.pbqp_samples import mutated_proof, with_line
from support.plan_samples import GraphText, Sample, changes_cost, true_cost, us
from torchalgo import Error, check_plan
from torchalgo.pbqp import Problem, solve
from torchalgo.verify import check_certificate
from torchalgo.verify.check_certificate import ProofError
from torchalgo.verify.check_claims import Graph, options_of

INF = math.inf
Costs = list[list[float]]
Edges = list[tuple[int, int, list[float]]]
PROOFS = 30  # per problem
MUTANTS = 60  # per plan


# ---- certificates --------------------------------------------------------------------------------


class Puzzle:
    """A small problem as text, and its optimum by trying every choice."""

    def __init__(self, pick: random.Random):
        self.pick, self.forbidden = pick, pick.choice([0, 0.1, 0.1, 0.3])
        self.sizes = [pick.randint(1, 3) for _ in range(pick.randint(1, 4))]
        self.nodes: Costs = [[self.cost() for _ in range(size)] for size in self.sizes]
        self.edges: Edges = []
        for u, v in itertools.permutations(range(len(self.sizes)), 2):
            if pick.random() < 0.45:
                cells = [self.cost() for _ in range(self.sizes[u] * self.sizes[v])]
                self.edges.append((u, v, cells))
        lines = [("node", *costs) for costs in self.nodes]
        lines += [("edge", u, v, *cells) for u, v, cells in self.edges]
        words = (" ".join("-" if w == INF else str(w) for w in line) for line in lines)
        self.text = "pbqp 1\n" + "".join(line + "\n" for line in words)
        self.hash = hashlib.sha256(self.text.encode()).hexdigest()
        choices = itertools.product(*map(range, self.sizes))
        self.optimum = min(map(self.cost_of, choices))

    def cost(self) -> float:
        return INF if self.pick.random() < self.forbidden else self.pick.choice([0, 0, 1, 2, 5, 9])

    def cost_of(self, choice: tuple[int, ...]) -> float:
        total = sum(costs[a] for costs, a in zip(self.nodes, choice, strict=True))
        return total + sum(m[choice[u] * self.sizes[v] + choice[v]] for u, v, m in self.edges)

    def certificate(self, bound: float, body: list[str]) -> str:
        said = "-" if bound == INF else str(bound)
        head = ["pbqp-certificate 2", f"problem {self.hash}", f"bound {said}"]
        return "\n".join([*head, *body]) + "\n"


class RandomProof:
    """Steps in the right grammar, most of them unsound."""

    def __init__(self, puzzle: Puzzle):
        self.pick, self.sizes = puzzle.pick, puzzle.sizes
        self.body = self.steps(0)
        if self.pick.random() < 0.6:
            self.body.append("eliminate " + self.some(len(self.sizes)))
        self.body.append("close")

    def node(self) -> int:
        return self.pick.randrange(len(self.sizes))

    def some(self, count: int) -> str:
        """Different nodes, or now and then some that repeat or do not exist."""
        nodes = self.pick.sample(range(len(self.sizes)), count)
        if self.pick.random() < 0.1:
            nodes.append(self.pick.randrange(len(self.sizes) + 1))
        return " ".join(map(str, nodes))

    def steps(self, depth: int) -> list[str]:
        kinds: list[Callable[[int], list[str]]] = [
            self.move, self.move, self.eliminate, self.eliminate, self.drop, self.drop,
            self.exclude, self.exclude, self.branch, self.part,
        ]  # fmt: skip
        steps = []
        for _ in range(self.pick.randint(0, 3 - depth)):
            steps += self.pick.choice(kinds)(depth)
        return steps

    def move(self, depth: int) -> list[str]:
        u, v = self.node(), self.node()
        count = max(self.sizes[u] + self.sizes[v] - self.pick.choice([0, 0, 0, 1, 2, -1]), 0)
        large = self.pick.choice([1, 9, 9, 9, 10**6, 10**30])
        costs = (self.pick.choice([0, self.pick.randint(-large, large)]) for _ in range(count))
        return [f"move {u} {v} " + " ".join(map(str, costs))]

    def eliminate(self, depth: int) -> list[str]:
        return ["eliminate " + self.some(self.pick.randint(1, len(self.sizes)))]

    def drop(self, depth: int) -> list[str]:
        values = (str(self.pick.randrange(3)) for _ in range(2 * self.pick.randint(1, 2)))
        return [f"drop {self.node()} " + " ".join(values)]

    def exclude(self, depth: int) -> list[str]:
        items = [
            f"{self.node()}:"
            + ",".join(map(str, self.pick.sample(range(3), self.pick.randint(1, 2))))
            for _ in range(self.pick.randint(0, 2))
        ]
        return [" ".join(["exclude", *items])]

    def branch(self, depth: int) -> list[str]:
        u = self.node()
        inner = self.steps(depth + 1)
        return [f"branch {u} {self.pick.randrange(self.sizes[u])}", *inner, "close"]

    def part(self, depth: int) -> list[str]:
        cost = self.pick.choice(["-", "0", "3", "9", "-4"])
        nodes = self.some(self.pick.randint(0, len(self.sizes)))
        return [f"part {cost} {nodes}", *self.steps(depth + 1), "close"]


def verdict(puzzle: Puzzle, bound: float, body: list[str]) -> str:
    text = puzzle.certificate(bound, body)
    try:
        check_certificate.check(puzzle.text, text)
    except ProofError:
        return "refused"
    except Exception as error:
        raise FindingError(f"{type(error).__name__}: {error}\n{puzzle.text}\n{text}") from error
    if bound > puzzle.optimum:
        raise FindingError(f"accepted, the optimum is {puzzle.optimum}\n{puzzle.text}\n{text}")
    return "accepted"


def certificates(seed: int) -> Iterator[str]:
    pick = random.Random(f"certificates {seed}")
    puzzle = Puzzle(pick)
    best = puzzle.optimum
    order = pick.sample(range(len(puzzle.sizes)), len(puzzle.sizes))
    proof = ["eliminate " + " ".join(map(str, order)), "close"]
    if verdict(puzzle, best, proof) != "accepted":
        raise FindingError(
            f"a true proof was refused\n{puzzle.text}\n{puzzle.certificate(best, proof)}"
        )
    yield "true proof accepted"
    for _ in range(PROOFS - 1):
        bound = (
            pick.choice([best + 1, best + 1, best + 3, best, INF])
            if best < INF
            else pick.choice([INF, 5])
        )
        yield verdict(puzzle, bound, RandomProof(puzzle).body)


# ---- what the solver proves ----------------------------------------------------------------------


def solver(seed: int) -> Iterator[str]:
    pick = random.Random(f"solver {seed}")
    text = Puzzle(pick).text if pick.random() < 0.5 else larger_problem(pick).to_text()
    problem = Problem.from_text(text)
    optimum = min(
        (c for choice in itertools.product(*(range(len(n)) for n in problem.node_costs))
         if (c := problem.cost(choice)) is not None), default=None,
    )  # fmt: skip
    solution = solve(problem, marginals=False, table_cap=pick.choice([30_000_000, 40, 5, 0]))
    certificate = solution.certificate.text
    if solution.cost != optimum:
        raise FindingError(f"the solver says {solution.cost}, the optimum is {optimum}\n{text}")
    try:
        check_certificate.check(text, certificate)
    except ProofError as error:
        raise FindingError(f"a true proof was refused: {error}\n{text}\n{certificate}") from error
    yield f"accepted: {solution.certificate.kind}"
    claimed = "-" if optimum is not None else "1"
    for _ in range(4):
        if optimum is not None:
            claimed = pick.choice([str(optimum + pick.choice([1, 1, 2, 1000])), "-"])
        raised: str | None = with_line(certificate, "bound", claimed)
        for _ in range(pick.choice([0, 1, 1, 2, 3])):
            raised = mutated_proof(pick, raised) or raised
        try:
            check_certificate.check(text, raised)
        except ProofError:
            yield "refused"
            continue
        except Exception as error:
            raise FindingError(f"{type(error).__name__}: {error}\n{text}\n{raised}") from error
        if optimum is not None:
            raise FindingError(f"accepted, the optimum is {optimum}\n{text}\n{raised}")
        yield "accepted: lower"


def larger_problem(pick: random.Random) -> Problem:
    """Up to seven nodes; in most of them whole alternatives are forbidden, and edges remain."""
    forbidden, largest = pick.choice([0, 0.1, 0.3, 0.5]), pick.choice([1, 10, 10**6, 2**40])

    def cost() -> int | None:
        return None if pick.random() < forbidden else pick.randint(0, largest)

    costs = [[cost() for _ in range(pick.randint(1, 3))] for _ in range(pick.randint(1, 7))]
    edges = [
        (u, v, [[cost() for _ in costs[v]] for _ in costs[u]])
        for u, v in itertools.permutations(range(len(costs)), 2)
        if pick.random() < 0.4
    ]
    return Problem(costs, edges)


# ---- plans ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def plan_of(seed: int) -> tuple[Sample, int, Callable[[dict[str, Any]], float]]:
    """A small plan, the cost of the cheapest of all, and what a plan's choice truly costs."""
    text = str(GraphText(seed, 1 + seed % 3))
    sample = Sample(text, seed, allowed=0.08)
    graph = Graph(sample.text)
    options = options_of(graph, sample.rows, sample.refused)
    changes = functools.cache(functools.partial(changes_cost, sample.rows))

    def cost_of(plan: dict[str, Any]) -> float:
        by_name = {node["name"]: node for node in plan["nodes"]}
        said = {n: by_name[graph.nodes[n].name] for n in graph.planned}
        # A plan says of an absorbed node only who absorbs it, which may be possible in two ways.
        same = [
            [o for o in options[n] if all(said[n][k] == v for k, v in o.said.items())] for n in said
        ]
        chosen = (dict(zip(said, each, strict=True)) for each in itertools.product(*same))
        return min((true_cost(graph, changes, each) for each in chosen), default=INF)

    return sample, sample.plan["lower_bound_ticks"], cost_of


def plans(seed: int) -> Iterator[str]:
    pick = random.Random(f"plans {seed}")
    sample, optimum, cost_of = plan_of(seed)
    given = ("graph", "costs", "refused")
    own: dict[str, Any] = {"graph_text": sample.text, "cost_rows": sample.rows}
    own["refused"] = sample.refused
    for number in range(MUTANTS):
        text = json.dumps(sample.plan)
        plan = json.loads(text)
        for _ in range(pick.choice([1, 1, 2]) if number else 0):
            plan = mutated(pick, plan)
        text = (
            mutated_text(pick, json.dumps(plan))
            if pick.random() < 0.1 and number
            else json.dumps(plan)
        )
        is_own = pick.random() < 0.5
        try:
            found = check_plan(text, **own) if is_own else check_plan(text)
        except Error as error:
            if number == 0:
                raise FindingError(f"a true proof was refused: {error}\n{text}") from error
            yield "refused"
            continue
        except Exception as error:
            raise FindingError(f"{type(error).__name__}: {error}\n{text}") from error
        plan = json.loads(text)
        if not is_own and any(
            plan["proof"].get(key, []) != sample.plan["proof"].get(key, []) for key in given
        ):
            yield "accepted: of other costs"  # or of another graph, on trust from the file
            continue
        is_true = found.lower_bound_ticks <= optimum <= found.cost_ticks
        if not is_true or cost_of(plan) > found.cost_ticks:
            raise FindingError(f"accepted {found}; the optimum is {optimum}\n{text}")
        yield "accepted"


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 1.5, 1e400, math.nan, 10**30, 10**400, -(10**30), "", "-", "0",
    "x", "1_0", "\u0663", [], {}, [[]], [{}], {"": 0},
]  # fmt: skip


def paths(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = (
        part.items()
        if isinstance(part, dict)
        else enumerate(part)
        if isinstance(part, list)
        else ()
    )
    for key, value in items:
        yield (*path, key)
        yield from paths(value, (*path, key))


def at(plan: Any, path: tuple[Any, ...]) -> Any:
    return functools.reduce(lambda part, key: part[key], path, plan)


def mutated(pick: random.Random, plan: dict[str, Any]) -> dict[str, Any]:
    """One part gone, doubled, swapped with another one, or with another value."""
    if pick.random() < 0.15:
        return raised(pick, plan)
    every = list(paths(plan))
    if not every:
        return plan
    top = pick.choice(sorted({path[0] for path in every}))  # costs have most of the paths
    path = pick.choice([p for p in every if p[0] == top])
    parent, key = at(plan, path[:-1]), path[-1]
    kind = pick.randrange(8)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(pick.choice(parent)))
    elif kind == 2:
        other = pick.choice([p for p in every if len(p) == len(path)])
        there = at(plan, other[:-1])
        parent[key], there[other[-1]] = there[other[-1]], parent[key]
    elif kind == 3:
        parent[key] = copy.deepcopy(pick.choice(VALUES))
    elif isinstance(parent[key], str) and len(parent[key]) > 30:
        parent[key] = mutated_lines(pick, parent[key])
    elif type(parent[key]) is int:
        old = parent[key]
        others = [old + 1, old - 1, -old, str(old), bool(old), old * 10**18]
        parent[key] = pick.choice([*others, float(old) if abs(old) < 10**18 else 0.5])
    else:
        parent[key] = copy.deepcopy(at(plan, pick.choice(every)))
    return plan


def raised(pick: random.Random, plan: dict[str, Any]) -> dict[str, Any]:
    """A higher or lower bound everywhere where it is said."""
    try:
        old = plan["lower_bound_ticks"]
        new = old + pick.choice([-1, 1, 1000])
        plan["lower_bound_ticks"], plan["lower_bound_us"] = new, us(new)
        plan["status"] = pick.choice(["feasible", plan["status"]])
        certificate = plan["proof"]["certificate"].replace(f"\nbound {old}\n", f"\nbound {new}\n")
        if pick.random() < 0.7:
            certificate = mutated_lines(pick, certificate)
        plan["proof"]["certificate"] = certificate
    except (AttributeError, LookupError, TypeError, OverflowError):
        pass  # a change before this one took it away
    return plan


def mutated_lines(pick: random.Random, text: str) -> str:
    lines = text.split("\n")
    i = pick.randrange(len(lines))
    kind = pick.randrange(5)
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(i, pick.choice(lines))
    elif kind == 2:
        lines.insert(i, pick.choice(steps_near(pick)))
    else:
        words = lines[i].split(" ")
        j = pick.randrange(len(words))
        odd = ["0", "1", "-", "-1", "999", "", "\u0661", *(words[j] + end for end in ODD_ENDS)]
        words[j] = pick.choice([pick.choice(words), *odd, f"+{words[j]}", f"0{words[j]}"])
        lines[i] = " ".join(words)
    return "\n".join(lines)


ODD_ENDS = ("1", "_0", "\u2028bound 0", "\x1c", " # 0")


def steps_near(pick: random.Random) -> list[str]:
    u, v, size = pick.randrange(3), pick.randrange(3), pick.randint(1, 3)
    costs = " ".join(str(pick.randint(-9, 9)) for _ in range(2 * size))
    return [
        f"move {u} {v} {costs}", f"drop {u} 0 1", f"exclude {u}:0", "exclude", f"eliminate {u}",
        f"part 1 {u}\nclose", f"branch {u} 0\nclose", "close", "bound 0", "# bound 0",
    ]  # fmt: skip


def mutated_text(pick: random.Random, text: str) -> str:
    """Changes a file: cut off, with a key twice, or with characters changed."""
    kind, i = pick.randrange(4), pick.randrange(len(text))
    if kind == 0:
        return text[:i]
    if kind == 1:
        return text.replace('"cost_ticks"', '"cost_ticks": 1, "cost_ticks"', 1)
    if kind == 2:
        return (
            text[:i]
            + pick.choice(["\x00", "\ud800", "[" * 2000, "NaN", "1e999", '"', "}"])
            + text[i:]
        )
    return text[:i] + chr(ord(text[i]) ^ 1) + text[i + 1 :]


FUZZERS = {"certificates": certificates, "solver": solver, "plans": plans}

if __name__ == "__main__":
    main(__doc__ or "", FUZZERS)
