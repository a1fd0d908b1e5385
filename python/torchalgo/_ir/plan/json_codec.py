# SPDX-License-Identifier: BSD-3-Clause
"""Converts dataclasses to JSON data and back. Refuses data that is wrong anywhere."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from typing import Any, Literal

from torchalgo._C import Error

# The metadata of a field says when files have it. A field without metadata is in every file.
MAY_LACK = {"in_file": "may lack"}  # always written, but older files lack it
IF_SET = {"in_file": "if set"}  # written only if its value is not the default
IN_MEMORY = {"in_file": "never"}

# Words that older files may have, and why they are refused.
GONE = {
    "nChw8c": ", which is no longer a layout, since no algorithm used it: make a new plan",
    "edp": ", which is no longer an objective: make a new plan",
}


def encode(value: Any) -> Any:
    """Converts a value of a field to JSON data. The keys are in the order of the fields."""
    if dataclasses.is_dataclass(value):
        return {f.name: encode(getattr(value, f.name)) for f in _written(value)}
    if isinstance(value, list):
        return [encode(item) for item in value]
    return value


def _stored(cls: type) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if f.metadata != IN_MEMORY]


def _written(value: Any) -> list[dataclasses.Field[Any]]:
    return [
        f
        for f in _stored(type(value))
        if f.metadata != IF_SET or getattr(value, f.name) != _default(f)
    ]


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def parse_json(text: str | bytes, source: str, what: str) -> Any:
    """Parses JSON.

    Raises: torchalgo.Error, which says that `source` is no `what`, for any other text, and for NaN
        and Infinity.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise Error(
            f"TA2101 {source}: this is no {what} of torchalgo, or it is truncated: {problem}"
        ) from None


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of a plan")


def shorten(value: Any) -> str:
    """Returns JSON data as text of at most 60 characters, for errors."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def decode(kind: Any, value: Any, where: str) -> Any:
    """Converts JSON data to the type `kind` of a field.

    Raises: torchalgo.Error with `where` if the data has another type.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return decode(next(a for a in args if a is not type(None)), value, where)
    if origin is Literal:
        if value not in args or not isinstance(value, str):
            got = f"got {shorten(value)}{GONE.get(str(value), '')}"
            raise Error(f"TA2101 {where}: expected one of {', '.join(args)}; {got}")
        return value
    if origin is list and isinstance(value, list):
        return [decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: decode(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        return _decode_fields(kind, value, where)
    if kind is float and type(value) in (int, float):
        if not abs(value) <= sys.float_info.max:
            raise Error(f"TA2101 {where}: expected a finite number, got {shorten(value)}")
        return float(value)
    if kind in (int, str) and type(value) is kind:
        return value
    expected = "an object" if dataclasses.is_dataclass(kind) else getattr(kind, "__name__", kind)
    raise Error(f"TA2101 {where}: expected {expected}, got {shorten(value)}")


def _decode_fields(cls: type, value: dict[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(cls)
    fields = _stored(cls)
    names = [f.name for f in fields]
    missing = [f.name for f in fields if f.name not in value and not f.metadata]
    unknown = [name for name in value if name not in names]
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has an unknown field {unknown[0]!r}"
        raise Error(f"TA2101 {where}: {what}; the file is truncated, or torchalgo did not write it")
    decoded = {n: decode(hints[n], value[n], f"{where}.{n}") for n in names if n in value}
    return cls(**decoded)
