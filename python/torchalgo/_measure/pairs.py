# SPDX-License-Identifier: BSD-3-Clause
"""Costs of pairs of choices: what a choice costs more or less because of the op before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torchalgo import _C
from torchalgo._ir.costs import Key, native_key

NativePair = tuple[str, _C.CostKey | None, str, _C.CostKey, int]  # arguments of CostTable.set_pair


class PairEnd(NamedTuple):
    """A node and the key of its primitive, as one end of a pair. NOTHING stands for any choice."""

    node: str
    run: Key | None


NOTHING = PairEnd("", None)
Pairs = dict[tuple[PairEnd, PairEnd], int]  # (producer, reader) -> ticks of 1/1024 ns


def admissible(pairs: Pairs, costs: Mapping[Key, int]) -> Pairs:
    """Returns the pairs whose cost is not 0, changed so that no choice costs less than 0.

    If the pairs of a reader would subtract more than its cost, they are scaled down.
    """
    least: dict[PairEnd, dict[str, int]] = {}  # reader -> producer's node -> least ticks
    for (before, reader), ticks in pairs.items():
        by_node = least.setdefault(reader, {})
        by_node[before.node] = min(by_node.get(before.node, 0), ticks)
    result = {}
    for (before, reader), ticks in pairs.items():
        cost = costs.get(reader.run, 0) if reader.run is not None else 0
        taken = -sum(least[reader].values())
        if ticks < 0 and taken > cost:
            ticks = -(-ticks * cost // taken)  # towards 0
        if ticks:
            result[before, reader] = ticks
    return result


def native_pairs(pairs: Pairs) -> list[NativePair]:
    """Returns the pairs as arguments of CostTable.set_pair."""
    return [
        (
            before.node,
            None if before.run is None else native_key(before.run),
            reader.node,
            native_key(reader.run),
            ticks,
        )
        for (before, reader), ticks in pairs.items()
        if reader.run is not None
    ]
