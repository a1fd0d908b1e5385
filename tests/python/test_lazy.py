# SPDX-License-Identifier: BSD-3-Clause
"""Lazy measuring finds the optimum of the full table, on random graphs with random bounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from bench_lazy import sample_counts
from test_check_plan import GraphText
from torchalgo import _C
from torchalgo._ir.bounds import FUSED_FLOOR, UNFUSED_FLOOR, KnownCosts, Peaks, family_of
from torchalgo._ir.costs import TICKS_PER_NS, Cost, Key, key_of, native_key
from torchalgo._measure.measuring import TuneSettings, Tuning
from torchalgo._measure.sampling import Bench

GRAPHS = 1000


@dataclass
class Taken:
    ns: list[float]
    failure: str = ""
    disturbed: int = 0


class DrawnMachine:
    """Random costs of all candidates of a random graph, and bounds that hold for them."""

    def __init__(self, seed: int, bound_factor: float = 1.0) -> None:
        self.pick = random.Random(seed)
        self.graph = _C.parse_graph(str(GraphText(seed, self.pick.choice([2, 3, 4, 5, 6]))))
        self.found = _C.find_candidates(self.graph)
        self.transforms = _C.transform_candidates(self.graph, self.found)
        every = [c for own in self.found.by_anchor for c in own] + self.transforms
        self.costs: dict[Key, int] = {}
        self.bounds: dict[Key, int] = {}
        base: dict[tuple[str, ...], float] = {}
        for key in sorted({key_of(c.problem, c.primitive) for c in every}):
            drawn = (
                self.pick.uniform(1e3, 2e4) if key.src != key.dst else self.pick.uniform(1e4, 1e5)
            )
            alike = base.setdefault((family_of(key), *key[1:]), drawn)
            fused = 1 + 0.25 * key.problem.count("+")
            self.costs[key] = round(alike * fused * self.pick.uniform(0.95, 1.05))
            share = self.pick.choice([0.0, 0.5, 0.9, 1.0]) * bound_factor
            self.bounds[key] = int(share * self.costs[key])
        self.measured: set[Key] = set()

    def bound_ticks(self, problem: str, primitive: _C.Primitive) -> int:
        return self.bounds[key_of(problem, primitive)]

    def measure(
        self, tasks: Sequence[tuple[str, _C.Primitive]], rounds: int, race: bool, **_: Any
    ) -> list[Taken]:
        keys = [key_of(problem, primitive) for problem, primitive in tasks]
        self.measured.update(keys)
        ns = [self.costs[key] / TICKS_PER_NS for key in keys]
        counts = sample_counts(keys, ns, rounds, race)
        return [Taken([one_ns] * count) for one_ns, count in zip(ns, counts, strict=True)]

    def check(self, _problem: str, primitives: Sequence[Any], _: float) -> list[tuple[float, str]]:
        return [(0.0, "")] * len(primitives)

    def lazy_plan(self) -> _C.Plan:
        bench = Bench(self.measure, self.check, lambda: 0.0, lambda: self)  # type: ignore
        tuning = Tuning(
            self.graph, self.found, {}, TuneSettings(), bench=bench, transforms=self.transforms
        )
        return tuning.settle(_C.make_plan)

    def optimum(self) -> int:
        table = _C.CostTable()
        for key, ticks in self.costs.items():
            table.set(native_key(key), ticks, "measured")
        plan, wanted = _C.make_plan(self.graph, self.found, self.transforms, table)
        assert not wanted
        return plan.cost


def test_lazy_measuring_finds_the_optimum_of_the_full_table_on_random_graphs() -> None:
    ran = total = 0
    for seed in range(GRAPHS):
        machine = DrawnMachine(seed)
        plan = machine.lazy_plan()
        assert plan.cost == machine.optimum(), f"seed {seed}"
        ran_nodes = [n for n in plan.nodes if n.primitive.name and not _C.is_view(n.primitive.name)]
        assert {n.cost_source for n in ran_nodes} <= {"measured"}
        assert {key_of(n.problem, n.primitive) for n in ran_nodes} <= machine.measured
        ran += len(machine.measured)
        total += len(machine.costs)
    assert ran < 0.9 * total


def test_with_bounds_above_the_costs_it_would_miss_optima() -> None:
    machines = [DrawnMachine(seed, bound_factor=3.0) for seed in range(40)]
    assert any(machine.lazy_plan().cost != machine.optimum() for machine in machines)


# ---- bounds --------------------------------------------------------------------------------------

CONV = "fwd_f32_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g1"


def key(problem: str, name: str = "p.a", src: str = "nchw") -> Key:
    return Key(problem, name, src, src)


def test_a_cost_bounds_the_same_primitive_with_more_or_less_fused() -> None:
    alone, fused, other = key(CONV), key(CONV + "+relu"), key(CONV, "p.b")
    known = KnownCosts(dict.fromkeys([alone, fused, other], 10))
    known.learn({alone: Cost(1000)})
    assert [known.lower(k) for k in (alone, fused, other)] == [1000, int(1000 * FUSED_FLOOR), 10]
    assert known.table.get(native_key(alone)) == (1000, "measured")
    assert known.table.get(native_key(fused)) == (int(1000 * FUSED_FLOOR), "bound")
    known = KnownCosts(dict.fromkeys([alone, fused, other], 10))
    known.learn({fused: Cost(2000)})
    assert known.lower(alone) == int(2000 * UNFUSED_FLOOR)


def test_bounds_only_rise_and_measured_costs_stay() -> None:
    alone, fused = key(CONV), key(CONV + "+relu")
    known = KnownCosts({alone: 900, fused: 10})
    known.learn({fused: Cost(1000)})
    assert known.lower(alone) == 900
    known.learn({alone: Cost(700)})
    known.learn({fused: Cost(9000)})
    assert known.lower(alone) == 700


def test_plans_of_what_is_known_see_no_bounds() -> None:
    alone, other = key(CONV), key(CONV, "p.b")
    known = KnownCosts({alone: 5, other: 5})
    known.learn({alone: Cost(1000)})
    assert [(k.primitive, ticks, source) for k, ticks, source in known.measured().items()] == [
        ("p.a", 1000, "measured")
    ]


def test_what_fits_a_cache_may_come_from_it() -> None:
    peaks = Peaks(100.0, ((1 << 14, 200.0), (1 << 20, 50.0), (1 << 26, 10.0)))
    assert peaks.bandwidth(100) == 200.0
    assert peaks.bandwidth(1 << 20) == 50.0
    assert peaks.bandwidth((1 << 26) - 1) == 50.0
    assert peaks.bandwidth(1 << 30) == 10.0


def test_a_winograd_row_counts_its_own_multiplications() -> None:
    blocked = {"src": "nChw16c", "dst": "nChw16c"}
    direct, moved = _C.least_work(CONV, _C.Primitive("cpu.direct", **blocked))
    ours, same = _C.least_work(CONV, _C.Primitive("cpu.winograd_f4x4_3x3.t14", **blocked))
    assert ours == 2 * 4 * 36 * 32 * 32
    assert direct == 2 * 32 * 32 * 22 * 22  # 22 of 24 taps along 8 positions meet the image
    assert moved == same == 4 * (2 * 32 * 64 + 9 * 32 * 32)


@pytest.mark.parametrize("head", ["", "mul_"])
def test_strassen_counts_seven_of_eight_multiplications(head: str) -> None:
    conv = "k64r1s1_st1x1_pad0x0_dil1x1_g1"
    problem = f"chain_f32_n1c96h9w9_{head}{conv}" if head else f"fwd_f32_n1c96h9w9_{conv}"
    row = "cpu.scaled_conv1x1" if head else "cpu.conv1x1"
    halved = "cpu.scaled_conv1x1.strassen" if head else "cpu.strassen_1x1"
    blocked = {"src": "nChw16c", "dst": "nChw16c"}
    direct, moved = _C.least_work(problem, _C.Primitive(row, **blocked))
    ours, same = _C.least_work(problem, _C.Primitive(halved, **blocked))
    assert direct == 2 * 81 * 96 * 64
    assert ours == direct * 7 / 8
    assert moved == same


@pytest.mark.parametrize(
    ("problem", "flops", "elements"),
    [
        ("fwd_f32_n1c4h1w1_k8r3s3_st1x1_pad1x1_dil1x1_g1", 2 * 4 * 8, 4 + 8 + 9 * 32),
        ("fwd_f32_n1c4h8w8_k8r1s1_st2x2_pad0x0_dil1x1_g1", 2 * 32 * 16, 4 * 16 + 8 * 16 + 32),
        ("linear_f32_n2c8_k4+bias", 2 * 2 * 8 * 4, 16 + 8 + 32),
    ],
)
def test_work_leaves_out_padding_and_what_a_stride_steps_over(
    problem: str, flops: float, elements: float
) -> None:
    name = "aten.linear" if problem.startswith("linear") else "aten.conv"
    assert _C.least_work(problem, _C.Primitive(name, "nchw", "nchw")) == (flops, 4 * elements)


def test_a_gradient_run_as_a_forward_convolution_has_the_work_of_that() -> None:
    backward = CONV.replace("fwd_", "bwd_data_")
    blocked = _C.Primitive("cpu.winograd_f2x2_3x3.t14", "nChw16c", "nChw16c")
    assert _C.least_work(backward, blocked) == _C.least_work(CONV, blocked)


def test_rows_without_arithmetic_of_their_own_count_bytes_only() -> None:
    relu = _C.least_work("relu_f32_n1c16h8w8", _C.Primitive("aten.eltwise", "nchw", "nchw"))
    assert relu == (0.0, 2 * 4 * 16 * 64)
    move = _C.least_work(
        "transform_f32_n1c16h8w8_nchw_nhwc", _C.Primitive("layout.tiled", "nchw", "nhwc")
    )
    assert move == (0.0, 2 * 4 * 16 * 64)


def test_the_probe_sees_rates_and_no_cache_is_slower_than_memory() -> None:
    peaks = Peaks.probed(_C.probe_peaks())
    assert peaks.flops_per_ns > 0.5
    sizes = [size for size, _ in peaks.bytes_per_ns]
    assert sizes == sorted(sizes) and len(sizes) > 8
    assert peaks.bandwidth(1 << 14) >= peaks.bandwidth(1 << 26) > 0.1
