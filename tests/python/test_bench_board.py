# SPDX-License-Identifier: BSD-3-Clause
"""The board: how its networks were drawn, which are skipped, and the page made of the records."""

from __future__ import annotations

import argparse
import copy
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torchvision")
import bench_board
import board_networks
import board_page
import engines
import harness
from make_tables import main as make_tables
from pages import read_records

pytestmark = pytest.mark.slow

OPTIONS = {
    "threads": 2, "size": 224, "batch": 1, "isa": "", "rounds": 9, "inner": 3, "budget": 1.0,
    "tune_s": 1.0, "quick": False, "machine": {"cpu": "c", "isa": "avx2", "cores": 2},
}  # fmt: skip


# ---- the drawing ---------------------------------------------------------------------------------


def installed(library: str) -> str | None:
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:
        return None


PINNED = {"timm": board_networks.TIMM_VERSION, "torchvision": board_networks.TORCHVISION_VERSION}
needs_pinned = pytest.mark.skipif(
    any(installed(name) != wanted for name, wanted in PINNED.items()), reason=f"needs {PINNED}"
)


@needs_pinned
def test_at_least_sixty_networks_were_drawn_and_at_most_two_of_a_family() -> None:
    family_of = {n: f for f in board_networks.families() for n in board_networks.order_of(f)}
    counts = Counter(family_of[name] for name in board_networks.DRAWN)
    assert len(set(board_networks.DRAWN)) == len(board_networks.DRAWN) >= 60
    for family, count in counts.items():
        assert count <= 1 + (len(board_networks.families()[family]) >= board_networks.LARGE_FAMILY)


@needs_pinned
@pytest.mark.parametrize(
    "family",
    ["timm.ghostnet", "timm.dpn", "timm.pit", "torchvision.regnet", "torchvision.vgg"],
)
def test_drawing_again_gives_the_list(family: str) -> None:
    members = board_networks.families()[family]
    assert board_networks.draw_from(family) == [n for n in board_networks.DRAWN if n in members]


def test_multiply_adds_are_those_of_convolutions_and_other_products() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 64, 5))
    every, convolutions = board_networks.multiply_adds(net, torch.zeros(1, 3, 8, 8))
    assert (every, convolutions) == (64 * 4 * 27 + 4 * 64 * 5, 64 * 4 * 27)


def test_the_keyword_network_has_the_operations_of_its_paper() -> None:
    net = board_networks.build("ds_cnn")
    every, _ = board_networks.multiply_adds(net, board_networks.build_input("ds_cnn"))
    assert round(2 * every / 1e6, 1) == 5.3  # 5.4 M in the paper, which also counts the pooling


def test_the_seed_decides_weights_and_inputs() -> None:
    for name in board_networks.SMALL:
        results = [
            board_networks.build(name, seed)(board_networks.build_input(name)) for seed in (0, 0, 1)
        ]
        assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert board_networks.build_input("dqn", batch=4).shape == (4, 4, 84, 84)


def test_the_order_and_the_networks_of_inductor_are_fixed() -> None:
    names = board_networks.board()
    assert names == board_networks.board() and len(set(names)) == len(names)
    assert {*board_networks.DRAWN, *board_networks.KNOWN} == set(names) != sorted(names)
    compiled = board_networks.with_inductor()
    assert len(compiled) == board_networks.INDUCTOR_NETWORKS and set(compiled) <= set(names)


# ---- measuring -----------------------------------------------------------------------------------


