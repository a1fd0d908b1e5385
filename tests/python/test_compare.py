# SPDX-License-Identifier: BSD-3-Clause
"""benchmarks/compare.py: paired rounds, the verdict, the control, and the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import compare
from support.model_records import record


def test_rounds_are_paired_and_their_order_rotates() -> None:
    order: list[str] = []

    def taker(name: str) -> int:
        order.append(name)
        return len(order)

    taken = compare.in_rounds({name: lambda name=name: taker(name) for name in "abc"}, 3)
    assert "".join(order) == "abcbcacab"
    assert {name: [(at - 1) // 3 for at in times] for name, times in taken.items()} == {
        "a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1, 2],
    }  # fmt: skip


def test_rounds_end_with_the_budget_but_not_before_the_least() -> None:
    clock = [0.0]

    def taker() -> float:
        clock[0] += 1.0
        return clock[0]

    def rounds(budget_s: float) -> int:
        clock[0] = 0.0
        return len(compare.in_rounds({"a": taker}, 20, budget_s, lambda: clock[0])["a"])

    assert [rounds(budget_s) for budget_s in (0.5, 9.5, 1000.0)] == [compare.LEAST_ROUNDS, 10, 20]


def test_a_control_compares_even_rounds_with_odd_ones() -> None:
    assert compare.control_of([10.0, 10.1] * 10 + [10.0]).ratio == pytest.approx(10 / 10.1)
    assert compare.control_of([2.0, 1.0] * 10).verdict == "slower"
    assert compare.control_of([1.0] * 20).verdict == "unclear"


def test_the_command_gives_ratios_verdicts_and_the_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "models.jsonl"
    lines = [record(), record("beta", eager=0.5), record("gamma", threads=2)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["compare.py", "eager", "--records", str(path), "--each"]
    monkeypatch.setattr(sys, "argv", words)
    assert compare.main() == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("1 thread: eager: networks: 2, mean 1.00")
    assert out[0].endswith("(1 FASTER, 1 SLOWER, 0 UNCLEAR)")
    assert out[1].startswith("  alpha") and out[1].endswith("SLOWER")
    assert out[2].split()[0] == "beta" and out[2].endswith("FASTER")
    assert out[3].startswith("1 thread: A/A control: networks: 2, mean 1.00")
    assert any(line.startswith("2 threads: eager: networks: 1") for line in out)
    monkeypatch.setattr(sys, "argv", [*words, "--threads", "2"])
    assert compare.main() == 0
    assert all(
        "gamma" in line or "2 threads" in line for line in capsys.readouterr().out.split("\n")[:-1]
    )


def test_an_engine_without_times_is_named_with_those_that_have_some(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py", "abacus"])
    with pytest.raises(SystemExit):
        compare.main()
    error = capsys.readouterr().err
    assert "expected some of" in error and "openvino" in error and "got abacus" in error
