# SPDX-License-Identifier: BSD-3-Clause
"""Restores a model, random numbers and torch's settings after planning has run the model."""

from __future__ import annotations

import contextlib
import operator
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_VALUES = (bool, int, float, complex, str, bytes)
_WEIGHTS = ("_parameters", "_buffers")
_DEVICES = ("cpu", "cuda")


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


class KeptModel:
    """A model's attributes and weights as they were when this was made.

    Values of weights are kept only after `copy_weights`, because most models write to none.
    """

    def __init__(self, model: nn.Module) -> None:
        self._state = ModuleState(model)
        named = [*model.named_parameters(), *model.named_buffers()]
        # A detached tensor keeps the memory, which `weight.data = other` takes away.
        self._weights = [
            (name, weight, weight.detach(), _version(weight))
            for name, weight in named
            if weight.layout is torch.strided
        ]
        self._copies: list[Tensor] = []

    def copy_weights(self) -> None:
        """Copies the values of all weights and buffers, for a model that may write to them."""
        self._copies = self._copies or [memory.clone() for _, _, memory, _ in self._weights]

    def written(self) -> list[str]:
        """Returns the names of the weights and buffers that were written to."""
        found = [
            name
            for i, (name, weight, memory, version) in enumerate(self._weights)
            if _version(weight) != version
            or weight.data_ptr() != memory.data_ptr()
            or self._has_other_values(i)
        ]
        return found + [name for name in [self._state.replaced_weight()] if name]

    def _has_other_values(self, i: int) -> bool:
        """Compares values, because `.data` writes without a new version."""
        return bool(self._copies) and not torch.equal(self._weights[i][2], self._copies[i])

    def restore(self) -> None:
        self._state.restore()
        for i, (_, weight, memory, version) in enumerate(self._weights):
            is_written = _version(weight) != version
            if weight.data_ptr() != memory.data_ptr() or weight.shape != memory.shape:
                weight.data = memory
                is_written = True
            if self._copies and (is_written or self._has_other_values(i)):
                memory.data.copy_(self._copies[i])


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


@contextlib.contextmanager
def kept_model(model: nn.Module) -> Iterator[KeptModel]:
    """Restores the model, random numbers and torch's settings at the end of the block."""
    kept, undo = KeptModel(model), [*_settings()]
    try:
        with kept_random_states():
            yield kept
    finally:
        kept.restore()
        for give_back in undo:
            give_back()


@contextlib.contextmanager
def kept_random_states() -> Iterator[None]:
    """Restores the generators of random numbers at the end of the block."""
    undo = [*_random_states()]
    try:
        yield
    finally:
        for give_back in undo:
            give_back()


def _random_states() -> Iterator[Callable[[], None]]:
    """Yields functions that restore the state of each generator of random numbers in use."""
    state, of_python = torch.get_rng_state(), random.getstate()
    yield lambda: torch.set_rng_state(state)
    yield lambda: random.setstate(of_python)
    if torch.cuda.is_initialized():
        states = torch.cuda.get_rng_state_all()
        yield lambda: torch.cuda.set_rng_state_all(states)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        of_numpy = numpy.random.get_state()
        yield lambda: numpy.random.set_state(of_numpy)


def _settings() -> Iterator[Callable[[], None]]:
    """Yields functions that restore torch's settings that a model's code may change."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    yield lambda: torch.set_default_dtype(dtype)
    yield lambda: torch.set_num_threads(threads) if torch.get_num_threads() != threads else None
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    yield lambda: torch.use_deterministic_algorithms(is_deterministic, warn_only=warns)
    has_gradients = torch.is_grad_enabled()
    yield lambda: torch._C._set_grad_enabled(has_gradients)


@contextlib.contextmanager
def kept_autocast() -> Iterator[None]:
    """Restores the state of autocast after the block, also if an error left it on.

    Autocast keeps copies of weights for its whole block. None is kept of the runs in this block,
    which would be fake tensors.
    """
    states = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
    has_cache = torch.is_autocast_cache_enabled()
    depth = torch.autocast_increment_nesting()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        while torch.autocast_decrement_nesting() >= depth:
            pass
        for device, is_enabled, dtype in states:
            torch.set_autocast_enabled(device, is_enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(has_cache)
