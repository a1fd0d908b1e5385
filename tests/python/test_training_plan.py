# SPDX-License-Identifier: BSD-3-Clause
"""The plan of a model that is trained: its text, its file, overrides, and the limit of memory."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.command import run
from support.fake_bench import FakeBench, spread
from support.page import read_page
from support.training_models import Chain, Mixed, Trio, images, options, trio
from torchalgo import _C
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.costs import Key
from torchalgo._ir.plan import AS_GIVEN, GuardVerdict, plans_to_json
from torchalgo._measure.knowledge import is_trusted
from torchalgo._report.summary import speed_of
from torchalgo._train import tuning
from torchalgo._train.plan import noted_regions

Plan = torchalgo.TrainingPlan


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> torchalgo.TrainingModule:
    settings = torchalgo.Settings(cost_db=False, progress=False)
    return torchalgo.optimize_training(
        Mixed().train(), (images(),), budget_s=60.0, settings=settings
    )


def limited(limit: int | None, tmp_path: Path) -> dict[str, Any]:
    given = options(tmp_path)
    return {**given, "settings": dataclasses.replace(given["settings"], memory_limit_bytes=limit)}


# ---- what is shown -------------------------------------------------------------------------------


def test_the_plan_has_the_primitives_of_all_directions(planned: torchalgo.TrainingModule) -> None:
    layers = {layer.name: layer for layer in planned.plan.layers}
    assert list(layers) == ["stem.0", "block.conv1", "block.conv2", "left", "right"]
    directions = ["forward", "backward_data", "backward_filter"]
    assert list(layers["stem.0"].directions) == ["forward", "backward_filter"]  # the first layer
    assert list(layers["left"].directions) == directions
    for word, spelling in zip(directions, ("fwd", "bwd_data", "bwd_filter"), strict=True):
        node = layers["left"].directions[word]
        assert node.problem.startswith(f"{spelling}_f32_") and node.primitive
    assert layers["left"].predicted_us == pytest.approx(
        sum(node.predicted_us for node in layers["left"].directions.values())
    )


def test_the_text_tells_times_proof_memory_and_what_pytorch_runs(
    planned: torchalgo.TrainingModule,
) -> None:
    text = str(planned.plan)
    assert re.search(r"^block.conv2 +forward +\S+ ", text, re.MULTILINE)
    assert re.search(r"^ +backward filter +\S+ ", text, re.MULTILINE)
    assert "5 convolutions and" in text and "in 1 region\n" in text
    assert "proven: no plan has a smaller sum of the measured costs" in text
    assert "left to PyTorch: flatten, dropout, fc" in text
    saved = re.search(r"kept for the gradients: (\d+)", text)
    assert saved is not None and int(saved[1]) > 0
    assert sum(tensor.bytes for tensor in planned.plan.saved) > 10_000
    assert "timed: a step of" in text and text.endswith("runs")
    assert max(map(len, text.splitlines()[:8])) <= 120


def test_the_text_names_some_of_many_operations_that_pytorch_runs(
    planned: torchalgo.TrainingModule,
) -> None:
    plan = dataclasses.replace(planned.plan, left_alone=[f"fc{i // 2}" for i in range(40)])
    (line,) = [line for line in str(plan).splitlines() if line.startswith("left to PyTorch: ")]
    assert line.startswith("left to PyTorch: 2 x fc0, 2 x fc1, ")
    assert line.endswith(", 2 x fc11 and 8 more, see plan.left_alone")


def test_the_text_tells_what_planning_the_directions_together_gains(
    planned: torchalgo.TrainingModule,
) -> None:
    (region,) = planned.plan.regions
    staged = {"staged": 1.025 * region.cost_us}
    plan = Plan([dataclasses.replace(region, comparisons=staged)])
    assert "so planning them together gains 2.5%" in str(plan)
    settings = torchalgo.Settings(cost_db=False, progress=False, run_untimed=True)
    chain = torchalgo.optimize_training(
        Chain(), (images(),), budget_s=float("inf"), settings=settings
    )
    (region,) = chain.plan.regions
    assert region.comparisons["staged"] >= region.cost_us
    assert "one direction after the other: " in str(chain.plan)


def test_the_parts_add_up_to_the_predicted_time(planned: torchalgo.TrainingModule) -> None:
    (region,) = planned.plan.regions
    parts = [node.predicted_us for node in region.nodes]
    parts += [change.predicted_us for change in region.transforms]
    assert planned.plan.predicted_us == pytest.approx(sum(parts), rel=1e-3)


def test_profilers_see_the_primitives_and_layers(
    planned: torchalgo.TrainingModule, tmp_path: Path
) -> None:
    model = Mixed()
    own = torchalgo.optimize_training(
        model, (images(),), plan=planned.plan, **options(tmp_path, budget_s=None)
    )
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, acc_events=True) as seen:
        own(images()).sum().backward()
    names = {event.key for event in seen.key_averages()}
    for layer in planned.plan.layers:
        for word, node in layer.directions.items():
            spelled = f"{node.primitive} {node.src}->{node.dst} {node.name}"
            assert spelled in names, word


def test_the_checker_proves_the_plan_again(planned: torchalgo.TrainingModule) -> None:
    (region,) = planned.plan.regions
    proven = region.with_proof()
    checked = torchalgo.check_plan(proven)
    assert checked.is_optimal and checked.cost_ticks == region.cost_ticks
    cheaper = dataclasses.replace(proven, cost_ticks=proven.cost_ticks - 1)
    with pytest.raises(torchalgo.Error):
        torchalgo.check_plan(cheaper)


# ---- the file ------------------------------------------------------------------------------------


def test_a_saved_plan_runs_again_without_measuring(
    planned: torchalgo.TrainingModule, tmp_path: Path
) -> None:
    planned.plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert [p.nodes for p in loaded.regions] == [p.nodes for p in planned.plan.regions]
    (tmp_path / "none").mkdir()
    both = trio(Mixed(), images(), tmp_path / "none", plan=loaded, budget_s=None)
    with CostStore.open(tmp_path / "none" / "costs.sqlite3") as store:
        assert not DeviceCosts.of(store, cold_bytes=_C.CHANGED_WEIGHTS).read()
    both.check_step(images())
    assert both.planned.planned_runs == 1
    assert [p.nodes for p in both.planned.plan.regions] == [p.nodes for p in loaded.regions]


def test_plans_of_others_are_refused(planned: torchalgo.TrainingModule, tmp_path: Path) -> None:
    given = options(tmp_path, budget_s=None)
    with pytest.raises(torchalgo.Error, match=r"TA2201 .* region that begins with 0"):
        torchalgo.optimize_training(Chain(), (images(),), plan=planned.plan, **given)
    with pytest.raises(torchalgo.Error, match="TA2201"):  # another batch size
        torchalgo.optimize_training(Mixed(), (images(3, 8, 16, 16),), plan=planned.plan, **given)
    with pytest.raises(
        torchalgo.Error, match=r"TA1004 .* plan is Plan, expected a torchalgo.Train"
    ):
        torchalgo.optimize_training(Mixed(), (images(),), plan=planned.plan.regions[0], **given)
    with pytest.raises(torchalgo.Error, match=r"TA1002 .*budget_s=3.0 has no effect"):
        torchalgo.optimize_training(
            Mixed(), (images(),), plan=planned.plan, **options(tmp_path, budget_s=3.0)
        )
    with pytest.raises(torchalgo.Error, match="TA1004"):
        model: Any = Mixed().eval()
        torchalgo.optimize(model, images(), plan=planned.plan)  # type: ignore[arg-type]


# ---- overrides -----------------------------------------------------------------------------------


def chosen(both: Trio, layer: str) -> dict[str, str]:
    (found,) = [each for each in both.planned.plan.layers if each.name == layer]
    return {word: node.primitive for word, node in found.directions.items()}


def test_overrides_fix_the_primitive_of_one_direction(tmp_path: Path) -> None:
    overrides = {
        "block.*": {"backward_filter": "aten.conv", "forward": "cpu.direct"},
        "block.conv2": {"forward": "aten.conv", "backward_data": "aten.conv"},
        "stem.0": {"backward_data": "aten.conv"},  # the step needs none
    }
    both = trio(Mixed(), images(), tmp_path, overrides=overrides)
    both.check_step(images())
    assert both.planned.planned_runs == 1
    assert chosen(both, "block.conv1")["forward"].startswith("cpu.direct")
    assert chosen(both, "block.conv1")["backward_filter"].startswith("aten.conv")
    assert all(name.startswith("aten.conv") for name in chosen(both, "block.conv2").values())


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"left": "aten.conv"}, r"TA4201 .*'left': got 'aten.conv', expected \{glob"),
        ({"left": {"backwards": "aten.conv"}}, "TA4201 .*the directions are forward, backward_d"),
        ({"left": {}}, "TA4201"),
        (["left"], "TA4201 overrides: got list"),
        ({"lefd": {"forward": "aten.conv"}}, "TA4202 .*'lefd' matches no layer.*left"),
        ({"left": {"forward": "cpu.winograd_f4x4_3x3"}}, "TA4203 .*left.* refuses"),
        ({"left": {"backward_data": "cpu.nothing"}}, "TA4004"),
    ],
)
def test_wrong_overrides_say_what_is_expected(overrides: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(torchalgo.Error, match=text):
        torchalgo.optimize_training(Mixed(), (images(),), overrides=overrides, **options(tmp_path))


# ---- the limit of memory -------------------------------------------------------------------------


def kept(both: Trio) -> int:
    return sum(tensor.bytes for tensor in both.planned.plan.saved)


class Deep(nn.Sequential):
    """Six layers whose tensors take the same memory in each layout: no channels are padded."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        widths = [images().shape[1], *[16] * 6]
        super().__init__(
            *(
                nn.Sequential(
                    nn.Conv2d(c, k, 3, padding=1, bias=False), nn.BatchNorm2d(k), nn.ReLU()
                )
                for c, k in itertools.pairwise(widths)
            )
        )


