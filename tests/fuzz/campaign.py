# SPDX-License-Identifier: BSD-3-Clause
"""Runs a fuzzer over consecutive seeds and keeps a record of what came out.

A fuzzer is a function from a seed to the outcomes of the cases that it made from the seed, one word
each. It raises `FindingError` where a promise was broken. A record is one JSON object on one line:
fuzzer, seed_from, seed_to (the last one that ran), cases, outcomes (a count per word, which add up
to the cases), findings, seconds, commit, dirty, machine, date.

    python tests/fuzz/campaign.py          # the table of docs/reliability.md, from all records

Records in tests/fuzz/records are of commits. A tree that differs from its commit is refused, unless
only tests/fuzz differs: newer fuzzers may run on an older commit. Such a record is marked dirty.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().with_name("records")
_FUZZERS = ("tests/fuzz", "benchmarks/results")  # both may change between runs of one commit
FIELDS = {
    "fuzzer": str, "seed_from": int, "seed_to": int, "cases": int, "outcomes": dict,
    "findings": int, "seconds": float, "commit": str, "dirty": bool, "machine": str, "date": str,
}  # fmt: skip

Fuzzer = Callable[[int], Iterable[str]]


class FindingError(AssertionError):
    """A case that breaks a promise; the text is enough to repeat it."""


Results = Callable[[Fuzzer, int], Generator[Iterable[str] | FindingError, None, None]]


@dataclasses.dataclass
class Start:
    """The time when a campaign began, and the commit: files may change while it runs."""

    time_s: float = dataclasses.field(default_factory=time.monotonic)
    commit: dict[str, Any] = dataclasses.field(default_factory=lambda: _commit())


def told(error: BaseException) -> str:
    """Returns the text of an error, with the calls that led to it."""
    calls = traceback.extract_tb(error.__traceback__)[-5:]
    where = ", ".join(f"{Path(call.filename).name}:{call.lineno}" for call in calls)
    return f"{type(error).__name__}: {error} ({where})"


def outcomes_of(fuzzer: Fuzzer, seed: int) -> list[str] | FindingError:
    """Runs one seed."""
    try:
        return list(fuzzer(seed))
    except FindingError as finding:
        return finding


def _results(fuzzer: Fuzzer, seed: int) -> Generator[Iterable[str] | FindingError, None, None]:
    """Runs consecutive seeds in this process."""
    for at in itertools.count(seed):
        yield outcomes_of(fuzzer, at)


def campaign(
    name: str,
    fuzzer: Fuzzer,
    seed: int,
    cases: int,
    minutes: float = float("inf"),
    results: Results = _results,
) -> dict[str, Any]:
    """Runs whole seeds, `seed` first, until there are `cases` or `minutes` are over.

    Findings are printed with their seed; the campaign goes on behind them. `results` runs the
    fuzzer: in this process, or as isolated.results in others.
    """
    start, outcomes, findings, at = Start(), Counter[str](), 0, seed
    with contextlib.closing(results(fuzzer, seed)) as seeds:
        while outcomes.total() < cases and time.monotonic() - start.time_s < 60 * minutes:
            result = next(seeds)
            if isinstance(result, FindingError):
                findings += 1
                outcomes["finding"] += 1
                print(f"{name} --seed {at} --cases 1: {result}", file=sys.stderr, flush=True)
            else:
                outcomes.update(result)
            at += 1
    return record_of(name, seed, at - 1, outcomes, findings, start)


def record_of(
    name: str, seed_from: int, seed_to: int, outcomes: Counter[str], findings: int, start: Start
) -> dict[str, Any]:
    """Returns the record of a campaign that ends now."""
    return {
        "fuzzer": name, "seed_from": seed_from, "seed_to": seed_to, "cases": outcomes.total(),
        "outcomes": dict(sorted(outcomes.items())), "findings": findings,
        "seconds": round(time.monotonic() - start.time_s, 1), **start.commit, "machine": machine(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    }  # fmt: skip


def check_record(record: Mapping[str, Any]) -> None:
    """Raises ValueError if a record lacks a field, or its counts do not add up."""
    wrong = [k for k, kind in FIELDS.items() if not isinstance(record.get(k), kind)]
    if wrong or set(record) != set(FIELDS):
        raise ValueError(f"record: {wrong or sorted(set(record) ^ set(FIELDS))} in {record}")
    if sum(record["outcomes"].values()) != record["cases"]:
        raise ValueError(f"record: the outcomes do not add up to {record['cases']} cases: {record}")
    if record["outcomes"].get("finding", 0) != record["findings"]:
        raise ValueError(f"record: {record['findings']} findings, another count of outcomes")


def main(doc: str, fuzzers: Mapping[str, Fuzzer], results: Results = _results) -> None:
    """The command line of a fuzzer's script; the exit code is 1 if there are findings."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("fuzzer", choices=sorted(fuzzers))
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--cases", type=int, default=10**6)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument(
        "--record", type=Path, help="append to this file, e.g. in tests/fuzz/records"
    )
    args = parser.parse_args()
    if why := why_not_kept(args.record):
        parser.error(why)
    record = campaign(
        args.fuzzer, fuzzers[args.fuzzer], args.seed, args.cases, args.minutes, results
    )
    keep(record, args.record)
    sys.exit(1 if record["findings"] else 0)


def why_not_kept(path: Path | None) -> str:
    """Returns why records must not be appended to `path` now; empty if they may be."""
    if path is None or not path.resolve().is_relative_to(RECORDS) or not _changes(*_FUZZERS):
        return ""
    return (
        f"--record {path.name}: the tree has changes outside of tests/fuzz, so no commit tells what"
        " runs. Commit first, or give a file outside of tests/fuzz/records"
    )


def keep(record: Mapping[str, Any], path: Path | None) -> None:
    """Prints a record and, if there is a path, appends it to that file."""
    check_record(record)
    line = json.dumps(record)
    print(line)
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def machine() -> str:
    """The processor's name and the number of its CPUs, as lscpu says."""
    lines = _output("lscpu").splitlines()
    said = dict(line.split(":", 1) for line in lines if ":" in line)
    name = said.get("Model name", "unknown processor").strip()
    return f"{name}, family {said.get('CPU family', '?').strip()}, model" + (
        f" {said.get('Model', '?').strip()}, {os.cpu_count()} CPUs"
    )


def _commit() -> dict[str, Any]:
    commit = _output("git", "rev-parse", "--short=12", "HEAD").strip()
    return {"commit": commit, "dirty": bool(_changes("tests/fuzz/records", "benchmarks/results"))}


def _changes(*without: str) -> str:
    """Returns the files that differ from the commit, as git tells them."""
    exclude = [f":(top,exclude){folder}" for folder in without]
    return _output("git", "status", "--porcelain", "--untracked-files=no", "--", ":/", *exclude)


def _output(*command: str) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=RECORDS.parent
        ).stdout
    except OSError:
        return ""


def table() -> str:
    """Returns one line of Markdown per fuzzer: its cases and findings over all records."""
    cases, findings = Counter[str](), Counter[str]()
    for path in sorted(RECORDS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            name = f"`{record['fuzzer']}` ({path.stem})"
            cases[name] += record["cases"]
            findings[name] += record["findings"]
    lines = [f"| {name} | {cases[name]:,} | {findings[name]} |" for name in cases]
    return "\n".join(["| fuzzer (record) | cases | findings |", "|---|--:|--:|", *lines])


if __name__ == "__main__":
    print(table())
