# SPDX-License-Identifier: BSD-3-Clause
"""profile(): the table of every algorithm, in all three directions."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import Net
from torchalgo import _C
from torchalgo._api.profile import RUNTIME_COMPILED
from torchalgo_cli import main

PROBLEM = "fwd_f32_n1c16h10w10_k16r3s3_st1x1_pad1x1_dil1x1_g1"
QUICK = {"budget_s": 0.05}


def test_a_long_profile_tells_which_problem_it_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torchalgo._base.progress.SILENCE_S", 0.02)
    layers = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3))
    options = {**QUICK, "directions": "forward"}
    torchalgo.profile(layers, torch.rand(1, 3, 10, 10), **options)
    told = capsys.readouterr().err
    assert "torchalgo: timing problem 1 of 2, 0 s so far" in told and "problem 2 of 2" in told
    torchalgo.profile(layers, torch.rand(1, 3, 10, 10), **options, progress=False)
    assert not capsys.readouterr().err


def test_a_convolution_is_profiled_in_all_three_directions() -> None:
    conv = nn.Conv2d(16, 16, 3, padding=1)
    found = torchalgo.profile(conv, torch.rand(1, 16, 10, 10), **QUICK)
    assert list(found.layers) == [
        PROBLEM.replace("fwd", d) for d in ("fwd", "bwd_data", "bwd_filter")
    ]
    for problem in found.layers:
        rows = found.of(problem)
        times = [r.median_us for r in rows if r.is_supported]
        assert len(times) >= 2 and None not in times
        assert times == sorted(times)
        assert all(r.samples >= 2 for r in rows if r.is_supported)
        checked = [r for r in rows if r.is_supported and r.rel_error is not None]
        assert checked and all(r.rel_error < 1e-4 for r in checked)
        assert all(r.reason and r.median_us is None for r in rows if not r.is_supported)
        assert found.best(problem) is checked[0]
        assert any(r.primitive.startswith("aten.conv") for r in rows)


def test_the_table_fits_and_says_why_something_is_not_supported() -> None:
    found = torchalgo.profile(PROBLEM.replace("st1x1", "st2x2"), directions="fwd", **QUICK)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith(PROBLEM.replace("st1x1", "st2x2"))
    head = ["algorithm", "layout", "us", "+-", "memory", "determ.", "error"]
    head += ["componentwise", "supported"]
    assert lines[1].split() == head
    winograd = [line for line in lines if "not supported" in line and "winograd" in line]
    assert winograd and "stride" in " ".join(lines)


def test_algorithms_in_coarser_types_have_rows_if_the_error_allows() -> None:
    def rows_of(profile: torchalgo.Profile) -> set[tuple[str, str, str]]:
        return {(r.primitive, r.src, r.dst) for r in profile.rows if r.is_supported}

    def offered(*, coarse_types: bool) -> set[tuple[str, str, str]]:
        primitives = _C.offers_of(PROBLEM, coarse_types=coarse_types)[0]
        return {(p.name, p.src, p.dst) for p in primitives if not _C.is_view(p.name)}

    only_f32 = torchalgo.profile(PROBLEM, directions="fwd", **QUICK)
    assert rows_of(only_f32) == offered(coarse_types=False)
    found = torchalgo.profile(PROBLEM, directions="fwd", max_error=1e-2, budget_s=5.0)
    assert rows_of(found) == offered(coarse_types=True)
    coarse = [row for row in found.rows if "bf16" in row.dst]
    assert bool(coarse) == bool(_C.cpu_device().bf16_isa)
    assert all(1e-3 < row.rel_error < 1e-2 for row in coarse if row.rel_error is not None)
    errors = [row for row in found.rows if row.rel_error is not None]
    assert errors and f"{errors[0].rel_error:.0e}" in str(found)


def test_the_table_has_a_row_for_each_engine_with_its_fastest_settings() -> None:
    """Engines of cuDNN have hundreds of settings, with names of a hundred letters."""
    row = torchalgo.profile(PROBLEM, directions="fwd", **QUICK).best(PROBLEM)
    long = "cudnn9.conv.e62.krsc{IDX_MODE=0,TILEK=1,TILE_CGA_M=4,TILE_CGA_N=1,TILE_SIZE=5}"
    names = [long, "cudnn9.conv.e5", "cudnn9.conv.e62.krsc", "cudnn9.conv.e5{STAGES=2}"]
    rows = [
        dataclasses.replace(row, primitive=name, median_us=1.0 + i) for i, name in enumerate(names)
    ]
    lines = str(torchalgo.Profile("any", {PROBLEM: []}, rows)).splitlines()[2:]
    assert [line.split()[0] for line in lines[::2]] == ["cudnn9.conv.e62.krsc", "cudnn9.conv.e5"]
    assert lines[1].strip() == long[long.index("{") :] + "; 1 other setting is slower"
    assert lines[3].strip() == "its defaults; 1 other setting is slower"


def test_each_distinct_convolution_of_a_model_is_taken_once(net: Net) -> None:
    net.train()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    found = torchalgo.profile(net, torch.rand(1, 3, 24, 24), directions="fwd", check=False, **QUICK)
    assert found.layers["fwd_f32_n1c16h12w12_k16r3s3_st1x1_pad1x1_dil1x1_g1"] == [
        "layer1.0.conv1",
        "layer1.0.conv2",
    ]
    assert len(found.layers) == 8
    assert net.training and net.layer1[0].bn1.training
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert "layer1.0.conv1, layer1.0.conv2" in str(found)


def test_ours_functional_and_other_dimensions_are_found() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ours = torchalgo.nn.Conv2d(4, 4, 3, forward="cpu.direct")
            self.up = nn.ConvTranspose2d(4, 6, 3, 2, output_padding=1, groups=2)
            self.flat = nn.Conv1d(6, 2, 3, dilation=2)
            self.deep = nn.Conv3d(2, 2, (1, 2, 3), padding=(0, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.up(self.ours(x))
            x = nn.functional.conv2d(x, torch.ones(6, 6, 2, 2), stride=2)
            x = self.flat(x.flatten(2))
            return self.deep(x.view(1, 2, -1, 4, 5))

    x = torch.rand(1, 4, 9, 9)
    found = torchalgo.profile(Model(), x, directions="bwd_data", check=False, **QUICK)
    assert found.layers == {
        "bwd_data_f32_n1c4h9w9_k4r3s3_st1x1_pad0x0_dil1x1_g1": ["ours"],
        # The gradient of a transposed convolution's input is an ordinary one.
        "fwd_f32_n1c6h16w16_k4r3s3_st2x2_pad0x0_dil1x1_g2": ["up"],
        "bwd_data_f32_n1c6h16w16_k6r2s2_st2x2_pad0x0_dil1x1_g1": [""],
        "bwd_data_f32_n1c6h1w64_k2r1s3_st1x1_pad0x0_dil1x2_g1": ["flat"],
        "bwd_data_f32_n1c2d3h4w5_k2t1r2s3_st1x1x1_pad0x1x1_dil1x1x1_g1": ["deep"],
    }


def test_a_wrong_result_counts_as_not_supported() -> None:
    found = torchalgo.profile(PROBLEM, directions="fwd", max_error=1e-9, **QUICK)
    assert not any(row.is_supported for row in found.rows)
    assert "not supported" in str(found)


class CountedBench:
    """A bench whose clock stands for the work: timing is free, a check takes 1 s."""

    def __init__(self, wrong: set[str]) -> None:
        self.wrong, self.checked, self.timed = wrong, list[str](), set[str]()
        self.now, self.is_released = 0.0, False

    def release(self) -> None:
        self.is_released = True

    def measure(self, tasks: Any, **options: Any) -> list[Any]:
        self.timed |= {p.name for _, p in tasks}
        self.now += 0.1
        return [SimpleNamespace(ns=[1e3 + i] * 60, failure="") for i, _ in enumerate(tasks)]

    def check(self, problem: str, primitives: Any, bound: float) -> list[tuple[float, str]]:
        self.now += 1.0
        self.checked += [p.name for p in primitives]
        return [(1.0, "wrong") if p.name in self.wrong else (1e-7, "") for p in primitives]

    def componentwise(self, tasks: Any) -> list[tuple[float, str]]:
        return [(1e-7, "")] * len(tasks)


def profiled_by(bench: CountedBench, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    module = sys.modules["torchalgo._api.profile"]  # the name in the package is the function
    monkeypatch.setattr(module, "Bench", SimpleNamespace(on=lambda device: bench))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: bench.now))
    found = torchalgo.profile(PROBLEM, directions="fwd", **options)
    assert bench.is_released
    return found


def test_checks_end_with_the_budget_and_begin_with_the_fastest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = CountedBench(set())
    found = profiled_by(bench, monkeypatch, budget_s=3.0)
    names = [row.primitive for row in found.rows if row.is_supported]
    assert bench.checked == names[: len(bench.checked)]
    assert 1 < len(bench.checked) <= 4 < len(names)
    assert found.best(PROBLEM).rel_error == 1e-7


def test_checks_go_on_until_one_result_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    first = CountedBench(set())
    names = [r.primitive for r in profiled_by(first, monkeypatch, budget_s=0.1).rows]
    assert len(first.checked) == 1
    second = CountedBench(set(names[:3]))
    found = profiled_by(second, monkeypatch, budget_s=0.1)
    assert found.best(PROBLEM).primitive == second.checked[-1] not in second.wrong
    assert {r.primitive for r in found.rows if r.reason == "wrong"} == set(second.checked[:-1])


def test_engines_compiled_at_run_time_are_left_out_unless_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offers = torchalgo._C.offers_of

    def with_compiled(*args: Any) -> Any:
        primitives, _, refusals = offers(*args)
        slow = [
            SimpleNamespace(
                is_runtime_compiled=p.name == "aten.conv", is_deterministic=True, numerics=[],
                hidden_bytes=0,
            )
            for p in primitives
        ]  # fmt: skip
        return primitives, slow, refusals

    monkeypatch.setattr(torchalgo._C, "offers_of", with_compiled)
    bench = CountedBench(set())
    found = profiled_by(bench, monkeypatch)
    assert "aten.conv" not in bench.timed
    assert {r.reason for r in found.rows if r.primitive == "aten.conv"} == {RUNTIME_COMPILED}
    bench = CountedBench(set())
    profiled_by(bench, monkeypatch, runtime_compiled=True)
    assert "aten.conv" in bench.timed


def test_json_has_every_row() -> None:
    found = torchalgo.profile(PROBLEM, directions=["fwd"], **QUICK)
    data = json.loads(found.to_json())
    assert len(data["rows"]) == len(found.rows)
    assert data["rows"][0]["primitive"] == found.rows[0].primitive


def test_wrong_arguments_say_what_is_expected() -> None:
    conv = nn.Conv2d(16, 16, 3)
    for call, text in [
        (
            lambda: torchalgo.profile(PROBLEM, directions="backward"),
            "expected forward, backward_data",
        ),
        (lambda: torchalgo.profile(PROBLEM, dtype="f8"), "expected one of f64"),
        (lambda: torchalgo.profile(PROBLEM, budget_s=0), "expected a number of seconds above 0"),
        (lambda: torchalgo.profile(PROBLEM, device="h100"), "only described"),
        (lambda: torchalgo.profile("add_f32_n1c8h9w9"), "is no convolution"),
        (lambda: torchalgo.profile(conv), "without its input"),
        (lambda: torchalgo.profile(conv, torch.rand(1, 3, 9, 9)), "the module fails"),
        (lambda: torchalgo.profile(nn.ReLU(), torch.rand(3)), "ran no convolution"),
        (lambda: torchalgo.profile(7), "target is int"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(torchalgo.Error, match=text):
            call()


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    gradient = PROBLEM.replace("fwd", "bwd_filter")
    assert main(["bench", gradient, "--budget", "0.05"]) == 0
    assert gradient in capsys.readouterr().out
    command = ["bench", "support.nets:net_factory", "--input", "1x3x16x16", "--layers"]
    assert main([*command, "--budget", "0.02", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["layers"]) == 8
    assert main([*command, "--training", "--budget", "0.01"]) == 0
    problems = re.findall(r"^(\w+)_f32_\S+  on ", capsys.readouterr().out, re.MULTILINE)
    assert [problems.count(word) for word in ("fwd", "bwd_data", "bwd_filter")] == [8, 8, 8]
