# SPDX-License-Identifier: BSD-3-Clause
"""Overrides of training plans: {glob of layer names: {direction: primitive name}}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeGuard

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._ir.overrides import check_offered, is_convolution, near_layers
from torchalgo._ir.problems import DIRECTION_WORDS

DirectionOverrides = Mapping[str, Mapping[str, str]]
_EXPECTED = (
    "expected {glob of layer names: {direction: primitive name}}, such as"
    " {'layer1.*': {'backward_filter': 'aten.conv'}}; the directions are"
    f" {', '.join(DIRECTION_WORDS)}"
)


def check_overrides(overrides: Any, layers: Sequence[str]) -> None:
    """Checks the form of overrides.

    Args:
        layers: the names of all planned convolutions.
    Raises: torchalgo.Error if it is wrong, or if a glob matches none of the layers.
    """
    if not isinstance(overrides, Mapping):
        raise Error(f"TA4201 overrides: got {type(overrides).__name__}, {_EXPECTED}")
    for pattern, choices in overrides.items():
        if not isinstance(pattern, str) or not _are_choices(choices):
            raise Error(f"TA4201 overrides: {pattern!r}: got {choices!r}, {_EXPECTED}")
        if not any(fnmatchcase(layer, pattern) for layer in layers):
            raise Error(
                f"TA4202 overrides: {pattern!r} matches no layer{near_layers(pattern, layers)}"
            )


def _are_choices(choices: Any) -> TypeGuard[Mapping[str, str]]:
    return (
        isinstance(choices, Mapping)
        and bool(choices)
        and all(word in DIRECTION_WORDS for word in choices)
        and all(isinstance(primitive, str) for primitive in choices.values())
    )


def layers_of(forward: _C.Graph) -> list[str]:
    """Returns the names of the convolutions."""
    return [node.name for node in forward.nodes if is_convolution(node)]


def forced_directions(
    forward: _C.Graph, graph: _C.Graph, found: _C.Candidates, overrides: DirectionOverrides
) -> dict[int, str]:
    """Returns the name of the primitive that each overridden node of `graph` must use.

    Later entries win. The first layer has no backward_data if the input needs no gradient; a glob
    may match it nevertheless.

    Args:
        graph: the training graph of `forward`.
    Raises: torchalgo.Error if a node cannot run its primitive.
    """
    nodes, by_anchor, refusals = graph.nodes, found.by_anchor, found.refusals
    places = {node.name: index for index, node in enumerate(nodes)}
    forced: dict[int, str] = {}
    for pattern, choices in overrides.items():
        for layer in layers_of(forward):
            if not fnmatchcase(layer, pattern):
                continue
            for word, primitive in choices.items():
                name = layer if word == "forward" else f"{layer}.{DIRECTION_WORDS[word]}"
                if (index := places.get(name)) is None:
                    continue
                check_offered(nodes[index], by_anchor[index], refusals[index], pattern, primitive)
                forced[index] = primitive
    return forced
