# SPDX-License-Identifier: BSD-3-Clause
"""Places blocks of memory, each with its first and last step, in one arena."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 64


class Block(NamedTuple):
    """Memory that exists from one step to another one, both included."""

    bytes: int
    first: int
    last: int


class Arena(NamedTuple):
    """Where blocks lie. No placement needs fewer than `least` bytes."""

    offsets: list[int]
    bytes: int
    least: int


TRIALS = 400


def place(blocks: Sequence[Block]) -> Arena:
    """Returns an offset for each block, such that no two blocks of one step overlap.

    Blocks are placed in an order, each at the lowest place that is free during its steps. The first
    order is by size, the largest first. While the arena is larger than `least`, the order of the
    best trial is changed: a block moves to an earlier place, by turns the one that ends last and a
    random one.

    Source of the order by size: Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net
    Inference", 2020, arXiv:2001.03288.
    """
    sizes = [-(-block.bytes // ALIGNMENT) * ALIGNMENT for block in blocks]
    least = _least(blocks, sizes)
    best = sorted(range(len(blocks)), key=lambda i: (-sizes[i], i))
    offsets, total, highest = _place_in_order(blocks, sizes, best)
    dice = random.Random(0)
    for trial in range(TRIALS):
        if total <= least:
            break
        order = list(best)
        moved = order.index(highest) if trial % 2 else dice.randrange(len(order))
        order.insert(dice.randrange(moved + 1), order.pop(moved))
        found = _place_in_order(blocks, sizes, order)
        if found[1] <= total:
            best, (offsets, total, highest) = order, found
    return Arena(offsets, total, least)


def _place_in_order(
    blocks: Sequence[Block], sizes: Sequence[int], order: Sequence[int]
) -> tuple[list[int], int, int]:
    """Returns offsets if each block gets the lowest free place, their end, and who ends there."""
    offsets = [0] * len(blocks)
    placed: list[int] = []  # by offset
    for i in order:
        at = 0
        for j in placed:
            if blocks[j].first > blocks[i].last or blocks[i].first > blocks[j].last:
                continue
            if at + sizes[i] <= offsets[j]:
                break
            at = max(at, offsets[j] + sizes[j])
        offsets[i] = at
        bisect.insort(placed, i, key=offsets.__getitem__)
    highest = max(order, key=lambda i: offsets[i] + sizes[i], default=-1)
    return offsets, offsets[highest] + sizes[highest] if placed else 0, highest


def _least(blocks: Sequence[Block], sizes: Sequence[int]) -> int:
    """Returns the greatest sum of the blocks of one step."""
    changes: dict[int, int] = {}
    for block, size in zip(blocks, sizes, strict=True):
        changes[block.first] = changes.get(block.first, 0) + size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - size
    now = most = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most
