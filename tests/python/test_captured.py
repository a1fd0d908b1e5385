# SPDX-License-Identifier: BSD-3-Clause
"""Calls as CUDA graphs, with a device that captures on the CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from torchalgo._ir.plan import GuardVerdict
from torchalgo._run.captured import CapturedCalls, CudaGraphs


class FakeGraphs(CudaGraphs):
    """Captures a call by running it once. A replay runs it again and writes the same tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.captures = 0
        self.turns: list[torch.device] = []
        self.failure: Exception | None = None
        self.delays_s = [0.0]  # of the replays of each capture; the last one is that of later ones

    def has(self, tensor: Tensor) -> bool:
        return tensor.dtype is torch.float32

    def capture(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        if self.failure is not None:
            raise self.failure
        delay_s = self.delays_s[min(self.captures, len(self.delays_s) - 1)]
        self.captures += 1
        result = run()

        def replay() -> None:
            time.sleep(delay_s)
            result.copy_(run())

        return result, replay

    @contextlib.contextmanager
    def turn(self, device: torch.device) -> Iterator[None]:
        self.turns.append(device)
        yield

    def wait(self) -> None:
        pass


def images(batch: int = 1, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()


@pytest.fixture
def both(model: nn.Module) -> tuple[FakeGraphs, CapturedCalls]:
    settings = torchalgo.Settings(progress=False, run_untimed=True, cost_db=False)
    fast = torchalgo.optimize(model, images(), budget_s=2.0, settings=settings)
    device = FakeGraphs()
    return device, CapturedCalls(with_verdict(fast, model, None), device)


def with_verdict(
    fast: torchalgo.Optimized, model: nn.Module, verdict: GuardVerdict | None
) -> torchalgo.Optimized:
    """Applies the plan of `fast` as if the guard had said `verdict`."""
    plan = dataclasses.replace(fast.plan, guard=verdict)
    settings = torchalgo.Settings(progress=False)
    return torchalgo.optimize(model, images(), plan=plan, settings=settings)


@torch.no_grad()
def test_each_planned_shape_is_captured_once_and_results_are_the_callers_own(
    model: nn.Module, both: tuple[FakeGraphs, CapturedCalls]
) -> None:
    device, captured = both
    results = [captured(images(seed=seed)) for seed in range(3)]
    for seed, result in enumerate(results):  # all are compared after the last call
        torch.testing.assert_close(result, model(images(seed=seed)), rtol=1e-4, atol=1e-5)
    assert device.captures == 1 and device.turns == [torch.device("cpu")] * 3
    assert (captured.captured_runs, captured.uncaptured_runs) == (3, 0)


def test_a_graph_is_captured_on_the_gpu_of_the_inputs_while_other_threads_allocate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current = ["cuda:0"]
    seen: list[str] = []

    class Stream:
        def __init__(self) -> None:
            seen.append(f"stream on {current[-1]}")

        def wait_stream(self, _: Any) -> None: ...
        def wait_event(self, _: Any) -> None: ...
        def record_event(self) -> str:
            return f"event on {current[-1]}"

    @contextlib.contextmanager
    def device(where: torch.device) -> Iterator[None]:
        current.append(str(where))
        yield
        current.pop()

    @contextlib.contextmanager
    def graph(*_: Any, capture_error_mode: str = "global", **__: Any) -> Iterator[None]:
        seen.append(f"{capture_error_mode} on {current[-1]}")
        yield

    fakes = {
        "Stream": Stream, "current_stream": Stream, "device": device, "graph": graph,
        "stream": lambda _: contextlib.nullcontext(), "CUDAGraph": mock.Mock,
        "graph_pool_handle": lambda: (0, 1),
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    graphs = CudaGraphs()
    for _ in range(2):  # the second time, it waits for the event of the first one
        with graphs.turn(torch.device("cuda:1")):
            graphs.capture(lambda: None)
    assert str(graphs._done) == "event on cuda:1" and current == ["cuda:0"]
    assert {text.partition(" on ")[2] for text in seen} == {"cuda:1"}
    assert seen.count("thread_local on cuda:1") == 2


@torch.no_grad()
def test_other_strides_have_a_graph_of_their_own(
    model: nn.Module, both: tuple[FakeGraphs, CapturedCalls]
) -> None:
    device, captured = both
    captured(images())
    last = images(seed=1).contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(captured(last), model(last), rtol=1e-4, atol=1e-5)
    assert device.captures == 2


@pytest.mark.filterwarnings("ignore:torchalgo. input input requires a gradient:UserWarning")
@pytest.mark.parametrize(
    "call",
    [
        lambda run: run(images(2)),  # has no plan
        lambda run: run(input=images()),
        lambda run: run(images().requires_grad_()),
    ],
)
def test_other_calls_run_as_without_graphs(
    model: nn.Module, both: tuple[FakeGraphs, CapturedCalls], call: Callable[..., Tensor]
) -> None:
    device, captured = both
    torch.testing.assert_close(call(captured), call(model), rtol=1e-4, atol=1e-5)
    assert device.captures == 0 and captured.uncaptured_runs == 1


@torch.no_grad()
@pytest.mark.parametrize(("delays_s", "kept"), [([0.02, 0.0], "plan"), ([0.0, 0.02], "baseline")])
def test_a_plan_that_lost_by_its_launches_is_captured_if_its_graph_is_faster(
    model: nn.Module,
    both: tuple[FakeGraphs, CapturedCalls],
    delays_s: list[float],
    kept: str,
) -> None:
    slower = GuardVerdict("slower", "baseline", "frozen", 9.0, 5.0, 1.8, 1.7, 1.9, 25, "")
    refused = with_verdict(both[1]._optimized, model, slower)
    assert refused.runs == "baseline"
    device = FakeGraphs()
    device.delays_s = delays_s
    captured = CapturedCalls(refused, device)
    torch.testing.assert_close(captured(images()), model(images()), rtol=1e-4, atol=1e-5)
    assert captured.runs == {"1x3x12x12": kept}
    captured(images(seed=1))
    assert device.captures == 2 and captured.captured_runs == 2
    (graph,) = captured._graphs.values()
    assert graph.module.runs == kept  # it is held, with its weights, as long as the graph


@torch.no_grad()
def test_a_changed_layer_runs_the_original_without_a_graph(
    model: nn.Sequential, both: tuple[FakeGraphs, CapturedCalls]
) -> None:
    _, captured = both
    captured(images())
    model[2] = nn.Conv2d(8, 4, 1).eval()
    with pytest.warns(UserWarning, match="layer '2' was replaced"):
        assert torch.equal(captured(images()), model(images()))
    assert (captured.captured_runs, captured.uncaptured_runs) == (1, 1)


@torch.no_grad()
def test_changed_weights_are_an_error_until_refresh_and_then_captured_again(
    model: nn.Module, both: tuple[FakeGraphs, CapturedCalls]
) -> None:
    device, captured = both
    captured(images())
    for parameter in model.parameters():
        parameter.mul_(0.5)
    with pytest.raises(torchalgo.Error, match=r"TA1404 .*refresh"):
        captured(images())
    captured._optimized.refresh()
    torch.testing.assert_close(captured(images()), model(images()), rtol=1e-4, atol=1e-5)
    assert device.captures == 2


@torch.no_grad()
def test_a_call_that_cannot_be_captured_says_why(both: tuple[FakeGraphs, CapturedCalls]) -> None:
    device, captured = both
    device.failure = RuntimeError("operation not permitted when stream is capturing")
    with pytest.raises(torchalgo.Error, match=r"TA1406 captured: .*not permitted.*itself"):
        captured(images())
    device.failure = None
    captured(images())
    assert captured.captured_runs == 1


def test_on_a_cpu_nothing_is_captured(both: tuple[FakeGraphs, CapturedCalls]) -> None:
    fast = both[1]._optimized
    captured = fast.captured()
    with torch.no_grad():
        assert torch.equal(captured(images()), fast(images()))
    assert (captured.captured_runs, captured.uncaptured_runs) == (0, 1)
    assert "graphs=0" in repr(captured) and not list(captured.parameters())


def test_comparing_needs_inputs_that_are_captured(both: tuple[FakeGraphs, CapturedCalls]) -> None:
    _, graphed = both
    with pytest.raises(torchalgo.Error, match=r"^TA1407 compare: a call with 2x3x12x12 is not"):
        graphed.compare(images(2))
    with pytest.raises(torchalgo.Error, match=r"^TA1001 compare: budget_s=0, expected"):
        graphed.compare(images(), budget_s=0)
