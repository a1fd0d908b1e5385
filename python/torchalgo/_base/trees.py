# SPDX-License-Identifier: BSD-3-Clause
"""The form of a value: the tuples, lists, dicts and other containers in which its tensors lie.

`flatten` splits a value into its form and its tensors; `rebuild` is the inverse. PyTorch's own
pytrees take subclasses of containers, and dataclasses that are not registered, for leaves. The type
of such a value would have to be registered for the whole process.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchalgo._C import Error

CONSTANTS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device,
              torch.memory_format, torch.layout)  # fmt: skip
ACCEPTED = (
    "expected tensors, numbers, text, None, and tuples, lists, dicts, named tuples and dataclasses"
    " of these"
)


@dataclass(frozen=True)
class Leaf:
    """A tensor."""


@dataclass(frozen=True, eq=False)
class Constant:
    """A value that is not a tensor. It is part of the form: it must be the same in every call."""

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant) or type(self.value) is not type(other.value):
            return False
        is_nan = isinstance(self.value, float) and math.isnan(self.value)
        return self.value == other.value or (is_nan and math.isnan(other.value))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Node:
    """A container. `keys` holds a dict's keys or a dataclass's fields; otherwise it is empty."""

    kind: type
    keys: tuple[Any, ...]
    children: tuple[Leaf | Constant | Node, ...]


Tree = Leaf | Constant | Node
LEAF = Leaf()


# ---- trees ---------------------------------------------------------------------------------------


def flatten(value: Any, path: str, tensors: list[torch.Tensor], names: list[str]) -> Tree:
    """Returns the form of `value`; appends its tensors to `tensors` and their paths to `names`.

    Raises: torchalgo.Error, naming the path, if a part has an unsupported type.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        names.append(path)
        return LEAF
    if isinstance(value, CONSTANTS):
        return Constant(value)
    parts = _parts_of(value, path)
    if parts is None:
        raise Error(f"TA1207 {path} is a {type_text(type(value))}; {ACCEPTED}")
    keys, items, paths = parts
    children = [flatten(item, at, tensors, names) for item, at in zip(items, paths, strict=True)]
    return Node(type(value), keys, tuple(children))


def _parts_of(value: Any, path: str = "") -> tuple[tuple[Any, ...], list[Any], list[str]] | None:
    """Returns the keys, items and items' paths of a container; None if `value` is none."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        keys = tuple(field.name for field in dataclasses.fields(kind) if field.init)
        return keys, [getattr(value, name) for name in keys], [f"{path}.{name}" for name in keys]
    if isinstance(value, dict):
        return tuple(value), list(value.values()), [f"{path}[{key!r}]" for key in value]
    if isinstance(value, (tuple, list)):
        fields = getattr(kind, "_fields", None)
        named = [f"{path}.{name}" for name in fields or ()]
        return (), list(value), named or [f"{path}[{i}]" for i in range(len(value))]
    return None


def rebuild(tree: Tree, tensors: Iterator[torch.Tensor]) -> Any:
    """Returns a value of the form `tree` that holds `tensors`."""
    if isinstance(tree, Leaf):
        return next(tensors)
    if isinstance(tree, Constant):
        return tree.value
    items = [rebuild(child, tensors) for child in tree.children]
    return _made(tree.kind, tree.keys, items)


def copied(value: Any) -> Any:
    """Returns `value` with copies of its tensors in the same memory format.

    A container whose type cannot be rebuilt from its parts is not copied.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if (parts := _parts_of(value)) is not None:
        with contextlib.suppress(Exception):  # the constructor is the user's code
            return _made(type(value), parts[0], [copied(item) for item in parts[1]])
    return value


def _made(kind: Any, keys: tuple[Any, ...], items: list[Any]) -> Any:
    """Makes a container of type `kind`."""
    if kind is tuple or kind is list:
        return kind(items)
    if dataclasses.is_dataclass(kind):
        return kind(**dict(zip(keys, items, strict=True)))  # type: ignore[operator]
    if issubclass(kind, dict):
        return _made_dict(kind, dict(zip(keys, items, strict=True)))
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def _made_dict(kind: Any, items: dict[Any, Any]) -> Any:
    """Makes a dict of type `kind`. Bypasses its constructor if that does not accept the items."""
    if kind is dict:
        return items
    with contextlib.suppress(Exception):  # the constructor is the user's code
        made = kind(items)
        if len(made) == len(items) and all(made[key] is items[key] for key in items):
            return made
    made = kind.__new__(kind)
    base = collections.OrderedDict if isinstance(made, collections.OrderedDict) else dict
    for key, item in items.items():
        base.__setitem__(made, key, item)
    return made


def check_rebuilds(value: Any, tree: Tree, tensors: Sequence[torch.Tensor], path: str) -> None:
    """Raises torchalgo.Error if `rebuild` does not return a value equal to `value`."""
    try:
        is_same = is_same_value(value, rebuild(tree, iter(tensors)))
        problem = "" if is_same else "its constructor gives another value for the same parts"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise Error(f"TA1207 {path} cannot be rebuilt from its tensors ({problem}); {ACCEPTED}")


