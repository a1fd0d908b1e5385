# SPDX-License-Identifier: BSD-3-Clause
"""The line of a default run that says how fast the model would be in bf16."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.fake_bench import FakeBench
from support.nets import arguments
from torchalgo import _C
from torchalgo._base.compare_outputs import output_error
from torchalgo._ir.plan import Plan
from torchalgo._ir.problems import has_convolution
from torchalgo._measure import guard
from torchalgo._measure.sampling import Bench
from torchalgo._plan.describe import Describer
from torchalgo._refine import bf16_hint

CALL_US = 5.0  # the call overhead in each predicted cost
F32_US, BF16_US = 95.0, 15.0
LINE = "in bf16, this model is predicted to be"


class Small(nn.Module):
    """Three convolutions and a linear layer."""

    def __init__(self, in_autocast: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.middle = nn.Conv2d(16, 32, 3, padding=1)
        self.top = nn.Conv2d(32, 16, 1)
        self.head = nn.Linear(16, 10)
        self.in_autocast = in_autocast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_autocast is not None and torch.is_autocast_enabled("cpu"):
            return self.in_autocast(x)
        x = torch.relu(self.middle(torch.relu(self.stem(x))))
        return self.head(torch.relu(self.top(x)).mean((2, 3)))  # type: ignore[no-any-return]


X = torch.rand((1, 3, 16, 16), generator=torch.Generator().manual_seed(5))


class Machine(FakeBench):
    """A machine with AMX, whose times are invented."""

    def __init__(self, bf16_us: float = BF16_US, slow: str = "none", slow_us: float = 0) -> None:
        super().__init__(self._cost_ns)
        self._bf16_us, self._slow, self._slow_us = bf16_us, slow, slow_us

    def _cost_ns(self, problem: str, p: _C.Primitive) -> float:
        if not has_convolution(problem):
            return 1.0
        own_us = self._slow_us if self._slow in problem else F32_US
        return 1e3 * (self._bf16_us if _C.rounds_coarsely(problem, p) else own_us)

    def bench(self) -> Bench:
        return dataclasses.replace(super().bench(), now_s=time.monotonic)

    @property
    def in_bf16(self) -> list[tuple[str, str]]:
        """The problems and algorithms that were measured in bf16, in order."""
        tasks = [(problem, _C.Primitive(*primitive)) for problem, *primitive in self.tasks]
        return [(problem, p.name) for problem, p in tasks if _C.rounds_coarsely(problem, p)]


@dataclasses.dataclass
class Told:
    fast: torchalgo.Optimized
    lines: list[str]


Run = Callable[..., Told]


def _timed(plan_ns: float) -> Callable[..., dict[str, list[float]]]:
    def timed(calls: Any, **_: Any) -> dict[str, list[float]]:
        return {name: [plan_ns if name == guard.PLAN else 2e6] * 25 for name in calls}

    return timed


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls optimize on a machine, whose plans are faster than the baselines."""
    own = _C.cpu_device()
    with_amx = _C.Device(
        kind="cpu", name=own.name, isa=own.isa, threads=own.threads, bf16_isa="amx"
    )
    monkeypatch.setattr(_C, "cpu_device", lambda: with_amx)
    monkeypatch.setenv("TORCHALGO_IGNORE_LOAD", "1")
    monkeypatch.setattr(guard, "time_interleaved", _timed(1e6))

    def run(machine: FakeBench, net: nn.Module | None = None, **options: Any) -> Told:
        monkeypatch.setattr(Bench, "on", staticmethod(lambda *_: machine.bench()))
        texts: list[str] = []
        options = {"progress": lambda event: texts.append(event.text), **options}
        fast = torchalgo.optimize(
            net or Small().eval(),
            X,
            **arguments(**{"cost_db": False, "budget_s": 200.0, **options}),
        )
        return Told(fast, [text for text in texts if text.startswith(LINE)])

    return run


def test_the_line_tells_the_predicted_time_and_the_error(run: Run) -> None:
    net, machine = Small().eval(), Machine()
    told = run(machine, net)
    others_us = told.fast.plan.cost_us - 3 * (F32_US + CALL_US)
    assert told.fast.runs == "plan" and 0 < others_us < 100
    speedup = told.fast.plan.cost_us / (others_us + 3 * (BF16_US + CALL_US))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        result = net(X)
    with torch.no_grad():
        error = f"{output_error(result, net(X).double()):.0e}".replace("e-0", "e-")
    assert told.lines == [
        f"{LINE} {speedup:.1f} times as fast, with an error of {error}: pass max_error=1e-2"
    ]
    assert len(machine.in_bf16) == len(set(machine.in_bf16)) == 3
    assert {name for _, name in machine.in_bf16} == {"cpu.bf16_conv"}


