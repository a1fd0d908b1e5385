# SPDX-License-Identifier: BSD-3-Clause
"""Overrides: {glob of layer names: primitive name}."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NoReturn

from torchalgo import _C
from torchalgo._C import Error, matches_name
from torchalgo._ir import problems
from torchalgo._ir.choices import near

# An override's word for all primitives whose results round by the values that they read. It leaves
# out Winograd, FFT and Strassen, except F(2x2,3x3): docs/limits.md, "Large values".
COMPONENTWISE = "componentwise"
_TYPE_IN_NAME = re.compile(r"\.w?(bf16|f16)(?=[._]|$)")


def is_convolution(node: _C.Node) -> bool:
    return node.problem is not None and problems.is_convolution(node.problem)


def forced_primitives(
    graph: _C.Graph, found: _C.Candidates, overrides: Mapping[str, str] | None
) -> dict[int, str]:
    """Returns the name of the primitive that each overridden node must use, by node index.

    The name may be COMPONENTWISE.

    A glob selects convolutions; its `*` also matches dots. A glob that matches no convolution
    selects other planned nodes that it matches. Later entries win.

    Raises: torchalgo.Error if a glob matches nothing, or a selected node cannot run the primitive.
    """
    forced: dict[int, str] = {}
    if not overrides:
        return forced
    check_form(overrides)
    nodes, by_anchor, refusals = graph.nodes, found.by_anchor, found.refusals
    for pattern, primitive in overrides.items():
        for index in _matches(nodes, pattern):
            check_offered(nodes[index], by_anchor[index], refusals[index], pattern, primitive)
            forced[index] = primitive
    return forced


def names_type(primitive: object) -> bool:
    """Returns True if the name says a type, as cpu.bf16_conv and cpu.linear.wf16 do."""
    return isinstance(primitive, str) and _TYPE_IN_NAME.search(primitive) is not None


def only_named_types(
    graph: _C.Graph, found: _C.Candidates, overrides: Mapping[str, str]
) -> _C.Candidates:
    """Returns `found` without candidates in coarser types than the model's.

    Keeps those of a layer whose override names a type. Raises: torchalgo.Error if a glob matches
    nothing.
    """
    named = {
        index: primitive
        for pattern, primitive in overrides.items()
        for index in _matches(graph.nodes, pattern)
    }
    kept = [
        [
            c
            for c in own
            if names_type(named.get(index)) or not _C.rounds_coarsely(c.problem, c.primitive)
        ]
        for index, own in enumerate(found.by_anchor)
    ]
    return _C.Candidates(kept, found.refusals)


def check_form(overrides: object) -> None:
    """Raises torchalgo.Error if `overrides` is no mapping of names to names."""
    if not isinstance(overrides, Mapping):
        given = type(overrides).__name__
    else:
        odd = [each for each in overrides.items() if not all(isinstance(x, str) for x in each)]
        if not odd:
            return
        given = f"{odd[0][0]!r}: {odd[0][1]!r}"
    raise Error(
        f"TA4201 overrides: got {given}, expected {{glob of layer names: primitive name}}, such as"
        " {'layer1.*.conv2': 'cpu.winograd_f4x4_3x3'}"
    )


def check_offered(
    node: _C.Node,
    candidates: Sequence[_C.Candidate],
    refusals: Sequence[_C.Refusal],
    pattern: str,
    primitive: str,
) -> None:
    """Raises torchalgo.Error if no candidate of the node is the primitive that `pattern` names."""
    if primitive == COMPONENTWISE:
        return
    names = {c.primitive.name for c in candidates}
    if not any(matches_name(name, primitive) for name in names):
        _refuse(node, names, refusals, pattern, primitive)


def _matches(nodes: list[_C.Node], pattern: str) -> list[int]:
    planned = [(i, node) for i, node in enumerate(nodes) if node.problem is not None]
    named = [(i, node) for i, node in planned if fnmatchcase(node.name, pattern)]
    matches = [i for i, node in named if is_convolution(node)] or [i for i, _ in named]
    if not matches:
        left = [node.name for node in nodes if node.problem is None]
        if found := [name for name in left if fnmatchcase(name, pattern)]:
            raise Error(
                f"TA4202 overrides: {pattern!r} matches no planned layer: PyTorch runs"
                f" {some(found)}, which cannot be fixed"
            )
        names = [node.name for _, node in planned if is_convolution(node)]
        raise Error(f"TA4202 overrides: {pattern!r} matches no layer{near_layers(pattern, names)}")
    return matches


def near_layers(pattern: str, names: Sequence[str]) -> str:
    """Returns the end of an error: the layers that `pattern` may have been meant to match."""
    if not names:
        return ": the model has none"
    below = [name for name in names if fnmatchcase(name, f"{pattern}.*")]
    if below:
        return f"; write {pattern + '.*'!r} for those inside: {some(below)}"
    return near(pattern, names) or f"; the convolutions are: {some(names)}"


def some(names: Sequence[str], most_characters: int = 120) -> str:
    """Joins the first of `names` up to so many characters, and says how many more there are."""
    shown = list(names[:1])
    for name in names[1:]:
        if len(", ".join([*shown, name])) > most_characters:
            break
        shown.append(name)
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _refuse(
    node: _C.Node, offered: set[str], refusals: Sequence[_C.Refusal], pattern: str, primitive: str
) -> NoReturn:
    related = sorted(
        {
            r.reason
            for r in refusals
            if matches_name(r.primitive, primitive) or matches_name(primitive, r.primitive)
        }
    )
    layer = node.name if node.name == pattern else f"{pattern!r}, here {node.name}"
    head = f"overrides: {layer} ({node.problem}): {primitive!r}"
    if related:
        reasons = some(related)
        raise Error(f"TA4203 {head} refuses: {reasons}. Supported: {some(sorted(offered))}")
    supported = f". Supported: {some(sorted(offered))}"
    if names_type(primitive):
        raise Error(
            f"TA4203 {head} is not among the candidates, which have the model's own type: in"
            f" inference, optimize takes this override, or max_error=1e-2{supported}"
        )
    algorithms = {name for name, _ in _C.algorithms()}
    if primitive in algorithms:
        raise Error(
            f"TA4203 {head} does not run on this kind of device, or is never planned: choose"
            f" another{supported}"
        )
    longer = {name for name in offered if name.startswith(primitive)}
    hint = near(primitive, sorted(longer or offered | algorithms), 0.75) or supported
    if " " in primitive.strip():
        hint += " (an override names no layouts: the planner chooses them)"
    raise Error(f"TA4004 {head}: there is no such primitive{hint}")
