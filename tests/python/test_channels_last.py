# SPDX-License-Identifier: BSD-3-Clause
"""A model runs in channels_last in this process only if its convolutions ran in the worker."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import torchalgo
from support.workers import faulty_command
from torchalgo import _C
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.costs import Key
from torchalgo._measure import baselines, channels_last
from torchalgo._measure.process_bench import ISOLATE, ProcessBench, Worker
from torchalgo._plan.find import import_model

X = torch.rand(1, 16, 14, 14, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 1)).eval()


def graph_of(model: nn.Module) -> _C.Graph:
    return import_model(None, freeze_model(model, (X,)), (X,)).graph


def keys_of(graph: _C.Graph) -> list[Key]:
    problems = [node.problem for node in graph.nodes if node.problem is not None]
    return [Key(p, "aten.conv", "nhwc", "nhwc") for p in problems if p.startswith("fwd_")]


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """aten.conv does this in the worker."""
    worker = Worker(faulty_command(**{"aten.conv": request.param}))
    trial = functools.partial(ProcessBench, worker=worker, least_limit_s=1.5)
    monkeypatch.setattr(channels_last, "ProcessBench", trial)
    yield
    worker.close()


@pytest.mark.parametrize("fault", ["segv"], indirect=True)
def test_convolutions_that_were_not_measured_are_tried_in_the_worker(fault: None) -> None:
    graph = graph_of(net())
    assert len(keys_of(graph)) == 2
    for known in ([], keys_of(graph)[:1], keys_of(graph)[1:]):
        why = channels_last.why_not_in_channels_last(graph, known, 60.0)
        assert why == "a convolution did not run in the worker: SIGSEGV"
    assert channels_last.why_not_in_channels_last(graph, keys_of(graph), 60.0) == ""


def test_those_that_run_may_run_here_and_without_time_or_worker_none_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = graph_of(net())
    assert channels_last.why_not_in_channels_last(graph, [], 60.0) == ""
    assert channels_last.why_not_in_channels_last(graph, [], 0.0).endswith(
        "not tried in the worker"
    )
    assert channels_last.why_not_in_channels_last(graph, keys_of(graph), 0.0) == ""
    monkeypatch.setenv(ISOLATE, "0")
    assert "TORCHALGO_ISOLATE=0" in channels_last.why_not_in_channels_last(graph, [], 60.0)


@pytest.mark.parametrize("fault", ["hang"], indirect=True)
def test_a_trial_ends_with_its_time(fault: None) -> None:
    why = channels_last.why_not_in_channels_last(graph_of(net()), [], 3.0)
    assert why.startswith("a convolution did not run in the worker: ")


def test_a_worker_that_does_not_start_is_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(lambda: ["/nowhere/python"])
    monkeypatch.setattr(
        channels_last, "ProcessBench", functools.partial(ProcessBench, worker=worker)
    )
    assert "cannot be started" in channels_last.why_not_in_channels_last(graph_of(net()), [], 60.0)


def test_optimize_and_compare_leave_such_a_baseline_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(model: nn.Module) -> nn.Module:
        raise AssertionError("the model ran in channels_last")

    model, reason = net(), "a convolution did not run in the worker: SIGSEGV"
    monkeypatch.setattr(baselines, "_channels_last_copy", never)
    for module in ("torchalgo._refine.contest", "torchalgo._run.optimized"):
        monkeypatch.setattr(f"{module}.why_not_in_channels_last", lambda *_: reason)
    settings = torchalgo.Settings(progress=False, cost_db=False)
    fast = torchalgo.optimize(model, X, budget_s=20, settings=settings)
    assert fast.plan.guard is not None
    assert f"not timed: channels_last: {reason}" in fast.plan.guard.reason
    times = fast.compare(rounds=7, budget_s=1)
    assert times.failures["channels_last"] == reason
    assert {"eager", "frozen"} <= set(times.ns)
