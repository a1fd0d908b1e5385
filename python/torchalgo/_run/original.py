# SPDX-License-Identifier: BSD-3-Clause
"""Holds the original model, from which an optimized module was made."""

from __future__ import annotations

import copy
import ctypes
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchalgo._C import Error
from torchalgo._capture.calls import CallForm, copy_of
from torchalgo._capture.example_calls import ModelCall
from torchalgo._capture.formats import Formats, Key
from torchalgo._ir.plan import Plan
from torchalgo._plan.result import Result

GLANCE = 4  # number of weights that a call checks for changes
FULL_SHARE = 200  # checks of all weights take at most 1 / FULL_SHARE of the time

_BITS = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


# A weight: a function that finds it in its module by key, the key, the tensor, a function that
# returns its address, the address, its version, a view of the bits of one element (None on a GPU),
# these bits, and its name.
_Watched = tuple[
    Callable[[str], Any], str, torch.Tensor, Callable[[], int], int, int, Any, int, str
]


@dataclass(frozen=True)
class Planned:
    """The result of planning for one or several calls of a model."""

    results: tuple[Result, ...]
    form: CallForm
    tensor_model: nn.Module  # takes tensors; see calls.py
    formats: Mapping[Key, Formats]  # the formats of results; see formats.py


# A function that plans calls of a model. If plans by shapes are given, it applies these and
# measures nothing.
Planner = Callable[[nn.Module, Sequence[ModelCall], Mapping[str, Plan] | None], Planned]


class Original:
    """The model that was optimized. It owns the weights and runs the calls that have no plan.

    The model is not modified. This class detects changes of its weights, because a plan holds
    packed copies of them.
    """

    def __init__(
        self,
        model: nn.Module,
        planner: Planner,
        calls: Sequence[ModelCall] = (),
        tensor_model: nn.Module | None = None,
        formats: Mapping[Key, Formats] | None = None,
    ) -> None:
        """Records the model's present weights.

        Args:
            planner: plans calls of the model.
            calls: the example inputs for which the model was planned, if any.
            tensor_model: the model as a function of tensors only; None before it was planned.
            formats: the formats of results, see formats.py.
        """
        self.model, self.calls, self.tensor_model = model, list(calls), tensor_model
        self.formats = formats or {}
        self._planner = planner
        self._watched: list[_Watched] = []
        self._rotation: Iterator[_Watched] = iter(())
        self._full_ns = 0
        self._next_full_ns = 0
        self.watch()

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the model.

        Raises: torchalgo.Error if the model is in train mode now.
        """
        self._check_mode()
        return self.model(*args, **kwargs)

    def run_tensors(self, tensors: Sequence[Any]) -> Any:
        """Calls the tensor model, whose result has the same form as a plan's, without gradients.

        Raises: torchalgo.Error if the model is in train mode now.
        """
        self._check_mode()
        assert self.tensor_model is not None
        with torch.no_grad():
            return self.tensor_model(*map(copy_of, tensors))

    def _check_mode(self) -> None:
        for name, module in self.model.named_modules():
            if getattr(module, "training", False):  # a frozen ScriptModule has no mode
                raise Error(
                    "TA1103 forward: only the original model can run this call, but"
                    f" {repr(name) + ' in it' if name else 'it'} is in train mode now: call .eval()"
                    " on it"
                )

    def plan(self, calls: Sequence[ModelCall], plans: Mapping[str, Plan] | None = None) -> Planned:
        """Plans `calls` with the present weights, or applies `plans` if they are given.

        If this raises, changes are still detected relative to the weights that were packed before.
        """
        present = list(_watched(self.model))
        planned = self._planner(self.model, calls, plans)
        self.watch(present)
        self.calls, self.tensor_model = list(calls), planned.tensor_model
        self.formats = planned.formats
        return planned

    def alone(self, i: int) -> Original:
        """Returns an Original of the same model with only the example inputs at `i`."""
        return Original(
            self.model, self._planner, self.calls[i : i + 1], self.tensor_model, self.formats
        )

    def copy(self, memo: dict[int, Any]) -> Original:
        """Returns a deep copy with its own weights. The example inputs are shared."""
        model, tensor_model = copy.deepcopy((self.model, self.tensor_model), memo)
        return Original(model, self._planner, self.calls, tensor_model, self.formats)

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the weights that are watched, by name."""
        return {name: tensor for _, _, tensor, *_, name in self._watched}

    def watch(self, weights: list[_Watched] | None = None) -> None:
        """Records weights; later changes are detected relative to them. None: the present ones."""
        self._watched = list(_watched(self.model)) if weights is None else weights
        self._rotation = itertools.cycle(self._watched)
        _changed(self._watched)  # brings the weights into the caches
        started = time.perf_counter_ns()
        _changed(self._watched)
        self._full_ns = time.perf_counter_ns() - started
        self._next_full_ns = 0

    def is_changed(self) -> bool:
        """Returns True if a change of a weight since `watch` is detected.

        Checks the next GLANCE weights. From time to time it checks all weights.
        """
        now = time.perf_counter_ns()
        if now < self._next_full_ns:
            return _changed(itertools.islice(self._rotation, GLANCE)) is not None
        self._next_full_ns = now + FULL_SHARE * self._full_ns
        return _changed(self._watched) is not None

    def first_changed(self) -> str:
        """Returns the name of the first weight that has changed since `watch`; "" if none has."""
        changed = _changed(self._watched)
        return "" if changed is None else changed[-1]

    def check_weights(self) -> None:
        """Raises torchalgo.Error, with the weight's name, if a weight has changed since `watch`."""
        # Under Dynamo, tensors have no addresses.
        changed = "" if torch.compiler.is_compiling() else self.first_changed()
        if not changed:
            return
        raise Error(
            f"TA1404 forward: weight {changed!r} of the original model was changed after"
            " optimize: call .refresh() on the optimized module. It packs the new weights for the"
            " same plan and measures nothing"
        )


