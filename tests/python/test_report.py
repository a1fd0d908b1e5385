# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import base64
import dataclasses
import hashlib
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.command import run
from support.nets import make_net
from support.page import Element, cells, read_page
from support.plan_samples import GraphText, Sample
from support.plans import make_node, make_plan
from torchalgo import _C
from torchalgo._ir.plan import (
    GuardVerdict,
    LeftAlone,
    Plan,
    PlanTransform,
    Quarantined,
)
from torchalgo._report import page
from torchalgo._report.lanes import NO_LANE, assign_lanes, draw
from torchalgo._report.operations import Flow, Operation, Tensor, flow_of
from torchalgo._report.page import html_page
from torchalgo._report.subject import Subject
from torchalgo._report.texts import short_report, speed_line
from torchalgo._report.times import MOST_TOTALS, rows_of, stages_of, totals_of
from torchalgo._run.load import load_with_graphs

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
EVIL = "<script>alert('x')</script> & \"y\""


def page_of(*plans: Plan, **subject: Any) -> Element:
    return read_page(html_page([Subject(plan, **subject) for plan in plans], "net"))


@pytest.fixture(scope="module")
def tuned(x: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> torchalgo.Optimized:
    """Optimized with its costs in memory."""
    costs = tmp_path_factory.mktemp("costs") / "costs.sqlite3"
    settings = torchalgo.Settings(progress=False, cost_db=costs)
    return torchalgo.optimize(make_net(), x, settings=settings)


@pytest.fixture(scope="module")
def report(tuned: torchalgo.Optimized, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    tuned.report(path, front=tuned.pareto("weights", max_points=4))
    return path


@pytest.fixture(scope="module")
def whole(report: Path) -> Element:
    return read_page(report.read_text())


# ---- the page as a whole -------------------------------------------------------------------------


def test_the_page_needs_nothing_from_outside(report: Path, whole: Element) -> None:
    text = report.read_text()
    assert "http:" not in text and "https:" not in text and "@import" not in text
    assert "url(" not in text
    assert not whole.all("link") and not whole.all("img") and not whole.all("iframe")
    assert all("src" not in element.attributes for element in whole.all())
    links = [a.attributes["href"] for a in whole.all("a")]
    assert links and all(link.startswith("#") for link in links)
    assert len(text) < 400_000  # 0.9 MB for DenseNet-121


def test_only_its_own_script_may_run(whole: Element) -> None:
    (script,) = whole.all("script")
    digest = hashlib.sha256("".join(script.texts).encode()).digest()
    (policy,) = [m for m in whole.all("meta") if "http-equiv" in m.attributes]
    wanted = f"script-src 'sha256-{base64.b64encode(digest).decode()}'"
    assert (
        policy.attributes["content"] == f"default-src 'none'; style-src 'unsafe-inline'; {wanted}"
    )
    assert not [e for e in whole.all() if any(name.startswith("on") for name in e.attributes)]


def test_ids_are_unique_and_links_and_labels_lead_to_them(whole: Element) -> None:
    ids = [e.attributes["id"] for e in whole.all() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    wanted = [e.attributes["href"][1:] for e in whole.all("a")]
    wanted += [f"d-{e.attributes['data-op']}" for e in whole.all() if "data-op" in e.attributes]
    for element in whole.all():
        wanted += element.attributes.get("aria-labelledby", "").split()
    assert set(wanted) <= set(ids)


def test_every_picture_has_a_text_alternative(whole: Element) -> None:
    pictures = whole.all("svg")
    assert {picture.attributes["class"] for picture in pictures} == {"before-after", "lanes"}
    for picture in pictures:
        assert [child for child in picture.children if child.tag == "title" and child.text]
        assert [child for child in picture.children if child.tag == "desc" and child.text]


def test_everything_can_be_reached_by_keyboard(whole: Element) -> None:
    for css in ("graph", "scroll"):
        assert all(e.attributes["tabindex"] == "0" for e in whole.all("div", css))
    for strip in whole.all("div", "strip"):
        assert len(strip.all("a")) == len(strip.all("", "dot"))


@pytest.mark.parametrize(
    "name",
    [EVIL, "слой.1.свёртка", "層" * 90, "a.b&amp;c", "x\u2028y"],
    ids=["script", "cyrillic", "long", "entity", "separator"],
)
def test_names_of_the_model_are_escaped(name: str) -> None:
    plan = make_plan(
        nodes=[make_node(name, problem=name, runner_up=f"{name} nhwc->nhwc")],
        left_alone=[LeftAlone(name, name, 3.0, name)],
        method=name,
        environment={name: name},
        quarantined=[Quarantined(name, name, "nchw", "nchw", name)],
    )
    root = read_page(html_page([Subject(plan)], name))
    assert len(root.all("script")) == 1
    heading, _ = [h for h in root.all("h4") if h.text == " ".join(name.split())]
    assert heading.parent is not None
    row = root.all("table", "times")[0].all("tbody")[0].all("tr")[0]
    assert cells(row)[0] == " ".join(name.split())
    (title,) = [e for e in root.all("title") if e.parent and e.parent.tag == "head"]
    assert title.text == f"{' '.join(name.split())}: torchalgo report"


# ---- numbers -------------------------------------------------------------------------------------


def test_the_table_has_the_numbers_of_the_plan() -> None:
    node = make_node("conv1", packed_bytes=1234567)
    root = page_of(make_plan(nodes=[node]))
    rows = [cells(row) for row in root.all("table", "times")[0].all("tbody")[0].all("tr")]
    assert rows == [
        ["conv1", "cpu.winograd_f4x4_3x3.t14", "nChw16c", "12.5", "61.0 %",
         "aten.prepacked nhwc", "3.2"],
        ["change of x", "layout.tiled", "nchw → nChw16c", "8.0", "39.0 %", "", ""],
        ["conv9", "", "", "not known", "0.0 %", "", ""],
    ]  # fmt: skip
    assert "1,234,567 bytes" in root.text


def test_the_first_screen_has_the_verdict(whole: Element) -> None:
    root = page_of(make_plan(guard=verdict(), cost_us=20.5))
    (hero,) = root.all("div", "hero")
    assert hero.all("p", "headline")[0].text == "2.00x as fast as PyTorch"
    assert "as fast as channels_last, the fastest baseline, in the median of 25 r" in hero.text
    assert "95 % interval of the speed-up: 1.92x to 2.22x, 25 paired rounds" in hero.text
    before, after = hero.all("rect")
    assert (before.attributes["width"], after.attributes["width"]) == ("100.00%", "50.00%")
    ends = hero.all("g", "whisker")[0].children[0].attributes
    assert (ends["x1"], ends["x2"]) == ("45.00%", "52.00%")
    assert "Proven optimal" in hero.text
    assert whole.all("p", "headline")[0].text  # whatever the guard has found on this machine


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({}, "2.00x as fast as PyTorch"),
        ({"verdict": "unclear", "ratio": 1.0}, "No clear difference from channels_last"),
        ({"verdict": "slower", "runs": "baseline"}, "No gain: PyTorch's channels_last runs"),
        ({"rounds": 0, "reason": "out of budget"}, "Not compared with PyTorch"),
        (
            {"objective": "energy", "plan_uj": 1.0, "baseline_uj": 2.0},
            "50% less energy than PyTorch",
        ),
        (
            {
                "objective": "energy",
                "plan_uj": 2.0,
                "baseline_uj": 1.0,
                "runs": "baseline",
                "verdict": "slower",
            },
            "No gain: PyTorch's channels_last runs",
        ),
    ],
)
def test_the_headline_says_what_the_guard_found(changes: dict[str, Any], headline: str) -> None:
    root = page_of(make_plan(guard=verdict(**changes)))
    assert root.all("p", "headline")[0].text == headline


def test_a_plan_without_a_verdict_says_so() -> None:
    root = page_of(make_plan(guard=None))
    assert root.all("p", "headline")[0].text == "Not compared with PyTorch"
    assert not root.all("svg", "before-after")


def test_a_plan_that_is_not_optimal_says_how_far_it_may_be() -> None:
    plan = make_plan(status="feasible", cost_us=20.5, lower_bound_us=20.0)
    assert "Not proven optimal: at most 2.50 % above the optimum" in page_of(plan).text
    text = page_of(make_plan(unproven="the error bound decides")).text
    assert "Not proven optimal: the error bound decides" in text
    assert "this plan: all chosen together (not proven optimal)" in text


def test_the_bars_are_the_comparisons_of_the_plan() -> None:
    known = {
        "aten_only": 41.0, "single_layout_nchw": 30.75, "best_single_layout": 30.75,
        "local_optimum": 21.0,
    }  # fmt: skip
    root = page_of(make_plan(comparisons=known))
    rows = root.all("table", "bars")[0].all("tbody")[0].all("tr")
    bars = [cells(row) for row in rows if "group" not in row.classes]
    assert [(bar[0].split(":")[0], *bar[2:]) for bar in bars] == [
        ("only PyTorch's algorithms", "0.041 ms", "2.000x"),
        ("all layers in nchw", "0.031 ms", "1.500x"),
        ("the fastest primitive of each convolution (local optimum)", "0.021 ms", "1.024x"),
        ("this plan", "0.021 ms", "1.000x"),
    ]
    widths = [bar.attributes["style"] for bar in root.all("table", "bars")[0].all("span", "bar")]
    assert widths == ["width:100.00%", "width:75.00%", "width:51.22%", "width:50.00%"]
    assert "Not known for this plan" not in root.text
    assert "Each algorithm alone is not known here" in root.text
    missing = page_of(make_plan(comparisons={})).text
    assert "Not known for this plan: only PyTorch's algorithms; the fastest primitive" in missing


def test_a_run_has_a_bar_for_each_algorithm(whole: Element, tuned: torchalgo.Optimized) -> None:
    rows = [cells(row) for row in whole.all("tr", "g-algorithm")]
    named = {row[0].split(":")[0]: row[2] for row in rows}
    assert "cpu.im2col_gemm" in named and "aten.conv" in named
    convolutions = [n.name for n in tuned.plan.nodes if n.problem.startswith("fwd_")]
    forced = tuned.plan.with_overrides(dict.fromkeys(convolutions, "cpu.im2col_gemm"))
    assert named["cpu.im2col_gemm"] == f"{forced.cost_us / 1000:.3f} ms"


def subjects_of(path: Path) -> list[Subject]:
    """Returns the plans of a file with their graphs."""
    return [Subject(plan, graph) for plan, graph in load_with_graphs(path)]


def test_the_bars_are_timed_if_asked_for(tuned: torchalgo.Optimized, tmp_path: Path) -> None:
    tuned.report(tmp_path / "report.html", measure_s=30)
    whole = read_page((tmp_path / "report.html").read_text("utf-8"))
    (table,) = whole.all("table", "bars")
    rows = {row[0]: row[2:] for row in map(cells, table.all("tr")) if len(row) == 6}
    own = next(row for name, row in rows.items() if name.startswith("this plan"))
    assert own[3] == "1.000x" and re.fullmatch(r"[\d.]+ (us|ms)", own[2])
    timed = {name for name, row in rows.items() if re.fullmatch(r"[\d.]+x \[.*\]", row[3])}
    assert {"only PyTorch's algorithms", "all layers in nhwc"} <= timed
    assert all("of" in name and "layers" in name for name in {*rows} - timed if rows[name][2] == "")


def test_too_little_time_measures_the_plan_and_says_what_is_missing(
    tuned: torchalgo.Optimized, tmp_path: Path
) -> None:
    tuned.report(tmp_path / "report.html", measure_s=1e-3)
    whole = read_page((tmp_path / "report.html").read_text("utf-8"))
    rows = [cells(row) for row in whole.all("table", "bars")[0].all("tr")]
    timed = [row[0] for row in rows if len(row) == 6 and row[5].endswith("x")]
    assert [name.split(":")[0] for name in timed] == ["this plan"]
    assert "No time was left to measure: only PyTorch's algorithms; all layers" in whole.text


@pytest.mark.parametrize("wrong", [0, -1, True, "60", float("nan")])
def test_a_wrong_time_for_the_bars_is_an_error(
    tuned: torchalgo.Optimized, tmp_path: Path, wrong: Any
) -> None:
    with pytest.raises(torchalgo.Error, match=r"TA1001 report: measure_s=.* seconds above 0"):
        tuned.report(tmp_path / "report.html", measure_s=wrong)
    assert not (tmp_path / "report.html").exists()


def test_a_run_has_the_roofline_of_each_convolution(
    whole: Element, fast: torchalgo.Optimized
) -> None:
    table = whole.all("table", "times")[0]
    at = [head.text for head in table.all("thead")[0].all("th")].index("roofline")
    rows = [cells(row) for row in table.all("tbody")[0].all("tr")]
    convolutions = [row for row in rows if "conv" in row[1] or "winograd" in row[1]]
    shares = [float(row[at].removesuffix(" %")) for row in convolutions]
    assert convolutions and all(0 < share < 300 for share in shares)
    assert "roofline" not in page_of(fast.plan).all("table", "times")[0].text


def test_the_table_has_the_measured_times_of_what_is_left_to_pytorch() -> None:
    operations = [
        Operation("input", "x"), Operation("planned", "a", cost=3.0),
        Operation("left", "b", us=9.0),
    ]  # fmt: skip
    rows = [(row.operation.name, row.time, row.share) for row in rows_of(operations, "us")]
    assert rows == [("b", 9.0, 75.0), ("a", 3.0, 25.0)]
    assert [row.time for row in rows_of(operations, "uJ")] == [3.0, 0.0]


# ---- where the time goes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "stages"),
    [
        (["stem", "layer1.0.conv1", "layer2.0.conv1"], ["stem", "layer1", "layer2"]),
        (["f.0.conv", "f.1.conv", "f.2.conv"], ["f.0", "f.1", "f.2"]),
        (["m.f.0.a", "m.f.0.b", "m.f.1.a", "head"], ["m.f.0.a", "m.f.0.b", "m.f.1", "head"]),
        (["a.b", "a.b"], ["a.b", "a.b"]),
        ([], []),
    ],
)
def test_a_stage_with_half_of_the_time_is_divided(names: list[str], stages: list[str]) -> None:
    assert stages_of(names, [1.0] * len(names)) == stages


