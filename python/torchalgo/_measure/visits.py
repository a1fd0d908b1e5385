# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the operations to measure first, and their candidates, if the time may run out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchalgo import _C
from torchalgo._ir.costs import Key
from torchalgo._measure.allowed import grouped
from torchalgo._measure.cost_state import CostState
from torchalgo._predict.similar import SimilarCosts, kind_of

# A candidate of a later operation runs if its predicted cost is at most this times the best one.
CLOSE_ENOUGH = 1.25


class Visits:
    """The selection of operations and candidates to measure.

    One operation of each kind is measured with all its candidates. The measured costs then predict
    which candidates of the other operations have to be measured.
    """

    def __init__(self, cost_state: CostState) -> None:
        self._cost_state = cost_state

    def similar(self) -> SimilarCosts | None:
        """Returns a predictor made from the known costs; None if there are no peak rates."""
        costs = self._cost_state.costs
        if self._cost_state.peaks is None:
            return None
        known = {**costs.rough, **costs.costs}
        ticks = {k: c.estimate_ticks for k, c in known.items() if not _C.is_view(k.primitive)}
        return SimilarCosts(ticks, self._cost_state.peaks)

    def next(
        self, visits: Sequence[Sequence[Key]], is_short: Callable[[Sequence[Key]], bool]
    ) -> Sequence[Key]:
        """Returns the operation to measure next.

        Takes the first kind of which nothing was measured. Among the smaller half of its
        operations, up to the middle one, it chooses the largest whose visit is short. If none is
        short, it chooses the smallest operation. If every kind was measured, returns the first
        operation.
        """
        is_touched = self._cost_state.costs.is_touched
        seen = {
            kind_of(key.problem) for key in self._cost_state.rules.primitives if is_touched(key)
        }
        for kind, same in grouped(visits, lambda keys: kind_of(keys[0].problem)).items():
            if kind not in seen:
                by_size = sorted(same, key=self._least_ticks)
                smaller = by_size[: len(by_size) // 2 + 1]
                return next(filter(is_short, reversed(smaller)), by_size[0])
        return visits[0]

    def shortened(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Returns those of one operation's candidates that are predicted to be close to its best.

        Returns no candidates if one that was measured before is much better than all of `keys`.
        Returns all of `keys` if no prediction is possible.
        """
        similar = self.similar()
        family = self._cost_state.rules.family(keys[0])
        predicted = {} if similar is None else similar.predict([*family, *keys])
        most = CLOSE_ENOUGH * min(predicted.values(), default=0)
        return [key for key in keys if predicted.get(key, 0) <= most] if predicted else keys

    def _least_ticks(self, keys: Sequence[Key]) -> int:
        return max(map(self._cost_state.costs.lower, keys))
