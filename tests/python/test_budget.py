# SPDX-License-Identifier: BSD-3-Clause
"""A call with a short budget leaves out steps. These tests show which steps, and what runs then."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.activations import ACTIVATIONS
from support.nets import arguments, make_net
from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._base.progress import Event, Progress
from torchalgo._base.time_budget import DEFAULT_BUDGET_S, Deadline, budget_of_call
from torchalgo._capture.settings import Options
from torchalgo._db import CostStore
from torchalgo._db.row import Verdict
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import Cost, Key, key_of
from torchalgo._ir.plan import GuardVerdict
from torchalgo._measure.checking import Group, cropped
from torchalgo._measure.guard import untimed_verdict
from torchalgo._measure.knowledge import is_trusted
from torchalgo._measure.similar import SimilarCosts, kind_of
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._measure.worker_process import WorkerDeathError, WorkerProcess
from torchalgo._refine.contest import Contest
from torchalgo._refine.end_of_call import CallBudget, GuardEffort

CONV = "fwd_f32_n{n}c{c}h{h}w{w}_k{k}r3s3_st1x1_pad1x1_dil1x1_g1+bias"


def direct(**sizes: int) -> Key:
    sizes = {"n": 1, "c": 64, "h": 56, "w": 56, "k": 64, **sizes}
    return Key(CONV.format(**sizes), "cpu.direct", "nChw16c", "nChw16c")


# ---- the budget of a call ------------------------------------------------------------------------


def test_without_a_budget_a_call_ends_after_90_s_per_plan_and_infinity_is_without_end() -> None:
    assert DEFAULT_BUDGET_S == 90.0
    assert budget_of_call(None) == 90.0 and budget_of_call(None, 3) == 270.0
    assert budget_of_call(5.0, 3) == 5.0
    assert Deadline(budget_of_call(None)).has_end
    assert not Deadline(budget_of_call(math.inf)).has_end


@pytest.mark.parametrize(
    ("spent_s", "whole_s", "advice"),
    [(90.0, 28.0, 180), (270.0, 28.0, 540), (1e-3, 0.2, 1), (2.0, 28.4, 29)],
)
def test_the_advice_after_the_time_ran_out_is_more_than_was_spent(
    spent_s: float, whole_s: float, advice: int
) -> None:
    """A plan of several, and a part of a model, have a part of the time only."""
    options = Options.of(torchalgo.Settings(progress=False))
    call = CallContext.start(Deadline(spent_s)).within(spent_s / 3)
    budget: Any = SimpleNamespace(least_call_s=whole_s, call=call)
    contest = Contest(None, options, None, budget)  # type: ignore[arg-type]
    tuning = SimpleNamespace(is_disturbed=False, known={})
    tuned: Any = SimpleNamespace(limits=SimpleNamespace(tuning=tuning))
    reason = contest._out_of_time(tuned).reason
    assert f"such as budget_s={advice} (--budget {advice})" in reason


def test_a_call_tells_its_plans_and_parts_how_much_time_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []

    def out_of_time(self: Contest, _: object) -> GuardVerdict:
        seen.append(self._budget.call.deadline.call_s)
        return untimed_verdict("no time")

    monkeypatch.setattr(Contest, "_out_of_time", out_of_time)
    monkeypatch.setattr(CallBudget, "guard_effort", lambda self: None)
    shapes = [(1, 3, 16, 16), (2, 3, 16, 16)]
    torchalgo.optimize(make_net(), shapes=shapes, **arguments(budget_s=0.5, cost_db=False))
    assert seen == [0.5, 0.5]


def test_a_plan_without_time_to_be_timed_runs_only_if_the_caller_says_so(tmp_path: Path) -> None:
    net, x = make_net(), torch.rand(1, 3, 16, 16)
    options: dict[str, Any] = {"budget_s": 1e-3, "cost_db": False}
    fast = torchalgo.optimize(net, x, **arguments(**options))
    assert fast.runs == "baseline"
    assert fast.plan.guard is not None and fast.plan.guard.rounds == 0
    assert "out of budget" in fast.plan.guard.reason
    assert "run_untimed" not in fast.plan.guard.reason  # nothing was measured
    assert {node.cost_source for node in fast.plan.nodes if node.primitive} <= {
        "model",
        "construction",
    }
    forced = torchalgo.optimize(net, x, **arguments(run_untimed=True, **options))
    assert forced.runs == "plan"
    with pytest.raises(torchalgo.Error, match="TA2301 pareto: tuning ended before the costs"):
        forced.pareto()
    with pytest.raises(torchalgo.Error, match="run_untimed=1, expected True or False"):
        torchalgo.optimize(net, x, settings=torchalgo.Settings(run_untimed=1, progress=False))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_busy", [True, False])
def test_on_a_busy_machine_the_first_advice_is_to_end_the_other_programs(
    is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchalgo._measure.tuning.warn_if_busy", lambda *_: is_busy)
    monkeypatch.setattr(Cost, "is_disturbed", False)
    monkeypatch.setattr(CallBudget, "guard_effort", lambda self: None)
    fast = torchalgo.optimize(
        make_net(), torch.rand(1, 3, 16, 16), **arguments(budget_s=9.0, cost_db=False)
    )
    assert fast.plan.guard is not None
    reason = fast.plan.guard.reason
    assert reason.startswith("out of budget before the plan was timed: ")
    other = "end the other programs that use the processors, or start with GOMP_SPINCOUNT=1000, and"
    assert (f"timed: {other} give" in reason) == is_busy
    assert "give more time, such as budget_s=18 (--budget 18), or run the plan untimed" in reason
    assert "with Settings(run_untimed=True) (--run-untimed)" in reason


def test_on_a_busy_machine_a_call_that_measures_nothing_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchalgo._measure.tuning.warn_if_busy", lambda *_: True)
    fast = torchalgo.optimize(
        make_net(), torch.rand(1, 3, 16, 16), **arguments(budget_s=1e-3, cost_db=False)
    )
    assert fast.plan.guard is not None
    assert "timed: end the other programs that use the processors" in fast.plan.guard.reason


def test_the_share_that_is_told_at_an_early_end_is_the_share_that_was_done() -> None:
    told: list[Event] = []
    progress = Progress(told.append)
    progress.start(200)
    progress.advance("a", 2)
    progress.finish("planned", is_whole=False)
    assert [event.text for event in told][-1] == "planned after 1 % of the work"
    assert all(event.done < event.total for event in told if event.total)


def test_a_worker_that_starts_too_late_is_broken_off() -> None:
    worker = WorkerProcess(["sleep", "60"])
    started = time.monotonic()
    with pytest.raises(WorkerDeathError) as death:
        worker.ask({}, lambda _: 0.0)
    assert death.value.hung
    assert time.monotonic() - started < 30


# ---- what is measured and checked under it -------------------------------------------------------


def test_a_check_on_a_smaller_image_keeps_channels_filter_and_edges() -> None:
    key = direct(n=8, h=6000, w=6010)
    small = cropped(key)
    assert small is not None
    c, h, w = (int(_C.parse_problem(small).split("_")[2].split(s)[1].split(t)[0])
               for s, t in (("c", "h"), ("h", "w"), ("w", "_")))  # fmt: skip
    assert (c, h % 16, w % 16) == (64, 6000 % 16, 6010 % 16)
    assert small.startswith("fwd_f32_n1c64") and small.endswith(
        "_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias"
    )
    assert _C.flop_count(small) < 1e-4 * _C.flop_count(key.problem)
    assert cropped(direct(c=1, k=1, h=14, w=14)) is None
    for problem, small_problem in (
        ("bwd_normalize_f32_n8c16h140w140_eps1e-05+relu", "n1c16h140w140_eps1e-05+relu"),
        ("concat_f32_n8c64x32h56w56", "n1c64x32h56w56"),
        (
            "chain_f32_n8c64h56w56_scaleshift+relu_k8r1s1_st1x1_pad0x0_dil1x1_g1",
            "n1c64h56w56_scale",
        ),
        ("scaleshift_f32_n8c64h56w56+relu", "n1c64h56w56+relu"),
        ("shuffle_f32_n8c64h56w56_g2", "n1c64h56w56_g2"),
        ("sub_f32_n8c64h56w56", "n1c64h56w56"),
        ("layernorm_f32_n8c64h56w56_eps1e-06", "n1c64h56w56_eps1e-06"),
        ("nearest_f32_n8c64h56w56_x2x2", "n1c64h56w56_x2x2"),
        (
            "chain_f32_n8c96h28w28_avgpool_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias",
            "n1c96h28w28_avgpool",
        ),
        *((f"{name}_f32_n8c16h140w140", "n1c16h140w140") for name in ACTIVATIONS),
        *((f"bwd_{name}_f32_n8c16h140w140", "n1c16h140w140") for name in ACTIVATIONS),
        ("bwd_data_f32_n8c3h56w56_k8r3s3_st1x1_pad1x1_dil1x1_g1", "n1c3h56w56_k8r3s3_st1x1"),
    ):
        kind = problem[: problem.index("n8")]
        found = cropped(Key(problem, "cpu.x", "nChw16c", "nChw16c"))
        assert found is not None and found.startswith(kind + small_problem), problem
    pool = "avgpool_f32_n1c512h600w600_p7q7"
    assert cropped(Key(pool, "cpu.pool", "nChw16c", "nChw16c")) is None
    for sum_of_pixels in (
        "moments_f32_n8c16h140w140", "bwd_normalize_sums_f32_n8c16h140w140_eps1e-05",
        "bwd_filter_f32_n8c3h56w56_k8r3s3_st1x1_pad1x1_dil1x1_g1",
        "chain_f32_n1c96h6000w6010_avgpool_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias",
        "groupnorm_f32_n8c64h6000w6010_g32_eps1e-05",
    ):  # fmt: skip
        assert cropped(Key(sum_of_pixels, "cpu.x", "nChw16c", "nChw16c")) is None


def test_candidates_in_coarser_types_are_checked_on_a_smaller_image_too(
    imported: _C.Imported,
) -> None:
    found = _C.find_candidates(imported.graph)
    checker = Tuning(imported.graph, found, {}, TuneSettings())._checker
    coarse = 0
    for problem in (
        direct(n=8, h=112, w=112).problem,
        "relu_f32_n8c64h112w112",
        "concat_f32_n8c64x32h56w56",
    ):
        primitives = _C.offers_of(problem, coarse_types=True)[0]
        coarse += sum(_C.rounds_coarsely(problem, p) for p in primitives)
        keys = [key_of(problem, p) for p in primitives]
        group = checker._smaller(Group(problem, keys, primitives))
        assert group is not None and group.is_cropped
        assert [(p.name, p.src, p.dst) for p in group.primitives] == [k[1:] for k in keys]
    assert coarse or not _C.cpu_device().bf16_isa


def test_pytorchs_own_needs_no_check_before_a_plan_may_rest_on_it() -> None:
    names = ("aten.conv", "layout.aten", "view.relabel", "cpu.direct", "layout.tiled")
    assert [is_trusted(direct()._replace(primitive=name)) for name in names] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_similar_problems_cost_as_many_times_their_bounds() -> None:
    peaks = Peaks(100.0, ((1 << 14, 50.0),))
    bound = {k: peaks.bound_ticks(k.problem, _C.Primitive(*k[1:])) for k in
             (direct(), direct(k=128), direct(c=3))}  # fmt: skip
    known = {direct(): 3 * bound[direct()]}
    predicted = SimilarCosts(known, peaks).predict(bound)
    assert predicted[direct()] == known[direct()]
    assert predicted[direct(k=128)] == pytest.approx(3 * bound[direct(k=128)], rel=0.01)
    assert direct(c=3) not in predicted  # it does not fill a block of channels: another kind
    other = direct()._replace(primitive="cpu.im2col_gemm")
    assert SimilarCosts(known, peaks).predict([other]) == {}


def test_kinds_are_told_apart_by_filter_stride_and_groups() -> None:
    dense, few = kind_of(direct().problem), kind_of(direct(c=3).problem)
    deep = kind_of(direct().problem.replace("_g1", "_g64"))
    grouped = kind_of(direct().problem.replace("_g1", "_g4"))
    strided = kind_of(direct().problem.replace("st1x1", "st2x2"))
    assert len({dense, few, deep, grouped, strided}) == 5
    assert kind_of(direct(c=128, h=7, w=7, k=512).problem) == dense


# ---- the verdict ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("baselines", "rounds", "is_kept"),
    [((), 25, True), (("frozen", "channels_last"), 25, False), ((), 3, False)],
)
def test_only_a_verdict_of_the_best_effort_is_kept(
    baselines: tuple[str, ...], rounds: int, is_kept: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[set[str]] = []

    def timed(calls: Mapping[str, Any], **_: Any) -> dict[str, list[float]]:
        asked.append(set(calls))
        return {name: [50.0 if name == "plan" else 100.0] * rounds for name in calls}

    monkeypatch.setattr("torchalgo._measure.guard.time_interleaved", timed)
    effort = GuardEffort(0, 0.0, baselines)
    monkeypatch.setattr(CallBudget, "guard_effort", lambda self: effort)
    model, x = nn.Conv2d(3, 8, 3).eval(), torch.rand(1, 3, 12, 12)
    path = tmp_path / "costs.sqlite3"
    fast = torchalgo.optimize(model, x, **arguments(cost_db=path))
    assert fast.runs == "plan" and len(asked) == 1
    with CostStore.open(path) as store:
        assert bool([v for v in store.all_of(Verdict) if ":" not in v.problem]) == is_kept