def test_the_first_part_has_the_time_by_stage_and_by_algorithm() -> None:
    nodes = [
        make_node("layer1.0.conv1"), make_node("layer2.0.conv1"),
        make_node("fc", primitive="aten.conv", predicted_us=7.0),
    ]  # fmt: skip
    left = [LeftAlone("layer2.pool", "no", 3.0), LeftAlone("layer2.odd", "no")]
    root = page_of(make_plan(nodes=nodes, left_alone=left))
    titles = [heading.text for heading in root.all("h3")]
    assert titles[:2] == ["Where the time goes", "What each choice is worth"]
    assert titles[2:4] == ["Types and errors", "What is proven, and other facts"]
    by_stage, by_algorithm = (
        [cells(row) for row in table.all("tbody")[0].all("tr")]
        for table in root.all("div", "totals")[0].all("table")
    )
    assert by_stage == [
        ["layer2", "2", "15.5", "36.0 %"], ["layer1", "1", "12.5", "29.1 %"],
        ["x", "1", "8.0", "18.6 %"], ["fc", "1", "7.0", "16.3 %"],
    ]  # fmt: skip
    assert by_algorithm == [
        ["cpu.winograd_f4x4_3x3", "2", "25.0", "58.1 %"], ["layout changes", "1", "8.0", "18.6 %"],
        ["aten.conv", "1", "7.0", "16.3 %"], ["left to PyTorch", "1", "3.0", "7.0 %"],
    ]  # fmt: skip
    assert "1 operation left to PyTorch was not timed" in root.text


