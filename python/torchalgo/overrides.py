# SPDX-License-Identifier: BSD-3-Clause
"""Overrides: {glob of layer names: primitive name}."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NoReturn

from torchalgo import _C, problems
from torchalgo._C import Error


def matches_name(name: str, pattern: str) -> bool:
    """Whether `pattern` names this primitive or its algorithm; the rule of csrc/ir/primitive.h."""
    return name == pattern or name.startswith((pattern + ".", pattern + "{"))


def is_convolution(node: _C.Node) -> bool:
    return node.problem is not None and problems.is_convolution(node.problem)


def forced_primitives(
    graph: _C.Graph, found: _C.Candidates, overrides: Mapping[str, str] | None
) -> dict[int, str]:
    """The name that each overridden node must use, by node index.

    A glob speaks of convolutions (`*` crosses dots); one that matches none may name other planned
    nodes. Later entries win.

    Raises: torchalgo.Error if a glob matches nothing, or a row does not offer a node it is given.
    """
    forced: dict[int, str] = {}
    if not overrides:
        return forced
    if not isinstance(overrides, Mapping):
        raise Error(
            f"overrides: got {type(overrides).__name__}, expected {{glob of layer names: primitive"
            " name}, such as {'layer1.*.conv2': 'cpu.winograd_f4x4_3x3'}"
        )
    nodes, by_anchor, refusals = graph.nodes, found.by_anchor, found.refusals
    for pattern, primitive in overrides.items():
        if not isinstance(pattern, str) or not isinstance(primitive, str):
            raise Error(
                f"overrides: {pattern!r}: {primitive!r}, expected {{glob of layer names: primitive"
                " name}, such as {'layer1.*.conv2': 'cpu.winograd_f4x4_3x3'}"
            )
        for index in _matches(nodes, pattern):
            names = {c.primitive.name for c in by_anchor[index]}
            if not any(matches_name(name, primitive) for name in names):
                _refuse(nodes[index], names, refusals[index], pattern, primitive)
            forced[index] = primitive
    return forced


def _matches(nodes: list[_C.Node], pattern: str) -> list[int]:
    planned = [(i, node) for i, node in enumerate(nodes) if node.problem is not None]
    named = [(i, node) for i, node in planned if fnmatchcase(node.name, pattern)]
    matches = [i for i, node in named if is_convolution(node)] or [i for i, _ in named]
    if not matches:
        names = [node.name for _, node in planned if is_convolution(node)]
        raise Error(
            f"overrides: {pattern!r} matches no layer; the convolutions are: {', '.join(names)}"
        )
    return matches


def _refuse(
    node: _C.Node, offered: set[str], refusals: list[_C.Refusal], pattern: str, primitive: str
) -> NoReturn:
    related = [
        r.reason
        for r in refusals
        if matches_name(r.primitive, primitive) or matches_name(primitive, r.primitive)
    ]
    reason = "; ".join(sorted(set(related))) or "there is no such primitive"
    refused = {r.primitive: r.reason for r in refusals if r.primitive not in offered}
    text = (
        f"overrides: {pattern!r} gives {node.name} ({node.problem}) the primitive {primitive!r},"
        f" which refuses: {reason}. Supported: {', '.join(sorted(offered))}"
    )
    if refused:
        text += ". Refused: " + ", ".join(f"{p} ({why})" for p, why in sorted(refused.items()))
    raise Error(text)
