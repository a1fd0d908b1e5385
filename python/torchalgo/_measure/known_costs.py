# SPDX-License-Identifier: BSD-3-Clause
"""The known costs of one model's candidates, as an immutable value."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torchalgo import _C
from torchalgo._ir.bounds import family_of, sibling_floor
from torchalgo._ir.costs import Cost, Key, native_key
from torchalgo._measure.allowed import grouped


@dataclass(frozen=True, eq=False)
class KnownCosts:
    """The known cost of each key, and the cost tables of the planner. No method changes it.

    A key's cost is its measured cost, or else its guessed cost, or else the largest of its lower
    bounds. A bound comes from the work of the primitive or from a lost race. It also comes from the
    cost of the same primitive with more or fewer fused steps. Every cost in a table is `call_ticks`
    higher: a plan is a number of calls.

    The table with bounds has thousands of entries, of which a step changes a few. So a value hands
    its table on to the value that is made from it. If it is asked again, it makes a new one.
    """

    bounds: Mapping[Key, int]
    call_ticks: int = 0
    costs: Mapping[Key, Cost] = field(default_factory=dict)  # measured costs
    rough: Mapping[Key, Cost] = field(default_factory=dict)  # lower bounds: the key lost a race
    guessed: Mapping[Key, int] = field(default_factory=dict)
    native: Mapping[Key, _C.CostKey] = field(default_factory=dict)
    # The keys of one primitive for one operation, with more or fewer fused steps.
    siblings: Mapping[SiblingGroup, Sequence[Key]] = field(default_factory=dict)

    @staticmethod
    def start(bounds: Mapping[Key, int], call_ticks: int = 0) -> KnownCosts:
        """Returns the costs before anything is measured. A view costs nothing."""
        views = {key: Cost(0) for key in bounds if _C.is_view(key.primitive)}
        native = {key: native_key(key) for key in bounds}
        siblings = grouped(bounds, sibling_group)
        return KnownCosts(dict(bounds), call_ticks, views, native=native, siblings=siblings)

    def with_bounds(self, bounds: Mapping[Key, int]) -> KnownCosts:
        """Returns the same costs with other lower bounds."""
        changed = KnownCosts.start(bounds, self.call_ticks)
        known = {**self.rough, **self.costs}
        changed = changed.learned({k: cost for k, cost in known.items() if k not in changed.costs})
        return changed.guessing(self.guessed)

    def is_known(self, key: Key) -> bool:
        """Returns whether a plan may use the cost of `key`: it is measured or guessed."""
        return key in self.costs or key in self.guessed

    def is_touched(self, key: Key) -> bool:
        """Returns whether the candidate of `key` ran at all."""
        return key in self.costs or key in self.rough

    def lower(self, key: Key) -> int:
        """Returns the cost of `key` in ticks: the measured or guessed one, or else its bound."""
        if key in self.costs:
            return self.costs[key].ticks
        return self.guessed.get(key, self.bounds[key])

    # ---- values with more or fewer costs ---------------------------------------------------------

    def learned(self, measured: Mapping[Key, Cost]) -> KnownCosts:
        """Returns the costs with `measured` added. A rough cost only raises its key's bound."""
        costs, rough, bounds = dict(self.costs), dict(self.rough), dict(self.bounds)
        changes: _Changes = {}
        for key, cost in measured.items():
            if cost.is_rough:
                rough[key] = cost
            else:
                costs[key] = cost
                rough.pop(key, None)
                changes[key] = cost.ticks, "measured"
            for other in self.siblings[sibling_group(key)]:
                floor = cost.ticks if other == key else int(cost.ticks * sibling_floor(key, other))
                is_known = other in costs or other in self.guessed
                if not is_known and floor > bounds[other]:
                    bounds[other] = floor
                    changes[other] = floor, "bound"
        return self._changed(changes, costs=costs, rough=rough, bounds=bounds)

    def guessing(self, predicted: Mapping[Key, int]) -> KnownCosts:
        """Returns the costs with guesses, in ticks, for those of the keys that were not measured.

        A higher bound replaces a guess.
        """
        guesses = {
            key: max(ticks, self.bounds[key])
            for key, ticks in predicted.items()
            if key not in self.costs
        }
        changes: _Changes = {key: (ticks, "model") for key, ticks in guesses.items()}
        return self._changed(changes, guessed={**self.guessed, **guesses})

    def _changed(self, changes: _Changes, **fields: object) -> KnownCosts:
        """Returns a value with other `fields`, and with the table if this one has made it."""
        changed = dataclasses.replace(self, **fields)  # type: ignore[arg-type]
        table = self.__dict__.pop("table", None)
        if table is not None:
            for key, (ticks, source) in changes.items():
                self._set(table, key, ticks, source)
            changed.__dict__["table"] = table
        return changed

    # ---- tables for the planner ------------------------------------------------------------------

    @functools.cached_property
    def table(self) -> _C.CostTable:
        """The known costs, and lower bounds for all other keys."""
        table = _C.CostTable()
        for key in self.bounds:
            if _C.is_view(key.primitive):
                continue
            is_measured, is_guessed = key in self.costs, key in self.guessed
            source = "measured" if is_measured else "model" if is_guessed else "bound"
            self._set(table, key, self.lower(key), source)
        return table

    def measured(self, assumed: Iterable[Key] = ()) -> _C.CostTable:
        """Returns a table without lower bounds, for plans that may use only known costs.

        Keys in `assumed` that never ran are an exception: they cost as much as their bound.
        """
        table = _C.CostTable()
        for key, cost in [*self.rough.items(), *self.costs.items()]:
            if not _C.is_view(key.primitive):
                self._set(table, key, cost.estimate_ticks, "measured")
        guesses = {**{key: self.bounds[key] for key in assumed}, **self.guessed}
        for key, ticks in guesses.items():
            if not self.is_touched(key):
                self._set(table, key, ticks, "model")
        return table

    def _set(self, table: _C.CostTable, key: Key, ticks: int, source: str) -> None:
        table.set(self.native[key], ticks + self.call_ticks, source)


_Changes = dict[Key, tuple[int, str]]  # ticks, and where they come from
SiblingGroup = tuple[str, str, str, str]


def sibling_group(key: Key) -> SiblingGroup:
    return family_of(key), key.primitive, key.src, key.dst
