# SPDX-License-Identifier: BSD-3-Clause
"""The machinery of benchmarks/gpu_check.py, with stages that need no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpu_check
from gpu_check import Context, Outcome, Stage, main, select_stages

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


class Stub:
    """A stage that counts its runs."""

    def __init__(self, name: str, outcome: Outcome | Exception | None = None, **options: bool):
        self.runs = 0
        self.outcome = outcome if outcome is not None else Outcome(f"{name} is fine")
        self.stage = Stage(name, f"the title of {name}", 10.0, self.run, **options)

    def run(self, context: Context) -> Outcome:
        self.runs += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def run(out: Path, *stubs: Stub, arguments: tuple[str, ...] = (), has_gpu: bool = True) -> int:
    return main(["--out", str(out), *arguments], [stub.stage for stub in stubs], has_gpu)


def test_all_default_stages_run_and_a_table_comes_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = Stub("a"), Stub("b"), Stub("c", is_default=False)
    assert run(tmp_path, a, b, c) == 0
    assert (a.runs, b.runs, c.runs) == (1, 1, 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split()[:2] == ["a", "passed"]
    assert lines[-1].endswith("b is fine")


def test_named_stages_run_in_their_own_order(tmp_path: Path) -> None:
    stages = [Stub(name).stage for name in "abcd"]
    assert [stage.name for stage in select_stages(stages, "d, b")] == ["b", "d"]
    only = Stub("only", is_default=False)
    assert run(tmp_path, Stub("other"), only, arguments=("--stages", "only")) == 0
    assert only.runs == 1
    with pytest.raises(SystemExit, match="no stage x; there are a, b, c, d"):
        select_stages(stages, "a,x")


def test_a_failure_is_an_exit_status_and_the_others_still_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Stub("bad", Outcome("3 of 4", failures=["engine 7 differs"]))
    broken = Stub("broken", RuntimeError("out of luck\nsecond line"))
    last = Stub("last")
    assert run(tmp_path, bad, broken, last) == 1
    assert last.runs == 1
    text = capsys.readouterr().out
    assert "FAILED: engine 7 differs" in text
    assert "RuntimeError: out of luck" in text
    record = json.loads((tmp_path / "broken.json").read_text())
    assert record["status"] == "failed"
    assert "out of luck" in record["data"]["traceback"]


def test_without_a_gpu_the_stages_that_need_one_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env, needy = Stub("env", needs_gpu=False), Stub("needy")
    assert run(tmp_path, env, needy, has_gpu=False) == 2
    assert (env.runs, needy.runs) == (1, 0)
    assert "needs a GPU" in capsys.readouterr().out
    assert run(tmp_path, env, arguments=("--stages", "env"), has_gpu=False) == 0


def test_resuming_skips_what_passed_and_repeats_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, late = Stub("good"), Stub("bad", Outcome("", failures=["no"])), Stub("late")
    run(tmp_path, good, bad)
    (tmp_path / "late.json").write_text("{ torn")
    bad.outcome = Outcome("mended")
    assert run(tmp_path, good, bad, late, arguments=("--resume",)) == 0
    assert (good.runs, bad.runs, late.runs) == (1, 2, 1)
    assert "passed*" in capsys.readouterr().out
    assert run(tmp_path, good) == 0
    assert good.runs == 2


def test_records_hold_raw_data(tmp_path: Path) -> None:
    stub = Stub("a", Outcome("fast", data={"samples": {"x": [1.0, 2.5]}}))
    run(tmp_path, stub)
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["data"]["samples"]["x"] == [1.0, 2.5]
    assert record["schema"] == gpu_check.SCHEMA
    assert not list(tmp_path.glob("*.part"))


def test_a_stage_that_never_ends_is_stopped(tmp_path: Path) -> None:
    def run_forever(context: Context) -> Outcome:
        while True:
            time.sleep(0.01)

    stage = Stage("forever", "never ends", 0.1, run_forever)
    assert main(["--out", str(tmp_path)], [stage], True) == 1
    assert "did not end" in json.loads((tmp_path / "forever.json").read_text())["summary"]


def test_a_stage_sees_its_own_budget(tmp_path: Path) -> None:
    seen = []

    def look(context: Context) -> Outcome:
        seen.append(context.left_s())
        return Outcome()

    main(["--out", str(tmp_path)], [Stage("a", "", 7.0, look)], True)
    assert 6.5 < seen[0] <= 7.0


def test_the_real_stages_fit_into_eight_minutes_and_can_be_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gpu_stages import STAGES

    assert sum(stage.budget_s for stage in STAGES if stage.is_default) <= 480
    names = [stage.name for stage in STAGES]
    assert len(set(names)) == len(names)
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in names)


def test_the_command_runs_here_without_a_gpu(tmp_path: Path) -> None:
    import torch

    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--stages", "env,import"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "env.json").read_text())
    assert record["data"]["torch"] == torch.__version__
    if not torch.cuda.is_available():
        done = subprocess.run(
            [*command, "--stages", "deviceprop"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "needs a GPU" in done.stdout
