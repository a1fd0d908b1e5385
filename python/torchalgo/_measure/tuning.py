# SPDX-License-Identifier: BSD-3-Clause
"""The measuring loop: chooses the candidates of one model to measure, until a plan is optimal.

Every candidate has a lower bound of its cost from the start (bounds.py). The planner plans with
these bounds. The candidates of its plan are measured, the first time together with all candidates
of the same operation. Then the planner plans again.

When all costs in the plan are measured, the plan is the optimum of the whole table, although part
of the table was never measured. In the end, the candidates of the plan are timed again.

The knowledge so far is one immutable value (knowledge.py), and `next_step` decides by it alone
(steps.py). `Tuning.settle` is the only loop. It runs the steps (rounds.py, checking.py) and
replaces the knowledge.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._base.error_code import with_inner_code
from torchalgo._base.processor_load import warn_if_busy
from torchalgo._base.time_budget import Deadline
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.costs import MAX_ERROR, Cost, Key
from torchalgo._measure.allowed import Rules
from torchalgo._measure.checking import Checker
from torchalgo._measure.componentwise import too_large_errors
from torchalgo._measure.cost_state import CostState, Guide
from torchalgo._measure.knowledge import Knowledge, Predictor
from torchalgo._measure.rounds import Fallback, Rounds
from torchalgo._measure.sampling import Bench, cold_bytes
from torchalgo._measure.steps import (
    Check,
    Done,
    Limiting,
    Measure,
    Phase,
    Planner,
    Question,
    Release,
    Retime,
    Step,
    next_step,
    solve,
    with_forced,
)
from torchalgo._measure.tuning_notes import expected_work, method_note
from torchalgo._measure.visits import races, rematches


@dataclass(frozen=True)
class TuneSettings:
    max_error: float = MAX_ERROR
    max_componentwise_error: float | None = None
    budget_s: float | None = None
    call_ticks: int = 0  # the call overhead, which is not part of a measured cost
    cold_bytes: int | None = None  # as of _C.measure; None: those of the graph's weights
    own_kernels: bool = False  # plans run kernels of torchalgo only


class OwnKernels:
    """The limit that neither PyTorch nor another library runs a call."""

    @staticmethod
    def allows(candidate: _C.Candidate) -> bool:
        return _C.has_own_kernel(candidate.primitive.name)

    def resources(self, knowledge: Knowledge) -> list[_C.Resource]:
        return []


class Tuning:
    """The tuning of one model: what is known, the phase, and the loop that runs the steps."""

    def __init__(
        self,
        graph: _C.Graph,
        found: _C.Candidates,
        forced: Mapping[int, str],
        settings: TuneSettings,
        *,
        call: CallContext | None = None,  # None: settings.budget_s from now on, no progress
        cost_file: DeviceCosts | None = None,  # None: costs are not stored
        bench: Bench | None = None,
        device: _C.Device | None = None,
        transforms: list[_C.Candidate] | None = None,  # None: all on this machine
        predictor: Predictor | None = None,  # predicts costs instead of measuring
        guide: Guide | None = None,  # makes a predictor for what a budget left unmeasured
    ) -> None:
        self.graph, self.found, self.settings = graph, found, settings
        self.device = device
        self._bench = bench if bench is not None else Bench.on(device)
        if call is None:
            call = CallContext.start(Deadline(settings.budget_s, self._bench.now_s))
        self._deadline, self.timings = call.deadline, call.timings
        with self.timings.step("find"):
            if transforms is None:
                transforms = _C.transform_candidates(graph, found, device)
            rules = Rules(graph, found, transforms, forced)
        if (most := settings.max_componentwise_error) is not None:
            rules = rules.with_quarantine(too_large_errors(rules, most, self._bench))
        self.transforms = transforms
        self.phase = Phase.MEASURING
        cold = cold_bytes(graph) if settings.cold_bytes is None else settings.cold_bytes
        self._sampler = self._bench.sampler(rules.primitives, cold)
        call.progress.start(expected_work(rules))
        self.state = CostState(
            rules,
            self._bench,
            cost_file or DeviceCosts.of(CostStore.of_call(False, is_fresh=False), device),
            settings.max_error,
            call.timings,
            settings.call_ticks,
            predictor,
            guide,
            OwnKernels() if settings.own_kernels else None,
        )
        self._checker = Checker(self.state, self._bench, self._sampler, call, device)
        self._fallback = Fallback(self.state, call.deadline)
        self._rounds = Rounds(
            self.state, self._bench, self._sampler, self._checker, self._fallback, call
        )
        self._has_started = False  # the process that measures
        self._has_run = False  # a step whose memory is not released
        self._is_busy: bool | None = None  # None before the first look at the machine's load

    # ---- what is known ---------------------------------------------------------------------------

    @property
    def knowledge(self) -> Knowledge:
        """The costs, errors and failures known now. Later steps replace the value."""
        return self.state.knowledge

    @property
    def rules(self) -> Rules:
        """The candidates, the overrides and the quarantine."""
        return self.knowledge.rules

    @property
    def costs(self) -> _C.CostTable:
        """The measured costs, and for all other candidates the predicted costs or bounds."""
        return self.knowledge.costs.table

    @property
    def known(self) -> Mapping[Key, Cost]:
        """The costs that were measured."""
        return self.knowledge.costs.costs

    @property
    def errors(self) -> Mapping[Key, float]:
        """The relative L2 error of each checked candidate, compared with a result in f64."""
        return self.knowledge.errors

    @property
    def is_stopped(self) -> bool:
        """True if the budget or Ctrl-C has left some wanted candidates unmeasured."""
        return self.phase is not Phase.MEASURING or bool(self.knowledge.no_time_to_measure)

    @property
    def is_interrupted(self) -> bool:
        """True after Ctrl-C: nothing is measured or checked any more."""
        return self.phase is Phase.INTERRUPTED

    @property
    def has_measured(self) -> bool:
        """True if the process that measures has started, since not all costs were known before."""
        return self._has_started

    @property
    def is_kept(self) -> bool:
        """True if nothing was left out or disturbed, so that a later run measures nothing more."""
        return not self.is_stopped and not self._has_disturbed_costs

    @property
    def is_disturbed(self) -> bool:
        """True if other programs used the processors before or while candidates were measured."""
        return self._look_at_load() or self._has_disturbed_costs

    def _look_at_load(self) -> bool:
        """Returns True if other programs needed the processors at the first call of this."""
        if self._is_busy is None:
            self._is_busy = bool(warn_if_busy(torch.get_num_threads(), self._bench.pid()))
        return self._is_busy

    @property
    def _has_disturbed_costs(self) -> bool:
        return any(cost.is_disturbed for cost in self.known.values())

    def method_note(self) -> str:
        """Returns a text on how much was measured, for the plan's `method`."""
        cropped = len(self._checker.on_crop)
        return method_note(self.knowledge, self.phase, self._sampler, cropped)

    # ---- what-if questions, which measure and change nothing -------------------------------------

    def estimates(self, questions: Mapping[str, Question]) -> dict[str, _C.Plan]:
        """Returns the cheapest plans of the known costs. A plan is missing if these are too few.

        Costs that may be assumed are predicted, as those of layout changes. All other candidates of
        these plans have run before.
        """
        known = self.knowledge.assuming(self.knowledge.assumable)
        plans: dict[str, _C.Plan] = {}
        for name, question in questions.items():
            with self.timings.step("solve"), contextlib.suppress(_C.Error):
                plans[name], _ = solve(known, Phase.CHECKING, question)
        return plans

    def known_plan(self, limits: Limiting) -> _C.Plan | None:
        """Returns the cheapest plan within `limits`, with the known costs; None if there is none.

        Its candidates need not have been checked yet, unless there is no time for checks.
        """
        phase = Phase.CHECKING if self.phase is Phase.MEASURING else self.phase
        return self.state.known_plan(phase, Question(limits=limits))

    def solve_known(self, forced: Mapping[int, str], limits: Limiting | None = None) -> _C.Plan:
        """Returns the cheapest plan that keeps the overrides `forced`, with the known costs.

        Raises: torchalgo.Error if the plan needs a primitive that was never run.
        """
        phase = Phase.FINISHED if self.phase is Phase.FINISHED else Phase.CHECKING
        question = Question(limits=limits, options={"with_regrets": True})
        try:
            with self.timings.step("solve"):
                plan, _ = solve(with_forced(self.knowledge, forced), phase, question)
        except _C.Error as problem:
            raise _C.Error(
                with_inner_code(
                    "TA2303 with_overrides: the costs that it needs were not measured here, as of"
                    " primitives that were too slow to finish: use torchalgo.optimize(model,"
                    f" example_inputs, overrides=...); {problem}"
                )
            ) from None
        return plan

    # ---- the loop --------------------------------------------------------------------------------

    def settle(
        self,
        planner: Planner = _C.make_plan,
        *,
        limits: Limiting | None = None,
        **options: Any,
    ) -> _C.Plan:
        """Returns the cheapest plan, after all its costs were measured and checked.

        Ctrl-C ends measuring and checking. Then the plan uses known costs, of candidates that
        passed their check or are PyTorch's own.

        Args: see Question. `options` are further arguments of `planner`.

        Raises: torchalgo.Error if there is no plan. KeyboardInterrupt on Ctrl-C if no plan can be
            made of what is known, and on the second Ctrl-C.
        """
        question = Question(planner, limits, options)
        try:
            return self._answer(question)
        finally:  # the guard and the user may need the memory
            if self._has_run:
                self._bench.release()
            self._has_run = False

    def _answer(self, question: Question) -> _C.Plan:
        while True:
            try:
                with self.timings.step("solve"):
                    step = next_step(self.knowledge, self.phase, question)
                if step.chosen:
                    self._checker.reserve(step.chosen)
                if isinstance(step, Done):
                    return step.plan
                self._run(step)
            except KeyboardInterrupt:
                self.interrupt()

    def _run(self, step: Step) -> None:
        """Runs a step and replaces the knowledge by what it has shown."""
        if not self._has_started and not isinstance(step, Release):
            self._has_started = True
            with self.timings.step("start"):
                self._bench.start()
        self._has_run = True
        if isinstance(step, Measure):
            self._measure(step)
        elif isinstance(step, Check):
            with self.timings.step("check"):
                self._check(step)
        elif isinstance(step, Retime):
            with self.timings.step("measure"):
                self._visit_all(rematches(self.knowledge, step.keys), again=True)
        elif isinstance(step, Release):
            self.state.knowledge = self.knowledge.released()

    def _measure(self, step: Measure) -> None:
        self._look_at_load()
        if self.state.probe():  # the rates were higher, so all bounds are lower now
            return
        with self.timings.step("measure"):
            self._visit_all(races(self.knowledge, step.keys))
        if self.phase is Phase.MEASURING:
            is_touched = self.knowledge.costs.is_touched
            self._rounds.give_up([key for key in step.keys if not is_touched(key)])

    def _visit_all(self, visits: list[Any], again: bool = False) -> None:
        if not self._rounds.run(visits, again):
            self._end_measuring()

    def _check(self, step: Check) -> None:
        """Checks the keys while there is time. Else plans use only what was checked before."""
        self._fallback.look(is_measuring=False)
        has_checked = self._checker.check(step.keys)
        if not has_checked and self._deadline.can_break and self._deadline.is_over("check"):
            self.phase = Phase.FINISHED

    # ---- changes of the phase --------------------------------------------------------------------

    def interrupt(self) -> None:
        """Ends measuring and checking, as Ctrl-C does. Later plans use what is known.

        Raises: KeyboardInterrupt if no plan can be made of what is known, and at the second call.
        """
        if self.is_interrupted or not self.knowledge.has_any_cost:
            raise KeyboardInterrupt
        if self.state.known_plan(Phase.INTERRUPTED) is None:
            raise KeyboardInterrupt
        self.phase = Phase.INTERRUPTED

    def _end_measuring(self) -> None:
        """Ends measuring because the time is over. Unknown costs are predicted, where possible."""
        if self.state.known_plan(Phase.CHECKING) is None:
            raise KeyboardInterrupt
        self.state.predict(self.rules.primitives)
        self.state.knowledge = self.knowledge.guessing_unvisited()
        self.phase = Phase.CHECKING

    def end_now(self) -> None:
        """Ends measuring before it begins, if what is known is enough for a plan."""
        if self.state.known_plan(Phase.FINISHED) is not None:
            self.phase = Phase.FINISHED
