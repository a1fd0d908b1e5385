# SPDX-License-Identifier: BSD-3-Clause
"""Recorded tables: kept, read, solved for what globality is worth, and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import bench_replay
import globality
from cost_tables import Row, Table, read_table, usable, write_table
from replay import plan_of
from support.fake_bench import spread
from support.nets import make_net
from torchalgo import _C
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.costs import Key, key_of

PROBES = (1000.0, [(1 << 14, 1000.0), (1 << 26, 500.0)])


@pytest.fixture(scope="module")
def table() -> Table:
    """A small network with invented times, looks and noise."""
    x = torch.rand(1, 3, 16, 16)
    graph = _C.import_graph(freeze_model(make_net(), (x,))._c, (x,)).graph
    found = _C.find_candidates(graph)
    transforms = _C.transform_candidates(graph, found)
    rows: dict[Key, Row] = {}
    for c in [*(c for own in found.by_anchor for c in own), *transforms]:
        ticks = round(1024 * spread(c.problem, c.primitive))
        rows[key_of(c.problem, c.primitive)] = Row(ticks, ticks // 50, 9, ticks, 1e-3, 2e-3)
    head = {
        "network": "small", "input": "1x3x16x16", "dtype": "f32", "threads": 1, "rounds": 9,
        "machine": {"cpu": "c", "isa": "i", "cores": 1, "torch": "t", "torchalgo": "a"},
        "git": {"commit": "abc", "dirty": False}, "date": "2026-01-01", "load_before": 0.1,
    }  # fmt: skip
    return Table(head, PROBES, graph, found, transforms, rows, {})


def test_a_table_survives_its_file_and_is_small(table: Table, tmp_path: Path) -> None:
    paths = [tmp_path / "a.json.gz", tmp_path / "b.json.gz"]
    write_table(table, paths[0])
    again = read_table(paths[0])
    write_table(again, paths[1])
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].stat().st_size < 30_000
    assert again.rows == table.rows and again.probes == table.probes
    assert again.graph.structure_hash == table.graph.structure_hash
    costs = [
        _C.make_plan(t.graph, t.found, t.transforms, t.costs())[0].cost for t in (table, again)
    ]
    assert costs[0] == costs[1] > 0


def test_what_could_not_be_measured_is_no_candidate(table: Table) -> None:
    lost = next(key for key in table.rows if key.primitive == "cpu.direct")
    rows = {key: row for key, row in table.rows.items() if key != lost}
    broken = Table(
        table.head, PROBES, table.graph, table.found, table.transforms, rows, {lost: "failed"}
    )
    left = [c for own in usable(broken).found.by_anchor for c in own]
    assert lost not in {key_of(c.problem, c.primitive) for c in left}
    plan, wanted = _C.make_plan(
        broken.graph, usable(broken).found, broken.transforms, broken.costs()
    )
    assert not wanted and plan.status == "optimal"


def test_no_weaker_way_to_choose_is_cheaper_than_the_optimum(table: Table) -> None:
    one = globality.outcome_of(table, draws=10, seed=1)
    assert one.plan.cost <= min(one.local, one.single, one.aten, one.per_reader)
    assert one.per_reader_claim >= one.plan.cost
    assert one.interval[0] <= one.interval[1]
    text = globality.page([one], draws=10)
    assert "| small |" in text and "proven" in text
    assert f"{one.value:.3f} [" in text


def test_paying_per_reader_equals_the_optimum_where_transforms_cost_nothing(table: Table) -> None:
    free = {
        key: Row(0, 0, 9, 0, 0.0, 0.0) if key.problem.startswith("transform") else row
        for key, row in table.rows.items()
    }
    flat = Table(table.head, PROBES, table.graph, table.found, table.transforms, free, {})
    paid, claim = globality.per_reader(flat, flat.costs())
    plan = plan_of(flat, flat.costs())
    assert paid == claim == plan.cost


def test_the_replay_finds_the_optimum_for_a_part_of_the_time(table: Table) -> None:
    result = bench_replay.lazy_result(table)
    assert result["equal"] and result["ticks"] == result["optimum_ticks"]
    assert 0 < result["measured"] < result["costs"]
    assert 0 < result["of_full"] <= result["of_one_per_algorithm"]
    assert result["bounds"]["work"]["below"] == 0


def test_recorded_costs_below_their_bounds_are_counted(table: Table) -> None:
    slow_machine = (1e-9, [(1 << 14, 1e-9)])
    rows = {key: Row(row.ticks, 0, 9, 2 * row.ticks, 0.0, 1.0) for key, row in table.rows.items()}
    wrong = Table(table.head, slow_machine, table.graph, table.found, table.transforms, rows, {})
    held = bench_replay.bounds_held(wrong)
    assert held["work"]["below"] == len(rows)
    assert held["work"]["least"] < 1


def test_one_primitive_per_algorithm_leaves_variants_out(table: Table) -> None:
    chosen = bench_replay.one_per_algorithm(table)
    variants = [k for k in chosen if k.primitive.startswith("cpu.winograd_f4x4_3x3")]
    assert len({(k.problem, k.src, k.dst) for k in variants}) == len(variants)
    assert len(chosen) <= len(table.rows)
