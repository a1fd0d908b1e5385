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

from torchalgo import _C
from torchalgo.bounds import KnownCosts, dtype_of, family_of
from torchalgo.costs import Cost, CostFile, Key, key_of
from torchalgo.overrides import is_convolution
from torchalgo.plan import Quarantined
from torchalgo.progress import Progress
from torchalgo.rules import Rules, grouped, offered_by
from torchalgo.sampling import RETIMED_ROUNDS, Bench, cold_bytes

T = TypeVar("T")

# No algorithm can hold max_rel_error in a type that rounds more coarsely.
COARSE_BOUND = {"f16": 4e-3, "bf16": 3e-2, "tf32": 4e-3}

INTERRUPTED = "interrupted"
MOST_SHARE_S = 10.0  # of an operation's rounds; with a budget less

# Timed again with what a plan rests on: what costs no more than so many times as much.
CLOSE = 1.03


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
    ) -> None:
        self.graph, self.found, self.settings = graph, found, settings
        self.device = device
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
        self._is_seeded = False
        self._retimed: set[Key] = set()
        self._plain = frozenset(self.rules.plain())
        self._stopped = ""  # why nothing more is measured: plan from what is known
        self._sampler = self._bench.sampler(self.rules.primitives, cold_bytes(graph), settings.seed)
        self._progress.start(self._expected_work())
        budget = settings.budget_s
        self._started_s = self._bench.now_s()
        self._deadline = None if budget is None else self._bench.now_s() + budget
        self._costs = KnownCosts(self._work_bounds())
        if cost_file is not None:
            self._costs.learn(cost_file.read(self.rules.primitives))

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
        """By the budget or Ctrl-C: nothing is measured any more."""
        return bool(self._stopped)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._bench.now_s() - self._started_s

    def set_pairs(
        self, pairs: Iterable[tuple[str, _C.CostKey | None, str, _C.CostKey, int]]
    ) -> None:
        """From now on plans are made with these costs of pairs: see in_context.py."""
        self._costs.set_pairs(pairs)

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
        if self._stopped:
            transforms = [
                t for t in transforms if self._may_rest_on(key_of(t.problem, t.primitive))
            ]
        if only is not None and not self.rules.forced:
            transforms = [t for t in transforms if only(t.primitive.name)]
        is_free = only is None and not self._stopped and self.rules.are_free
        try:
            plan, native = planner(
                self.graph,
                self.found,
                transforms,
                self._table(rough),
                allow=None if is_free else allows,
                **options,
            )
        except _C.Error as problem:
            raise self._explained(problem) from None
        wanted = [Key(w.problem, w.primitive, w.src, w.dst) for w in native]
        if not wanted and checked:
            wanted = self._left_to_do(_chosen(plan))
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
            unchecked = [key for key in wanted if key not in self.errors]
            if unknown and not self._stopped:
                self._visit_all(self._races(unknown))
            elif unchecked:
                self._check_all(unchecked)
            else:
                self._visit_all(self._rematches(wanted), again=True)
        except KeyboardInterrupt:
            self._stop(INTERRUPTED)

    def interrupt(self) -> None:
        """As Ctrl-C while something is measured."""
        self._stop(INTERRUPTED)

    def method_note(self) -> str:
        """How much was measured, for the plan's method."""
        every = [key for key in self.rules.primitives if not _C.is_view(key.primitive)]
        notes = [f"measured {sum(map(self._costs.is_known, every))} of {len(every)} candidates"]
        if self._sampler.disturbed:
            share = self._sampler.disturbed / self._sampler.samples
            notes.append(f"{share:.0%} of the samples were disturbed and taken again")
        if self._stopped:
            kind = "checked" if self.is_interrupted else "measured"
            notes.append(f"{self._stopped}: only {kind} candidates")
        return "; ".join(notes)

    def quarantine_list(self) -> list[Quarantined]:
        return [
            Quarantined(key.problem, key.primitive, key.src, key.dst, reason)  # type: ignore[arg-type]
            for key, reason in sorted(self.quarantined.items())
        ]

    # ---- what is known and what comes next ------------------------------------------------------

    def _work_bounds(self) -> dict[Key, int]:
        peaks = self._bench.peaks()
        if peaks is None:
            return dict.fromkeys(self.rules.primitives, 0)
        return {k: peaks.bound_ticks(k.problem, p) for k, p in self.rules.primitives.items()}

    def _seeds(self) -> list[Key]:
        """Measured first: where nothing bounds a cost, all candidates of single nodes, each of
        which would be wanted in its turn."""
        if self._is_seeded or self._stopped:
            return []
        self._is_seeded = True
        if self._bench.peaks() is not None:
            return []
        return list(dict.fromkeys(k for k in self.rules.alone() if not self._costs.is_known(k)))

    def _table(self, rough: bool) -> _C.CostTable:
        if self._stopped:
            return self._costs.measured(assumed=self._plain)
        return self._costs.estimates() if rough else self._costs.table

    def _left_to_do(self, chosen: Sequence[Key]) -> list[Key]:
        """What must be checked, or, if all is, timed again, before a plan counts."""
        if self.is_interrupted:
            return []
        unchecked = [key for key in chosen if key not in self.errors]
        if unchecked or self._stopped:
            return unchecked
        return [key for key in chosen if self._is_luck_possible(key)]

    def _is_luck_possible(self, key: Key) -> bool:
        """Whether it was chosen for times that were not taken again."""
        is_retimed = key in self._retimed or _C.is_view(key.primitive)
        return not is_retimed and 0 < self._costs.costs[key].samples.n < RETIMED_ROUNDS

    def _unsure_fastest(self) -> list[Key]:
        """Per convolution the candidate alone that may be its fastest, if it was not measured."""
        if self._stopped:
            return []
        first = (min(own, key=self._costs.lower) for own in self.rules.of_convolutions())
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
        """The chosen by operation, with the close rivals of each."""
        rematches = []
        for keys in grouped(chosen, family_of).values():
            close = [k for key in keys for k in self._close_rivals(key)]
            rematches.append(list(dict.fromkeys([*keys, *close])))
        return rematches

    def _close_rivals(self, key: Key) -> list[Key]:
        most = CLOSE * self._costs.lower(key)
        known = filter(self._costs.is_known, self.rules.same_place(key))
        return [k for k in known if self._costs.lower(k) <= most]

    def _visit_all(self, visits: Sequence[Sequence[Key]], again: bool = False) -> None:
        for i in range(0, len(visits), self._sampler.lot):
            if self._is_late():
                self._stop("out of budget")
                return
            lot = visits[i : i + self._sampler.lot]
            self._learn(self._sampler.take_all(lot, self._share_s(len(visits) - i), again))
            for keys in lot:
                if again:
                    self._retimed.update(keys)
                self._progress.advance(keys[-1].problem, _work(keys[-1].problem))

    def _learn(self, costs: Mapping[Key, Cost]) -> None:
        self.rules.quarantined.update(self._sampler.failures)
        self._costs.learn(costs)
        if self._cost_file is not None and costs:
            self._cost_file.append(costs)

    def _is_late(self) -> bool:
        if self._deadline is None or self._bench.now_s() < self._deadline:
            return False
        return self._knows_any() and self._has_plan()

    def _knows_any(self) -> bool:
        return any(not _C.is_view(key.primitive) for key in self._costs.costs)

    def _may_rest_on(self, key: Key) -> bool:
        """Whether a plan may: at any time what can still be measured; later what ran, or is
        PyTorch's own; after Ctrl-C without what would have to be checked first."""
        if not self._stopped:
            return True
        is_trusted = key in self.errors or key.primitive.startswith("aten.")
        is_possible = self._costs.is_touched(key) or key in self._plain
        return is_possible and (is_trusted or not self.is_interrupted)

    def _has_plan(self, reason: str = "tried") -> bool:
        """Whether what is known is enough for a plan."""
        before, self._stopped = self._stopped, reason
        try:
            self.plan_with(_C.make_plan, checked=False)
        except _C.Error:
            return False
        finally:
            self._stopped = before
        return True

    def _share_s(self, families_left: int) -> float:
        """Seconds for the next family."""
        if self._deadline is None:
            return MOST_SHARE_S
        left = max(0.0, self._deadline - self._bench.now_s())
        return min(MOST_SHARE_S, left / (2 * families_left))  # half is left to later steps

    def _expected_work(self) -> int:
        """A guess, for the time left: most problems are measured, some of them again for the plans
        that this one is compared with; half are checked."""
        problems = {key.problem for key in self.rules.primitives}
        checked = {offer.key.problem for offer in self.rules.all}
        return sum(map(_work, problems)) * 4 // 3 + sum(map(_check_work, checked)) // 2

    # ---- checking ------------------------------------------------------------------------------

    def _check_all(self, keys: Iterable[Key]) -> None:
        groups = grouped(keys, lambda key: key.problem)
        asked = [
            (problem, [self.rules.primitives[key] for key in group], self._bound_of(problem))
            for problem, group in groups.items()
        ]
        checked = self._sampler.check_all(asked)
        for (problem, group), results in zip(groups.items(), checked, strict=True):
            for key, (error, failure) in zip(group, results, strict=True):
                self.errors[key] = error
                if failure:
                    self.rules.quarantined[key] = failure
            self._progress.advance(f"check {problem}", _check_work(problem))

    def _bound_of(self, problem: str) -> float:
        return max(self._bound, COARSE_BOUND.get(dtype_of(problem), 0.0))

    def _stop(self, reason: str) -> None:
        """Plan from what is known; KeyboardInterrupt if that is nothing, or gives no plan."""
        is_known = self._knows_any()
        if self._stopped == INTERRUPTED == reason or not is_known or not self._has_plan(reason):
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
