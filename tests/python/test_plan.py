# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchalgo
from support.plans import make_node, make_plan
from torchalgo import _C
from torchalgo._ir.plan import Plan


def test_json_round_trip_gives_an_equal_plan_and_the_same_text() -> None:
    plan = make_plan()
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()


def test_only_files_of_later_hashes_say_which_version_theirs_is() -> None:
    assert "structure_version" not in json.loads(make_plan().to_json())
    older = make_plan(structure_version=0)
    assert json.loads(older.to_json())["structure_version"] == 0
    assert Plan.from_json(older.to_json()) == older


def test_a_plan_of_a_newer_hash_is_refused() -> None:
    data = json.loads(make_plan(structure_version=_C.STRUCTURE_VERSION + 1).to_json())
    newer = json.dumps(data | {"a_field_of_then": 1})
    with pytest.raises(torchalgo.Error, match=r"this torchalgo knows versions.*update torchalgo"):
        Plan.from_json(newer)


def test_a_file_round_trip_gives_an_equal_plan(tmp_path: Path) -> None:
    make_plan().save(tmp_path / "net.plan.json")
    assert torchalgo.load_plan(tmp_path / "net.plan.json") == make_plan()


def test_a_plan_can_be_pickled_and_copied_with_its_resolver() -> None:
    plan = make_plan(resolve=lambda overrides: make_plan())
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert copy.deepcopy(plan) == plan


