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

import gpu_build
import gpu_check
from gpu_check import NEEDS_GPU, NOT_REACHED, main, select_stages
from gpu_records import ARCHIVE, write_archive
from harness import read_lines
from support import fake_gpu_stages

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _children_find_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
    monkeypatch.setattr(gpu_check, "build_if_needed", lambda out: None)  # it imports torch


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


def test_a_resumable_stage_loses_nothing_to_cases_that_raise_crash_or_hang(tmp_path: Path) -> None:
    assert run(tmp_path, "--stages", "cases") == 1
    found = record(tmp_path, "cases")
    rows = {row["case"]: row for row in found["data"]["rows"]}
    assert rows["passes"]["value"] == rows["last"]["value"] == 0
    assert rows["dies once"]["value"] == rows["hangs"]["value"] == 1
    assert found["left"] == ["needs a second call"]
    assert found["failures"] == [
        "no memory: MemoryError: out of memory", "dies: ended its process 2 times"
    ]  # fmt: skip
    endings = " ".join(found["findings"])
    assert endings.count("SIGSEGV") == 3 and endings.count("gave no result for 6 s") == 1
    assert len((tmp_path / "passes.runs").read_text().splitlines()) == 1


def interrupted(out: Path) -> None:
    """Leaves what a call leaves that was interrupted in its last case."""
    names = ("passes", "dies once", "no memory", "dies", "hangs")
    lines = [json.dumps({"case": name, "value": 5}) for name in names]
    lines += 3 * ['{"begun": "needs a second call"}', '{"paused": "needs a second call"}']
    (out / "cases.jsonl").write_text(
        "\n".join([*lines, '{"begun": "last"}', '{"case": "last", "v'])
    )
    head = {"schema": 1, "stage": "cases", "status": gpu_check.PARTIAL}
    (out / "cases.json").write_text(json.dumps(head))


def test_a_later_call_continues_from_the_archive_alone_and_closes_a_torn_line(
    tmp_path: Path,
) -> None:
    interrupted(tmp_path)
    write_archive(tmp_path)
    later = tmp_path / "later"
    later.mkdir()
    (tmp_path / ARCHIVE).rename(later / ARCHIVE)
    assert run(later, "--stages", "cases", "--resume") == 0
    found = record(later, "cases")
    assert found["status"] == "passed" and not found["left"]
    begun = [row["begun"] for row in read_lines(later / "cases.jsonl") if "begun" in row]
    assert begun[-3:] == ["last", "needs a second call", "last"]
    values = {row["case"]: row["value"] for row in found["data"]["rows"]}
    assert values == {
        "passes": 5, "dies once": 5, "no memory": 5, "dies": 5, "hangs": 5,
        "needs a second call": 0, "last": 0,
    }  # fmt: skip
    assert run(later, "--stages", "cases", "--resume") == 0  # it is done
    assert len((later / "last.runs").read_text().splitlines()) == 1


def test_without_resume_a_stage_begins_anew(tmp_path: Path) -> None:
    interrupted(tmp_path)
    run(tmp_path, "--stages", "cases", "--minutes", "0.2")
    assert (tmp_path / "passes.runs").exists()
    assert gpu_check.exit_status([{"status": gpu_check.PARTIAL}]) == 3


def test_a_stage_gets_its_budget_and_the_seed(tmp_path: Path) -> None:
    run(tmp_path, "--stages", "good", "--seed", "7")
    data = record(tmp_path, "good")["data"]
    assert data["seed"] == 7 and 0 < data["left_s"] <= 10


def test_each_part_of_the_real_stages_fits_into_nine_minutes_and_can_be_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gpu_stages import STAGES

    for part in (1, 2, 3, 4, 5):
        budgets = [s.budget_s for s in select_stages(STAGES, None, part)]
        assert 0 < sum(budgets) <= 540, part
    assert [s.part for s in STAGES] == sorted(s.part for s in STAGES)
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


def built(
    out: Path, *commands: str, is_there: bool = False, package: Path | None = None
) -> dict[str, Any] | None:
    """Builds by Python programs. The result can be imported if they have made `out`/built."""
    return gpu_build.build_if_needed(
        out,
        lambda: is_there or (out / "built").exists(),
        lambda: [[sys.executable, "-c", command] for command in commands],
        out / "no package" if package is None else package,
        out,
    )


@pytest.fixture
def _unchanged_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")


@pytest.mark.usefixtures("_unchanged_path")
def test_it_builds_where_torchalgo_cannot_be_imported(tmp_path: Path) -> None:
    assert built(tmp_path / "no", "raise SystemExit(1)", is_there=True) is None
    make = f"import pathlib; pathlib.Path({str(tmp_path / 'built')!r}).touch(); print('compiling')"
    found = built(tmp_path, "print('configuring')", make)
    assert found is not None and found["status"] == "passed" and "built" in found["summary"]
    assert (tmp_path / "build.log").read_text().split() == ["configuring", "compiling"]
    assert os.environ["PYTHONPATH"].startswith(str(gpu_build.ROOT / "python"))
    with tarfile.open(tmp_path / ARCHIVE) as archive:
        assert {"build.json", "build.log"} <= set(archive.getnames())


@pytest.mark.usefixtures("_unchanged_path")
@pytest.mark.parametrize("fits", [True, False])
def test_a_package_is_unpacked_before_anything_is_built(tmp_path: Path, fits: bool) -> None:
    name = "built" if fits else "for another Python"
    (tmp_path / name).touch()
    with tarfile.open(tmp_path / "package.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / name, arcname=name)
    (tmp_path / name).unlink()
    make = f"import pathlib; pathlib.Path({str(tmp_path / 'built')!r}).touch()"
    found = built(tmp_path, make, package=tmp_path / "package.tar.gz")
    assert found is not None and found["status"] == "passed"
    assert found["summary"].startswith("unpacked" if fits else "built")
    assert (tmp_path / "build.log").exists() is not fits


@pytest.mark.usefixtures("_unchanged_path")
@pytest.mark.parametrize("commands", [("raise SystemExit(7)", "print('never')"), ("pass",)])
def test_a_build_that_fails_is_recorded(tmp_path: Path, commands: tuple[str, ...]) -> None:
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
