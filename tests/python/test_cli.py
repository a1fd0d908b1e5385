# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.command import run
from support.nets import Net
from torchalgo import _C
from torchalgo._cli import bench
from torchalgo._measure.sampling import Sampler
from torchalgo_cli import main

CONV = "fwd_f32_n1c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1"
LINEAR = "linear_f32_n1c64_k10"


@pytest.fixture(params=["net.pt", "net.pt2"])
def saved(fast: torchalgo.Optimized, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path: Path = tmp_path / request.param
    fast.save(path)
    return path


def test_optimize_writes_a_module_a_plan_and_a_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, net: Net, x: torch.Tensor
) -> None:
    files = {name: tmp_path / name for name in ("o.pt", "o.plan.json", "o.html", "costs.jsonl")}
    out = run(
        capsys, "optimize", "support.nets:net_factory", "--input", "1x3x40x40", "-o", files["o.pt"],
        "--plan-out", files["o.plan.json"], "--report", files["o.html"], "--quiet",
        "--override", "layer1.*=aten.conv", "--cost-db", files["costs.jsonl"],
    )  # fmt: skip
    heads = [line.split()[0] for line in out.splitlines()]
    assert heads == ["speed", "error", "memory", "file", "next"]
    assert "relative L2" in out and "packed weights" in out
    assert "layer1.0.conv1" in run(capsys, "explain", files["o.pt"])
    assert all(path.stat().st_size for path in files.values())
    assert torchalgo.load_plan(files["o.pt"]) == torchalgo.load_plan(files["o.plan.json"])
    again = torchalgo.load(files["o.pt"])
    assert torch.allclose(again(x), net(x), atol=1e-5)


def test_optimize_tells_what_each_step_took_if_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ("optimize", "support.nets:net_factory", "--input", "1x3x40x40", "-o", tmp_path / "o.pt")
    assert main([*map(str, argv), "--quiet", "--timings"]) == 0
    said = capsys.readouterr().err
    assert re.search(r"optimize took [0-9.]+ s: \w+ [0-9.]+", said)
    assert all(f"{step} " in said for step in ("read", "measure", "check"))


def test_optimize_takes_a_torchscript_file_and_a_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, net: Net, x: torch.Tensor
) -> None:
    torch.jit.save(torch.jit.script(net), tmp_path / "in.pt")
    common = ("optimize", tmp_path / "in.pt", "--input", "1x3x40x40", "--quiet", "--json")
    first = json.loads(run(capsys, *common, "-o", tmp_path / "a.pt"))
    run(capsys, "explain", tmp_path / "a.pt", "--json")
    second = json.loads(
        run(capsys, *common, "-o", tmp_path / "b.pt", "--plan", tmp_path / "a.pt", "--portable")
    )
    assert first["plan"]["nodes"] == second["plan"]["nodes"]
    assert first["runs"] in ("plan", "single_layout", "baseline")
    assert torch.allclose(torch.jit.load(tmp_path / "b.pt")(x), net(x), atol=1e-5)


def test_optimize_takes_and_writes_files_of_torch_export(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, net: Net, x: torch.Tensor
) -> None:
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "in.pt2")
    common = ("optimize", tmp_path / "in.pt2", "--input", "1x3x40x40", "--quiet", "--json")
    first = json.loads(run(capsys, *common, "-o", tmp_path / "a.pt2"))
    run(capsys, "explain", tmp_path / "a.pt2")
    second = json.loads(
        run(capsys, *common, "-o", tmp_path / "b.pt2", "--plan", tmp_path / "a.pt2")
    )
    assert first["plan"]["nodes"] == second["plan"]["nodes"]
    with torch.no_grad():
        assert torch.allclose(torchalgo.load(tmp_path / "b.pt2")(x), net(x), atol=1e-5)


def test_candidates_of_a_problem_and_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert "aten.conv" in run(capsys, "explain", CONV)
    model = ("support.nets:net_factory", "--input", "1x3x40x40", "--candidates")
    layers = json.loads(run(capsys, "explain", *model, "--json"))
    assert "layer1.0.conv1" in {layer["name"] for layer in layers}


def test_explain_shows_the_plan_of_a_module_and_of_a_file(
    capsys: pytest.CaptureFixture[str], saved: Path, fast: torchalgo.Optimized, tmp_path: Path
) -> None:
    fast.plan.save(tmp_path / "net.plan.json")
    for path in (saved, tmp_path / "net.plan.json"):
        assert run(capsys, "explain", path) == f"{fast.plan}\n"
        assert run(capsys, "explain", path, "--json") == fast.plan.to_json()


