# SPDX-License-Identifier: BSD-3-Clause
"""Spells views of channels in one way: splits, chunks, slices and shuffles."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch import fx, nn

from torchalgo._train.known_ops import channel_shuffle, known_op

_SPLITS: frozenset[Any] = frozenset((torch.split, torch.chunk, "split", "chunk"))
_VIEWS: frozenset[Any] = frozenset((torch.reshape, "view", "reshape"))
_TRANSPOSITIONS: frozenset[Any] = frozenset((torch.transpose, "transpose"))


def simplify_channel_views(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Makes slices of splits and chunks, and one op of each shuffle.

    Removes slices that take all channels, and those that another one equals.
    """
    slices: dict[tuple[Any, ...], fx.Node] = {}  # by their sources and channels
    for node in list(graph.nodes):
        if node.target is operator.getitem:
            _slice_of_split(node)
            op, source = known_op(node, modules), node.args[0]
            if op is not None:
                is_whole = op.numbers == (0, _shape(source)[1])
                equal = source if is_whole else slices.setdefault((source, op.numbers), node)
                if equal is not node:
                    node.replace_all_uses_with(equal)
                    graph.erase_node(node)
        elif node.target in _VIEWS:
            _shuffle_of_views(node)
    _erase_unread(graph)


def _shape(node: Any) -> tuple[int, ...]:
    meta = node.meta.get("tensor_meta") if isinstance(node, fx.Node) else None
    return tuple(getattr(meta, "shape", ()))


def _slice_of_split(node: fx.Node) -> None:
    """Lets an item of a split along the channels be a slice."""
    split, index = node.args
    if not isinstance(split, fx.Node) or split.target not in _SPLITS or not split.args:
        return
    source, *rest = split.args
    dim = rest[1] if len(rest) > 1 else split.kwargs.get("dim", 0)
    parts = split.meta.get("tensor_meta")
    if not isinstance(index, int) or not isinstance(parts, tuple | list):
        return
    if dim != 1 or any(len(part.shape) != 4 for part in parts):
        return
    end = list(itertools.accumulate(part.shape[1] for part in parts))[index]
    begin = end - parts[index].shape[1]
    node.args = (source, (slice(None), slice(begin, end)))


def _shuffle_of_views(node: fx.Node) -> None:
    """Lets the last view of [n, groups, c / groups, h, w], transposed, be a channel shuffle."""
    chain = [node, node.args[0]]
    if isinstance(chain[1], fx.Node) and chain[1].target == "contiguous":
        chain.append(chain[1].args[0])
    transposed = chain[-1]
    if not isinstance(transposed, fx.Node) or transposed.target not in _TRANSPOSITIONS:
        return
    split, *dims = transposed.args
    if (
        tuple(dims) not in ((1, 2), (2, 1))
        or not isinstance(split, fx.Node)
        or split.target not in _VIEWS
    ):
        return
    source = split.args[0]
    sizes, parts = _shape(source), _shape(split)
    if len(sizes) != 4 or len(parts) != 5 or _shape(node) != sizes:
        return
    n, c, h, w = sizes
    groups = parts[1]
    if parts != (n, groups, c // groups, h, w) or groups in (1, c):  # these move no channel
        return
    with node.graph.inserting_before(node):
        shuffled = node.graph.call_function(channel_shuffle, (source, groups))
    shuffled.meta.update(node.meta)
    node.replace_all_uses_with(shuffled)


def _erase_unread(graph: fx.Graph) -> None:
    """Removes views that nothing reads any more."""
    pure = _SPLITS | _VIEWS | _TRANSPOSITIONS | {operator.getitem, "contiguous"}
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "call_method") and node.target in pure and not node.users:
            graph.erase_node(node)
