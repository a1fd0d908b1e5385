# SPDX-License-Identifier: BSD-3-Clause
"""Spells views of channels in one way: splits, chunks, slices and shuffles."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch import fx, nn

from torchalgo._train.known_ops import calls, channel_shuffle, known_op, sizes_of

_SPLITS: frozenset[Any] = frozenset((torch.split, torch.chunk, "split", "chunk"))
_VIEWS: frozenset[Any] = frozenset((torch.reshape, "view", "reshape"))
_TRANSPOSITIONS: frozenset[Any] = frozenset((torch.transpose, "transpose"))


def simplify_channel_views(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Replaces splits and chunks by slices, and the views of each channel shuffle by one op.

    Removes slices that take all channels, and repeated slices.
    """
    slices: dict[tuple[Any, ...], fx.Node] = {}  # by their sources and channels
    for node in list(graph.nodes):
        if node.target is operator.getitem:
            _slice_of_split(node)
            op, source = known_op(node, modules), node.args[0]
            if op is not None:  # a slice
                is_whole = sizes_of(node) == sizes_of(source)
                equal = source if is_whole else slices.setdefault((source, op.numbers), node)
                if equal is not node:
                    node.replace_all_uses_with(equal)
                    graph.erase_node(node)
        elif calls(node, _VIEWS):
            _shuffle_of_views(node)
    _erase_unread(graph)


def _slice_of_split(node: fx.Node) -> None:
    """Makes a slice of an item of a split along the channels."""
    split, index = node.args
    if not calls(split, _SPLITS) or not split.args:
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
    """Replaces a view to [n, groups, c / groups, h, w], a transposition and the view back.

    `node` is the view back. Nothing else may read, or change, what lies between.
    """
    transposed = _only_source(node)
    if calls(transposed, ("contiguous",)):
        transposed = _only_source(transposed)
    split = _only_source(transposed) if calls(transposed, _TRANSPOSITIONS) else None
    if split is None or transposed.args[1:] not in ((1, 2), (2, 1)) or not calls(split, _VIEWS):
        return
    source = split.args[0] if split.args else None
    sizes, parts = sizes_of(source), sizes_of(split)
    if sizes is None or len(sizes) != 4 or parts is None or sizes_of(node) != sizes:
        return
    n, c, h, w = sizes
    groups = parts[1]
    if parts != (n, groups, c // groups, h, w) or groups in (1, c):  # these move no channel
        return
    with node.graph.inserting_before(node):
        shuffled = node.graph.call_function(channel_shuffle, (source, groups))
    shuffled.meta.update(node.meta)
    node.replace_all_uses_with(shuffled)


def _only_source(node: Any) -> Any:
    """Returns the node that `node` reads first, if nothing else reads that; else None."""
    source = node.args[0] if node is not None and node.args else None
    return source if isinstance(source, fx.Node) and len(source.users) == 1 else None


def _erase_unread(graph: fx.Graph) -> None:
    """Removes views that nothing reads any more."""
    pure = _SPLITS | _VIEWS | _TRANSPOSITIONS | {operator.getitem, "contiguous"}
    for node in reversed(list(graph.nodes)):
        if calls(node, pure) and not node.users:
            graph.erase_node(node)
