# SPDX-License-Identifier: BSD-3-Clause
"""Makes the proof that goes into a plan's file, and checks it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._ir.costs import key_of, native_key
from torchalgo._ir.plan import Plan, PlanProof
from torchalgo._measure.steps import PlannerInput, Question, planner_input, solve
from torchalgo._plan.limits import Limits
from torchalgo.verify.check_plan import check_plan


def prover(limits: Limits) -> Callable[[Plan], PlanProof]:
    """Returns the function behind plan.with_proof, which solves again and checks the proof."""
    tuning = limits.tuning

    def prove(plan: Plan) -> PlanProof:
        question = Question(limits=limits, options={"with_certificate": True})
        native, _ = solve(tuning.knowledge, tuning.phase, question)
        if not native.certificate:
            raise Error(
                "TA2401 with_proof: the plan was made under a limit that excludes better plans, and"
                " there is no certificate for such plans: raise the limit, or use the plan without"
                " a proof"
            )
        proof = _proof(native.certificate, planner_input(tuning.knowledge, tuning.phase, question))
        if not proof.certificate.endswith("\nclose\n"):
            raise Error(
                "TA2402 with_proof: the proof of the bound exceeds the solver's limit of size; use"
                " the plan without a proof"
            )
        check_plan(dataclasses.replace(plan, proof=proof))
        return proof

    return prove


def _proof(certificate: str, solved: PlannerInput) -> PlanProof:
    graph, found, transforms, costs, allow = solved
    rows: dict[str, dict[str, int]] = {}
    problems: list[set[str]] = []  # by node
    allowed: set[tuple[str, str, str]] = set()
    for node, candidates, refused_here in zip(
        graph.nodes, found.by_anchor, found.refusals, strict=True
    ):
        problems.append({c.problem for c in candidates} | {r.problem for r in refused_here})
        for candidate in filter(allow, candidates):
            _add_cost(rows, candidate, costs)
            allowed.add((node.name, candidate.problem, repr(candidate.primitive)))
    for transform in transforms:
        _add_cost(rows, transform, costs)
    # Candidates that other nodes with the same problem may run, but this node may not or cannot.
    # For example, a view needs its inputs side by side in one buffer.
    refused = [
        [node.name, problem, row]
        for node, own in zip(graph.nodes, problems, strict=True)
        for problem in sorted(own)
        for row in rows.get(problem, {})
        if (node.name, problem, row) not in allowed
    ]
    heads = dict(line.split(" ", 1) for line in certificate.splitlines() if " " in line)
    return PlanProof(heads["problem"], certificate, graph.to_text(), rows, refused)


def _add_cost(
    rows: dict[str, dict[str, int]], candidate: _C.Candidate, costs: _C.CostTable
) -> None:
    cost = costs.get(native_key(key_of(candidate.problem, candidate.primitive)))
    if cost is not None:
        rows.setdefault(candidate.problem, {})[repr(candidate.primitive)] = cost[0]