def record_of(name: str, own_ms: float = 10.0, other_ms: float = 12.0, **fields: Any) -> Any:
    """A record with invented times: ONNX Runtime takes `other_ms`, eager twice torchalgo's time."""
    ms = {"torchalgo": own_ms, "onnxruntime": other_ms, "eager": 2 * own_ms}
    calls = {
        engine: [[1e3 * value * (1 + 0.01 * (i % 3 + j)) for j in range(3)] for i in range(9)]
        for engine, value in ms.items()
    }
    record = {
        **bench_board.head_of(name, copy.deepcopy(OPTIONS)),
        "git": {"commit": "abc", "dirty": False},
        "rel_error": 1e-7,
        "left_to_torch": {"ops": {"aten::add": 2}, "us": 500.0, "run_us": 1e4, "slowest": []},
        "engines": {
            "torchalgo": {"build_s": 61.0, "transforms": 1, "runs": "plan", "predicted_us": 9e3},
            "openvino": {"failure": "RuntimeError: no such op"},
        },
        "wall_us": {engine: [sum(each) / 3 for each in rounds] for engine, rounds in calls.items()},
        "calls_us": calls,
        "predicted_over_measured": 0.9,
    }
    record["machine"] |= {"memory_gib": 4, "torch": "t", "torchalgo": "a"}
    return {**record, **fields}


def measure(out: Path, names: list[str], *, again: str | None = None, minutes: float = 1e9) -> int:
    args = argparse.Namespace(out=out, again=again, limit_minutes=minutes, isa="", threads=2)
    return bench_board.measure(names, OPTIONS, args)


def test_a_network_with_a_line_is_skipped_and_a_crash_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run_child(function: Any, name: str, *rest: Any, **options: Any) -> harness.Answer:
        ran.append(name)
        crashed = harness.Answer([], "ended with SIGSEGV")
        return crashed if name == "dqn" else harness.Answer([record_of(name)])

    monkeypatch.setattr(harness, "run_child", run_child)
    out = tmp_path / "board.jsonl"
    assert measure(out, ["ds_cnn", "dqn"]) == 1
    assert measure(out, ["ds_cnn", "dqn", "resnet18"]) == 0
    assert ran == ["ds_cnn", "dqn", "resnet18"]
    lines = harness.read_lines(out)
    assert [line.get("failure") for line in lines] == [None, "ended with SIGSEGV", None]
    assert lines[1]["input"] == "1x4x84x84" and lines[1]["git"]["commit"]
    measure(out, ["ds_cnn"], again="all")
    assert ran[3:] == ["ds_cnn"]
    monkeypatch.setitem(OPTIONS, "size", 160)
    measure(out, ["ds_cnn"])
    assert ran[4:] == ["ds_cnn"]


def disturbed(name: str, engine: str) -> Any:
    """A record in which two of three calls of the engine are 1.3 times as long."""
    record = record_of(name)
    record["calls_us"][engine] = [[us, 1.3 * us, 1.3 * us] for us, *_ in record["calls_us"][engine]]
    return record


def test_only_disturbed_networks_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "board.jsonl"
    ran: list[str] = []
    for record in (
        record_of("ds_cnn"),
        disturbed("dqn", "torchalgo"),
        disturbed("resnet18", "onnxruntime"),  # the faster other engine
        disturbed("resnet50", "eager"),
        record_of(
            "densenet169", wall_us={"torchalgo": [1e4, 1.2e4] * 9, "onnxruntime": [1e4] * 18}
        ),
    ):
        harness.record(out, record, show=lambda line: None)

    def run_child(function: Any, name: str, *rest: Any, **options: Any) -> harness.Answer:
        ran.append(name)
        return harness.Answer([record_of(name)])

    monkeypatch.setattr(harness, "run_child", run_child)
    names = ["ds_cnn", "dqn", "resnet18", "resnet50", "densenet169"]
    for _ in range(2):  # the second time, the last line of each is calm
        assert measure(out, names, again="disturbed") == 0
    assert ran == ["dqn", "resnet18", "densenet169"]


