# SPDX-License-Identifier: BSD-3-Clause
"""Lazy measuring finds the optimum of the full table, on random graphs with random bounds."""

from __future__ import annotations

import pytest

from support.drawn_machine import DrawnMachine, key
from torchalgo import _C
from torchalgo._ir.bounds import FUSED_FLOOR, UNFUSED_FLOOR, Peaks
from torchalgo._ir.costs import Cost, key_of, native_key
from torchalgo._measure.known_costs import KnownCosts

GRAPHS = 1000


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


def test_a_cost_bounds_the_same_primitive_with_more_or_less_fused() -> None:
    alone, fused, other = key(CONV), key(CONV + "+relu"), key(CONV, "p.b")
    known = KnownCosts.start(dict.fromkeys([alone, fused, other], 10))
    known = known.learned({alone: Cost(1000)})
    assert [known.lower(k) for k in (alone, fused, other)] == [1000, int(1000 * FUSED_FLOOR), 10]
    assert known.table.get(native_key(alone)) == (1000, "measured")
    assert known.table.get(native_key(fused)) == (int(1000 * FUSED_FLOOR), "bound")
    known = KnownCosts.start(dict.fromkeys([alone, fused, other], 10))
    known = known.learned({fused: Cost(2000)})
    assert known.lower(alone) == int(2000 * UNFUSED_FLOOR)


def test_bounds_only_rise_and_measured_costs_stay() -> None:
    alone, fused = key(CONV), key(CONV + "+relu")
    known = KnownCosts.start({alone: 900, fused: 10})
    known = known.learned({fused: Cost(1000)})
    assert known.lower(alone) == 900
    known = known.learned({alone: Cost(700)})
    known = known.learned({fused: Cost(9000)})
    assert known.lower(alone) == 700


def test_plans_of_what_is_known_see_no_bounds() -> None:
    alone, other = key(CONV), key(CONV, "p.b")
    known = KnownCosts.start({alone: 5, other: 5})
    known = known.learned({alone: Cost(1000)})
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
