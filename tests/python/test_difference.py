# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import torchalgo
from support.command import run
from support.page import cells, read_page
from support.plans import make_node, make_plan
from torchalgo._ir.plan import GuardVerdict, Plan, PlanEnergy, save_plans
from torchalgo._measure.guard import time_interleaved
from torchalgo._report.difference import Choice, Difference, compare


def changed(plan: Plan, **changes: object) -> Plan:
    """Returns the plan with another first node."""
    return dataclasses.replace(
        plan, nodes=[dataclasses.replace(plan.nodes[0], **changes), *plan.nodes[1:]]
    )


def test_equal_plans_have_no_difference() -> None:
    found = compare(make_plan(), make_plan())
    assert found.differences == ()
    assert (found.same, found.same_costs) == (3, (20.5, 20.5))
    assert "0 choices differ; 3 are the same" in str(found)


def test_another_primitive_and_another_layout_are_differences() -> None:
    before, after = make_plan(), changed(make_plan(), primitive="cpu.direct", predicted_us=14.0)
    (found,) = compare(before, after).differences
    assert found == Difference(
        "conv1", Choice("cpu.winograd_f4x4_3x3.t14 nChw16c", 12.5), Choice("cpu.direct nChw16c", 14)
    )
    assert found.more == 1.5
    (found,) = compare(before, changed(before, src="nhwc")).differences
    assert found.after == Choice("cpu.winograd_f4x4_3x3.t14 nhwc>nChw16c", 12.5)


def test_another_cost_of_the_same_choice_is_no_difference() -> None:
    found = compare(make_plan(), changed(make_plan(), predicted_us=13.0))
    assert found.differences == () and found.same_costs == (20.5, 21.0)


def test_what_one_plan_lacks_is_a_difference() -> None:
    alone = make_plan(transforms=[], nodes=[make_node("conv1"), make_node("relu", predicted_us=2)])
    found = compare(make_plan(), alone).differences
    assert [(item.name, item.more) for item in found] == [("> nChw16c of x", -8), ("relu", 2)]
    assert found[0].after is None and found[1].before == Choice("in conv1", 0)


def test_the_text_has_the_costs_and_the_environments() -> None:
    after = changed(
        make_plan(cost_us=22.0, environment={"torch": "2.11.0", "cpu": "another", "threads": "2"}),
        primitive="cpu.direct", predicted_us=14.0,
    )  # fmt: skip
    lines = str(compare(make_plan(), after)).splitlines()
    assert lines[0] == "predicted: 0.021 ms (optimal) -> 0.022 ms (optimal) (1.073x)"
    assert lines[1].startswith("measured: 0.021 ms -> 0.021 ms, in two runs")
    assert lines[2] == "cpu: a CPU -> another"
    assert lines[5].split() == [
        "conv1", "cpu.winograd_f4x4_3x3.t14", "nChw16c", "12.5", "cpu.direct", "nChw16c", "14.0",
        "+1.5",
    ]  # fmt: skip
    assert lines[-1].startswith("1 choice differs; 2 are the same: 8.0 us in the first plan")


def test_plans_that_cannot_be_compared_are_refused() -> None:
    energy = make_plan(objective="energy", energy=PlanEnergy("a meter", 1.0, 1.0))
    with pytest.raises(torchalgo.Error, match=r"^TA7204 compare: one plan is for latency and"):
        compare(make_plan(), energy)
    with pytest.raises(
        torchalgo.Error, match=r"^TA7204 compare: .* expected two plans of one model"
    ):
        compare(make_plan(), make_plan(nodes=[make_node("other")], transforms=[]))