def test_no_network_starts_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 59.0, 61.0])
    monkeypatch.setattr(bench_board.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(
        harness, "run_child", lambda f, name, *_, **__: harness.Answer([record_of(name)])
    )
    assert measure(tmp_path / "b.jsonl", ["ds_cnn", "dqn", "resnet18"], minutes=1) == 0
    assert len(harness.read_lines(tmp_path / "b.jsonl")) == 2
    assert "1 networks are left" in capsys.readouterr().out


class Sliced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x[:1].softmax(0)
        return x.relu()


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_ops_that_only_change_sizes_are_not_counted_as_left_to_pytorch() -> None:
    scripted = torch.jit.script(Sliced())
    plan = SimpleNamespace(guard=None, left_alone=[])
    left = bench_board.left_to_torch(SimpleNamespace(scripted=scripted, plan=plan))
    assert {"aten::softmax", "aten::relu"} <= set(left["ops"]) and left["us"] is None
    assert "aten::slice" not in left["ops"]


def test_the_time_left_to_pytorch_is_that_of_the_plan() -> None:
    ops = [
        SimpleNamespace(name="a", measured_us=20.0, source="net.py:3 forward"),
        SimpleNamespace(name="b", measured_us=None, source=""),
        SimpleNamespace(name="c", measured_us=30.04, source="net.py:4 forward"),
    ]
    plan = SimpleNamespace(guard=SimpleNamespace(plan_us=1000.0), left_alone=ops)
    scripted = torch.jit.script(Sliced())
    left = bench_board.left_to_torch(SimpleNamespace(scripted=scripted, plan=plan))
    assert (left["us"], left["run_us"]) == (50.0, 1000.0)
    assert [name for _, name, _ in left["slowest"]] == ["c", "a"]


def test_limited_vectors_leave_other_engines_out() -> None:
    name = board_networks.with_inductor()[0]
    assert "openvino" in bench_board.peers_of(name, "", False)
    assert bench_board.peers_of(name, "avx2", False) == [*board_page.BEST_PYTORCH, "openvino"]
    rare = bench_board.peers_of(board_networks.with_rare()[0], "", False)
    assert tuple(rare[-2:]) == engines.RARE
    assert not {*engines.RARE} & {*bench_board.peers_of("dqn", "", True)}


def test_an_engine_without_a_layer_for_an_op_fails_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converter = tmp_path / "pnnx"
    lines = "7767517\\n2 2\\nInput in0 0 1 in0\\ntorch.var v 1 1 in0 out0"
    converter.write_text(f"#!/bin/sh\nprintf '{lines}' > net.ncnn.param\n")
    converter.chmod(0o700)
    library = SimpleNamespace(EXEC_PATH=str(converter))
    monkeypatch.setattr(engines.importlib, "import_module", lambda name: library)
    with pytest.raises(RuntimeError, match=r"no layer for torch\.var$"):
        engines.ncnn_files(nn.ReLU(), torch.zeros(1, 3), tmp_path)


def test_an_engine_that_fails_without_a_text_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: nn.Module, x: Tensor) -> Any:
        raise AssertionError

    monkeypatch.setitem(engines.PEERS, "eager", fails)
    built = bench_board.build_peers(["eager"], nn.ReLU, torch.zeros(1))
    assert built == {"eager": {"failure": "AssertionError: "}}


# ---- the page ------------------------------------------------------------------------------------


def page_of(records: list[Any], folder: Path) -> str:
    path = folder / "board.jsonl"
    for record in records:
        harness.record(path, record, show=lambda line: None)
    read = read_records([path], "board", board_page.check, board_page.key_of)
    return board_page.make_page(read) + board_page.make_tables(read)


def test_settings_and_machines_have_sections_of_their_own(tmp_path: Path) -> None:
    wide = {**record_of("dqn")["machine"], "isa": "avx512"}
    records = [
        record_of("dqn"), record_of("ds_cnn", other_ms=5.0), record_of("dqn", machine=wide),
        record_of("dqn", threads=1), record_of("dqn", size=160),
        record_of("dqn", isa_limit="avx2"), record_of("resnet18", quick=True),
    ]  # fmt: skip
    text = page_of(records, tmp_path)
    assert text.count("\n## ") == 2 * 5
    assert "## 2 threads, 224 px, c (avx2)" in text and "## 1 thread, 224 px, c (avx2)" in text
    assert "    python benchmarks/bench_board.py --threads 2 --isa avx2\n" in text
    assert "| resnet18 |" not in text, "a quick record is no measurement"
    # The geometric mean of the ratios of dqn (1.2) and ds_cnn (0.5).
    assert "| over the better of ONNX Runtime and OpenVINO | 0.77, worst 0.50 (of 2) |" in text
    assert "| 2 threads, 224 px, c (avx2) | 0.77, worst 0.50 (of 2) | 1 |" in text


