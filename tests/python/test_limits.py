# SPDX-License-Identifier: BSD-3-Clause
"""Limits of a whole plan, from optimize's arguments to the bytes that the module really holds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.fake_bench import FakeBench, fake_optimize
from support.nets import arguments, run_plan
from torchalgo import _C
from torchalgo._base.compare_outputs import output_error
from torchalgo._capture.freeze import freeze_model
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.limits import Limits, error_of
from torchalgo._refine.refinement import MOST_FOR_OWN_KERNELS
from torchalgo_cli import main

MICROSECONDS = {"aten.": 100.0, "cpu.winograd": 10.0, "cpu.": 40.0}  # per convolution


def small_net() -> nn.Module:
    """Five 3x3 convolutions that Winograd can run, each of its own size."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    sizes = [16, 32, 48, 32, 64, 16]
    for c, k in itertools.pairwise(sizes):
        layers += [nn.Conv2d(c, k, 3, padding=1, bias=False), nn.ReLU()]
    return nn.Sequential(*layers).eval()


X = torch.rand(1, 16, 16, 16, generator=torch.Generator().manual_seed(2))


def invented_ns(problem: str, primitive: _C.Primitive) -> float:
    """The same on every machine: Winograd before our other rows before ATen, as multiples of work;
    a fused operation costs little more than alone, and what moves memory costs little."""
    if not problem.startswith("fwd_"):
        return 500.0
    us = next(us for name, us in MICROSECONDS.items() if primitive.name.startswith(name))
    if "f2x2" in primitive.name:
        us *= 1.5
    return us * 1e3 * _C.flop_count(problem) / 1e7 + 10 * problem.count("+")


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    return fake_optimize(monkeypatch, invented_ns)


def planned_bytes(plan: torchalgo.Plan) -> int:
    return sum(node.packed_bytes or 0 for node in plan.nodes)


def winograds(plan: torchalgo.Plan) -> list[str]:
    return [node.name for node in plan.nodes if "winograd" in node.primitive]


@pytest.mark.usefixtures("invented")
def test_tighter_weight_limits_cost_more_and_are_kept_by_the_memory_really_held() -> None:
    free = run_plan(small_net(), X)
    most = free.plan.weight_bytes
    assert most == planned_bytes(free.plan) == free.weight_bytes
    assert most is not None and most > 0
    assert len(winograds(free.plan)) == 5
    costs = [free.plan.cost_ticks]
    for share in (0.9, 0.6, 0.35, 0.1, 0.0):
        limit = int(share * most)
        fast = run_plan(small_net(), X, weight_limit_bytes=limit)
        assert fast.plan.status == "optimal"
        assert fast.plan.cost_ticks == fast.plan.lower_bound_ticks
        assert fast.weight_bytes == fast.plan.weight_bytes == planned_bytes(fast.plan)
        assert fast.weight_bytes <= limit
        assert fast.plan.limits == {"weight bytes": limit}
        assert fast.plan.comparisons["without_limits"] == free.plan.cost_us
        assert output_error(fast(X), small_net()(X)) <= 1e-5
        costs.append(fast.plan.cost_ticks)
    assert costs == sorted(costs)
    assert len(set(costs)) > 3


@pytest.mark.usefixtures("invented")
def test_a_limit_that_does_not_bind_changes_nothing_and_leaves_the_proof() -> None:
    free = torchalgo.optimize(small_net(), X, settings=torchalgo.Settings(progress=False))
    limit = free.plan.weight_bytes
    fast = torchalgo.optimize(
        small_net(), X, settings=torchalgo.Settings(progress=False, weight_limit_bytes=limit)
    )
    assert fast.plan.nodes == free.plan.nodes
    assert [n.regret_us for n in fast.plan.nodes if n.runner_up]
    torchalgo.check_plan(fast.plan.with_proof())