def test_a_long_list_of_totals_ends_with_the_others() -> None:
    rows = rows_of([Operation("planned", str(i), cost=1.0 + i) for i in range(20)], "us")
    totals = totals_of(rows, [row.operation.name for row in rows])
    assert len(totals) == MOST_TOTALS and totals[-1].name == f"{21 - MOST_TOTALS} others"
    assert sum(total.time for total in totals) == sum(row.time for row in rows)
    assert sum(total.share for total in totals) == pytest.approx(100)


def test_types_and_errors_have_what_is_known() -> None:
    nodes = [make_node("a", output_error=2e-4), make_node("b", src="nhwc.bf16", dst="nhwc.bf16")]
    plan = make_plan(nodes=nodes, rel_error=1e-4, max_error=1e-2, validation_error=3e-4)
    text = page_of(plan).text
    assert "1 in bf16, 1 in the model's type" in text
    assert "relative L2 1.0e-04, compared with the given model" in text
    assert "relative L2 at most 3.0e-04" in text and "a 2.0e-04" in text
    assert "predicted error" not in text
    assert "not compared with the given model" in page_of(make_plan()).text


# ---- the network ---------------------------------------------------------------------------------


def test_every_part_of_a_plan_has_its_place(fast: torchalgo.Optimized) -> None:
    plan = fast.plan.with_proof()
    assert plan.proof is not None
    flow = flow_of(plan, plan.proof.graph)
    planned = [op.name for op in flow.operations if op.kind == "planned"]
    assert sorted(planned) == sorted(node.name for node in plan.nodes if node.primitive)
    fused = [name for op in flow.operations for name in op.fused]
    assert sorted(fused) == sorted(node.name for node in plan.nodes if node.absorbed_by)
    changes = [(op.name, op.src, op.dst) for op in flow.operations if op.kind == "transform"]
    assert sorted(changes) == sorted((t.value, t.src, t.dst) for t in plan.transforms)
    assert flow.operations[0].kind == "input"
    assert flow.operations[-1].kind == "output"


