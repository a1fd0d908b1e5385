# SPDX-License-Identifier: BSD-3-Clause
"""The machine's highest rates are kept: a bound of a later run is one that an earlier run had."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from cost_tables import read_table
from support.fake_bench import FakeBench, spread
from torchalgo import _C
from torchalgo._db import CostStore, DeviceCosts, Environment
from torchalgo._ir.bounds import GpuPeaks, Peaks
from torchalgo._ir.devices import list_devices, named_device
from torchalgo._measure.tuning import TuneSettings, Tuning

PEAKS = Peaks(50.0, ((1 << 12, 100.0), (1 << 20, 40.0), (1 << 28, 10.0)))


def faster(peaks: Peaks, factor: float) -> Peaks:
    rates = tuple((size, rate * factor) for size, rate in peaks.bytes_per_ns)
    return Peaks(peaks.flops_per_ns * factor, rates)


def test_peaks_come_back_from_their_text_and_nothing_else_does() -> None:
    assert Peaks.from_json(PEAKS.to_json()) == PEAKS
    for text in ("", "null", "[]", "[1, []]", "[0, [[1, 1.0]]]", "[1, [[1, -1]]]", '["a", 1]',
                 "[NaN, [[1, 1.0]]]", "[1, [[1, Infinity]]]", "[" * 9999):  # fmt: skip
        assert Peaks.from_json(text) is None, text


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_probe_runs_whatever_torchs_default_type_is(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert _C.probe_peaks()
    finally:
        torch.set_default_dtype(before)


def test_the_higher_of_each_rate_counts() -> None:
    mixed = Peaks(60.0, ((1 << 12, 90.0), (1 << 20, 50.0), (1 << 28, 10.0)))
    assert PEAKS.raised_by(mixed) == Peaks(
        60.0, ((1 << 12, 100.0), (1 << 20, 50.0), (1 << 28, 10.0))
    )
    assert PEAKS.raised_by(mixed) == mixed.raised_by(PEAKS)
    assert PEAKS.raised_by(Peaks(60.0, ((1, 1.0),))) == Peaks(60.0, PEAKS.bytes_per_ns)


def test_peaks_are_kept_for_the_hardware_whatever_torch_it_is(tmp_path: Path) -> None:
    here = Environment.of()
    with CostStore.open(tmp_path / "costs.sqlite3") as store:
        assert DeviceCosts(store, here).read_peaks() is None
        DeviceCosts(store, here).keep_peaks(PEAKS)
        for facts, is_kept in (
            ({}, True), ({"torch": "9"}, True), ({"weights": "l2"}, True),
            ({"threads": "99"}, False), ({"cpu_id": "x"}, False),
        ):  # fmt: skip
            changed = dataclasses.replace(here, facts={**here.facts, **facts})
            assert (DeviceCosts(store, changed).read_peaks() == PEAKS) is is_kept, facts


def test_a_later_run_that_finds_all_it_needs_does_not_probe_and_one_that_measures_does(
    imported: _C.Imported, tmp_path: Path
) -> None:
    found = _C.find_candidates(imported.graph)

    def tune(peaks: Peaks) -> tuple[int, int, int]:
        """How often it probed, what it measured, what the plan costs."""
        fake, probes = FakeBench(spread), list[Peaks]()

        def probe() -> Peaks:
            probes.append(peaks)
            return peaks

        bench = dataclasses.replace(fake.bench(), peaks=probe)
        with CostStore.open(tmp_path / "costs.sqlite3") as store:
            tuning = Tuning(
                imported.graph, found, {}, TuneSettings(), bench=bench,
                cost_file=DeviceCosts.of(store),
            )  # fmt: skip
            cost = tuning.settle(_C.make_plan).cost
        return len(probes), len(fake.measured), cost

    slow = faster(PEAKS, 0.05)  # as on a machine that was busy while it was probed
    probes, first, cost = tune(slow)
    assert probes == 1 and first
    assert tune(PEAKS) == (0, 0, cost)
    with CostStore.open(tmp_path / "costs.sqlite3") as store:
        costs = DeviceCosts.of(store)
        assert costs.read_peaks() == slow
        store.gc(0)
        costs.keep_peaks(slow)
    probes, again, optimum = tune(PEAKS)
    assert probes == 1 and again >= first
    assert optimum <= cost
    with CostStore.open(tmp_path / "costs.sqlite3") as store:
        assert DeviceCosts.of(store).read_peaks() == PEAKS


TABLE = Path(__file__).resolve().parents[2] / "benchmarks/results/gpu/h100"


def test_the_bounds_of_a_gpu_hold_for_what_was_measured_on_one() -> None:
    device = named_device("h100")
    peaks = GpuPeaks.of(device)
    assert peaks is not None
    rows = read_table(TABLE / "resnet50_8_f16_table.json.gz").rows
    assert len(rows) > 9000
    tight = 0
    for key, row in rows.items():
        primitive = _C.Primitive(key.primitive, key.src, key.dst)
        bound = peaks.bound_ticks(key.problem, primitive)
        assert 0 < bound <= row.ticks, key
        tight += row.ticks < 10 * bound
    assert tight > 0.1 * len(rows)  # else a bound of zero would do


def test_a_gpu_has_rates_for_each_type_or_none_at_all() -> None:
    for name in list_devices():
        peaks = GpuPeaks.of(named_device(name))
        assert peaks is not None and not peaks.is_probed
        problem = "fwd_{}_n8c256h56w56_k256r3s3_st1x1_pad1x1_dil1x1_g1"
        conv = _C.Primitive("aten.conv", "nhwc", "nhwc")
        f16, tf32, f32 = (
            peaks.roofline_ns(problem.format(t), conv) for t in ("f16", "tf32", "f32")
        )
        assert f16 < tf32 < f32, name
    bare = _C.Device(kind="cuda", name="x", isa="sm_90", properties="{}")
    assert GpuPeaks.of(bare) is None
    assert GpuPeaks.of(_C.Device(kind="cuda", name="x", isa="sm_90")) is None
