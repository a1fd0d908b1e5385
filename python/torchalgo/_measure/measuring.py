# SPDX-License-Identifier: BSD-3-Clause
"""The measuring loop: which candidates of one model are measured, and what may be chosen.

Every candidate has a lower bound from the start (bounds.py). The planner plans with these, and what
its plan rests on is measured, the first time in a race with all that compute the same. When a plan
rests on measured costs only, it is the optimum of the whole table, part of which was never
measured. In the end what it rests on is timed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torchalgo import _C
from torchalgo._base.deadline import OUT_OF_BUDGET, Deadline, Pace, guess_visit_s
from torchalgo._base.progress import Progress
from torchalgo._base.timings import Timings
from torchalgo._ir.bounds import KnownCosts, Peaks, family_of
from torchalgo._ir.costs import TICKS_PER_NS, Cost, CostFile, Key, key_of
from torchalgo._ir.failures import LATE
from torchalgo._ir.overrides import is_convolution
from torchalgo._ir.plan import Quarantined
from torchalgo._ir.problems import has_convolution, weight_count
from torchalgo._measure.allowed import Rules, grouped, offered_by
from torchalgo._measure.checking import Checker, check_work, is_trusted
from torchalgo._measure.cost_state import CostState
from torchalgo._measure.machine_load import warn_if_busy
from torchalgo._measure.sampling import RETIMED_SAMPLES, SETUPS, Bench, cold_bytes
from torchalgo._measure.visits import Visits
from torchalgo._predict.model import CostModel
from torchalgo._predict.similar import SimilarCosts

T = TypeVar("T")
Guide = Callable[[Peaks | None], CostModel | None]
NativePair = tuple[str, _C.CostKey | None, str, _C.CostKey, int]  # as CostTable.set_pair takes it
PairsAt = Callable[[Mapping[Key, int]], Iterable[NativePair]]

INTERRUPTED = "interrupted"
TELL_EVERY_S, TELL_SHARE = 0.5, 0.01  # of the time, for the best plan so far
MOST_SHARE_S = 10.0  # of an operation's rounds; with a budget less

RESUME_SHARE, MOST_RESUMES = 0.1, 4  # of the time there was at first
LEADERS_SHARE = 0.05  # of the time, for finding out which candidates lead

# Timed again with what a plan rests on: what costs no more than so many times as much.
CLOSE = 1.06


@dataclass(frozen=True)
class TuneSettings:
    max_rel_error: float = 1e-5
    budget_s: float | None = None
    seed: int = 0
    call_ticks: int = 0  # what a call costs beside what is measured of it


class Tuning:
    """What is known about the candidates of one model: costs, errors, quarantine.

    The accumulator of the loop `while wanted: measure(wanted); plan, wanted = plan()`.
    """

    def __init__(
        self,
        graph: _C.Graph,
        found: _C.Candidates,
        forced: Mapping[int, str],
        settings: TuneSettings,
        *,
        progress: Progress | None = None,
        cost_file: CostFile | None = None,
        bench: Bench | None = None,
        device: _C.Device | None = None,
        transforms: list[_C.Candidate] | None = None,  # None: all that this machine offers
        timings: Timings | None = None,
        deadline: Deadline | None = None,  # None: settings.budget_s from now on
        predictor: CostModel | None = None,  # of costs, in place of measuring
        guide: Guide | None = None,  # to a predictor of what a budget left unmeasured
    ) -> None:
        self.graph, self.found, self.settings = graph, found, settings
        self.device = device
        self.timings = timings if timings is not None else Timings()
        with self.timings.step("find"):
            if transforms is None:
                transforms = _C.transform_candidates(graph, found, device)
            self.transforms = transforms
            self.rules = Rules(graph, found, transforms, forced)
        self._progress = progress if progress is not None else Progress(False)
        self._bench = bench if bench is not None else Bench.on(device)
        self._is_seeded = self._has_looked = False
        self._retimed: set[Key] = set()
        self._assumable = frozenset(self.rules.assumable())
        self._stopped = ""  # why nothing more is measured: plan from what is known
        self._has_checked = False  # all that could be; what was not may not be chosen
        self._too_long: set[Key] = set()  # to be measured in the time that is left
        self._sampler = self._bench.sampler(self.rules.primitives, cold_bytes(graph), settings.seed)
        self._progress.start(self._expected_work())
        self._began = self._told_at = self._bench.now_s()
        self._telling_s = self._leading_s = 0.0
        self._resumes_left = MOST_RESUMES
        self._quarantined_before = -1  # how many there were when a break was last allowed
        self._deadline = (
            Deadline(settings.budget_s, self._bench.now_s) if deadline is None else deadline
        )
        self._visit_pace = Pace(4.0)
        self._cost_state = CostState(
            self.rules,
            self._bench,
            cost_file,
            settings.max_rel_error,
            self.timings,
            settings.call_ticks,
        )
        self._checker = Checker(
            self._cost_state, self._bench, self._sampler, self._deadline, self._progress, device
        )
        self._visits = Visits(self._cost_state)
        self._pairs_at: PairsAt | None = None
        self._guide = guide
        self._predictor: CostModel | SimilarCosts | None = predictor
        self._guess(self.rules.primitives)

    @property
    def _costs(self) -> KnownCosts:
        return self._cost_state.costs

    @property
    def errors(self) -> Mapping[Key, float]:
        """Relative L2 to f64 of each checked candidate."""
        return self._cost_state.errors

    @property
    def costs(self) -> _C.CostTable:
        """Measured costs, and the predictions or bounds of all others."""
        return self._costs.table

    @property
    def known(self) -> Mapping[Key, Cost]:
        """The costs that were measured."""
        return self._costs.costs

    @property
    def quarantined(self) -> Mapping[Key, str]:
        """What may not be chosen, and why."""
        return self.rules.quarantined

    @property
    def is_stopped(self) -> bool:
        """By the budget or Ctrl-C: not all that was wanted is measured."""
        return bool(self._stopped or self._too_long)

    @property
    def is_kept(self) -> bool:
        """True if nothing was left out and nothing was disturbed: a later run needs no more."""
        return not self.is_stopped and not any(cost.is_disturbed for cost in self.known.values())

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._bench.now_s() - self._began

    def set_pairs(self, pairs_at: PairsAt | None) -> None:
        """From now on plans are made with costs of pairs, see in_context.py: those that are
        possible at the measured costs, asked for anew when these change. None: without."""
        self._pairs_at = pairs_at
        self._renew_pairs()

    def _renew_pairs(self) -> None:
        ticks = {key: cost.ticks for key, cost in self.known.items()}
        self._costs.set_pairs([] if self._pairs_at is None else self._pairs_at(ticks))

    @property
    def is_interrupted(self) -> bool:
        """By Ctrl-C: nothing runs any more."""
        return self._stopped == INTERRUPTED

    # ---- the loop ------------------------------------------------------------------------------

    def plan(self) -> tuple[_C.Plan, list[Key]]:
        """The cheapest plan, and what must be measured or checked before it counts."""
        return self.plan_with(_C.make_plan)

    def plan_with(
        self,
        planner: Callable[..., tuple[_C.Plan, list[_C.CostKey]]],
        only: Callable[[str], bool] | None = None,
        checked: bool = True,
        rough: bool = False,
        **options: object,
    ) -> tuple[_C.Plan, list[Key]]:
        """The same for another planner, with primitives restricted by name to `only`, or, if not
        `checked`, of measured candidates whatever their numbers, or, if `rough`, of what lost its
        race as well."""
        seeds = self._seeds()
        if seeds:
            return _C.Plan(), seeds

        def allows(candidate: _C.Candidate) -> bool:
            offer = offered_by(candidate)
            if not self._may_rest_on(offer.key):
                return False
            is_restricted = only is not None and offer.anchor not in self.rules.forced
            return self.rules.allows(offer) and not (
                is_restricted and only is not None and not only(offer.key.primitive)
            )

        transforms = self.rules.allowed_transforms()
        if self._is_restricted:
            transforms = [
                t for t in transforms if self._may_rest_on(key_of(t.problem, t.primitive))
            ]
        if only is not None and not self.rules.forced:
            transforms = [t for t in transforms if only(t.primitive.name)]
        is_free = only is None and not self._is_restricted and self.rules.are_free
        try:
            with self.timings.step("solve"):
                plan, native = planner(
                    self.graph,
                    self.found,
                    transforms,
                    self._table(rough),
                    allow=None if is_free else allows,
                    **options,
                )
        except _C.Error as problem:
            if not self._stopped and self._cost_state.release_failures():
                self._is_seeded = False
                return self.plan_with(planner, only, checked, rough, **options)
            raise self._explained(problem) from None
        wanted = [Key(w.problem, w.primitive, w.src, w.dst) for w in native]
        if checked:
            chosen = _chosen(plan)
            if only is None:
                self._checker.reserve(chosen)
            wanted = wanted or self._left_to_do(chosen, rough)
        return plan, wanted

    def settle(
        self, planner: Callable[..., tuple[_C.Plan, list[_C.CostKey]]], **options: Any
    ) -> _C.Plan:
        """plan_with until nothing is wanted."""
        plan, wanted = self.plan_with(planner, **options)
        while wanted:
            self.measure(wanted)
            plan, wanted = self.plan_with(planner, **options)
        return plan

    def settle_fastest(self) -> None:
        """Measures until it is known which primitive of each convolution alone is its fastest."""
        while wanted := self._unsure_fastest():
            self.measure(wanted)

    def ask_known(self, planner: Callable[..., T], **options: object) -> T:
        """What `planner` makes of the costs there are; nothing is measured or checked."""
        known = self._costs.is_known
        return planner(
            self.graph,
            self.found,
            [t for t in self.rules.allowed_transforms() if known(key_of(t.problem, t.primitive))],
            self._costs.measured(),
            lambda c: self.rules.allows(offered_by(c)) and known(offered_by(c).key),
            **options,
        )

    def solve_known(
        self,
        forced: Mapping[int, str],
        planner: Callable[..., tuple[_C.Plan, list[_C.CostKey]]] = _C.make_plan,
        **options: Any,
    ) -> _C.Plan:
        """The cheapest plan that obeys `forced`, from the costs there are; nothing is measured.

        Raises: torchalgo.Error if a primitive it needs was never run.
        """
        before = self.rules.forced, self._stopped
        self.rules.forced, self._stopped = dict(forced), "from known costs"
        try:
            plan, _ = self.plan_with(planner, with_regrets=True, **options)
        except _C.Error as problem:
            raise _C.Error(
                f"with_overrides: {problem}; what it needs was not measured here: use"
                " torchalgo.optimize(model, example_inputs, overrides=...)"
            ) from None
        finally:
            self.rules.forced, self._stopped = before
        return plan

    def measure(self, wanted: Iterable[Key]) -> None:
        """One step for the wanted keys: measurements of those that never ran, else checks, else
        times taken again.

        Ctrl-C ends measuring and checking: from then on plans are made of what is known, of what
        was checked or is PyTorch's own, where that is enough.
        """
        wanted = list(wanted)
        unknown = [key for key in wanted if not self._costs.is_known(key)]
        try:
            unchecked = self._checker.lacks(wanted)
            if unknown and not self._stopped:
                self._look_at_load()
                if self._cost_state.probe():  # bounds that came from lower rates were too high
                    self._is_seeded = False
                    return
                with self.timings.step("measure"):
                    self._visit_all(self._races(unknown))
                self._leave_out(key for key in unknown if not self._costs.is_touched(key))
            elif unchecked:
                with self.timings.step("check"):
                    self._check_all(unchecked)
            else:
                with self.timings.step("measure"):
                    self._visit_all(self._rematches(wanted), again=True)
        except KeyboardInterrupt:
            self._stop(INTERRUPTED)

    def _look_at_load(self) -> None:
        """Warns before the first measurement if other programs need the processors."""
        if not self._has_looked:
            self._has_looked = True
            warn_if_busy(torch.get_num_threads(), self._bench.pid())

    def interrupt(self) -> None:
        """As Ctrl-C while something is measured."""
        self._stop(INTERRUPTED)

    def method_note(self) -> str:
        """How much was measured, for the plan's method."""
        every = [key for key in self.rules.primitives if not _C.is_view(key.primitive)]
        measured = sum(key in self._costs.costs for key in every)
        notes = [f"measured {measured} of {len(every)} candidates"]
        if self._predictor is not None:
            notes.append(
                f"{sum(map(self._costs.is_known, every)) - measured} costs predicted from"
                f" {self._predictor.costs} measured ones of {self._predictor.problems} problems"
            )
        if self._sampler.disturbed:
            share = self._sampler.disturbed / self._sampler.samples
            notes.append(f"{share:.0%} of the samples were disturbed and taken again")
        if self._checker.on_crop:
            notes.append(f"{len(self._checker.on_crop)} candidates checked on a smaller image")
        disturbed = sum(cost.is_disturbed for cost in self._costs.costs.values())
        if disturbed:
            notes.append(
                f"other programs used the processors while {disturbed} of the costs were taken, so"
                " these are not kept for later runs"
            )
        if self._stopped:
            kind = "checked" if self._rests_on_checked else "measured"
            notes.append(f"{self._stopped}: only {kind} candidates")
        elif self._too_long:
            notes.append(f"{OUT_OF_BUDGET}: {len(self._too_long)} would have taken too long")
        if self._checker.excluded:
            notes.append(f"no time to check {len(self._checker.excluded)} candidates")
        return "; ".join(notes)

    def quarantine_list(self) -> list[Quarantined]:
        return [
            Quarantined(key.problem, key.primitive, key.src, key.dst, reason)  # type: ignore[arg-type]
            for key, reason in sorted(self.quarantined.items())
        ]

    # ---- what is known and what comes next ------------------------------------------------------

    def _seeds(self) -> list[Key]:
        """Measured first: where nothing bounds a cost, all candidates of single nodes, each of
        which would be wanted in its turn."""
        if self._is_seeded or self._stopped or self._predictor is not None:
            return []
        self._is_seeded = True
        if self._cost_state.peaks is not None:
            return []
        return list(dict.fromkeys(k for k in self.rules.alone() if not self._costs.is_known(k)))

    def _table(self, rough: bool) -> _C.CostTable:
        if self._stopped:
            return self._costs.measured(assumed=self._assumable)
        return self._costs.estimates() if rough else self._costs.table

    def _left_to_do(self, chosen: Sequence[Key], rough: bool) -> list[Key]:
        """What must be checked, or, if all is, timed again, before a plan counts; with `rough`
        costs nothing is timed again."""
        if self._rests_on_checked:
            return []
        unchecked = self._checker.lacks(chosen)
        if self._is_restricted:  # the time is for what cannot be trusted unchecked
            unchecked = [key for key in unchecked if not is_trusted(key)]
        if unchecked or self._stopped or rough:
            return unchecked
        return [key for key in chosen if self._is_luck_possible(key)]

    def _is_luck_possible(self, key: Key) -> bool:
        """True if it was chosen for times that were not taken again."""
        is_retimed = key in self._retimed or _C.is_view(key.primitive)
        cost = self._costs.costs.get(key)  # None: it is guessed
        return not is_retimed and cost is not None and 0 < cost.samples.n < RETIMED_SAMPLES

    def _guess(self, keys: Iterable[Key]) -> None:
        """Has the predictor, if there is one, say what is unknown of `keys`."""
        if self._predictor is not None:
            with self.timings.step("predict"):
                unknown = [key for key in keys if not self._costs.is_known(key)]
                self._costs.guess(self._predictor.predict(unknown))

    def _go_without(self, keys: Iterable[Key]) -> None:
        """What there is no time to measure is predicted, where there is a guide."""
        if self._guide is not None:
            with self.timings.step("predict"):
                self._predictor = self._guide(self._cost_state.peaks)
            self._guide = None
        self._guess(keys)

    def _leave_out(self, keys: Iterable[Key]) -> None:
        """There is no time to measure `keys`: no plan rests on those that are not known, unless
        they may be assumed."""
        refused = self.quarantined
        unknown = {k for k in keys if not self._costs.is_known(k) and k not in refused}
        if self._stopped or not self._deadline.can_break:
            return
        self._too_long |= unknown - self._assumable
        self._go_without(sorted(unknown))
        assumed = sorted(unknown & self._assumable)
        self._assume([key for key in assumed if not self._costs.is_known(key)])

    def _assume(self, keys: Sequence[Key]) -> None:
        """Predicts what a plan may rest on unmeasured from similar costs, or takes its bound."""
        similar = self._visits.similar() if keys else None
        predicted = {} if similar is None else similar.predict(keys)
        self._costs.guess({key: predicted.get(key, self._costs.lower(key)) for key in keys})

    def _guess_unvisited(self) -> None:
        """Predicts, if no model did, the costs of operations that were not reached, of what was
        checked, and of what a plan may rest on unmeasured, from those of similar ones."""
        similar = self._visits.similar() if self._predictor is None else None
        if similar is not None:
            self._predictor = similar
            sure = self._assumable | set(self.errors)
            every = self.rules.primitives
            self._guess(key for key in every if key in sure or not self._is_visited(key))

    def _is_visited(self, key: Key) -> bool:
        """True if any candidate of the same operation ran."""
        return any(map(self._costs.is_touched, self.rules.family(key)))

    def _unsure_fastest(self) -> list[Key]:
        """Per convolution the candidate alone that may be its fastest, if it was not measured."""
        if self._stopped:
            return []
        every = ([k for k in own if self._may_rest_on(k)] for own in self.rules.of_convolutions())
        first = (min(own, key=self._costs.lower) for own in every if own)
        return list(dict.fromkeys(k for k in first if not self._costs.is_known(k)))

    def _explained(self, problem: Exception) -> Exception:
        if not self.quarantined:
            return problem
        reasons = [f"{k.primitive} ({k.problem}): {why}" for k, why in self.quarantined.items()]
        return _C.Error(f"{problem}; quarantined: {'; '.join(reasons[:5])}")

    # ---- measuring -----------------------------------------------------------------------------

    def _races(self, unknown: Sequence[Key]) -> list[list[Key]]:
        """The unknown by operation: all of its candidates the first time, since those that can be
        wanted next shall run in the same rounds; later what is wanted of them. Those that take
        longest come first: if tuning is ended early, these were measured."""
        races = []
        for wanted in grouped(unknown, family_of).values():
            family = self.rules.family(wanted[0])
            is_new = not any(map(self._costs.is_touched, family))
            races.append(family if is_new else wanted)
        return sorted(races, key=lambda keys: -max(map(self._costs.lower, keys)))

    def _rematches(self, chosen: Sequence[Key]) -> list[list[Key]]:
        """The chosen by operation, with the close rivals of each that were not timed again before:
        a cost that changed at each look would never let a plan stand."""
        rematches = []
        for keys in grouped(chosen, family_of).values():
            close = [k for key in keys for k in self._close_rivals(key)]
            rematches.append(list(dict.fromkeys([*keys, *close])))
        return rematches

    def _close_rivals(self, key: Key) -> list[Key]:
        most = CLOSE * self._costs.lower(key)
        known = filter(self._costs.is_known, self.rules.same_place(key))
        return [k for k in known if self._costs.lower(k) <= most and k not in self._retimed]

    def _visit_all(self, visits: Sequence[Sequence[Key]], again: bool = False) -> None:
        """Measures visit after visit; what one found is on disk before the next one begins."""
        self._allow_break()
        left = list(visits)
        while left:
            if self._is_late():
                self._stop(OUT_OF_BUDGET)
                return
            is_short = not again and self._may_run_out(left)
            planned = left[: self._sampler.lot]
            if is_short and len(planned) == 1:
                planned = [self._visits.next(left, self._is_short)]
            left = [keys for keys in left if not any(keys is one for one in planned)]
            if is_short:
                planned = [self._promising(keys) for keys in planned]
            lot = [keys for keys in (self._in_time(own, again) for own in planned) if keys]
            if lot:
                self._progress.doing(f"{family_of(lot[0][0])} ({sum(map(len, lot))})")
                self._visit(lot, self._share_s(1 + len(left)), again)
                self._tell_best()
            for keys in planned:
                if again:  # or there was no time for it
                    self._retimed.update(keys)
            for keys in lot:
                self._progress.advance(keys[-1].problem, _work(keys[-1].problem))
            if not again and self._may_run_out(left):
                self._check_leaders()

    def _may_run_out(self, visits: Sequence[Sequence[Key]]) -> bool:
        """True if the time may end before the next visits, and as many after them, were made."""
        if not self._deadline.has_end or self._stopped:
            return False
        left_s = self._deadline.left_s("measure")
        keys = [key for visit in visits for key in visit]
        return 2 * self._visit_pace.expect_s(self._guess_s(keys)) > left_s

    def _promising(self, keys: Sequence[Key]) -> Sequence[Key]:
        """The candidates of an operation that may be close to its best. If some of its candidates
        were measured before, there is no time for the others."""
        if not self._deadline.can_break:
            return keys
        chosen = self._visits.shortened(keys)
        if self._is_visited(keys[0]):
            self._leave_out(set(keys) - set(chosen))
        return chosen

    def _is_short(self, keys: Sequence[Key]) -> bool:
        """True if a visit takes an eighth of the time that is left at most."""
        return 8 * self._visit_pace.expect_s(self._guess_s(keys)) <= self._deadline.left_s(
            "measure"
        )

    def _check_leaders(self) -> None:
        """Checks the measured candidates that the cheapest plan chooses now, so that a plan may
        rest on them whenever the time ends."""
        started = self._bench.now_s()
        if self._leading_s > LEADERS_SHARE * (started - self._began):
            return
        try:
            chosen = _chosen(self.plan_with(_C.make_plan, checked=False)[0])
        except _C.Error:
            return
        self._leading_s += self._bench.now_s() - started
        self._checker.reserve(chosen)
        leaders = [
            key
            for key in self._checker.lacks(chosen)
            if key in self._costs.costs and not is_trusted(key) and has_convolution(key.problem)
        ]
        if leaders:
            self._allow_break()
            with self.timings.step("check"):
                self._checker.check(leaders)

    def _visit(self, lot: Sequence[Sequence[Key]], share_s: float, again: bool) -> None:
        keys = [key for visit in lot for key in visit]
        guess_s, started = self._guess_s(keys, again), self._bench.now_s()
        costs = self._sampler.take_all(lot, share_s, again)
        failures = self._sampler.failures
        late = [key for key, why in failures.items() if why == LATE]
        for key in late:  # it did not fail, it was broken off
            del failures[key]
        self._cost_state.enter_costs(costs, failures)
        if late:
            self._too_long |= set(late) - self._assumable
            self._go_without(late)
        if self._pairs_at is not None:
            self._renew_pairs()
        self._visit_pace.learn(guess_s, self._bench.now_s() - started)

    def _tell_best(self) -> None:
        """Into the progress, as often as it costs next to nothing: that is a solve each time."""
        now = self._bench.now_s()
        is_due = now - self._told_at >= TELL_EVERY_S and self._telling_s <= TELL_SHARE * (
            now - self._began
        )
        if self._progress.is_silent or not is_due:
            return
        plan = self._known_plan()
        self._told_at = self._bench.now_s()
        self._telling_s += self._told_at - now
        if plan is not None:
            self._progress.set_best(plan.cost / (1000 * TICKS_PER_NS))

    # ---- budget --------------------------------------------------------------------------------

    @property
    def _rests_on_checked(self) -> bool:
        """True if plans are made of what was checked or is PyTorch's own: nothing runs any more."""
        return self.is_interrupted or self._has_checked

    def _allow_break(self) -> None:
        """Lets the deadline break work off as long as there is a plan of what is trusted."""
        quarantined = len(self.quarantined)
        is_known = self._deadline.can_break and quarantined == self._quarantined_before
        if self._deadline.has_end and not is_known:
            self._deadline.can_break = self._has_plan(OUT_OF_BUDGET, checked=True)
            self._quarantined_before = quarantined

    @property
    def _is_restricted(self) -> bool:
        """True if a plan may not rest on some candidates for want of time."""
        return self.is_stopped or bool(self._checker.excluded)

    def _is_late(self) -> bool:
        return self._deadline.is_over("measure") and self._deadline.can_break

    def _in_time(self, keys: Sequence[Key], again: bool = False) -> list[Key]:
        """Those of one visit that can be measured in the time that is left, by what they take at
        least and what visits took so far; all of them where there is no plan without."""
        left_s, expected_s = self._deadline.left_s("measure"), 0.0
        too_long: set[Key] = set()
        for key in sorted(keys, key=self._costs.lower):
            expected_s += self._visit_pace.expect_s(self._guess_s([key], again))
            if expected_s > left_s:
                too_long.add(key)
        if not too_long or not self._deadline.can_break:
            return list(keys)
        self._leave_out(too_long)
        return [key for key in keys if key not in too_long]

    def _guess_s(self, keys: Iterable[Key], again: bool = False) -> float:
        least_s = self._cost_state.least_s
        once_s = sum(guess_visit_s(weight_count(k.problem), least_s(k)) for k in keys)
        return SETUPS * once_s if again else once_s

    def _may_rest_on(self, key: Key) -> bool:
        """True if a plan may: at any time what can still be measured; later what ran, or is
        PyTorch's own; in the end without what would have to be checked first."""
        if not self._checker.may_choose(key):
            return False
        if not self._stopped:
            return key not in self._too_long or self._costs.is_known(key)
        costs = self._costs
        is_possible = costs.is_touched(key) or costs.is_known(key) or key in self._assumable
        is_sure = key in self.errors or is_trusted(key)
        return is_possible and (is_sure or not self._rests_on_checked)

    def _has_plan(self, reason: str = "tried", *, checked: bool = False) -> bool:
        """True if what is known, or even `checked`, is enough for a plan."""
        return self._known_plan(reason, checked=checked) is not None

    def _known_plan(self, reason: str = "tried", *, checked: bool = False) -> _C.Plan | None:
        """The cheapest plan of what is known, or even `checked`."""
        before = self._stopped, self._has_checked
        self._stopped, self._has_checked = reason, checked or self._has_checked
        try:
            return self.plan_with(_C.make_plan, checked=False)[0]
        except _C.Error:
            return None
        finally:
            self._stopped, self._has_checked = before

    def _share_s(self, visits_left: int) -> float:
        """Seconds for the next visit."""
        left = max(0.0, self._deadline.left_s("measure"))
        return min(MOST_SHARE_S, left / (2 * visits_left))  # half is left to later steps

    def _expected_work(self) -> int:
        """Guesses the work for the time left: each problem is measured once, a third are checked.

        The shares fit what tunings of ResNet-18 and SqueezeNet did.
        """
        problems = {key.problem for key in self.rules.primitives}
        checked = {offer.key.problem for offer in self.rules.all}
        return sum(map(_work, problems)) + sum(map(check_work, checked)) // 3

    # ---- checking ------------------------------------------------------------------------------

    def _check_all(self, keys: Sequence[Key]) -> None:
        """Checks `keys` as far as there is time. When that is over, plans rest on what was checked
        before."""
        if not keys:
            return
        self._allow_break()
        has_checked = self._checker.check(keys)
        if not has_checked and self._deadline.can_break and self._deadline.is_over("check"):
            self._stopped, self._has_checked = self._stopped or OUT_OF_BUDGET, True

    def resume(self) -> bool:
        """Goes on measuring if checks have left much of the time that was reserved for them. To be
        asked when a plan is settled; returns whether it must be settled again."""
        is_early = self._deadline.left_s("measure") > RESUME_SHARE * self._checker.time_s
        if self.is_interrupted or not self.is_stopped or not is_early or not self._resumes_left:
            return False
        self._resumes_left -= 1
        self._checker.time_s = max(0.0, self._deadline.left_s("check"))
        self._stopped, self._has_checked = "", False
        self._too_long.clear()
        self._checker.excluded.clear()
        if isinstance(self._predictor, SimilarCosts):
            self._predictor = None
        self._costs.forget_guesses()
        return True

    def end_now(self) -> None:
        """Ends measuring before it begins, if a plan can be made of what is known."""
        if self._has_plan(OUT_OF_BUDGET, checked=True):
            self._stopped, self._has_checked = OUT_OF_BUDGET, True
            self._resumes_left = 0

    @property
    def knows_any(self) -> bool:
        """True if the cost of any candidate is known."""
        return any(not _C.is_view(key.primitive) for key in self._costs.costs)

    def _stop(self, reason: str) -> None:
        """Plan from what is known; KeyboardInterrupt if that is nothing, or gives no plan."""
        is_early = reason == INTERRUPTED and not self.knows_any
        if self._stopped == INTERRUPTED == reason or is_early:
            raise KeyboardInterrupt
        if not self._has_plan(reason):
            raise KeyboardInterrupt
        if reason == OUT_OF_BUDGET:
            self._go_without(self.rules.primitives)
            self._guess_unvisited()
        self._stopped = reason


def _work(problem: str) -> int:
    """How long measuring lasts, roughly, beside a layout transform: for the time left."""
    return 15 if has_convolution(problem) else 1


def _chosen(plan: _C.Plan) -> list[Key]:
    keys = [key_of(n.problem, n.primitive) for n in plan.nodes if n.primitive.name]
    keys += [key_of(t.problem, t.primitive) for t in plan.transforms]
    return list(dict.fromkeys(keys))


def tied_layers(graph: _C.Graph, plan: _C.Plan, known: Mapping[Key, Cost]) -> int:
    """Convolutions whose next best plan costs no more than the noise of their own measurement."""
    convolutions = {node.name for node in graph.nodes if is_convolution(node)}
    count = 0
    for node in plan.nodes:
        if node.name in convolutions and node.primitive.name and node.regret is not None:
            cost = known.get(key_of(node.problem, node.primitive))
            count += cost is not None and node.regret <= cost.noise_ticks
    return count