def test_tensors_go_from_their_producers_to_readers_behind_them(
    fast: torchalgo.Optimized,
) -> None:
    plan = fast.plan.with_proof()
    assert plan.proof is not None
    flow = flow_of(plan, plan.proof.graph)
    assert flow.tensors is not None
    read = {reader for tensor in flow.tensors for reader in tensor.readers}
    assert read == {i for i, op in enumerate(flow.operations) if op.kind != "input"}
    for tensor in flow.tensors:
        assert all(reader > tensor.producer for reader in tensor.readers)
        for reader in map(flow.operations.__getitem__, tensor.readers):
            if reader.kind == "transform":
                assert reader.src == tensor.layout
        assert flow.operations[tensor.producer].dst == tensor.layout


@pytest.mark.parametrize("seed", range(12))
def test_plans_of_random_graphs_keep_the_order_of_the_data(seed: int) -> None:
    sample = Sample(str(GraphText(seed, 14)), seed)
    nodes = [
        make_node(
            item["name"], problem=item["problem"], primitive=item["primitive"], src=item["src"],
            dst=item["dst"], absorbed_by=item["absorbed_by"],
        )
        for item in sample.plan["nodes"]
    ]  # fmt: skip
    transforms = [
        PlanTransform(
            item["value"], item["producer"], item["problem"], item["primitive"], item["src"],
            item["dst"], 1.0, 1,
        )
        for item in sample.plan["transforms"]
    ]  # fmt: skip
    plan = make_plan(
        nodes=nodes, transforms=transforms, structure_version=_C.STRUCTURE_VERSION,
        structure_hash=_C.parse_graph(sample.text).structure_hash,
    )  # fmt: skip
    flow = flow_of(plan, sample.text)
    assert flow.tensors is not None
    assert all(reader > t.producer for t in flow.tensors for reader in t.readers)
    kinds = [op.kind for op in flow.operations]
    assert kinds.count("transform") == len(transforms)
    assert kinds.count("planned") == sum(bool(node.primitive) for node in nodes)
    for tensor in flow.tensors:  # each planned call reads a tensor in its own layout
        operation = flow.operations[tensor.producer]  # a gradient of weights is always plain
        assert operation.dst == tensor.layout or operation.problem.startswith("bwd_filter")
    for i, op in enumerate(flow.operations):
        read = {tensor.layout for tensor in flow.tensors if i in tensor.readers}
        assert op.kind not in ("planned", "transform") or op.src in read


