# SPDX-License-Identifier: BSD-3-Clause
"""Gives results the memory format that the original model would give them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchalgo._C import Error
from torchalgo._capture.freeze import tensors_in

# The memory format of each tensor of a result. None if the format has no name; such a tensor stays
# as it is.
Formats = tuple[torch.memory_format | None, ...]
Key = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

MOST_KNOWN = 256  # keys of inputs whose results' formats are stored


class ResultFormats:
    """The memory formats of the original's results, which it gives to other results.

    The original runs once for each new combination of the inputs' shapes and strides. All calls
    with only contiguous inputs count as one combination.
    """

    def __init__(
        self, run: Callable[[Sequence[Any]], Any], known: Mapping[Key, Formats] | None = None
    ) -> None:
        """Takes `run`, which calls the original, and `known` formats that need no run."""
        self.is_exact = False  # results for contiguous inputs need no change
        self._run = run
        self._known = dict(known or {})

    @property
    def of_contiguous(self) -> Formats | None:
        """The formats of results for contiguous inputs; None if they are not known."""
        return self._known.get(())

    def of(self, tensors: Sequence[Any]) -> Formats | None:
        """Returns the formats of the results for these inputs.

        Returns None if the original is in train mode now.
        """
        key = key_of(tensors)
        formats = self._known.get(key)
        if formats is None:
            try:
                formats = formats_of(self._run(tensors))
            except Error:
                return None
            if len(self._known) < MOST_KNOWN:
                self._known[key] = formats
        return formats

    def apply(self, returned: Any, tensors: Sequence[Any]) -> Any:
        """Returns `returned`; copies each tensor whose format differs from the original's."""
        formats = self.of(tensors)
        if formats is None:
            return returned
        result = with_formats(returned, iter(formats))
        is_same = all(map(operator.is_, tensors_in(returned), tensors_in(result)))
        if is_same and not key_of(tensors):
            self.is_exact = True
        return result


def formats_of(value: Any) -> Formats:
    """Returns the memory format of each tensor in `value`."""
    return tuple(map(format_of, tensors_in(value)))


def format_of(tensor: torch.Tensor) -> torch.memory_format | None:
    """Returns the memory format of a tensor; None if it has no name."""
    if tensor.is_contiguous():
        return torch.contiguous_format
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return None


def order_of(tensor: torch.Tensor) -> str | tuple[int, ...]:
    """Returns a tensor's memory format, such as "channels_last", or its strides if it has none."""
    found = format_of(tensor)
    return tensor.stride() if found is None else str(found).removeprefix("torch.")


def key_of(tensors: Sequence[Any]) -> Key:
    """Returns the shapes and strides of the inputs; () if all inputs are contiguous."""
    found = tensors_in(tuple(tensors))
    if all(tensor.is_contiguous() for tensor in found):
        return ()
    return tuple((tuple(tensor.shape), tensor.stride()) for tensor in found)


def with_formats(value: Any, formats: Iterator[torch.memory_format | None]) -> Any:
    """Returns `value`; copies each tensor in it whose format differs from the next of `formats`."""
    if isinstance(value, torch.Tensor):
        wanted = next(formats, None)
        if wanted is None or not _has_dimensions(value, wanted):
            return value
        return value.contiguous(memory_format=wanted)  # itself if it has that format
    if type(value) is dict:
        return {key: with_formats(item, formats) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)([with_formats(item, formats) for item in value])
    return value


def _has_dimensions(tensor: torch.Tensor, wanted: torch.memory_format) -> bool:
    needed = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(wanted)
    return needed is None or tensor.dim() == needed