def is_same_value(a: Any, b: Any) -> bool:
    """Returns whether both values have the same types at every level and hold the same tensors."""
    if isinstance(a, torch.Tensor):
        return a is b
    if type(a) is not type(b):
        return False
    parts, others = _parts_of(a), _parts_of(b)
    if parts is None or others is None:
        return a is b or bool(a == b)
    if parts[0] != others[0] or len(parts[1]) != len(others[1]):
        return False
    state, other_state = getattr(a, "__dict__", {}), getattr(b, "__dict__", {})
    return (
        all(map(is_same_value, parts[1], others[1]))
        and getattr(a, "default_factory", None) is getattr(b, "default_factory", None)
        and state.keys() == other_state.keys()
        and all(is_same_value(state[name], other_state[name]) for name in state)
    )


def type_text(kind: type) -> str:
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def tree_text(tree: Tree | None) -> str:
    if tree is None:
        return "its default"
    if isinstance(tree, Leaf):
        return "a tensor"
    if isinstance(tree, Constant):
        return repr(tree.value)
    parts = [tree_text(child) for child in tree.children]
    if issubclass(tree.kind, (tuple, list)) and not hasattr(tree.kind, "_fields"):
        text = ", ".join(parts)
        return f"({text})" if tree.kind is tuple else f"[{text}]"
    named = ", ".join(f"{key}: {part}" for key, part in zip(tree.keys, parts, strict=False))
    return f"{{{named}}}" if tree.kind is dict else f"{tree.kind.__name__}({named})"


def has_values(tree: Tree) -> bool:
    """Returns whether any part is neither a tensor nor None, such as a number or a text."""
    if isinstance(tree, Node):
        return any(map(has_values, tree.children))
    return isinstance(tree, Constant) and tree.value is not None


# ---- what TorchScript can return -----------------------------------------------------------------


def lowered(tree: Tree) -> Tree | None:
    """Returns the nearest form that TorchScript can return; None if there is none.

    It consists of tuples, lists and dicts. Lists and dicts hold only tensors, and at least one.
    """
    if not isinstance(tree, Node):
        return tree if isinstance(tree, Leaf) else None
    kind, children = tree.kind, tree.children
    if not children or dataclasses.is_dataclass(kind):
        return None
    if issubclass(kind, tuple):
        parts = [lowered(child) for child in children]
        return None if None in parts else Node(tuple, (), tuple(p for p in parts if p is not None))
    if any(not isinstance(child, Leaf) for child in children):
        return None
    if issubclass(kind, dict):
        is_text = all(type(key) is str for key in tree.keys)
        return Node(dict, tree.keys, children) if is_text else None
    return Node(list, (), children)


# ---- JSON ----------------------------------------------------------------------------------------

_STORED = (type(None), bool, int, float, str)
_STANDARD: dict[str, type] = {kind.__name__: kind for kind in (tuple, list, dict)}


def to_json(tree: Tree) -> Any:
    """Converts a form to plain data for a file.

    Raises: torchalgo.Error if a file cannot store a constant or a key.
    """
    if isinstance(tree, Leaf):
        return "tensor"
    if isinstance(tree, Constant):
        if isinstance(tree.value, torch.dtype):
            return {"dtype": str(tree.value).removeprefix("torch.")}
        _check_stored(tree.value)
        return {"value": tree.value}
    for key in tree.keys:
        _check_stored(key)
    kind = tree.kind.__name__ if tree.kind in _STANDARD.values() else ""
    return {
        "type": kind or f"{tree.kind.__module__}:{tree.kind.__qualname__}",
        "keys": list(tree.keys),
        "items": [to_json(child) for child in tree.children],
    }


def _check_stored(value: Any) -> None:
    if type(value) not in _STORED:
        raise Error(
            f"TA2003 save: {value!r} is part of the planned call or its result, and a file can"
            " store only tensors, numbers, text, None and dtypes: return or pass one of these"
        )


def from_json(data: Any) -> Tree:
    """Converts the output of `to_json` back to a form.

    No module is imported: the module of a type must have been imported before.

    Raises: torchalgo.Error if a type is missing; ValueError, TypeError or LookupError if `data` was
        not made by `to_json`.
    """
    if data == "tensor":
        return LEAF
    if "value" in data:
        _check_stored(data["value"])
        return Constant(data["value"])
    if "dtype" in data:
        dtype = getattr(torch, data["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{data['dtype']!r} is no dtype")
        return Constant(dtype)
    name, keys, items = data["type"], data["keys"], data["items"]
    kind = _STANDARD.get(name) or _find_type(name)
    has_keys = dataclasses.is_dataclass(kind) or issubclass(kind, dict)
    if not isinstance(items, list) or len(keys) != (len(items) if has_keys else 0):
        raise ValueError(f"{name} has {len(keys)} keys and {len(items)} items")
    return Node(kind, tuple(keys), tuple(map(from_json, items)))


def _find_type(name: str) -> type:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    is_container = isinstance(found, type) and (
        dataclasses.is_dataclass(found) or issubclass(found, (tuple, list, dict))
    )
    if not is_container:
        raise Error(
            f"TA2009 load: the result is a {path} of the module {module!r}, but no such tuple,"
            f" list, dict or dataclass is imported: import {module} before torchalgo.load"
        )
    return found  # type: ignore[no-any-return]