@pytest.fixture
def one_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are such that plans have nchw everywhere, so they keep no tensor in two layouts."""

    def cost_ns(problem: str, p: _C.Primitive) -> float:
        return spread(problem, p) * (1 if p.src == p.dst == "nchw" else 100)

    monkeypatch.setattr(tuning.Bench, "on", lambda *_: FakeBench(cost_ns).bench())


@pytest.mark.usefixtures("one_layout")
def test_a_limit_of_memory_recomputes_results_and_changes_no_gradient(tmp_path: Path) -> None:
    free = trio(Deep(), images(), tmp_path)
    limit = int(0.8 * kept(free))
    both = trio(Deep(), images(), tmp_path, **limited(limit, tmp_path))
    assert kept(both) <= limit < kept(free)
    (region,) = both.planned.plan.regions
    assert any(node.name.endswith(".bwd_again") for node in region.nodes)
    both.check_step(images())
    both.check_step(images(seed=5))
    assert both.planned.planned_runs == 2
    again = trio(Deep(), images(), tmp_path, plan=both.planned.plan, budget_s=None)
    again.check_step(images())
    assert kept(again) == kept(both)


@pytest.mark.usefixtures("one_layout")
def test_a_limit_that_no_plan_keeps_is_an_error_with_the_least(tmp_path: Path) -> None:
    with pytest.raises(torchalgo.Error, match=r"TA2301 .* still keeps (\d+) bytes") as problem:
        torchalgo.optimize_training(Mixed(), (images(),), **limited(1000, tmp_path))
    least = re.search(r"still keeps (\d+)", str(problem.value))
    assert least is not None
    limit = int(least[1])
    assert kept(trio(Mixed(), images(), tmp_path, **limited(limit, tmp_path))) == limit
    with pytest.raises(torchalgo.Error, match=r"TA1001 .*memory_limit_bytes=-1"):
        torchalgo.Settings(memory_limit_bytes=-1)
    with pytest.raises(torchalgo.Error, match=r"TA1003 .*memory_limit_bytes=5 .*optimize_training"):
        settings = torchalgo.Settings(memory_limit_bytes=5)
        torchalgo.optimize(nn.Conv2d(8, 8, 3).eval(), images(), settings=settings)


# ---- files and reports ---------------------------------------------------------------------------


def timed(planned: torchalgo.TrainingModule, **changes: Any) -> Plan:
    """Returns the plan with a verdict that does not depend on this machine."""
    verdict = GuardVerdict("faster", "plan", AS_GIVEN, 5e3, 8e3, 0.625, 0.6, 0.65, 6, "")
    verdict = dataclasses.replace(verdict, **changes)
    return dataclasses.replace(planned.plan, guard=verdict, left_alone=["pool", "pool", "loss"])


def test_a_file_keeps_the_verdict_and_what_is_left(
    planned: torchalgo.TrainingModule, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan, file = timed(planned), tmp_path / "net.train.json"
    plan.save(file)
    again = Plan.load(file)
    assert again == dataclasses.replace(plan, saved=[])
    assert all(region.guard is None and not region.left_alone for region in again.regions)
    text = " ".join(run(capsys, "explain", file).split())
    assert "guard: steps: faster than the model as it was given: 5.000 ms against 8.000 ms" in text
    assert "loss: it is in no region that has a plan" in text


def test_a_report_has_the_steps_and_the_regions(
    planned: torchalgo.TrainingModule, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for suffix in ("html", "txt", "csv", "trace.json", "json"):
        planned.report(tmp_path / f"own.{suffix}")
    own = read_page((tmp_path / "own.html").read_text())
    assert own.all("h1")[0].text == "Mixed" and own.all("g", "tensors")[0].children
    assert (tmp_path / "own.json").read_text() == plans_to_json(noted_regions(planned.plan))
    timed(planned).save(tmp_path / "net.train.json")
    run(capsys, "explain", tmp_path / "net.train.json", "-o", tmp_path / "r.html")
    root = read_page((tmp_path / "r.html").read_text())
    assert root.all("h2", "shapes")[0].text == "Region 1 for 2x8x16x16"
    assert root.all("p", "headline")[0].text == "1.60x as fast as PyTorch"
    for text in (
        "1.60x as fast as the model as it was given, in the median of 6 rounds [95 %: ",
        "a step takes 5.00 ms",
        "before: the model as it was given",
        "a step of the whole model took 5.000 ms",
        "3 operations left to PyTorch were not timed",
        "--training --plan-out net.train.json",
    ):
        assert text in root.text
    assert "torchalgo.optimize computes" not in root.text


@pytest.mark.parametrize(
    ("changes", "headline", "sentence"),
    [
        (
            {"runs": "baseline", "verdict": "slower"},
            "No gain: the model as it was given runs",
            "The model as it was given runs, since the plan is not faster: a step of 5.00 ms",
        ),
        (
            {"runs": "baseline", "reason": "after 1 of 6 rounds"},
            "No gain: the model as it was given runs",
            "The model as it was given runs: a step of 5.00 ms against 8.00 ms; after 1 of 6",
        ),
        (
            {"verdict": "unclear"},
            "No clear difference from the model as it was given",
            "No clear difference from the model as it was given: a step of",
        ),
    ],
)
def test_the_headline_of_a_step_says_what_the_guard_found(
    planned: torchalgo.TrainingModule, changes: dict[str, Any], headline: str, sentence: str
) -> None:
    speed = speed_of(noted_regions(timed(planned, **changes))[0])
    assert speed.headline == headline and speed.sentence.startswith(sentence)


def test_a_model_without_a_plan_has_no_report(tmp_path: Path) -> None:
    model = torchalgo.optimize_training(nn.Linear(4, 4), (torch.rand(2, 4),))
    with pytest.raises(torchalgo.Error, match=r"^TA1408 report: the model runs as it was given"):
        model.report(tmp_path / "r.html")


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_plans_writes_applies_and_times(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    net, file = "support.training_models:Chain", tmp_path / "chain.train.json"
    own = ("--input", "2x8x16x16", "--training", "--cost-db", tmp_path / "costs.sqlite3")
    text = run(
        capsys, "optimize", net, *own, "--plan-out", file, "--quiet", "--run-untimed",
        "--override", "0:backward_filter=aten.conv", "--report", tmp_path / "r.csv",
    )  # fmt: skip
    assert "aten.conv" in text and "1 convolutions and" in text
    assert "0.bwd_filter" in (tmp_path / "r.csv").read_text()
    record = json.loads(run(capsys, "optimize", net, *own, "--plan", file, "--quiet", "--json"))
    assert record["runs"] in ("plan", "baseline") and len(record["regions"]) == 1
    assert "layer" in run(capsys, "explain", file)
    rows = json.loads(run(capsys, "bench", net, *own[:3], "--rounds", "3", "--json"))
    ratios = {row["name"]: row.get("ratio") for row in rows}
    assert ratios.keys() == {"plan", "as it is", "channels_last"} and ratios["plan"] is None
    assert all(row["median_ms"] >= row["min_ms"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("optimize", "-o", "net.pt"), "TA7201 optimize: --training has no -o"),
        (("optimize", "--objective", "energy"), "TA1003 optimize"),
        (("optimize", "--override", "0=aten.conv"), "GLOB:DIRECTION=PRIMITIVE"),
        (
            ("optimize", *(f"--override={glob}:forward=aten.conv" for glob in "0?0")),
            "which of both wins",
        ),
        (("bench", "--compile"), "TA7201 bench: --compile does not go with --training"),
    ],
)
def test_wrong_commands_say_what_to_write(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], text: str
) -> None:
    command, *flags = argv
    own = ("support.training_models:Chain", "--input", "2x8x16x16", "--training")
    assert text in run(capsys, command, *own, *flags, code=2 if "TA7201" in text else 1)


def test_a_file_to_write_is_needed_without_training(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "optimize", "support.nets:net_factory", "--input", "1x3x40x40", code=2)
    assert "TA7201 optimize: the file to write is missing" in text


def test_a_copy_of_a_planned_model_has_its_plan(planned: torchalgo.TrainingModule) -> None:
    copied = copy.deepcopy(planned)
    assert copied.plan is planned.plan
    copied(images()).sum().backward()
    assert copied.planned_runs == (1 if planned.runs == "plan" else 0)
    assert all(p.grad is None for p in planned.parameters())


def test_a_plan_and_a_limit_or_overrides_exclude_each_other(
    planned: torchalgo.TrainingModule, tmp_path: Path
) -> None:
    given = options(tmp_path, budget_s=None)
    limit = dataclasses.replace(given["settings"], memory_limit_bytes=10**9)
    with pytest.raises(torchalgo.Error, match=r"TA1002 .*memory_limit_bytes=1000000000 has no"):
        torchalgo.optimize_training(
            Mixed(), (images(),), plan=planned.plan, **{**given, "settings": limit}
        )
    with pytest.raises(
        torchalgo.Error, match=r"TA1002 .*plan and overrides, expected one of them$"
    ):
        torchalgo.optimize_training(
            Mixed(), (images(),), plan=planned.plan, overrides={"left": {"forward": "aten.conv"}},
            **given,
        )  # fmt: skip


# ---- a plan that was given is checked ------------------------------------------------------------


def saved(planned: torchalgo.TrainingModule, tmp_path: Path) -> Plan:
    planned.plan.save(tmp_path / "plan.json")
    return Plan.load(tmp_path / "plan.json")


def own_primitives(plan: Plan) -> set[tuple[str, str]]:
    """Returns the primitives that are checked: all but PyTorch's own, and views."""
    parts = [part for region in plan.regions for part in (*region.nodes, *region.transforms)]
    keys = [Key(p.problem, p.primitive, p.src, p.dst) for p in parts if p.primitive]
    return {(key.problem, key.primitive) for key in keys if not is_trusted(key)}