def test_it_changes_neither_the_plan_nor_what_tuning_knows(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def facts(plan: Plan, describe: Describer) -> list[Any]:
        return [plan.to_json(), dict(describe.tuning.known), describe.tuning.rules]

    def watched(plan: Plan, prepared: Any, options: Any, describe: Describer, call: Any) -> None:
        seen.append(facts(plan, describe))
        bf16_hint.tell_bf16(plan, prepared, options, describe, call)
        seen.append(facts(plan, describe))

    monkeypatch.setattr("torchalgo._api.optimize.tell_bf16", watched)
    told = run(Machine())
    assert told.lines and seen[0] == seen[1]
    kept = Plan.from_json(seen[0][0])
    assert (told.fast.plan.nodes, told.fast.plan.notes) == (kept.nodes, kept.notes)


@pytest.mark.parametrize("bf16_us", [0.95 * F32_US, 2 * F32_US])
def test_a_small_gain_is_not_told(run: Run, bf16_us: float) -> None:
    machine = Machine(bf16_us)
    assert run(machine).lines == [] and len(machine.in_bf16) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"progress": False},
        {"max_error": 1e-4},
        {"max_error": 1e-2},
        {"overrides": {"top": "aten.conv"}},
        {"max_componentwise_error": 1e-3},
    ],
)
def test_calls_with_other_wishes_are_told_nothing(run: Run, options: dict[str, Any]) -> None:
    machine = Machine()
    assert run(machine, **options).lines == []
    assert machine.in_bf16 == [] or "max_error" in options


def test_layers_that_are_slower_in_bf16_keep_their_type(run: Run) -> None:
    class Mixed(Machine):
        def _cost_ns(self, problem: str, p: _C.Primitive) -> float:
            is_slow = "r1s1" in problem and _C.rounds_coarsely(problem, p)
            return 500e3 if is_slow else super()._cost_ns(problem, p)

    told = run(Mixed())
    saved_us = 2 * (F32_US - BF16_US)
    speedup = told.fast.plan.cost_us / (told.fast.plan.cost_us - saved_us)
    assert len(told.lines) == 1 and told.lines[0].startswith(f"{LINE} {speedup:.1f} times")


def test_without_amx_nothing_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    own, machine = _C.cpu_device(), Machine()
    without = _C.Device(kind="cpu", name=own.name, isa=own.isa, threads=own.threads)
    monkeypatch.setattr(_C, "cpu_device", lambda: without)
    assert run(machine).lines == [] and machine.in_bf16 == []


def test_nothing_is_told_if_tuning_was_stopped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    monkeypatch.setattr("torchalgo._measure.tuning.Tuning.is_stopped", True)
    assert run(machine).lines == [] and machine.in_bf16 == []


def test_nothing_is_told_if_the_baseline_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "time_interleaved", _timed(3e6))
    machine = Machine()
    told = run(machine)
    assert told.fast.runs == "baseline" and told.lines == [] and machine.in_bf16 == []


def test_the_largest_layers_come_first_and_most_of_the_time_is_enough(run: Run) -> None:
    machine = Machine(slow="k32r3s3", slow_us=2000.0)
    (line,) = run(machine).lines
    assert len(machine.in_bf16) == 1 and "k32r3s3" in machine.in_bf16[0][0]
    assert f"{LINE} 9." in line


def test_costs_of_the_database_come_first(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "costs.sqlite3"
    first, second = Machine(), Machine()
    (line,) = run(first, cost_db=path).lines
    assert len(first.in_bf16) == 3
    assert run(second, cost_db=path).lines == [line] and second.tasks == []
    monkeypatch.setattr(bf16_hint, "MOST_S", 0.0)  # no time for a run of the model either
    assert run(second, cost_db=path).lines == [
        line.partition(", with")[0] + ": pass max_error=1e-2"
    ]


def test_nothing_is_measured_for_the_line_alone(run: Run, tmp_path: Path) -> None:
    path, machine = tmp_path / "costs.sqlite3", Machine()
    run(machine, cost_db=path, progress=False)
    again = Machine()
    assert run(again, cost_db=path).lines == [] and again.tasks == []


def test_without_time_nothing_is_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16_hint, "MOST_SHARE", 0.0)
    machine = Machine()
    assert run(machine).lines == [] and machine.in_bf16 == []


def test_ctrl_c_keeps_the_plan(run: Run) -> None:
    class Interrupted(Machine):
        def measure(self, tasks: Sequence[tuple[str, _C.Primitive]], **options: Any) -> list[Any]:
            if any(_C.rounds_coarsely(*task) for task in tasks):
                raise KeyboardInterrupt
            return super().measure(tasks, **options)

    told = run(Interrupted())
    assert told.fast.is_interrupted and told.fast.runs == "plan" and told.lines == []


def test_an_error_above_the_bound_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16_hint, "BF16_ERROR", 1e-6)
    (line,) = run(Machine()).lines
    assert line.endswith(": max_error=1e-6 allows a part")


def _raise(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("no autocast")


def test_a_model_that_refuses_autocast_is_told_no_error(run: Run) -> None:
    (line,) = run(Machine(), Small(_raise).eval()).lines
    assert line.endswith("times as fast: pass max_error=1e-2")


def test_nothing_is_told_of_a_model_whose_results_are_lost_in_bf16(run: Run) -> None:
    assert run(Machine(), Small(lambda x: torch.full((len(x), 10), torch.nan)).eval()).lines == []


@pytest.mark.skipif(not _C.cpu_device().bf16_isa, reason="needs a processor with bf16")
def test_it_measures_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "time_interleaved", _timed(1e6))
    monkeypatch.setenv("TORCHALGO_IGNORE_LOAD", "1")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(256, 512, 1), nn.ReLU()).eval()  # no Winograd
    texts: list[str] = []
    settings = torchalgo.Settings(cost_db=False, progress=lambda event: texts.append(event.text))
    torchalgo.optimize(net, torch.rand(1, 256, 28, 28), settings=settings)
    (line,) = [text for text in texts if text.startswith(LINE)]
    assert 1.15 <= float(line.removeprefix(LINE).split()[0]) < 16
    assert 1e-4 < float(line.partition("an error of ")[2].partition(":")[0]) < 1e-2
