# SPDX-License-Identifier: BSD-3-Clause
"""benchmarks/harness.py: children that die, hang and lie, records, and what is repeated."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import harness
from support import fake_benchmark as fake
from support.processes import is_gone

HERE = Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def _children_find_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))


def run_all(folder: Path, *names: str, resume: bool = False, **options: Any) -> harness.Outcome:
    out = folder / "fake.jsonl"
    settings = {"folder": str(folder), "threads": 1, **options}
    return harness.measure_each(
        fake.measure, {name: (name, settings) for name in names}, out=out, limit_s=60,
        done=harness.done_before(out, "network", {"threads": settings["threads"]})
        if resume else {},
    )  # fmt: skip


# ---- one child -----------------------------------------------------------------------------------


def test_a_child_is_another_process_whose_prints_are_not_its_result(tmp_path: Path) -> None:
    answer = harness.run_child(
        fake.measure, "a", {"folder": str(tmp_path), "threads": 1}, limit_s=60
    )
    assert answer.failure == ""
    (value,) = answer.values
    assert value["network"] == "a" and value["pid"] != os.getpid()


def test_a_child_that_dies_leaves_what_it_gave_and_names_the_signal() -> None:
    answer = harness.run_child(fake.counts, 2, limit_s=60)
    assert answer == harness.Answer([0, 1, 2], "ended with SIGSEGV")


def test_a_child_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    answer = harness.run_child(fake.hangs, str(tmp_path), limit_s=2)
    assert answer.failure == "did not end within 2 s"
    if (tmp_path / "pids").exists():  # on a busy machine it may be killed before
        assert answer.values in ([], ["before"])
        assert all(is_gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_garbage_and_silence_are_failures() -> None:
    answer = harness.run_child(fake.garbage, limit_s=60)
    assert answer == harness.Answer([], "gave '{ this is no JSON', expected JSON")
    assert harness.run_child(fake.silent, limit_s=60).failure == "gave no result"


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import harness; from support import fake_benchmark as fake\n"
        f"harness.run_child(fake.hangs, {str(tmp_path)!r}, limit_s=600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
        assert parent.poll() is None
        time.sleep(0.01)
    child, inner = map(int, (tmp_path / "pids").read_text().split())
    parent.kill()
    parent.wait()
    assert is_gone(child)
    os.kill(inner, signal.SIGKILL)  # only a child's own end reaches what it started


# ---- all cases -----------------------------------------------------------------------------------


def test_a_case_that_fails_costs_the_others_nothing_and_its_repro_line_repeats_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = run_all(tmp_path, "a", "b", "c", bad="b")
    assert [line["network"] for line in outcome.records] == ["a", "c"]
    assert outcome.failures == {"b": "ended with exit status 1"} and outcome.status == 1
    assert harness.read_lines(tmp_path / "fake.jsonl") == outcome.records
    error = capfd.readouterr().err
    (repro,) = [line for line in error.splitlines() if line.startswith("repro: ")]
    command = repro.removeprefix("repro: ").replace("python ", f"{sys.executable} ", 1)
    again = subprocess.run(command, shell=True, cwd=harness.ROOT, capture_output=True, text=True)
    assert again.returncode == 1 and "RuntimeError: out of luck" in again.stderr
    assert (tmp_path / "runs").read_text().split() == ["a", "b", "c", "b"]


def test_a_repro_line_holds_the_environment_and_runs_on_a_shell() -> None:
    env = {"SOME_SETTING": "two words"}
    line = harness.repro_line(fake.environment, "SOME_SETTING", env=env)
    assert line.startswith("repro: SOME_SETTING='two words' python benchmarks/harness.py ")
    command = line.removeprefix("repro: ").replace("python ", f"{sys.executable} ", 1)
    done = subprocess.run(command, shell=True, cwd=harness.ROOT, capture_output=True, text=True)
    assert json.loads(done.stdout) == "two words"
    assert harness.run_child(fake.environment, "SOME_SETTING", limit_s=60, env=env).values == [
        "two words"
    ]


def test_resuming_skips_what_this_commit_measured_with_these_settings(tmp_path: Path) -> None:
    run_all(tmp_path, "a", "b")
    outcome = run_all(tmp_path, "a", "b", "c", resume=True)
    assert [line["network"] for line in outcome.records] == ["a", "b", "c"]
    assert (tmp_path / "runs").read_text().split() == ["a", "b", "c"]
    run_all(tmp_path, "a", resume=True, threads=2)
    assert (tmp_path / "runs").read_text().split() == ["a", "b", "c", "a"]
    out = tmp_path / "fake.jsonl"
    out.write_text(out.read_text().replace(harness.git_state()["commit"], "0000000"))
    assert harness.done_before(out, "network", {"threads": 1}) == {}


LONG_RUN = """
import sys, harness
from pathlib import Path
from support import fake_benchmark as fake
out, options = Path(sys.argv[1], "fake.jsonl"), {"folder": sys.argv[1], "threads": 1}
options |= {"slow": "b"} if len(sys.argv) > 2 else {}
done = harness.done_before(out, "network", {"threads": 1})
cases = {name: (name, options) for name in "abc"}
harness.run_script(
    lambda: harness.measure_each(fake.waits, cases, out=out, limit_s=600, done=done).status
)
"""


def start_long_run(folder: Path) -> tuple[list[str], subprocess.Popen[str]]:
    """A command, and its run that has measured "a" and waits in "b"."""
    command = [sys.executable, "-c", LONG_RUN, str(folder)]
    process = subprocess.Popen(
        [*command, "slow"], stderr=subprocess.PIPE, text=True,
        # A shell starts jobs in the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while not (folder / "waiting").exists() or not (folder / "waiting").read_text():
        assert process.poll() is None
        time.sleep(0.01)
    return command, process


def test_a_run_that_is_killed_can_be_resumed(tmp_path: Path) -> None:
    command, process = start_long_run(tmp_path)
    process.kill()
    process.communicate()
    assert is_gone(int((tmp_path / "waiting").read_text()))
    out = tmp_path / "fake.jsonl"
    with out.open("a") as file:
        file.write('{"network": "b", "thr')  # as if the kill had met a write
    subprocess.run(command, check=True)
    assert [line["network"] for line in harness.read_lines(out)] == ["a", "b", "c"]
    assert (tmp_path / "runs").read_text().split() == ["a", "b", "c"]


def test_ctrl_c_ends_the_child_and_keeps_what_was_measured(tmp_path: Path) -> None:
    _, process = start_long_run(tmp_path)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: all records so far are kept" in error and "Traceback" not in error
    assert is_gone(int((tmp_path / "waiting").read_text()))
    assert [line["network"] for line in harness.read_lines(tmp_path / "fake.jsonl")] == ["a"]


def test_no_case_starts_when_time_is_over(tmp_path: Path) -> None:
    outcome = harness.measure_each(
        fake.measure, {"a": ("a", {})}, out=tmp_path / "fake.jsonl", limit_s=60, total_s=-1.0
    )
    assert outcome.failures == {"a": "not started within -1 s"} and outcome.status == 1


# ---- records and options -------------------------------------------------------------------------


def test_each_record_says_machine_versions_and_commit_once(tmp_path: Path) -> None:
    plain = harness.record(tmp_path / "a.jsonl", {"network": "a"})
    assert {"commit", "dirty", "cpu", "cores", "load", "python", "date", "torch", "torchalgo"} <= {
        *plain
    }
    nested = {"git": {"commit": "abc", "dirty": False}, "machine": {"cpu": "some"}, "date": "then"}
    kept = harness.stamped(nested)
    assert {**kept, **nested} == kept
    assert "commit" not in kept and "cpu" not in kept and kept["cores"] == os.cpu_count()


def test_options_say_what_they_expect() -> None:
    assert harness.count("3") == 3 and harness.seconds("0.5") == 0.5
    for option, text in ((harness.count, "0"), (harness.count, "x"), (harness.seconds, "-1")):
        with pytest.raises(argparse.ArgumentTypeError, match=r"expected a .*, got"):
            option(text)
