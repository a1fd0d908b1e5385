# SPDX-License-Identifier: BSD-3-Clause
"""The measuring loop: chooses the candidates of one model to measure, until a plan is optimal.

Every candidate has a lower bound of its cost from the start (bounds.py). The planner plans with
these bounds. The candidates of its plan are measured, the first time together with all candidates
of the same operation. Then the planner plans again.

When all costs in the plan are measured, the plan is the optimum of the whole table, although part
of the table was never measured. In the end, the candidates of the plan are timed again.
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
NativePair = tuple[str, _C.CostKey | None, str, _C.CostKey, int]  # arguments of CostTable.set_pair
PairsAt = Callable[[Mapping[Key, int]], Iterable[NativePair]]

INTERRUPTED = "interrupted"
# The best plan so far is shown at most this often, and solving for it takes at most this part of
# the time.
TELL_EVERY_S, TELL_SHARE = 0.5, 0.01
MOST_SHARE_S = 10.0  # the most seconds for one operation's visit; less with a budget

# Measuring is resumed if more than this part of the time is left, and at most this often.
RESUME_SHARE, MOST_RESUMES = 0.1, 4
LEADERS_SHARE = 0.05  # the part of the time for finding the leading candidates

# A rival is timed again with the chosen candidate if it costs at most this many times as much.
CLOSE = 1.06


@dataclass(frozen=True)
class TuneSettings:
    max_rel_error: float = 1e-5
    budget_s: float | None = None
    seed: int = 0
    call_ticks: int = 0  # the call overhead, which is not part of a measured cost


class Tuning:
    """The state of the measuring loop: costs, errors and quarantine of one model's candidates.

    The loop is `while wanted: measure(wanted); plan, wanted = plan()`.
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
        transforms: list[_C.Candidate] | None = None,  # None: all on this machine
        timings: Timings | None = None,
        deadline: Deadline | None = None,  # None: settings.budget_s from now on
        predictor: CostModel | None = None,  # predicts costs instead of measuring
        guide: Guide | None = None,  # makes a predictor for what a budget left unmeasured
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
        self._stopped = ""  # the reason why nothing more is measured; "" while measuring goes on
        self._has_checked = False  # True: checks have ended, unchecked candidates are not chosen
        self._too_long: set[Key] = set()  # keys that there is no time to measure
        self._sampler = self._bench.sampler(self.rules.primitives, cold_bytes(graph), settings.seed)
        self._progress.start(self._expected_work())
        self._began = self._told_at = self._bench.now_s()
        self._telling_s = self._leading_s = 0.0
        self._resumes_left = MOST_RESUMES
        self._quarantined_before = -1  # number of quarantined keys at the last _allow_break
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
        """The relative L2 error of each checked candidate, compared with a result in f64."""
        return self._cost_state.errors

    @property
    def costs(self) -> _C.CostTable:
        """The measured costs, and for all other candidates the predicted costs or bounds."""
        return self._costs.table

    @property
    def known(self) -> Mapping[Key, Cost]:
        """The costs that were measured."""
        return self._costs.costs

    @property
    def quarantined(self) -> Mapping[Key, str]:
        """The candidates that may not be chosen, and the reasons."""
        return self.rules.quarantined

    @property
    def is_stopped(self) -> bool:
        """True if the budget or Ctrl-C has left some wanted candidates unmeasured."""
        return bool(self._stopped or self._too_long)

    @property
    def is_kept(self) -> bool:
        """True if nothing was left out or disturbed, so that a later run measures nothing more."""
        return not self.is_stopped and not any(cost.is_disturbed for cost in self.known.values())

    @property
    def seconds(self) -> float:
        """Seconds since the constructor."""
        return self._bench.now_s() - self._began

    def set_pairs(self, pairs_at: PairsAt | None) -> None:
        """Makes later plans with costs of pairs, see in_context.py.

        Args:
            pairs_at: returns the costs of pairs for these measured costs. It is called again
                whenever the measured costs change. None means no costs of pairs.
        """
        self._pairs_at = pairs_at
        self._renew_pairs()

    def _renew_pairs(self) -> None:
        ticks = {key: cost.ticks for key, cost in self.known.items()}
        self._costs.set_pairs([] if self._pairs_at is None else self._pairs_at(ticks))

    @property
    def is_interrupted(self) -> bool:
        """True after Ctrl-C: nothing is measured or checked any more."""
        return self._stopped == INTERRUPTED

    # ---- the loop ------------------------------------------------------------------------------

    def plan(self) -> tuple[_C.Plan, list[Key]]:
        """Returns the cheapest plan, and the keys that must be measured or checked next.

        The plan counts only if there are no such keys.
        """
        return self.plan_with(_C.make_plan)

    def plan_with(
        self,
        planner: Callable[..., tuple[_C.Plan, list[_C.CostKey]]],
        only: Callable[[str], bool] | None = None,
        checked: bool = True,
        rough: bool = False,
        **options: object,
    ) -> tuple[_C.Plan, list[Key]]:
        """Returns the same as `plan`, with another planner or other restrictions.

        Args:
            planner: called like _C.make_plan.
            only: tells by name which primitives may be chosen. Overrides stay in force.
            checked: if False, candidates need not have passed their check.
            rough: if True, candidates that lost their race have their likely cost, not a bound.
            options: further arguments of `planner`.

        Raises: torchalgo.Error if there is no plan.
        """
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
        """Alternates `plan_with` and `measure` until nothing is wanted. Returns the last plan."""
        plan, wanted = self.plan_with(planner, **options)
        while wanted:
            self.measure(wanted)
            plan, wanted = self.plan_with(planner, **options)
        return plan

    def settle_fastest(self) -> None:
        """Measures until the fastest primitive of each convolution alone is known."""
        while wanted := self._unsure_fastest():
            self.measure(wanted)

    def ask_known(self, planner: Callable[..., T], **options: object) -> T:
        """Returns the result of `planner` for the known costs. Measures and checks nothing."""
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
        """Returns the cheapest plan that keeps `forced`, with the known costs. Measures nothing.

        Raises: torchalgo.Error if the plan needs a primitive that was never run.
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
        """Does the next step for the wanted keys.

        Measures the keys without a known cost. If there are none, checks the unchecked keys. If
        there are none either, times all keys again.

        Ctrl-C ends measuring and checking. Later plans use known costs, of candidates that passed
        their check or are PyTorch's own.

        Raises: KeyboardInterrupt on Ctrl-C if there is no such plan.
        """
        wanted = list(wanted)
        unknown = [key for key in wanted if not self._costs.is_known(key)]
        try:
            unchecked = self._checker.lacks(wanted)
            if unknown and not self._stopped:
                self._look_at_load()
                if self._cost_state.probe():  # the rates were higher, so all bounds are lower now
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
        """Ends measuring as Ctrl-C does.

        Raises: KeyboardInterrupt if no plan can be made of what is known.
        """
        self._stop(INTERRUPTED)

    def method_note(self) -> str:
        """Returns a text on how much was measured, for the plan's `method`."""
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

    # ---- the known costs and the next keys ------------------------------------------------------

    def _seeds(self) -> list[Key]:
        """Returns the keys to measure before the first plan.

        Without peak rates, costs have no lower bounds, and every candidate of a single node would
        be wanted at some time. So all of them are returned. With peak rates, returns no keys.
        """
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
        """Returns the chosen keys that must be checked before a plan counts.

        If all are checked, returns the keys that must be timed again. With `rough` costs, none is
        timed again.
        """
        if self._rests_on_checked:
            return []
        unchecked = self._checker.lacks(chosen)
        if self._is_restricted:  # time is short: PyTorch's own algorithms stay unchecked
            unchecked = [key for key in unchecked if not is_trusted(key)]
        if unchecked or self._stopped or rough:
            return unchecked
        return [key for key in chosen if self._is_luck_possible(key)]

    def _is_luck_possible(self, key: Key) -> bool:
        """Returns True if `key` was measured, but was not timed again since."""
        is_retimed = key in self._retimed or _C.is_view(key.primitive)
        cost = self._costs.costs.get(key)  # None: the cost is predicted
        return not is_retimed and cost is not None and 0 < cost.samples.n < RETIMED_SAMPLES

    def _guess(self, keys: Iterable[Key]) -> None:
        """Predicts the unknown costs of `keys`, if there is a predictor."""
        if self._predictor is not None:
            with self.timings.step("predict"):
                unknown = [key for key in keys if not self._costs.is_known(key)]
                self._costs.guess(self._predictor.predict(unknown))

    def _go_without(self, keys: Iterable[Key]) -> None:
        """Predicts the costs of `keys`, which there is no time to measure.

        Does nothing if there is neither a predictor nor a guide that makes one.
        """
        if self._guide is not None:
            with self.timings.step("predict"):
                self._predictor = self._guide(self._cost_state.peaks)
            self._guide = None
        self._guess(keys)

    def _leave_out(self, keys: Iterable[Key]) -> None:
        """Gives up measuring `keys`, for want of time.

        No plan uses the keys among them without a known cost, unless their costs can be predicted
        or may be assumed.
        """
        refused = self.quarantined
        unknown = {k for k in keys if not self._costs.is_known(k) and k not in refused}
        if self._stopped or not self._deadline.can_break:
            return
        self._too_long |= unknown - self._assumable
        self._go_without(sorted(unknown))
        assumed = sorted(unknown & self._assumable)
        self._assume([key for key in assumed if not self._costs.is_known(key)])

    def _assume(self, keys: Sequence[Key]) -> None:
        """Predicts the costs of `keys` from similar ones, or takes their lower bounds as costs."""
        similar = self._visits.similar() if keys else None
        predicted = {} if similar is None else similar.predict(keys)
        self._costs.guess({key: predicted.get(key, self._costs.lower(key)) for key in keys})

    def _guess_unvisited(self) -> None:
        """Predicts unknown costs from those of similar operations, if there is no other predictor.

        This covers operations that were not reached, candidates that were checked, and candidates
        that a plan may use unmeasured.
        """
        similar = self._visits.similar() if self._predictor is None else None
        if similar is not None:
            self._predictor = similar
            sure = self._assumable | set(self.errors)
            every = self.rules.primitives
            self._guess(key for key in every if key in sure or not self._is_visited(key))

    def _is_visited(self, key: Key) -> bool:
        """Returns True if any candidate of the same operation ran."""
        return any(map(self._costs.is_touched, self.rules.family(key)))

    def _unsure_fastest(self) -> list[Key]:
        """Returns, for each convolution, the unmeasured candidate that may be its fastest alone.

        Convolutions whose fastest candidate is known are left out.
        """
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
        """Returns the visits that measure `unknown`, one per operation.

        The first visit of an operation measures all of its candidates, so that rivals run in the
        same rounds. A later visit measures only the unknown keys. Operations that take longest come
        first, so that they are measured if tuning ends early.
        """
        races = []
        for wanted in grouped(unknown, family_of).values():
            family = self.rules.family(wanted[0])
            is_new = not any(map(self._costs.is_touched, family))
            races.append(family if is_new else wanted)
        return sorted(races, key=lambda keys: -max(map(self._costs.lower, keys)))

    def _rematches(self, chosen: Sequence[Key]) -> list[list[Key]]:
        """Returns the visits that time `chosen` again, one per operation, with close rivals.

        Rivals that were timed again before are left out. If costs changed each time, the plan would
        never be final.
        """
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
        """Makes the visits one after another. Each visit's results are stored before the next."""
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
                if again:  # also if there was no time for some of them
                    self._retimed.update(keys)
            for keys in lot:
                self._progress.advance(keys[-1].problem, _work(keys[-1].problem))
            if not again and self._may_run_out(left):
                self._check_leaders()

    def _may_run_out(self, visits: Sequence[Sequence[Key]]) -> bool:
        """Returns True if the time may not suffice for twice the work of `visits`."""
        if not self._deadline.has_end or self._stopped:
            return False
        left_s = self._deadline.left_s("measure")
        keys = [key for visit in visits for key in visit]
        return 2 * self._visit_pace.expect_s(self._guess_s(keys)) > left_s

    def _promising(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Returns the candidates of an operation that may be close to its best.

        If some of its candidates were measured before, the others are given up.
        """
        if not self._deadline.can_break:
            return keys
        chosen = self._visits.shortened(keys)
        if self._is_visited(keys[0]):
            self._leave_out(set(keys) - set(chosen))
        return chosen

    def _is_short(self, keys: Sequence[Key]) -> bool:
        """Returns True if a visit takes at most an eighth of the time that is left."""
        return 8 * self._visit_pace.expect_s(self._guess_s(keys)) <= self._deadline.left_s(
            "measure"
        )

    def _check_leaders(self) -> None:
        """Checks the measured candidates of the plan that is cheapest now.

        So a plan may use them, whenever the time ends. Only convolutions are checked.
        """
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
        for key in late:  # it did not fail: the time was over while it ran
            del failures[key]
        self._cost_state.enter_costs(costs, failures)
        if late:
            self._too_long |= set(late) - self._assumable
            self._go_without(late)
        if self._pairs_at is not None:
            self._renew_pairs()
        self._visit_pace.learn(guess_s, self._bench.now_s() - started)

    def _tell_best(self) -> None:
        """Shows the time of the best plan so far in the progress display.

        Each time needs a solve, so it is skipped unless TELL_EVERY_S and TELL_SHARE allow it.
        """
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
        """True if plans use only candidates that were checked or are PyTorch's own.

        This is so after measuring and checking have ended.
        """
        return self.is_interrupted or self._has_checked

    def _allow_break(self) -> None:
        """Lets the deadline stop work if there is a plan of checked or PyTorch's own candidates."""
        quarantined = len(self.quarantined)
        is_known = self._deadline.can_break and quarantined == self._quarantined_before
        if self._deadline.has_end and not is_known:
            self._deadline.can_break = self._has_plan(OUT_OF_BUDGET, checked=True)
            self._quarantined_before = quarantined

    @property
    def _is_restricted(self) -> bool:
        """True if there was no time for some candidates, so that no plan may use them."""
        return self.is_stopped or bool(self._checker.excluded)

    def _is_late(self) -> bool:
        return self._deadline.is_over("measure") and self._deadline.can_break

    def _in_time(self, keys: Sequence[Key], again: bool = False) -> list[Key]:
        """Returns the keys of one visit that can be measured in the time that is left.

        The time is guessed from the costs or their bounds, and from what earlier visits took.
        The other keys are given up. Returns all keys if no plan could be made otherwise.
        """
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
        """Returns True if a plan may use `key`.

        While measuring goes on, this is every key that can still be measured or has a known cost.
        After measuring was stopped, it is every key that ran, has a known cost, or may be assumed.
        After checking has ended, the key must also be checked or be PyTorch's own.
        """
        if not self._checker.may_choose(key):
            return False
        if not self._stopped:
            return key not in self._too_long or self._costs.is_known(key)
        costs = self._costs
        is_possible = costs.is_touched(key) or costs.is_known(key) or key in self._assumable
        is_sure = key in self.errors or is_trusted(key)
        return is_possible and (is_sure or not self._rests_on_checked)

    def _has_plan(self, reason: str = "tried", *, checked: bool = False) -> bool:
        """Returns True if `_known_plan` finds a plan."""
        return self._known_plan(reason, checked=checked) is not None

    def _known_plan(self, reason: str = "tried", *, checked: bool = False) -> _C.Plan | None:
        """Returns the cheapest plan with known costs, None if there is none.

        Args:
            reason: the reason why measuring is taken to be stopped meanwhile.
            checked: if True, candidates must also be checked or be PyTorch's own.
        """
        before = self._stopped, self._has_checked
        self._stopped, self._has_checked = reason, checked or self._has_checked
        try:
            return self.plan_with(_C.make_plan, checked=False)[0]
        except _C.Error:
            return None
        finally:
            self._stopped, self._has_checked = before

    def _share_s(self, visits_left: int) -> float:
        """Returns the seconds for the next visit."""
        left = max(0.0, self._deadline.left_s("measure"))
        return min(MOST_SHARE_S, left / (2 * visits_left))  # half is left to later steps

    def _expected_work(self) -> int:
        """Guesses the whole work, from which the progress display computes the time left.

        Each problem is measured once, and a third of them are checked, as in tunings of ResNet-18
        and SqueezeNet.
        """
        problems = {key.problem for key in self.rules.primitives}
        checked = {offer.key.problem for offer in self.rules.all}
        return sum(map(_work, problems)) + sum(map(check_work, checked)) // 3

    # ---- checking ------------------------------------------------------------------------------

    def _check_all(self, keys: Sequence[Key]) -> None:
        """Checks `keys` while there is time. Afterwards, plans use only what was checked before."""
        if not keys:
            return
        self._allow_break()
        has_checked = self._checker.check(keys)
        if not has_checked and self._deadline.can_break and self._deadline.is_over("check"):
            self._stopped, self._has_checked = self._stopped or OUT_OF_BUDGET, True

    def resume(self) -> bool:
        """Resumes measuring if much of the time that was reserved for checks is left.

        To be called after a plan was settled. Returns True if it must be settled again.
        """
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
        """Ends measuring before it begins, if what is known is enough for a plan."""
        if self._has_plan(OUT_OF_BUDGET, checked=True):
            self._stopped, self._has_checked = OUT_OF_BUDGET, True
            self._resumes_left = 0

    @property
    def knows_any(self) -> bool:
        """True if the cost of any candidate is known."""
        return any(not _C.is_view(key.primitive) for key in self._costs.costs)

    def _stop(self, reason: str) -> None:
        """Stops measuring. Later plans use what is known.

        Raises: KeyboardInterrupt if nothing is known, if this gives no plan, or at the second
            Ctrl-C.
        """
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
    """Returns a rough measure of the work of measuring `problem`; 1 is that of a layout change.

    The progress display uses it.
    """
    return 15 if has_convolution(problem) else 1


def _chosen(plan: _C.Plan) -> list[Key]:
    keys = [key_of(n.problem, n.primitive) for n in plan.nodes if n.primitive.name]
    keys += [key_of(t.problem, t.primitive) for t in plan.transforms]
    return list(dict.fromkeys(keys))


def tied_layers(graph: _C.Graph, plan: _C.Plan, known: Mapping[Key, Cost]) -> int:
    """Returns the number of convolutions for which another choice may be as good.

    There, the next best plan costs more by no more than the noise of the convolution's own cost.
    """
    convolutions = {node.name for node in graph.nodes if is_convolution(node)}
    count = 0
    for node in plan.nodes:
        if node.name in convolutions and node.primitive.name and node.regret is not None:
            cost = known.get(key_of(node.problem, node.primitive))
            count += cost is not None and node.regret <= cost.noise_ticks
    return count
