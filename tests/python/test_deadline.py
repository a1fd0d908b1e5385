# SPDX-License-Identifier: BSD-3-Clause
"""The budget of one call, on a clock that the tests move."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support.fake_bench import Taken
from support.slow_machine import Clock, SlowMachine
from support.workers import CONV, OPTIONS, MakeBench
from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._base.time_budget import Deadline, Pace
from torchalgo._base.timings import Timings
from torchalgo._ir.failures import LATE
from torchalgo._measure.sampling import Bench
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._refine.end_of_call import CallBudget, GuardEffort


def test_a_step_ends_before_what_is_kept_for_those_after_it() -> None:
    clock = Clock()
    deadline = Deadline(20.0, clock)
    deadline.keep("check", 3.0)
    deadline.keep("finish", 5.0)
    assert [deadline.left_s(step) for step in Deadline.STEPS] == [12.0, 15.0, 20.0]
    clock.s += 12.0
    assert deadline.is_over("measure") and not deadline.is_over("check")
    assert not deadline.is_lost("measure")
    clock.s += 1.5  # half of what the checks have
    assert not deadline.is_lost("measure")  # nothing to fall back to
    deadline.can_break = True
    assert deadline.is_lost("measure") and not deadline.is_lost("check")
    deadline.keep("check", 9.0)
    assert deadline.left_s("measure") == -7.5


def test_without_a_budget_there_is_no_end() -> None:
    deadline = Deadline(None)
    deadline.keep("finish", 1e9)
    deadline.can_break = True
    assert deadline.left_s("measure") == math.inf
    assert not deadline.is_lost("finish")


def test_a_pace_follows_what_was_seen() -> None:
    pace = Pace(4.0)
    assert pace.expect_s(1.0) == pytest.approx(4.0 * Pace.CAUTION)
    for _ in range(10):
        pace.learn(0.5, 0.1)
    assert pace.expect_s(1.0) == pytest.approx(0.2 * Pace.CAUTION, rel=0.01)


# ---- a tuning in invented time -------------------------------------------------------------------


@pytest.mark.parametrize("run_s", [1e-4, 3e-3, 2e-2, 0.1])
def test_tuning_keeps_its_budget_and_gives_a_checked_plan(
    imported: _C.Imported, run_s: float
) -> None:
    found = _C.find_candidates(imported.graph)

    def tune(budget_s: float | None, seed: int) -> tuple[float, SlowMachine, Tuning, _C.Plan]:
        clock = Clock()
        machine = SlowMachine(clock, seed, run_s)
        deadline = machine.deadline = Deadline(budget_s, clock)
        deadline.keep("finish", 2.0)
        tuning = Tuning(
            imported.graph,
            found,
            {},
            TuneSettings(),
            bench=machine.bench(),
            call=CallContext.start(deadline),
        )
        started = clock.s
        plan = tuning.settle(_C.make_plan)
        return clock.s - started, machine, tuning, plan

    for seed in range(12):
        free_s, *_ = tune(None, seed)
        least_s, *_ = tune(1e-3, seed)  # what a plan needs in any case
        for budget_s in (20.0, 30.0):
            taken_s, machine, tuning, plan = tune(budget_s, seed)
            allowed = max(budget_s - 2.0 + max(1.0, 0.05 * budget_s), 1.1 * least_s)
            assert taken_s <= allowed, (seed, budget_s, least_s, free_s)
            assert tuning.is_stopped or taken_s <= 1.1 * free_s
            for node in plan.nodes:
                name = node.primitive.name
                assert (
                    not name
                    or name.startswith(("aten.", "view."))
                    or ((node.problem, name) in machine.checked)
                )


def test_an_end_while_candidates_run_breaks_them_off_and_blames_none(
    make_bench: MakeBench,
) -> None:
    clock = Clock()
    bench = make_bench(aten__conv="sleep")
    bench._deadline = deadline = Deadline(20.0, clock)
    tasks = [(CONV, _C.Primitive(name, "nchw", "nchw")) for name in ("cpu.direct", "aten.conv")]
    assert [t.failure for t in bench.measure(tasks[:1], **OPTIONS)] == [""]
    clock.s += 30.0
    deadline.can_break = True
    assert deadline.is_lost("measure")
    failures = {t.failure for t in bench.measure(tasks, **OPTIONS)}
    assert failures == {"not run: out of budget"}


# ---- the end of a call ---------------------------------------------------------------------------


class Model:
    """A prepared model with only what CallBudget uses. Its run takes the given seconds."""

    device, where, inputs = None, torch.device("cpu"), ()

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def frozen(self) -> None:
        self.clock.s += self.seconds


@pytest.mark.parametrize(
    ("model_s", "wanted"),
    [(0.01, (2, 7)), (0.1, (2, 7)), (0.25, (0, 7)), (0.8, (0, 3)), (2.0, None)],
)
def test_the_guard_does_what_there_is_time_for_and_time_is_kept_for_it(
    model_s: float, wanted: tuple[int, int] | None
) -> None:
    clock = Clock()
    call_budget = CallBudget(
        CallContext.start(Deadline(20.0, clock), timings=Timings(clock, clock))
    )
    call_budget.expect_end(Model(clock, model_s))  # type: ignore[arg-type]
    clock.s += max(0.0, call_budget.call.deadline.left_s("check"))  # to the last second
    call_budget.expect_guard()
    effort = call_budget.guard_effort()
    assert (None if effort is None else (effort.warmup, effort.rounds)) == wanted
    seconds = dict(zip(call_budget._efforts(), call_budget._efforts_s(), strict=True))
    if effort is not None:
        assert seconds[effort] <= call_budget.call.deadline.left_s("finish")


def test_without_a_budget_the_guard_times_everything() -> None:
    clock = Clock()
    call_budget = CallBudget(
        CallContext.start(Deadline(None, clock), timings=Timings(clock, clock))
    )
    call_budget.expect_end(Model(clock, 1.0))  # type: ignore[arg-type]
    assert call_budget.guard_effort() == GuardEffort(2, 6.0)
    assert GuardEffort(2, 6.0).includes("eager")


def test_a_meter_of_energy_makes_the_guard_take_longer() -> None:
    clock = Clock()
    call_budget = CallBudget(
        CallContext.start(Deadline(20.0, clock), timings=Timings(clock, clock))
    )
    call_budget.least_sample_s = 1.0
    call_budget.expect_end(Model(clock, 0.01))  # type: ignore[arg-type]
    effort = call_budget.guard_effort()
    assert effort is not None and (effort.warmup, effort.rounds) == (0, 3)


def test_what_was_broken_off_did_not_fail(imported: _C.Imported) -> None:
    clock = Clock()
    machine = SlowMachine(clock, 1, 1e-3)
    visits: list[int] = []

    def measure(tasks: Sequence[tuple[str, _C.Primitive]], **options: Any) -> list[Any]:
        visits.append(len(tasks))
        taken = machine.measure(tasks, **options)
        clock.s += 2.0  # in the end the budget is spent
        return taken if len(visits) == 1 else [Taken([], LATE) for _ in tasks]

    found = _C.find_candidates(imported.graph)
    bench = Bench(measure, machine.check, clock, lambda: machine)  # type: ignore[arg-type, return-value]
    deadline = Deadline(20.0, clock)
    tuning = Tuning(
        imported.graph, found, {}, TuneSettings(), bench=bench, call=CallContext.start(deadline)
    )
    plan = tuning.settle()
    assert tuning.is_stopped
    assert all(node.primitive.name or node.absorbed_by for node in plan.nodes)
    assert not tuning.rules.quarantined


def test_one_slow_run_of_the_model_does_not_take_the_time_for_measuring() -> None:
    clock, runs = [0.0], [2.5, 0.1, 0.2]

    def run() -> None:
        clock[0] += runs.pop(0)

    call_budget = CallBudget(CallContext.start(Deadline(90.0, lambda: clock[0])))
    prepared: Any = SimpleNamespace(
        inputs=(), frozen=run, device=None, where=torch.device("cpu"), graph=None
    )
    call_budget.expect_end(prepared)
    assert not runs and call_budget.can_time and call_budget.call.deadline.left_s("measure") > 60


def test_the_start_of_the_process_that_measures_does_not_count_as_a_visit(
    imported: _C.Imported,
) -> None:
    """If it counted, all later visits would seem to take as long, and would not be made."""
    found = _C.find_candidates(imported.graph)

    def known_after(start_s: float) -> int:
        clock = Clock()

        def start() -> None:
            clock.s += start_s

        bench = dataclasses.replace(SlowMachine(clock, 1, 1e-3).bench(), start=start)
        deadline = Deadline(60.0 + start_s, clock)
        tuning = Tuning(
            imported.graph, found, {}, TuneSettings(), bench=bench, call=CallContext.start(deadline)
        )
        tuning.settle()
        return len(tuning.known)

    assert known_after(0.0) == known_after(30.0) > 0