def test_the_primitives_of_a_given_plan_are_checked_once(
    planned: torchalgo.TrainingModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, fake = saved(planned, tmp_path), FakeBench(spread)
    monkeypatch.setattr(tuning.Bench, "on", lambda *_: fake.bench())
    given = options(tmp_path, budget_s=None)
    assert own_primitives(plan)
    torchalgo.optimize_training(Mixed(), (images(),), plan=plan, **given)
    assert set(fake.checked) == own_primitives(plan) and not fake.measured
    fake.checked.clear()
    torchalgo.optimize_training(Mixed(), (images(),), plan=plan, **given)
    assert not fake.checked


@pytest.mark.parametrize("place", [0.0, 0.5, 0.99])  # a gradient, a forward pass, a layout change
def test_a_given_plan_with_a_wrong_primitive_is_refused(
    place: float, planned: torchalgo.TrainingModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, fake = saved(planned, tmp_path), FakeBench(spread)
    own = sorted(own_primitives(plan))
    name = own[int(place * len(own))][1]
    fake.check_errors = {name: 0.1}
    monkeypatch.setattr(tuning.Bench, "on", lambda *_: fake.bench())
    given = options(tmp_path, budget_s=None)
    for _ in range(2):  # the second time, the database has the verdict
        checks = len(fake.checked)
        with pytest.raises(torchalgo.Error, match=rf"TA2204 .* has {re.escape(name)} for "):
            torchalgo.optimize_training(Mixed(), (images(),), plan=plan, **given)
    assert len(fake.checked) == checks


def test_a_given_plan_whose_primitive_failed_in_tuning_is_refused(
    planned: torchalgo.TrainingModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuning and plans share the verdicts of the database."""
    plan, fake = saved(planned, tmp_path), FakeBench(spread)
    name = sorted(own_primitives(plan))[0][1]
    fake.check_errors = {name: 0.1}
    monkeypatch.setattr(tuning.Bench, "on", lambda *_: fake.bench())
    torchalgo.optimize_training(Mixed(), (images(),), **options(tmp_path))
    with pytest.raises(torchalgo.Error, match="TA2204"):
        torchalgo.optimize_training(
            Mixed(), (images(),), plan=plan, **options(tmp_path, budget_s=None)
        )


def test_nothing_is_proven_of_times_that_were_not_measured(
    planned: torchalgo.TrainingModule,
) -> None:
    (region,) = planned.plan.regions
    count = len([p for p in (*region.nodes, *region.transforms) if p.primitive])
    guessed = [dataclasses.replace(n, cost_source="model") for n in region.nodes[:2]]
    plan = Plan([dataclasses.replace(region, nodes=[*guessed, *region.nodes[2:]])])
    text = f"not proven optimal: 2 of {count} times were not measured"
    assert text in str(plan) and "proven: no plan" not in str(plan)
    changes = [dataclasses.replace(t, cost_source="model") for t in region.transforms]
    if changes:
        plan = Plan([dataclasses.replace(region, transforms=changes)])
        assert f"not proven optimal: {len(changes)} of {count} times" in str(plan)


def test_a_plan_of_a_call_without_time_proves_nothing(tmp_path: Path) -> None:
    given = options(tmp_path, budget_s=1e-3)
    planned = torchalgo.optimize_training(Chain().train(), (images(),), **given)
    assert "not proven optimal: " in str(planned.plan)
    assert " times were not measured" in str(planned.plan)
    assert str(saved(planned, tmp_path)).count("times were not measured") == 1