@pytest.mark.usefixtures("invented")
def test_a_limit_that_binds_says_that_it_has_no_certificate_and_holds_for_overrides() -> None:
    free = torchalgo.optimize(small_net(), X, settings=torchalgo.Settings(progress=False))
    assert free.plan.weight_bytes is not None
    limit = free.plan.weight_bytes // 2
    fast = torchalgo.optimize(
        small_net(), X, settings=torchalgo.Settings(progress=False, weight_limit_bytes=limit)
    )
    assert "Lagrangian" in fast.plan.method
    assert not any(node.runner_up for node in fast.plan.nodes)
    assert_says_why_it_is_not_proven(fast.plan, "the limit of weight bytes decides")
    other = fast.plan.with_overrides({"0": "aten.conv"})
    assert planned_bytes(other) <= limit
    assert other.unproven == fast.plan.unproven
    assert other.cost_ticks >= fast.plan.cost_ticks
    assert f"limit: weight bytes of at most {limit:g}" in str(fast.plan)


@pytest.mark.usefixtures("invented")
def test_an_impossible_weight_limit_says_the_least_possible_and_who_needs_it() -> None:
    least = {}
    for index in (0, 2, 4, 6, 8):
        problem = torchalgo.candidates(
            small_net()[index],
            torch.rand(  # type: ignore[index]
                1, small_net()[index].in_channels, 16, 16
            ),
        )[0]  # type: ignore[index]
        least[str(index)] = min(
            o.packed_bytes for o in problem.offered if o.primitive.startswith("cpu.winograd_f2x2")
        )
    total, worst = sum(least.values()), max(least, key=lambda name: least[name])
    with pytest.raises(
        torchalgo.Error,
        match=rf"weight bytes of at most 1000 cannot be kept: .* at least {total} \({worst} ",
    ):
        torchalgo.optimize(
            small_net(), X, settings=torchalgo.Settings(progress=False, weight_limit_bytes=1000),
            overrides={"*": "cpu.winograd_f2x2_3x3"},
        )  # fmt: skip


@pytest.mark.parametrize("value", [-1, 1.5, "20MB", True])
def test_a_weight_limit_is_a_number_of_bytes(value: Any) -> None:
    with pytest.raises(torchalgo.Error, match=r"weight_limit_bytes=.*expected"):
        torchalgo.optimize(small_net(), X, settings=torchalgo.Settings(weight_limit_bytes=value))


def assert_says_why_it_is_not_proven(plan: torchalgo.Plan, why: str) -> None:
    text = " ".join(str(plan).split())
    assert f"not proven: {why}; the best found for these measured, additive costs" in text
    assert "optimal for" not in text
    assert plan.unproven == json.loads(plan.to_json())["unproven"] == why
    assert str(torchalgo.Plan.from_json(plan.to_json())) == str(plan)
    with pytest.raises(torchalgo.Error, match="with_proof: the plan was made under a limit"):
        plan.with_proof()


def errors_of(plan: torchalgo.Plan) -> dict[str, float]:
    primitives = {n.problem: _C.Primitive(n.primitive, n.src, n.dst) for n in plan.nodes
                  if n.primitive}  # fmt: skip
    return {
        problem: _C.check_primitives(problem, [primitive], 1.0)[0][0]
        for problem, primitive in primitives.items()
    }


@pytest.mark.usefixtures("invented")
def test_outputs_that_miss_their_bound_cost_some_layers_winograd_and_not_all() -> None:
    free = run_plan(small_net(), X)
    frozen = freeze_model(small_net(), (X,))
    missed = output_error(free(X), frozen(X))
    bound = 0.8 * missed
    assert max(errors_of(free.plan).values()) < bound, "no single layer is out of bounds"
    fast = run_plan(small_net(), X, max_error=bound)
    assert output_error(fast(X), frozen(X)) <= bound
    assert fast.plan.rel_error is not None and fast.plan.rel_error <= bound
    assert fast.plan.cost_ticks > free.plan.cost_ticks
    assert len(winograds(fast.plan)) > 0
    assert [n.primitive for n in fast.plan.nodes] != [n.primitive for n in free.plan.nodes]
    assert "sum of squared errors" in fast.plan.limits
    assert fast.plan.status == "optimal"
    assert_says_why_it_is_not_proven(fast.plan, "the error bound decides")
    loose = run_plan(small_net(), X, max_error=2 * missed)
    assert not loose.plan.unproven and "not proven" not in str(loose.plan)
    torchalgo.check_plan(loose.plan.with_proof())


