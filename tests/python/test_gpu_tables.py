# SPDX-License-Identifier: BSD-3-Clause
"""benchmarks/gpu_tables.py without a GPU: cuDNN lists for a described H100. Nothing is timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import gpu_tables
from cost_tables import read_table
from gpu_replay import complete
from gpu_stage import Context, OutOfTimeError
from gpu_tables import MORE_ROUNDS, Case, Costs, Networks, groups_of, table_path, tables
from torchalgo import _C
from torchalgo._ir.bounds import GpuPeaks
from torchalgo._ir.costs import Key
from torchalgo._ir.devices import named_device
from torchalgo._measure.process_bench import TakenSamples

H100 = named_device("h100")
PROBLEM = "fwd_f16_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu"
CASE: Case = ("small", "f16", 1)
REAL_CASES = gpu_tables.table_cases


class FakeBench:
    """Answers with a time that depends on the name. The fastest ones fail."""

    asked: list[tuple[str, Key, int]] = []  # noqa: RUF012
    on_ask: Callable[[], None] = staticmethod(lambda: None)
    failure = "illegal access"

    def __init__(self, device: _C.Device, least_limit_s: float) -> None:
        self.column = "cold" if device.l2_bytes == H100.l2_bytes else "warm"

    def start(self) -> None:
        pass

    def measure(self, tasks: Any, rounds: int, **_: Any) -> list[TakenSamples]:
        FakeBench.on_ask()
        results = []
        for problem, primitive in tasks:
            self.asked.append((self.column, Key(problem, *spelled(primitive)), rounds))
            number = time_of(primitive.name)
            taken = TakenSamples([1000.0 * number] * rounds)
            if number == 1:
                taken = TakenSamples([], self.failure)
            results.append(taken)
        return results


def time_of(name: str) -> int:
    return 1 + sum(map(ord, name)) % 20


def spelled(primitive: _C.Primitive) -> tuple[str, str, str]:
    return primitive.name, primitive.src, primitive.dst


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    FakeBench.asked = []
    monkeypatch.setattr(gpu_tables, "ProcessBench", FakeBench)
    monkeypatch.setattr(FakeBench, "on_ask", staticmethod(lambda: None))
    monkeypatch.setattr(gpu_tables, "live", lambda: H100)
    monkeypatch.setattr(gpu_tables, "free_gpu", lambda: None)
    monkeypatch.setattr(gpu_tables.gpu_nets, "make_net", small_net)
    monkeypatch.setattr(gpu_tables, "table_cases", lambda context: iter([(CASE, True)]))
    gpu_tables.network.cache_clear()
    yield
    gpu_tables.network.cache_clear()


def small_net(name: str, seed: int = 0) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
    ).eval()  # fmt: skip


def context(out: Path, emitted: list[Any], left_s: float = 100.0) -> Context:
    return Context(out, True, 0, lambda: left_s, emitted.append, tuple(emitted))


def run_as(monkeypatch: pytest.MonkeyPatch, of_sum: float) -> None:
    """Lets every plan's sum of costs be `of_sum` times what its graph takes."""
    row = {"of_sum": of_sum, "ratio": 1.1, "error": 0.0}
    monkeypatch.setattr(gpu_tables, "run_plan", lambda *_: dict(row))


def primitives(*names: str) -> dict[Key, _C.Primitive]:
    made = [_C.Primitive(name, "nhwc", "nhwc") for name in names]
    return {Key(PROBLEM, *spelled(p)): p for p in made}


def test_only_candidates_near_the_fastest_one_get_more_than_one_sample(tmp_path: Path) -> None:
    emitted: list[Any] = []
    costs = Costs(context(tmp_path, emitted), H100)
    costs.measure(primitives(*(f"cudnn9.conv_bias_relu.e{i}" for i in range(60))))
    best = min(costs.ns(key) for key in costs.known)
    for key, known in costs.known.items():
        near = costs.ns(key) <= gpu_tables.NEAR * best
        assert len(known.cold) == (0 if known.failure else 1 + MORE_ROUNDS * near)
        assert len(known.warm) == MORE_ROUNDS * near
    assert {len(known.cold) for known in costs.known.values()} == {0, 1, 1 + MORE_ROUNDS}


def test_what_was_measured_before_an_interruption_is_not_measured_again(tmp_path: Path) -> None:
    emitted: list[Any] = []
    first = Costs(context(tmp_path, emitted), H100)
    first.measure(primitives("cudnn9.conv_bias_relu.e0", "cudnn9.conv_bias_relu.e1"))
    FakeBench.asked.clear()
    second = Costs(context(tmp_path, emitted), H100)
    assert {k: v.cold for k, v in second.known.items()} == {
        k: v.cold for k, v in first.known.items()
    }
    second.measure(primitives("cudnn9.conv_bias_relu.e0", "cudnn9.conv_bias_relu.e1"))
    assert FakeBench.asked == [] and len(emitted) == 1
    second.measure(primitives("cudnn9.conv_bias_relu.e1", "cudnn9.conv_bias_relu.e2"))
    assert {key.primitive for _, key, rounds in FakeBench.asked if rounds == 1} == {
        "cudnn9.conv_bias_relu.e2"
    }