def _watched(model: nn.Module) -> Iterator[_Watched]:
    for prefix, module in model.named_modules():
        owners: list[Any] = [module._parameters, module._buffers]
        if isinstance(module, torch.jit.ScriptModule):  # makes new dicts at each access
            owners = [
                dict(module.named_parameters(recurse=False)),
                dict(module.named_buffers(recurse=False)),
            ]
        for owner in owners:
            for key, tensor in owner.items():
                if isinstance(tensor, torch.Tensor) and _has_version(tensor):
                    name = f"{prefix}.{key}".removeprefix(".")
                    sample = element_of(tensor)
                    bits = 0 if sample is None else sample.value
                    data, version = tensor.data_ptr(), tensor._version
                    yield owner.get, key, tensor, tensor.data_ptr, data, version, sample, bits, name


def element_of(tensor: torch.Tensor) -> Any:
    """Returns a view of one element's bits, which reveals writes through `.data`.

    Such writes do not change the tensor's version. Returns None if there is no such element.
    """
    bits = _BITS.get(tensor.element_size())
    if tensor.device.type != "cpu" or tensor.numel() == 0 or bits is None:
        return None
    middle = [size // 2 for size in tensor.shape]
    offset = sum(i * stride for i, stride in zip(middle, tensor.stride(), strict=True))
    return bits.from_address(tensor.data_ptr() + offset * tensor.element_size())


def _has_version(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and not tensor.is_inference()


def _changed(watched: Iterable[_Watched]) -> _Watched | None:
    """Returns the first weight that was replaced, moved or written to; None if there is none."""
    for weight in watched:
        get, key, tensor, data_ptr, data, version, sample, bits, _ = weight
        # The address is compared first. If it has changed, the sample may be in freed memory.
        if get(key) is not tensor or data_ptr() != data or tensor._version != version:
            return weight
        if sample is not None and sample.value != bits:
            return weight
    return None