@pytest.mark.usefixtures("invented")
def test_both_limits_hold_at_once() -> None:
    free = run_plan(small_net(), X)
    frozen = freeze_model(small_net(), (X,))
    assert free.plan.weight_bytes is not None
    limit, bound = free.plan.weight_bytes // 2, 0.8 * output_error(free(X), frozen(X))
    fast = run_plan(small_net(), X, weight_limit_bytes=limit, max_error=bound)
    assert fast.weight_bytes <= limit
    assert output_error(fast(X), frozen(X)) <= bound
    assert fast.plan.status == "optimal"


@pytest.fixture(scope="module")
def imported() -> _C.Imported:
    return _C.import_graph(freeze_model(small_net(), (X,))._c, (X,))


def make_limits(imported: _C.Imported, fake: FakeBench, limit: int | None = None) -> Limits:
    found = _C.find_candidates(imported.graph)
    tuning = Tuning(imported.graph, found, {}, TuneSettings(1e-5), bench=fake.bench())
    return Limits.of(tuning, limit)


def test_each_miss_excludes_its_plan_until_no_error_of_ours_is_left(imported: _C.Imported) -> None:
    fake = FakeBench(invented_ns)
    fake.check_errors = {name: 2e-6 for name, _ in _C.algorithms() if not name.startswith("aten.")}
    limits = make_limits(imported, fake)
    seen: list[list[tuple[str, str, str]]] = []
    costs = []
    while True:
        native = limits.settle()
        seen.append([(n.primitive.name, n.primitive.src, n.problem) for n in native.nodes])
        costs.append(native.cost)
        total = limits.predict(native).error
        tighter = limits.tightened(native, 1e-3, 1e-5)  # far beyond what any sum could explain
        if tighter is None:
            break
        limits = tighter
        assert total > 0
    assert total == 0
    assert costs == sorted(costs)
    assert all(a != b for a, b in itertools.pairwise(seen))
    assert len(seen) <= 11
    assert limits.tightened(native, float("nan"), 1e-5) is None


def test_the_layers_that_give_way_are_the_cheapest_that_keep_the_sum_of_squares(
    imported: _C.Imported,
) -> None:
    fake = FakeBench(invented_ns)
    names = [p.name for list_ in _C.find_candidates(imported.graph).by_anchor for p in
             (c.primitive for c in list_)]  # fmt: skip
    fake.check_errors = {n: 3e-6 if "f4x4" in n else 1e-6 if "f2x2" in n else 1e-7 for n in names}
    limits = make_limits(imported, fake)
    first = limits.settle()
    total = limits.predict(first).error
    tighter = limits.tightened(first, total, 0.6 * total)  # a gain of 1
    assert tighter is not None and limits.settle().cost == first.cost
    native = tighter.settle()
    kept = limits.predict(native).error
    assert kept <= 0.6 * total
    # Every plan that costs less, as far as single layers tell: swapping any one back breaks the sum
    # or changes nothing.
    firsts = {n.name: n for n in first.nodes if n.primitive.name}
    for node in native.nodes:
        before = firsts.get(node.name)
        if not node.primitive.name or before is None or before.cost >= node.cost:
            continue
        swapped = kept**2 - error_of(limits.tuning.errors, node.problem, node.primitive) ** 2
        swapped += error_of(limits.tuning.errors, before.problem, before.primitive) ** 2
        assert swapped > (0.6 * total) ** 2 * (1 - 1e-6)


@pytest.mark.usefixtures("invented")
def test_a_bound_below_the_roundings_of_ours_still_gives_outputs_that_keep_it() -> None:
    """Of single layers 4e-7 is enough for ATen and not for Winograd."""
    fast = torchalgo.optimize(small_net(), X, **arguments(max_error=4e-7))
    frozen = freeze_model(small_net(), (X,))
    assert fast.runs == "baseline" or output_error(fast(X), frozen(X)) <= 4e-7