def damage(path: list[Any], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        place: Any = data
        for step in path[:-1]:
            place = place[step]
        if value is KeyError:
            del place[path[-1]]
        else:
            place[path[-1]] = value

    return change


DAMAGE = [
    (damage(["schema"], 2), "schema is 2"),
    (damage(["schema"], KeyError), "schema is null"),
    (damage(["structure_version"], -1), "structure_version is negative"),
    (damage(["structure_version"], "1"), "structure_version: expected int"),
    (damage(["nodes", 0, "predicted_us"], "fast"), r"nodes\[0\].predicted_us: expected float"),
    (damage(["nodes", 0, "ticks"], 1.5), r"nodes\[0\].ticks: expected int, got 1.5"),
    (damage(["nodes", 0, "ticks"], True), r"nodes\[0\].ticks: expected int, got true"),
    (damage(["nodes", 0, "ticks"], -1), "a cost is negative"),
    (damage(["nodes", 0, "src"], "nchw16"), r"nodes\[0\].src: expected one of nchw, nhwc"),
    (damage(["nodes", 0, "src"], ["nchw"]), r"nodes\[0\].src: expected one of"),
    (damage(["nodes", 0, "dst"], "nChw8c"), r'got "nChw8c", which is no longer a layout, since'),
    (damage(["nodes", 0, "name"], KeyError), r"nodes\[0\]: lacks 'name'"),
    (damage(["nodes", 0, "path"], "/etc"), r"nodes\[0\]: has an unknown field 'path'"),
    (damage(["nodes", 0, "primitive"], ""), r"nodes\[0\] \(conv1\): needs either"),
    (damage(["nodes", 1, "absorbed_by"], "conv7"), "absorbed_by is 'conv7'"),
    (damage(["nodes", 1, "name"], "conv1"), "the name occurs twice"),
    (damage(["nodes"], {}), "nodes: expected list, got {}"),
    (damage(["environment", "torch"], 2.11), "environment.torch: expected str"),
    (damage(["transforms", 0, "dst"], "nchw"), r"transforms\[0\]: from nchw to itself"),
    (damage(["status"], "perfect"), "status: expected one of optimal, feasible"),
    (damage(["guard", "rounds"], None), "guard.rounds: expected int, got null"),
    (damage(["comparisons"], KeyError), "lacks 'comparisons'"),
    (damage(["nodes", 0, "predicted_us"], -1.0), "a predicted_us is negative"),
    (damage(["nodes", 0, "predicted_us"], 10**400), r"predicted_us: expected a finite number"),
    (damage(["guard", "high"], 0.0), r"guard: a ratio of times is not above 0"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGE, ids=[m for _, m in DAMAGE])
def test_a_malformed_plan_is_an_error_that_names_the_place(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    data = json.loads(make_plan().to_json())
    change(data)
    with pytest.raises(torchalgo.Error, match=f"(?s)^TA2\\d{{3}} file.json.*{message}"):
        Plan.from_json(json.dumps(data), "file.json")


def test_a_layout_that_is_gone_is_refused_with_the_reason() -> None:
    reason = "'nChw8c' is no longer a layout, since no algorithm used it: expected nchw, nhwc,"
    with pytest.raises(torchalgo.Error, match=f"^TA4003 {reason}"):
        _C.Primitive("layout.tiled", "nchw", "nChw8c")


@pytest.mark.parametrize("keep", [0, 1, 10, 0.5, 0.99])
def test_a_truncated_plan_is_an_error(keep: float) -> None:
    text = make_plan().to_json()
    part = text[: int(keep * len(text.rstrip())) if isinstance(keep, float) else keep]
    with pytest.raises(torchalgo.Error, match="no plan of torchalgo, or it is truncated"):
        Plan.from_json(part)


@pytest.mark.parametrize("text", ["[]", "3", '"plan"', "null", b"\xff\xfe\x00", "[" * 100_000])
def test_foreign_text_is_an_error(text: str | bytes) -> None:
    with pytest.raises(torchalgo.Error):
        Plan.from_json(text)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_an_error(number: str) -> None:
    text = make_plan().to_json().replace("20.5", number)
    with pytest.raises(torchalgo.Error, match=rf"{number}|expected a finite number"):
        Plan.from_json(text)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(torchalgo.Error, match="cannot read"):
        torchalgo.load_plan(tmp_path / "none.json")


def test_the_table_shows_each_choice_and_fits_120_columns() -> None:
    long_name = "features.denseblock4.denselayer16.branch_with_a_long_name.conv2"
    text = str(make_plan(nodes=[make_node(long_name), make_node("conv2")]))
    assert max(map(len, text.splitlines())) <= 120
    assert "cpu.winograd_f4x4_3x3.t14" in text
    assert "  > nChw16c" in text
    assert "optimal for these measured, additive costs: predicted" in text
    assert "predicted 0.021 ms, measured 0.021 ms; 0 layers tied within noise" in " ".join(
        text.split()
    )
    assert "aten.prepacked nhwc " in text
    assert "aten only" in text
    assert "1.463x this plan" in text
    assert "conv9: inside a loop" in text


def test_a_change_behind_an_op_of_pytorch_names_the_op() -> None:
    plan = make_plan()
    behind = dataclasses.replace(plan.transforms[0], value="y", producer="einsum_0")
    lines = str(make_plan(transforms=[plan.transforms[0], behind])).splitlines()
    assert [line.split("  layout")[0].rstrip() for line in lines if line.startswith("  >")] == [
        "  > nChw16c", "  > nChw16c of einsum_0",
    ]  # fmt: skip


def test_an_absorbed_node_has_no_row_of_its_own() -> None:
    lines = str(make_plan()).splitlines()
    assert not [line for line in lines if line.startswith("relu")]
    assert [line for line in lines if line.startswith("conv1") and "+bias+relu" in line]


def test_a_feasible_plan_says_how_far_from_the_optimum_it_can_be() -> None:
    text = str(make_plan(status="feasible", lower_bound_us=10.25))
    assert "feasible, at most 100.00 % above the optimum" in text
    limited = make_plan(status="feasible", lower_bound_us=10.25, unproven="the error bound decides")
    text = "not proven: the error bound decides; at most 100.00 % above the best bound of these"
    assert text in " ".join(str(limited).split())


def test_overrides_of_a_plan_from_a_file_say_what_to_do_instead() -> None:
    plan = Plan.from_json(make_plan().to_json())
    with pytest.raises(torchalgo.Error, match=r"use torchalgo.optimize"):
        plan.with_overrides({"conv1": "aten.conv"})


def test_the_repr_of_a_plan_is_one_line_and_its_text_is_the_table(
    fast: torchalgo.Optimized,
) -> None:
    plan = fast.plan
    assert re.fullmatch(
        r"<torchalgo\.Plan: \d+ operations for 1x3x40x40, [\d.]+ ms predicted, optimal>",
        repr(plan),
    )
    assert repr([plan]) == f"[{plan!r}]"
    assert str(plan).count("\n") > len(plan.nodes) and f"{plan}" == str(plan)
    assert "<pre" in plan._repr_html_()
