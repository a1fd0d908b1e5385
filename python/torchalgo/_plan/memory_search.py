# SPDX-License-Identifier: BSD-3-Clause
"""Searches the cheapest plan that keeps a limit of memory."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._measure.steps import Phase, Question, planner_input
from torchalgo._plan.limits import Limits
from torchalgo._plan.memory_limit import MemoryLimit, Part

MOST_PARTS = 40  # in which a plan that keeps the limit is sought
MOST_THRESHOLDS = 8  # of needs, for the smallest plan


def within_memory(limits: Limits) -> Limits:
    """Returns limits whose cheapest plan keeps the memory limit; the same without such a limit.

    This is branch and bound over the size of the arena: see MemoryLimit. The cost of the cheapest
    plan of a part is a lower bound of all plans in it that keep the limit. If it keeps the limit
    itself, it is the best one of its part. Else the part is divided. The part with the lowest bound
    is next.

    Raises: torchalgo.Error if no plan was found that keeps the limit.
    """
    memory = limits.memory
    if memory is None:
        return limits
    parts = [(0, memory.part, 0)]
    best: tuple[int, Limits] | None = None
    for number in range(MOST_PARTS):
        if not parts or (best is not None and best[0] <= parts[0][0]):
            break
        _, part, _ = heapq.heappop(parts)
        inside = _within(limits, memory, part)
        try:
            native = inside.settle()
        except Error:  # no plan of the part has so few bytes of constants
            continue
        arena, constants = memory.use_of(native)
        if arena + constants > memory.limit:
            for each in memory.parts_of(part, arena):
                heapq.heappush(parts, (native.cost, each, number))
        elif best is None or native.cost < best[0]:
            best = native.cost, inside
    return _smallest(limits, memory) if best is None else best[1]


def _within(limits: Limits, memory: MemoryLimit, part: Part) -> Limits:
    return dataclasses.replace(limits, memory=memory.within(part))


def _smallest(limits: Limits, memory: MemoryLimit) -> Limits:
    """Returns limits with the plan of least memory.

    Raises: torchalgo.Error if this plan exceeds the limit too.
    """
    found = {sum(use): (need, use[1]) for need, use in _small_plans(limits, memory)}
    least = min(found, default=0)
    if found and least <= memory.limit:
        need, constants = found[least]
        inside = _within(limits, memory, Part(memory.limit - constants, need))
        if sum(memory.use_of(inside.settle())) <= memory.limit:
            return inside
    raise Error(
        f"TA2301 optimize: memory_limit_bytes={memory.limit}: no plan was found that keeps it. The"
        f" smallest one that was found needs {least} bytes of tensors, workspace and weights: raise"
        " the limit, or make the image or the batch smaller"
    )


def _small_plans(limits: Limits, memory: MemoryLimit) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yields a few plans with the fewest bytes of constants: the largest need, and the memory."""
    for need in memory.thresholds(MOST_THRESHOLDS):
        question = Question(limits=_within(limits, memory, Part(0, need)))
        graph, found, transforms, _, allow = planner_input(
            limits.tuning.knowledge, Phase.MEASURING, question
        )
        costs = memory.as_costs(found, transforms)
        try:
            native, _ = _C.make_plan(graph, found, transforms, costs, allow=allow)
        except Error:  # a change of layout, or an override, needs more
            continue
        yield need, memory.use_of(native)
