# SPDX-License-Identifier: BSD-3-Clause
"""Plans of the least energy, with a meter whose law is known."""

from __future__ import annotations

import itertools
import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from support.plan_samples import GraphText
from torchalgo import _C
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of, native_key
from torchalgo._measure.energy_bench import LOOP_STEPS, EnergyBench
from torchalgo._measure.sampling import Bench
from torchalgo._measure.steps import Question
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.objective import Energy

Law = Callable[[str, _C.Primitive], tuple[float, float]]  # ns and W of one run


@dataclass
class Taken:
    ns: list[float]
    failure: str = ""


class Machine:
    """A virtual machine with a clock and a meter: runs take time and power by a law."""

    name, covers = "virtual", "all"

    def __init__(self, law: Law, interval_s: float = 1e-3, idle_watts: float = 2.0) -> None:
        self.law, self.interval_s, self.idle_watts = law, interval_s, idle_watts
        self.step_uj = 1.0
        self.clock_s = self.uj = self.seen_uj = 0.0
        self.setup_s, self.refresh_s, self.setup_watts = 0.0, 0.0, 20.0
        self.measured: list[tuple[str, str]] = []
        self.failures: dict[str, str] = {}
        self.rounds: list[int] = []

    def pass_time(self, seconds: float, watts: float) -> None:
        """What the counter shows is what it was when it stepped last."""
        self.clock_s += seconds
        self.uj += 1e6 * watts * seconds
        late_s = math.fmod(self.clock_s, self.interval_s)
        if late_s <= seconds:
            self.seen_uj = self.uj - 1e6 * watts * late_s

    def read_uj(self) -> int:
        self.pass_time(1e-6, self.idle_watts)  # reading takes time as well
        return math.floor(self.seen_uj)

    def measure(
        self, tasks: Sequence[tuple[str, _C.Primitive]], *, rounds: int, **_: Any
    ) -> list[Taken]:
        self.pass_time(self.setup_s, self.setup_watts)
        self.rounds.append(rounds)
        taken = []
        for problem, primitive in tasks:
            self.measured.append((problem, primitive.name))
            ns, watts = self.law(problem, primitive)
            failure = self.failures.get(primitive.name, "")
            self.pass_time(0.0 if failure else rounds * 1e-9 * ns, watts)
            self.pass_time(rounds * self.refresh_s, watts)
            taken.append(Taken([] if failure else [ns] * min(rounds, 9), failure))
        return taken

    def check(self, _problem: str, primitives: Sequence[Any], _: float) -> list[tuple[float, str]]:
        return [(0.0, "")] * len(primitives)

    def bench(self, peaks: Callable[[], Any] = lambda: None) -> Bench:
        return Bench(self.measure, self.check, lambda: self.clock_s, peaks)

    def sleep(self, seconds: float) -> None:
        self.pass_time(seconds, self.idle_watts)


def drawn(*parts: object) -> random.Random:
    return random.Random(zlib.crc32(repr(parts).encode()))


# ---- what is measured ----------------------------------------------------------------------------

CONV = "fwd_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1"
TASK = (CONV, _C.Primitive("aten.conv", "nchw", "nchw"))
OPTIONS: dict[str, Any] = {"warmup": 1, "rounds": 9, "budget_s": 1.0, "cold_bytes": 0, "seed": 0}


@pytest.mark.parametrize("ns", [2e3, 3e5, 7e6, 4e8])
@pytest.mark.parametrize("interval_s", [1e-3, 2e-2])
def test_an_energy_is_right_within_what_the_counter_can_tell(ns: float, interval_s: float) -> None:
    machine = Machine(lambda *_: (ns, 35.0), interval_s)
    machine.setup_s, machine.refresh_s = 0.0137, 0.2e-9 * ns
    (result,) = EnergyBench(machine.bench(), machine).measure([TASK], **OPTIONS)
    assert result.ns == pytest.approx([35.0 * ns] * 9, rel=1.1 / LOOP_STEPS)


