# SPDX-License-Identifier: BSD-3-Clause
"""Runs tests in the scratch tree and returns the names of those that fail."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEST_LIMIT_S = 600  # of one test; a test that takes longer hangs
RUN_LIMIT_S = 4 * 3600
MOST_WORKERS = 2
MARKER = {"test": "not slow", "test-all": "slow"}  # `make test-all` also runs the former


def python(tree: Path) -> Path:
    return tree / ".venv/bin/python"


def environment(tree: Path) -> dict[str, str]:
    """Returns the environment in which Python imports the torchalgo of the scratch tree."""
    return {
        **os.environ,
        "PATH": f"{python(tree).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{tree / 'python'}:{HERE}",
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutant may have the size and the second of another
    }


def run_pytest(
    tree: Path,
    tests: Sequence[str],
    marker: str = "",
    *,
    without: Collection[str] = (),
    stop: bool = True,
    workers: int = 0,
) -> list[str]:
    """Returns the tests of Python that fail, crash or hang: with `stop`, at most the first one."""
    scratch = Path(tempfile.mkdtemp(prefix="mutants-"))
    notes = scratch / "failed"
    notes.touch()
    command = [str(python(tree)), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "failed_tests"]
    command += ["-o", f"faulthandler_timeout={TEST_LIMIT_S}"]
    command += ["-o", "faulthandler_exit_on_timeout=true", "-m", marker]
    command += ["-x"] if stop else []
    command += [f"--deselect={test}" for test in without if is_python(test)]
    command += ["-n", str(workers)] + (["--dist", "worksteal"] if workers else [])
    run = {"FAILED_TESTS": str(notes), "TORCHALGO_CACHE_DIR": str(scratch / "cache")}
    code, output = run_limited([*command, *tests], tree, {**environment(tree), **run})
    failed = _failed(notes.read_text().splitlines())
    shutil.rmtree(scratch, ignore_errors=True)
    if not failed and code not in (0, 5):  # 5: the marker leaves no test
        print(output[-3000:])
        failed = [*tests, "tests/python"][:1]  # pytest could not begin
    return failed


def _failed(notes: list[str]) -> list[str]:
    """Returns the tests that failed, then one that started and did not end."""
    events = [line.split(" ", 1) for line in notes]
    failed = [test for event, test in events if event == "failed"]
    ended = {test for event, test in events if event == "ended"}
    failed += [test for event, test in events if event == "started" and test not in ended]
    return list(dict.fromkeys(failed))


def run_cpp(tree: Path, program: str, tests: str) -> list[str]:
    """Returns the first test of a program of C++ that fails, crashes or hangs, or no test."""
    folder = tree / "build/release/tests/cpp"
    command = [str(folder / program), f"--gtest_filter={tests}", "--gtest_fail_fast"]
    code, output = run_limited(command, folder, environment(tree), TEST_LIMIT_S)
    if code == 0:
        return []
    failed = re.findall(r"^\[  FAILED  \] ([\w./]+)(?:, where .*)? \(", output, re.M)
    started = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    return [f"{program}:{(failed or started[-1:] or ['*'])[0]}"]


def run_limited(
    command: list[str], folder: Path, env: dict[str, str], limit_s: float = RUN_LIMIT_S
) -> tuple[int, str]:
    """Returns the exit status and the output. All processes of the command end with it."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return code, output.read()


def run_tests(
    tree: Path, tests: Sequence[str], marker: str = "", without: Collection[str] = ()
) -> list[str]:
    """Returns the first that fails of tests named by `run_pytest` and `run_cpp`, or no test.

    A program of C++ without a test, such as `ir_test`, stands for all of its tests.
    """
    files = [test for test in tests if is_python(test)]
    for test in tests:
        if not is_python(test) and marker != MARKER["test-all"]:
            program, _, name = test.partition(":")
            out = [other.partition(":")[2] for other in without if other.startswith(f"{program}:")]
            chosen = (name or "*") + (f"-{':'.join(out)}" if out else "")
            if failed := run_cpp(tree, program, chosen):
                return failed[:1]
    return run_pytest(tree, files, marker, without=without)[:1] if files else []


def is_python(test: str) -> bool:
    return test.startswith("tests/python")


def exists(tree: Path, test: str) -> bool:
    """True if the tree has the file of the test, or the sources of its program."""
    file = test.partition("::")[0]
    folder = file.partition(":")[0].removesuffix("_test")
    return (tree / (file if is_python(test) else f"tests/cpp/{folder}")).exists()


def programs(tree: Path) -> list[str]:
    """Returns the names of the programs with the tests of C++."""
    return sorted(file.name for file in (tree / "build/release/tests/cpp").glob("*_test"))


def run_python_suite(tree: Path, suite: str) -> list[str]:
    """Returns all tests that fail of those in `make test`, or of those only in `make test-all`."""
    return run_pytest(tree, [], MARKER[suite], stop=False, workers=MOST_WORKERS)
