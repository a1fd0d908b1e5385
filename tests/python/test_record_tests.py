# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the record of a test run, of refused skips, and of the age of the last full run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import record_tests

TESTS = Path(__file__).parent
CONFTEST = "from support import run_record\npytest_addoption = run_record.add_options\n"
CONFTEST += "pytest_configure = run_record.register\n"
CASES = """
import pytest

def test_passes():
    assert sum(range(3_000_000))

@pytest.mark.parametrize("i", [1, 2])
def test_skipped(i):
    pytest.skip({reason!r})
"""
UNKNOWN, KNOWN = "the moon is full", "only root can give files away"


def run(folder: Path, *options: str, reason: str) -> tuple[int, str]:
    """Runs CASES. Returns the exit status and what was printed."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_cases.py").write_text(CASES.format(reason=reason))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "/dev/null",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    done = subprocess.run(
        [*command, "--rootdir", folder, folder], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(TESTS), "PATH": ""}, cwd=folder,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_skip_without_a_known_reason_fails_the_run(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    status, text = run(tmp_path, "--known-skips", *workers, reason=UNKNOWN)
    assert status == 1 and f"no such reason: {UNKNOWN}" in text, text
    assert run(tmp_path, "--known-skips", *workers, reason=KNOWN)[0] == 0
    assert run(tmp_path, *workers, reason=UNKNOWN)[0] == 0, "only if asked"


def test_a_file_that_is_skipped_for_a_missing_package_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_file.py").write_text("import pytest\npytest.importorskip('no_such_package')")
    status, text = run(tmp_path, "--known-skips", reason=KNOWN)
    assert status == 1 and "could not import 'no_such_package'" in text, text


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_the_record_has_counts_skips_and_processor_times(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    path = tmp_path / "new" / "run.json"
    run(tmp_path, "--record", str(path), *workers, reason=KNOWN)
    found = json.loads(path.read_text())
    assert found["counts"] == {"passed": 1, "skipped": 2}
    assert found["skips"] == {KNOWN: 2}
    assert 0 < found["files"]["test_cases.py"] == pytest.approx(found["processor_s"], abs=0.06)


class Checkout:
    """A repository with a file of full runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs.jsonl"
        self.git("init", "-q")

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(
            ["git", *identity, *words], cwd=self.folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    def commit(self, name: str, count: int = 1) -> str:
        """Commits `count` changes of a file and returns the last commit."""
        (self.folder / name).parent.mkdir(exist_ok=True)
        for _ in range(count):
            with (self.folder / name).open("a") as file:
                file.write("line\n")
            self.git("add", name)
            self.git("commit", "-q", "-m", "more")
        return self.git("rev-parse", "--short", "HEAD")

    def record(self, commit: str) -> None:
        with self.runs.open("a") as file:
            file.write(json.dumps({"commit": commit}) + "\n")

    def check(self) -> int:
        return record_tests.check(self.runs, self.folder)


def test_a_full_run_is_too_old_after_more_than_twenty_commits_of_the_product(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = Checkout(tmp_path)
    checkout.record(checkout.commit("csrc/a.cpp"))
    checkout.commit("python/a.py", 10)
    checkout.commit("docs/a.md", 3)  # no product
    checkout.commit("csrc/a.cpp", 10)
    assert checkout.check() == 0
    last = checkout.commit("csrc/a.cpp")
    assert checkout.check() == 1
    assert "make test-all" in capsys.readouterr().err
    checkout.record(last)
    assert checkout.check() == 0


def test_runs_of_commits_that_are_not_in_the_history_do_not_count(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    checkout.commit("csrc/a.cpp")
    assert checkout.check() == 1, "there is no record"
    checkout.record("0123abc")
    assert checkout.check() == 1
    checkout.git("switch", "-q", "-c", "other")
    checkout.record(checkout.commit("csrc/b.cpp"))
    assert checkout.check() == 0
    checkout.git("switch", "-q", "-")
    assert checkout.check() == 1


@pytest.mark.parametrize("dirty", [True, False])
def test_only_a_run_of_a_tree_without_changes_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dirty: bool
) -> None:
    monkeypatch.setattr(record_tests, "git_state", lambda: {"commit": "0123abc", "dirty": dirty})
    run, runs, durations = (tmp_path / name for name in ("run.json", "runs.jsonl", "times.json"))
    run.write_text(json.dumps({"counts": {"passed": 3}, "files": {"a": 1.0}, "tests": {}}))
    record_tests.add(run, 100, runs, durations)
    assert runs.exists() == durations.exists() == (not dirty)
    if not dirty:
        line = json.loads(runs.read_text())
        assert line["seconds"] == 100 and line["counts"] == {"passed": 3} and "files" not in line
        assert json.loads(durations.read_text())["files"] == {"a": 1.0}
