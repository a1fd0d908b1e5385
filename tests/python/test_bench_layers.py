# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of layers: on a tiny network, and its tables from small invented records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bench_layers
import layer_page
from bench_layers import algorithm_of, measure_network, operations_of, parse_args
from layer_lines import family_of, line_of, lines_of, roofline
from layer_page import network_section, plan_line
from make_tables import main as make_tables
from torchalgo import _C
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.bounds import Peaks

pytestmark = pytest.mark.slow

CONV = "fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu"


class Twins(nn.Module):
    """Two equal convolutions with a sum, a concatenation and a linear layer after them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.side, self.fc = nn.Conv2d(16, 16, 1), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        z = torch.relu(y + self.side(x))
        return self.fc(torch.cat([y, z], 1).mean((2, 3)))


def twins() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Twins().eval(), torch.randn(1, 16, 8, 8)


@pytest.fixture
def graph() -> Any:
    network, x = twins()
    with torch.no_grad():
        return _C.import_graph(freeze_model(network, (x,))._c, (x,)).graph


# ---- operations and limits -----------------------------------------------------------------------


def test_equal_operations_are_one_row_with_all_of_its_layers(graph: Any) -> None:
    found = {o.problem: o.names for o in operations_of(graph, _C.find_candidates(graph))}
    assert found[CONV] == ["first", "second"]


def test_an_operation_has_in_it_what_a_candidate_fuses_and_no_node_counts_twice(graph: Any) -> None:
    candidates = _C.find_candidates(graph)
    operations = operations_of(graph, candidates)
    assert next(o for o in operations if "side" in o.names).problem.endswith("+bias+add+relu")
    # Neither the sum nor any activation is left to be a row of its own.
    words = sorted(o.problem.partition("_")[0] for o in operations)
    assert words == ["avgpool", "concat", "fwd", "fwd", "linear"]


def test_an_operation_offers_only_primitives_of_its_own_problem(graph: Any) -> None:
    for operation in operations_of(graph, _C.find_candidates(graph)):
        offered = {(p.name, p.src, p.dst) for p in _C.offers_of(operation.problem)[0]}
        assert {(p.name, p.src, p.dst) for p in operation.primitives} <= offered
        assert operation.primitives


def test_variants_and_knobs_belong_to_one_algorithm() -> None:
    assert algorithm_of("cpu.winograd_f4x4_3x3.t14") == "cpu.winograd_f4x4_3x3"
    assert algorithm_of("aten.conv.krsc") == "aten.conv"
    assert algorithm_of("cudnn9.conv.e22{KNOB=1.5}") == "cudnn9.conv"


def test_the_roofline_is_the_highest_of_its_limits() -> None:
    primitives = _C.offers_of(CONV)[0]
    flops = 2 * 16 * 16 * 22 * 22  # 3 taps on 8 positions, less the 2 that meet padding
    slow_units = Peaks(1.0, ((1024, 1e9),))
    assert roofline(CONV, primitives, slow_units, 0) == {
        "flops": flops, "bytes": 4 * (2 * 16 * 64 + 16 * 16 * 9), "weight_bytes": 4 * 16 * 16 * 9,
        "us": flops / 1000, "limit": "flops",
    }  # fmt: skip
    # Weights come at the rate of the network's size, activations at that of their own.
    far = Peaks(1e9, ((1024, 100.0), (1 << 20, 1.0)))
    assert roofline(CONV, primitives, far, 1 << 20)["limit"] == "weights"
    assert roofline(CONV, primitives, far, 1 << 20)["us"] == pytest.approx(16 * 16 * 9 * 4 / 1000)
    assert roofline(CONV, primitives, far, 0)["limit"] == "bytes"


def test_rounds_end_with_the_budget_but_not_before_three(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def take_round(row: Any, cold_bytes: int) -> None:
        clock[0] += 10.0

    monkeypatch.setattr(bench_layers, "take_round", take_round)
    row: Any = None

    def rounds(budget_s: float) -> int:
        clock[0] = 0.0
        return bench_layers.take_rounds([row], 0, 9, budget_s, lambda: clock[0])

    assert [rounds(budget_s) for budget_s in (1.0, 50.0, 1000.0)] == [3, 5, 9]


# ---- measuring -----------------------------------------------------------------------------------


def test_a_record_has_samples_of_each_algorithm_and_becomes_a_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, fast = Peaks(1.0, ((1024, 3.0),)), Peaks(2.0, ((1024, 1.0),))
    probes = iter([slow, fast, slow])
    monkeypatch.setattr(bench_layers, "probe", lambda: next(probes))
    network, x = twins()
    words = [
        "resnet18",
        "--rounds",
        "3",
        "--budget-s",
        "1",
        "--plan-budget-s",
        "2",
        "--no-openvino",
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            measured = measure_network(network, x, parse_args(words))
    finally:
        torch.set_num_threads(threads)
    found = json.loads(json.dumps(measured))
    row = next(row for row in found["rows"] if row["problem"] == CONV)
    names = {algorithm_of(p.name) for p in _C.offers_of(CONV)[0]}
    assert set(row["engines"]) == names | {"openvino"}
    assert row["engines"]["openvino"] == {"failure": "not run"}
    for name in names:
        engine = row["engines"][name]
        assert len(engine["cold_us"]) == len(engine["warm_us"]) == found["rounds"] == 3
        assert min(engine["cold_us"] + engine["warm_us"]) > 0
    assert found["plan"]["cost_us"] > 0
    assert found["peaks"] == [2.0, [[1024, 3.0]]]  # the highest rates, whenever they were seen
    text = "\n".join(network_section({**record(), **found}, 99))
    assert all(row["problem"] in text for row in found["rows"])
    assert "outside convolutions" in text


# ---- OpenVINO ------------------------------------------------------------------------------------


ALONE = "TORCHALGO_TEST_OPENVINO"


@pytest.fixture
def openvino_layers() -> Any:
    if ALONE not in os.environ:
        pytest.skip("runs in a process of its own, below")
    import openvino_layers as module

    return module


def test_what_loads_openvino_passes_in_a_process_of_its_own() -> None:
    """A process that has loaded it dies of the next SIGALRM, which other tests send."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    command += ["-k", "openvino and not process_of_its_own"]
    done = subprocess.run(
        command, env={**os.environ, ALONE: "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_openvinos_model_computes_what_the_problem_says(openvino_layers: Any) -> None:
    import openvino as ov

    functions = {
        "relu6_f32_n1c16h5w7": lambda x: torch.clamp(x, 0, 6),
        "maxpool_f32_n1c16h12w13_r3s3_st2x2_pad1x1_dil1x1_ceil": lambda x: nn.functional.max_pool2d(
            x, 3, 2, 1, ceil_mode=True
        ),
        "avgpool_f32_n1c16h12w12_r3s3_st1x1_pad1x1": lambda x: nn.functional.avg_pool2d(x, 3, 1, 1),
        "avgpool_f32_n1c16h12w12_r3s3_st1x1_pad1x1_exclpad": lambda x: nn.functional.avg_pool2d(
            x, 3, 1, 1, count_include_pad=False
        ),
        "avgpool_f32_n1c16h5w7_p1q1": lambda x: x.mean((2, 3), keepdim=True),
        "add_f32_n1c16h5w7": lambda x, y: x + y,
        "mul_f32_n1c16h5w7_channelwise": lambda x, y: x * y,
        "sub_f32_n1c16h5w7": lambda x, y: x - y,
        "concat_f32_n1c16x8h5w7": lambda x, y: torch.cat([x, y], 1),
        "concat_f32_n1c16x16h5w7_shuffle2": lambda x, y: nn.functional.channel_shuffle(
            torch.cat([x, y], 1), 2
        ),
        "shuffle_f32_n1c24h5w7_g3": lambda x: nn.functional.channel_shuffle(x, 3),
        "slice_f32_n1c24h5w7_k10from9": lambda x: x[:, 9:19],
    }
    for problem, function in functions.items():
        layer = openvino_layers.build(_C.parse_problem(problem))
        run = ov.Core().compile_model(layer.model, "CPU")
        result = torch.from_numpy(run(layer.inputs)[0])
        expected = function(*map(torch.from_numpy, layer.inputs))
        torch.testing.assert_close(result, expected, msg=lambda text, p=problem: f"{p}: {text}")


@pytest.mark.parametrize(
    "problem",
    [
        # Its counters are cut to whole us: what takes less has none.
        "fwd_f32_n1c16h57w57_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu",
        "fwd_f32_n1c64h57w57_k64r3s3_st2x2_pad1x1_dil1x1_g64+bias+relu6",
        "fwd_f32_n1c32h57w57_k64r3s3_st1x1_pad2x2_dil2x2_g2+bias+add+relu",
        "linear_f32_n1c1024_k1000+bias",
    ],
)
def test_openvino_takes_time_for_what_has_weights(openvino_layers: Any, problem: str) -> None:
    layer = openvino_layers.build(problem)
    sizes = [list(port.shape) for port in layer.model.inputs]
    inputs, result = _C.tensor_sizes(problem)
    assert sizes == [*inputs, *([result] if "+add" in problem else [])]
    times = openvino_layers.time_once(layer, 64 << 20)
    assert times.cold > 0 and times.warm > 0
    assert "Convolution" in layer.kernel or "FullyConnected" in layer.kernel


def test_a_concatenation_alone_is_in_place_in_openvino(openvino_layers: Any) -> None:
    layer = openvino_layers.build("concat_f32_n1c16x16h8w8")
    assert openvino_layers.time_once(layer, 0) == openvino_layers.Times(0.0, 0.0)
    assert layer.kernel == "in place"


def test_what_is_not_built_for_openvino_is_named(openvino_layers: Any) -> None:
    problem = _C.parse_problem("fwd_f32_n1c3d8h8w8_k4t3r3s3_st1x1x1_pad1x1x1_dil1x1x1_g1")
    with pytest.raises(openvino_layers.NotBuiltError, match="fwd is not built"):
        openvino_layers.build(problem)


# ---- tables --------------------------------------------------------------------------------------


def engine(primitive: str, us: float, warm: float | None = None) -> dict[str, Any]:
    """Eight rounds around `us`."""
    cold = [us * (1 + 0.01 * (i % 3)) for i in range(8)]
    layouts = {} if primitive == "openvino" else {"layouts": "nchw->nhwc"}
    return {"primitive": primitive, **layouts, "cold_us": cold, "warm_us": [warm or us] * 8}


def row(problem: str, layers: list[str], roof_us: float, **us: float | str) -> dict[str, Any]:
    """A row whose engines, `_` for the dot, take `us`; a text is a failure."""
    engines = {
        name.replace("_", ".", 1): {"failure": t}
        if isinstance(t, str)
        else engine(name.replace("_", ".", 1), t)
        for name, t in us.items()
    }
    limits = {
        "flops": 1.0, "bytes": 10.0, "weight_bytes": 6, "us": roof_us, "limit": "flops",
    }  # fmt: skip
    return {
        "problem": problem, "layers": layers, "roofline": limits, "engines": engines,
        "failures": {},
    }  # fmt: skip


POINTWISE = "fwd_f32_n1c64h7w7_k64r1s1_st1x1_pad0x0_dil1x1_g1+bias"
LINEAR = "linear_f32_n1c64_k10+bias"
CONCAT = "concat_f32_n1c64x64h7w7"


def record(*rows: dict[str, Any], **changed: Any) -> dict[str, Any]:
    plan = {
        "status": "optimal",
        "method": "pbqp",
        "cost_us": 100.0,
        "nodes": [["a", CONV, "cpu.direct", 60.0], ["b", LINEAR, "aten.linear", 25.0]],
        "transforms": [["x", "transform_f32_n1c16h8w8_nchw_nChw16c", 15.0]],
    }
    return {
        "schema": 1, "benchmark": "layers", "network": "alpha", "threads": 1,
        "cold_bytes": 4 << 20, "weights_in": "past l2", "peaks": [100.0, [[1024, 50.0]]],
        "rounds": 8, "rows": list(rows), "plan": plan, "seconds": 1.0, "load_before": 0.1,
        "versions": {"torch": "2.11.0"}, "date": "2026-01-02", "commit": "abc1234",
        "dirty": False, "cpu": "Some CPU", **changed,
    }  # fmt: skip


def test_a_row_names_the_fastest_of_ours_and_what_it_loses() -> None:
    found = line_of(
        row(CONV, ["a", "b"], 50.0, cpu_direct=120.0, cpu_winograd=100.0, aten_conv=90.0,
            openvino=80.0)
    )  # fmt: skip
    assert found is not None
    assert (found.own, [name for name, _ in found.algorithms]) == (
        "cpu.winograd",
        ["cpu.winograd", "cpu.direct"],
    )
    assert found.behind_us == pytest.approx(2 * (100 - 80), rel=0.05)
    assert found.lost_us == pytest.approx(2 * (100 - 50), rel=0.05)
    assert found.ratio is not None and found.ratio.verdict == "faster"
    assert found.ratio.ratio == pytest.approx(0.8)


def test_what_beats_the_roofline_loses_only_to_others() -> None:
    alone = line_of(row(CONV, ["a"], 50.0, cpu_winograd=40.0, openvino="not run"))
    behind = line_of(row(CONV, ["a"], 50.0, cpu_winograd=40.0, openvino=30.0))
    assert alone is not None and behind is not None
    assert (alone.lost_us, alone.behind_us, alone.peer_us) == (0, 0, None)
    assert behind.lost_us == behind.behind_us == pytest.approx(10, rel=0.05)


def test_a_view_takes_nothing_and_aten_stands_in_where_we_have_no_kernel() -> None:
    concat = row(CONCAT, ["c"], 5.0, cpu_concat=9.0, view_concat=0.0, openvino=0.0)
    concat["engines"]["view.concat"] |= {"cold_us": [], "warm_us": []}
    view = line_of(concat)
    assert view is not None
    assert (view.own, view.us, view.lost_us, view.ratio) == ("view.concat", 0, 0, None)
    linear = line_of(row(LINEAR, ["d"], 5.0, aten_linear=20.0, openvino=10.0))
    assert linear is not None
    assert (linear.own, linear.algorithms) == ("aten.linear", [])
    assert linear.behind_us == pytest.approx(10, rel=0.05)


def test_rows_are_compared_where_most_of_their_bytes_lie() -> None:
    heavy = row(CONV, ["a"], 1.0, cpu_direct=100.0, openvino=90.0)
    heavy["engines"]["cpu.stem"] = engine("cpu.stem", 120.0, warm=30.0)
    heavy["engines"]["openvino"]["warm_us"] = [20.0] * 8
    light = {**heavy, "roofline": {**heavy["roofline"], "weight_bytes": 5}}
    cold, warm = line_of(heavy), line_of(light)
    assert cold is not None and warm is not None
    assert (cold.place, cold.own, warm.place, warm.own) == (
        "cold_us", "cpu.direct", "warm_us", "cpu.stem",
    )  # fmt: skip
    assert cold.behind_us == pytest.approx(10, rel=0.05) and warm.behind_us == 10
    assert cold.ratio is not None and cold.ratio.ratio == pytest.approx(0.9)
    assert warm.ratio is not None and warm.ratio.ratio == pytest.approx(2 / 3)


def test_rows_come_by_what_all_their_layers_lose() -> None:
    one = row(CONV, ["a"], 10.0, cpu_direct=40.0)
    many = row(POINTWISE, ["b", "c", "d"], 10.0, cpu_conv1x1=25.0)
    least = row(LINEAR, ["e"], 10.0, aten_linear=12.0)
    assert [line.problem for line in lines_of(record(least, one, many))] == [
        POINTWISE, CONV, LINEAR,
    ]  # fmt: skip


def test_kinds_of_work() -> None:
    kinds = {
        CONV: "kxk",
        POINTWISE: "1x1",
        "fwd_f32_n1c3h224w224_k64r7s7_st2x2_pad3x3_dil1x1_g1+bias": "stem",
        "fwd_f32_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g32": "depthwise",
        "fwd_f32_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g4": "grouped",
        CONCAT: "concat",
    }
    assert {problem: family_of(_C.parse_problem(problem)) for problem in kinds} == kinds


def test_the_plan_tells_the_share_outside_convolutions() -> None:
    text = plan_line(record()["plan"])
    assert "**40.0% outside convolutions**." in text
    assert "parts: kxk 60.0%, linear 25.0%, transforms 15.0%. The plan is optimal: pbqp." in text
    assert plan_line(None) == "No plan was made."


def test_the_section_shows_sums_and_only_the_worst_rows() -> None:
    rows = [
        row(CONV, ["a", "b"], 50.0, cpu_direct=100.0, aten_conv=200.0, openvino=80.0),
        row(POINTWISE, ["c"], 50.0, cpu_conv1x1=51.0, openvino="NotBuiltError: no"),
    ]
    text = "\n".join(network_section(record(*rows), 1))
    worst = text[text.index("The worst 1 of 2") :]
    assert "a, ... (2)" in worst and POINTWISE not in worst
    assert "0.80 [0.80, 0.80] **slower**" in worst
    # 2 x 100.5 + 51.3 us of ours; OpenVINO did not run one of the three layers.
    assert "| all | 3 | 0.25 |" in text
    assert "0.16 (without 1) |" in text
    assert "Another engine is faster on 1 of 2 operations" in text


def test_the_page_is_written_checked_and_its_errors_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, page = tmp_path / "layers.jsonl", tmp_path / "layers.md"
    words = ["layers", str(records), "--page", str(page)]
    assert make_tables(words) == 2
    assert "bench_layers.py writes it" in capsys.readouterr().err
    old = record(row(CONV, ["old"], 1.0, cpu_direct=2.0))
    new = record(row(CONV, ["new"], 1.0, cpu_direct=2.0))
    records.write_text(f"{json.dumps(old)}\n{json.dumps(new)}\n")
    assert make_tables([*words, "--check"]) == 1 and not page.exists()
    assert make_tables(words) == 0
    assert make_tables([*words, "--check"]) == 0
    assert page.read_text().startswith("<!-- made by `python benchmarks/make_tables.py layers`")
    text = (tmp_path / "records/layers.md").read_text()
    assert "new" in text and "| old |" not in text
    records.write_text(json.dumps(record(benchmark="models")))
    assert make_tables(words) == 2
    assert "expected schema 1 of 'layers'" in capsys.readouterr().err


def test_a_row_wins_where_no_other_of_ours_and_atens_is_faster() -> None:
    concat = row(CONCAT, ["c"], 5.0, cpu_concat=9.0, view_concat=0.0, aten_concat=18.0)
    concat["engines"]["view.concat"] |= {"cold_us": [], "warm_us": []}
    conv = row(CONV, ["a"], 50.0, cpu_direct=105.0, cpu_winograd=100.0, openvino=80.0)
    linear = row(LINEAR, ["e"], 10.0, aten_linear=12.0, cpu_linear=24.0)
    wins = layer_page.wins_of([record(concat, conv), record(conv, linear)])
    assert {name: (w.ran, w.near, len(w.won)) for name, w in wins.items()} == {
        "cpu.concat": (1, 1, 1),
        "cpu.direct": (1, 1, 0),
        "cpu.winograd": (1, 1, 1),
        "cpu.linear": (1, 0, 0),
    }
    assert wins["cpu.concat"].won == [(pytest.approx(2.0, rel=0.05), CONCAT)]
    page = layer_page.make_page([record(conv)])
    assert "| `cpu.direct` | 1 | 0 | 1 | nchw to nhwc | - |" in page
    assert f"| `cpu.winograd` | 1 | 1 | 1 | nchw to nhwc | 1.05: `{CONV}` |" in page


def test_a_plans_time_is_bound_by_what_its_algorithms_need() -> None:
    flops = _C.flop_count(CONV)
    least = flops / 100.0 / 1000  # us, at 100 flops per ns
    plan = {
        "status": "optimal", "method": "pbqp", "cost_us": 1.0,
        "nodes": [["a", CONV, "cpu.im2row_gemm", 3 * least], ["c", CONCAT, "view.concat", 0.0]],
        "transforms": [["x", "transform_f32_n1c16h8w8_nchw_nChw16c", least]],
    }  # fmt: skip
    fast_memory = [100.0, [[1024, 1e9]]]
    us_of = layer_page.limits_of(record(row(CONV, ["a"], 1.0), plan=plan, peaks=fast_memory))
    assert us_of["flops"] + us_of["above"] == pytest.approx(3 * least)
    assert 0.5 * least < us_of["flops"] <= least * 1.001  # taps in the padding are none
    assert us_of["transforms"] == least
    slow_memory = [1e9, [[1024, 0.001]]]
    us_of = layer_page.limits_of(record(row(CONV, ["a"], 1.0), plan=plan, peaks=slow_memory))
    assert us_of["bytes"] + us_of["weights"] == pytest.approx(3 * least)
