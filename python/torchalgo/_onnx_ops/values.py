# SPDX-License-Identifier: BSD-3-Clause
"""The values of a graph while it is built, and the functions that build it.

A value is a constant, a tensor that is computed in each call, or a list of sizes. Functions of
constants are computed at once. Others become nodes of an fx graph. Each function also runs on
tensors without data (the meta device), so the sizes of all tensors are known.

If the file leaves sizes of an input open, this is done for two choices of these sizes. A size that
is the same for both does not depend on the open ones.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from torchalgo._onnx_ops.open_sizes import OPEN
from torchalgo._onnx_ops.refusal import DoesNotFitError, NotSupportedError, TooLargeError

MOST_FOLDED_BYTES = 64 << 20  # of a constant that is computed, if its operands are smaller
MOST_FOLDED_IN_ALL = 1 << 30
MOST_BYTES = 1 << 40  # of a tensor that is computed in each call
MOST_NUMBERS = 1 << 16  # of a list


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that is the same in each call. `name` is its name in the file."""

    tensor: torch.Tensor
    name: str = ""


@dataclass(frozen=True, eq=False)
class Live:
    """A tensor that is computed in each call. `shapes` has one tensor without data per choice."""

    node: fx.Node
    shapes: tuple[torch.Tensor, ...]


@dataclass(frozen=True, eq=False)
class Size:
    """A number that is computed in each call from sizes of tensors."""

    node: fx.Node
    values: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Sizes:
    """A tensor of integers with a Size in it: the position in `entries` of each element."""

    entries: tuple[int | Size, ...]
    positions: torch.Tensor


Number = int | Size
Tensor = Constant | Live
Value = Constant | Live | Sizes


def dtype_of(value: Tensor) -> torch.dtype:
    return value.tensor.dtype if isinstance(value, Constant) else value.shapes[0].dtype


def rank_of(value: Tensor) -> int:
    return value.tensor.dim() if isinstance(value, Constant) else value.shapes[0].dim()


def dims_of(value: Tensor) -> list[int | None]:
    """Returns the sizes of a tensor; None for a size that depends on an open one."""
    if isinstance(value, Constant):
        return list(value.tensor.shape)
    return [
        sizes[0] if len(set(sizes)) == 1 else None
        for sizes in zip(*(shape.shape for shape in value.shapes), strict=True)
    ]