def test_set_up_is_not_counted_even_where_it_lasts_longer_than_all_runs() -> None:
    machine = Machine(lambda *_: (1e4, 10.0))
    machine.setup_s, machine.setup_watts = 5.0, 400.0
    (result,) = EnergyBench(machine.bench(), machine).measure([TASK], **OPTIONS)
    assert result.ns == pytest.approx([1e5] * 9, rel=0.02)


def test_a_counter_of_coarse_steps_is_watched_longer() -> None:
    machine = Machine(lambda *_: (1e6, 0.01))
    machine.step_uj = 1000.0
    (result,) = EnergyBench(machine.bench(), machine).measure([TASK], **OPTIONS)
    assert max(machine.rounds) * 1e6 * 0.01 * 1e-3 >= LOOP_STEPS * 1000.0 / 1.01
    assert result.ns == pytest.approx([1e4] * 9, rel=0.03)


def test_rivals_take_turns() -> None:
    rivals = [(CONV, _C.Primitive(name, "nchw", "nchw")) for name in ("test.a", "test.b")]
    machine = Machine(lambda *_: (1e6, 10.0))
    EnergyBench(machine.bench(), machine).measure(rivals, **OPTIONS)
    names = [name for _, name in machine.measured]
    turns = [name for name, _ in itertools.groupby(names)]
    assert turns == ["test.a", "test.b"] * 4  # together for times, then each pass


def test_no_race_of_times_takes_the_lean_ones_away() -> None:
    races = []

    def measure(tasks: Any, *, race: bool, **options: Any) -> list[Taken]:
        races.append(race)
        return machine.measure(tasks, **options)

    machine = Machine(lambda *_: (1e6, 10.0))
    bench = Bench(measure, machine.check, lambda: machine.clock_s)
    EnergyBench(bench, machine).measure([TASK], **OPTIONS, race=True)
    assert races and not any(races)


def test_what_fails_has_its_reason_and_spoils_nobody() -> None:
    machine = Machine(lambda *_: (1e6, 10.0))
    machine.failures = {"test.b": "no memory"}
    rivals = [(CONV, _C.Primitive(name, "nchw", "nchw")) for name in ("test.a", "test.b")]
    first, second = EnergyBench(machine.bench(), machine).measure(rivals, **OPTIONS)
    assert first.ns and not first.failure
    assert (second.ns, second.failure) == ([], "no memory")


def test_a_meter_that_stands_still_is_a_failure_and_no_energy_of_zero() -> None:
    machine = Machine(lambda *_: (1e6, 0.0))
    (result,) = EnergyBench(machine.bench(), machine).measure([TASK], **OPTIONS)
    assert not result.ns and "virtual counted" in result.failure


def test_a_meter_that_breaks_is_an_error_of_ours() -> None:
    class Broken(Machine):
        def read_uj(self) -> int:
            raise OSError("unplugged")

    machine = Broken(lambda *_: (1e6, 10.0))
    with pytest.raises(_C.Error, match=r"virtual cannot be read: unplugged"):
        EnergyBench(machine.bench(), machine).measure([TASK], **OPTIONS)


def test_bounds_of_energy_are_bounds_of_time_at_half_the_idle_power() -> None:
    machine = Machine(lambda *_: (1e6, 10.0), idle_watts=4.0)
    peaks = Peaks(100.0, ((1 << 14, 200.0), (1 << 20, 50.0)))
    bench = EnergyBench(machine.bench(lambda: peaks), machine, machine.sleep)
    bounds = bench.peaks()
    assert bounds is not None
    ticks = peaks.bound_ticks(*TASK)
    assert ticks > 10
    assert bounds.bound_ticks(*TASK) == pytest.approx(2.0 * ticks, rel=0.03, abs=1)


# ---- plans on random data flows, beside every choice ---------------------------------------------