def test_failures_are_written_before_the_rest_of_the_operation_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that hangs may use up the time in which the stage must give a result."""

    def ended() -> None:
        if FakeBench.asked:
            raise KeyboardInterrupt

    monkeypatch.setattr(FakeBench, "on_ask", staticmethod(ended))
    emitted: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        Costs(context(tmp_path, emitted), H100).measure(
            primitives(*(f"cudnn9.conv_bias_relu.e{i}" for i in range(60)))
        )
    failed = {Key(*key) for row in emitted for key, (*_, why, _) in row["costs"] if why}
    assert failed == {key for _, key, _ in FakeBench.asked if time_of(key.primitive) == 1} != set()


def test_candidates_that_hang_are_findings_with_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(monkeypatch, 1.0)
    monkeypatch.setattr(FakeBench, "failure", "no answer in 5 s")
    outcome = tables(context(tmp_path, []))
    names = {key.primitive for _, key, _ in FakeBench.asked if time_of(key.primitive) == 1}
    assert names and not outcome.failures
    for name in names:
        assert any(f"{name} on " in text for text in outcome.findings)
    assert {(row[1], row[-1]) for row in outcome.data["failed"]} == {
        (name, "no answer in 5 s") for name in names
    }


def test_the_operation_with_the_largest_share_of_the_time_comes_first(tmp_path: Path) -> None:
    listed = gpu_tables.list_candidates(CASE, H100, context(tmp_path, []))
    groups = groups_of(listed, H100)
    peaks = GpuPeaks.of(H100)
    assert peaks is not None
    firsts = [next(iter(group)) for group in groups]
    convolutions = [key.problem for key in firsts if key.problem.startswith("fwd")]
    assert len(convolutions) == 2 and "c16" in convolutions[0]  # it occurs twice
    assert len(firsts) == len(set(firsts))


def test_of_engines_that_differ_in_the_layout_of_weights_one_is_measured() -> None:
    made = [
        _C.Candidate([0], PROBLEM, _C.Primitive(name, "nhwc", dst), [])
        for dst in ("nhwc", "nchw")
        for name in ("e1{A=1}", "e1.krsc{A=1}", "e1{A=2}", "e2", "e3.krsc", "e3")
        if (name, dst) != ("e3.krsc", "nchw")
    ]
    kept = [(c.primitive.name, c.primitive.dst) for c in gpu_tables.without_twins(made)]
    assert kept == [
        ("e1.krsc{A=1}", "nhwc"), ("e1{A=2}", "nhwc"), ("e2", "nhwc"), ("e3.krsc", "nhwc"),
        ("e1.krsc{A=1}", "nchw"), ("e1{A=2}", "nchw"), ("e2", "nchw"), ("e3", "nchw"),
    ]  # fmt: skip


@pytest.mark.parametrize("of_sum", [1.1, 1.3, 0.7])
def test_a_wrong_sum_of_the_first_network_lets_warm_costs_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_sum: float
) -> None:
    run_as(monkeypatch, of_sum)
    emitted: list[Any] = []
    outcome = tables(context(tmp_path, emitted))
    first = "cold" if of_sum == 1.1 else "warm"
    assert [row["decided"] for row in emitted if "decided" in row] == [first]
    assert f"{first} costs first" in outcome.summary
    assert Costs(context(tmp_path, emitted), H100).first == first
    (row,) = (row for row in emitted if "case" in row)
    assert ("with_warm_costs" in row) is (first == "warm")
    assert any("sum of costs" in text for text in outcome.findings) is (first == "warm")
    known = Costs(context(tmp_path, emitted), H100).known.values()
    assert all(getattr(each, first) or each.failure for each in known)


def test_the_table_can_be_replayed_and_knows_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(monkeypatch, 1.0)
    outcome = tables(context(tmp_path, []))
    assert not outcome.failures and not outcome.left
    table = read_table(table_path(context(tmp_path, []), CASE))
    assert "illegal access" in table.failures.values()
    assert all(row.ticks > 0 for row in table.rows.values())
    assert any(row.look_ticks > 0 for row in table.rows.values())
    peaks = GpuPeaks.of(H100)
    assert peaks is not None and complete(table, peaks).rows.keys() >= table.rows.keys()


def test_an_interrupted_network_is_continued_and_loses_one_operation_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(monkeypatch, 1.0)
    emitted: list[Any] = []

    def killed() -> None:
        if len(FakeBench.asked) > 50:
            raise KeyboardInterrupt

    monkeypatch.setattr(FakeBench, "on_ask", staticmethod(killed))
    with pytest.raises(KeyboardInterrupt):
        tables(context(tmp_path, emitted))
    before = list(FakeBench.asked)
    written = {Key(*key) for row in emitted for key, _ in row.get("costs", ())}
    assert written and not any("case" in row for row in emitted)
    monkeypatch.setattr(FakeBench, "on_ask", staticmethod(lambda: None))
    tables(context(tmp_path, emitted))
    again = {key for _, key, rounds in FakeBench.asked[len(before) :] if rounds == 1}
    assert again and not again & written
    assert sum("case" in row for row in emitted) == 1


def test_time_that_ends_within_a_network_leaves_a_table_of_what_is_known(tmp_path: Path) -> None:
    emitted: list[Any] = []
    seconds = iter([100.0, 100.0, 100.0, *[0.0] * 100])
    short = Context(tmp_path, True, 0, lambda: next(seconds), emitted.append)
    networks = Networks([(CASE, True)], short)
    with pytest.raises(OutOfTimeError):
        for _ in range(3):
            networks.measure(CASE)
    assert len(read_table(table_path(short, CASE)).rows) > 0
    networks.close()


def test_each_network_occurs_once_in_each_type_and_batch() -> None:
    cases = [case for case, _ in REAL_CASES(Context(Path(), False, 0, lambda: 0.0))]
    assert len(set(cases)) == len(cases) == 5 * 11 + 1
    assert Counter(dtype for _, dtype, _ in cases) == {"f16": 33, "tf32": 22, "bf16": 1}
    assert cases[0] == ("resnet50", "f16", 8)
