# SPDX-License-Identifier: BSD-3-Clause
"""Calls that overlap in several threads: equal results, and the process's own state as before."""

from __future__ import annotations

import copy
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import torchalgo
from torchalgo import _C
from torchalgo._base import overlap
from torchalgo._base.overlap import WhileAny, filter_warnings, one_at_a_time
from torchalgo._base.own_thread import BenchmarkedCall
from torchalgo._capture.freeze import trace_module
from torchalgo._train.trace import trace

THREADS = 4
X = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU())
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.drop(self.first(x)))
        return y


def state() -> dict[str, Any]:
    """The state of the process that a call must leave as it was."""
    return {
        "filters": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "names of a trace": torch.jit._trace._trace_module_map,
        "generators": [torch.get_rng_state().tolist(), random.getstate()],
        "generator of numpy": str(numpy.random.get_state()),
        "benchmark": torch.backends.cudnn.benchmark,
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
    }


def at_once(work: Callable[[], Any], count: int = 20) -> list[Any]:
    """Returns the results of `count` calls in each of several threads."""
    results: list[Any] = []
    errors: list[BaseException] = []
    begin = threading.Barrier(THREADS)

    def run() -> None:
        try:
            begin.wait()
            for _ in range(count):
                results.append(work())
        except BaseException as problem:
            errors.append(problem)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert len(results) == THREADS * count
    return results


def names_in(module: torch.jit.ScriptModule) -> list[str]:
    graph: Any = module.inlined_graph
    return [node.scopeName() for node in graph.nodes()]


@torch.no_grad()
def test_one_model_may_be_optimized_in_several_threads() -> None:
    model = Net().eval()
    settings = torchalgo.Settings(progress=False, cost_db=False, run_untimed=True)
    plan = torchalgo.optimize(model, X, budget_s=2.0, settings=settings).plan
    names, before = [node.name for node in plan.nodes], state()
    for fast in at_once(lambda: torchalgo.optimize(model, X, plan=plan)):
        assert [node.name for node in fast.plan.nodes] == names
        assert torch.allclose(fast(X), model(X), rtol=1e-4, atol=1e-5)
    tuned = at_once(lambda: torchalgo.optimize(model, X, budget_s=0.3, settings=settings), 2)
    for fast in tuned:
        assert [node.name for node in fast.plan.nodes] == names
        assert torch.allclose(fast(X), model(X), rtol=1e-4, atol=1e-5)
    assert state() == before


COMPILE_FIRST = """
import threading, torch, torchalgo
from torch._dynamo import lookup_backend
begin, found = threading.Barrier(8), []
def run():
    begin.wait()
    found.append(lookup_backend("torchalgo"))
threads = [threading.Thread(target=run) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert found == [torchalgo.dynamo.backend] * 8, found
"""


def test_several_threads_may_find_the_backend_of_torch_compile_first() -> None:
    for _ in range(2):
        subprocess.run([sys.executable, "-c", COMPILE_FIRST], check=True)


@torch.no_grad()
def test_traces_that_overlap_keep_the_names_of_their_layers() -> None:
    model = Net().eval()
    alone = torch.jit.trace(model, (X,), check_trace=False, strict=False)
    before = state()
    for module in at_once(lambda: trace_module(model, (X,))[0]):
        assert names_in(module) == names_in(alone)
        assert torch.equal(module(X), model(X))
    assert state() == before


def test_plans_for_training_may_be_made_at_once() -> None:
    model = Net().train()
    trace(copy.deepcopy(model), (X,))  # imports packages, which add filters of warnings
    before = state()
    for found in at_once(lambda: trace(copy.deepcopy(model), (X,)), 5):
        assert list(found.regions)
    assert state() == before


def test_a_model_may_run_while_another_thread_traces_one_for_training() -> None:
    """While torch.fx traces, it sees the calls of all modules of the process."""
    other = Net().eval()
    entered, ended = threading.Event(), threading.Event()
    results: list[Any] = []

    class Waits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            entered.set()
            ended.wait(60)
            y: torch.Tensor = self.conv(x)
            return y

        def __deepcopy__(self, memo: dict[int, Any]) -> Waits:
            return self

    def run() -> None:
        entered.wait(60)
        try:
            with torch.no_grad():
                results.append(other(X))
        except BaseException as problem:
            results.append(problem)
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    trace(Waits().train(), (X,))
    thread.join()
    with torch.no_grad():
        torch.testing.assert_close(results[0], other(X))


def test_a_benchmarked_call_leaves_the_flag_although_calls_overlap() -> None:
    before = torch.backends.cudnn.benchmark
    calls = [BenchmarkedCall(lambda: torch.backends.cudnn.benchmark) for _ in range(THREADS)]
    assert all(at_once(lambda: calls[random.randrange(THREADS)]()))
    assert torch.backends.cudnn.benchmark is before


def test_strict_of_one_call_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(strict: bool) -> bool:
        raise AssertionError("a setting of the process was changed")

    monkeypatch.setattr(_C, "set_strict", never)
    settings = torchalgo.Settings(progress=False, cost_db=False, strict=True, run_untimed=True)
    assert torchalgo.optimize(Net().eval(), X, budget_s=1, settings=settings).plan.nodes


def test_a_change_is_undone_by_the_last_of_blocks_that_overlap() -> None:
    log: list[str] = []

    def change() -> Callable[[], None]:
        log.append("made")
        return lambda: log.append("undone")

    both = WhileAny(change)
    first, second = both.block(), both.block()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert log == ["made"]
    second.__exit__(None, None, None)
    assert log == ["made", "undone"]
    with pytest.raises(ValueError, match="ended"), both.block():
        raise ValueError("ended")
    assert log == ["made", "undone"] * 2


def test_hidden_warnings_are_shown_again_whatever_other_threads_do_with_the_filters() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        undo = filter_warnings("ignore", "the word", DeprecationWarning, FutureWarning)
        other = warnings.catch_warnings()
        other.__enter__()  # of a thread of the user, which copies the filters
        warnings.warn("the word", FutureWarning, stacklevel=1)
        undo()
        other.__exit__(None, None, None)
        assert list(warnings.filters) == before
        warnings.warn("the word", FutureWarning, stacklevel=1)
    assert len(caught) == 1


def test_a_turn_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "MOST_WAIT_S", 0.05)
    errors: list[str] = []

    def run() -> None:
        try:
            with one_at_a_time("it waits"):
                pass
        except torchalgo.Error as problem:
            errors.append(problem.code)

    with one_at_a_time("it waits"), one_at_a_time("it may again"):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert errors == ["TA1605"]
    run()
    assert errors == ["TA1605"]
