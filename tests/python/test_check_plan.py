# SPDX-License-Identifier: BSD-3-Clause
"""The independent checker of plans: it derives the planner's PBQP from graph and costs, accepts
what the planner says, and refuses every plan with one claim made false."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import json
import random
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.plan_samples import (
    GraphText,
    Sample,
    changes_cost,
    true_cost,
    us,
)
from torchalgo import _C
from torchalgo.pbqp import Problem, solve
from torchalgo.verify.check_certificate import ProofError
from torchalgo.verify.check_plan import (
    TICKS_PER_US,
    Graph,
    options_of,
    problem_text,
)
from torchalgo.verify.check_plan import check_claims as check_file
from torchalgo.verify.checked_plan import check_plan

GRAPHS = Path(__file__).parents[2] / "benchmarks" / "graphs" / "inference.zip"
CHECKER = Path(torchalgo.__file__).parent / "verify" / "check_plan.py"
NETWORKS = ("alexnet", "densenet121", "efficientnet_b0")
MUTANTS = 10_000


# ---- graphs and costs ----------------------------------------------------------------------------


def is_refused(plan: dict[str, Any]) -> bool:
    try:
        check_plan(plan)
    except torchalgo.Error:
        return True
    return False


# ---- what is true is accepted --------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_the_problem_of_a_network_is_the_planners_to_the_byte(name: str) -> None:
    with zipfile.ZipFile(GRAPHS) as graphs:
        sample = Sample(graphs.read(name).decode(), seed=1)
    assert problem_text(sample.text, sample.rows, sample.refused) == sample.problem
    check_plan(sample.plan)


def test_the_problems_of_random_graphs_are_the_planners_to_the_byte() -> None:
    absorbed = changed = shared = shuffled = 0
    for seed in range(180):
        sample = Sample(str(GraphText(seed, 3 + seed % 12)), seed, allowed=0.6 + 0.4 * (seed % 2))
        assert problem_text(sample.text, sample.rows, sample.refused) == sample.problem, seed
        check_plan(sample.plan)
        absorbed += any(node["absorbed_by"] for node in sample.plan["nodes"])
        changed += len(sample.plan["transforms"]) > 1
        shared += sample.problem.count("\nnode") > len(sample.plan["nodes"]) + 1
        shuffled += any("_shuffle" in node["problem"] for node in sample.plan["nodes"])
    assert min(absorbed, changed, shared) > 25, (absorbed, changed, shared)
    assert shuffled > 3, shuffled


def test_the_problems_with_pair_costs_are_the_planners_to_the_byte() -> None:
    applied = taken_off = 0
    for seed in range(120):
        graph = str(GraphText(seed, 3 + seed % 9))
        sample = Sample(graph, seed, allowed=0.7, pairs=1 + seed % 60)
        text = problem_text(sample.text, sample.rows, sample.refused, sample.pairs)
        assert text == sample.problem, seed
        check_plan(sample.plan)
        applied += len(sample.plan["pairs"])
        taken_off += any(pair["ticks"] < 0 for pair in sample.plan["pairs"])
    assert applied > 50 and taken_off > 20, (applied, taken_off)


def test_a_plan_with_a_false_pair_is_refused() -> None:
    pick = random.Random(9)
    counts: Counter[str] = Counter()
    for seed in range(60):
        sample = Sample(str(GraphText(seed, 5)), seed, allowed=0.6, pairs=60)
        before = json.dumps(sample.plan)
        for _ in range(20):
            plan = json.loads(before)
            what = false_pair(pick, plan)
            pairs = plan["proof"]["pairs"]
            try:
                text = problem_text(sample.text, sample.rows, sample.refused, pairs)
            except ValueError:  # two of one pair, or of a node with itself
                text = ""
            if text == sample.problem and plan["pairs"] == sample.plan["pairs"]:
                continue  # of what nobody may run
            assert is_refused(plan), f"{seed} {what}"
            counts[what] += 1
    assert min(counts.values()) > 20 and len(counts) == 5, counts


def false_pair(pick: random.Random, plan: dict[str, Any]) -> str:
    """One change of the pairs; the plan's sums follow where they can."""
    what = pick.choice(["ticks", "gone", "twice", "other", "unsaid"])
    pairs = plan["proof"]["pairs"]
    at = pick.randrange(len(pairs))
    if what == "ticks":
        pairs[at]["ticks"] += pick.choice([-TICKS_PER_US, -1, 1, TICKS_PER_US])
    elif what == "gone":
        del pairs[at]
    elif what == "twice":
        pairs.append(pairs[at])
    elif what == "other":
        pairs[at]["reader"], pairs[at]["producer"] = pairs[at]["producer"], pairs[at]["reader"]
    elif plan["pairs"]:
        gone = plan["pairs"].pop(pick.randrange(len(plan["pairs"])))
        plan["cost_ticks"] -= gone["ticks"]
        plan["cost_us"] = us(plan["cost_ticks"])
    return what


