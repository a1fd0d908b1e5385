# SPDX-License-Identifier: BSD-3-Clause
"""`torchalgo demo` counts its steps, and ends with what its own times say."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import torchalgo
from support.nets import net_factory
from torchalgo._cli import demo
from torchalgo._run.call_times import CallTimes
from torchalgo_cli import main
from torchalgo_cli.parser import build_parser


def times_of(own: str, eager: float, frozen: float, waited: float = 0.0) -> CallTimes:
    """Times in which PyTorch's ways take so many times as long as what runs."""
    ns = [1e6 * (1 + 0.01 * (i % 3)) for i in range(12)]
    others = {"eager": eager, "frozen": frozen}
    return CallTimes({own: ns, **{k: [v * t for t in ns] for k, v in others.items()}}, {}, waited)


def test_the_result_compares_with_the_fastest_way_of_pytorch() -> None:
    faster = demo.verdict(times_of("plan", 3.0, 2.0))
    assert faster.startswith("2.00 times as fast as frozen, PyTorch's fastest way here [95 %")
    assert demo.verdict(times_of("plan", 1.0, 2.0)).startswith("no clear difference from eager")
    assert demo.verdict(times_of("plan", 0.5, 2.0)).startswith("0.50 times as fast as eager")
    assert demo.verdict(times_of("baseline", 1.5, 1.0)).startswith("PyTorch runs")
    busy = demo.verdict(times_of("plan", 3.0, 2.0, waited=0.35))
    assert busy == f"{faster}; do not rely on it: other programs ran 35% of the time"


def test_the_demo_counts_its_steps_and_ends_with_commands_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["-c"])  # no file of this folder
    monkeypatch.setattr(demo, "build_model", net_factory)
    monkeypatch.setattr(demo, "TUNE_S", 5.0)
    monkeypatch.setattr(demo, "COMPARE_S", 0.5)
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    steps = [line.partition(":")[2][:12] for line in err.splitlines() if "step " in line]
    assert steps == [" step 1 of 3", " step 2 of 3", " step 3 of 3"]
    assert "result  " in out and "PyTorch" in out
    assert {path.name for path in tmp_path.iterdir()} >= {
        "resnet50.pt", "resnet50.plan.json", "resnet50.html",
    }  # fmt: skip
    commands = [line.partition("torchalgo ")[2] for line in out.splitlines()[-3:]]
    assert len(set(commands)) == 3
    for command in commands:
        build_parser().parse_args(shlex.split(command, comments=True))
    assert main(shlex.split(commands[0], comments=True)) == 0
    assert torchalgo.load_plan("resnet50.plan.json").nodes
