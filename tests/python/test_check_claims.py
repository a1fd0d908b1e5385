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
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import torchalgo
from support.activations import ACTIVATIONS
from support.false_plans import dearer_rows, is_refused, take_row
from support.plan_samples import (
    GraphText,
    Sample,
    changes_cost,
    true_cost,
    us,
)
from torchalgo import _C
from torchalgo.pbqp import Problem, solve
from torchalgo.verify import check_certificate
from torchalgo.verify.check_claims import (
    APPENDED,
    TICKS_PER_US,
    Graph,
    check_claims,
    options_of,
    problem_text,
)
from torchalgo.verify.check_plan import check_plan

GRAPHS = Path(__file__).parents[2] / "benchmarks" / "graphs" / "inference.zip"
NETWORKS = ("alexnet", "densenet121", "efficientnet_b0")
MUTANTS = 10_000
# Plans with costs of pairs, which no planner makes any more.
OLDER = Path(__file__).parents[1] / "golden" / "pairs_0.1.0.json"
PLANS_WITH_PAIRS = [json.dumps(plan) for plan in json.loads(OLDER.read_text())]


# ---- what is true is accepted --------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_activation_may_follow_in_the_same_call(activation: str) -> None:
    found = APPENDED.fullmatch(f"{activation}_f32_n1c1h1w1")
    assert found is not None and found[1] == activation


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


@pytest.mark.parametrize("seed", range(6))
def test_the_claims_of_training_plans_with_tensors_in_bf16_hold(seed: int) -> None:
    shape = "n2c16h8w8"
    conv = f"fwd_f32_{shape}_k16r3s3_st1x1_pad1x1_dil1x1_g1"
    forward = "\n".join([
        "torchalgo graph 1",
        *(f"value\tv{i}\t{sizes}\tf32" for i, sizes in enumerate(
            ["2,16,8,8", "2,16,8,8", "2,16,1,1", "2,16,8,8", "2,16,8,8", "2,16,8,8"]
        )),
        f"node\tconv\tfwd\t0\t1\t{conv}\t",
        f"node\tnorm.moments\tmoments\t1\t2\tmoments_f32_{shape}\t",
        f"node\tnorm\tnormalize\t1,2\t3\tnormalize_f32_{shape}_eps1e-05\t",
        f"node\tsum\tadd\t3,0\t4\tadd_f32_{shape}\t",
        f"node\trelu\trelu\t4\t5\trelu_f32_{shape}\t",
        "input\t0\tnchw", "output\t5", "",
    ])  # fmt: skip
    graph = _C.training_graph(_C.parse_graph(forward), [0], [])
    sample = Sample(graph.to_text(), seed, in_bf16=True)
    assert any("bf16" in row and "moments" in problem for problem, rows in sample.rows.items()
               for row in rows)  # fmt: skip
    assert problem_text(sample.text, sample.rows, sample.refused) == sample.problem
    check_plan(sample.plan)


@pytest.mark.parametrize("text", PLANS_WITH_PAIRS)
def test_a_plan_with_pairs_of_an_older_version_is_proven(text: str) -> None:
    plan = torchalgo.Plan.from_json(text)
    assert plan.proof is not None and len(plan.proof.pairs) > len(plan.pairs) > 2
    assert any(pair.ticks < 0 for pair in plan.pairs)
    assert check_plan(plan).is_optimal and check_plan(text).is_optimal
    assert torchalgo.Plan.from_json(plan.to_json()) == plan
    cheaper = dataclasses.replace(
        plan, pairs=[], cost_ticks=plan.cost_ticks - sum(pair.ticks for pair in plan.pairs)
    )
    with pytest.raises(torchalgo.Error, match="the pairs that apply"):
        check_plan(cheaper)


def test_a_plan_with_a_false_pair_is_refused() -> None:
    pick = random.Random(9)
    counts: Counter[str] = Counter()
    for text in PLANS_WITH_PAIRS:
        true = json.loads(text)
        proof = true["proof"]
        rows, refused = proof["costs"], proof["refused"]
        problem = problem_text(proof["graph"], rows, refused, proof["pairs"])
        for _ in range(100):
            plan = json.loads(text)
            what = false_pair(pick, plan)
            try:
                own = problem_text(proof["graph"], rows, refused, plan["proof"]["pairs"])
            except ValueError:  # two of one pair, or of a node with itself
                own = ""
            if own == problem and plan["pairs"] == true["pairs"]:
                continue  # of what nobody may run
            assert is_refused(plan), what
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
        # Between "-" and "shape" both may be true: the tensor may exist in nchw anyway.
        fields[5] = "relu_f32_n1c16h8w8" if fields[5] in ("-", "shape") else "-"
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


@pytest.mark.slow
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


# ---- plans that ask for much work ----------------------------------------------------------------

RELU = "relu_f32_n1c8h8w8"
ALGORITHMS = {f"a{i} nchw->nchw": 1 for i in range(100)}
ALL_LAYOUTS = {f"a {src}->{dst}": 1 for src in ("nchw", "nhwc") for dst in ("nchw", "nhwc")}


def chain_text(nodes: int, problem: str, inputs: int = 1) -> str:
    lines = ["torchalgo graph 1", *(f"value\tv{i}\t1,8,8,8\tf32" for i in range(nodes + 1))]
    lines += ["input\t0\tnchw"]
    for i in range(nodes):
        lines.append(f"node\tn{i}\tx\t{','.join([str(i)] * inputs)}\t{i + 1}\t{problem}")
    return "\n".join([*lines, f"output\t{nodes}", ""])


PLAN_BOMBS: dict[str, tuple[str, Any]] = {
    "calls of many nodes": (
        chain_text(12, RELU), {RELU + "+relu" * n: ALL_LAYOUTS for n in range(12)}
    ),
    "costs of one problem": (chain_text(100, RELU), {RELU: ALGORITHMS}),
    "inputs": (chain_text(1, "concat", 5_000), {"concat": ALL_LAYOUTS}),
}  # fmt: skip


def plan_of(graph: str, costs: Any) -> dict[str, Any]:
    proof = {"graph": graph, "costs": costs, "certificate": "", "problem_hash": ""}
    return {"nodes": [], "transforms": [], "proof": proof}


@pytest.mark.parametrize("name", PLAN_BOMBS)
def test_short_plans_cannot_ask_for_much_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_certificate, "MAX_WORK", (200_000, 10))
    with pytest.raises(check_certificate.ProofError, match="too much work"):
        check_claims(plan_of(*PLAN_BOMBS[name]))


@pytest.mark.parametrize(
    ("graph", "row"),
    [
        (chain_text(1, RELU).replace("nchw", "nChw8c"), "a nchw->nchw"),
        (chain_text(1, "nchw->nChw8c"), "a nchw->nchw"),
        (chain_text(1, "nChw8c->nchw"), "a nchw->nchw"),
        (chain_text(1, RELU), "a nchw->nChw8c"),
    ],
)
def test_a_layout_that_is_gone_is_refused_with_the_reason(graph: str, row: str) -> None:
    with pytest.raises(check_certificate.ProofError, match=r"^'nChw8c' is no longer a layout"):
        check_claims(plan_of(graph, {RELU: {row: 1}}))


def test_costs_of_thousands_of_digits_are_refused() -> None:
    for costs in ({RELU: {"a nchw->nchw": 10**4_000}}, {RELU: {"a nchw->nchw": 1 << 63}}):
        with pytest.raises(check_certificate.ProofError, match="above the largest one"):
            check_claims(plan_of(chain_text(1, RELU), costs))
