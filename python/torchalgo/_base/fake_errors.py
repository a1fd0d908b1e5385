# SPDX-License-Identifier: BSD-3-Clause
"""Errors of runs on fake tensors: those that say that Python code reads values of a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from torchalgo._base.fake_device import keep_fake_device

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
