# SPDX-License-Identifier: BSD-3-Clause
"""The candidates of one model, and which of them may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torchalgo import _C
from torchalgo._C import matches_name
from torchalgo._ir.bounds import family_of
from torchalgo._ir.costs import Key, key_of
from torchalgo._ir.overrides import is_convolution
from torchalgo._ir.problems import has_convolution, is_activation

Item = TypeVar("Item")
Group = TypeVar("Group", bound=Hashable)


@dataclass(frozen=True)
class Offered:
    """A candidate without its binding: what the rules below look at."""

    key: Key
    anchor: int
    covers: tuple[int, ...]


def offered_by(candidate: _C.Candidate) -> Offered:
    covers = tuple(candidate.covers)
    return Offered(key_of(candidate.problem, candidate.primitive), covers[0], covers)


class Rules:
    """What the graph's nodes may run: all candidates less the quarantined ones, and, at a node with
    an override, its primitive only."""

    def __init__(
        self,
        graph: _C.Graph,
        found: _C.Candidates,
        transforms: list[_C.Candidate],
        forced: Mapping[int, str],
    ) -> None:
        self.forced = dict(forced)
        self.quarantined: dict[Key, str] = {}  # and why
        self.transforms = transforms
        self.primitives: dict[Key, _C.Primitive] = {}
        self.all: list[Offered] = []
        for candidates in found.by_anchor:
            for candidate in candidates:
                offer = offered_by(candidate)
                self.all.append(offer)
                self.primitives[offer.key] = candidate.primitive
        for candidate in transforms:
            self.primitives[key_of(candidate.problem, candidate.primitive)] = candidate.primitive
        self._activations = {n for n, node in enumerate(graph.nodes) if is_activation(node.problem)}
        self._convolutions = {n for n, node in enumerate(graph.nodes) if is_convolution(node)}
        # A view costs nothing by construction: it is no rival, and never measured.
        measured = [key for key in self.primitives if not _C.is_view(key.primitive)]
        self._places = grouped(measured, _place)
        self._families = grouped(measured, family_of)

    @property
    def are_free(self) -> bool:
        """Whether everything may be chosen."""
        return not self.forced and not self.quarantined

    def allows(self, offer: Offered) -> bool:
        if offer.key in self.quarantined:
            return False
        if any(node in self.forced for node in offer.covers[1:]):
            return False  # an overridden node is computed by itself
        name = self.forced.get(offer.anchor)
        return name is None or matches_name(offer.key.primitive, name)

    def allowed_transforms(self) -> list[_C.Candidate]:
        if not self.quarantined:
            return self.transforms
        return [
            t for t in self.transforms if key_of(t.problem, t.primitive) not in self.quarantined
        ]

    def same_place(self, key: Key) -> list[Key]:
        """`key` and its rivals: the rest of a plan cannot tell them apart."""
        return [k for k in self._places.get(_place(key), ()) if k not in self.quarantined]

    def family(self, key: Key) -> list[Key]:
        """All candidates of the operation of `key`, with whatever is fused to it."""
        return [k for k in self._families.get(family_of(key), ()) if k not in self.quarantined]

    def assumable(self) -> list[Key]:
        """What a plan may rest on unmeasured where measuring was ended: of a convolution PyTorch's
        own in nchw, or all that an override names; of what costs little, anything."""
        nodes = [
            c.key
            for c in self.all
            if self.allows(c) and (c.anchor in self.forced or _is_plain(c.key) or _is_cheap(c.key))
        ]
        changes = [key_of(t.problem, t.primitive) for t in self.allowed_transforms()]
        return [*nodes, *changes]

    def asked_for(self) -> set[Key]:
        """What an override names."""
        return {
            c.key
            for c in self.all
            if c.anchor in self.forced and matches_name(c.key.primitive, self.forced[c.anchor])
        }

    def alone(self) -> list[Key]:
        """All that run single nodes, with the activations behind them or without."""
        return [c.key for c in self.all if self._is_alone(c) and self.allows(c)]

    def of_convolutions(self) -> list[list[Key]]:
        """Those that run each convolution alone, with the activation behind it or without."""
        alone = [
            c
            for c in self.all
            if c.anchor in self._convolutions and self._is_alone(c) and self.allows(c)
        ]
        return [[c.key for c in own] for own in grouped(alone, lambda c: c.anchor).values()]

    def _is_alone(self, offer: Offered) -> bool:
        return all(node in self._activations for node in offer.covers[1:])


def grouped(items: Iterable[Item], group_of: Callable[[Item], Group]) -> dict[Group, list[Item]]:
    """Items by group, both in their order."""
    groups: dict[Group, list[Item]] = {}
    for item in items:
        groups.setdefault(group_of(item), []).append(item)
    return groups


def _is_cheap(key: Key) -> bool:
    """Of an operation that passes its data once."""
    return not (has_convolution(key.problem) or key.problem.startswith("linear_"))


def _is_plain(key: Key) -> bool:
    """Of PyTorch's own, in the layout that every node can run in."""
    return key.src == key.dst == "nchw" and key.primitive.startswith("aten.")


def _place(key: Key) -> Key:
    return key._replace(primitive="")
