# SPDX-License-Identifier: BSD-3-Clause
"""Code of the user that torchalgo calls may call torchalgo: models, progress functions, meters."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from test_captured import FakeGraphs
from torchalgo._base.overlap import Claims
from torchalgo._run.captured import CapturedCalls

# A deadlock would otherwise never end.
HANG_S = 120.0


@pytest.fixture(autouse=True)
def _no_deadlock() -> Iterator[None]:
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()


class Probe:
    """A progress function that calls `call` in another thread, and waits for its end."""

    def __init__(self) -> None:
        self.call: Callable[[], Any] = lambda: None
        self.results: list[Any] = []

    def __call__(self, event: Any) -> None:
        for run in (self._run, self._in_thread):
            run()

    def _run(self) -> None:
        self.results.append(self.call())

    def _in_thread(self) -> None:
        thread = threading.Thread(target=self._run)
        thread.start()
        thread.join()


def quick(probe: Probe) -> torchalgo.Settings:
    return torchalgo.Settings(progress=probe, run_untimed=True, cost_db=False)


X = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore:torchalgo. another call is planning")
@torch.no_grad()
def test_a_progress_function_may_call_the_module_that_is_being_planned() -> None:
    model, probe = net(), Probe()
    fast = torchalgo.optimize(model, settings=quick(probe), budget_s=2)
    probe.call = lambda: (fast(X), fast.unseen, fast.original_runs)
    torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)
    assert probe.results
    for result, _, _ in probe.results:
        assert torch.equal(result, model(X))  # the original ran
    runs = fast.original_runs
    assert runs == {"another call is planning the model": len(probe.results)}
    fast(X)
    assert fast.original_runs == runs


@torch.no_grad()
def test_a_first_call_that_fails_lets_the_next_one_plan() -> None:
    class Once(nn.Conv2d):
        fails = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.fails:
                raise ValueError("not yet")
            return super().forward(x)

    model = Once(3, 4, 1).eval()
    fast = torchalgo.optimize(model, settings=quick(Probe()), budget_s=2)
    with pytest.raises(torchalgo.Error, match="not yet"):
        fast(X)
    Once.fails = False
    torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_progress_function_may_call_the_module_that_is_being_refreshed() -> None:
    model, probe = net(), Probe()
    fast = torchalgo.optimize(model, X, settings=quick(probe), budget_s=2)
    probe.call = lambda: (fast.refresh, fast.unseen, fast.scripted)
    model[0].weight.mul_(2)
    fast.refresh()
    assert probe.results
    torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)


class ReadsCounts(nn.Module):
    """Its sizes are not free, so the model is captured again for other sizes."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.conv, self.probe = nn.Conv2d(3, 4, 3, padding=1), probe

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.probe(None)
        y: torch.Tensor = self.conv(x)
        return y * float(str(int(y.shape[2])))


@pytest.mark.filterwarnings("ignore:torchalgo. inputs are 1x3x10x8")
@torch.no_grad()
def test_a_model_may_read_counters_while_it_is_captured_for_other_sizes() -> None:
    probe = Probe()
    model = ReadsCounts(probe).eval()
    fast = torchalgo.optimize(model, X, settings=quick(Probe()), budget_s=2)
    other = torch.rand(1, 3, 10, 8)
    probe.call = lambda: (fast.unseen, fast.original_runs)
    torch.testing.assert_close(fast(other), model(other), rtol=1e-4, atol=1e-5)
    assert probe.results


@torch.no_grad()
def test_a_progress_function_may_call_the_captured_module() -> None:
    model, probe = net(), Probe()
    fast = torchalgo.optimize(model, X, settings=quick(probe), budget_s=2)
    captured = CapturedCalls(fast, FakeGraphs())
    found: list[Any] = []

    class Reads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found.append(captured.runs)
            return model(x)

    # In channels_last, the original says which format results have.
    fast._original.tensor_model = Reads().eval()  # type: ignore[union-attr]
    last = X.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(captured(last), model(last), rtol=1e-4, atol=1e-5)
    assert found


@pytest.mark.filterwarnings("ignore:torchalgo. PyTorch runs this graph")
@torch.no_grad()
def test_a_progress_function_may_call_the_compiled_module_that_is_being_planned() -> None:
    torch._dynamo.reset()
    model, probe = net(), Probe()
    options = {"budget_s": 2.0, "cost_db": False, "progress": probe, "new_shapes": "tune"}
    compiled: Any = torch.compile(model, backend="torchalgo", options=options, dynamic=True)
    inputs = [X]
    probe.call = lambda: compiled(inputs[-1])
    for x in (X, torch.rand(1, 3, 10, 8)):
        inputs.append(x)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        assert probe.results
        for result in probe.results:
            torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
        probe.results.clear()
    probe.call = lambda: None
    torch._dynamo.reset()


def test_a_piece_of_work_has_one_call_and_others_of_its_own() -> None:
    claims = Claims()
    with claims.claim("a") as first, claims.claim("a") as second, claims.claim("b") as other:
        assert (first, second, other) == (True, False, True)
    with pytest.raises(ValueError, match="ended"), claims.claim("a") as again:
        assert again
        raise ValueError("ended")
    with claims.claim("a") as again:
        assert again


FIRST_IN_A_THREAD = """
import threading, torch, torchalgo
x = torch.rand(1, 3, 8, 8)
def work(compile):
    model = torch.nn.Conv2d(3, 4, 1).eval()
    settings = {"progress": False, "cost_db": False, "run_untimed": True}
    with torch.no_grad():
        if compile:
            options = {"budget_s": 1.0, **settings}
            torch.compile(model, backend="torchalgo", options=options)(x)
        else:
            torchalgo.optimize(model, x, budget_s=1, settings=torchalgo.Settings(**settings))(x)
for each in ORDER:
    thread = threading.Thread(target=work, args=(each,))
    thread.start()
    thread.join()
work(ORDER[-1])
print("done")
"""


@pytest.mark.parametrize("order", [(False,), (True,), (True, False), (False, True)])
def test_the_first_use_may_be_in_a_thread_that_ends(order: tuple[bool, ...]) -> None:
    """PyTorch kept a device guard of the thread, and the next use of fake tensors crashed."""
    code = FIRST_IN_A_THREAD.replace("ORDER", repr(order))
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