def test_readers_read_the_layout_that_they_need() -> None:
    graph = (
        "torchalgo graph 1\nvalue\tx\t1,16,8,8\tf32\nvalue\ta\t1,16,8,8\tf32\n"
        "value\tb\t1,16,8,8\tf32\nnode\ta\trelu\t0\t1\trelu_f32_n1c16h8w8\t\n"
        "node\tb\taten::odd\t1\t2\t-\twhy not\ninput\t0\tnchw\noutput\t2\n"
    )
    change = "transform_f32_n1c16h8w8"
    plan = make_plan(
        nodes=[make_node("a", problem="relu_f32_n1c16h8w8")],
        transforms=[
            PlanTransform(
                "x", "", f"{change}_nchw_nChw16c", "layout.tiled", "nchw", "nChw16c", 8.0, 8
            ),
            PlanTransform(
                "a", "a", f"{change}_nChw16c_nchw", "layout.tiled", "nChw16c", "nchw", 8.0, 8
            ),
        ],
    )
    flow = flow_of(plan, graph)
    kinds = ["input", "transform", "planned", "transform", "left", "output"]
    assert [op.kind for op in flow.operations] == kinds
    assert flow.operations[4].note == "why not"
    assert flow.tensors == (
        Tensor(0, (1,), "nchw"), Tensor(1, (2,), "nChw16c"), Tensor(2, (3,), "nChw16c"),
        Tensor(3, (4,), "nchw"), Tensor(4, (5,), "nchw"),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_no_two_tensors_share_a_lane_at_the_same_time(seed: int) -> None:
    pick, count = random.Random(seed), 30
    tensors = []
    for producer in range(count - 1):
        for _ in range(pick.choice([0, 1, 1, 2])):
            later = range(producer + 1, count)
            readers = sorted(pick.sample(later, min(len(later), pick.choice([0, 1, 1, 3]))))
            tensors.append(Tensor(producer, tuple(readers), "nchw"))
    _, lanes = assign_lanes(count, tensors)
    for i, (one, lane) in enumerate(zip(tensors, lanes, strict=True)):
        assert (lane == NO_LANE) == (not one.readers)
        for other, its in zip(tensors[:i], lanes[:i], strict=True):
            if lane == its != NO_LANE:
                earlier, later_one = sorted((one, other), key=lambda tensor: tensor.producer)
                assert earlier.readers[-1] <= later_one.producer


def test_a_drawing_fits_its_rows() -> None:
    operations = tuple(Operation("planned", str(i), cost=float(i)) for i in range(40))
    tensors = tuple(Tensor(i, tuple(range(i + 1, 40)), "nhwc") for i in range(39))
    drawing = draw(Flow(operations, tensors))
    assert len(drawing.strips) == 2
    assert [len(strip.dots) for strip in drawing.strips] == [26, 14]
    assert [len(strip.lines) for strip in drawing.strips] == [26, 39]
    for strip in drawing.strips:
        assert all(0 < dot.x < drawing.width for dot in strip.dots)
        assert all(strip.top < dot.y < strip.top + strip.height for dot in strip.dots)
    assert not any(strip.lines for strip in draw(Flow(operations, None)).strips)


def test_without_a_graph_the_operations_are_listed_without_lines() -> None:
    root = page_of(make_plan())
    (lanes,) = root.all("svg", "lanes")
    assert not lanes.all("g", "tensors")[0].children
    assert [a.text for a in root.all("ol", "rows")[0].all("a")] == [
        "↳ to nChw16c layout.tiled nchw → nChw16c 8.0",
        "conv1 + 1 fused cpu.winograd_f4x4_3x3.t14 nChw16c 12.5",
        "conv9",
    ]
    assert "Their connections are not known" in root.text


def test_details_have_the_candidates_and_refusals_of_a_run(
    whole: Element, tuned: torchalgo.Optimized
) -> None:
    node = max((n for n in tuned.plan.nodes if n.primitive), key=lambda n: n.predicted_us)
    (heading,) = [h for h in whole.all("h4") if h.text == node.name]
    assert heading.parent is not None
    chosen = [cells(row) for row in heading.parent.all("tr", "chosen")]
    assert [row[0] for row in chosen] == [node.primitive]
    assert float(chosen[0][2]) == pytest.approx(node.predicted_us, abs=0.06)
    assert len(heading.parent.all("tr")) > 2
    assert "Algorithms that cannot compute it" in heading.parent.text


# ---- other plans ---------------------------------------------------------------------------------


def test_a_plan_with_nothing_planned_is_shown(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten()).eval()
    settings = torchalgo.Settings(progress=False)
    fast = torchalgo.optimize(model, torch.rand(1, 3, 4, 4), settings=settings)
    fast.report(tmp_path / "r.html")
    text = read_page((tmp_path / "r.html").read_text()).text
    assert "Nothing to choose" in text and "no convolutions: left as it is" in text
    nothing: dict[str, Any] = {"nodes": [], "transforms": [], "left_alone": [], "comparisons": {}}
    empty = page_of(make_plan(**nothing, cost_us=0.0, cost_ticks=0))
    assert "PyTorch runs the whole model" in empty.text


def test_several_plans_are_listed_first(shaped: torchalgo.Optimized, tmp_path: Path) -> None:
    shaped.report(tmp_path / "r.html")
    root = read_page((tmp_path / "r.html").read_text())
    assert [h.text for h in root.all("h2", "shapes")] == [f"Plan for {s}" for s in shaped.plans]
    links = root.all("ul", "shapes")[0].all("a")
    assert [(a.text, a.attributes["href"]) for a in links] == [
        (shapes, f"#p{i}") for i, shapes in enumerate(shaped.plans)
    ]
    ids = [e.attributes["id"] for e in root.all() if "id" in e.attributes]
    assert len(ids) == len(set(ids))


def test_the_front_is_shown_if_it_is_passed(whole: Element, tuned: torchalgo.Optimized) -> None:
    front = tuned.pareto("weights", max_points=4)
    assert " ".join(str(front).split()) in [pre.text for pre in whole.all("pre")]
    assert len(front)  # more plans only if the fastest one has not the fewest weights
    with pytest.raises(torchalgo.Error, match=r"^TA1001 report: front is list, expected"):
        tuned.report("r.html", front=[])  # type: ignore[arg-type]


def test_a_false_proof_is_called_false(fast: torchalgo.Optimized) -> None:
    plan = fast.plan.with_proof()
    assert "proven: no plan that is allowed costs less" in page_of(plan).text
    wrong = dataclasses.replace(plan, lower_bound_ticks=plan.lower_bound_ticks + 1)
    root = page_of(wrong)
    assert "The check of the proof FAILS: TA2403" in root.text and root.all("p", "false")


def test_a_proof_has_the_connections_of_a_plan_file(fast: torchalgo.Optimized) -> None:
    plan = Plan.from_json(fast.plan.with_proof().to_json())
    root = page_of(plan)
    assert root.all("svg", "lanes")[0].all("g", "tensors")[0].children
    assert "Its other candidates are not known here" in root.text


# ---- files and the command -----------------------------------------------------------------------


def test_a_saved_module_keeps_the_data_flow(fast: torchalgo.Optimized, tmp_path: Path) -> None:
    for name in ("net.pt", "net.pt2"):
        fast.save(tmp_path / name)
        (subject,) = subjects_of(tmp_path / name)
        assert subject.graph is not None and subject.find_facts is None
        assert _C.parse_graph(subject.graph).structure_hash == fast.plan.structure_hash
    again = torchalgo.load(tmp_path / "net.pt")
    again.report(tmp_path / "net.html")
    root = read_page((tmp_path / "net.html").read_text())
    assert root.all("svg", "lanes")[0].all("g", "tensors")[0].children
    assert "Its other candidates are not known here" in root.text
    again.save(tmp_path / "again.pt")
    assert subjects_of(tmp_path / "again.pt") == [subject]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.plan.json")), ids=lambda path: path.stem)
def test_files_of_earlier_versions_have_reports(path: Path) -> None:
    for file in (path, path.with_name(path.name.replace(".plan.json", ".pt"))):
        root = read_page(html_page(subjects_of(file), ""))
        assert "Their connections are not known" in root.text


def test_explain_writes_reports(
    capsys: pytest.CaptureFixture[str], fast: torchalgo.Optimized, tmp_path: Path
) -> None:
    fast.save(tmp_path / "net.pt")
    fast.plan.save(tmp_path / "net.plan.json")
    for name in ("net.pt", "net.plan.json"):
        for suffix in (".html", ".txt", ".json"):
            target = tmp_path / f"report{suffix}"
            out = run(capsys, "explain", tmp_path / name, "-o", target)
            assert out == f"report  {target}\n"
        assert (tmp_path / "report.txt").read_text() == f"{fast.plan}\n"
        text = (tmp_path / "report.html").read_text()
        assert "<title>net: torchalgo report</title>" in text
        assert run(capsys, "explain", tmp_path / name) == f"{fast.plan}\n"


def test_explain_optimizes_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(
        capsys, "explain", "support.nets:net_factory", "--input", "1x3x40x40", "--quiet",
        "--over", "weights", "--measure", "20", "-o", tmp_path / "r.html",
    )  # fmt: skip
    root = read_page((tmp_path / "r.html").read_text())
    assert "Time and memory" in root.text and root.all("tr", "g-algorithm")
    assert "The last two columns were measured" in root.text


def test_explain_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], fast: torchalgo.Optimized, tmp_path: Path
) -> None:
    fast.plan.save(tmp_path / "net.plan.json")
    factory, plan = "support.nets:net_factory", tmp_path / "net.plan.json"
    (tmp_path / "net.onnx").write_text("onnx")
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("TA7201 explain: support.nets:net_factory is a model and needs its input", (factory,)),
        ("net.onnx is a model and needs its input, such as --input", (tmp_path / "net.onnx",)),
        ("are for a model: leave them out", (plan, "--input", "1x3x40x40")),
        ("--over needs costs", (plan, "--over", "weights")),
        ("--over needs costs", (plan, "--over", "weights", "-o", tmp_path / "r.html")),
        ("--measure is for the report of a model", (plan, "--measure", "-o", tmp_path / "r.html")),
        ("expected model.pt2, .pt or .plan.json of torchalgo", (tmp_path / "none.pt",)),
        ("TA2010 report:", (plan, "-o", tmp_path / "r.pdf")),
        ("there is no folder", (plan, "-o", "/none/r.html")),
        ("already optimized", (tmp_path / "net.pt", "--input", "1x3x40x40")),
    ]
    fast.save(tmp_path / "net.pt")
    for message, argv in cases[:6]:
        assert message in run(capsys, "explain", *argv, code=2)
    for message, argv in cases[6:]:
        assert message in run(capsys, "explain", *argv, code=1)
    run(capsys, "explain", factory, "--input", "1,3", code=2)
    run(capsys, "explain", factory, "--input", "1x3x40x40", "--shapes", "1x3x40x40", code=2)


