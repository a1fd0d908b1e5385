# SPDX-License-Identifier: BSD-3-Clause
"""Fronts of time and error: the plans under several bounds of the outputs' error.

Times are drawn, and checks and outputs are real. Every machine has linear layers with weights of 16
bits; on CPUs that multiply in bf16, layers in bf16 are added.
"""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.fake_bench import FakeBench, fake_optimize, spread
from support.nets import arguments
from torchalgo import _C
from torchalgo._base.compare_outputs import output_error
from torchalgo._capture import settings
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.plan.text import coarse_type
from torchalgo._plan import preparation
from torchalgo._refine import binding, refinement
from torchalgo_cli import main


class Net(nn.Module):
    """A convolution, and linear layers in a row with the same error but not the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        sizes = (16, 32, 64, 128, 64, 32, 10)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.conv(x)).mean((2, 3))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))


def drawn_ns(problem: str, p: _C.Primitive) -> float:
    """Types that round take a third of the time. Changes of layout take next to none."""
    if problem.startswith("transform_"):
        return 10.0
    size = _C.flop_count(problem) if problem.startswith(("fwd_", "linear_")) else 1000.0
    return spread(problem, p) * size / 1e3 / (3 if _C.rounds_coarsely(problem, p) else 1)


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    return fake_optimize(monkeypatch, drawn_ns)


def planned(**more: Any) -> torchalgo.Optimized:
    return torchalgo.optimize(net(), X, **arguments(cost_db=False, **more))


def coarse(plan: torchalgo.Plan) -> list[str]:
    return [node.name for node in plan.nodes if coarse_type(node)]


@pytest.mark.parametrize("max_error", [1e-5, 1e-2])
def test_the_front_goes_from_the_fastest_types_to_those_of_the_model(max_error: float) -> None:
    front = torchalgo.pareto(planned(max_error=max_error), "error", max_points=6)
    assert 4 <= len(front) <= 6
    assert not coarse(front[-1].plan) and front[-1].max_error == pytest.approx(1e-5)
    counts = [len(coarse(point.plan)) for point in front]
    assert counts[0] >= 6 and len(set(counts)) >= 3
    for point in front:
        assert point.error is not None and point.max_error is not None
        assert point.plan.predicted_error is not None
        assert point.error <= point.max_error and point.plan.predicted_error <= point.max_error
    bounds = [point.max_error or 0.0 for point in front]
    assert bounds == sorted(set(bounds), reverse=True)
    assert (front[0].error or 0.0) > 1e-4 > 1e-5 > (front[-1].error or 0.0)
    assert [point.is_proven for point in front] == [True] + [False] * (len(front) - 1)
    assert [p.us for p in front] == sorted({p.us for p in front})


def test_each_point_is_the_plan_of_optimize_under_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "LEAST_COARSE_ERROR", 1e-6)  # else optimize allows no types there
    monkeypatch.setattr(refinement, "MOST_FOR_OWN_KERNELS", 0.0)  # else a dearer plan may run
    front = planned().pareto("error", max_points=6)
    assert len(front) >= 4
    for point in front:
        fast = planned(max_error=point.max_error)
        assert fast.plan.cost_us == pytest.approx(point.us)


def test_all_points_together_measure_what_two_do(
    drawn: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, find = _C.cpu_device(), _C.find_candidates
    described = _C.Device(kind="cpu", name=own.name, isa=own.isa, threads=own.threads)

    def find_there(graph: _C.Graph, most_bytes: int, _: Any, *rest: Any, **more: Any) -> Any:
        return find(graph, most_bytes, described, *rest, **more)

    # Each machine has the candidates of one that does not multiply in bf16.
    monkeypatch.setattr(_C, "find_candidates", find_there)
    fast = planned()
    known, counts, lengths = len(drawn.tasks), [], []
    for most in (2, 8):
        before = len(drawn.tasks)
        lengths.append(len(fast.pareto("error", max_points=most)))
        counts.append(len(drawn.tasks) - before)
    assert lengths[0] == 2 < lengths[1]
    assert 0 < counts[0] <= counts[1] < 1.5 * counts[0]
    of_call, again = set(drawn.tasks[:known]), set(drawn.tasks[known:])
    assert len(of_call & again) < len(of_call) / 4  # a few that are chosen now are timed again


def test_what_the_database_has_is_not_measured_again(drawn: FakeBench, tmp_path: Path) -> None:
    fast = torchalgo.optimize(net(), X, **arguments(cost_db=tmp_path / "costs.db"))
    first = fast.pareto("error", max_points=4)
    calls = drawn.calls
    assert str(fast.pareto("error", max_points=4)) == str(first)
    assert drawn.calls == calls


def test_without_time_to_measure_a_front_has_what_is_known(drawn: FakeBench) -> None:
    fast, calls = planned(), drawn.calls
    front = fast.pareto("error", time_limit_s=1e-9)
    assert drawn.calls <= calls + 1 and not coarse(front[-1].plan)


def test_the_plans_of_points_can_be_applied() -> None:
    for point in planned().pareto("error", max_points=4):
        applied = torchalgo.optimize(net(), X, plan=point.plan, **arguments(run_untimed=True))
        assert applied.plan.rel_error is None or applied.runs == "plan"
        with torch.no_grad():
            error = output_error(applied(X), net()(X))
        assert error == pytest.approx(point.error, rel=1e-3)


def test_a_front_is_the_same_inside_of_autocast() -> None:
    fast = planned()
    outside = str(fast.pareto("error", max_points=4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert str(fast.pareto("error", max_points=4)) == outside


def test_a_limit_of_weight_bytes_holds_for_all_points() -> None:
    free = planned().pareto("error", max_points=4)
    limit = free[0].bytes // 2
    front = planned(weight_limit_bytes=limit).pareto("error", max_points=4)
    assert all(point.bytes <= limit < free[0].bytes for point in front)


def test_the_table_has_the_errors_and_the_bound() -> None:
    front = planned().pareto("error", max_points=3)
    head, _, *lines = str(front).splitlines()
    assert head.split() == [
        "time,",
        "us",
        "error",
        "predicted",
        "max_error",
        "x",
        "fastest",
        "proven",
    ]
    assert len(lines) == len(front) == 3
    for line, point in zip(lines, front, strict=True):
        errors = (point.error, point.plan.predicted_error, point.max_error)
        assert line.split()[1:4] == [f"{error:.1e}" for error in errors]


def test_a_front_keeps_no_module_and_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []

    def kept(function: Callable[..., Any], part: Callable[[Any], Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            alive.append(weakref.ref(part(result)))
            return result

        return called

    rewrite = binding.rewrite_with_origins
    monkeypatch.setattr(binding, "rewrite_with_origins", kept(rewrite, lambda found: found[0]))
    prepare = preparation.prepare
    monkeypatch.setattr(preparation, "prepare", kept(prepare, lambda prepared: prepared))
    fast = planned()
    of_call = len(alive)
    front = fast.pareto("error", max_points=4)
    assert of_call >= 2 and len(alive) >= of_call + len(front)
    gc.collect()
    assert not any(ref() for ref in alive[of_call:])  # the modules of the points
    del fast
    gc.collect()
    assert not any(ref() for ref in alive)
    assert front[0].plan.nodes


def test_a_front_without_a_right_kind_or_size_is_refused() -> None:
    fast = planned()
    with pytest.raises(torchalgo.Error, match=r"over='speed', expected .* or 'error'"):
        fast.pareto("speed")  # type: ignore[arg-type]
    with pytest.raises(torchalgo.Error, match="max_points=1, expected 2 or more"):
        fast.pareto("error", max_points=1)


def test_the_command_prints_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.pt"
    torch.jit.save(freeze_model(net(), (X,)), str(path))
    args = ["explain", str(path), "--input", "2x3x8x8", "--over", "error"]
    assert main([*args, "--quiet", "--no-cost-db", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) > 1
    assert all(row["error"] <= row["max_error"] for row in rows)
    assert set(rows[0]) == {"us", "error", "predicted_error", "max_error", "is_proven"}


def test_the_report_lists_the_errors_of_a_front(tmp_path: Path) -> None:
    fast = planned()
    front = fast.pareto("error", max_points=4)
    fast.report(tmp_path / "r.html", front=front)
    page = (tmp_path / "r.html").read_text()
    assert "Time and error" in page and "Time and memory" not in page
    assert str(front) in page
