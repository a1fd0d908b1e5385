# SPDX-License-Identifier: BSD-3-Clause
"""Calls whose dicts have the planned keys in another order, such as those of **kwargs.

A model may depend on this order: torch.cat(list(parts.values())) does. So the first call in each
order compares the ops that the original runs with those of the planned order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from torchalgo._base.trees import Leaf, Node, Tree, flatten
from torchalgo._capture.calls import CallForm, bound_arguments, copy_of
from torchalgo._run.original import Original

_READS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def planned_order(
    planned: Tree | None, given: Tree | None, tensors: Iterator[Any]
) -> list[Any] | None:
    """Returns the tensors of a call in the order in which the planned call has them.

    Returns None if the call differs from the planned one in more than the order of dicts' keys.
    """
    if not isinstance(given, Node) or not isinstance(planned, Node):
        own = [next(tensors)] if isinstance(given, Leaf) else []
        return own if given == planned else None
    is_dict = issubclass(given.kind, dict)
    has_keys = set(given.keys) == set(planned.keys) if is_dict else given.keys == planned.keys
    count = len(planned.children)
    if given.kind is not planned.kind or not has_keys or len(given.children) != count:
        return None
    places = given.keys if is_dict else range(count)
    wanted = dict(zip(planned.keys if is_dict else range(count), planned.children, strict=True))
    found = {}
    for place, child in zip(places, given.children, strict=True):
        parts = planned_order(wanted[place], child, tensors)
        if parts is None:
            return None
        found[place] = parts
    return [tensor for place in wanted for tensor in found[place]]


def keys_of(tree: Tree | None) -> Any:
    """Returns the keys of all dicts in a tree, as a value that can be the key of a dict."""
    return (tree.keys, *map(keys_of, tree.children)) if isinstance(tree, Node) else ()


def runs_same_ops(
    original: Original, planned: CallForm, given: Tree, tensors: Sequence[Tensor]
) -> bool:
    """Returns whether the original runs the same ops for `given` keys as for the planned ones.

    Returns False if an op reads a value of a tensor, since Python code may then branch.

    Args:
        tensors: those of the call, in the order of `given`.
    """
    numbers = planned_order(planned.inputs, given, iter(range(len(tensors))))
    assert numbers is not None
    own = list(map(copy_of, tensors))
    others = list(map(copy_of, tensors))
    by_plan = _Recorder(own).run(original, planned, [own[i] for i in numbers])
    by_call = _Recorder(others).run(original, dataclasses.replace(planned, inputs=given), others)
    return by_plan is not None and by_plan == by_call


class _Recorder(TorchDispatchMode):
    """Records the ops of a call: their names and arguments, with tensors by their origin."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._ops: list[Any] = []
        self._reads = False
        self._made: dict[int, tuple[Tensor, int]] = {}  # by id, which the kept tensor reserves
        for tensor in tensors:
            self._number(tensor)

    def run(self, original: Original, form: CallForm, tensors: list[Tensor]) -> list[Any] | None:
        """Returns the ops of a call and its result; None if an op reads a value."""
        bound = bound_arguments(form, tensors)
        with torch.no_grad(), original.kept(), self:
            result = original.run(bound.args, bound.kwargs)
        results: list[Tensor] = []
        self._note("result", flatten(result, "the model's result", results, []), results)
        return None if self._reads else self._ops

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._reads |= any(tag in func.tags for tag in _READS)
        self._note(str(func), args, kwargs or {})
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, Tensor):
                self._number(leaf)
        return result

    def _number(self, tensor: Tensor) -> None:
        self._made.setdefault(id(tensor), (tensor, len(self._made)))

    def _note(self, name: str, *values: Any) -> None:
        leaves, form = tree_flatten(values)
        self._ops.append((name, str(form), list(map(self._shown, leaves))))

    def _shown(self, leaf: Any) -> Any:
        """Returns a value that is equal for equal arguments of both calls."""
        if not isinstance(leaf, Tensor):
            return leaf
        made = self._made.get(id(leaf))
        return _Weight(leaf) if made is None else ("tensor", made[1])


@dataclass(eq=False)
class _Weight:
    """A tensor that no op of the call has made: a weight, or a constant of the Python code."""

    tensor: Tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Weight):
            return False
        one, two = self.tensor, other.tensor
        return one is two or (one.dtype == two.dtype and torch.equal(one, two))

    __hash__ = None  # type: ignore[assignment]
