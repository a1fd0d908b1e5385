# SPDX-License-Identifier: BSD-3-Clause
"""Records full runs of the tests, and tells whether the last one is recent.

    make test-all                               # takes half an hour, runs and records all tests
    python benchmarks/record_tests.py add RUN.json --seconds 1500   # what `make test-all` calls
    python benchmarks/record_tests.py check                         # what CI calls first
    python benchmarks/record_tests.py commits                       # what it calls next

`make test` leaves out tests that take long. So that none of them rots, `check` fails if more than
MOST_COMMITS commits have changed csrc or python since the commit of the last full run.

add: RUN.json is what `pytest --record` wrote. Appends one line to results/test_all.jsonl: commit,
  seconds, counts and skips. Writes the times of files and of long tests to
  results/test_durations.json. Refuses a tree with changes, since its commit does not tell what ran.
check: needs git and the history of the checkout, and no build. Exit status 1 if there is no recent
  full run.
commits: looks for the commit of each record of this repository, and compares README with records.
  Takes a second and needs no build. Exit status 1 if one is wrong; 0 in a clone without history.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from check_records import check_commits
from harness import RESULTS, ROOT, git_state, make_parser, read_lines, record, run_script

RUNS = RESULTS / "test_all.jsonl"
DURATIONS = RESULTS / "test_durations.json"
MOST_COMMITS = 20  # that change PRODUCT
PRODUCT = ("csrc", "python")


def add(run: Path, seconds: int, runs: Path = RUNS, durations: Path = DURATIONS) -> None:
    """Adds a full run to the records, or says why not if the tree has changes."""
    if git_state()["dirty"]:
        print("record_tests: the tree has changes, so this run is not recorded", file=sys.stderr)
        return
    whole = json.loads(run.read_text())
    times = {name: whole.pop(name) for name in ("files", "tests")}
    record(runs, {"schema": 1, "seconds": seconds, **whole})
    commit = git_state()["commit"]
    durations.write_text(json.dumps({"commit": commit, **times}, indent=1) + "\n")


def git(root: Path, *words: str) -> str | None:
    """Returns what git prints, or None if it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()


def commits_since(commit: str, root: Path) -> int | None:
    """Returns how many commits after `commit` change PRODUCT, None if HEAD does not contain it."""
    if git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        return None
    return int(git(root, "rev-list", "--count", f"{commit}..HEAD", "--", *PRODUCT) or 0)


def check(runs: Path = RUNS, root: Path = ROOT) -> int:
    """Returns 0 if a full run is recent, else 1 after a line that says what to do."""
    commits = [line["commit"] for line in read_lines(runs)]
    ages = [(commits_since(commit, root), commit) for commit in commits]
    known = [(age, commit) for age, commit in ages if age is not None]
    if not known and git(root, "rev-parse", "--is-shallow-repository") == "true":
        print("record_tests: this clone has no history, so the age of the records is not known")
        return 0
    if known and min(known)[0] <= MOST_COMMITS:
        age, commit = min(known)
        print(f"the last full run of the tests is of {commit}; {age} commits changed code since")
        return 0
    found = f"the newest record is {min(known)[0]} such commits old" if known else "there is none"
    print(
        f"record_tests: expected a full run of the tests that is at most {MOST_COMMITS} commits of"
        f" {' and '.join(PRODUCT)} old, in {RUNS.relative_to(ROOT)}; {found}. Run `make test-all`"
        " on a tree without changes and commit the record",
        file=sys.stderr,
    )
    return 1


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    adds = commands.add_parser("add")
    adds.add_argument("run", type=Path)
    adds.add_argument("--seconds", type=int, required=True, help="of the whole `make test-all`")
    commands.add_parser("check")
    commands.add_parser("commits")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    if options.command == "check":
        return check()
    if options.command == "commits":
        return check_commits()
    add(options.run, options.seconds)
    return 0


if __name__ == "__main__":
    run_script(main)
