# SPDX-License-Identifier: BSD-3-Clause
"""Runs a model on fake tensors, and notices what a capture of one run would not hold.

Fake tensors have no values, so Python code that reads one is seen. This code may be a branch on a
value, NumPy or ctypes. The weights are fake too, and the model is a copy, so the run changes
nothing of the caller's.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from torchalgo._base.overlap import keep_fake_device

# These give Python the memory of a tensor.
_MEMORY = {
    Tensor.numpy, Tensor.__array__, Tensor.data_ptr, Tensor.untyped_storage, Tensor.storage,
    Tensor.__dlpack__,
}  # fmt: skip
# The results of these depend on the order in memory.
_STRIDES = {Tensor.stride, Tensor.is_contiguous, Tensor.storage_offset, Tensor.dim_order}
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_GET_BYTES = Tensor.nbytes.__get__  # type: ignore[attr-defined]
_OF_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

_TYPES = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
# Parts of the texts of torch's other errors, which are of type RuntimeError.
_TEXTS = (
    ".numpy() is not supported for tensor subclasses",
    ".tolist() is not supported for tensor subclasses",
    "Cannot access data pointer of Tensor (e.g. FakeTensor",
    "unallocated storage",
    "invalid python storage",
    "cannot be called on meta tensors",
    "Not available for 'meta' device type",  # elements of a storage
)

_NO_VALUE = object()


class ReadsValueError(Exception):
    """Raised where Python code reads a value that depends on the inputs."""


class WritesWeightError(Exception):
    """Raised where the model writes to a weight or a buffer."""


class FakeRun:
    """A run of a model on fake tensors, and what its Python code does in it.

    Attributes:
        reads: the first op by which Python code read a value that depends on the inputs. Empty if
            there is none.
        writes: the first weight or buffer that the run wrote to. Empty if there is none.
        reads_strides: True if Python code asked for the order in memory of such a tensor.
        op: the op that runs now; None in Python code around ops.
    """

    def __init__(
        self, mode: FakeTensorMode, pin: Callable[[Any], None] = lambda number: None
    ) -> None:
        """Takes the mode of the run. `pin` is called with each size that Python code reads."""
        self.mode: Any = mode
        self.pin = pin
        self.reads = self.writes = ""
        self.reads_strides = False
        self.op: Any = None
        self._weights: dict[int, str] = {}  # names of fakes' memory
        # Fake tensors that depend on weights only, and their values, by id. A tensor that is kept
        # here shares its id, and the number of its memory, with no other one.
        self._values: dict[int, tuple[Tensor, Any]] = {}
        self._mixed: set[int] = set()  # memory with values that depend on the inputs

    # ---- fake tensors ----------------------------------------------------------------------------

    def fake(self, tensor: Tensor) -> Tensor:
        """Returns the fake of a tensor of the model. It is the same for the same tensor."""
        if isinstance(tensor, FakeTensor):
            return tensor
        made: Tensor = self.mode.from_tensor(tensor, static_shapes=True)
        if memory_of(made) not in self._weights:
            self._weights[memory_of(made)] = "a tensor of the model"
        self._values[id(made)] = made, tensor
        return made

    def copied(self, model: nn.Module) -> nn.Module:
        """Returns a deep copy of the model with fake tensors instead of its own.

        Raises: any error of copy.deepcopy, such as that of a lock in the model.
        """
        # Parameter copies its memory by an op of its own.
        memo: dict[int, Any] = {id(weight): self.fake(weight) for weight in model.parameters()}
        with Calls(self._copy):
            made = copy.deepcopy(model, memo)
        for name, tensor in [*made.named_parameters(), *made.named_buffers()]:
            self._weights[memory_of(tensor)] = name
        return made

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs a function that copy.deepcopy calls. It copies each tensor as its fake."""
        if func is Tensor.clone:  # of a parameter in a list
            return self.fake(args[0])
        if func is Tensor.__deepcopy__:
            tensor, memo = args
            memo[id(tensor)] = self.fake(tensor)
            return memo[id(tensor)]
        return func(*args, **kwargs)

    def _value(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Returns the result of an op on tensors that depend on weights only, or _NO_VALUE."""
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        is_known = (
            all(map(self.has_value, tensors))
            and not any(isinstance(leaf, (torch.SymInt, torch.SymFloat)) for leaf in leaves)
            and torch.Tag.nondeterministic_seeded not in func.tags
        )
        if not is_known:
            self._mixed.update(memory_of(tensor) for tensor in written(func, args, kwargs))
            return _NO_VALUE
        real_args, real_kwargs = tree_map(self._real, (args, kwargs))
        with _disable_current_modes(), torch.no_grad():
            return func(*real_args, **real_kwargs)

    def has_value(self, tensor: Tensor) -> bool:
        """Returns whether a fake tensor depends on weights only."""
        return id(tensor) in self._values and memory_of(tensor) not in self._mixed

    def _real(self, value: Any) -> Any:
        return self._values[id(value)][1] if isinstance(value, FakeTensor) else value

    def end(self) -> None:
        """Drops all tensors: torch's caches keep symbols, and so a recorder, for long."""
        self._values.clear()
        self.mode = None

    def keep_value(self, result: Any, value: Any) -> Any:
        """Keeps the values of the fake tensors of a result, and returns it."""
        if value is not _NO_VALUE:
            for made, real in zip(tree_leaves(result), tree_leaves(value), strict=True):
                if isinstance(made, FakeTensor):
                    self._values[id(made)] = made, real
        return result

    # ---- what Python code does -------------------------------------------------------------------

    def fail_read(self, what: str) -> ReadsValueError:
        """Notes a read of a value, and returns the error to raise."""
        self.reads = self.reads or what
        return ReadsValueError(what)

    def name_of(self, value: Any) -> str:
        """Returns the name of the weight or buffer that a tensor is a view of; "" if none."""
        is_tensor = isinstance(value, Tensor)
        return self._weights.get(memory_of(self.fake(value)), "") if is_tensor else ""

    def check_write(self, tensor: Tensor, what: str) -> None:
        """Raises WritesWeightError if the tensor shares memory with a weight or a buffer."""
        if name := self.name_of(tensor):
            self.writes = self.writes or f"{name} ({what})"
            raise WritesWeightError(what)

    def run_op(self, func: Any, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
        """Runs an op by `run`, which takes its arguments as fake tensors."""
        before, self.op = self.op, func
        try:
            if func in self.mode.lift_fns and not isinstance(args[0], FakeTensor):
                # The code makes this tensor of numbers in each call, and may write to it.
                with _disable_current_modes():
                    value = args[0].clone()
                return self.keep_value(run(*args, **kwargs), value)
            args, kwargs = tree_map(self._fake_of_any, (args, kwargs))
            for tensor in written(func, args, kwargs):
                self.check_write(tensor, func.name())
            value = self._value(func, args, kwargs)
            if value is not _NO_VALUE and any(tag in func.tags for tag in _OF_VALUES):
                return tree_map(self._fake_of_any, value)
            return self.keep_value(run(*args, **kwargs), value)
        except DataDependentOutputException as problem:
            raise self.fail_read(str(problem.func)) from problem
        finally:
            self.op = before

    def _fake_of_any(self, value: Any) -> Any:
        return self.fake(value) if isinstance(value, Tensor) else value

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs a function of torch that Python code calls, unless it reads memory."""
        if self.op is not None or not args or not isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        tensor = args[0]
        if func == _SET_DATA:
            self.check_write(self.fake(tensor), "data")
        elif func in _MEMORY:
            if not self.has_value(self.fake(tensor)):
                raise self.fail_read(f"Tensor.{func.__name__}")
            with _disable_current_modes():
                return func(self._real(self.fake(tensor)).detach().clone(), *args[1:], **kwargs)
        elif func in _STRIDES or func == _GET_BYTES:
            result = func(*args, **kwargs)
            if not is_asked_by_torch(2) and not self.has_value(self.fake(tensor)):
                self.reads_strides |= func in _STRIDES
                for number in result if isinstance(result, tuple) else (result,):
                    self.pin(number)
            return result
        return func(*args, **kwargs)


def fake_mode(shape_env: ShapeEnv | None = None, **settings: Any) -> FakeTensorMode:
    """Returns a mode whose fake tensors raise an error where code reads their memory.

    By default, `data_ptr()` of a fake tensor is a null pointer, with which code may go on.
    """
    keep_fake_device()
    mode = FakeTensorMode(shape_env=shape_env, **settings)
    mode._allow_unsafe_data_ptr_access = False  # torch's setting would hold for all threads
    return mode


def reads_values(problem: BaseException) -> bool:
    """Returns whether an error of a run on fake tensors means that code reads a tensor's values.

    Fake tensors have no values. Code reads one by `item()`, by a branch, through its memory, or by
    an op whose result has as many elements as the values say. Other errors, for example of sizes
    that do not fit or of ops that fake tensors do not support, say nothing about values.
    """
    return any(
        isinstance(each, _TYPES)
        or (isinstance(each, RuntimeError) and any(text in str(each) for text in _TEXTS))
        for each in _chain(problem)
    )


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and the errors that led to it. Code may raise its own error for another."""
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        yield problem
        problem = problem.__cause__ or problem.__context__


def memory_of(tensor: Tensor) -> int:
    """Returns a number for the memory of a fake tensor, which its views have in common."""
    return int(tensor.untyped_storage()._cdata)


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Yields the tensors that an op writes to."""
    arguments = func._schema.arguments
    given = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
    for argument in arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from (t for t in tree_leaves(given.get(argument.name)) if isinstance(t, Tensor))
    if given.get("training") is True:  # batch norm's schema does not say that it writes
        for name in ("running_mean", "running_var"):
            if isinstance(given.get(name), Tensor):
                yield given[name]


_TORCH = str(Path(torch.__file__).parent) + "/"
# Files of torch that compute an op, and files that only pass a question on.
_OPS = ("_decomp/", "_refs/", "_prims", "_meta_registrations", "_subclasses/")
_CARRIERS = ("__init__.py", "fx/experimental/", "utils/", "_ops.py", "_compile.py", "_dynamo/")
_OWN = str(Path(__file__).parent) + "/"


def is_asked_by_torch(depth: int) -> bool:
    """Returns whether an op asks, and not the Python code around ops.

    C++ code names the file that asks.
    """
    frame = sys._getframe(depth)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_TORCH):
            name = name[len(_TORCH) :]
            if name.startswith(_OPS):
                return True
            is_carrier = name.startswith(_CARRIERS)
            if frame.f_code.co_name == "guard_bool" and frame.f_locals.get("file"):
                return True
            if not is_carrier:
                return False
        elif not name.startswith(_OWN):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


class Calls(TorchFunctionMode):
    """Passes each function of torch that Python code calls on tensors to `call`."""

    def __init__(self, call: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._call(func, args, kwargs or {})
