# SPDX-License-Identifier: BSD-3-Clause
"""The attributes of all modules of a model, to compare or to restore them."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, nn

_VALUES = (bool, int, float, complex, str, bytes)
_WEIGHTS = ("_parameters", "_buffers")


class ModuleState:
    """The attributes of all modules of a model at one time, also those in dicts, lists and sets.

    Tensors are kept, and not their values.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tables: list[tuple[str, Any, Any]] = []  # name, container, and copy of the container
        for prefix, module in model.named_modules():
            self._tables.append((prefix, module.__dict__, dict(module.__dict__)))
            for name, value in list(module.__dict__.items()):
                if isinstance(value, (dict, list, set)):
                    self._tables.append((f"{prefix}.{name}".removeprefix("."), value, value.copy()))

    def restore(self) -> None:
        """Gives all containers their contents back. Other threads may read them meanwhile."""
        for _, table, before in self._tables:
            if isinstance(table, dict):
                for key in [key for key in table if key not in before]:
                    del table[key]
                for key, value in before.items():
                    if key not in table or table[key] is not value:
                        table[key] = value
            elif isinstance(table, set):
                table.intersection_update(before)
                table.update(before)
            elif len(table) != len(before) or any(map(operator.is_not, table, before)):
                table[:] = before

    def replaced_weight(self) -> str:
        """Returns the name of a parameter or buffer that is another tensor now; "" if none is."""
        for path, table, before in self._tables:
            prefix, _, kind = path.rpartition(".")
            for key in before if kind in _WEIGHTS else ():
                if table.get(key) is not before[key]:
                    return f"{prefix}.{key}".removeprefix(".")
        return ""

    def changed(self) -> str:
        """Returns the name of an attribute that is another value now; "" if none is.

        A tensor in the place of another tensor is no change.
        """
        for path, table, before in self._tables:
            if len(table) != len(before):
                return path or "its number of attributes"
            for key in table if isinstance(table, dict) else ():
                if key not in before or _differ(table[key], before[key]):
                    return f"{path}.{key}".removeprefix(".")
        return ""


def _differ(one: Any, other: Any) -> bool:
    if one is other or (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    if type(one) is not type(other):
        return True
    return isinstance(one, _VALUES) and bool(one != other)
