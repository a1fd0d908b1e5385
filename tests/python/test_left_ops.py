# SPDX-License-Identifier: BSD-3-Clause
"""The ops that a plan leaves to PyTorch: their times, and the lines of the model that call them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from support.graph_models import freeze
from support.plans import make_plan
from support.random_plans import any_plan
from torchalgo import _C
from torchalgo._ir.plan import OF_OTHERS, GuardVerdict, LeftAlone, Plan
from torchalgo._ir.plan.text import outcome_lines
from torchalgo._refine.binding import Tuned, rewrite_with_origins
from torchalgo._refine.left_ops import (
    MOST_S,
    left_nodes,
    left_times,
    source_line,
    time_left_ops,
    times_in_record,
)
from torchalgo._report.page import html_page
from torchalgo._report.subject import Subject

CAPTURES = ("trace", "script")


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.power(x)

    def power(self, x: Tensor) -> Tensor:
        return torch.fft.fft2(x).abs()  # no algorithm knows these two ops


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.attend = nn.Softmax(dim=-1)
        self.spectrum = Spectrum()
        self.last = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.last(torch.relu(self.spectrum(self.attend(x))))


LEFT = {"attend": "softmax", "spectrum.fft_fft2": "fft_fft2", "spectrum.abs": "abs"}


def line_of(text: str, function: str) -> str:
    """Returns the place of a line of this file, as a plan names it."""
    lines = Path(__file__).read_text().splitlines()
    [number] = [i for i, line in enumerate(lines, 1) if text in line and "line_of" not in line]
    return f"{Path(__file__).name}:{number} {function}"


def bound(capture: str) -> tuple[Tuned, _C.Imported, tuple[Tensor, ...]]:
    inputs = (torch.rand(1, 3, 16, 16),)
    imported = _C.import_graph(freeze(Net().eval(), inputs, capture)._c, inputs)
    native = any_plan(imported.graph, 0)
    scripted, origins = rewrite_with_origins(imported, native)
    return Tuned(native, scripted, 0.0, None, origins), imported, inputs  # type: ignore[arg-type]


def base_names(names: Any) -> set[str]:
    """Tracing names an op of a module by its module, scripting sometimes by the op as well."""
    return {name.removesuffix(".softmax") for name in names}


# ---- times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("capture", CAPTURES)
def test_each_op_that_is_left_has_a_time_within_the_call(capture: str) -> None:
    tuned, imported, inputs = bound(capture)
    runner = _C.GraphRunner.make(tuned.scripted._c, [])
    assert runner is not None
    with torch.no_grad():
        started = time.perf_counter_ns()
        times = runner.time_left_ops(*inputs)
        call_ns = time.perf_counter_ns() - started
        grown = [inputs[0].requires_grad_()]
    assert all(ns >= 0 for _, ns in times) and 0 < sum(ns for _, ns in times) <= call_ns
    assert runner.time_left_ops(*grown) is NotImplemented
    found = left_times({i: [float(ns)] for i, ns in times}, imported.graph, tuned.origins)
    assert base_names(found) == set(LEFT)
    kinds = {node.name: node.kind for node in imported.graph.nodes}
    for name in found:
        assert kinds[name] == f"aten::{LEFT[name.removesuffix('.softmax')]}"


def test_an_op_of_a_planned_node_is_not_left_though_pytorch_runs_it() -> None:
    inputs = (torch.rand(1, 3, 16, 16),)
    graph = (imported := _C.import_graph(freeze(Net().eval(), inputs, "trace")._c, inputs)).graph
    _, origins = rewrite_with_origins(imported, any_plan(graph, 0, prefix="aten."))
    kept = {i: graph.nodes[origin] for i, origin in enumerate(origins) if origin >= 0}
    assert any(node.problem for node in kept.values())
    found = left_times({i: [1000.0] for i in kept}, graph, origins)
    assert found == {node.name: 1.0 for node in kept.values() if not node.problem}
    assert len(found) == len(LEFT)


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.conv(x).flatten(2)
        weights = torch.softmax(tokens.transpose(1, 2) @ tokens * 0.3, -1)
        return torch.fft.fft(weights @ tokens.transpose(1, 2)).abs()


def test_torchalgos_own_attention_is_not_left_to_pytorch() -> None:
    inputs = (torch.rand(1, 3, 8, 8),)
    imported = _C.import_graph(freeze(Attend().eval(), inputs, "trace")._c, inputs)
    kinds = {node.name: node.kind for node in imported.graph.nodes}
    assert "torchalgo::attention" in kinds.values()
    scripted, origins = rewrite_with_origins(imported, any_plan(imported.graph, 0))
    runner = _C.GraphRunner.make(scripted._c, [])
    assert runner is not None
    with torch.no_grad():
        times = {i: [float(ns)] for i, ns in runner.time_left_ops(*inputs)}
    left = {kinds[name] for name in left_times(times, imported.graph, origins)}
    assert "aten::fft_fft" in left and "torchalgo::attention" not in left


class FakeRunner:
    """Runs nothing. Some of its calls take longer, because other programs run."""

    def __init__(self, origins: Sequence[int]) -> None:
        self.origins, self.calls = origins, 0

    def time_left_ops(self, *_: Any) -> list[tuple[int, int]]:
        self.calls += 1
        ns = 90_000 if self.calls % 2 else 2000
        return [(i, ns) for i, origin in enumerate(self.origins) if origin > 0]


@pytest.mark.parametrize("pass_s, passes", [(MOST_S / 100, 7), (2 * MOST_S, 3)])
def test_the_time_is_the_median_of_the_faster_half_of_the_calls(
    pass_s: float, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, imported, inputs = bound("trace")
    runner = FakeRunner(tuned.origins)
    monkeypatch.setattr(_C, "GraphRunner", SimpleNamespace(make=lambda *_: runner))
    clock = itertools.count(0.0, pass_s)
    found = time_left_ops(tuned, imported.graph, inputs, lambda: next(clock))
    assert runner.calls == 1 + passes  # the first one only tells whether ops can be timed
    assert found is not None and set(found.values()) == {2.0} and base_names(found) == set(LEFT)


def test_a_module_that_needs_the_interpreter_is_not_timed() -> None:
    class Branch(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            if bool(x.sum() > 0):
                x = torch.relu(x)
            return x

    inputs = (torch.rand(1, 3, 16, 16),)
    imported = _C.import_graph(freeze(Branch().eval(), inputs, "script")._c, inputs)
    native = any_plan(imported.graph, 0)
    scripted, origins = rewrite_with_origins(imported, native)
    tuned = Tuned(native, scripted, 0.0, None, origins)  # type: ignore[arg-type]
    assert time_left_ops(tuned, imported.graph, inputs) is None


# ---- lines of the model --------------------------------------------------------------------------


@pytest.mark.parametrize("capture", CAPTURES)
def test_each_op_that_is_left_names_the_line_that_calls_it(capture: str) -> None:
    _, imported, _ = bound(capture)
    names = [n.name for n in imported.graph.nodes if n.problem is None]
    left = left_nodes(imported, dict.fromkeys(names, 7.0))
    assert base_names(item.name for item in left) == set(LEFT)
    sources = {item.name.removesuffix(".softmax"): item.source for item in left}
    fft = line_of("torch.fft.fft2(x).abs()", "power")
    assert sources["spectrum.fft_fft2"] == sources["spectrum.abs"] == fft
    assert sources["attend"] == line_of("self.last(torch.relu(", "forward")
    for item in left:
        kind = LEFT[item.name.removesuffix(".softmax")]
        assert item.note == f"torchalgo does not plan aten::{kind}" and item.measured_us == 7.0


def test_ops_of_a_microsecond_are_listed_only_with_a_reason_of_their_own() -> None:
    _, imported, _ = bound("trace")
    assert left_nodes(imported, {"attend": 0.9}) == []
    assert [item.name for item in left_nodes(imported, {"attend": 1.0})] == ["attend"]


def test_without_times_all_ops_are_listed_but_views() -> None:
    _, imported, _ = bound("trace")
    found = left_nodes(imported, None)
    assert base_names(item.name for item in found) == set(LEFT)
    assert all(item.measured_us is None and item.source for item in found)


def test_the_line_is_the_innermost_one_of_the_model_without_folders() -> None:
    inside = f"{Path(torch.__file__).parent}/nn/functional.py(2137): softmax"
    own = f"{Path(torchalgo.__file__).parent}/_capture/freeze.py(12): trace"
    user = "/home/someone/nets/my net.py(40): forward"
    assert source_line([inside, "<string>(1): forward", user, "/x/y.py(3): run"]) == (
        "my net.py:40 forward"
    )
    assert source_line([inside, own, "/x/main.py(3): <module>"]) == ""
    assert source_line(["no place at all"]) == source_line([]) == ""


# ---- what users read -----------------------------------------------------------------------------

TIMED = GuardVerdict(
    verdict="faster", runs="plan", baseline="frozen", plan_us=14_800.0,
    baseline_us=19_000.0, ratio=0.78, low=0.7, high=0.8, rounds=25, reason="",
)  # fmt: skip


def left_plan(count: int = 7, **changes: Any) -> Plan:
    left = [
        LeftAlone("conv9", "inside a loop", None, "net.py:3 forward"),
        *(
            LeftAlone(f"op{i}", f"torchalgo does not plan aten::op{i}", 100.0 * i, f"net.py:{i} f")
            for i in range(1, count)
        ),
    ]
    notes = ["compared at other sizes"]
    return make_plan(**{"left_alone": left, "guard": TIMED, "notes": notes, **changes})


def test_the_printed_plan_lists_the_most_expensive_ops_first() -> None:
    lines = str(left_plan()).splitlines()
    first = lines.index("left to PyTorch: 2.100 ms of 14.8 ms")
    assert lines[first - 1] == "note: compared at other sizes"
    assert lines[first + 1 : first + 8] == [
        "  op6: 0.600 ms, torchalgo does not plan aten::op6 (net.py:6 f)",
        "  op5: 0.500 ms, torchalgo does not plan aten::op5 (net.py:5 f)",
        "  op4: 0.400 ms, torchalgo does not plan aten::op4 (net.py:4 f)",
        "  op3: 0.300 ms, torchalgo does not plan aten::op3 (net.py:3 f)",
        "  op2: 0.200 ms, torchalgo does not plan aten::op2 (net.py:2 f)",
        "  and 2 more",
        "torch 2.11.0, cpu a CPU, threads 2",
    ]


def test_a_plan_without_times_lists_the_reasons() -> None:
    assert "left to PyTorch: 1\n  conv9: inside a loop\n" in str(make_plan())


def test_notes_on_how_the_model_was_read_are_not_left_to_pytorch() -> None:
    plan = make_plan(left_alone=[], notes=["scripted: a trace differs from the model"])
    said = "note: scripted: a trace differs from the model"
    assert said in str(plan) and "left to PyTorch" not in str(plan)
    assert outcome_lines(plan)[-1] == said and outcome(plan) == []
    html = html_page([Subject(plan)], "net")
    assert "The plan lists no such operation" in html and f'<p class="note">{said[6:]}</p>' in html
    assert Plan.from_json(plan.to_json()).notes == plan.notes


def outcome(plan: Plan) -> list[str]:
    return [line for line in outcome_lines(plan) if line.startswith("left to PyTorch")]


def test_the_outcome_says_the_time_if_it_is_a_hundredth_of_the_call() -> None:
    said = "left to PyTorch: 2.100 ms of 14.8 ms; print(plan) lists the operations"
    assert outcome(left_plan()) == [said]
    assert outcome(left_plan(count=2)) == []  # 0.1 ms of 14.8 ms
    assert outcome(make_plan()) == ["left to PyTorch: conv9; print(plan) says why"]
    own = make_plan(limits={OF_OTHERS: 0.0})
    assert outcome(own)[0].startswith("left to PyTorch here, emit computes or refuses: conv9; ")


def test_the_report_lists_all_ops_with_their_times() -> None:
    html = html_page([Subject(left_plan())], "net")
    for i in range(1, 7):
        assert f'<td class="mono">net.py:{i} f</td>' in html
    assert "not timed" in html_page([Subject(make_plan())], "net")


# ---- files ---------------------------------------------------------------------------------------


def test_times_and_lines_come_back_from_a_file() -> None:
    plan = left_plan()
    assert Plan.from_json(plan.to_json()) == plan
    item = json.loads(plan.to_json())["left_alone"][1]
    assert item["measured_us"] == 100.0 and item["source"] == "net.py:1 f"


def test_a_plan_without_times_is_written_without_them_and_a_field_that_is_gone_is_passed_over() -> (
    None
):
    data = json.loads(make_plan().to_json())
    assert data["left_alone"] == [{"name": "conv9", "note": "inside a loop"}]
    assert Plan.from_json(json.dumps({**data, "in_context": {"rounds": 2}})) == make_plan()


@pytest.fixture
def optimized(monkeypatch: pytest.MonkeyPatch) -> Iterator[torchalgo.Optimized]:
    monkeypatch.setenv("TORCHALGO_ISOLATE", "0")
    torch.manual_seed(0)
    settings = torchalgo.Settings(progress=False)
    yield torchalgo.optimize(Net().eval(), torch.rand(1, 3, 16, 16), settings=settings)


def test_an_optimized_model_says_what_it_leaves(optimized: torchalgo.Optimized) -> None:
    plan = optimized._results[0].plan
    noted = {item.name for item in plan.left_alone}
    assert base_names(noted) <= set(LEFT) and "spectrum.fft_fft2" in noted
    total = sum(item.measured_us or 0.0 for item in plan.left_alone)
    assert plan.guard is not None and 0 < total <= plan.guard.plan_us
    assert "left to PyTorch: " in str(plan) and "(test_left_ops.py:" in str(plan)
    proven = plan.with_proof()
    assert torchalgo.check_plan(Plan.from_json(proven.to_json())).is_optimal
    older = json.loads(proven.to_json())
    older["left_alone"] = []
    assert torchalgo.check_plan(older).is_optimal


def test_the_database_keeps_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHALGO_ISOLATE", "0")
    monkeypatch.setattr("torchalgo._refine.refinement.WaitWatch.was_disturbed", lambda _: False)
    settings = torchalgo.Settings(progress=False, cost_db=tmp_path / "costs.sqlite3")
    torch.manual_seed(0)
    net, x = Net().eval(), torch.rand(1, 3, 16, 16)
    first = torchalgo.optimize(net, x, settings=settings)
    timed = {item.name for item in first.plan.left_alone if item.measured_us}
    assert base_names(timed) >= {"spectrum.fft_fft2", "spectrum.abs"}
    monkeypatch.setattr(
        "torchalgo._refine.left_ops.time_left_ops", lambda *_: pytest.fail("timed again")
    )
    second = torchalgo.optimize(net, x, settings=settings)
    assert second.plan.left_alone == first.plan.left_alone


def test_a_damaged_record_of_times_is_a_miss() -> None:
    assert times_in_record('{"a": 2}') == {"a": 2.0}
    for text in (None, "", "{", "[]", "3", '{"a": "x"}', '{"a": null}', "[" * 100_000):
        assert times_in_record(text) is None
