# SPDX-License-Identifier: BSD-3-Clause
"""Limits the memory of a plan as a C++ program: tensors, workspaces and weights together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchalgo import _C
from torchalgo._ir.costs import Key, native_key
from torchalgo._measure.allowed import key_of_candidate
from torchalgo._measure.tuning import Tuning

# A candidate, or a change of layout, which covers nothing.
_Identity = tuple[tuple[int, ...], Key]


class Part(NamedTuple):
    """Plans with an arena of `least` to `most` bytes."""

    least: int
    most: int


@dataclass(frozen=True)
class MemoryLimit:
    """A limit of the arena and the constants of a plan, and a part of the plans that may keep it.

    The arena has the tensors between the calls, and their workspaces. Its size is no sum over the
    plan, so that no resource of the solver limits it. But each candidate tells a number of bytes
    that the arena has at least while it runs. So all plans with an arena of `least` to `most` bytes
    that keep the limit have two properties: no candidate needs more than `most`, and the constants
    have at most `limit - least` bytes. The solver can look for plans with these properties. Some of
    them have larger arenas and exceed the limit, so each plan that it finds is lowered.
    """

    limit: int
    needs: Mapping[_Identity, int]
    constants: list[list[int]]  # bytes that the kernels read, as found.by_anchor
    use_of: Callable[[_C.Plan], tuple[int, int]]  # bytes of the arena and of the constants
    least_need: int  # no plan has a smaller arena
    part: Part

    @staticmethod
    def of(tuning: Tuning, limit: int, use_of: Callable[[_C.Plan], tuple[int, int]]) -> MemoryLimit:
        """Returns the limit for all plans of a tuning."""
        graph, found = tuning.graph, tuning.found
        needs = dict(
            zip(
                map(_identity, tuning.transforms),
                _C.memory_need(graph, tuning.transforms),
                strict=True,
            )
        )
        least = [0 if node.problem is None else 1 << 62 for node in graph.nodes]
        for list_, own in zip(found.by_anchor, _C.memory_need(graph, found), strict=True):
            for candidate, need in zip(list_, own, strict=True):
                needs[_identity(candidate)] = need
                if _C.has_own_kernel(candidate.primitive.name):
                    for node in candidate.covers:
                        least[node] = min(least[node], need)
        part = Part(max(least, default=0), limit)
        return MemoryLimit(limit, needs, _C.constant_bytes(found), use_of, part.least, part)

    def within(self, part: Part) -> MemoryLimit:
        """Returns the limit for the plans of a part."""
        return dataclasses.replace(self, part=part)

    @property
    def whole(self) -> MemoryLimit:
        """The limit for all plans."""
        return self.within(Part(self.least_need, self.limit))

    @property
    def is_divided(self) -> bool:
        """True if some plans that keep the limit were left out."""
        return self.part != self.whole.part

    @property
    def resource(self) -> _C.Resource:
        """The constants as a resource of the solver.

        Sums of sizes that are rounded exceed the size of the program's file by less than ALIGNMENT.
        """
        from torchalgo._emit.arena import ALIGNMENT

        most = max(0, self.limit - self.part.least + ALIGNMENT - 1)
        return _C.Resource("bytes of constants", self.constants, most)

    def allows(self, candidate: _C.Candidate) -> bool:
        return self.needs.get(_identity(candidate), 0) <= self.part.most

    def parts_of(self, part: Part, arena: int) -> Iterator[Part]:
        """Divides a part whose cheapest plan has an `arena` with which it exceeds the limit."""
        at = arena
        if arena > part.most:  # the needs are too low: halve them
            inside = sorted(
                {need for need in self.needs.values() if part.least < need <= part.most}
            )
            at = inside[len(inside) // 2] if inside else arena
        if at > part.least:
            if at <= part.most:
                yield Part(part.least, at - 1)
            yield Part(at, part.most)

    def thresholds(self, most: int) -> list[int]:
        """Returns a few needs, the least one first."""
        inside = sorted({need for need in self.needs.values() if need >= self.least_need})
        picked = [inside[i * (len(inside) - 1) // most] for i in range(most)] if inside else []
        return list(dict.fromkeys([self.least_need, *picked]))

    def as_costs(self, found: _C.Candidates, transforms: Sequence[_C.Candidate]) -> _C.CostTable:
        """Returns the bytes of constants as costs, and 1 for each change of layout."""
        costs = _C.CostTable()
        for list_, own in zip(found.by_anchor, self.constants, strict=True):
            for candidate, size in zip(list_, own, strict=True):
                costs.set(native_key(_identity(candidate)[1]), size, "model")
        for transform in transforms:
            costs.set(native_key(_identity(transform)[1]), 1, "model")
        return costs


def _identity(candidate: _C.Candidate) -> _Identity:
    return tuple(candidate.covers), key_of_candidate(candidate)