def test_without_jinja2_the_error_says_what_to_do(
    fast: torchalgo.Optimized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page._template.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(torchalgo.Error, match=r"^TA2011 report: .*pip install jinja2"):
        fast.report(tmp_path / "r.html")
    fast.report(tmp_path / "r.txt")


# ---- five lines ----------------------------------------------------------------------------------


def verdict(**changes: Any) -> GuardVerdict:
    timed = GuardVerdict(
        "faster", "plan", "channels_last", 5000.0, 10_000.0, 0.5, 0.45, 0.52, 25, ""
    )
    return dataclasses.replace(timed, **changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "2.00x as fast as channels_last, the fastest baseline, in the median of 25 rounds"),
        ({}, "[95 %: 1.92x to 2.22x]; a call takes 5.00 ms"),
        ({"runs": "single_layout"}, "; the best plan in one layout runs"),
        ({"verdict": "unclear", "ratio": 1.0}, "no clear difference from channels_last"),
        ({"verdict": "slower", "runs": "baseline"}, "PyTorch's channels_last runs, since the plan"),
        ({"rounds": 0, "runs": "baseline", "reason": "out of budget"}, "out of budget; "),
    ],
)
def test_the_result_comes_first_in_five_lines(changes: dict[str, Any], text: str) -> None:
    plan = dataclasses.replace(
        make_plan(), guard=verdict(**changes), rel_error=3e-7, weight_bytes=12_000_000
    )
    lines = short_report([plan], Path("out.pt")).splitlines()
    assert [line.split()[0] for line in lines] == ["speed", "error", "memory", "file", "next"]
    assert text in lines[0]
    assert "relative L2 3.0e-07" in lines[1] and "12 MB of packed weights" in lines[2]
    assert lines[3].endswith("out.pt") and lines[4].endswith("torchalgo explain out.pt")
    given = short_report([plan], Path("out.pt"), Path("a.json")).splitlines()
    assert given[0].startswith("speed   as a.json says: ") and given[1:] == lines[1:]


def test_several_plans_have_a_line_for_each_of_the_first() -> None:
    plans = [dataclasses.replace(make_plan(), guard=verdict()) for _ in range(5)]
    lines = short_report(plans, Path("out.pt")).splitlines()
    assert sum(line.startswith("speed ") for line in lines) == 3
    assert "and 2 more plans" in lines[3]
    assert speed_line(None) == "not compared with PyTorch"
