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
# The layouts of the inputs and the sizes of the results, as far as formats depend on them.
Key = tuple[tuple[Any, ...], ...]

MOST_KNOWN = 256  # keys whose results' formats are stored


class ResultFormats:
    """The memory formats of the original's results, which it gives to other results.

    The original runs once for each new combination of the inputs' layouts, whatever their sizes.
    All calls with only contiguous inputs count as one combination.
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

    def of(self, tensors: Sequence[Any], results: Any) -> Formats | None:
        """Returns the formats of the results for these inputs. `results` have the right sizes.

        Returns None if the original is in train mode now.
        """
        key = key_of(tensors, results)
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
        formats = self.of(tensors, returned)
        if formats is None:
            return returned
        result = with_formats(returned, iter(formats))
        is_same = all(map(operator.is_, tensors_in(returned), tensors_in(result)))
        if is_same and not key_of(tensors, returned):
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


def key_of(tensors: Sequence[Any], results: Any) -> Key:
    """Returns what the formats of `results` for these inputs depend on.

    It is () if all inputs are contiguous. Sizes above 1 make no difference: ATen chooses a format
    by the order of the strides, and only dimensions of size 0 or 1 leave it open.
    """
    found = tensors_in(tuple(tensors))
    if all(tensor.is_contiguous() for tensor in found):
        return ()
    sizes = tuple(tuple(min(size, 2) for size in t.shape) for t in tensors_in(results))
    return (tuple(map(_layout_of, found)), sizes)


def _layout_of(tensor: torch.Tensor) -> tuple[tuple[int, int, int], ...]:
    """Returns the dimensions from the least stride to the greatest, without their sizes.

    Each one has a number that says whether it overlaps with the dimension before it (-1), follows
    it without a gap (0), or with one (1).
    """
    layout: list[tuple[int, int, int]] = []
    dense = 1
    for stride, size, dim in sorted(
        zip(tensor.stride(), tensor.shape, range(tensor.dim()), strict=True)
    ):
        layout.append((dim, min(size, 2), (stride > dense) - (stride < dense)))
        dense = stride * size
    return tuple(layout)


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
