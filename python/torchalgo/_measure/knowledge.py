# SPDX-License-Identifier: BSD-3-Clause
"""The state of knowledge about one model's candidates, as an immutable value.

The measuring loop (tuning.py) decides by this value and the phase alone, and replaces the value
after each step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torchalgo import _C
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import TICKS_PER_NS, Cost, Key
from torchalgo._ir.names import is_atens, is_atens_change
from torchalgo._measure.allowed import Rules
from torchalgo._measure.known_costs import KnownCosts
from torchalgo._measure.similar import SimilarCosts


class Predictor(Protocol):
    """A model that predicts costs from `costs` measured ones of `problems` problems."""

    costs: int
    problems: int

    def predict(self, keys: Iterable[Key]) -> Mapping[Key, int]:
        """Returns the costs of `keys` in ticks. Keys that it cannot predict are left out."""
        ...


def is_trusted(key: Key) -> bool:
    """Returns True for PyTorch's own algorithms and views. A plan may use them unchecked.

    An algorithm that stores a tensor in a coarser type than the model's is checked, since the plan
    needs its error.
    """
    if is_atens(key.primitive):
        return "." not in key.src + key.dst
    return is_atens_change(key.primitive) or _C.is_view(key.primitive)


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Costs, errors and quarantine of one model's candidates.

    A value: each method returns another one, and changes nothing.
    """

    rules: Rules  # the candidates, overrides, and the quarantine
    costs: KnownCosts
    errors: Mapping[Key, float]  # relative L2 of each checked candidate to a result in f64
    peaks: Peaks | None  # None: costs have no lower bounds
    assumable: frozenset[Key]  # a plan may use them unmeasured after measuring has ended early
    predictor: Predictor | None = None
    failed_before: Mapping[Key, str] = field(default_factory=dict)  # in earlier runs: reasons
    retimed: frozenset[Key] = frozenset()
    no_time_to_measure: frozenset[Key] = frozenset()
    no_time_to_check: frozenset[Key] = frozenset()

    @staticmethod
    def start(rules: Rules, peaks: Peaks | None, call_ticks: int) -> Knowledge:
        """Returns the knowledge before anything is measured."""
        views = {key: 0.0 for key in rules.primitives if _C.is_view(key.primitive)}
        costs = KnownCosts.start(_work_bounds(rules, peaks), call_ticks)
        return Knowledge(rules, costs, views, peaks, frozenset(rules.assumable()))

    # ---- questions -------------------------------------------------------------------------------

    @property
    def has_any_cost(self) -> bool:
        """True if any candidate's cost is measured. Views have none."""
        return any(not _C.is_view(key.primitive) for key in self.costs.costs)

    @property
    def has_gaps(self) -> bool:
        """True if there was no time to measure or to check some candidates."""
        return bool(self.no_time_to_measure or self.no_time_to_check)

    def least_s(self, key: Key) -> float:
        """Returns the seconds of a run, by its cost, or by the cost's lower bound if unknown."""
        return self.costs.lower(key) / (TICKS_PER_NS * 1e9)

    def unchecked(self, keys: Iterable[Key]) -> list[Key]:
        """Returns the keys that are not checked and that there may be time to check."""
        return [k for k in keys if k not in self.errors and k not in self.no_time_to_check]

    def has_run_family(self, key: Key) -> bool:
        """Returns True if any candidate of the same operation ran."""
        return any(map(self.costs.is_touched, self.rules.family(key)))

    def similar_costs(self) -> SimilarCosts | None:
        """Returns a predictor made from the known costs; None if there are no peak rates."""
        if self.peaks is None:
            return None
        known = {**self.costs.rough, **self.costs.costs}
        ticks = {k: c.estimate_ticks for k, c in known.items() if not _C.is_view(k.primitive)}
        return SimilarCosts(ticks, self.peaks)

    # ---- results of measuring and checking -------------------------------------------------------

    def with_costs(self, costs: Mapping[Key, Cost]) -> Knowledge:
        """Returns the knowledge with measured costs added."""
        return dataclasses.replace(self, costs=self.costs.learned(costs))

    def with_errors(self, errors: Mapping[Key, float]) -> Knowledge:
        """Returns the knowledge with the errors of checked candidates added."""
        return dataclasses.replace(self, errors={**self.errors, **errors})

    def with_quarantine(self, reasons: Mapping[Key, str]) -> Knowledge:
        """Returns the knowledge with more candidates in quarantine."""
        return dataclasses.replace(self, rules=self.rules.with_quarantine(reasons))

    def with_failed_before(self, reasons: Mapping[Key, str]) -> Knowledge:
        """Returns the knowledge with candidates in quarantine that failed in earlier runs."""
        return dataclasses.replace(self.with_quarantine(reasons), failed_before=dict(reasons))

    def with_retimed(self, keys: Iterable[Key]) -> Knowledge:
        return dataclasses.replace(self, retimed=self.retimed.union(keys))

    def with_peaks(self, peaks: Peaks | None) -> Knowledge:
        """Returns the knowledge with other peak rates, which change all bounds."""
        costs = self.costs.with_bounds(_work_bounds(self.rules, peaks))
        return dataclasses.replace(self, peaks=peaks, costs=costs)

    def released(self) -> Knowledge:
        """Returns the knowledge in which candidates that failed in earlier runs may run again."""
        rules = self.rules.without_quarantine(self.failed_before)
        return dataclasses.replace(self, rules=rules, failed_before={})

    # ---- what there is no time for ---------------------------------------------------------------

    def guessing(self, keys: Iterable[Key]) -> Knowledge:
        """Returns the knowledge with predictions for the unknown costs of `keys`.

        Returns itself if there is no predictor.
        """
        if self.predictor is None:
            return self
        unknown = [key for key in keys if not self.costs.is_known(key)]
        costs = self.costs.guessing(self.predictor.predict(unknown))
        return dataclasses.replace(self, costs=costs)

    def assuming(self, keys: Iterable[Key]) -> Knowledge:
        """Returns the knowledge with costs for the unknown ones of `keys`.

        They are predicted from similar costs. If there are none, the lower bound is the cost.
        """
        unknown = [key for key in keys if not self.costs.is_known(key)]
        similar = self.similar_costs() if unknown else None
        predicted = {} if similar is None else similar.predict(unknown)
        guesses = {key: predicted.get(key, self.costs.lower(key)) for key in unknown}
        return dataclasses.replace(self, costs=self.costs.guessing(guesses))

    def guessing_unvisited(self) -> Knowledge:
        """Returns the knowledge after measuring has ended early.

        Unknown costs are predicted from similar ones, unless there is another predictor. This
        covers operations that were not reached, candidates that were checked, and candidates that a
        plan may use unmeasured.
        """
        similar = self.similar_costs() if self.predictor is None else None
        if similar is None:
            return self
        sure = self.assumable | set(self.errors)
        unvisited = (k for k in self.rules.primitives if k in sure or not self.has_run_family(k))
        return dataclasses.replace(self, predictor=similar).guessing(unvisited)

    def without_time_to_measure(self, keys: Iterable[Key]) -> Knowledge:
        """Returns the knowledge in which no plan uses `keys`, unless their cost becomes known.

        Keys whose cost may be assumed can still be used.
        """
        lost = self.no_time_to_measure.union(keys) - self.assumable
        return dataclasses.replace(self, no_time_to_measure=lost)

    def without_time_to_check(self, keys: Iterable[Key]) -> Knowledge:
        """Returns the knowledge in which no plan uses `keys`, unless they are PyTorch's own."""
        return dataclasses.replace(self, no_time_to_check=self.no_time_to_check.union(keys))


def _work_bounds(rules: Rules, peaks: Peaks | None) -> dict[Key, int]:
    if peaks is None:
        return dict.fromkeys(rules.primitives, 0)
    return {k: peaks.bound_ticks(k.problem, p) for k, p in rules.primitives.items()}
