# SPDX-License-Identifier: BSD-3-Clause
"""Watches one call of a model: every operation that PyTorch runs, with its tensors and line.

A dispatch mode sees each operation of ATen just before it runs, also those of Python code that
cannot be traced. Copies are ordinary operations there, so none is hidden.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchalgo._base import trees
from torchalgo._base.running_layers import Layers
from torchalgo._lint.facts import (
    CONVOLUTION,
    INPUT,
    NUMBERS,
    WEIGHTS,
    Call,
    OpCall,
    TensorFacts,
    tensors_in,
)
from torchalgo._lint.source import user_lines

Arguments = tuple[Any, ...]
_READS = ("numpy", "tolist", "__array__")


def run_model(model: nn.Module, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Calls the model. The search for lines ends at this function."""
    return model(*args, **kwargs)


def run_op(func: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Runs an operation. A number that a trace passes as a tensor is returned as it is."""
    if func is torch.ops.aten._local_scalar_dense.default and not isinstance(args[0], torch.Tensor):
        return args[0]
    return func(*args, **kwargs)


def wait() -> None:
    """Waits until the GPU has finished, if there is one; a CPU has when a call returns."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def op_name(func: Any) -> str:
    """Returns a name such as "aten.clone". A trace has another name for a convolution."""
    name = str(func.overloadpacket)
    return CONVOLUTION if name == "aten._convolution" else name


class Memory:
    """Numbers the memory of tensors, and knows what each version of it holds."""

    def __init__(self, weights: Mapping[int, StorageWeakRef]) -> None:
        self._weights = weights
        self._alive: dict[int, tuple[int, StorageWeakRef]] = {}
        self._numbers_of_sparse: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        self._contents: dict[tuple[int, int], int] = {}
        self._origins: dict[tuple[int, int], str] = {}
        self._numbers: dict[Any, int] = {}

    def number_of(self, key: Any) -> int:
        """Returns the same number for equal keys."""
        return self._numbers.setdefault(key, len(self._numbers))

    def facts(self, tensor: torch.Tensor) -> TensorFacts:
        storage = self._storage(tensor)
        version = self._versions[storage]
        key = (storage, version)
        content = self._contents.setdefault(key, self.number_of(("memory", storage, version)))
        is_weight = tensor.layout == torch.strided and _cdata(tensor) in self._weights
        origin = self._origins.setdefault(key, WEIGHTS if is_weight else INPUT)
        strides = tuple(tensor.stride()) if tensor.layout == torch.strided else ()
        shape = tuple(tensor.shape) if strides or not tensor.dim() else ()
        form = (content, tensor.storage_offset() if strides else 0, shape, strides, tensor.dtype)
        number = self.number_of(form)
        return TensorFacts(storage, version, number, shape, strides, tensor.dtype, origin)

    def written(self, tensor: torch.Tensor, content: Any, origin: str) -> None:
        """Records that an operation has written the memory of a tensor."""
        storage = self._storage(tensor)
        if (storage, self._versions[storage]) in self._contents:
            self._versions[storage] += 1
        key = (storage, self._versions[storage])
        self._contents[key] = self.number_of(("made", content))
        self._origins[key] = origin

    def _storage(self, tensor: torch.Tensor) -> int:
        try:
            place = _cdata(tensor)
        except (RuntimeError, NotImplementedError):  # a tensor without memory, such as sparse ones
            return self._numbers_of_sparse.setdefault(id(tensor), self._new_number())
        known = self._alive.get(place)
        if known is None or known[1].expired():
            known = (self._new_number(), StorageWeakRef(tensor.untyped_storage()))
            self._alive[place] = known
        return known[0]

    def _new_number(self) -> int:
        number = len(self._versions)
        self._versions[number] = 0
        return number


def _cdata(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def weight_storages(model: nn.Module) -> dict[int, StorageWeakRef]:
    """Returns the memory of all tensors that modules keep: weights, buffers, attributes."""
    kept = [*model.parameters(), *model.buffers()]
    if not isinstance(model, torch.jit.ScriptModule):
        for module in model.modules():
            kept += tensors_in(list(vars(module).values()))
    found = {}
    for tensor in kept:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            found[_cdata(tensor)] = StorageWeakRef(tensor.untyped_storage())
    return found


class Watcher(TorchDispatchMode):
    """Records each operation as an OpCall."""

    def __init__(self, call: Call, memory: Memory, layers: Layers) -> None:
        super().__init__()
        self._call, self._memory, self._layers = call, memory, layers

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        op = self._begin(func, args, kwargs)
        wait()
        began_ns = time.perf_counter_ns()
        result = run_op(func, args, kwargs)
        wait()
        op.us = (time.perf_counter_ns() - began_ns) / 1000
        self._end(op, func, args, kwargs, result)
        return result

    def _begin(self, func: Any, args: Arguments, kwargs: Mapping[str, Any]) -> OpCall:
        name, read = op_name(func), tensors_in((args, dict(kwargs)))
        op = OpCall(
            index=len(self._call.ops), name=name, layer=self._layers.current,
            lines=user_lines(sys._getframe(1), run_model.__code__),
            inputs=tuple(map(self._memory.facts, read)), outputs=(),
            arguments=self._spelled(args), keywords=self._spelled(kwargs),
            is_view=bool(getattr(func, "is_view", False)) or name == "aten._unsafe_view",
            is_random=torch.Tag.nondeterministic_seeded in func.tags,
            writes=bool(func._schema.is_mutable),
        )  # fmt: skip
        self._call.ops.append(op)
        return op

    def _spelled(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._memory.facts(value)
        if isinstance(value, dict):
            return {name: self._spelled(each) for name, each in value.items()}
        return tuple(map(self._spelled, value)) if isinstance(value, (list, tuple)) else value

    def _end(
        self, op: OpCall, func: Any, args: Arguments, kwargs: Mapping[str, Any], result: Any
    ) -> None:
        made = tensors_in(result)
        content = (op.name, str(func), _numbers(op.arguments), _numbers(op.keywords))
        if op.is_random or op.name.startswith(("aten.empty", "aten.new_empty")):
            content = (op.name, op.index)  # type: ignore[assignment]
        is_foreign = op.name == "aten.lift_fresh"
        origins = {t.origin for t in op.inputs} or {NUMBERS}
        if op.is_random or is_foreign:
            origins = {INPUT}
        origin = next(each for each in (INPUT, WEIGHTS, NUMBERS) if each in origins)
        if op.writes:
            for target in _targets(func, args, kwargs):
                self._memory.written(target, (*content, "in place"), origin)
        elif not op.is_view and not is_foreign:
            for position, tensor in enumerate(made):
                self._memory.written(tensor, (*content, position), origin)
        op.outputs = tuple(map(self._memory.facts, made))


def _numbers(value: Any) -> Any:
    """Returns arguments as a text in which tensors are the numbers of their contents."""
    if isinstance(value, TensorFacts):
        return value.number
    if isinstance(value, Mapping):
        return tuple((name, _numbers(each)) for name, each in value.items())
    if isinstance(value, tuple):
        return tuple(map(_numbers, value))
    return repr(value)


def _targets(func: Any, args: Arguments, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Returns the tensors that an operation writes, as its schema says."""
    found: list[torch.Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        info = argument.alias_info
        if info is not None and info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            found += tensors_in(value)
    return found


class ReadWatcher(TorchFunctionMode):
    """Records the tensors whose values Python code reads, so that they count as used."""

    def __init__(self, call: Call, memory: Memory) -> None:
        super().__init__()
        self._call, self._memory = call, memory

    def __torch_function__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in _READS and isinstance(args[0], torch.Tensor):
            self._call.reads.append(self._memory.facts(args[0]))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def same_random() -> Iterator[None]:
    """Runs its body with a fixed seed, and leaves the caller's random numbers as they were."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        yield


def observe(model: nn.Module, args: Arguments, kwargs: Mapping[str, Any]) -> Call:
    """Runs the model once without gradients and returns all that it did.

    It has run before, so that nothing is made for the first time, and it is in eval mode.
    """
    call, memory = Call(), Memory(weight_storages(model))
    with torch.no_grad(), same_random(), Layers(model) as layers:
        with ReadWatcher(call, memory), Watcher(call, memory, layers):
            result = run_model(model, args, kwargs)
        call.outputs = tuple(map(memory.facts, tensors_in(_plain(result))))
    return call


def _plain(result: Any) -> Any:
    """Returns a result whose tensors are in lists and dicts, also if it is a dataclass."""
    tensors: list[torch.Tensor] = []
    try:
        trees.flatten(result, "the result", tensors, [])
    except Exception:
        return result
    return tensors
