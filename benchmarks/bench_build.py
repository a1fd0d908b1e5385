# SPDX-License-Identifier: BSD-3-Clause
"""Times the build.

    python benchmarks/bench_build.py time            # the library and _C, as `make build`
    python benchmarks/bench_build.py time --tests    # the C++ tests too
    python benchmarks/bench_build.py show            # prints the table of the last record

time: builds everything with two jobs and an empty compiler cache, in a folder of its own. Each
  group of objects is one step. With --lock, steps take turns with other timed programs that lock
  the same file. A record holds wall and CPU seconds of each step, the slowest objects and the size
  of the stripped library. With --tests it also holds the time from a changed source to a running
  test. Takes 10 to 40 minutes. Appends one JSON line to benchmarks/results/build.jsonl.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
from harness import ROOT

JOBS = 2
SLOWEST = 12  # objects in a record
# A folder in the middle of the flow, and the program of its tests.
CHANGED, CHANGED_TEST = ROOT / "csrc" / "planner" / "encode.cpp", "planner_test"

# ---- time ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def turn(lock: Path | None) -> Iterator[None]:
    """Holds the lock, if there is one, inside the block."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(command: list[str]) -> None:
    """Runs a command without compiler cache; prints its output only if it fails."""
    done = subprocess.run(
        command,
        env={**os.environ, "CCACHE_DISABLE": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nrepro: CCACHE_DISABLE=1 {shlex.join(command)}")


def timed(command: list[str]) -> dict[str, float]:
    """Wall and CPU seconds of a command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    run(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(time.monotonic() - began, 1), "cpu_s": round(cpu_s, 1)}


def steps_of(build: Path, with_tests: bool) -> list[str]:
    """Names the targets in the order in which they are built."""
    listed = subprocess.run(
        ["ninja", "-C", str(build), "-t", "targets", "all"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    targets = {line.split(":")[0] for line in listed.splitlines() if line.endswith(": phony")}
    names = sorted(name for name in targets if name.startswith("ta_")) + ["torchalgo", "_C"]
    if with_tests:
        names += sorted(name for name in targets if name.endswith("_test") and "/" not in name)
    return [*names, "all"]


def object_times(build: Path) -> list[tuple[float, str]]:
    """Seconds of each object of ninja's log, the slowest first."""
    times: dict[str, float] = {}
    for line in (build / ".ninja_log").read_text().splitlines()[1:]:
        start, end, _, output, _ = line.split("\t")
        if output.endswith((".o", ".gch")):
            source = output.split(".dir/")[-1].removesuffix(".o")
            folder = output.split("/CMakeFiles/")[-1].split(".dir")[0]
            times[f"{folder}: {source}"] = (int(end) - int(start)) / 1000
    return sorted(((seconds, name) for name, seconds in times.items()), reverse=True)


def stripped_bytes(build: Path) -> dict[str, int]:
    """Sizes of the libraries without symbols of the linker."""
    sizes = {}
    for library in sorted((build / "csrc").glob("*.so")):
        copy = build / "stripped.so"
        run(["strip", "-o", str(copy), str(library)])
        sizes[library.name.split(".")[0]] = copy.stat().st_size
    return sizes


def change_to_test(build: Path) -> dict[str, Any]:
    """Compiles one source again and runs the program of its folder's tests."""
    CHANGED.touch()
    built = timed(["cmake", "--build", str(build), "-j", str(JOBS), "--target", CHANGED_TEST])
    # --gtest_list_tests: until the first test runs
    started = timed([str(build / "tests" / "cpp" / CHANGED_TEST), "--gtest_list_tests"])
    return {
        "source": str(CHANGED.relative_to(ROOT)),
        "build_s": built["wall_s"],
        "start_s": started["wall_s"],
    }


def measure(build: Path, with_tests: bool, lock: Path | None, options: list[str]) -> dict[str, Any]:
    """Builds everything step by step and returns the record."""
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    tests = "ON" if with_tests else "OFF"
    with turn(lock):
        configured = timed(
            ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja"]
            + [f"-DPython_EXECUTABLE={sys.executable}", f"-DTORCHALGO_TESTS={tests}", *options]
        )
    steps: list[dict[str, Any]] = [{"step": "configure", **configured}]
    for name in steps_of(build, with_tests):
        with turn(lock):
            times = timed(["cmake", "--build", str(build), "-j", str(JOBS), "--target", name])
        steps.append({"step": name, **times})
        print(f"{times['wall_s']:7.1f} s  {times['cpu_s']:7.1f} s of CPU  {name}", flush=True)
    objects = object_times(build)
    line: dict[str, Any] = {
        "schema": 1,
        "benchmark": "build",
        "jobs": JOBS,
        "tests": with_tests,
        "options": options,
        "wall_s": round(sum(float(step["wall_s"]) for step in steps), 1),
        "cpu_s": round(sum(float(step["cpu_s"]) for step in steps), 1),
        "objects": len(objects),
        "stripped_bytes": stripped_bytes(build),
        "steps": steps,
        "slowest": [[name, round(seconds, 1)] for seconds, name in objects[:SLOWEST]],
    }
    if with_tests:
        with turn(lock):
            line["change_to_test"] = change_to_test(build)
    return {**line, "machine": harness.machine_state(), "git": harness.git_state()}


def show(line: dict[str, Any]) -> None:
    """Prints a record as a table."""
    for step in line["steps"]:
        print(f"{step['wall_s']:7.1f} s  {step['cpu_s']:7.1f} s of CPU  {step['step']}")
    print(f"{line['wall_s']:7.1f} s  {line['cpu_s']:7.1f} s of CPU  {line['objects']} objects")
    for name, seconds in line["slowest"]:
        print(f"{seconds:7.1f} s  {name}")
    for name, size in line["stripped_bytes"].items():
        print(f"{size / 1e6:7.2f} MB {name}")
    if "change_to_test" in line:
        print(f"from a changed source to its test: {line['change_to_test']}")


def main() -> int:
    parser = harness.make_parser(__doc__, harness.RESULTS / "build.jsonl")
    parser.add_argument("what", choices=["time", "show"])
    parser.add_argument("--tests", action="store_true", help="time: build the C++ tests too")
    parser.add_argument("--lock", type=Path, help="time: a file that each step locks")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "bench", help="time: where")
    parser.add_argument(
        "--cmake", action="append", metavar="OPTION", help="time: --cmake=-DTORCHALGO_PCH=OFF"
    )
    args = parser.parse_args()
    if args.what == "time":
        line = measure(args.build.resolve(), args.tests, args.lock, args.cmake or [])
        harness.record(args.out, line, show)
        return 0
    lines = harness.read_lines(args.out)
    if not lines:
        raise SystemExit("bench_build: there is no record; `bench_build.py time` makes one")
    show(lines[-1])
    return 0


if __name__ == "__main__":
    harness.run_script(main)
