# SPDX-License-Identifier: BSD-3-Clause
"""Optimized modules run without TorchScript's interpreter, and nobody can tell but by the clock."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torchalgo
from support.nets import Net, run_plan
from torchalgo import _C


def runner_of(fast: torchalgo.Optimized) -> _C.GraphRunner:
    runner = _C.GraphRunner.make(fast._results[0].scripted._c, [])  # type: ignore[attr-defined]
    assert runner is not None
    return runner


class Parts(nn.Module):
    """Concatenations, a squeeze-excite, a residual, ops that are not planned, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 16, 3, 1, 1)
        self.b = nn.Conv2d(16, 24, 3, 1, 1)
        self.squeeze, self.excite = nn.Conv2d(40, 8, 1), nn.Conv2d(8, 40, 1)
        self.last = nn.Conv2d(40, 40, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.relu(self.a(x))
        wide = torch.cat([a, self.b(a)], 1)
        scale = torch.sigmoid(self.excite(torch.relu(self.squeeze(wide.mean((2, 3), True)))))
        wide = wide + self.last(wide * scale)
        return torch.flip(wide, [3]) * y, torch.stack([wide.sum((2, 3)), wide.amax((2, 3))])


@pytest.fixture(scope="module")
def parts() -> tuple[torchalgo.Optimized, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    inputs = (torch.rand(2, 3, 16, 12), torch.rand(1, 1, 16, 12))
    return run_plan(Parts().eval(), *inputs), inputs


def test_gives_the_modules_bits(
    fast: torchalgo.Optimized,
    x: torch.Tensor,
    parts: tuple[torchalgo.Optimized, tuple[torch.Tensor, ...]],
) -> None:
    for module, inputs in ((fast, (x,)), parts, (fast, (torch.rand(3, 3, 29, 31),))):
        with torch.no_grad():
            got, want = runner_of(module).run(*inputs), module._results[0].scripted(*inputs)
            called = module(*inputs)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        torch.testing.assert_close(called, want, rtol=0, atol=0)


def test_a_planned_call_has_the_plans_sizes_and_types(
    fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    module: Any = fast._results[0].scripted
    runner = _C.GraphRunner.make(module._c, [(x.shape, torch.float32)])
    assert runner is not None
    assert torch.equal(runner.run_planned(x), runner.run(x))
    for other in (x[..., 1:], x.expand(2, -1, -1, -1), x[0], x.double(), 1):
        assert runner.run_planned(other) is NotImplemented
    assert runner.run_planned(x, x) is NotImplemented
    assert runner.run_planned() is NotImplemented


def test_runs_in_several_threads_at_once(
    parts: tuple[torchalgo.Optimized, tuple[torch.Tensor, ...]],
) -> None:
    module, inputs = parts
    runner = runner_of(module)
    want = runner.run(*inputs)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(30):
            got = runner.run(*inputs)
            wrong.extend(i for i in range(2) if not torch.equal(got[i], want[i]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_input_is_not_kept(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    runner = runner_of(fast)
    copy = x.clone()
    before = copy._use_count()  # type: ignore[attr-defined]
    runner.run(copy)
    assert copy._use_count() == before  # type: ignore[attr-defined]


def test_a_profiler_shows_each_primitive_with_its_layer(
    fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, acc_events=True) as seen, torch.no_grad():
        fast(x)
    names = {event.key for event in seen.key_averages()}
    convolutions = [n for n in fast.plan.nodes if n.problem.startswith("fwd") and n.primitive]
    assert convolutions
    for node in convolutions:
        assert f"{node.primitive} {node.src}->{node.dst} {node.name}" in names


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_that_look_at_each_op_still_do(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    runner = runner_of(fast)
    with torch.profiler.profile(acc_events=True) as profile:
        assert runner.run(x) is NotImplemented
        fast(x)
    assert any(event.name.startswith("torchalgo::") for event in profile.events())
    seen, of_module = Seen(), Seen()
    with torch.no_grad():
        with of_module:
            fast._results[0].scripted(x)
        with seen:
            assert runner.run(x) is NotImplemented
            fast(x)
    assert seen.names == of_module.names != []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert runner.run(x) is NotImplemented
    with torch.inference_mode():
        assert runner.run(x) is not NotImplemented
    assert runner.run(x) is not NotImplemented


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.requires_grad_(),
        lambda x: x.to_mkldnn(),
        lambda x: x.to("meta"),
        lambda x: torch.view_as_complex(torch.rand(*x.shape, 2)).conj(),
        lambda x: [x],
        lambda x: 1,
    ],
)
def test_what_is_no_plain_tensor_is_the_modules(
    fast: torchalgo.Optimized, x: torch.Tensor, change: Callable[[torch.Tensor], Any]
) -> None:
    assert runner_of(fast).run(change(x.clone())) is NotImplemented


def test_another_number_of_inputs_is_the_modules(
    fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    assert runner_of(fast).run() is NotImplemented
    assert runner_of(fast).run(x, x) is NotImplemented
    with torch.no_grad():
        assert runner_of(fast).run(x.clone().requires_grad_()) is not NotImplemented


def test_errors_are_the_modules(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    for wrong in (torch.rand(1, 4, 24, 40), torch.rand(24, 40), torch.rand(1, 3, 0, 0)):
        with pytest.raises(RuntimeError) as of_runner:
            runner_of(fast).run(wrong)
        with pytest.raises(RuntimeError) as of_module:
            fast._results[0].scripted(wrong)
        assert str(of_runner.value).removeprefix("torchalgo: ") in str(of_module.value)


def test_a_loaded_file_has_one(fast: torchalgo.Optimized, x: torch.Tensor, tmp_path: Path) -> None:
    fast.save(tmp_path / "net.pt")
    loaded = torchalgo.load(tmp_path / "net.pt")
    assert torch.equal(runner_of(loaded).run(x), fast(x))


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        while bool(y.abs().sum() > 100):
            y = y / 2
        return y


class Dictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.conv(x)}


@pytest.mark.parametrize("model", [Loop, Dictionary])
def test_where_it_cannot_run_the_interpreter_does(model: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = torch.jit.script(model().eval())
    x = torch.rand(1, 3, 20, 20)
    fast = run_plan(net, x)
    assert _C.GraphRunner.make(fast._results[0].scripted._c, []) is None  # type: ignore[attr-defined]
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x))


class Lists(nn.Module):
    """A list that changes behind its first use, one of sizes, and one with a None in it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1)

    def forward(
        self, x: torch.Tensor, index: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        dims = [2]
        once = torch.flip(y, dims)
        dims.append(3)
        return once, torch.flip(y, dims), y.view(y.size(0), -1), y[:, index]


def test_lists_begin_anew_in_each_call() -> None:
    torch.manual_seed(0)
    net = torch.jit.script(Lists().eval())
    inputs = (torch.rand(2, 3, 20, 20), torch.tensor([3, 1]))
    fast = run_plan(net, *inputs)
    runner = runner_of(fast)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(runner.run(*inputs), net(*inputs))


class TakesApart(Loop):
    """Along other axes than the channels, where a part is a view that is planned."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        top, bottom = torch.split(y, 10, 2)
        left, middle, right = torch.chunk(top * bottom, 3, 3)
        first, second = torch.unbind(left + middle + right)
        return first - second


def test_takes_lists_apart() -> None:
    torch.manual_seed(0)
    net = torch.jit.script(TakesApart().eval())
    x = torch.rand(2, 3, 20, 18)
    fast = run_plan(net, x)
    with torch.no_grad():
        torch.testing.assert_close(runner_of(fast).run(x), net(x))
        for wrong in (torch.rand(2, 3, 21, 18), torch.rand(2, 3, 20, 1), torch.rand(3, 3, 20, 18)):
            with pytest.raises(RuntimeError) as of_module:
                fast._results[0].scripted(wrong)
            last = str(of_module.value).strip().splitlines()[-1]
            with pytest.raises(RuntimeError, match=re.escape(last)):
                fast(wrong)


class Talks(Loop):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        print("shape", y.size(0), y.size(2))
        return y


class Scales(Loop):
    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:  # type: ignore[override]
        return self.conv(x) * scale


@pytest.mark.parametrize(
    ("model", "more"), [(Talks, ()), (Scales, (torch.tensor(2.0),)), (Scales, (2.0,))]
)
def test_printing_and_numbers_are_the_modules(
    model: type[nn.Module], more: tuple[Any, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    net = torch.jit.script(model().eval())
    x = torch.rand(1, 3, 20, 20)
    fast = run_plan(net, x, *(float(value) for value in more))
    with torch.no_grad():
        torch.testing.assert_close(fast(x, *more), net(x, *more))
    if model is Talks:
        assert capfd.readouterr().out.endswith("shape 1 20\n" * 2)


class Sub(torch.Tensor):
    pass


def test_a_subclass_of_tensor_stays_one(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        got = fast(x.as_subclass(Sub))
    assert fast.original_runs["input x is a test_runner.Sub"] == 1
    assert isinstance(got, Sub)
    assert type(fast._results[0].scripted(x.as_subclass(Sub))) is Sub


class Selects(Loop):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).select(2, 12)


def test_an_error_of_torchs_own_op_has_its_place_in_the_code() -> None:
    torch.manual_seed(0)
    net = torch.jit.script(Selects().eval())
    fast = run_plan(net, torch.rand(1, 3, 20, 20))
    runner_of(fast)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"Traceback of TorchScript") as of_fast:
        fast(torch.rand(1, 3, 8, 8))
    assert "select(2, 12)" in str(of_fast.value)


def test_a_module_without_planned_ops_has_none(net: Net, x: torch.Tensor) -> None:
    frozen = torch.jit.freeze(torch.jit.script(net))
    assert _C.GraphRunner.make(frozen._c, []) is None
