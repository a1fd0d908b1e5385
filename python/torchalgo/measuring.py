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
from torchalgo.costs import Cost, CostFile, Key, key_of
from torchalgo.overrides import is_convolution
from torchalgo.plan import Quarantined
from torchalgo.prediction.model import CostModel
from torchalgo.progress import Progress
from torchalgo.rules import Rules, grouped, offered_by
from torchalgo.sampling import Bench, Sampler, cold_bytes

T = TypeVar("T")

# No algorithm can hold max_rel_error in a type that rounds more coarsely.
COARSE_BOUND = {"f16": 4e-3, "bf16": 3e-2, "tf32": 4e-3}

INTERRUPTED = "interrupted"
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
        predictor: CostModel | None = None,  # of costs, in place of measuring
        guide: Callable[[], CostModel | None] | None = None,  # to what is measured first
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
        self._guide = guide
        self._seed_steps = [self._guided_seeds, self._plain_seeds]  # left to measure
        self._stopped = ""  # why nothing more is measured: plan from what is known
        self._sampler = Sampler(
            self._bench, self.rules.primitives, cold_bytes(graph), settings.seed
        )
        self._progress.start(self._expected_work())
        budget = settings.budget_s
        self._deadline = None if budget is None else self._bench.now_s() + budget
        self._costs = KnownCosts(self._work_bounds())
        if cost_file is not None:
            self._costs.learn(cost_file.read(self.rules.primitives))
        self._predictor = predictor
        if predictor is not None:
            unknown = [key for key in self.rules.primitives if not self._costs.is_known(key)]
            self._costs.guess(predictor.predict(unknown))

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
        """By the budget or Ctrl-C: nothing is measured any more."""
        return bool(self._stopped)

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
                self._costs.measured() if self._stopped else self._costs.table,
                allow=None if is_free else allows,
                **options,
            )
        except _C.Error as problem:
            raise self._explained(problem) from None
        wanted = [Key(w.problem, w.primitive, w.src, w.dst) for w in native]
        if not wanted and checked and not self.is_interrupted:
            wanted = [key for key in _chosen(plan) if key not in self.errors]
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
                self._measure_all(unknown)
            else:
                self._check_all(wanted)
        except KeyboardInterrupt:
            self._stop(INTERRUPTED)

    def method_note(self) -> str:
        """How much was measured, for the plan's method."""
        every = [key for key in self.rules.primitives if not _C.is_view(key.primitive)]
        measured = sum(key in self._costs.costs for key in every)
        notes = [f"measured {measured} of {len(every)} candidates"]
        if self._predictor is not None:
            costs, problems = self._predictor.costs, self._predictor.problems
            notes = [
                f"nothing measured; {len(every) - measured} of {len(every)} costs predicted from"
                f" {costs} measured ones of {problems} problems"
            ]
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
        """Measured first: enough for a plan, so that tuning can be ended at any time after."""
        while self._seed_steps and not self._stopped and self._predictor is None:
            seeds = self._seed_steps.pop(0)()
            unknown = [key for key in dict.fromkeys(seeds) if not self._costs.is_known(key)]
            if unknown:
                return unknown
        return []

    def _plain_seeds(self) -> list[Key]:
        """PyTorch's own. Where nothing bounds a cost, all candidates of single nodes: each would be
        wanted in its turn."""
        return self.rules.plain() if self._bench.peaks() is not None else self.rules.alone()

    def _guided_seeds(self) -> list[Key]:
        """What a plan of predicted costs rests on: a good plan to begin with. Nothing where enough
        for a plan is known: nobody waits for a guide then."""
        is_needed = any(not self._costs.is_known(key) for key in self._plain_seeds())
        model = self._guide() if is_needed and self._guide is not None else None
        if model is None:
            return []
        costs = KnownCosts(self._work_bounds())
        costs.learn(self._costs.costs)
        costs.guess(model.predict(k for k in self.rules.primitives if not costs.is_known(k)))
        plan, _ = _C.make_plan(
            self.graph,
            self.found,
            self.rules.allowed_transforms(),
            costs.table,
            allow=lambda candidate: self.rules.allows(offered_by(candidate)),
        )
        return _chosen(plan)

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
        for i, keys in enumerate(families.values()):
            if self._is_late():
                self._stop("out of budget")
                return
            self._learn(self._sampler.take(keys, self._share_s(len(families) - i)))
            self._progress.advance(keys[-1].problem, _work(keys[-1].problem))

    def _learn(self, costs: Mapping[Key, Cost]) -> None:
        self.rules.quarantined.update(self._sampler.failures)
        self._costs.learn(costs)
        if self._cost_file is not None and costs:
            self._cost_file.append(costs)

    def _is_late(self) -> bool:
        if self._deadline is None or self._bench.now_s() < self._deadline:
            return False
        return self._has_plan()

    def _may_rest_on(self, key: Key) -> bool:
        """Whether a plan may: at any time what can still be measured; later what is known; after
        Ctrl-C without what would have to be checked first."""
        if not self._stopped:
            return True
        is_trusted = key in self.errors or key.primitive.startswith("aten.")
        return self._costs.is_known(key) and (is_trusted or not self.is_interrupted)

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
        for problem, group in grouped(keys, lambda key: key.problem).items():
            primitives = [self.rules.primitives[key] for key in group]
            results = self._bench.check(problem, primitives, self._bound_of(problem))
            for key, (error, failure) in zip(group, results, strict=True):
                self.errors[key] = error
                if failure:
                    self.rules.quarantined[key] = failure
            self._progress.advance(f"check {problem}", _check_work(problem))

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
