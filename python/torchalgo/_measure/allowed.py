# SPDX-License-Identifier: BSD-3-Clause
"""Lists the candidates of one model, and tells which of them may be chosen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from torchalgo import _C
from torchalgo._C import matches_name
from torchalgo._ir.bounds import family_of
from torchalgo._ir.costs import Key, key_of
from torchalgo._ir.names import is_atens, is_linear
from torchalgo._ir.overrides import COMPONENTWISE
from torchalgo._ir.problems import has_convolution

Item = TypeVar("Item")
Group = TypeVar("Group", bound=Hashable)


def key_of_candidate(candidate: _C.Candidate) -> Key:
    return key_of(candidate.problem, candidate.primitive)


class Rules:
    """The candidates that the nodes of a graph may run, as a value that no method changes.

    These are all candidates except quarantined ones. A node with an override may run only what the
    override names, or, for the word COMPONENTWISE, all candidates that are componentwise.
    """

    def __init__(
        self,
        graph: _C.Graph,
        found: _C.Candidates,
        transforms: list[_C.Candidate],
        forced: Mapping[int, str],
    ) -> None:
        self.graph, self.found, self.transforms = graph, found, transforms
        self._set_forced(forced)
        self.quarantined: Mapping[Key, str] = {}  # by key, the reason
        self.all = [candidate for candidates in found.by_anchor for candidate in candidates]
        self.primitives: dict[Key, _C.Primitive] = {
            key_of_candidate(candidate): candidate.primitive
            for candidate in [*self.all, *transforms]
        }
        # A view costs nothing by construction. It is never measured, and is no rival of others.
        measured = [key for key in self.primitives if not _C.is_view(key.primitive)]
        self._places = grouped(measured, _place)
        self._families = grouped(measured, family_of)

    def with_quarantine(self, reasons: Mapping[Key, str]) -> Rules:
        """Returns the rules with more candidates in quarantine."""
        return self._changed(quarantined={**self.quarantined, **reasons})

    def without_quarantine(self, keys: Iterable[Key]) -> Rules:
        """Returns the rules with `keys` taken out of quarantine."""
        free = set(keys)
        left = {key: why for key, why in self.quarantined.items() if key not in free}
        return self._changed(quarantined=left)

    def with_forced(self, forced: Mapping[int, str]) -> Rules:
        """Returns the rules with other overrides."""
        changed = copy.copy(self)
        changed._set_forced(forced)
        return changed

    def _set_forced(self, forced: Mapping[int, str]) -> None:
        self.componentwise = frozenset(n for n, name in forced.items() if name == COMPONENTWISE)
        # By node, the name that an override gives.
        self.forced = {n: name for n, name in forced.items() if name != COMPONENTWISE}

    def _changed(self, **fields: object) -> Rules:
        """Returns a copy with other `fields`. Both share the lists of candidates."""
        changed = copy.copy(self)
        changed.__dict__.update(fields)
        return changed

    @property
    def are_free(self) -> bool:
        """True if every candidate may be chosen."""
        return not self.forced and not self.quarantined and not self.componentwise

    def allows(self, candidate: _C.Candidate) -> bool:
        """Returns True if a plan may use a candidate that computes nodes."""
        if self.quarantined and key_of_candidate(candidate) in self.quarantined:
            return False
        covers = candidate.covers
        if any(node in self.forced for node in covers[1:]):
            return False  # an overridden node is computed by itself
        if not candidate.is_componentwise and not self.componentwise.isdisjoint(covers):
            return False
        name = self.forced.get(covers[0])
        return name is None or matches_name(candidate.primitive.name, name)

    def allowed_transforms(self) -> list[_C.Candidate]:
        if not self.quarantined:
            return self.transforms
        return [t for t in self.transforms if key_of_candidate(t) not in self.quarantined]

    def same_place(self, key: Key) -> list[Key]:
        """Returns `key` and its rivals: candidates of the same problem with the same layouts.

        Quarantined candidates are left out. The rest of a plan is the same with each of them.
        """
        return [k for k in self._places.get(_place(key), ()) if k not in self.quarantined]

    def family(self, key: Key) -> list[Key]:
        """Returns all candidates of the operation of `key`, whatever is fused to it.

        Quarantined candidates are left out.
        """
        return [k for k in self._families.get(family_of(key), ()) if k not in self.quarantined]

    def assumable(self) -> list[Key]:
        """Returns the candidates that a plan may use unmeasured after measuring was ended early.

        These are PyTorch's own algorithms in nchw, all candidates of nodes with an override, all
        candidates of cheap operations, and all layout changes.
        """
        nodes = [
            key
            for c in self.all
            for key in [key_of_candidate(c)]
            if self.allows(c) and (c.covers[0] in self.forced or _is_plain(key) or _is_cheap(key))
        ]
        return [*nodes, *map(key_of_candidate, self.allowed_transforms())]

    def asked_for(self) -> set[Key]:
        """Returns the candidates that an override names."""
        return {
            key_of_candidate(c)
            for c in self.all
            for name in [self.forced.get(c.covers[0])]
            if name is not None and matches_name(c.primitive.name, name)
        }


def grouped(items: Iterable[Item], group_of: Callable[[Item], Group]) -> dict[Group, list[Item]]:
    """Returns the items by group. Groups and items keep the order of `items`."""
    groups: dict[Group, list[Item]] = {}
    for item in items:
        groups.setdefault(group_of(item), []).append(item)
    return groups


def _is_cheap(key: Key) -> bool:
    """Returns True if the operation reads its data about once: no convolution, no linear layer."""
    return not (has_convolution(key.problem) or is_linear(key.problem))


def _is_plain(key: Key) -> bool:
    """Returns True for PyTorch's own algorithms in nchw, the layout that every node can use."""
    return key.src == key.dst == "nchw" and is_atens(key.primitive)


def _place(key: Key) -> Key:
    return key._replace(primitive="")