SHAPE = "1,8,4,4"
PAIR = ("nchw", "nhwc")


@dataclass
class Flow:
    """Convolutions and sums of random readers, each with primitives in two layouts."""

    graph: _C.Graph
    found: _C.Candidates
    transforms: list[_C.Candidate]
    primitives: list[_C.Primitive]
    reads: list[list[int]]  # per node, of values; node n writes value n + 1
    outputs: set[int]

    @staticmethod
    def draw(seed: int) -> Flow:
        pick = drawn("flow", seed)
        count = pick.choice([1, 2, 3, 3])
        reads: list[list[int]] = []
        lines = [f"value\tv{i}\t{SHAPE}\tf32" for i in range(count + 1)]
        for n in range(count):
            is_sum = n > 0 and pick.random() < 0.4
            reads.append([pick.randrange(max(0, n - 1), n + 1) for _ in range(1 + is_sum)])
            problem = "add_f32_n1c8h4w4" if is_sum else CONV
            kind = "add" if is_sum else "conv"
            listed = ",".join(map(str, reads[-1]))
            lines.append(f"node\tn{n}\t{kind}\t{listed}\t{n + 1}\t{problem}\t")
        outputs = {count, *(v for v in range(1, count) if not any(v in r for r in reads))}
        lines += ["input\t0\tnchw", *(f"output\t{v}" for v in sorted(outputs))]
        graph = _C.parse_graph("\n".join(["torchalgo graph 1", *lines]) + "\n")
        layouts = [(a, b) for a in PAIR for b in PAIR if a == b or pick.random() < 0.3]
        primitives = [
            _C.Primitive(f"test.c{i}", *pair)
            for pair in layouts
            for i in range(pick.choice([1, 2]))
        ]
        found = _C.single_candidates(graph, [primitives] * count)
        every = _C.transform_candidates(graph, found)
        return Flow(graph, found, every, primitives, reads, outputs)

    def energies(self, energy: Callable[[Key], int]) -> Iterator[int]:
        """The energy of every plan that changes no layout in vain."""
        problems = [node.problem for node in self.graph.nodes]
        for chosen in itertools.product(self.primitives, repeat=len(self.reads)):
            written = ["nchw", *(p.dst for p in chosen)]
            asked: list[set[str]] = [set() for _ in written]
            for n, values in enumerate(self.reads):
                for v in values:
                    asked[v].add(chosen[n].src)
            for v in self.outputs:
                asked[v].add("nchw")
            changes = [
                [t for t in self.transforms if (t.primitive.src, t.primitive.dst) == (have, want)]
                for have, wanted in zip(written, asked, strict=True)
                for want in wanted - {have}
            ]
            for taken in itertools.product(*changes):
                keys = [key_of(p or "", c) for p, c in zip(problems, chosen, strict=True)]
                keys += [key_of(t.problem, t.primitive) for t in taken]
                yield sum(map(energy, keys))


def law_of(seed: int, kind: str) -> Law:
    """Times and powers by primitive; or energies that fall where times rise."""

    def law(problem: str, p: _C.Primitive) -> tuple[float, float]:
        pick = drawn(seed, problem.partition("+")[0], p.name, p.src, p.dst)
        ns = pick.uniform(1e3, 4e3) * (0.2 if problem.startswith("transform") else 1.0)
        ns *= 1 + 0.1 * problem.count("+")
        watts = 1e5 / ns**1.5 * pick.uniform(0.8, 1.2) if kind == "opposed" else pick.uniform(5, 90)
        return ns, watts

    return law


def brute_force(flow: Flow, law: Law) -> int:
    def energy(key: Key) -> int:
        ns, watts = law(key.problem, _C.Primitive(key.primitive, key.src, key.dst))
        return round(TICKS_PER_NS * ns * watts)

    return min(flow.energies(energy))


