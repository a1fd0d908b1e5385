# SPDX-License-Identifier: BSD-3-Clause
"""Which operations are measured first, and with which candidates, where the time may run out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchalgo import _C
from torchalgo.costs import Key
from torchalgo.ledger import Ledger
from torchalgo.prediction.similar import SimilarCosts, kind_of
from torchalgo.rules import grouped

# A candidate of a later operation runs if it is predicted within this of the best one.
CLOSE_ENOUGH = 1.25


class Visits:
    """Of each kind of operation one is measured with all its candidates. What was measured predicts
    which candidates the others need."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def similar(self) -> SimilarCosts | None:
        """Returns what predicts costs from those there are; None if nothing bounds a cost here."""
        costs = self._ledger.costs
        if self._ledger.peaks is None:
            return None
        known = {**costs.rough, **costs.costs}
        ticks = {k: c.estimate_ticks for k, c in known.items() if not _C.is_view(k.primitive)}
        return SimilarCosts(ticks, self._ledger.peaks)

    def in_order(
        self, visits: Sequence[Sequence[Key]], is_short: Callable[[Sequence[Key]], bool]
    ) -> list[Sequence[Key]]:
        """Returns one operation of each kind first: one of middle size, or the largest of the
        smaller ones whose visit is short. Kinds and the other operations keep their order."""
        first = []
        for same in grouped(visits, lambda keys: kind_of(keys[0].problem)).values():
            by_size = sorted(same, key=self._least_ticks)
            smaller = by_size[: len(by_size) // 2 + 1]
            first.append(next(filter(is_short, reversed(smaller)), by_size[0]))
        return first + [keys for keys in visits if not any(keys is one for one in first)]

    def shortened(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Returns the candidates of one operation that are predicted to be close to its best; all
        if none of its kind was measured."""
        similar = self.similar()
        predicted = {} if similar is None else similar.predict(keys)
        most = CLOSE_ENOUGH * min(predicted.values(), default=0)
        return [key for key in keys if key in predicted and predicted[key] <= most] or keys

    def _least_ticks(self, keys: Sequence[Key]) -> int:
        return max(map(self._ledger.costs.lower, keys))
