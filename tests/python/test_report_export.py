# SPDX-License-Identifier: BSD-3-Clause
"""Tables and traces of plans."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import torchalgo
from support.command import run
from support.plans import make_node, make_plan
from torchalgo._ir.plan import LeftAlone, Plan, PlanEnergy, PlanTransform
from torchalgo._report.export import COLUMNS, csv_text, trace_text
from torchalgo._report.subject import Subject

ODD = 'a "b", слой.1\n=c'


def table_of(text: str) -> list[dict[str, str]]:
    table = list(csv.DictReader(io.StringIO(text, newline="")))
    assert all(tuple(row) == COLUMNS and None not in row.values() for row in table)
    return table


def events_of(text: str) -> list[dict[str, Any]]:
    """Returns the events with a time. Checks that those of a lane follow each other."""
    events = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    for lane in {(event["pid"], event["tid"]) for event in events}:
        own = [event for event in events if (event["pid"], event["tid"]) == lane]
        for one, other in pairwise(sorted(own, key=lambda event: event["ts"])):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-3
    return events


def check_sums(plan: Plan, table: list[dict[str, str]], events: list[dict[str, Any]]) -> None:
    of_plan = [row for row in table if row["kind"] != "left to PyTorch"]
    assert len(of_plan) == sum(bool(n.primitive) for n in plan.nodes) + len(plan.transforms)
    assert sum(float(row["us"]) for row in of_plan) == pytest.approx(plan.cost_us, abs=0.01)
    times = [event["dur"] for event in events if event["cat"] != "left to PyTorch"]
    assert len(times) == len(of_plan)
    assert sum(times) == pytest.approx(plan.cost_us, abs=0.01)


def test_both_have_the_operations_in_the_order_of_a_call(
    fast: torchalgo.Optimized, tmp_path: Path
) -> None:
    fast.report(tmp_path / "net.csv")
    fast.report(tmp_path / "net.trace.json")
    text = (tmp_path / "net.csv").read_bytes().decode()
    table, events = table_of(text), events_of((tmp_path / "net.trace.json").read_text())
    assert text.count("\r\n") == len(table) + 1
    check_sums(fast.plan, table, events)
    planned = [(row["name"], row["primitive"]) for row in table if row["kind"] != "left to PyTorch"]
    steps = [step for step in fast.schedule().steps if step.runs != "PyTorch"]
    assert planned == [(step.layer, step.runs) for step in steps]
    timed = [row for row in table if row["us"]]
    assert [row["name"] for row in timed] == [event["name"] for event in events]
    begins = [event["ts"] for event in events]
    assert begins == sorted(begins)


def test_odd_names_survive() -> None:
    plan = make_plan(
        nodes=[make_node(ODD)], left_alone=[LeftAlone(ODD, ODD, 3.0, ODD), LeftAlone("b", "no")]
    )
    change, node, timed, untimed = table_of(csv_text([Subject(plan)]))
    assert node["name"] == timed["name"] == timed["note"] == timed["line"] == ODD
    assert (node["source"], timed["source"]) == ("measured", "measured in a call")
    assert (timed["us"], untimed["us"], untimed["source"]) == ("3.0", "", "")
    assert change["kind"] == "layout change" and change["algorithm"] == "layout changes"
    assert node["regret"] == "3.25" and node["runner_up"] == "aten.prepacked nhwc"
    events = events_of(trace_text([Subject(plan)]))
    assert [event["name"] for event in events] == ["x", ODD, ODD]
    assert [(event["ts"], event["dur"]) for event in events] == [(0, 8), (8, 12.5), (20.5, 3)]
    assert events[0]["args"] == {
        "layout": "nchw>nChw16c", "primitive": "layout.tiled", "cost": "measured",
        "problem": "transform_f32_n1c16h56w56_nchw_nChw16c",
    }  # fmt: skip


def test_a_plan_for_energy_has_times_too() -> None:
    plan = make_plan(
        nodes=[make_node("conv1", predicted_uj=300.0)],
        transforms=[PlanTransform("x", "", "t", "layout.tiled", "nchw", "nChw16c", 8.0, 8, 90.0)],
        objective="energy",
        energy=PlanEnergy("a meter", 390.0, 390.0),
    )
    rows = table_of(csv_text([Subject(plan)]))
    values = [(row["us"], row["uj"]) for row in rows]
    assert values == [("8.0", "90.0"), ("12.5", "300.0"), ("", "")]
    assert [event["dur"] for event in events_of(trace_text([Subject(plan)]))] == [8.0, 12.5]


def test_several_plans_are_several_processes(shaped: torchalgo.Optimized, tmp_path: Path) -> None:
    shaped.report(tmp_path / "net.csv")
    shaped.report(tmp_path / "net.trace.json")
    events = events_of((tmp_path / "net.trace.json").read_text())
    table = table_of((tmp_path / "net.csv").read_bytes().decode())
    names = list(dict.fromkeys(row["plan"] for row in table))
    assert names == [f"Plan for {shapes}" for shapes in shaped.plans]
    for i, (name, plan) in enumerate(zip(names, shaped.plans.values(), strict=True), start=1):
        own = [event for event in events if event["pid"] == i]
        check_sums(plan, [row for row in table if row["plan"] == name], own)
        assert own[0]["ts"] == 0


# ---- the command ---------------------------------------------------------------------------------


def test_explain_writes_both(
    capsys: pytest.CaptureFixture[str], fast: torchalgo.Optimized, tmp_path: Path
) -> None:
    source, trace, table = tmp_path / "net.pt", tmp_path / "net.json", tmp_path / "a table"
    fast.save(source)
    out = run(capsys, "explain", source, "--trace", trace, "--csv", table)
    assert out == f"trace   {trace}\ncsv     {table}\n"
    check_sums(fast.plan, table_of(table.read_bytes().decode()), events_of(trace.read_text()))
    text = table.read_bytes().decode()
    assert run(capsys, "explain", source, "--csv", "-", "-o", tmp_path / "r.txt") == text
    assert (tmp_path / "r.txt").exists()
    assert run(capsys, "explain", source, "--trace", "-") == trace.read_text()
    out = run(capsys, "explain", source, "--trace", trace, "--json")
    assert out == fast.plan.to_json()
    fast.plan.save(tmp_path / "net.plan.json")
    run(capsys, "explain", tmp_path / "net.plan.json", "--trace", trace, "--csv", table)
    check_sums(fast.plan, table_of(table.read_bytes().decode()), events_of(trace.read_text()))


def test_explain_writes_both_for_a_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = ("support.nets:net_factory", "--input", "1x3x40x40", "--quiet", "--run-untimed")
    trace = tmp_path / "t.json"
    table = table_of(run(capsys, "explain", *own, "--trace", trace, "--csv", "-"))
    events = events_of(trace.read_text())
    assert [row["name"] for row in table if row["us"]] == [event["name"] for event in events]


def test_wrong_files_and_flags_are_errors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = tmp_path / "net.plan.json"
    make_plan().save(plan)
    model = ("support.nets:net_factory", "--input", "1x3x40x40")
    conv = make_node("a").problem.partition("+")[0]
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("TA7102 cannot write /none/t.json: there is no folder", (plan, "--trace", "/none/t.json")),
        ("it is a folder: name a file in it", (plan, "--csv", tmp_path)),
        ("TA7201 explain: --csv - and --json print to the same", (plan, "--csv", "-", "--json")),
        ("--trace - and --csv - print to the same", (plan, "--trace", "-", "--csv", "-")),
        ("--trace does not go with a problem", (conv, "--trace", "t.json")),
        ("--csv does not go with --candidates", (*model, "--candidates", "--csv", "-")),
        ("--csv does not go with --over without -o", (*model, "--over", "weights", "--csv", "-")),
    ]
    for text, argv in cases:
        code = 1 if "TA7102" in text or "folder" in text else 2
        assert text in run(capsys, "explain", *argv, code=code)
