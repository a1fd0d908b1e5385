# SPDX-License-Identifier: BSD-3-Clause
"""optimize with objective="energy" from end to end, with a meter that is a clock."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.nets import arguments
from torchalgo import _C
from torchalgo._base.stats import cost_of_samples
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.costs import TICKS_PER_NS, Key
from torchalgo._ir.plan import TICKS_PER_US, GuardVerdict, Plan, value_of
from torchalgo._measure import meters
from torchalgo._measure.energy_bench import EnergyBench
from torchalgo._measure.guard import energy_verdict, meter_interleaved
from torchalgo._measure.sampling import Bench
from torchalgo_cli import main

SHAPE = (1, 3, 12, 12)
WATTS = 20


class ClockMeter:
    """A machine that always takes 20 W: then the energy of a run is its time times that."""

    name, covers, interval_s, step_uj = "clock", "20 W", 2e-5, 0.1

    def read_uj(self) -> int:
        return time.perf_counter_ns() * WATTS // 1000


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHALGO_ISOLATE", "0")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextlib.contextmanager
def use(meter: meters.Meter) -> Iterator[None]:
    """Makes `meter` that of each device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meters, "find_meter", lambda *_: meter)
        yield


def make_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1),
    ).eval()


def run(objective: str, **options: Any) -> torchalgo.Optimized:
    with use(ClockMeter()):
        return torchalgo.optimize(
            make_net(),
            (torch.rand(SHAPE),),
            objective=objective,
            **arguments(**options),
        )


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("energy") / "costs.sqlite3"


@pytest.fixture
def leanest(database: Path) -> torchalgo.Optimized:
    return run("energy", cost_db=database)


def test_a_plan_for_energy_says_what_it_takes_and_how_long(leanest: Any) -> None:
    plan = leanest.plan
    assert (plan.objective, plan.status) == ("energy", "optimal")
    assert plan.energy.meter == "clock"
    assert plan.energy.cost_uj == plan.energy.lower_bound > 0
    ran = [n for n in plan.nodes if n.primitive and not _C.is_view(n.primitive)]
    assert sum(n.predicted_uj for n in [*ran, *plan.transforms]) == pytest.approx(
        plan.energy.cost_uj, abs=0.1
    )
    for node in ran:
        # Energy and time are of different calls, so they agree in their units only.
        assert 0.1 < node.predicted_uj / (WATTS * node.predicted_us) < 10
        assert node.regret_us is None
    assert plan.lower_bound_us == 0.0 and plan.cost_us > 0
    assert {"fastest", "local_optimum", "aten_only"} <= set(plan.comparisons)
    assert min(plan.comparisons.values()) >= plan.energy.cost_uj


def test_what_is_printed_of_an_energy_has_its_unit(leanest: Any) -> None:
    text = str(leanest.plan)
    head = text.splitlines()[0]
    assert "uJ" in head and "regret uJ" in head and " us" not in head
    assert " mJ in " in text and " W) by clock" in text
    compared = text.split("other plans at the same costs:")[1].splitlines()[1]
    assert compared.split("(")[0].rstrip().endswith(" mJ")
    assert "guard: energy " in text and "tied within noise" in text