def test_the_command_compares_the_shapes_that_both_files_have(
    capsys: pytest.CaptureFixture[str], shaped: torchalgo.Optimized, tmp_path: Path
) -> None:
    plans = list(shaped.plans.values())
    for name, own in (("all", plans), ("two", plans[1:]), ("first", plans[:1])):
        save_plans(own, tmp_path / f"{name}.plan.json")
    every, two, first = (tmp_path / f"{name}.plan.json" for name in ("all", "two", "first"))
    text = run(capsys, "compare", every, two)
    assert [line for line in text.splitlines() if line.startswith("plans for")] == [
        f"plans for {shapes}" for shapes in list(shaped.plans)[1:]
    ]
    data = json.loads(run(capsys, "compare", every, first, "--json"))
    assert [item["differences"] for item in data.values()] == [[]]
    save_plans(plans[1:2], two)
    assert f"plans for {next(iter(shaped.plans))} -> " in run(capsys, "compare", first, two)
    model = ("--model", "support.nets:net_factory")
    assert "--model cannot time plans for" in run(capsys, "compare", first, two, *model, code=1)
    save_plans(plans[1:], two)
    error = run(capsys, "compare", first, two, code=1)
    assert "TA7204 compare:" in error and "expected a shape that both have" in error
    assert "there is no file" in run(capsys, "compare", first, tmp_path / "no.json", code=1)
    run(capsys, "compare", first, code=2)


def test_the_command_times_both_plans_and_fails_if_the_second_is_slower(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fast: torchalgo.Optimized,
    tmp_path: Path,
) -> None:
    ours, torchs = tmp_path / "ours.plan.json", tmp_path / "torchs.plan.json"
    fast.plan.save(ours)
    other = fast.plan.with_overrides({"*": "aten.conv"})
    slower = GuardVerdict("slower", "baseline", "eager", 2.0, 1.0, 2.0, 1.9, 2.1, 25, "")
    dataclasses.replace(other, guard=slower).save(torchs)  # on another machine
    model = ("--model", "support.nets:net_factory", "--rounds", "7")

    def at_fixed_speed(calls: dict[str, Any], **options: Any) -> dict[str, list[float]]:
        """Returns times with a ratio of 0.5, and an interval of 0.5 to 1."""
        ran = {word: call.func for word, call in calls.items()}
        assert {module.runs for module in ran.values()} == {"plan"}
        assert ran["first"].plan.nodes == fast.plan.nodes
        assert ran["second"].plan.nodes == other.nodes != fast.plan.nodes
        assert time_interleaved(calls, **options).keys() == {"first", "second"}
        times = {"second": [2e6] * 7, "first": [*[1e6] * 4, *[2e6] * 3]}
        return {word: ns[: options["rounds"]] for word, ns in times.items()}

    monkeypatch.setattr("torchalgo._run.call_times.time_interleaved", at_fixed_speed)
    text = run(capsys, "compare", ours, torchs, *model, "--fail-below", "0.9")
    assert text.endswith("is 0.50 times as fast as the first (95 % interval: 0.50 to 1.00)\n")
    text = run(capsys, "compare", ours, torchs, *model, "--fail-below", "1.1", code=1)
    assert text.endswith("0.50 to 1.00), below 1.1\n")
    data = json.loads(run(capsys, "compare", ours, torchs, *model, "--json"))
    assert data["1x3x40x40"]["speed"] == [0.5, 0.5, 1.0]
    few = ("--fail-below", "0.9", "--rounds", "6")
    error = run(capsys, "compare", ours, torchs, *model, *few, code=1)
    assert "TA7204 compare: --fail-below needs at least 7 rounds, and there were 6" in error
    error = run(capsys, "compare", ours, torchs, "--fail-below", "0.6", code=2)
    assert "TA7201 compare: --fail-below needs the model" in error


def test_the_command_writes_a_page_with_the_differences_and_both_plans(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before, after, page = (tmp_path / name for name in ("a.plan.json", "b.plan.json", "d.html"))
    save_plans([make_plan()], before)
    save_plans([changed(make_plan(), primitive="cpu.direct", predicted_us=14.0)], after)
    run(capsys, "compare", before, after, "-o", page)
    root = read_page(page.read_text("utf-8"))
    (table,) = root.all("table", "differences")
    assert [cells(row) for row in table.all("tr")][1:] == [
        ["conv1", "cpu.winograd_f4x4_3x3.t14 nChw16c", "12.5", "cpu.direct nChw16c", "14.0", "+1.5"]
    ]
    titles = [heading.text for heading in root.all("h2", "shapes")]
    assert [title.split(",")[:2] for title in titles] == [
        ["First plan", " a.plan.json"], ["Second plan", " b.plan.json"],
    ]  # fmt: skip
    assert "1 choice differs; 2 are the same" in root.text
    assert "TA2010 compare: " in run(
        capsys, "compare", before, after, "-o", tmp_path / "d.txt", code=1
    )
