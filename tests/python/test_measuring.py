# SPDX-License-Identifier: BSD-3-Clause
"""The measuring loop on a real graph with invented times: measured, checked, quarantined."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.fake_bench import FakeBench, make_tuning, spread
from support.view_nets import Inception
from torchalgo import _C
from torchalgo._capture.freeze import freeze_model
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.costs import key_of, native_key
from torchalgo._ir.overrides import forced_primitives
from torchalgo._ir.problems import dtype_of
from torchalgo._measure.sampling import ROUNDS, ROUNDS_OF_SETUP
from torchalgo._measure.steps import Question
from torchalgo._measure.tuning import TuneSettings, Tuning


def test_every_choice_was_measured_and_checked(imported: _C.Imported) -> None:
    fake = FakeBench(spread)
    plan = make_tuning(imported, fake).settle(_C.make_plan)
    chosen = {(n.problem, n.primitive.name) for n in plan.nodes if n.primitive.name}
    chosen |= {(t.problem, t.primitive.name) for t in plan.transforms}
    chosen = {each for each in chosen if not each[1].startswith("view.")}  # these are free
    assert chosen
    assert chosen <= {(problem, name) for problem, name, _ in fake.measured}
    assert chosen <= set(fake.checked)


def test_choices_rest_on_measured_costs(imported: _C.Imported) -> None:
    fake = FakeBench(spread)
    plan = make_tuning(imported, fake).settle(_C.make_plan)
    measured = {(problem, name) for problem, name, rounds in fake.measured if rounds == ROUNDS}
    assert {(n.problem, n.primitive.name) for n in plan.nodes if n.primitive.name} <= measured
    assert {n.cost_source for n in plan.nodes if n.primitive.name} == {"measured"}


def test_one_visit_is_of_one_operation_with_what_is_fused_to_it(imported: _C.Imported) -> None:
    fake = FakeBench(spread)
    make_tuning(imported, fake).settle(_C.make_plan)
    families = [{problem.partition("+")[0] for problem, _ in visit} for visit in fake.visits]
    assert {len(family) for family in families} == {1}
    assert max(len({problem for problem, _ in visit}) for visit in fake.visits) > 1


def test_the_same_costs_give_the_same_plan(imported: _C.Imported) -> None:
    plans = [make_tuning(imported, FakeBench(spread)).settle(_C.make_plan) for _ in range(2)]
    spelled = [[(n.name, n.primitive.name, n.absorbed_by, n.cost) for n in p.nodes] for p in plans]
    assert spelled[0] == spelled[1]


def test_a_candidate_that_fails_its_check_is_never_chosen_and_says_why(
    imported: _C.Imported,
) -> None:
    def cost(problem: str, p: _C.Primitive) -> float:
        return 10.0 if p.name.startswith("cpu.") else spread(problem, p)

    fast = make_tuning(imported, FakeBench(cost)).settle(_C.make_plan)
    winners = {n.primitive.name for n in fast.nodes if n.primitive.name.startswith("cpu.")}
    assert winners
    fake = FakeBench(cost)
    fake.check_errors = dict.fromkeys(winners, 0.5)
    tuning = make_tuning(imported, fake)
    plan = tuning.settle(_C.make_plan)
    for node in plan.nodes:
        assert node.primitive.name not in winners
    reasons = {key.primitive: why for key, why in tuning.rules.quarantined.items()}
    assert winners <= set(reasons)
    assert set(reasons.values()) == {"relative L2 0.5"}


def test_a_candidate_that_cannot_be_measured_is_quarantined(imported: _C.Imported) -> None:
    fake = FakeBench(spread)
    fake.failures = {"aten.prepacked": "out of memory"}
    tuning = make_tuning(imported, fake)
    plan = tuning.settle(_C.make_plan)
    assert "aten.prepacked" not in {n.primitive.name for n in plan.nodes}
    assert set(tuning.rules.quarantined.values()) == {"out of memory"}


def test_no_candidate_left_is_an_error_with_the_reasons(imported: _C.Imported) -> None:
    fake = FakeBench(spread)
    fake.check_errors = {name: 1.0 for name, _ in _C.algorithms()}
    with pytest.raises(torchalgo.Error, match=r"quarantined: .*relative L2 1.0"):
        make_tuning(imported, fake).settle(_C.make_plan)


def test_the_plan_is_the_optimum_of_all_costs_and_not_all_were_measured(
    imported: _C.Imported,
) -> None:
    fake = FakeBench(spread)
    tuning = make_tuning(imported, fake)
    plan = tuning.settle(_C.make_plan)
    every = [c for own in tuning.found.by_anchor for c in own] + tuning.transforms
    table = _C.CostTable()
    for c in every:
        if not _C.is_view(c.primitive.name):
            key = key_of(c.problem, c.primitive)
            table.set(native_key(key), round(spread(c.problem, c.primitive) * 1024), "measured")
    optimum, wanted = _C.make_plan(imported.graph, tuning.found, tuning.transforms, table)
    assert not wanted
    assert plan.cost == optimum.cost
    ran = len(set(fake.tasks))
    assert ran < len(table)
    assert f"measured {ran} of {len(table)} candidates" in tuning.method_note()


class DrawnPeaks:
    """Bounds a little below the times of `spread`."""

    is_probed = False

    def bound_ticks(self, problem: str, p: _C.Primitive) -> int:
        return round(0.9 * 1024 * spread(problem, p))


def bounded_tuning(imported: _C.Imported, fake: FakeBench) -> Tuning:
    found = _C.find_candidates(imported.graph)
    bench = dataclasses.replace(fake.bench(), peaks=lambda: DrawnPeaks())
    return Tuning(imported.graph, found, {}, TuneSettings(), bench=bench)


def test_what_is_bounded_by_its_work_need_not_run_at_all(imported: _C.Imported) -> None:
    blind, told = FakeBench(spread), FakeBench(spread)
    best = make_tuning(imported, blind).settle(_C.make_plan).cost
    assert bounded_tuning(imported, told).settle(_C.make_plan).cost == best
    assert len(told.measured) < len(blind.measured)


def test_an_interrupt_after_the_first_costs_gives_a_plan_of_pytorchs_own(
    imported: _C.Imported,
) -> None:
    fake = FakeBench(spread)
    fake.interrupt_after = 1
    plan = bounded_tuning(imported, fake).settle(_C.make_plan)
    names = {n.primitive.name for n in plan.nodes if n.primitive.name}
    assert names and all(name.startswith("aten.") for name in names)
    assert "model" in {n.cost_source for n in plan.nodes if n.primitive.name}


class RacingBench(FakeBench):
    """Ends the race after two samples for what is slower than 1.25 times its best rival."""

    def measure(
        self, tasks: Sequence[tuple[str, _C.Primitive]], *, rounds: int, race: bool, **options: Any
    ) -> list[Any]:
        results = super().measure(tasks, rounds=rounds, **options)
        best: dict[tuple[str, str, str], float] = {}
        places = [(problem, p.src, p.dst) for problem, p in tasks]
        for place, taken in zip(places, results, strict=True):
            best[place] = min(best.get(place, 1e9), *taken.ns)
        for place, taken in zip(places, results, strict=True):
            if race and taken.ns[0] > 1.25 * best[place]:
                del taken.ns[2:]
        return results


def test_what_lost_its_race_is_a_bound_and_the_optimum_is_the_same(imported: _C.Imported) -> None:
    fair, racing = FakeBench(spread), RacingBench(spread)
    best = make_tuning(imported, fair).settle(_C.make_plan)
    tuning = make_tuning(imported, racing)
    plan = tuning.settle(_C.make_plan)
    assert [(n.name, n.primitive.name, n.cost) for n in plan.nodes] == [
        (n.name, n.primitive.name, n.cost) for n in best.nodes
    ]
    assert lost_keys(tuning)


def lost_keys(tuning: Tuning) -> list[Any]:
    """Those that ran, and are not known."""
    return [key for key in tuning.rules.primitives if tuning.knowledge.costs.is_touched(key)
            and not tuning.knowledge.costs.is_known(key)]  # fmt: skip


def test_a_loser_that_an_override_names_is_measured_to_the_end(imported: _C.Imported) -> None:
    def cost(problem: str, p: _C.Primitive) -> float:
        return 1e6 if p.name == "cpu.im2col_gemm" else spread(problem, p)

    racing = RacingBench(cost)
    tuning = make_tuning(imported, racing, overrides={"layer1.0.conv1": "cpu.im2col_gemm"})
    plan = tuning.settle(_C.make_plan)
    (node,) = [n for n in plan.nodes if n.name == "layer1.0.conv1"]
    assert node.primitive.name == "cpu.im2col_gemm"
    assert node.cost_source == "measured"
    assert node.cost == round(1e6 * 1024)


def test_what_the_plan_rests_on_was_timed_again_with_its_close_rivals(
    imported: _C.Imported,
) -> None:
    fake = FakeBench(spread)
    tuning = make_tuning(imported, fake)
    plan = tuning.settle(_C.make_plan)
    again = {
        (problem, name) for problem, name, rounds in fake.measured if rounds == ROUNDS_OF_SETUP
    }
    chosen = {(n.problem, n.primitive.name) for n in plan.nodes if n.primitive.name}
    assert chosen - {c for c in chosen if _C.is_view(c[1])} <= again
    assert len(again) < len(fake.tasks) / 2


def test_views_are_never_measured() -> None:
    x = torch.rand(1, 32, 12, 12)
    graph = _C.import_graph(freeze_model(Inception().eval(), (x,))._c, (x,)).graph
    fake = FakeBench(lambda problem, p: 100.0 if "nChw16c" in (p.src, p.dst) else 1000.0)
    tuning = Tuning(graph, _C.find_candidates(graph), {}, TuneSettings(), bench=fake.bench())
    plan = tuning.settle(_C.make_plan)
    assert any(_C.is_view(n.primitive.name) for n in plan.nodes if n.primitive.name)
    assert not [name for _, name, _ in fake.measured if _C.is_view(name)]
    assert all(n.cost == 0 for n in plan.nodes if _C.is_view(n.primitive.name))
    rules = tuning.rules
    rivals = {k for key in rules.primitives for k in (*rules.family(key), *rules.same_place(key))}
    assert rivals == {key for key in rules.primitives if not _C.is_view(key.primitive)}


def test_luck_in_the_race_decides_nothing(imported: _C.Imported) -> None:
    """The first samples of one primitive are half the truth: it wins and is found out."""

    class Lucky(FakeBench):
        def measure(self, tasks: Any, *, rounds: int, **options: Any) -> list[Any]:
            results = super().measure(tasks, rounds=rounds, **options)
            for (_, p), taken in zip(tasks, results, strict=True):
                if p.name == "cpu.im2col_gemm" and rounds == ROUNDS:
                    taken.ns = [ns / 3 for ns in taken.ns]
            return results

    plan = make_tuning(imported, Lucky(spread)).settle(_C.make_plan)
    best = make_tuning(imported, FakeBench(spread)).settle(_C.make_plan)
    for node in plan.nodes:
        if node.primitive.name and not _C.is_view(node.primitive.name):
            assert node.cost == round(1024 * spread(node.problem, node.primitive))
    assert plan.cost <= 1.2 * best.cost


def test_simpler_plans_measure_nothing_and_their_unknown_costs_are_predicted(
    imported: _C.Imported,
) -> None:
    fake = FakeBench(spread)
    tuning = make_tuning(imported, fake)
    best, ran = tuning.settle(_C.make_plan), list(fake.tasks)
    questions = {
        "local": Question(_C.make_local_plan),
        "nchw": Question(options={"layouts": ["nchw"]}),
    }
    plans = tuning.estimates(questions)
    assert fake.tasks == ran and plans.keys() == questions.keys()
    assert all(plan.cost >= best.cost for plan in plans.values())
    assert {n.primitive.src for n in plans["nchw"].nodes if n.primitive.name} == {"nchw"}
    planned = {node.name: node.primitive.name for node in plans["local"].nodes}
    convolutions = 0
    for node, offered in zip(imported.graph.nodes, tuning.found.by_anchor, strict=True):
        if node.problem and node.problem.startswith("fwd_"):
            convolutions += 1
            alone = [c for c in offered if len(c.covers) == 1]
            fastest = min(alone, key=lambda c: spread(c.problem, c.primitive))
            assert planned[node.name] == fastest.primitive.name
    assert convolutions > 4


def test_costs_in_a_file_need_not_be_taken_again(imported: _C.Imported, tmp_path: Path) -> None:
    found = _C.find_candidates(imported.graph)

    def run(fake: FakeBench) -> int:
        with CostStore.open(tmp_path / "costs.sqlite3") as store:
            tuning = Tuning(
                imported.graph,
                found,
                {},
                TuneSettings(),
                bench=fake.bench(),
                cost_file=DeviceCosts.of(store),
            )
            return tuning.settle(_C.make_plan).cost

    first, second = FakeBench(spread), FakeBench(spread)
    assert run(first) == run(second)
    assert first.measured and not second.measured


def test_an_override_is_obeyed_and_not_screened(imported: _C.Imported) -> None:
    def cost(problem: str, p: _C.Primitive) -> float:
        return 1e6 if p.name == "cpu.im2col_gemm" else spread(problem, p)

    overrides = {"layer1.*": "cpu.im2col_gemm"}
    plan = make_tuning(imported, FakeBench(cost), overrides=overrides).settle(_C.make_plan)
    convs = [n for n in plan.nodes if n.name.startswith("layer1.") and "conv" in n.name]
    assert len(convs) == 4
    assert {n.primitive.name for n in convs} == {"cpu.im2col_gemm"}


def test_a_late_interrupt_gives_a_plan_of_what_is_known(imported: _C.Imported) -> None:
    free = FakeBench(spread)
    make_tuning(imported, free).settle(_C.make_plan)
    fake = FakeBench(spread)
    fake.interrupt_after = free.calls - 1
    tuning = make_tuning(imported, fake)
    plan = tuning.settle(_C.make_plan)
    known = {(key.problem, key.primitive) for key in tuning.known}
    checked = {(key.problem, key.primitive) for key in tuning.errors}
    chosen = {(n.problem, n.primitive.name) for n in plan.nodes if n.primitive.name}
    assert chosen <= known
    assert all(name.startswith("aten.") or (p, name) in checked for p, name in chosen)
    assert "interrupted: only checked candidates" in tuning.method_note()


def test_an_early_interrupt_is_an_interrupt(imported: _C.Imported) -> None:
    fake = FakeBench(spread)
    fake.interrupt_after = 0
    with pytest.raises(KeyboardInterrupt):
        make_tuning(imported, fake).settle(_C.make_plan)


def test_a_spent_budget_keeps_each_node_alone_and_stops_there(imported: _C.Imported) -> None:
    fake = FakeBench(spread)
    tuning = make_tuning(imported, fake, budget_s=0.5)
    tuning.settle(_C.make_plan)
    free = FakeBench(spread)
    make_tuning(imported, free).settle(_C.make_plan)
    assert "out of budget" in tuning.method_note()
    assert len(fake.measured) < len(free.measured)


def test_known_costs_are_enough_for_an_override_or_it_says_so(imported: _C.Imported) -> None:
    fake = FakeBench(spread)
    tuning = make_tuning(imported, fake)
    tuning.settle(_C.make_plan)
    before = len(fake.measured)
    plan = tuning.solve_known(
        forced_primitives(imported.graph, tuning.found, {"layer2.*": "aten.conv"})
    )
    names = {n.primitive.name for n in plan.nodes if n.name == "layer2.0.conv1"}
    assert names == {"aten.conv"}
    assert len(fake.measured) == before


def test_the_compute_type_is_read_from_the_spelling() -> None:
    assert dtype_of("fwd_bf16_n1c3h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g1") == "bf16"
    assert dtype_of("transform_f64_n1c3h8w8_nchw_nhwc") == "f64"
    assert dtype_of("bwd_data_f32_n1c3h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g1") == "f32"