def test_losses_come_first_and_failures_are_listed(tmp_path: Path) -> None:
    broken = {**bench_board.head_of("resnet18", OPTIONS), "failure": "ended with SIGSEGV"}
    broken["machine"] = record_of("dqn")["machine"]
    text = page_of([record_of("dqn"), record_of("ds_cnn", other_ms=9.0), broken], tmp_path)
    losses = text[text.index("\n## ") : text.index("# The board: all networks")]
    assert "| ds_cnn | ONNX Runtime | 0.90" in losses and "dqn" not in losses
    assert "5.0 % (2 ops)" in losses
    assert text.index("all networks\n") < text.index("| ds_cnn | 10.") < text.index("| dqn | 10.")
    assert "| the process | resnet18 | ended with SIGSEGV |" in text
    assert "| OpenVINO | dqn, ds_cnn | RuntimeError: no such op |" in text
    assert "left to PyTorch | median 5.0%" in text


def test_a_loss_names_the_layers_that_lose_most() -> None:
    record = record_of("ds_cnn", other_ms=9.0)
    conv = "fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1"
    rows = [
        {
            "problem": conv, "layers": layers, "failures": {},
            "roofline": {"us": 10.0, "limit": "flops", "bytes": 100, "weight_bytes": 10},
            "engines": {
                name: {"primitive": name, "cold_us": [us], "warm_us": [us]}
                for name, us in {"cpu.direct": ours, "openvino": 50.0}.items()
            },
        }
        for layers, ours in ((["one"], 60.0), (["two", "three"], 70.0), (["four"], 40.0))
    ]  # fmt: skip
    timed = {"network": "ds_cnn", "threads": 2, **record["machine"], "rows": rows}
    expected = "two, ... (2) 0.04 ms of 0.14; one 0.01 ms of 0.06"
    assert board_page.losing_layers(record, [timed]) == expected
    for other in ({"threads": 1}, {"isa": "another"}, {"cpu": "another"}):
        assert board_page.losing_layers(record, [{**timed, **other}]) == "-"
    assert expected in board_page.make_page([record], [timed])


def test_where_plain_pytorch_runs_everything_is_left_to_it() -> None:
    record = record_of("dqn")
    assert board_page.share_text(record) == "5.0 % (2 ops)"
    assert board_page.predicted_text(record) == "0.90"
    record["engines"]["torchalgo"]["runs"] = "baseline"
    assert board_page.share_text(record) == "100.0 % (2 ops)"
    assert board_page.predicted_text(record) == "-"


def test_single_calls_have_minimum_median_and_tail() -> None:
    record = record_of("dqn", own_ms=10.0)
    record["calls_us"]["torchalgo"] = [[float(10 * i + j) for j in range(1, 11)] for i in range(10)]
    assert board_page.spread_of(record, "torchalgo") == [1.0, 50.5, 95.0]


def test_a_later_record_replaces_an_earlier_one_of_another_commit(tmp_path: Path) -> None:
    later = record_of("dqn", own_ms=3.0, git={"commit": "def", "dirty": False})
    text = page_of([record_of("dqn"), later], tmp_path)
    assert "| dqn | 3." in text and "| dqn | 10." not in text


def test_the_command_writes_the_page_and_a_plot_per_section(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    records = tmp_path / "board.jsonl"
    for record in (record_of("dqn"), record_of("ds_cnn"), record_of("dqn", threads=1)):
        harness.record(records, record, show=lambda line: None)
    words = ["board", str(records), "--page", str(tmp_path / "board.md")]
    assert make_tables([*words, "--check"]) == 1 and not (tmp_path / "images").exists()
    assert make_tables(words) == 0 and "| dqn |" in (tmp_path / "records/board.md").read_text()
    plots = sorted((tmp_path / "images").glob("*.svg"))
    assert [path.name in (tmp_path / "board.md").read_text() for path in plots] == [True, True]
    first = plots[0].read_bytes()
    assert make_tables(words) == 0
    assert plots[0].read_bytes() == first, "equal records make equal files"
