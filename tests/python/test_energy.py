# SPDX-License-Identifier: BSD-3-Clause
"""Plans of the least energy and the least energy x time, with a meter whose law is known."""

from __future__ import annotations

import itertools
import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from cost_tables import FOLDER, read_table
from support.plan_samples import GraphText
from torchalgo import _C
from torchalgo._ir.bounds import Peaks, family_of
from torchalgo._ir.costs import TICKS_PER_NS, Cost, Key, key_of, native_key
from torchalgo._measure.energy_bench import LOOP_STEPS, EnergyBench, EnergyCosts
from torchalgo._measure.sampling import Bench
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.edp_planner import ProductPlanner
from torchalgo._plan.objective import Edp, Energy

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

    def points(self, cost: Callable[[Key], tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Time and energy of every plan that changes no layout in vain."""
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
                costs = [cost(key) for key in keys]
                yield sum(t for t, _ in costs), sum(e for _, e in costs)


def law_of(seed: int, kind: str) -> Law:
    """Times and powers by primitive; or energies that fall where times rise."""

    def law(problem: str, p: _C.Primitive) -> tuple[float, float]:
        pick = drawn(seed, problem.partition("+")[0], p.name, p.src, p.dst)
        ns = pick.uniform(1e3, 4e3) * (0.2 if problem.startswith("transform") else 1.0)
        ns *= 1 + 0.1 * problem.count("+")
        watts = 1e5 / ns**1.5 * pick.uniform(0.8, 1.2) if kind == "opposed" else pick.uniform(5, 90)
        return ns, watts

    return law


def brute_force(flow: Flow, law: Law, value: Callable[[int, int], int]) -> int:
    def cost(key: Key) -> tuple[int, int]:
        ns, watts = law(key.problem, _C.Primitive(key.primitive, key.src, key.dst))
        return round(TICKS_PER_NS * ns), round(TICKS_PER_NS * ns * watts)

    return min(value(t, e) for t, e in flow.points(cost))


def tuned(flow: Any, machine: Machine, kind: type[Energy]) -> tuple[Energy, Tuning, _C.Plan]:
    objective = kind(machine.bench(), None, machine)
    tuning = Tuning(
        flow.graph, flow.found, {}, TuneSettings(), bench=objective.bench,
        cost_file=objective.costs, transforms=flow.transforms,
    )  # fmt: skip
    return objective, tuning, tuning.settle(objective.planner)


def true_sums(plan: _C.Plan, law: Law) -> tuple[int, int]:
    runs = [(n.problem, n.primitive) for n in plan.nodes if n.primitive.name]
    runs += [(t.problem, t.primitive) for t in plan.transforms]
    costs = [law(problem, p) for problem, p in runs if not _C.is_view(p.name)]
    return (
        sum(round(TICKS_PER_NS * ns) for ns, _ in costs),
        sum(round(TICKS_PER_NS * ns * watts) for ns, watts in costs),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["free", "opposed"])
def test_the_measured_optimum_of_energy_is_that_of_all_plans(kind: str) -> None:
    for seed in range(25):
        flow, law = Flow.draw(seed), law_of(seed, kind)
        _, _, plan = tuned(flow, Machine(law), Energy)
        best = brute_force(flow, law, lambda _, e: e)
        assert true_sums(plan, law)[1] == pytest.approx(best, rel=1e-4), f"seed {seed}"
        assert plan.cost == pytest.approx(best, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["free", "opposed"])
def test_the_measured_optimum_of_edp_is_that_of_all_plans(kind: str) -> None:
    others = 0
    for seed in range(25):
        flow, law = Flow.draw(seed), law_of(seed, kind)
        objective, tuning, plan = tuned(flow, Machine(law), Edp)
        best = brute_force(flow, law, lambda t, e: t * e)
        assert math.prod(true_sums(plan, law)) == pytest.approx(best, rel=1e-4), f"seed {seed}"
        assert plan.status == "optimal" and plan.cost == plan.lower_bound
        for planner in objective.other_planners().values():
            others += math.prod(true_sums(tuning.settle(planner), law)) > 1.01 * best
    assert others > 10  # neither the fastest nor the leanest plan has the least product


class KnownTimes:
    """Times from a table."""

    def __init__(self, times: dict[Key, int]) -> None:
        self.times = times

    def time_ticks(self, key: Key) -> int:
        return self.times[key]


@pytest.mark.parametrize("kind", ["free", "opposed", "few values"])
def test_the_edp_optimum_of_a_table_equals_brute_force_to_the_last_tick(kind: str) -> None:
    for seed in range(80):
        flow, pick = Flow.draw(seed), drawn("costs", seed, kind)
        most = 5 if kind == "few values" else 10_000
        every = [c for own in flow.found.by_anchor for c in own] + flow.transforms
        costs = {}
        for key in sorted({key_of(c.problem, c.primitive) for c in every}):
            time = pick.randrange(1, most)
            costs[key] = time, most + 1 - time if kind == "opposed" else pick.randrange(1, most)
        found = planned(flow, costs)
        assert found.status == "optimal"
        sums = [costs[key] for key in keys_of(found)]
        product = sum(t for t, _ in sums) * sum(e for _, e in sums)
        assert product == min(t * e for t, e in flow.points(costs.__getitem__)), f"seed {seed}"


def keys_of(plan: _C.Plan) -> list[Key]:
    keys = [key_of(n.problem, n.primitive) for n in plan.nodes if n.primitive.name]
    return keys + [key_of(t.problem, t.primitive) for t in plan.transforms]


def planned(flow: Any, costs: dict[Key, tuple[int, int]], **options: Any) -> _C.Plan:
    planner = ProductPlanner(KnownTimes({key: t for key, (t, _) in costs.items()}))
    table = _C.CostTable()
    for key, (_, energy) in costs.items():
        table.set(native_key(key), energy, "measured")
    plan, wanted = planner(flow.graph, flow.found, flow.transforms, table, **options)
    assert not wanted
    return plan


def test_costs_near_the_end_of_63_bits_are_rounded_and_the_plan_says_so() -> None:
    for seed in range(10):
        flow, pick = Flow.draw(seed), drawn("large", seed)
        every = [c for own in flow.found.by_anchor for c in own] + flow.transforms
        outlier = [1, 1, 1 << 15]
        costs = {
            key_of(c.problem, c.primitive): (
                pick.randrange(1 << 38, 1 << 40) * pick.choice(outlier),
                pick.randrange(1 << 38, 1 << 40) * pick.choice(outlier),
            )
            for c in every
        }
        plan = planned(flow, costs)
        sums = [costs[key] for key in keys_of(plan)]
        product = sum(t for t, _ in sums) * sum(e for _, e in sums)
        best = min(t * e for t, e in flow.points(costs.__getitem__))
        assert best <= product <= best * (1 + 1e-6)
        assert "costs rounded to" in plan.method


def test_edp_keeps_a_limit_and_is_the_best_that_does() -> None:
    for seed in range(40):
        flow, pick = Flow.draw(seed), drawn("limited", seed)
        every = [c for own in flow.found.by_anchor for c in own] + flow.transforms
        costs = {
            key_of(c.problem, c.primitive): (pick.randrange(1, 999), pick.randrange(1, 999))
            for c in every
        }
        size = {(p.name, p.src, p.dst): pick.randrange(9) for p in flow.primitives}

        def bytes_of(key: Key, size: Any = size) -> int:
            return size.get((key.primitive, key.src, key.dst), 0)

        least = min(size.values()) * len(flow.reads)
        limit = least + pick.randrange(8)
        use = [
            [bytes_of(key_of(c.problem, c.primitive)) for c in own] for own in flow.found.by_anchor
        ]
        plan = planned(flow, costs, resources=[_C.Resource("weight bytes", use, limit)])
        sums = [costs[key] for key in keys_of(plan)]
        assert sum(map(bytes_of, keys_of(plan))) <= limit
        # The bytes as the low digits of time: points() yields sums of them.
        base = 1 << 20
        points = flow.points(lambda key: (costs[key][0] * base + bytes_of(key), costs[key][1]))  # noqa: B023
        best = min((t // base) * e for t, e in points if t % base <= limit)
        assert sum(t for t, _ in sums) * sum(e for _, e in sums) == best, f"seed {seed}"


@pytest.mark.parametrize("network", ["resnet18", "googlenet"])
def test_in_a_network_no_weights_find_a_smaller_product_and_few_solves_are_enough(
    network: str,
) -> None:
    table = read_table(FOLDER / f"{network}.json.gz")
    transforms = [t for t in table.transforms if table.has(t)]
    times = {key: row.ticks for key, row in table.rows.items()}
    energies = {
        key: round(ticks * 20 * drawn(family_of(key), key[1:]).lognormvariate(0, 0.7))
        for key, ticks in times.items()
    }

    def product_of(plan: _C.Plan) -> int:
        keys = [key for key in keys_of(plan) if not _C.is_view(key.primitive)]
        return sum(times[key] for key in keys) * sum(energies[key] for key in keys)

    planner = ProductPlanner(KnownTimes(times))
    best, wanted = planner(
        table.graph, table.found, transforms, table.costs(energies), allow=table.has
    )
    assert not wanted and best.status == "optimal"
    assert int(best.method.split()[0]) <= 12
    products = []
    for step in range(41):
        watts = 2 ** (step / 4 - 1)  # nJ that count as much as a ns
        costs = {key: round((watts * times[key] + energies[key]) / 64) for key in times}
        plan, _ = _C.make_plan(
            table.graph, table.found, transforms, table.costs(costs), allow=table.has
        )
        products.append(product_of(plan))
    assert product_of(best) <= min(products) * (1 + 1e-6)
    assert max(products) > 1.05 * min(products)


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
@pytest.mark.parametrize("kind", [Energy, Edp])
def test_not_everything_is_measured_and_the_plan_is_that_of_the_full_table(
    kind: type[Energy],
) -> None:
    ran = total = 0
    for seed in range(15):
        flow, law = DrawnFlow(seed), law_of(seed, "opposed")
        machine = Machine(law)
        _, _, lazy = tuned(flow, machine, kind)
        table = _C.CostTable()
        times = {}
        for key in flow.keys:
            if not _C.is_view(key.primitive):
                ns, watts = law(key.problem, _C.Primitive(key.primitive, key.src, key.dst))
                table.set(native_key(key), round(TICKS_PER_NS * ns * watts), "measured")
                times[key] = round(TICKS_PER_NS * ns)
        planner = ProductPlanner(KnownTimes(times)) if kind is Edp else _C.make_plan
        best, wanted = planner(flow.graph, flow.found, flow.transforms, table)
        assert not wanted
        value = math.prod if kind is Edp else lambda sums: sums[1]
        assert value(true_sums(lazy, law)) == pytest.approx(value(true_sums(best, law)), rel=1e-4)
        ran += len(set(machine.measured))
        total += len({(key.problem, key.primitive) for key in flow.keys})
    assert ran < total


def test_times_of_what_was_not_measured_are_lower_bounds() -> None:
    machine = Machine(lambda *_: (1e6, 10.0))
    bench = EnergyBench(machine.bench(lambda: Peaks(1.0, ((1, 1.0),))), machine, machine.sleep)
    costs = EnergyCosts(bench, None, None)
    alone, fused = (
        Key(CONV, "cpu.direct", "nchw", "nchw"),
        Key(CONV + "+relu", "cpu.direct", "nchw", "nchw"),
    )
    assert family_of(alone) == family_of(fused)
    by_work = costs.time_ticks(fused)
    assert by_work > 0 == costs.energy_ticks(fused)
    bench.times[alone] = Cost(100 * by_work)
    costs.append({alone: Cost(7)})
    assert (costs.time_ticks(alone), costs.energy_ticks(alone)) == (100 * by_work, 7)
    assert by_work < costs.time_ticks(fused) < 100 * by_work