def test_a_report_has_the_unit_of_the_plan(leanest: Any, tmp_path: Path) -> None:
    leanest.report(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert 'data-sort="number">uJ</th>' in page and 'data-sort="number">us</th>' not in page
    node = next(n for n in leanest.plan.nodes if n.predicted_uj)
    assert f'<td class="n">{node.predicted_uj:.1f}</td>' in page


def test_a_plan_for_energy_comes_back_from_its_file(leanest: Any) -> None:
    again = Plan.from_json(leanest.plan.to_json())
    assert again == leanest.plan
    x = torch.rand(SHAPE)
    applied = torchalgo.optimize(
        make_net(), (x,), plan=again, settings=torchalgo.Settings(progress=False)
    )
    torch.testing.assert_close(applied(x), make_net()(x), rtol=1e-4, atol=1e-5)


def test_a_file_for_an_objective_that_is_gone_says_so(leanest: Any) -> None:
    text = leanest.plan.to_json().replace('"objective": "energy"', '"objective": "edp"')
    with pytest.raises(torchalgo.Error, match=r"latency, energy; got \"edp\", which is no longer"):
        Plan.from_json(text)


def test_a_plan_for_latency_has_nothing_of_energy_in_its_file(database: Path) -> None:
    plan = run("latency", cost_db=database).plan
    assert plan.energy is None and plan.objective == "latency"
    for word in ("energy", "objective", "_uj"):
        assert word not in plan.to_json()


def test_a_second_run_measures_nothing_and_does_not_compare_again(
    leanest: Any, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("it measures")

    monkeypatch.setattr("torchalgo._measure.energy_bench.EnergyBench.measure", refuse)
    monkeypatch.setattr("torchalgo._measure.guard.meter_interleaved", refuse)
    again = run("energy", cost_db=database)
    assert again.plan.energy == leanest.plan.energy
    assert again.plan.nodes == leanest.plan.nodes
    first, second = leanest.plan.guard, again.plan.guard
    assert second.timed_on
    assert dataclasses.replace(second, timed_on=first.timed_on) == first
    assert run("latency", cost_db=False, plan=leanest.plan).plan.objective == "energy"


def test_times_of_the_same_runs_lie_where_a_plan_for_latency_finds_them(
    leanest: Any, database: Path
) -> None:
    with CostStore.open(database) as store:
        costs = DeviceCosts.of(store)
        times, energies = costs.read(), costs.for_energy("clock").read()
    ran = [n for n in leanest.plan.nodes if n.primitive and not _C.is_view(n.primitive)]
    keys = {Key(n.problem, n.primitive, n.src, n.dst): n for n in ran}
    assert keys and set(keys) <= set(energies) <= set(times)
    for key, node in keys.items():
        assert energies[key].ticks == node.ticks
        assert round(times[key].ticks / TICKS_PER_US, 3) == node.predicted_us


def test_energies_of_another_meter_are_a_miss(
    leanest: Any, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(ClockMeter):
        name = "another"

    ran = []
    measure = EnergyBench.measure

    def watch(self: Any, tasks: Any, **options: Any) -> Any:
        ran.extend(tasks)
        return measure(self, tasks, **options)

    monkeypatch.setattr("torchalgo._measure.energy_bench.EnergyBench.measure", watch)
    with use(Other()):
        plan = torchalgo.optimize(
            make_net(),
            (torch.rand(SHAPE),),
            objective="energy",
            settings=torchalgo.Settings(cost_db=database, progress=False),
        ).plan
    assert ran and plan.energy is not None and plan.energy.meter == "another"


def test_overrides_are_obeyed_for_the_same_objective(leanest: Any) -> None:
    plan = leanest.plan.with_overrides({"0": "aten.conv"})
    assert plan.objective == "energy"
    assert next(n for n in plan.nodes if n.name == "0").primitive == "aten.conv"
    assert value_of(plan) >= value_of(leanest.plan) * (1 - 1e-6)


def test_the_proof_of_an_energy_is_checked_in_its_unit(leanest: Any) -> None:
    plan = leanest.plan.with_proof()
    torchalgo.check_plan(plan)
    text = plan.to_json().replace(
        f'"cost_uj": {plan.energy.cost_uj}', f'"cost_uj": {plan.energy.cost_uj / 2}'
    )
    with pytest.raises(torchalgo.Error, match="ticks are not"):
        torchalgo.check_plan(text)


def test_a_front_of_energies_is_refused_with_the_reason(leanest: Any) -> None:
    with pytest.raises(torchalgo.Error, match=r"pareto: .*objective='latency'"):
        leanest.pareto()


def test_a_limit_of_weights_is_kept(database: Path) -> None:
    plan = run("energy", cost_db=database, weight_limit_bytes=1000).plan
    assert plan.weight_bytes is not None and plan.weight_bytes <= 1000
    assert "without_limits" in plan.comparisons


def test_a_spent_budget_still_gives_a_plan_of_what_was_measured() -> None:
    fast = run("energy", cost_db=False, budget_s=1e-3)
    assert "out of budget" in fast.plan.method
    x = torch.rand(SHAPE)
    torch.testing.assert_close(fast(x), make_net()(x), rtol=1e-4, atol=1e-5)


def test_without_a_meter_it_says_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters.RaplMeter.__init__, "__defaults__", (tmp_path / "powercap",))
    with pytest.raises(torchalgo.Error, match=r"no meter: looked for.*RAPL.*objective='latency'"):
        torchalgo.optimize(
            make_net(),
            (torch.rand(SHAPE),),
            objective="energy",
            settings=torchalgo.Settings(cost_db=False, progress=False),
        )


@pytest.mark.parametrize("name", ["speed", "edp"])
def test_an_unknown_objective_is_refused(name: Any) -> None:
    with pytest.raises(
        torchalgo.Error, match=f"objective='{name}', expected one of 'latency', 'energy'"
    ):
        torchalgo.optimize(make_net(), (torch.rand(SHAPE),), objective=name)


def test_the_meter_is_read_around_a_workers_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHALGO_ISOLATE", "1")
    bench = EnergyBench(Bench.on(None), ClockMeter())
    problem = "fwd_f32_n1c16h16w16_k16r3s3_st1x1_pad1x1_dil1x1_g1"
    tasks = [(problem, _C.Primitive("aten.conv", "nchw", "nchw"))]
    (taken,) = bench.measure(tasks, warmup=1, rounds=9, budget_s=1.0, cold_bytes=1 << 20, seed=0)
    (time_cost,) = bench.times.values()
    assert not taken.failure and len(taken.ns) == 9
    energy_ns = cost_of_samples(taken.ns)[0] * TICKS_PER_NS
    assert energy_ns == pytest.approx(WATTS * time_cost.ticks, rel=0.1)


# ---- the guard -----------------------------------------------------------------------------------


class Bank:
    """Two calls of the same time, and the energy that each is given."""

    name, covers, interval_s, step_uj = "bank", "calls", 1e-3, 1.0

    def __init__(self, **joules: float) -> None:
        self.uj, self.clock_s = 0, 0.0
        self.calls = {name: lambda name=name: self.spend(joules[name]) for name in joules}  # type: ignore[misc]

    def spend(self, uj: float) -> None:
        self.uj += round(uj)
        self.clock_s += 1e-2

    def read_uj(self) -> int:
        return self.uj

    def verdict(self) -> GuardVerdict:
        taken = meter_interleaved(self.calls, self, now_s=lambda: self.clock_s)
        return energy_verdict(*taken)


def test_the_guard_compares_energies_and_keeps_the_leaner_one() -> None:
    good = Bank(plan=900, frozen=1000, eager=1200).verdict()
    assert (good.verdict, good.runs, good.baseline) == ("faster", "plan", "frozen")
    assert good.ratio == pytest.approx(0.9)
    assert (good.plan_uj, good.baseline_uj) == (900, 1000)
    assert good.plan_us == pytest.approx(1e4)
    bad = Bank(plan=1100, frozen=1000).verdict()
    assert (bad.verdict, bad.runs, bad.objective) == ("slower", "baseline", "energy")
    assert GuardVerdict.from_json(bad.to_json()) == bad


def test_each_call_lasts_long_enough_for_the_meter() -> None:
    bank = Bank(plan=900, frozen=1000)
    bank.interval_s = 2e-2
    bank.verdict()
    assert bank.clock_s > 7 * 2 * meters.LOOP_STEPS * bank.interval_s


def test_the_guard_of_energies_ends_with_the_time_that_is_left() -> None:
    bank = Bank(plan=900, frozen=1000)
    taken = meter_interleaved(bank.calls, bank, now_s=lambda: bank.clock_s, most_s=0.5)
    assert [len(each) for both in taken for each in both.values()] == [5] * 4
    assert bank.clock_s < 0.6


def test_a_meter_that_stands_still_decides_nothing() -> None:
    verdict = Bank(plan=0, frozen=0).verdict()
    assert (verdict.verdict, verdict.runs) == ("not timed", "baseline")
    assert "stood still" in verdict.reason


def test_a_meter_that_breaks_under_the_guard_leaves_the_baseline_and_is_asked_again_next_time(
    leanest: Any, tmp_path: Path
) -> None:
    class Loose(ClockMeter):
        is_broken = False

        def read_uj(self) -> int:
            if self.is_broken:
                raise OSError("unplugged")
            return super().read_uj()

    meter, path = Loose(), tmp_path / "costs.sqlite3"

    def guarded(*args: Any, **options: Any) -> Any:
        meter.is_broken = True
        return meter_interleaved(*args, **options)

    with use(meter), pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchalgo._measure.guard.meter_interleaved", guarded)
        first = torchalgo.optimize(
            make_net(),
            (torch.rand(SHAPE),),
            objective="energy",
            settings=torchalgo.Settings(cost_db=path, progress=False),
        )
    assert first.runs == "baseline" and first.plan.guard is not None
    assert first.plan.guard.reason == "no energies to compare: unplugged"
    again = run("energy", cost_db=path).plan.guard
    assert again is not None and again.rounds > 0


# ---- from a shell --------------------------------------------------------------------------------


def test_doctor_tells_of_meters(capsys: pytest.CaptureFixture[str]) -> None:
    with use(ClockMeter()):
        assert main(["doctor"]) == 0
    assert "clock (20 W), every 0.02 ms" in capsys.readouterr().out


def test_the_command_takes_an_objective(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.jit.script(make_net()).save(str(tmp_path / "net.pt"))
    files = ["optimize", str(tmp_path / "net.pt"), "--input", "1x3x12x12", "--quiet"]
    files += ["-o", str(tmp_path / "fast.pt"), "--cost-db", str(database)]
    with use(ClockMeter()):
        assert main([*files, "--objective", "energy"]) == 0
    assert torchalgo.load(tmp_path / "fast.pt").plan.objective == "energy"
    capsys.readouterr()