def test_bench_times_and_checks_every_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("--budget", "0.1", "--threads", "1")
    rows = json.loads(run(capsys, "bench", CONV, *quick, "--json"))["rows"]
    offered = {o.primitive for o in torchalgo.candidates(CONV)[0].offered}
    times = {row["primitive"]: row["median_us"] for row in rows if not row["reason"]}
    assert times.keys() == offered and all(us > 0 for us in times.values())
    head = ["algorithm", "layout", "us", "+-", "memory", "determ.", "error"]
    assert run(capsys, "bench", CONV, *quick).splitlines()[1].split()[:7] == head


@pytest.mark.parametrize("problem", [CONV, LINEAR])
def test_coarser_types_are_candidates_if_the_error_allows(
    capsys: pytest.CaptureFixture[str], problem: str
) -> None:
    def names(records: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
        return {(r["primitive"], r["src"], r["dst"]) for r in records}

    quick = ("--budget", "0.1", "--json")
    allowed = ("--max-error", "1e-2")
    (layer,) = json.loads(run(capsys, "explain", problem, *allowed, "--json"))
    plain, found = (
        [row for row in json.loads(run(capsys, "bench", problem, *words))["rows"] if row["src"]]
        for words in (quick, (*quick, *allowed))
    )
    assert names(found) == names(layer["offered"])
    coarse = [r for r in found if "bf16" in f"{r['dst']} {r['primitive']}"]
    assert names(found) - names(plain) >= names(coarse)
    assert coarse or (problem == CONV and not _C.cpu_device().bf16_isa)
    assert not any(r["reason"] for r in found)
    if coarse:  # to name it allows it
        assert "ok" in run(capsys, "check", problem, "--primitive", coarse[0]["primitive"])


def test_bench_of_a_model_plans_within_the_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def optimize(*arguments: Any, max_error: float, **options: Any) -> Any:
        seen.append(max_error)
        return torchalgo.optimize(*arguments, max_error=max_error, budget_s=2.0, **options)

    monkeypatch.setattr(bench, "optimize", optimize)
    model = ("support.nets:net_factory", "--input", "1x3x40x40", "--rounds", "3", "--json")
    run(capsys, "bench", *model, "--max-error", "1e-2")
    assert seen == [1e-2]


def test_check_of_a_primitive_passes_or_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    named = ("check", CONV, "--primitive", "cpu.im2col_gemm")
    assert "ok" in run(capsys, *named)
    out = run(capsys, *named, "--max-error", "1e-30", "--json", code=1)
    assert json.loads(out)[0]["failure"]


def test_check_compares_with_the_original_on_the_users_data(
    capsys: pytest.CaptureFixture[str], saved: Path, tmp_path: Path, net: Net
) -> None:
    data = torch.rand(5, 3, 40, 40)
    torch.save(data, tmp_path / "data.pt")
    numpy = pytest.importorskip("numpy")
    numpy.save(tmp_path / "data.npy", data.numpy())
    torch.jit.save(torch.jit.script(net), tmp_path / "original.pt")
    for original in ("support.nets:net_factory", tmp_path / "original.pt"):
        for name in ("data.pt", "data.npy"):
            out = run(capsys, "check", saved, tmp_path / name, "--original", original, "--json")
            record = json.loads(out)
            assert record["samples"] == 5
            assert record["max_rel_error"] <= 1e-5
            assert record["top1_agreement"] == 1
    out = run(capsys, "check", "support.nets:net_factory", tmp_path / "data.pt")
    assert "top-1 agrees on 5 of 5: ok" in out


def test_check_against_another_model_ends_with_1(
    capsys: pytest.CaptureFixture[str], saved: Path, tmp_path: Path, net: Net
) -> None:
    torch.save(torch.rand(2, 3, 40, 40), tmp_path / "data.pt")
    with torch.no_grad():
        net.fc.weight += 1
    torch.jit.save(torch.jit.script(net), tmp_path / "other.pt")
    other = ("--original", tmp_path / "other.pt")
    out = run(capsys, "check", saved, tmp_path / "data.pt", *other, code=1)
    assert "FAILS" in out


def test_every_error_is_one_line_with_its_exit_code(
    capsys: pytest.CaptureFixture[str], saved: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.pt").write_text("hello")
    torch.save({"a": 1}, tmp_path / "dict.pt")
    shape = ("--input", "1x3x40x40", "-o", tmp_path / "o.pt", "--quiet")
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("there is no file", ("optimize", tmp_path / "missing.pt", *shape)),
        ("no TorchScript file", ("optimize", tmp_path / "text.pt", *shape)),
        ("cannot import", ("optimize", "support.nets:missing", *shape)),
        ("cannot import", ("optimize", "no_such_module:f", *shape)),
        ("cannot import", ("optimize", "support.nets:net_factory.__class__", *shape)),
        ("without arguments", ("optimize", "support.nets:Block", *shape)),
        ("already optimized", ("optimize", saved, *shape)),
        (
            "3 channels",
            ("optimize", "support.nets:net_factory", *("--input", "1x4x40x40"), *shape[2:]),
        ),
        (
            "no folder",
            ("optimize", "support.nets:net_factory", *shape, "--plan-out", "/none/p.json"),
        ),
        ("no folder", ("optimize", "support.nets:net_factory", *shape, "--report", "/none/p.html")),
        (
            "ends in one of .html",
            ("optimize", "support.nets:net_factory", *shape, "--report", "p.pdf"),
        ),
        (
            "matches no layer",
            ("optimize", "support.nets:net_factory", *shape, "--override", "q=a.b"),
        ),
        ("cannot read", ("explain", tmp_path / "none.json")),
        ("no plan of torchalgo", ("explain", tmp_path / "text.pt")),
        ("fwd_f32_x", ("bench", "fwd_f32_x")),
        ("there is no primitive 'cpu.magic'", ("check", CONV, "--primitive", "cpu.magic")),
        ("name the original model", ("check", saved, tmp_path / "data.pt")),
        (
            "expected one tensor",
            ("check", "support.nets:net_factory", tmp_path / "dict.pt"),
        ),
        ("cannot read", ("check", "support.nets:net_factory", tmp_path / "none.npy")),
        (
            "holds no samples",
            ("check", saved, tmp_path / "none.pt", "--original", "support.nets:Net"),
        ),
        (
            "original fails on [1, 4",
            ("check", saved, tmp_path / "four.pt", "--original", "support.nets:Net"),
        ),
    ]
    torch.save(torch.rand(1, 3, 40, 40), tmp_path / "data.pt")
    torch.save(torch.rand(0, 3, 40, 40), tmp_path / "none.pt")
    torch.save(torch.rand(2, 4, 40, 40), tmp_path / "four.pt")
    for message, argv in cases:
        assert message in run(capsys, *argv, code=2 if argv[0] == "check" else 1)


def test_wrong_usage_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (
        (),
        ("optimise",),
        ("optimize", "m.pt"),
        ("optimize", "m.pt", "-o", "o.pt", "--input", "1,3"),
        ("optimize", "m.pt", "-o", "o.pt", "--input", "1x3", "--override", "conv1"),
        ("explain", "support.nets:net_factory"),
        ("check", CONV),
        ("check", "support.nets:net_factory"),
        ("bench", CONV, "--rounds", "0"),
        ("bench", CONV, "--threads", "many"),
    ):
        run(capsys, *argv, code=2)


def test_ctrl_c_ends_with_130_and_one_line() -> None:
    # A shell's background jobs ignore the signal, and so would what they start.
    code = (
        "import signal, sys, torchalgo, torchalgo_cli as cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print('ready', flush=True)\n"
        "sys.exit(cli.main(['bench', 'fwd_f32_n1c32h28w28_k32r3s3_st1x1_pad1x1_dil1x1_g1',"
        " '--budget', '1000']))"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "torchalgo: interrupted\n")


def test_ctrl_c_while_tuning_writes_the_plan_and_ends_with_130(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_all, calls = Sampler.take_all, []

    def interrupt(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return take_all(*args, **options)

    monkeypatch.setattr(Sampler, "take_all", interrupt)
    argv = ("optimize", "support.nets:net_factory", "--input", "1x3x40x40", "-o", tmp_path / "o.pt")
    assert main([*map(str, argv), "--quiet"]) == 130
    out, err = capsys.readouterr()
    assert out.startswith("speed   ")
    assert err == f"torchalgo: interrupted; {tmp_path / 'o.pt'} runs the costs measured so far\n"
    assert torchalgo.load_plan(tmp_path / "o.pt").nodes


def test_the_module_runs_as_a_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "torchalgo", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"torchalgo {torchalgo.__version__}\n"
