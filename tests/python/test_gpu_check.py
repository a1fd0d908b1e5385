# SPDX-License-Identifier: BSD-3-Clause
"""The machinery of benchmarks/gpu_check.py, with the stages of fake_gpu_stages.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

import gpu_check
from gpu_check import ARCHIVE, NEEDS_GPU, NOT_REACHED, main, select_stages
from gpu_stage import Context
from support import fake_gpu_stages

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _children_find_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))


def run(out: Path, *arguments: str, has_gpu: bool = True) -> int:
    return main(["--module", "support.fake_gpu_stages", "--out", str(out), *arguments], has_gpu)


def record(out: Path, stage: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"{stage}.json").read_text())
    return found


def results(out: Path, stage: str) -> list[Any]:
    return [json.loads(line) for line in (out / f"{stage}.jsonl").read_text().splitlines()]


def test_each_stage_has_a_process_and_one_that_dies_costs_the_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 1
    table = capsys.readouterr().out.splitlines()[-6:]
    assert [line.split()[:2] for line in table] == [
        ["good", "passed"], ["bad", "failed"], ["broken", "failed"], ["dies", "failed"],
        ["missed", "passed"], ["last", "passed"],
    ]  # fmt: skip
    assert {row["pid"] for row in results(tmp_path, "good")} - {os.getpid()}
    assert "SIGSEGV; 1 results before are in dies.jsonl" in record(tmp_path, "dies")["summary"]
    assert results(tmp_path, "dies") == ["before"]
    assert record(tmp_path, "broken")["summary"] == "RuntimeError: out of luck"
    assert "second line" in record(tmp_path, "broken")["data"]["traceback"]


def test_a_missed_hypothesis_is_a_finding_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--stages", "missed") == 0
    assert "finding: hypothesis missed: below 1.10x" in capsys.readouterr().out
    assert record(tmp_path, "missed")["findings"] == ["hypothesis missed: below 1.10x"]


def test_a_stage_that_hears_no_signal_is_ended_and_keeps_its_results(tmp_path: Path) -> None:
    assert run(tmp_path, "--stages", "hangs") == 1
    assert "did not end within 0.9 s" in record(tmp_path, "hangs")["summary"]
    if (tmp_path / "hangs.pid").exists():  # on a busy machine it may be ended before
        assert results(tmp_path, "hangs") == ["before"]
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "hangs.pid").read_text()), 0)


def test_no_stage_starts_when_time_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--minutes", "0") == 3
    assert {record(tmp_path, s.name)["status"] for s in fake_gpu_stages.STAGES if s.is_default} == {
        NOT_REACHED
    }
    assert run(tmp_path, "--resume", "--stages", "good") == 0


def test_the_archive_is_whole_after_each_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    write_archive = gpu_check.write_archive

    def look(out: Path) -> None:
        write_archive(out)
        with tarfile.open(out / ARCHIVE) as archive:
            seen.append(archive.getnames())
        assert not list(out.glob("*.part"))

    monkeypatch.setattr(gpu_check, "write_archive", look)
    run(tmp_path, "--stages", "good,dies")
    good = ["good.json", "good.jsonl", "good.log"]
    assert seen == [good, ["dies.json", "dies.jsonl", "dies.log", *good]]


def test_stages_are_selected_by_name_or_part_in_their_own_order() -> None:
    stages = fake_gpu_stages.STAGES
    assert [s.name for s in select_stages(stages, "last, good", None)] == ["good", "last"]
    assert [s.name for s in select_stages(stages, None, 2)] == ["broken", "dies", "missed"]
    assert [s.name for s in select_stages(stages, "hangs", None)] == ["hangs"]
    with pytest.raises(SystemExit, match="no stage x; there are good, bad, "):
        select_stages(stages, "good,x", None)


def test_without_a_gpu_the_stages_that_need_one_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--part", "1", has_gpu=False) == 2
    assert record(tmp_path, "bad")["status"] == NEEDS_GPU
    assert record(tmp_path, "good")["status"] == "passed"
    assert not (tmp_path / "bad.runs").exists()


def test_resuming_skips_what_passed_and_repeats_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "--part", "1")
    (tmp_path / "mended").touch()
    (tmp_path / "last.json").write_text("{ torn")
    assert run(tmp_path, "--stages", "good,bad,last", "--resume") == 0
    assert len((tmp_path / "good.runs").read_text().splitlines()) == 1
    assert len((tmp_path / "bad.runs").read_text().splitlines()) == 2
    assert "passed*" in capsys.readouterr().out
    assert record(tmp_path, "last")["summary"] == "the last"


def test_a_stage_gets_its_budget_and_the_seed(tmp_path: Path) -> None:
    run(tmp_path, "--stages", "good", "--seed", "7")
    data = record(tmp_path, "good")["data"]
    assert data["seed"] == 7 and 0 < data["left_s"] <= 10


def test_each_part_of_the_real_stages_fits_into_nine_minutes_and_can_be_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gpu_stages import STAGES

    for part in (1, 2, 3):
        assert 0 < sum(s.budget_s for s in STAGES if s.is_default and s.part == part) <= 540
    assert [s.part for s in STAGES if s.is_default] == sorted(
        s.part for s in STAGES if s.is_default
    )
    names = [stage.name for stage in STAGES]
    assert len(set(names)) == len(names)
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in names)


def test_a_gpu_is_described_by_the_fixture_of_its_name() -> None:
    from gpu_here import fixture_of
    from torchalgo._ir.devices import list_devices, named_device

    for name in list_devices():
        assert fixture_of(named_device(name)) == name
    # H100 and H200 have one ISA and as many multiprocessors.
    assert len({named_device(name).isa for name in ("h100", "h200")}) == 1


def built(out: Path, *commands: str, is_there: bool = False) -> dict[str, Any] | None:
    """Builds by Python programs. The result can be imported if they have made `out`/built."""
    return gpu_check.build_if_needed(
        out,
        lambda: is_there or (out / "built").exists(),
        lambda: [[sys.executable, "-c", command] for command in commands],
    )


def test_it_builds_where_torchalgo_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert built(tmp_path / "no", "raise SystemExit(1)", is_there=True) is None
    make = f"import pathlib; pathlib.Path({str(tmp_path / 'built')!r}).touch(); print('compiling')"
    found = built(tmp_path, "print('configuring')", make)
    assert found is not None and found["status"] == "passed"
    assert (tmp_path / "build.log").read_text().split() == ["configuring", "compiling"]
    assert os.environ["PYTHONPATH"].startswith(str(gpu_check.ROOT / "python"))
    with tarfile.open(tmp_path / ARCHIVE) as archive:
        assert {"build.json", "build.log"} <= set(archive.getnames())


@pytest.mark.parametrize("commands", [("raise SystemExit(7)", "print('never')"), ("pass",)])
def test_a_build_that_fails_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    found = built(tmp_path, *commands)
    assert found is not None and found["status"] == "failed" and "build.log" in found["summary"]
    assert record(tmp_path, "build") == found
    assert "never" not in (tmp_path / "build.log").read_text()


def test_the_command_runs_here_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--stages", "env,deviceprop"], capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if torch.cuda.is_available() else 2), done.stdout + done.stderr
    assert record(tmp_path, "env")["data"]["torch"] == torch.__version__
    if not torch.cuda.is_available():
        assert "needs a GPU" in done.stdout


def test_the_build_is_looked_at_without_a_gpu(tmp_path: Path) -> None:
    from gpu_here import import_

    outcome = import_(Context(tmp_path, True, 0, lambda: 10.0))
    assert not outcome.failures and "cuDNN primitives for a 3x3" in outcome.summary
