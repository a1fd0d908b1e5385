# SPDX-License-Identifier: BSD-3-Clause
"""Certificates with one thing changed so that what they claim is false are all refused.

A change that leaves every claim true is no such mutant. What is true is known from trying every
choice: a claimed bound above the optimum is false, and so is a problem whose cost or optimum is
not the claimed one. Where only the proof is changed, the claims stay true, and the checker may
accept (another proof of the same) or refuse; then the bound is raised above the optimum as well,
which no proof may pass.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from support.pbqp_samples import marginals_by_trying, mutated_proof, random_problem, with_line
from torchalgo.pbqp import Problem, check, solve
from torchalgo.verify import check_certificate

PROBLEMS = 400


def is_refused(problem: str, certificate: str) -> bool:
    try:
        check_certificate.check(problem, certificate)
    except check_certificate.ProofError:
        return True
    return False


def optimum_of(problem: Problem) -> int | None:
    costs = [c for row in marginals_by_trying(problem) for c in row if c is not None]
    return min(costs, default=None)


def mutants(pick: random.Random, problem: Problem) -> Iterator[tuple[str, str, str]]:
    """(what was changed, problem text, certificate text), each with a false claim."""
    solution = solve(problem, marginals=False, table_cap=pick.choice([30_000_000, 40, 0, 0]))
    text, certificate = problem.to_text(), solution.certificate.text
    optimum = optimum_of(problem)
    assert solution.cost == optimum
    check_certificate.check(text, certificate)  # as it is, it holds
    digits = certificate.splitlines()[1].split()[1]
    at = pick.randrange(64)
    other = "0" if digits[at] != "0" else "1"
    yield "hash", text, certificate.replace(digits, digits[:at] + other + digits[at + 1 :])
    claims_more = with_line(certificate, "bound", "-" if optimum is not None else "1")
    if optimum is None:
        return
    for _ in range(6):
        higher = optimum + pick.choice([1, 1, 2, 1000])
        raised = with_line(certificate, "bound", str(higher))
        yield "bound", text, raised
        # A dearer choice that would make the bound look reached.
        choice = [pick.randrange(len(costs)) for costs in problem.node_costs]
        cost = problem.cost(choice)
        spelled = " ".join(map(str, choice))
        if cost is not None and cost > optimum:
            claimed = with_line(with_line(raised, "choice", spelled), "cost", str(cost))
            yield "dearer", text, with_line(claimed, "bound", str(cost))
        if cost != optimum:
            yield "choice", text, with_line(certificate, "choice", spelled)
        proof = mutated_proof(pick, raised)
        if proof is not None:
            yield "proof", text, proof
            twice = mutated_proof(pick, proof)
            if twice is not None:
                yield "proof", text, twice
    yield "infeasible", text, claims_more
    yield "cost", text, with_line(certificate, "cost", str(optimum - 1))
    yield "cost", text, with_line(certificate, "cost", str(optimum + 1))
    for _ in range(6):
        yield from mutated_problem(pick, problem, certificate)


def mutated_problem(
    pick: random.Random, problem: Problem, certificate: str
) -> Iterator[tuple[str, str, str]]:
    """An entry of the problem changed; its hash as it was, or set right if a claim became false."""
    lines = problem.to_text().splitlines()
    at = pick.randrange(1, len(lines))
    words = lines[at].split()
    first = 1 if words[0] == "node" else 3
    word = pick.randrange(first, len(words))
    old = words[word]
    words[word] = "0" if old == "-" else pick.choice(["-", "0", str(int(old) + 1)])
    if words[word] == old:
        return
    lines[at] = " ".join(words)
    text = "\n".join(lines) + "\n"
    yield "entry", text, certificate
    changed = Problem.from_text(text)
    solution = solve(changed, marginals=False)
    claimed = [int(a) for a in certificate.split("choice")[1].split("\n")[0].split()]
    cost = int(certificate.split("\ncost ")[1].split("\n")[0])
    if solution.cost == cost and changed.cost(claimed) == cost:
        return  # every claim is still true of the changed problem
    digits = solution.certificate.text.splitlines()[1]
    yield "entry", text, certificate.replace(certificate.splitlines()[1], digits)


@pytest.mark.slow
def test_every_mutant_that_claims_something_false_is_refused() -> None:
    pick = random.Random(7)
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for number in range(PROBLEMS):
        nodes, density = pick.choice([(3, 0.5), (5, 0.4), (5, 1), (6, 1)])
        problem = random_problem(pick, nodes, 3 + nodes // 6, density)
        kinds[solve(problem, marginals=False, table_cap=0).certificate.kind] += 1
        for what, text, certificate in mutants(pick, problem):
            assert is_refused(text, certificate), f"{number} {what}\n{text}\n{certificate}"
            counts[what] += 1
    assert sum(counts.values()) >= 10_000, counts
    assert min(counts.values()) > 50 and kinds["messages"] > 40, (counts, kinds)


@pytest.mark.parametrize("seed", range(3))
def test_certificates_of_many_cases_hold_and_their_mutants_do_not(seed: int) -> None:
    """Problems that take branching: their proofs have cases and exclusions."""
    pick = random.Random(seed)
    values, nodes = 4, 7
    costs: list[list[int | None]] = [
        [pick.randrange(50) for _ in range(values)] for _ in range(nodes)
    ]
    edges = [
        (u, v, [[pick.randrange(100) for _ in range(values)] for _ in range(values)])
        for u in range(nodes)
        for v in range(u)
    ]
    problem = Problem(costs, edges)
    solution = solve(problem, marginals=False, table_cap=0)
    assert solution.certificate.kind == "branches" and solution.cost is not None
    text, certificate = problem.to_text(), solution.certificate.text
    check_certificate.check(text, certificate)
    raised = with_line(certificate, "bound", str(solution.cost + 1))
    assert is_refused(text, raised)
    for _ in range(60):
        proof = mutated_proof(pick, raised)
        assert proof is None or is_refused(text, proof), proof


def test_certificates_of_problems_in_parts_hold() -> None:
    """Parts that are proven one by one; some have no choice, some are cut off by the time limit."""
    kinds: Counter[str] = Counter()
    for seed in range(120):
        pick = random.Random(seed)
        forbidden, largest = pick.choice([0, 0, 0.1, 0.4]), pick.choice([5, 100, 10**9])
        costs: list[list[int | None]] = []
        edges: list[tuple[int, int, list[list[int | None]]]] = []
        for _ in range(pick.choice([1, 2, 3])):
            first, values = len(costs), pick.randrange(2, 5)
            for u in range(first, first + pick.randrange(4, 8)):
                costs.append([pick.randrange(largest) for _ in range(values)])
                for v in range(first, u):
                    matrix: list[list[int | None]] = [
                        [
                            None if pick.random() < forbidden else pick.randrange(largest)
                            for _ in range(values)
                        ]
                        for _ in range(values)
                    ]
                    edges.append((u, v, matrix))
        problem = Problem(costs, edges)
        limit = pick.choice([10, 10, 0.0005])
        solution = solve(problem, limit, marginals=False, table_cap=pick.choice([0, 0, 40]))
        text = solution.certificate.text
        check_certificate.check(problem.to_text(), text)
        kinds[solution.certificate.kind] += 1
        kinds["parts"] += text.count("\npart ") > 1
        kinds["no choice in a part"] += "\npart - " in text
    assert min(kinds[kind] for kind in ("branches", "messages", "parts")) > 20, kinds
    assert kinds["no choice in a part"] > 0, kinds


def test_a_proof_cannot_be_cheated_by_dropping_what_is_needed() -> None:
    problem = Problem([[0, 5], [0, 5]], [(0, 1, [[9, 0], [0, 9]])])  # the optimum is 5
    head = solve(problem).certificate.text.splitlines()[:2]
    for proof in (
        "drop 0 0 1\nclose",  # the cheaper value
        "drop 0 1 1\nclose",  # by itself
        "drop 0 1 0 0 1\nclose",  # each by the other
        "exclude 0:0,1\nclose",  # their bounds are lower
        "eliminate 0\nexclude 0:0,1\nclose",  # there is no bound of what is gone
        "branch 0 0\nclose",  # the other case is missing
        "branch 0 0\neliminate 0 1\nclose\nclose",
        "branch 0 7\nclose\nclose",
        "eliminate 0 0\nclose",
        "part 6 0\nclose\npart 6 1\nclose\nclose",  # a table joins the parts
        "part 6 0 1\nclose\nclose",
        "part 6 0 1\neliminate 0 1\nclose\nclose",
        "part 5 0 1\neliminate 0 1\nclose\nclose",  # is true, and not enough
        "part 5 0 1\neliminate 0 1\nclose\npart 5 0 1\nclose\nclose",  # counted twice
        "part 6\nclose",
        "part - 0\nclose\nclose",
        "move 0 1 9 9 9 9 9\nclose",
        "move 1 0 9 9 9 9\nclose",
        "close\nclose",
        "",
    ):
        lines = "\n".join([*head, "bound 6", proof])
        assert is_refused(problem.to_text(), lines), proof
    for proof in (
        "eliminate 0 1\nclose",
        "branch 0 1\neliminate 0 1\nclose\neliminate 0 1\nclose",
        "part 5 0 1\neliminate 0 1\nclose\nclose",
        "exclude\neliminate 1 0\nclose",
    ):
        check_certificate.check(problem.to_text(), "\n".join([*head, "bound 5", proof]))


# ---- forged, odd and oversized certificates ------------------------------------------------------


def certificate_of(text: str, *lines: str) -> str:
    digest = hashlib.sha256((text.rstrip("\n") + "\n").encode()).hexdigest()
    return "\n".join(["pbqp-certificate 2", f"problem {digest}", *lines]) + "\n"


@pytest.mark.parametrize("node", ["5 0", "7 3 0"])
@pytest.mark.parametrize("tail", [["close"], ["eliminate 0", "close"]])
def test_costs_cannot_move_from_a_node_to_itself(node: str, tail: list[str]) -> None:
    text = f"pbqp 1\nnode {node}\n"
    costs = node.split()
    zeros = ["0"] * len(costs)
    highest = int(costs[0])
    raise_all = [str(highest - int(cost)) for cost in costs]
    for move in (zeros + raise_all, raise_all + zeros, raise_all, zeros):
        step = " ".join(["move 0 0", *move])
        head = ["choice 0", f"cost {highest}", f"bound {highest}"]
        assert is_refused(text, certificate_of(text, *head, step, *tail)), step
    true = certificate_of(text, "bound 0", "eliminate 0", "close")
    check_certificate.check(text, true)


def test_a_problem_has_no_edge_from_a_node_to_itself_in_any_spelling() -> None:
    for other in ("0", "00", "-0", "+0", "\u0660"):
        text = f"pbqp 1\nnode 5 0\nedge 0 {other} 0 9 9 0\n"
        assert is_refused(text, certificate_of(text, "bound 0", "eliminate 0", "close")), other


def test_forbidden_alternatives_with_edges_have_proofs() -> None:
    for costs in (
        [[0, None], [0, 0]],
        [[None, 3], [2, None]],
        [[None], [1, 2]],
        [[None, None], [0]],
    ):
        rows: list[list[int | None]] = [[7, 1], [2, 4]]
        matrix = [row[: len(costs[1])] for row in rows[: len(costs[0])]]
        for edges in ([(0, 1, matrix)], [(0, 1, matrix), (0, 1, matrix)]):
            problem = Problem(costs, edges)
            for table_cap in (30_000_000, 0):
                solution = solve(problem, marginals=False, table_cap=table_cap)
                assert solution.cost == optimum_of(problem)
                check(problem, solution)


def test_each_claim_stands_once_and_before_the_proof() -> None:
    text = "pbqp 1\nnode 3 1\n"
    claims, proof = ["choice 1", "cost 1", "bound 1"], ["eliminate 0", "close"]
    true = certificate_of(text, *claims, *proof)
    assert check_certificate.check(text, true)["bound"] == ["1"]
    for i, claim in enumerate(claims):
        others = claims[:i] + claims[i + 1 :]
        assert is_refused(
            text, certificate_of(text, *claims[: i + 1], claim, *claims[i + 1 :], *proof)
        )
        assert is_refused(text, certificate_of(text, *others, *proof, claim))
        assert is_refused(text, certificate_of(text, *others, proof[0], claim, proof[1]))
    assert is_refused(text, certificate_of(text, "bound 1", "bound 3", *proof))
    assert is_refused(text, certificate_of(text, "bound 3", "bound 1", *proof))


@pytest.mark.parametrize(
    "one",
    [
        "1_0",
        "+1",
        "01",
        "1.0",
        "1e0",
        "0x1",
        "\u0661",
        "\uff11",
        "1\u2028",
        "1\x1c",
        "1\xa0",
        "--1",
    ],
)
def test_numbers_have_one_spelling(one: str) -> None:
    text = "pbqp 1\nnode 3 1\n"
    for bound in (one, f"{one} # 1"):
        assert is_refused(text, certificate_of(text, f"bound {bound}", "eliminate 0", "close"))
    odd = text.replace("1\n", one + "\n", 2)
    assert is_refused(odd, certificate_of(odd, "bound 1", "eliminate 0", "close"))


def star(arms: int) -> str:
    """A node with edges to `arms` others, all of ten alternatives."""
    matrix = " ".join(str(i * j % 7 + 1) for i in range(10) for j in range(10))
    nodes = ["node" + " 0" * 10] * (arms + 1)
    return "\n".join(["pbqp 1", *nodes, *(f"edge 0 {v + 1} {matrix}" for v in range(arms)), ""])


def hub(leaves: int) -> str:
    """A node of two alternatives with edges to nodes of one alternative."""
    nodes = ["node 0 0", *["node 0"] * leaves]
    return "\n".join(["pbqp 1", *nodes, *(f"edge 0 {v + 1} 0 0" for v in range(leaves)), ""])


def eliminate(nodes: range) -> str:
    return " ".join(["eliminate", *map(str, nodes)])


WIDE = "pbqp 1\nnode" + " 0" * 2_000 + "\n"
BOMBS = {
    "one table of 10^9 cells": (star(9), ["eliminate 0", "close"]),
    "one line": ("pbqp 1" + ("\nnode" + " 0" * 8_000) * 2, ["move 0 1" + " 0" * 16_000, "close"]),
    "deep cases": (star(1), ["branch 0 0"] * 20_000),
    "deep parts": (star(1), ["part 0"] * 20_000),
    "long numbers": ("pbqp 1\nnode " + "9" * 5_000 + "\n", ["close"]),
}
SLOW_BOMBS = {  # these may do 100,000,000 cells of work, so that the tests lower the limit
    "many tables": (star(4), ["eliminate 0", "exclude"] * 100 + ["close"]),
    "long lists": (WIDE, ["exclude 0:1999"] * 500 + ["close"]),
    "many states": ("pbqp 1\n" + "node 0\n" * 500, ["branch 0 0", "close"] * 2_000),
    "many drops": (WIDE, [f"drop 0 {a} 0" for a in range(1, 2_000)] + ["close"]),
    "many minima": ("pbqp 1\n" + "node 0\n" * 500, ["part 0", "close", "exclude"] * 2_000),
    "a wide table": (hub(250), [eliminate(range(251)), "close"]),
    "many cases of one node": (WIDE, [f"branch 0 {a}\nclose" for a in range(1_000)] + ["close"]),
    "exclusions from nothing": (
        WIDE, ["exclude 0:" + ",".join(map(str, range(2_000))) + " 0:1" * 1_000, "close"]
    ),
    "edges of a node without alternatives": (
        "pbqp 1\nnode\n" + WIDE.removeprefix("pbqp 1\n") + "edge 0 1\n" * 1_000, ["close"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*BOMBS, *SLOW_BOMBS])
def test_short_texts_cannot_ask_for_much_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, proof = (BOMBS | SLOW_BOMBS)[name]
    if name in SLOW_BOMBS:
        monkeypatch.setattr(check_certificate, "MAX_WORK", (500_000, 10))
    certificate = certificate_of(text, "bound 0", *proof)
    limits = "too much work|RecursionError|too long a word"
    with pytest.raises(check_certificate.ProofError, match=limits):
        check_certificate.check(text, certificate)


def work_of(monkeypatch: pytest.MonkeyPatch, text: str, *proof: str) -> int:
    """The work that the check of a true certificate takes."""
    counts = []

    class Counted(check_certificate.Work):
        def __init__(self, characters: int):
            super().__init__(characters)
            self.first = self.left
            counts.append(self)

    monkeypatch.setattr(check_certificate, "Work", Counted)
    check_certificate.check(text, certificate_of(text, "bound 0", *proof))
    [work] = counts
    return work.first - work.left


def test_the_work_on_a_table_counts_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of many nodes with one alternative each has few cells."""
    for leaves in (50, 200):
        work = work_of(monkeypatch, hub(leaves), eliminate(range(leaves + 1)), "close")
        assert work > leaves**2 * check_certificate.ENTRY


