# SPDX-License-Identifier: BSD-3-Clause
"""Finds the tests that kill the mutants. README.md has the commands.

python tests/mutants/run.py                                 # tests that are likely to see each
python tests/mutants/run.py --suite test-all --survivors    # then all tests, on what is left
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import suites

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORD = HERE / "record.jsonl"
MOST_LIKELY_FILES = 8


@dataclass(frozen=True)
class Mutant:
    number: int
    patch: Path

    @property
    def paths(self) -> list[str]:
        return re.findall(r"^\+\+\+ b/(\S+)", self.patch.read_text(), re.M)

    @property
    def is_cpp(self) -> bool:
        return any(path.startswith("csrc/") for path in self.paths)


class BuildError(RuntimeError):
    """The mutants do not compile."""


class Tree:
    """A work tree of the commit, with a build of its own and some of the mutants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commit = git(ROOT, "rev-parse", "HEAD")
        self.built: set[Mutant] | None = None
        if not (path / ".git").exists():
            git(ROOT, "worktree", "add", "--detach", str(path), self.commit)
        git(path, "reset", "-q", "--hard")
        git(path, "checkout", "-q", "--detach", self.commit)
        # With its tools at the same place as in ROOT, ccache has the objects of ROOT's build.
        if not (path / ".venv").exists():
            (path / ".venv").symlink_to(Path(sys.prefix).resolve())

    def fits(self, mutant: Mutant) -> bool:
        return not subprocess.run(
            ["git", "apply", "--check", str(mutant.patch)], cwd=self.path, capture_output=True
        ).returncode

    def hold(self, mutants: Sequence[Mutant]) -> None:
        """Makes the tree the commit's with exactly these mutants, and builds it."""
        git(self.path, "checkout", "-q", "--", "csrc", "python")
        for mutant in mutants:
            git(self.path, "apply", str(mutant.patch))
        sources = {mutant for mutant in mutants if mutant.is_cpp}
        if sources != self.built:
            self._build()
            self.built = sources

    def _build(self) -> None:
        build = self.path / "build/release"
        if not (build / "build.ninja").exists():
            options = [f"-DPython_EXECUTABLE={suites.python(self.path)}", "-DTORCHALGO_TESTS=ON"]
            self._cmake("-S", ".", "-B", str(build), "-G", "Ninja", *options)
        self._cmake("--build", str(build), "-j", str(suites.MOST_WORKERS))
        self._cmake("--install", str(build), "--prefix", "python")

    def _cmake(self, *arguments: str) -> None:
        env = suites.environment(self.path)
        code, output = suites.run_limited(["cmake", *arguments], self.path, env)
        if code != 0:
            raise BuildError(f"{output[-4000:]}\ncmake {arguments[0]} failed")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr}")
    return done.stdout.strip()


class Record:
    """record.jsonl: the last result of each mutant."""

    def __init__(self, commit: str) -> None:
        lines = RECORD.read_text().splitlines() if RECORD.exists() else []
        self.commit = commit
        self.rows = {row["mutant"]: row for row in map(json.loads, lines)}
        self.known = {number: row["killed_by"] for number, row in self.rows.items()}

    def is_survivor(self, mutant: Mutant) -> bool:
        """True if no test of `make test` is known that kills the mutant."""
        row = self.rows.get(mutant.number)
        return row is None or row["killed_by"] is None or row["suite"] != "test"

    def add(self, mutant: Mutant, test: str | None, suite: str, seconds: float) -> None:
        self.rows[mutant.number] = {
            "mutant": mutant.number, "commit": self.commit[:8], "killed_by": test, "suite": suite,
            "seconds": round(seconds),
        }  # fmt: skip
        RECORD.write_text("".join(f"{json.dumps(self.rows[n])}\n" for n in sorted(self.rows)))
        print(f"{mutant.patch.stem}: {suite}: {test or 'SURVIVES'}", flush=True)


def likely_tests(tree: Path, mutant: Mutant) -> list[str]:
    """Returns the tests that the patch names, or else those that mirror or name its file."""
    if named := re.search(r"^Tests: (.*)$", mutant.patch.read_text(), re.M):
        return [test for test in named[1].split() if suites.exists(tree, test)]
    tests: list[str] = []
    scores: dict[str, int] = {}
    for path in map(Path, mutant.paths):
        if path.parts[0] == "csrc" and (tree / "tests/cpp" / path.parts[1]).exists():
            tests.append(f"{path.parts[1]}_test")
        dotted = rf"{path.parent.name}\.{path.stem}\b|\b{path.stem}\b"
        for file in (tree / "tests/python").glob("test_*.py"):
            count = len(re.findall(dotted, file.read_text()))
            count += 100 * (path.stem in file.stem) + 50 * (
                path.parent.name.strip("_") in file.stem
            )
            scores[file.relative_to(tree).as_posix()] = count
    best = sorted((name for name in scores if scores[name]), key=lambda n: (-scores[n], n))
    return tests + best[:MOST_LIKELY_FILES]


