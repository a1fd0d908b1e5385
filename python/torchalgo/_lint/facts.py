# SPDX-License-Identifier: BSD-3-Clause
"""The facts on one call of a model: its operations, their tensors, and who reads what."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchalgo._lint.source import Lines, SourceLine

# Copies that the model's code asks for. reshape makes a clone where no view is possible.
COPIES = ("aten.clone", "aten._to_copy", "aten.copy_", "aten.repeat")
CONVOLUTION = "aten.convolution"
# These copy an input inside if its strides are neither contiguous nor channels_last.
STRICT = (
    CONVOLUTION, "aten.native_batch_norm", "aten._native_batch_norm_legit_no_training",
    "aten.cudnn_batch_norm", "aten._native_batch_norm_legit", "aten.native_layer_norm",
    "aten.native_group_norm", "aten._softmax", "aten.max_pool2d_with_indices", "aten.avg_pool2d",
    "aten.upsample_nearest2d", "aten.upsample_bilinear2d", "aten._adaptive_avg_pool2d",
    "aten._scaled_dot_product_flash_attention_for_cpu",
)  # fmt: skip
# A tensor depends on the weights, on numbers of Python code only, or on the input of the call.
WEIGHTS, NUMBERS, INPUT = "weights", "numbers", "input"


@dataclass(frozen=True)
class TensorFacts:
    """One tensor as an operation read or made it."""

    storage: int  # a number of its memory, never used twice
    version: int  # how often this memory was written
    number: int  # equal for equal contents, as far as that is known
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    origin: str  # WEIGHTS, NUMBERS or INPUT

    @property
    def is_constant(self) -> bool:
        """Returns True if it depends on the weights only, and perhaps on sizes of the input."""
        return self.origin == WEIGHTS

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @functools.cached_property
    def layout(self) -> str:
        return layout_of(self.shape, self.strides)


@dataclass
class OpCall:
    """One operation of the call."""

    index: int
    name: str  # "aten.clone"
    layer: str  # the innermost module that runs it; "" is the model
    lines: Lines
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    arguments: tuple[Any, ...]  # its arguments; a tensor is replaced by its TensorFacts
    keywords: Mapping[str, Any]
    is_view: bool
    is_random: bool
    writes: bool
    us: float = 0.0

    @property
    def line(self) -> SourceLine | None:
        return self.lines[0] if self.lines else None

    @property
    def is_constant(self) -> bool:
        """Returns True if all its results depend on the weights only."""
        return bool(self.outputs) and all(t.is_constant for t in self.outputs)

    @property
    def bytes(self) -> int:
        """The bytes of its results; 0 for a view."""
        return 0 if self.is_view else sum(t.bytes for t in self.outputs)


@dataclass
class Call:
    """The operations of one call, and how its tensors are connected."""

    ops: list[OpCall] = field(default_factory=list)
    reads: list[TensorFacts] = field(default_factory=list)  # by Python, as with tensor.numpy()
    outputs: tuple[TensorFacts, ...] = ()
    us: float = 0.0  # one call of the model, without watching it

    @functools.cached_property
    def readers(self) -> dict[int, list[OpCall]]:
        """The operations, without views, that read each memory."""
        found: dict[int, list[OpCall]] = {}
        for op in self.ops:
            if not op.is_view:
                for storage in {t.storage for t in op.inputs}:
                    found.setdefault(storage, []).append(op)
        return found

    def readers_of(self, op: OpCall) -> list[OpCall]:
        """Returns the operations that read a result of `op`, through views."""
        made = {t.storage for t in op.outputs}
        return [
            reader
            for storage in made
            for reader in self.readers.get(storage, ())
            if reader.index > op.index
        ]

    def share(self, ops: Iterable[OpCall]) -> float:
        """Returns the part of the call's time that operations take."""
        return sum(op.us for op in ops) / max(self.us, 1e-3)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Returns all tensors inside nested lists, tuples and dicts, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def layout_of(shape: Sequence[int], strides: Sequence[int]) -> str:
    """Returns how a tensor lies in memory.

    Returns "contiguous", "channels_last", "broadcast" (a stride is 0), "transposed" (the last two
    dimensions are exchanged), or "strided". Dimensions of size 1 do not count.
    """
    dims = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    if any(stride == 0 for _, stride in dims):
        return "broadcast"
    if _is_dense(dims):
        return "contiguous"
    order = [0, *range(2, len(shape)), 1]
    if len(shape) in (4, 5):
        last = [(shape[i], strides[i]) for i in order if shape[i] != 1]
        if _is_dense(last):
            return "channels_last"
    if len(dims) >= 2 and _is_dense([*dims[:-2], dims[-1], dims[-2]]):
        return "transposed"
    return "strided"


def _is_dense(dims: Sequence[tuple[int, int]]) -> bool:
    expected = 1
    for size, stride in reversed(dims):
        if stride != expected:
            return False
        expected *= size
    return True


def copied_bytes(op: OpCall) -> int:
    """Returns the bytes that an operation copies: by its own purpose, or before it can start.

    A convolution, a norm or a pooling copies an input that has other strides than it can read. A
    convolution with channels_last weights converts a contiguous input.
    """
    if op.name in COPIES:
        return op.bytes or sum(t.bytes for t in op.outputs)
    if op.name not in STRICT or not op.inputs:
        return 0
    source = op.inputs[0]
    if source.layout in ("broadcast", "transposed", "strided"):
        return source.bytes
    if op.name == CONVOLUTION and len(op.inputs) > 1:
        is_last = op.inputs[1].layout == "channels_last"
        return source.bytes if is_last and source.layout == "contiguous" else 0
    return 0