def test_the_proven_bound_is_the_cheapest_of_all_choices() -> None:
    tried = 0
    for seed in range(400):
        sample = Sample(str(GraphText(seed, 2 + seed % 5)), seed, allowed=0.15)
        graph = Graph(sample.text)
        options = options_of(graph, sample.rows, sample.refused)
        nodes = graph.planned
        count = 1
        for n in nodes:
            count *= len(options[n])
        if count > 3000:
            continue
        changes = functools.cache(functools.partial(changes_cost, sample.rows))
        best = min(
            true_cost(graph, changes, dict(zip(nodes, choice, strict=True)))
            for choice in itertools.product(*(options[n] for n in nodes))
        )
        assert sample.plan["cost_ticks"] == sample.plan["lower_bound_ticks"] == best, seed
        tried += len(nodes) > 1
    assert tried > 100, tried


def test_a_gap_is_no_falsehood() -> None:
    """A lower bound is accepted of a plan that is "feasible", and of nothing else."""
    sample = Sample(str(GraphText(3, 6)), 3)
    plan = copy.deepcopy(sample.plan)
    bound = plan["lower_bound_ticks"] - TICKS_PER_US
    plan["lower_bound_ticks"], plan["lower_bound_us"] = bound, us(bound)
    assert is_refused(plan)
    lines = plan["proof"]["certificate"].replace(f"bound {bound + TICKS_PER_US}", f"bound {bound}")
    plan["proof"]["certificate"] = lines
    assert is_refused(plan)
    plan["status"] = "feasible"
    check_plan(plan)
    plan["proof"]["certificate"] = lines.replace(f"bound {bound}", "bound 1")
    assert is_refused(plan)


# ---- what is false is refused --------------------------------------------------------------------


def dearer_rows(sample: Sample, plan: dict[str, Any]) -> Iterator[tuple[int, str, int]]:
    """Other primitives with the layouts of the chosen ones."""
    for i, node in enumerate(plan["nodes"]):
        layouts = f" {node['src']}->{node['dst']}"
        for row, ticks in sample.rows.get(node["problem"], {}).items():
            allowed = [node["name"], node["problem"], row] not in sample.refused
            if node["primitive"] and row.endswith(layouts) and ticks > node["ticks"] and allowed:
                yield i, row, ticks


def take_row(plan: dict[str, Any], node: int, row: str, ticks: int) -> None:
    """Another primitive for a node; the plan's sums follow."""
    part = plan["nodes"][node]
    plan["cost_ticks"] += ticks - part["ticks"]
    part.update(primitive=row.split()[0], ticks=ticks, predicted_us=us(ticks))
    plan["cost_us"] = us(plan["cost_ticks"])


def false_choice(pick: random.Random, sample: Sample, plan: dict[str, Any]) -> str:
    part = pick.choice([*plan["nodes"], *plan["transforms"]])
    field = pick.choice(["primitive", "src", "dst", "problem", "ticks", "absorbed_by", "value"])
    if field == "ticks":
        part["ticks"] += pick.choice([-1, 1, 1024])
        part["predicted_us"] = us(part["ticks"])
    elif field in ("src", "dst") and part.get("absorbed_by", "") == "":
        part[field] = pick.choice([x for x in ("nchw", "nhwc", "nChw16c") if x != part[field]])
    elif field in part and field not in ("src", "dst"):
        others = {str(p[field]) for p in [*plan["nodes"], *plan["transforms"]] if field in p}
        others = (others | {"other"}) - {part[field]}
        part[field] = pick.choice(sorted(others))
    else:
        return ""
    return f"choice: {field}"


def false_layout(pick: random.Random, sample: Sample, plan: dict[str, Any]) -> str:
    """A transform left out, with or without its costs."""
    if not plan["transforms"]:
        return ""
    part = plan["transforms"].pop(pick.randrange(len(plan["transforms"])))
    if pick.random() < 0.5:
        for name in ("cost", "lower_bound"):
            plan[f"{name}_ticks"] -= part["ticks"]
            plan[f"{name}_us"] = us(plan[f"{name}_ticks"])
    return "transform"