class Search:
    def __init__(self, tree: Tree, record: Record) -> None:
        self.tree, self.record = tree, record
        self.stale: list[Mutant] = []  # they do not apply, or do not compile
        self.sound: set[str] = set()  # tests that pass without mutants
        self.broken: set[str] = set()  # tests that fail without mutants

    def try_likely(self, mutant: Mutant, tests: Sequence[str], suite: str) -> bool:
        """Records the first of the tests of a suite that kills the mutant.

        Returns False if the mutant survives them.
        """
        start = time.monotonic()
        known = self.record.known.get(mutant.number)
        if known and suites.exists(self.tree.path, known):
            tests = [known, *tests]
        try:
            self.tree.hold([mutant])
        except BuildError as problem:
            print(f"{mutant.patch.name} does not compile: {problem}", flush=True)
            self.stale.append(mutant)
            return True
        killer = next(iter(self._first(tests, suites.MARKER[suite], mutant)), None)
        self.record.add(mutant, killer, suite if killer else "likely", time.monotonic() - start)
        return killer is not None

    def _first(self, tests: Sequence[str], marker: str, mutant: Mutant) -> list[str]:
        for group in tests:
            while failed := suites.run_tests(self.tree.path, [group], marker, self.broken):
                if failed[0] in self.broken:
                    break  # it cannot be left out
                if self._is_sound(failed[0], [mutant]):
                    return failed
        return []

    def _is_sound(self, test: str, mutants: list[Mutant]) -> bool:
        """True if the test passes without mutants, and fails again with these."""
        if test not in self.sound | self.broken:
            self.tree.hold([])
            is_sound = not suites.run_tests(self.tree.path, [test])
            self.tree.hold(mutants)
            is_sound = is_sound and bool(suites.run_tests(self.tree.path, [test]))
            (self.sound if is_sound else self.broken).add(test)
            if not is_sound:
                print(f"{test} is left out: it fails without mutants, or by chance", flush=True)
        return test in self.sound

    def try_together(self, mutants: list[Mutant], suite: str) -> list[Mutant]:
        """Runs the suite once on all mutants, then looks for the mutant of each test that fails.

        Returns the mutants that survive.
        """
        start = time.monotonic()
        left = list(mutants)
        groups = suites.programs(self.tree.path) if suite == "test" else []
        for program in groups:  # a crash hides the tests after it, so a program runs again
            self._find(left, suite, [program], start)
        self.tree.hold(left)
        failed = suites.run_python_suite(self.tree.path, suite)
        print(f"{len(failed)} tests of Python fail with {len(left)} mutants at once", flush=True)
        self._find(left, suite, failed, start)
        for mutant in left:
            self.record.add(mutant, None, suite, time.monotonic() - start)
        return left

    def _find(self, left: list[Mutant], suite: str, tests: Sequence[str], start: float) -> None:
        """Removes the mutants that some of the tests kill from `left`, and records them."""
        while left and (asked := [test for test in tests if test not in self.broken]):
            self.tree.hold(left)
            failed = suites.run_tests(self.tree.path, asked, suites.MARKER[suite], self.broken)
            if not failed or failed[0] in self.broken:
                return
            if not self._is_sound(failed[0], left):
                continue
            if killed := self._killed_by(failed[0], left):
                self.record.add(killed, failed[0], suite, time.monotonic() - start)
                left.remove(killed)
            else:
                print(f"{failed[0]} fails with several mutants at once only", flush=True)
                self.broken.add(failed[0])

    def _killed_by(self, test: str, mutants: list[Mutant]) -> Mutant | None:
        """Returns a mutant that fails the test alone, by halving. Python's need no build."""
        mutants = sorted(mutants, key=lambda mutant: mutant.is_cpp)
        half = (len(mutants) + 1) // 2
        for part in (mutants[:half], mutants[half:]) if half < len(mutants) else (mutants,):
            self.tree.hold(part)
            if part and suites.run_tests(self.tree.path, [test]):
                return part[0] if len(part) == 1 else self._killed_by(test, part)
        return None


def chosen(given: argparse.Namespace, record: Record) -> list[Mutant]:
    wanted = {int(number) for number in given.mutants.split(",") if number}
    found = []
    for patch in sorted(HERE.glob("[0-9][0-9]_*.patch")):
        mutant = Mutant(int(patch.name[:2]), patch)
        is_left = not given.survivors or record.is_survivor(mutant)
        if is_left and (not wanted or mutant.number in wanted):
            found.append(mutant)
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mutants", default="", metavar="3,7", help="default: all")
    parser.add_argument(
        "--survivors", action="store_true", help="those that no test of `make test` kills"
    )
    parser.add_argument(
        "--suite", nargs="+", default=["likely"], metavar="SUITE",
        help="likely, test, test-all, or files of tests",
    )  # fmt: skip
    parser.add_argument("--work", type=Path, default=ROOT / "build/mutants")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no build or test goes on
    tree = Tree(given.work.resolve())
    record = Record(tree.commit)
    mutants = chosen(given, record)
    search = Search(tree, record)
    search.stale += [mutant for mutant in mutants if not tree.fits(mutant)]
    for mutant in search.stale:
        print(f"{mutant.patch.name} does not apply any more", flush=True)
    left = [mutant for mutant in mutants if mutant not in search.stale]
    suite = given.suite[0]
    is_whole = suite in suites.MARKER
    files = given.suite if suite != "likely" and not is_whole else []
    for each in ["test"] if suite == "test" else suites.MARKER:
        if not (given.survivors and is_whole and each == "test"):
            tests = {m: files or likely_tests(tree.path, m) for m in left}
            left = [m for m in left if not search.try_likely(m, tests[m], each)]
        if is_whole and left:
            left = search.try_together(left, each)
    stale = len(search.stale)
    print(f"{len(mutants) - stale - len(left)} killed, {len(left)} left, {stale} stale")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