FRONTS: Sequence[str] = ("workspace", "weights")


@pytest.mark.usefixtures("invented")
@pytest.mark.parametrize("over", FRONTS)
def test_the_front_of_a_result_starts_at_its_plan_and_its_points_can_be_applied(
    over: Any,
) -> None:
    fast = torchalgo.optimize(small_net(), X, settings=torchalgo.Settings(progress=False))
    front = torchalgo.pareto(fast, over=over, max_points=4)
    assert front[0].us == pytest.approx(fast.plan.cost_us, abs=0.01)
    assert [p.us for p in front] == sorted(p.us for p in front)
    assert [p.bytes for p in front] == sorted((p.bytes for p in front), reverse=True)
    assert len(front) > 1 and all(p.is_proven for p in front)
    assert over in str(front).splitlines()[0]
    assert len(str(front).splitlines()) == 2 + len(front)
    frozen = freeze_model(small_net(), (X,))
    for point in front:
        plan: torchalgo.Plan = point.plan
        applied = torchalgo.optimize(
            small_net(), X, plan=plan, settings=torchalgo.Settings(progress=False)
        )
        assert applied.runs == "plan"
        assert output_error(applied(X), frozen(X)) <= 1e-5
        assert (plan.workspace_bytes if over == "workspace" else plan.weight_bytes) == point.bytes
        if over == "weights":
            assert applied.weight_bytes == point.bytes


@pytest.mark.usefixtures("invented")
@pytest.mark.parametrize("over", FRONTS)
def test_without_time_a_front_has_the_plans_that_were_found(over: Any) -> None:
    fast = torchalgo.optimize(small_net(), X, settings=torchalgo.Settings(progress=False))
    front = torchalgo.pareto(fast, over=over, time_limit_s=0)
    assert len(front) >= 1


@pytest.mark.usefixtures("invented")
def test_a_front_measures_nothing(invented: FakeBench) -> None:
    fast = torchalgo.optimize(small_net(), X, settings=torchalgo.Settings(progress=False))
    calls = invented.calls
    fast.pareto("weights")
    fast.pareto()
    assert invented.calls == calls


@pytest.mark.usefixtures("invented")
def test_a_loaded_module_has_no_front_and_says_why(tmp_path: Path) -> None:
    fast = torchalgo.optimize(small_net(), X, settings=torchalgo.Settings(progress=False))
    fast.save(tmp_path / "net.pt")
    with pytest.raises(torchalgo.Error, match="pareto: this module was loaded"):
        torchalgo.load(tmp_path / "net.pt").pareto()


def test_candidates_tell_what_packing_adds() -> None:
    (layer,) = torchalgo.candidates("fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1")
    packed = {(o.primitive, o.src): o.packed_bytes for o in layer.offered}
    assert packed["aten.conv", "nchw"] == 0
    assert packed["aten.conv", "nhwc"] == 64 * 64 * 9 * 4
    assert packed["cpu.winograd_f4x4_3x3.t14", "nChw16c"] == 64 * 64 * 36 * 4 + 64 * 4
    assert packed["cpu.winograd_f2x2_3x3.t14", "nChw16c"] == 64 * 64 * 16 * 4 + 64 * 4
    assert "+590 kB" in str(layer)


def test_a_plan_written_before_bytes_were_known_is_read(fast: torchalgo.Optimized) -> None:
    data = json.loads(fast.plan.to_json())
    for field in ("weight_bytes", "plain_weight_bytes", "workspace_bytes", "limits"):
        del data[field]
    for node in data["nodes"]:
        del node["packed_bytes"]
    old = torchalgo.Plan.from_json(json.dumps(data))
    assert old.weight_bytes is None and old.nodes[0].packed_bytes is None
    assert "packed weights" not in str(old)