def false_cost(pick: random.Random, sample: Sample, plan: dict[str, Any]) -> str:
    name = pick.choice(["cost", "lower_bound", "both"])
    change = pick.choice([-TICKS_PER_US, -1, 1, TICKS_PER_US])
    for part in ("cost", "lower_bound") if name == "both" else (name,):
        plan[f"{part}_ticks"] += change
        plan[f"{part}_us"] = us(plan[f"{part}_ticks"])
    plan["status"] = "optimal" if name == "both" else pick.choice(["optimal", "feasible"])
    if name != "both" and pick.random() < 0.5:
        certificate = plan["proof"]["certificate"]
        old = certificate.split("\nbound ")[1].split("\n")[0]
        bound = f"\nbound {plan['lower_bound_ticks']}\n"
        plan["proof"]["certificate"] = certificate.replace(f"\nbound {old}\n", bound)
        if name == "lower_bound" and change < 0:
            return ""  # a lower bound below the optimum is true
    return f"cost: {name}"


def false_optimum(pick: random.Random, sample: Sample, plan: dict[str, Any]) -> str:
    """A dearer plan that says it is the cheapest, certificate and all."""
    rows = list(dearer_rows(sample, plan))
    if not rows:
        return ""
    take_row(plan, *pick.choice(rows))
    plan["lower_bound_ticks"], plan["lower_bound_us"] = plan["cost_ticks"], plan["cost_us"]
    lines = plan["proof"]["certificate"].split("\n")
    for i, line in enumerate(lines):
        if line.startswith(("bound ", "cost ")):
            lines[i] = f"{line.split()[0]} {plan['cost_ticks']}"
    if pick.random() < 0.5:  # a certificate of the bound alone, which the plan would reach
        lines = [line for line in lines if not line.startswith(("choice ", "cost "))]
    plan["proof"]["certificate"] = "\n".join(lines)
    return "dearer"


def false_dual(pick: random.Random, sample: Sample, plan: dict[str, Any]) -> str:
    """A bound above the optimum, with the proof as it was or changed somewhere."""
    raised = plan["lower_bound_ticks"] + pick.choice([1, 1000, TICKS_PER_US])
    plan["lower_bound_ticks"], plan["lower_bound_us"] = raised, us(raised)
    plan["status"] = "feasible"
    lines = plan["proof"]["certificate"].split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith("bound")) + 1
    for i, line in enumerate(lines):
        if line.startswith("bound "):
            lines[i] = f"bound {raised}"
    at = pick.randrange(first, len(lines) - 1)
    words = lines[at].split()
    if pick.random() < 0.3:
        del lines[at]
    elif len(words) > 1:
        word = pick.randrange(1, len(words))
        words[word] = str(int(words[word]) + pick.choice([-1, 1]))
        lines[at] = " ".join(words)
    plan["proof"]["certificate"] = "\n".join(lines)
    return "dual"


def false_hash(pick: random.Random, sample: Sample, plan: dict[str, Any]) -> str:
    proof = plan["proof"]
    old = pick.choice([proof["problem_hash"], plan["structure_hash"]])
    at = pick.randrange(len(old))
    new = old[:at] + ("0" if old[at] != "0" else "1") + old[at + 1 :]
    if old == plan["structure_hash"]:
        plan["structure_hash"] = new
    else:
        if pick.random() < 0.5:
            proof["problem_hash"] = new
        proof["certificate"] = proof["certificate"].replace(old, new)
    return "hash"


def false_row(pick: random.Random, sample: Sample, plan: dict[str, Any]) -> str:
    """A cost in the table is another; the hashes as they were, or those of the new problem."""
    proof = plan["proof"]
    problem = pick.choice(sorted(proof["costs"]))
    row = pick.choice(sorted(proof["costs"][problem]))
    change = pick.choice([-TICKS_PER_US, -1, 1, TICKS_PER_US, -40 * TICKS_PER_US])
    ticks = max(proof["costs"][problem][row] + change, 0)
    proof["costs"][problem] = {**proof["costs"][problem], row: ticks}
    text = problem_text(sample.text, proof["costs"], sample.refused)
    if text == sample.problem:
        return ""  # a row that nobody would choose before or after; the claims stand
    if pick.random() < 0.5:
        solution = solve(Problem.from_text(text), marginals=False)
        if solution.cost == plan["cost_ticks"]:
            return ""
        digits = solution.certificate.text.split("\n")[1].split()[1]
        proof["certificate"] = proof["certificate"].replace(proof["problem_hash"], digits)
        proof["problem_hash"] = digits
        return "row: hashed"
    return "row"


