# SPDX-License-Identifier: BSD-3-Clause
"""Times the build, and compares the speed of two builds of torchalgo.

    python benchmarks/bench_build.py time            # the library and _C, as `make build`
    python benchmarks/bench_build.py time --tests    # the C++ tests too
    python benchmarks/bench_build.py show            # prints the table of the last record
    python benchmarks/bench_build.py compare resnet18 mobilenet_v2 --before ../old --threads 2

time: builds everything with two jobs and an empty compiler cache, in a folder of its own. Each
  group of objects is one step. With --lock, steps take turns with other timed programs that lock
  the same file. A record holds wall and CPU seconds of each step, the slowest objects and the size
  of the stripped library. With --tests it also holds the time from a changed source to a running
  test. Takes 10 to 40 minutes. Appends one JSON line to benchmarks/results/build.jsonl.
compare: `--before` and `--after` are checkouts with a build in them (`make build`). The older one
  tunes each network and saves it. Both load that file, each in a process of its own, and run it in
  turns: one block of inferences each per round. A record holds the ratio of the times (before /
  after: above 1 the newer build is faster), its 95 % interval over the rounds, and an A/A control:
  the older build's even rounds over its odd ones. Takes 1 to 3 minutes per network. Appends one
  JSON line per network to benchmarks/results/builds.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import harness
from harness import RESULTS, ROOT

JOBS = 2
SLOWEST = 12  # objects in a record
# A folder in the middle of the flow, and the program of its tests.
CHANGED, CHANGED_TEST = ROOT / "csrc" / "planner" / "encode.cpp", "planner_test"
BLOCK_S = 0.25  # seconds of inferences, per build and round

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


def run_time(args: argparse.Namespace) -> int:
    out = args.out or RESULTS / "build.jsonl"
    line = measure(args.build.resolve(), args.tests, args.lock, args.cmake or [])
    harness.record(out, line, show)
    return 0


def run_show(args: argparse.Namespace) -> int:
    lines = harness.read_lines(args.out or RESULTS / "build.jsonl")
    if not lines:
        raise SystemExit("bench_build: there is no record; `bench_build.py time` makes one")
    show(lines[-1])
    return 0


# ---- compare -------------------------------------------------------------------------------------


class Build:
    """A process that runs saved models with the build of one checkout."""

    def __init__(self, checkout: Path, threads: int) -> None:
        words = ["serve", "--before", str(checkout.resolve()), "--threads", str(threads)]
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, *words: str) -> Any:
        """Sends one request and waits for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"bench_build: a build ended while it was asked for {words}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_serve(args: argparse.Namespace) -> int:
    """Answers requests on stdin: tune NETWORK FILE, load NETWORK FILE, run."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    # Its own build, and its own networks: those of here may need a newer torchalgo.
    sys.path[:0] = [str(args.before / "python"), str(args.before / "benchmarks")]
    import torch

    import torchalgo
    from networks import random_input, random_network

    torch.set_num_threads(args.threads)
    module, x = None, None
    for line in sys.stdin:
        verb, *words = json.loads(line)
        if verb == "tune":
            database = Path(words[1]).with_suffix(".sqlite3")
            torchalgo.optimize(
                random_network(words[0]), (random_input(words[0]),), budget_s=float(words[2]),
                settings=torchalgo.Settings(cost_db=database, progress=False),
            ).save(words[1])  # fmt: skip
            answer: Any = "tuned"
        elif verb == "load":
            module, x = torchalgo.load(words[1]), random_input(words[0])
            with torch.no_grad():
                answer = [float(module(x).double().sum()) for _ in range(5)][-1]
        else:
            assert module is not None
            times: list[int] = []
            ends = time.monotonic() + BLOCK_S
            with torch.no_grad():
                while time.monotonic() < ends or len(times) < 3:
                    start = time.perf_counter_ns()
                    module(x)
                    times.append(time.perf_counter_ns() - start)
            answer = statistics.median(times)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


def compare_builds(
    name: str, before: Build, after: Build, rounds: int, tune_s: float
) -> dict[str, Any]:
    from compare import control_of, in_rounds, rounded
    from torchalgo._base.stats import is_faster

    with tempfile.TemporaryDirectory(prefix="builds-") as folder:
        file = str(Path(folder) / f"{name}.pt")
        before.ask("tune", name, file, str(tune_s))
        sums = [build.ask("load", name, file) for build in (before, after)]
    builds = {"before": before, "after": after}
    times: dict[str, list[float]] = in_rounds(
        {name: partial(build.ask, "run") for name, build in builds.items()}, rounds
    )
    result = is_faster(times["before"], times["after"])
    return {
        "network": name,
        "before_us": round(statistics.median(times["before"]) / 1000, 1),
        "after_us": round(statistics.median(times["after"]) / 1000, 1),
        "ratio": rounded(result),
        "control": rounded(control_of(times["before"])),
        "rounds": len(times["before"]), "sums_differ_by": abs(sums[0] - sums[1]),
    }  # fmt: skip


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_compare(args: argparse.Namespace) -> int:
    from networks import network_name

    try:
        names = [network_name(name) for name in args.words]
    except argparse.ArgumentTypeError as problem:
        raise SystemExit(f"bench_build: {problem}") from None
    if args.before is None or not names:
        raise SystemExit("bench_build: expected --before, a checkout with a build, and networks")
    out = args.out or RESULTS / "builds.jsonl"
    before, after = Build(args.before, args.threads), Build(args.after, args.threads)
    ratios: list[float] = []
    for name in names:
        state = harness.machine_state()
        line = {
            "schema": 1, "benchmark": "builds", "date": datetime.date.today().isoformat(),
            "before": commit_of(args.before), "after": commit_of(args.after),
            "threads": args.threads,
            **compare_builds(name, before, after, args.rounds, args.tune_s), "machine": state,
        }  # fmt: skip
        ratios.append(harness.record(out, line)["ratio"][0])
    before.close()
    after.close()
    print(f"geometric mean of before / after: {statistics.geometric_mean(ratios):.3f}")
    return 0


def main() -> int:
    parser = harness.make_parser(__doc__, has_records=True)
    parser.add_argument("what", choices=["time", "show", "compare", "serve"], metavar="WHAT",
                        help="time, show or compare")  # fmt: skip
    parser.add_argument("words", nargs="*", metavar="NETWORK", help="compare: of torchvision")
    parser.add_argument("--out", type=Path, help="instead of build.jsonl or builds.jsonl")
    parser.add_argument("--tests", action="store_true", help="time: build the C++ tests too")
    parser.add_argument("--lock", type=Path, help="time: a file that each step locks")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "bench", help="time: where")
    parser.add_argument(
        "--cmake", action="append", metavar="OPTION", help="time: --cmake=-DTORCHALGO_PCH=OFF"
    )
    parser.add_argument("--before", type=Path, help="compare: a checkout with the older build")
    parser.add_argument("--after", type=Path, default=ROOT, help="compare: the newer one")
    parser.add_argument("--threads", type=harness.count, default=2, help="compare: of each build")
    parser.add_argument("--rounds", type=harness.count, default=30, help="compare: per network")
    parser.add_argument(
        "--tune-s", type=harness.seconds, default=float("inf"), help="compare: of each tuning"
    )
    args = parser.parse_args()
    runs = {"time": run_time, "show": run_show, "compare": run_compare, "serve": run_serve}
    return runs[args.what](args)


if __name__ == "__main__":
    harness.run_script(main)