def tuned(flow: Any, machine: Machine) -> _C.Plan:
    objective = Energy(machine.bench(), DeviceCosts.of(CostStore(None)), machine)
    return tuning_of(flow, objective).settle()


def tuning_of(flow: Any, objective: Energy) -> Tuning:
    return Tuning(
        flow.graph, flow.found, {}, TuneSettings(), bench=objective.bench,
        cost_file=objective.costs, transforms=flow.transforms,
    )  # fmt: skip


def true_energy(plan: _C.Plan, law: Law) -> int:
    runs = [(n.problem, n.primitive) for n in plan.nodes if n.primitive.name]
    runs += [(t.problem, t.primitive) for t in plan.transforms]
    costs = [law(problem, p) for problem, p in runs if not _C.is_view(p.name)]
    return sum(round(TICKS_PER_NS * ns * watts) for ns, watts in costs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["free", "opposed"])
def test_the_measured_optimum_of_energy_is_that_of_all_plans(kind: str) -> None:
    for seed in range(25):
        flow, law = Flow.draw(seed), law_of(seed, kind)
        plan = tuned(flow, Machine(law))
        best = brute_force(flow, law)
        assert true_energy(plan, law) == pytest.approx(best, rel=1e-4), f"seed {seed}"
        assert plan.cost == pytest.approx(best, rel=1e-3)


# ---- lazy, with fused chains ---------------------------------------------------------------------


class DrawnFlow:
    """A random graph with all candidates that this machine offers, fused ones included."""

    def __init__(self, seed: int) -> None:
        self.graph = _C.parse_graph(str(GraphText(2 * seed, drawn(seed).choice([2, 3, 4, 5]))))
        self.found = _C.find_candidates(self.graph)
        self.transforms = _C.transform_candidates(self.graph, self.found)
        every = [c for own in self.found.by_anchor for c in own] + self.transforms
        self.keys = sorted({key_of(c.problem, c.primitive) for c in every})


@pytest.mark.slow
def test_not_everything_is_measured_and_the_plan_is_that_of_the_full_table() -> None:
    ran = total = 0
    for seed in range(15):
        flow, law = DrawnFlow(seed), law_of(seed, "opposed")
        machine = Machine(law)
        lazy = tuned(flow, machine)
        table = _C.CostTable()
        for key in flow.keys:
            if not _C.is_view(key.primitive):
                ns, watts = law(key.problem, _C.Primitive(key.primitive, key.src, key.dst))
                table.set(native_key(key), round(TICKS_PER_NS * ns * watts), "measured")
        best, wanted = _C.make_plan(flow.graph, flow.found, flow.transforms, table)
        assert not wanted
        assert true_energy(lazy, law) == pytest.approx(true_energy(best, law), rel=1e-4)
        ran += len(set(machine.measured))
        total += len({(key.problem, key.primitive) for key in flow.keys})
    assert ran < total


@pytest.mark.parametrize("kind", ["free", "opposed"])
def test_the_fastest_plan_has_the_least_time_of_what_was_measured(kind: str) -> None:
    gains = []
    for seed in range(5):
        flow, law = Flow.draw(seed), law_of(seed, kind)
        machine = Machine(law)
        objective = Energy(machine.bench(), DeviceCosts.of(CostStore(None)), machine)
        tuning = tuning_of(flow, objective)
        lean = tuning.settle()
        plans = tuning.estimates({"fastest": Question(objective.other_planners["fastest"])})
        times = [
            sum(objective.both.time_ticks(key_of(p.problem, p.primitive)) for p in parts)
            for parts in ([*plan.nodes, *plan.transforms] for plan in (plans["fastest"], lean))
        ]
        gains.append(times[1] - times[0])
        assert plans["fastest"].cost >= lean.cost
        energy = true_energy(plans["fastest"], law)
        assert plans["fastest"].cost == pytest.approx(energy, rel=1e-3)
    assert 0 == min(0, *gains) < max(gains)