def test_weights_of_one_module_called_twice_are_packed_twice() -> None:
    """The runtime packs per call in the graph, and the plan says so."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.conv(self.conv(x))
            return y

    force: Callable[[nn.Module], torchalgo.Optimized] = lambda m: run_plan(  # noqa: E731
        m.eval(), X, overrides={"*": "cpu.winograd_f2x2_3x3"}
    )
    twice = force(Twice())
    assert len(winograds(twice.plan)) == 2
    assert twice.weight_bytes == twice.plan.weight_bytes == 2 * (16 * 16 * 16 * 4 + 16 * 4)


@pytest.mark.usefixtures("invented")
def test_the_command_prints_a_front(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.pt"
    torch.jit.save(freeze_model(small_net(), (X,)), str(path))
    args = ["explain", str(path), "--input", "1x16x16x16", "--over", "weights", "--quiet"]
    assert main([*args, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    sizes = [row["bytes"] for row in rows]
    assert 1 < len(rows) <= 16 and len(set(sizes)) == len(rows)
    assert main(args) == 0
    assert len(capsys.readouterr().out.splitlines()) > len(rows)


@pytest.mark.usefixtures("invented")
def test_the_command_takes_a_weight_limit(tmp_path: Path) -> None:
    path, plan = tmp_path / "net.pt", tmp_path / "plan.json"
    torch.jit.save(freeze_model(small_net(), (X,)), str(path))
    args = ["optimize", str(path), "--input", "1x16x16x16", "-o", str(tmp_path / "fast.pt")]
    assert main([*args, "--plan-out", str(plan), "--quiet", "--weight-limit", "100kB"]) == 0
    bytes_ = torchalgo.load_plan(plan).weight_bytes
    assert bytes_ is not None and 0 < bytes_ <= 100_000
    with pytest.raises(SystemExit):
        main([*args, "--weight-limit", "a lot"])


@pytest.mark.usefixtures("invented")
@pytest.mark.parametrize(
    ("share", "threads", "is_own"), [(0.95, 2, True), (0.7, 2, False), (0.95, 1, False)]
)
def test_own_kernels_are_preferred_where_they_cost_little_and_threads_may_wait(
    invented: FakeBench,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    threads: int,
    is_own: bool,
) -> None:
    """PyTorch needs `share` of our best time for one of five layers, of about equal work."""

    def cost_ns(problem: str, primitive: _C.Primitive) -> float:
        if "_k48" in problem and not _C.has_own_kernel(primitive.name):
            return share * invented_ns(problem, _C.Primitive("cpu.winograd", "nchw", "nchw"))
        return invented_ns(problem, primitive)

    invented.cost_ns = cost_ns
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    plan = run_plan(small_net(), X).plan
    calls = [n.primitive for n in plan.nodes if n.primitive]
    calls += [change.primitive for change in plan.transforms]
    assert all(map(_C.has_own_kernel, calls)) == is_own
    limits = {"layers on PyTorch's threads": 0.0} if is_own else {}
    assert plan.limits == limits
    if is_own:
        ratio = plan.cost_us / plan.comparisons["without_limits"]
        assert 1.0 < ratio <= MOST_FOR_OWN_KERNELS
        assert plan.status == "optimal"
        assert "limit: layers on PyTorch's threads of at most 0" in str(plan)
        torchalgo.check_plan(plan.with_proof())
        forced = plan.with_overrides({"4": "aten.conv"})
        assert {n.name: n.primitive for n in forced.nodes}["4"] == "aten.conv"
        assert not forced.limits


def test_what_calls_torch_is_no_own_kernel() -> None:
    names = [name for name, _ in _C.algorithms()]
    own = {name for name in names if _C.has_own_kernel(name)}
    assert {"cpu.conv1x1", "layout.tiled", "view.concat"} <= own
    assert {"aten.conv", "cpu.fft", "layout.aten"} <= {*names} - own
    assert not any(name.startswith(("aten.", "cudnn")) for name in own)
    assert _C.has_own_kernel("cpu.winograd_f4x4_3x3.t14")
    assert not _C.has_own_kernel("cpu.fft.t32")
    assert not _C.has_own_kernel("no.such")
