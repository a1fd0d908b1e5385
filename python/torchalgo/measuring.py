# SPDX-License-Identifier: BSD-3-Clause
"""The measuring loop: which candidates of one model are measured, and what may be chosen.

Every candidate has a lower bound from the start (bounds.py). The planner plans with these, and what
its plan rests on is measured. When a plan rests on measured costs only, it is the optimum of the
whole table, part of which was never measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torchalgo import _C
from torchalgo.bounds import KnownCosts, dtype_of, family_of
from torchalgo.costs import TICKS_PER_NS, Cost, CostFile, Key, key_of
from torchalgo.deadline import OUT_OF_BUDGET, Deadline, Pace, guess_check_s, guess_visit_s
from torchalgo.failures import failure_of, is_short_of_memory
from torchalgo.overrides import is_convolution
from torchalgo.plan import Quarantined
from torchalgo.progress import Progress
from torchalgo.rules import Rules, grouped, offered_by
from torchalgo.sampling import Bench, Sampler, cold_bytes
from torchalgo.timings import Timings

T = TypeVar("T")

# No algorithm can hold max_rel_error in a type that rounds more coarsely.
COARSE_BOUND = {"f16": 4e-3, "bf16": 3e-2, "tf32": 4e-3}

INTERRUPTED = "interrupted"
TELL_EVERY_S, TELL_SHARE = 0.5, 0.01  # of the time, for the best plan so far
MOST_SHARE_S = 1.0  # of a problem's rounds; with a budget less


@dataclass(frozen=True)
class TuneSettings:
    max_rel_error: float = 1e-5
    budget_s: float | None = None
    seed: int = 0


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
    ) -> None:
        self.graph, self.found, self.settings = graph, found, settings
        self.device = device
        self.timings = timings if timings is not None else Timings()
        with self.timings.step("find"):
            if transforms is None:
                transforms = _C.transform_candidates(graph, found, device)
            self.transforms = transforms
            self.rules = Rules(graph, found, transforms, forced)
        # Relative L2 of each checked candidate; a view computes nothing.
        self.errors = {key: 0.0 for key in self.rules.primitives if _C.is_view(key.primitive)}
        self._progress = progress if progress is not None else Progress(False)
        self._cost_file = cost_file
        self._bench = bench if bench is not None else Bench.on(device)
        self._bound = settings.max_rel_error
        self._failed_before: dict[Key, str] = {}  # in an earlier run, and why
        self._is_seeded = False  # there is a plan of known costs
        self._stopped = ""  # why nothing more is measured: plan from what is known
        self._sampler = Sampler(
            self._bench, self.rules.primitives, cold_bytes(graph), settings.seed
        )
        self._progress.start(self._expected_work())
        self._began = self._told_at = self._bench.now_s()
        self._telling_s = 0.0
        self._deadline = (
            Deadline(settings.budget_s, self._bench.now_s) if deadline is None else deadline
        )
        self._visit_pace, self._check_pace = Pace(4.0), Pace(2.0)
        self._too_long: set[Key] = set()  # to be measured in the time that is left
        self._has_checked = False  # all that could be; what was not may not be chosen
        with self.timings.step("look up"):
            self._peaks = None if cost_file is None else cost_file.read_peaks()
        self._is_probed = False
        if self._peaks is None:
            self._probe()
        self._costs = KnownCosts(self._work_bounds())
        if cost_file is not None:
            with self.timings.step("look up"):
                self._costs.learn(cost_file.read(self.rules.primitives))
                self._obey_failures(cost_file)

    @property
    def costs(self) -> _C.CostTable:
        """Measured costs, and the bounds of all others."""
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
        **options: object,
    ) -> tuple[_C.Plan, list[Key]]:
        """The same for another planner, with primitives restricted by name to `only`, or, if not
        `checked`, of measured candidates whatever their numbers."""
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
        if self.is_stopped:
            transforms = [
                t for t in transforms if self._may_rest_on(key_of(t.problem, t.primitive))
            ]
        if only is not None and not self.rules.forced:
            transforms = [t for t in transforms if only(t.primitive.name)]
        is_free = only is None and not self.is_stopped and self.rules.are_free
        try:
            with self.timings.step("solve"):
                plan, native = planner(
                    self.graph,
                    self.found,
                    transforms,
                    self._costs.measured() if self._stopped else self._costs.table,
                    allow=None if is_free else allows,
                    **options,
                )
        except _C.Error as problem:
            if self._release_failures():
                return self.plan_with(planner, only, checked, **options)
            raise self._explained(problem) from None
        wanted = [Key(w.problem, w.primitive, w.src, w.dst) for w in native]
        unchecked = [key for key in _chosen(plan) if key not in self.errors]
        if only is None and checked:
            self._deadline.keep("check", self._check_pace.expect_s(self._guess_checks_s(unchecked)))
        if not wanted and checked and not self._rests_on_checked:
            wanted = unchecked
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

    def solve_known(self, forced: Mapping[int, str], **options: Any) -> _C.Plan:
        """The cheapest plan that obeys `forced`, from the costs there are; nothing is measured.

        Raises: torchalgo.Error if a primitive it needs was never run.
        """
        before = self.rules.forced, self._stopped
        self.rules.forced, self._stopped = dict(forced), "from known costs"
        try:
            plan, _ = self.plan_with(_C.make_plan, with_regrets=True, **options)
        except _C.Error as problem:
            raise _C.Error(
                f"with_overrides: {problem}; what it needs was not measured here: use"
                " torchalgo.optimize(model, example_inputs, overrides=...)"
            ) from None
        finally:
            self.rules.forced, self._stopped = before
        return plan

    def measure(self, wanted: Iterable[Key]) -> None:
        """One step for the wanted keys: measurements of those that never ran, else checks.

        Ctrl-C ends measuring and checking: from then on plans are made of what is known, of what
        was checked or is PyTorch's own, where that is enough.
        """
        wanted = list(wanted)
        unknown = [key for key in wanted if not self._costs.is_known(key)]
        try:
            if unknown and not self._stopped:
                if self._probe():  # bounds that came from lower rates are too high
                    self._costs = self._costs.with_bounds(self._work_bounds())
                    self._is_seeded = False
                    return
                with self.timings.step("measure"):
                    self._measure_all(unknown)
            else:
                with self.timings.step("check"):
                    self._check_all(wanted)
        except KeyboardInterrupt:
            self._stop(INTERRUPTED)

    def method_note(self) -> str:
        """How much was measured, for the plan's method."""
        every = [key for key in self.rules.primitives if not _C.is_view(key.primitive)]
        notes = [f"measured {sum(map(self._costs.is_known, every))} of {len(every)} candidates"]
        if self._stopped:
            kind = "checked" if self._rests_on_checked else "measured"
            notes.append(f"{self._stopped}: only {kind} candidates")
        elif self._too_long:
            notes.append(f"{OUT_OF_BUDGET}: {len(self._too_long)} would have taken too long")
        return "; ".join(notes)

    def quarantine_list(self) -> list[Quarantined]:
        return [
            Quarantined(key.problem, key.primitive, key.src, key.dst, reason)  # type: ignore[arg-type]
            for key, reason in sorted(self.quarantined.items())
        ]

    # ---- what is known and what comes next ------------------------------------------------------

    def _probe(self) -> bool:
        """Probes the machine, once; whether it is faster than it was ever known to be."""
        if self._is_probed:
            return False
        self._is_probed = True
        with self.timings.step("probe"):
            found, before = self._bench.peaks(), self._peaks
        if found is None:
            return False
        self._peaks = found if before is None else before.raised_by(found)
        if self._peaks == before:
            return False
        if self._cost_file is not None:
            self._cost_file.keep_peaks(self._peaks)
        return True

    def _work_bounds(self) -> dict[Key, int]:
        peaks = self._peaks
        if peaks is None:
            return dict.fromkeys(self.rules.primitives, 0)
        return {k: peaks.bound_ticks(k.problem, p) for k, p in self.rules.primitives.items()}

    def _seeds(self) -> list[Key]:
        """Measured first: enough for a plan, so that tuning can be ended at any time after. Where
        nothing bounds a cost, all candidates of single nodes: each would be wanted in its turn."""
        if self._is_seeded or self._stopped:
            return []
        self._is_seeded = True
        is_bounded = self._peaks is not None
        seeds = self.rules.plain() if is_bounded else self.rules.alone()
        return list(dict.fromkeys(key for key in seeds if not self._costs.is_known(key)))

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

    def _with_rivals(self, wanted: Sequence[Key]) -> list[Key]:
        """With those that have the same place and bound: they would be wanted next, and in the same
        rounds a slow phase of the machine decides nothing between them."""
        keys: dict[Key, None] = {}
        for key in wanted:
            least = self._costs.lower(key)
            for other in self.rules.same_place(key):
                is_equal = other == key or self._costs.lower(other) == least
                if is_equal and not self._costs.is_known(other):
                    keys[other] = None
        return list(keys)

    def _measure_all(self, unknown: Sequence[Key]) -> None:
        families = grouped(self._with_rivals(unknown), family_of)
        self._deadline.can_break = self._has_budget and self._has_plan()
        for i, family in enumerate(families.values()):
            if self._is_late():
                self._stop(OUT_OF_BUDGET)
                return
            if keys := self._in_time(family):
                self._progress.doing(f"{family_of(keys[0])} ({len(keys)})")
                self._visit(keys, self._share_s(len(families) - i))
                self._tell_best()
            self._progress.advance(family[-1].problem, _work(family[-1].problem))

    def _visit(self, keys: Sequence[Key], share_s: float) -> None:
        guess_s, started = self._guess_s(keys), self._bench.now_s()
        self._learn(self._sampler.take(keys, share_s))
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

    def _learn(self, costs: Mapping[Key, Cost]) -> None:
        """What a visit found; it is on disk before the next one begins."""
        failures = self._sampler.failures.items()
        self._refuse({key: why for key, why in failures if key not in self.rules.quarantined})
        self._costs.learn(costs)
        if self._cost_file is not None and costs:
            self._cost_file.append(costs)
            self._cost_file.forget_failures(costs, checked=False)

    # ---- failures ------------------------------------------------------------------------------

    def _refuse(self, reasons: Mapping[Key, str], *, checked: bool = False) -> None:
        """Quarantines candidates for good, as far as they are to blame."""
        self.rules.quarantined.update(reasons)
        if self._cost_file is None or not reasons:
            return
        is_short = is_short_of_memory()
        found = {
            key: failure_of(
                why, self._bound_of(key.problem) if checked else None, is_short=is_short
            )
            for key, why in reasons.items()
        }
        self._cost_file.append_failures({key: f for key, f in found.items() if f is not None})

    def _obey_failures(self, cost_file: CostFile) -> None:
        """What failed in an earlier run is not tried again, unless an override names it."""
        asked_for = self.rules.asked_for()
        self._failed_before = {
            key: failure.reason
            for key, failure in cost_file.read_failures(self.rules.primitives).items()
            if key not in asked_for and failure.holds_for(self._bound_of(key.problem))
        }
        self.rules.quarantined.update(self._failed_before)

    def _release_failures(self) -> bool:
        """Where an earlier run's failures leave no plan, they are tried again; whether any are."""
        if self._stopped or not self._failed_before:
            return False
        for key in self._failed_before:
            del self.rules.quarantined[key]
        self._failed_before = {}
        self._is_seeded = False
        return True

    # ---- budget --------------------------------------------------------------------------------

    @property
    def _rests_on_checked(self) -> bool:
        """Whether plans are made of what was checked or is PyTorch's own: nothing runs any more."""
        return self.is_interrupted or self._has_checked

    @property
    def _has_budget(self) -> bool:
        return self._deadline.budget_s is not None

    def _is_late(self) -> bool:
        return self._deadline.is_over("measure") and self._has_plan()

    def _in_time(self, keys: Sequence[Key]) -> list[Key]:
        """Those of one visit that can be measured in the time that is left, by what they take at
        least and what visits took so far; all of them where there is no plan without."""
        left_s, expected_s = self._deadline.left_s("measure"), 0.0
        too_long: set[Key] = set()
        for key in sorted(keys, key=self._costs.lower):
            expected_s += self._visit_pace.expect_s(self._guess_s([key]))
            if expected_s > left_s:
                too_long.add(key)
        if not too_long or not self._has_plan():
            return list(keys)
        self._too_long |= too_long
        return [key for key in keys if key not in too_long]

    def _guess_s(self, keys: Iterable[Key]) -> float:
        return guess_visit_s(map(self._least_s, keys))

    def _guess_checks_s(self, keys: Iterable[Key]) -> float:
        return sum(guess_check_s(_C.flop_count(k.problem), self._least_s(k)) for k in keys)

    def _least_s(self, key: Key) -> float:
        return self._costs.lower(key) / (TICKS_PER_NS * 1e9)

    def _may_rest_on(self, key: Key) -> bool:
        """Whether a plan may: at any time what can still be measured; later what is known; in the
        end without what would have to be checked first."""
        if not self._stopped:
            return key not in self._too_long
        is_trusted = key in self.errors or key.primitive.startswith("aten.")
        return self._costs.is_known(key) and (is_trusted or not self._rests_on_checked)

    def _has_plan(self, reason: str = "tried", *, checked: bool = False) -> bool:
        """Whether what is known, or even `checked`, is enough for a plan."""
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

    def _share_s(self, families_left: int) -> float:
        """Seconds for the next family."""
        left = max(0.0, self._deadline.left_s("measure"))
        return min(MOST_SHARE_S, left / (2 * families_left))  # half is left to later steps

    def _expected_work(self) -> int:
        """A guess, for the time left: most problems are measured, some of them again for the plans
        that this one is compared with; half are checked."""
        problems = {key.problem for key in self.rules.primitives}
        checked = {offer.key.problem for offer in self.rules.all}
        return sum(map(_work, problems)) * 8 // 5 + sum(map(_check_work, checked)) // 2

    # ---- checking ------------------------------------------------------------------------------

    def _check_all(self, keys: Iterable[Key]) -> None:
        is_late = False
        self._deadline.can_break = self._has_budget and self._has_plan(OUT_OF_BUDGET, checked=True)
        for problem, group in grouped(keys, lambda key: key.problem).items():
            guess_s = self._guess_checks_s(group)
            is_long = self._check_pace.expect_s(guess_s) > self._deadline.left_s("check")
            if is_long and self._deadline.can_break:
                is_late = True
                continue
            started = self._bench.now_s()
            self._check(problem, group)
            self._check_pace.learn(guess_s, self._bench.now_s() - started)
            self._progress.advance(f"check {problem}", _check_work(problem))
        if is_late:
            self._stopped, self._has_checked = OUT_OF_BUDGET, True

    def _check(self, problem: str, group: Sequence[Key]) -> None:
        primitives = [self.rules.primitives[key] for key in group]
        results = self._bench.check(problem, primitives, self._bound_of(problem))
        errors = {key: error for key, (error, _) in zip(group, results, strict=True)}
        failures = {key: why for key, (_, why) in zip(group, results, strict=True) if why}
        self.errors.update(errors)
        self._refuse(failures, checked=True)
        self._note_passed({k: error for k, error in errors.items() if k not in failures})

    def _note_passed(self, errors: Mapping[Key, float]) -> None:
        """In the database, for reports: a later run checks again."""
        if self._cost_file is not None and errors:
            self._cost_file.note_errors(errors)
            self._cost_file.forget_failures(errors, checked=True)

    def _bound_of(self, problem: str) -> float:
        return max(self._bound, COARSE_BOUND.get(dtype_of(problem), 0.0))

    def _stop(self, reason: str) -> None:
        """Plan from what is known; KeyboardInterrupt if that gives no plan."""
        if self._stopped == INTERRUPTED == reason or not self._has_plan(reason):
            raise KeyboardInterrupt
        self._stopped = reason


def _work(problem: str) -> int:
    """How long measuring lasts, roughly, beside a layout transform: for the time left."""
    return 15 if problem.startswith(("fwd_", "bwd_")) else 1


def _check_work(problem: str) -> int:
    return 3 if problem.startswith(("fwd_", "bwd_")) else 1


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
