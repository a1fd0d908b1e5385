# SPDX-License-Identifier: BSD-3-Clause
"""The public check_plan: plans with proofs in files, own graphs and costs, what is told."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.false_plans import dearer_rows, is_refused, take_row
from support.plan_samples import (
    GraphText,
    Sample,
    us,
)
from torchalgo import _C
from torchalgo.pbqp import Problem, solve
from torchalgo.verify.check_certificate import ProofError
from torchalgo.verify.check_claims import (
    Graph,
    options_of,
    problem_text,
)
from torchalgo.verify.check_claims import check_claims as check_file
from torchalgo.verify.check_plan import check_plan

CHECKER = Path(torchalgo.__file__).parent / "verify" / "check_claims.py"


def test_an_optimized_models_plan_proves_itself(
    fast: torchalgo.Optimized, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchalgo_cli import main

    assert fast.plan.proof is None and "proof" not in json.loads(fast.plan.to_json())
    plan = fast.plan.with_proof()
    torchalgo.check_plan(plan)
    assert dataclasses.replace(plan, proof=None) == fast.plan
    proof = plan.proof
    assert proof is not None
    found = torchalgo.check_plan(plan, proof.graph, proof.costs, proof.refused, proof.pairs)
    assert set(found.trusted.values()) == {"the caller"} and found.is_optimal
    banned = dataclasses.replace(proof, refused=[["x", "y", "z"]])
    more = {**proof.costs, plan.nodes[0].problem: {"aten.none nchw->nchw": 0}}
    with pytest.raises(torchalgo.Error, match=r"1 refused .* pass refused=plan\.proof\.refused"):
        torchalgo.check_plan(dataclasses.replace(plan, proof=banned), cost_rows=more)
    path = tmp_path / "net.plan.json"
    plan.save(path)
    assert torchalgo.load_plan(path) == plan
    assert main(["check", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("proven: ") and "on trust, from the plan's file: the graph" in printed
    not_checked = printed.split("not checked: ")[1].split("\n")[0].split(", ")
    assert {"capture_error", "comparisons", "cost_source"} <= set(not_checked)
    assert not {"cost_ticks", "lower_bound_ticks", "status"} & set(not_checked)
    for file in ("check_claims.py", "check_certificate.py"):  # these two alone, without torch
        shutil.copy(CHECKER.with_name(file), tmp_path)
    command = [sys.executable, "-S", str(tmp_path / "check_claims.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "every claim holds" in done.stdout and "not checked: [" in done.stdout
    false = dataclasses.replace(plan, cost_ticks=plan.cost_ticks - 1)
    false.save(path)
    assert main(["check", str(path)]) == 1 and "FAILS" in capsys.readouterr().out
    with pytest.raises(torchalgo.Error, match="cost_ticks is"):
        torchalgo.check_plan(false)


def test_a_plan_without_a_proof_says_how_to_get_one(
    fast: torchalgo.Optimized, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchalgo_cli import main

    with pytest.raises(torchalgo.Error, match="with_proof"):
        torchalgo.check_plan(fast.plan)
    fast.plan.save(tmp_path / "net.json")
    assert main(["check", str(tmp_path / "net.json")]) == 2
    assert "with_proof" in capsys.readouterr().err
    with pytest.raises(torchalgo.Error, match="not in memory"):
        torchalgo.load_plan(tmp_path / "net.json").with_proof()


def test_a_certificate_cannot_say_two_things() -> None:
    """check_plan and check_certificate read the same values from a certificate."""
    sample = Sample(str(GraphText(3, 6)), 3)
    node, row, ticks = next(dearer_rows(sample, sample.plan))
    for second in ("bound", " bound", "\tbound", "# bound", "bound  "):
        for first in ("bound", " bound", "# bound"):
            plan = copy.deepcopy(sample.plan)
            take_row(plan, node, row, ticks)
            true, false = plan["lower_bound_ticks"], plan["cost_ticks"]
            plan["lower_bound_ticks"], plan["lower_bound_us"] = false, plan["cost_us"]
            for one, other in ((true, false), (false, true)):
                both = f"{first} {one}\n{second} {other}"
                text = sample.plan["proof"]["certificate"].replace(f"bound {true}", both)
                plan["proof"]["certificate"] = text
                assert is_refused(plan), both


def test_your_own_graph_and_costs_stand_against_those_of_the_plan() -> None:
    sample = Sample(str(GraphText(8, 6)), 8)
    check_plan(sample.plan, sample.text, sample.rows)
    other = {p: {row: t + 1 for row, t in rows.items()} for p, rows in sample.rows.items()}
    with pytest.raises(torchalgo.Error, match="another problem"):
        check_plan(sample.plan, sample.text, other)
    with pytest.raises(ProofError, match="cost_rows"):  # no name that is not known is passed over
        check_file(sample.plan, cost_rows=other)
    with pytest.raises(torchalgo.Error, match="another graph"):
        check_plan(sample.plan, str(GraphText(9, 6)), sample.rows)


def test_a_structure_hash_of_another_version_is_checked_as_that() -> None:
    sample = Sample(str(GraphText(8, 6)), 8)
    older = _C.parse_graph(sample.text).structure_hash_of(1)
    assert older != sample.plan["structure_hash"]
    plan = {**sample.plan, "structure_hash": older}
    with pytest.raises(torchalgo.Error, match="another graph"):
        check_plan(plan)
    check_plan({**plan, "structure_version": 1})
    del plan["structure_version"]  # as files of version 1
    check_plan(plan)


def forged(sample: Sample, refused: list[list[str]], pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """The plan that is optimal if the file may say what is refused and which pairs cost more."""
    graph = Graph(sample.text)
    options = options_of(graph, sample.rows, refused, pairs)
    text = problem_text(sample.text, sample.rows, refused, pairs)
    solution = solve(Problem.from_text(text), marginals=False)
    assert solution.choice is not None
    plan = copy.deepcopy(sample.plan)
    choice = zip(graph.planned, solution.choice, strict=False)
    for (_, option), part in zip(
        sorted((n, options[n][a]) for n, a in choice), plan["nodes"], strict=True
    ):
        part.update(option.said, predicted_us=us(option.said["ticks"]))
    digits = solution.certificate.text.split("\n")[1].split()[1]
    plan["proof"].update(refused=refused, pairs=pairs, problem_hash=digits)
    plan["proof"]["certificate"] = solution.certificate.text
    plan["cost_ticks"] = plan["lower_bound_ticks"] = solution.cost
    plan["cost_us"] = plan["lower_bound_us"] = us(solution.cost or 0)
    return plan


def test_a_file_cannot_forbid_what_is_cheaper_if_the_costs_are_your_own() -> None:
    tried = 0
    for seed in range(200):
        sample = Sample(one_convolution(seed), seed)
        node = sample.plan["nodes"][0]
        best = [node["name"], node["problem"], f"{node['primitive']} {node['src']}->{node['dst']}"]
        named = dict(zip(("reader", "reader_problem", "reader_primitive"), best, strict=True))
        none = dict.fromkeys(("producer", "producer_problem", "producer_primitive"), "")
        pairs = [{**none, **named, "ticks": 10**9}]
        for refused, some in (([*sample.refused, best], []), (sample.refused, pairs)):
            plan = forged(sample, refused, some)
            if any(plan["nodes"][0][end] != node[end] for end in ("src", "dst")):
                continue  # it takes other transforms, which the forger has not written
            assert plan["cost_ticks"] > sample.plan["cost_ticks"]
            tried += 1
            found = check_plan(plan)  # true of what the file says, and printed as such
            assert set(found.trusted.values()) == {"the plan's file"}
            assert f"{len(refused)} refused candidates" in str(found)
            for own in ({}, {"refused": sample.refused}, {"pairs": []}):
                with pytest.raises(torchalgo.Error, match="another problem"):
                    check_plan(plan, sample.text, sample.rows, **own)
            found = check_plan(plan, sample.text, sample.rows, refused, some)
            assert set(found.trusted.values()) == {"the caller"}
    assert tried > 20, tried


def one_convolution(seed: int) -> str:
    problem = "fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias"
    layout = "nchw" if seed % 2 else "nhwc"
    return (
        "torchalgo graph 1\nvalue\tx\t1,16,8,8\tf32\nvalue\ty\t1,16,8,8\tf32\n"
        f"node\tconv\tconv\t0\t1\t{problem}\t\ninput\t0\t{layout}\noutput\t1\n"
    )


def test_what_is_on_trust_and_what_is_not_checked_is_told() -> None:
    sample = Sample(str(GraphText(8, 6)), 8, allowed=0.7)
    plan = {
        **sample.plan,
        "runner_up": "any",
        "rel_error": 0.0,
        "ties": 3,
        "limits": {"bytes": 1.0},
    }
    plan["nodes"] = [
        {**node, "regret_us": 1.0, "cost_source": "measured"} for node in plan["nodes"]
    ]
    found = check_plan(plan)
    assert found.not_checked == [
        "cost_source",
        "limits",
        "regret_us",
        "rel_error",
        "runner_up",
        "ties",
    ]
    text = str(found)
    assert text.count("proven: ") == 2 and "it is optimal" in text
    assert f"the graph of {len(plan['nodes'])} planned nodes" in text
    assert f"{sum(map(len, sample.rows.values()))} costs" in text
    assert f"{len(sample.refused)} refused candidates, 0 pair costs" in text
    assert text.split("not checked: ")[1] == ", ".join(found.not_checked)
    found = check_plan(plan, cost_rows=sample.rows, refused=sample.refused, pairs=[])
    assert found.trusted == {
        "graph": "the plan's file", "costs": "the caller", "refused": "the caller",
        "pairs": "the caller",
    }  # fmt: skip
    assert "on trust, from the caller: " in str(found)


def test_a_file_without_one_meaning_is_refused() -> None:
    sample = Sample(str(GraphText(3, 6)), 3)
    text = json.dumps(sample.plan)
    check_plan(text)
    bound = sample.plan["lower_bound_ticks"]
    for odd in (
        text.replace('"status"', '"status": "optimal", "status"', 1),
        text.replace('"costs"', '"costs": {}, "costs"', 1),
        text.replace(f'"cost_ticks": {bound}', f'"cost_ticks": {bound}.0'),
        text.replace(f'"lower_bound_ticks": {bound}', f'"lower_bound_ticks": {float(bound)}'),
        text.replace(f'"cost_ticks": {bound}', '"cost_ticks": NaN'),
        text.replace(f'"cost_ticks": {bound}', '"cost_ticks": 1e400'),
        text[:-1],
        "[" * 100_000,
        "[]",
        "3",
        "",
    ):
        assert odd != text
        with pytest.raises(torchalgo.Error):
            check_plan(odd)


@pytest.mark.parametrize("ticks", [True, 1.5, 7.0, "7", None, -1, float("nan"), float("inf"), []])
def test_a_cost_is_an_integer_of_at_least_0(ticks: Any) -> None:
    sample = Sample(str(GraphText(3, 6)), 3)
    for problem in ("relu_f32_n1c1h1w1", next(iter(sample.rows))):
        rows = {
            **sample.rows,
            problem: {**sample.rows.get(problem, {}), "aten.x nchw->nchw": ticks},
        }
        with pytest.raises(torchalgo.Error, match="integer of at least 0"):
            check_plan(sample.plan, sample.text, rows, sample.refused)


def test_a_graph_that_the_planner_would_not_take_is_refused() -> None:
    text = one_convolution(0)
    relu = "node\trelu\trelu\t1\t2\trelu_f32_n1c16h8w8\t\n"
    three = text.replace("node\t", "value\tz\t1,16,8,8\tf32\nnode\t", 1)
    loop = three.replace("input\t", relu + "input\t", 1)
    Graph(loop)
    for odd in (
        loop.replace("\t0\t1\t", "\t2\t1\t"),  # each reads what the other writes
        loop.replace("relu\t1\t2\t", "relu\t1\t1\t"),
        loop.replace("relu\t1\t2\t", "relu\t1\t0\t"),  # writes what was read
        loop.replace("relu\t1\t2\t", "relu\t-1\t2\t"),
        loop.replace("relu\t1\t2\t", "relu\t9\t2\t"),
        loop.replace("relu\t1\t2\t", "relu\t\u0661\t2\t"),
        loop.replace("node\trelu", "node\tconv"),
        loop.replace("value\tz", "value\tx"),
        loop.replace("output\t1", "output\t-1"),
        loop.replace("input\t0", "input\t0,1"),
        loop.replace("torchalgo graph 1", "torchalgo graph 2"),
    ):
        assert odd != loop
        with pytest.raises((ValueError, LookupError)):
            Graph(odd)


def test_a_forced_node_is_proven_among_what_was_allowed(
    net: torch.nn.Module, x: torch.Tensor
) -> None:
    overrides = {"*": "aten.prepacked"}
    optimized = torchalgo.optimize(
        net, x, overrides=overrides, budget_s=1.0, settings=torchalgo.Settings(progress=False)
    )
    plan = optimized.plan.with_proof()
    assert plan.proof is not None
    torchalgo.check_plan(plan)