class Builder:
    """Builds an fx graph of calls of torch's functions.

    Args:
        choices: the number of choices of the open sizes; 1 if the file fixes all sizes.
    """

    def __init__(self, choices: int) -> None:
        self.graph = fx.Graph()
        self.choices = choices
        self.stack: dict[str, tuple[str, type]] = {}  # the modules of the present node
        self.weights: dict[str, Constant] = {}  # by the names of their fx nodes
        self._placeholders: dict[int, fx.Node] = {}
        self._folded_bytes = 0

    def input(self, name: str, shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> Live:
        node = self.graph.placeholder(name)
        try:
            metas = tuple(torch.empty(sizes, dtype=dtype, device="meta") for sizes in shapes)
        except RuntimeError:  # of torch, for more bytes than 63 bits count
            raise TooLargeError(f"input {name} has the sizes {list(shapes[0])}") from None
        return self._live(node, metas)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function of tensors now if all are constants, otherwise in each call.

        Returns: a value, or a list of them if the function returns several tensors.
        Raises: DoesNotFitError if the function refuses the sizes or dtypes.
        """
        metas = [self._run_meta(function, args, kwargs, i) for i in range(self.choices)]
        if not any(isinstance(each, (Live, Size)) for each in tree_leaves((args, kwargs))):
            return self._fold(function, args, kwargs, metas[0])
        node = self._emit(function, args, kwargs)
        if isinstance(metas[0], torch.Tensor):
            return self._live(node, tuple(metas))
        parts = []
        for i, each in enumerate(zip(*metas, strict=True)):
            item = self.graph.call_function(operator.getitem, (node, i))
            item.meta["nn_module_stack"] = self.stack
            parts.append(self._live(item, each))
        return parts

    def size(self, value: Tensor, dim: int) -> Number:
        """Returns the size of a dimension: a number if it is fixed."""
        known = dims_of(value)[dim]
        if known is not None:
            return known
        assert isinstance(value, Live)
        node = self._emit(torch.ops.aten.sym_size.int, (value, dim % rank_of(value)), {})
        return Size(node, tuple(int(shape.shape[dim]) for shape in value.shapes))

    def compute(self, function: Callable[[Any, Any], Any], a: Number, b: Number) -> Number:
        """Returns a function of two numbers, which runs in each call if one is not fixed."""
        pairs = list(zip(self._choices(a), self._choices(b), strict=True))
        try:
            values = tuple(int(function(x, y)) for x, y in pairs)
        except (ArithmeticError, ValueError) as problem:
            raise DoesNotFitError(f"its sizes cannot be computed: {problem}") from None
        if any(abs(value) > 1 << 62 for value in values):
            raise TooLargeError("it computes a size of more than 62 bits")
        if isinstance(a, int) and isinstance(b, int):
            return values[0]
        return Size(self._emit(function, (a, b), {}), values)

    def _choices(self, number: Number) -> tuple[int, ...]:
        return (number,) * self.choices if isinstance(number, int) else number.values

    def _live(self, node: fx.Node, metas: tuple[torch.Tensor, ...]) -> Live:
        for meta in metas[:1] if self.choices == 1 else ():
            if meta.numel() * meta.dtype.itemsize > MOST_BYTES:
                raise TooLargeError(f"its result has the sizes {list(meta.shape)}")
        return Live(node, metas)

    def _run_meta(self, function: Callable[..., Any], args: Any, kwargs: Any, choice: int) -> Any:
        def meta(value: Any) -> Any:
            if isinstance(value, Constant):
                return value.tensor.to("meta")
            if isinstance(value, Live):
                return value.shapes[choice]
            return value.values[choice] if isinstance(value, Size) else value

        try:
            with torch.no_grad(), torch.device("meta"):
                return function(*tree_map(meta, args), **tree_map(meta, kwargs))
        except Exception as problem:
            text = _first_line(problem)
            if self.choices > 1:  # numbers that stand for open sizes are not in the file
                text = re.sub(r"\d{4,}", lambda n: "?" if int(n[0]) >= OPEN else n[0], text)
            raise DoesNotFitError(f"torch refuses its inputs: {text}") from None

    def _emit(self, function: Callable[..., Any], args: Any, kwargs: Any) -> fx.Node:
        def of(value: Any) -> Any:
            if isinstance(value, Constant):
                return self._placeholder(value)
            return value.node if isinstance(value, (Live, Size)) else value

        node = self.graph.call_function(function, tree_map(of, args), tree_map(of, kwargs))
        node.meta["nn_module_stack"] = self.stack
        return node

    def _placeholder(self, constant: Constant) -> fx.Node:
        key = id(constant)
        if key not in self._placeholders:
            first = next(iter(self.graph.nodes))
            with self.graph.inserting_before(first):
                node = self.graph.placeholder(f"weight_{len(self.weights)}")
            self.weights[node.name] = constant  # which also keeps the id
            self._placeholders[key] = node
        return self._placeholders[key]

    def _fold(self, function: Callable[..., Any], args: Any, kwargs: Any, meta: Any) -> Any:
        results = [meta] if isinstance(meta, torch.Tensor) else list(meta)
        size = sum(result.numel() * result.dtype.itemsize for result in results)
        leaves = tree_leaves((args, kwargs))
        given = sum(each.tensor.nbytes for each in leaves if isinstance(each, Constant))
        self._folded_bytes += max(0, size - given)
        if size > max(MOST_FOLDED_BYTES, 4 * given) or self._folded_bytes > MOST_FOLDED_IN_ALL:
            raise TooLargeError(f"it computes a constant of {size} bytes")

        def real(value: Any) -> Any:
            return value.tensor if isinstance(value, Constant) else value

        try:
            with torch.no_grad():
                found = function(*tree_map(real, args), **tree_map(real, kwargs))
        except Exception as problem:
            raise DoesNotFitError(f"torch refuses its constants: {_first_line(problem)}") from None
        if isinstance(found, torch.Tensor):
            return Constant(found)
        return [Constant(each) for each in found]


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:300]


def with_positions(value: Value, what: str) -> tuple[list[Number], torch.Tensor]:
    """Returns the numbers in a tensor of integers, and the position of each element in them."""
    if isinstance(value, Sizes):
        return list(value.entries), value.positions
    if not isinstance(value, Constant):
        raise NotSupportedError(f"{what} is computed from values of tensors, expected a constant")
    tensor = value.tensor
    if tensor.dtype not in (torch.int64, torch.int32):
        raise NotSupportedError(f"{what} is {tensor.dtype}, expected integers")
    if tensor.numel() > MOST_NUMBERS:
        raise TooLargeError(f"{what} has {tensor.numel()} elements")
    numbers = tensor.reshape(-1).tolist()
    return numbers, torch.arange(len(numbers)).reshape(tensor.shape)


def numbers_of(value: Value, what: str) -> list[Number]:
    """Returns a tensor of integers of rank 0 or 1 as a list."""
    numbers, positions = with_positions(value, what)
    if positions.dim() > 1:
        raise NotSupportedError(f"{what} has rank {positions.dim()}, expected a list of integers")
    return [numbers[i] for i in positions.reshape(-1).tolist()]


def as_value(entries: Sequence[Number], shape: Sequence[int] = (-1,)) -> Value:
    """Returns a tensor of these numbers: a constant if all are fixed, otherwise Sizes."""
    if all(isinstance(each, int) for each in entries):
        return Constant(torch.tensor(list(entries), dtype=torch.int64).reshape(shape))
    return Sizes(tuple(entries), torch.arange(len(entries)).reshape(shape))