def false_refusal(pick: random.Random, sample: Sample, plan: dict[str, Any]) -> str:
    """A candidate may be chosen that might not, or the other way round."""
    refused = [list(item) for item in plan["proof"]["refused"]]
    node = pick.choice(plan["nodes"])
    if refused and pick.random() < 0.5:
        refused.pop(pick.randrange(len(refused)))
    elif node["primitive"]:
        row = f"{node['primitive']} {node['src']}->{node['dst']}"
        refused.append([node["name"], node["problem"], row])
    plan["proof"]["refused"] = refused
    try:
        return (
            "refusal" if problem_text(sample.text, sample.rows, refused) != sample.problem else ""
        )
    except ValueError:  # nothing is left that the node may run
        return "refusal"


def false_graph(pick: random.Random, sample: Sample, plan: dict[str, Any]) -> str:
    """The graph has another op, name or connection."""
    lines = sample.text.split("\n")
    at = pick.randrange(1, len(lines) - 1)
    fields = lines[at].split("\t")
    if fields[0] == "node":
        fields[5] = "-" if fields[5] != "-" else "relu_f32_n1c16h8w8"
    elif fields[0] == "value":
        fields[2] = "1,24,8,8"
    elif fields[0] == "input":
        fields[2] = "nhwc" if fields[2] == "nchw" else "nchw"
    else:
        fields[1] = "0"
    if "\t".join(fields) == lines[at]:
        return ""
    lines[at] = "\t".join(fields)
    plan["proof"]["graph"] = "\n".join(lines)
    return "graph"


def test_every_plan_with_a_false_claim_is_refused() -> None:
    pick = random.Random(5)
    falsify = [
        false_choice, false_layout, false_cost, false_optimum, false_dual, false_hash, false_row,
        false_refusal, false_graph,
    ]  # fmt: skip
    counts: Counter[str] = Counter()
    seed = 0
    while sum(counts.values()) < MUTANTS:
        seed += 1
        sample = Sample(str(GraphText(seed, 4 + seed % 5)), seed, allowed=0.5)
        assert not is_refused(sample.plan), seed
        before = json.dumps(sample.plan)
        for change in falsify * 15:
            plan = json.loads(before)
            what = change(pick, sample, plan)
            if what and json.dumps(plan) != before:
                assert is_refused(plan), f"{seed} {what}\n{sample.text}\n{json.dumps(plan)}"
                counts[what] += 1
    assert min(counts.values()) > 30 and len(counts) >= 15, counts


# ---- in a plan's file ----------------------------------------------------------------------------


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
    assert main(["check-plan", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("proven: ") and "on trust, from the plan's file: the graph" in printed
    not_checked = printed.split("not checked: ")[1].split("\n")[0].split(", ")
    assert {"capture_error", "comparisons", "cost_source"} <= set(not_checked)
    assert not {"cost_ticks", "lower_bound_ticks", "status"} & set(not_checked)
    for file in ("check_plan.py", "check_certificate.py"):  # these two alone, without torch
        shutil.copy(CHECKER.with_name(file), tmp_path)
    command = [sys.executable, "-S", str(tmp_path / "check_plan.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "every claim holds" in done.stdout and "not checked: [" in done.stdout
    false = dataclasses.replace(plan, cost_ticks=plan.cost_ticks - 1)
    false.save(path)
    assert main(["check-plan", str(path)]) == 1 and "FAILS" in capsys.readouterr().out
    with pytest.raises(torchalgo.Error, match="cost_ticks is"):
        torchalgo.check_plan(false)


def test_a_plan_without_a_proof_says_how_to_get_one(
    fast: torchalgo.Optimized, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchalgo_cli import main

    with pytest.raises(torchalgo.Error, match="with_proof"):
        torchalgo.check_plan(fast.plan)
    fast.plan.save(tmp_path / "net.json")
    assert main(["check-plan", str(tmp_path / "net.json")]) == 1
    assert "with_proof" in capsys.readouterr().err
    with pytest.raises(torchalgo.Error, match="not in memory"):
        torchalgo.load_plan(tmp_path / "net.json").with_proof()


def test_a_certificate_cannot_say_two_things() -> None:
    """What check_plan reads from a certificate is what check_certificate has proven."""
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
    sample = Sample(str(GraphText(8, 6)), 8, allowed=0.7, pairs=20)
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
    assert f"{len(sample.refused)} refused candidates, {len(sample.pairs)} pair costs" in text
    assert text.split("not checked: ")[1] == ", ".join(found.not_checked)
    found = check_plan(plan, cost_rows=sample.rows, refused=sample.refused, pairs=sample.pairs)
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
