# SPDX-License-Identifier: BSD-3-Clause
"""One node of a file, as the functions that read it see it: inputs, attributes and opset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchalgo._onnx_ops.network import Node
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError
from torchalgo._onnx_ops.values import (
    Builder,
    Constant,
    Number,
    Sizes,
    Tensor,
    Value,
    dims_of,
    dtype_of,
    numbers_of,
    rank_of,
)

_MOST = 1 << 40  # of a number of an attribute that is a size, a pad or a step


class Op:
    """One node of the file, with the values of its inputs.

    Attributes that no function asked for are an error, so no attribute is ignored.
    """

    def __init__(
        self, node: Node, inputs: Sequence[Value | None], opset: int, builder: Builder
    ) -> None:
        self.node, self.inputs, self.opset, self.builder = node, inputs, opset, builder
        self._asked: set[str] = set()

    # ---- inputs ----------------------------------------------------------------------------------

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def value(self, i: int) -> Value:
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise DamagedError(f"it lacks input {i}")
        return value

    def tensor(self, i: int) -> Tensor:
        """Returns an input that is a tensor, not a list of sizes that each call computes."""
        value = self.value(i)
        if isinstance(value, Sizes):
            raise NotSupportedError(
                f"input {i} is computed from open sizes; export the model with fixed sizes"
            )
        return value

    def floating(self, i: int) -> Tensor:
        value = self.tensor(i)
        if not dtype_of(value).is_floating_point:
            raise NotSupportedError(f"input {i} is {dtype_of(value)}, expected floating point")
        return value

    def computed(self, i: int) -> Tensor:
        """Returns an input of floating point that each call computes.

        Convolutions and poolings of constants are refused, because large ones would take hours.
        """
        value = self.floating(i)
        if isinstance(value, Constant):
            raise NotSupportedError(f"input {i} is a constant, expected a computed tensor")
        return value

    def constant(self, i: int) -> torch.Tensor:
        value = self.value(i)
        if not isinstance(value, Constant):
            raise NotSupportedError(f"input {i} is computed in each call, expected a constant")
        return value.tensor

    def number(self, i: int) -> int | float:
        """Returns a constant input with one element."""
        tensor = self.constant(i)
        if tensor.numel() != 1 or tensor.dtype == torch.bool:
            raise DamagedError(f"input {i} has {tensor.numel()} elements, expected one number")
        found: int | float = tensor.item()
        return found

    def numbers(self, i: int) -> list[Number]:
        """Returns an input that is a list of integers, which may depend on open sizes."""
        return numbers_of(self.value(i), f"input {i}")

    def fixed_numbers(self, i: int) -> list[int]:
        numbers = self.numbers(i)
        found = [each for each in numbers if isinstance(each, int)]
        if len(found) != len(numbers):
            raise NotSupportedError(f"input {i} is computed from open sizes, expected constants")
        return found

    # ---- attributes ------------------------------------------------------------------------------

    def _attribute(self, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
        self._asked.add(name)
        value = self.node.attributes.get(name, default)
        if value is None:
            raise DamagedError(f"it lacks the attribute {name!r}")
        if not isinstance(value, kind):
            raise DamagedError(f"the attribute {name!r} has a wrong type: {type(value).__name__}")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        value: int = self._attribute(name, int, default)
        return value

    def flag(self, name: str, default: int = 0) -> bool:
        value = self.integer(name, default)
        if value not in (0, 1):
            raise DamagedError(f"the attribute {name!r} is {value}, expected 0 or 1")
        return bool(value)

    def real(self, name: str, default: float | None = None) -> float:
        value: float = self._attribute(name, float, default)
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value: str = self._attribute(name, str, default)
        return value

    def has_attribute(self, name: str) -> bool:
        return name in self.node.attributes

    def any_attribute(self, name: str) -> Any:
        return self._attribute(name, object, None)

    def integers(
        self, name: str, default: Sequence[int] | None = None, least: int | None = None
    ) -> list[int]:
        """Returns an attribute that is a list of integers, none of them below `least`."""
        values = self._attribute(name, tuple, tuple(default) if default is not None else None)
        if not all(isinstance(each, int) for each in values):
            raise DamagedError(f"the attribute {name!r} holds other values than integers")
        low = -_MOST if least is None else least
        if not all(low <= each <= _MOST for each in values):
            raise DamagedError(
                f"the attribute {name!r} is {list(values)[:16]}, a number is out of range"
            )
        return list(values)

    def integers_of_length(
        self, name: str, length: int, default: Sequence[int] | None, least: int
    ) -> list[int]:
        values = self.integers(name, default, least)
        if len(values) != length:
            raise DamagedError(f"the attribute {name!r} has {len(values)} numbers, not {length}")
        return values

    def axis(self, value: int, rank: int) -> int:
        """Returns an axis that may count from the end as one that counts from the front."""
        if not -rank <= value < max(rank, 1):
            raise DamagedError(f"the axis {value} is out of range for rank {rank}")
        return value % max(rank, 1)

    def axes(self, values: Sequence[int], rank: int) -> list[int]:
        found = [self.axis(each, rank) for each in values]
        if len(set(found)) != len(found):
            raise DamagedError(f"the axes {list(values)[:16]} are not different")
        return found

    def optional_axes(self, since: int) -> list[int] | None:
        """Returns `axes`: an input since this opset, an attribute before it. None if left out."""
        if self.opset >= since:
            return self.fixed_numbers(1) if self.has(1) else None
        return self.integers("axes") if self.has_attribute("axes") else None

    def unread_attributes(self) -> list[str]:
        return sorted(set(self.node.attributes) - self._asked)

    def ignore(self, *names: str) -> None:
        """Notes attributes that do not change the results that are read."""
        self._asked.update(names)

    def one_output(self) -> None:
        if any(self.node.outputs[1:]):
            raise NotSupportedError("more than its first output is used")

    # ---- calls -----------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        """Calls a function that returns one tensor; see Builder.call."""
        found: Tensor = self.builder.call(function, *args, **kwargs)
        return found

    def call_for_many(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Value]:
        """Calls a function that returns several tensors."""
        found: list[Value] = self.builder.call(function, *args, **kwargs)
        return found

    def size(self, value: Tensor, dim: int) -> Number:
        return self.builder.size(value, dim)

    def fixed_dims(self, value: Tensor) -> list[int]:
        dims = dims_of(value)
        found = [each for each in dims if each is not None]
        if len(found) != len(dims):
            raise NotSupportedError(
                "it needs sizes that the file leaves open; export the model with fixed sizes"
            )
        return found


def spatial_rank(value: Tensor, most: int = 3) -> int:
    """Returns the number of dimensions behind batch and channels."""
    rank = rank_of(value) - 2
    if not 1 <= rank <= most:
        raise NotSupportedError(f"its input has rank {rank + 2}, expected 3 to {most + 2}")
    return rank