def test_the_tables_of_a_node_are_joined_without_a_look_at_all_of_them_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = (work_of(monkeypatch, hub(n), "eliminate 0", "close") for n in (200, 800))
    assert many < 6 * few


def test_two_kilobytes_may_not_ask_for_a_billion_cells() -> None:
    assert check_certificate.Work(2_000).left < 200_000_000


def test_a_lack_of_memory_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "pbqp 1\nnode 3 1\n"
    true = certificate_of(text, "bound 1", "eliminate 0", "close")

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(check_certificate.State, "eliminate", fail)
    with pytest.raises(check_certificate.ProofError, match="MemoryError"):
        check_certificate.check(text, true)


def test_a_table_of_zeros_stays_until_a_move_as_in_the_solver() -> None:
    """The checker must remove a table when the solver does.

    If it removes one earlier, it may also remove a value earlier. A later step of the proof then
    names a value that the checker no longer has. DenseNet-121's training graph had such a proof,
    which the checker refused.
    """
    work = check_certificate.Work(10_000)
    both: check_certificate.Names = {node: [0, 1] for node in range(3)}
    state = check_certificate.State(both, {}, work)
    state.add((0, 2), [0, 0, 0, 0])
    state.add((1, 2), [0, 0, 0, 0])
    state.eliminate(2)
    assert state.scopes(0) == state.scopes(1) == [(0, 1)]
    state.move(0, 1, 0, 0, 0, 0)
    assert (0, 1) not in state.tables
