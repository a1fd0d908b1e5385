# SPDX-License-Identifier: BSD-3-Clause
"""Calls that run in a thread of their own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from torchalgo._base.overlap import WhileAny

Call = Callable[[], Any]
T = TypeVar("T")


def _set_benchmark() -> Callable[[], None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    return lambda: setattr(torch.backends.cudnn, "benchmark", before)


_benchmarks = WhileAny(_set_benchmark)


class BenchmarkedCall:
    """A call that always runs in one thread of its own, with torch.backends.cudnn.benchmark = True.

    torch keeps a cache of cuDNN's plans for each thread. It looks there first, and the flag is not
    part of the key. In a thread that ran the same convolution without the flag, the flag has no
    effect: the heuristic's plan runs again. A thread of its own sees the flag from its first call.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="torchalgo benchmark")
        weakref.finalize(self, self._thread.shutdown, wait=False)

    def __call__(self) -> Any:
        return self.apply(lambda call: call())

    def apply(self, use: Callable[[Call], T]) -> T:
        """Returns `use(call)`, run in the thread.

        A time that `use` measures contains no thread switch.
        """
        with_gradients = torch.is_grad_enabled()  # torch has this flag per thread

        def run() -> T:
            with _benchmarks.block(), torch.set_grad_enabled(with_gradients):
                return use(self._call)

        return self._thread.submit(run).result()


def apply_where_it_runs(call: Call, use: Callable[[Call], T]) -> T:
    """Returns `use(call)`, run in the thread in which `call` runs."""
    return call.apply(use) if isinstance(call, BenchmarkedCall) else use(call)
