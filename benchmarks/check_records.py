# SPDX-License-Identifier: BSD-3-Clause
"""Checks that every record is of a commit of this repository, and that README says what they say.

`record_tests.py commits` calls it. Records are the lines of benchmarks/results and of
tests/fuzz/records, and the tables. Those from CLEAN_SINCE on must be of trees without changes;
fuzzers may be newer than the commit. A clone without history cannot tell.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT, Record, bf16_of, read_lines

OWN = "torchalgo"
FUZZ = ROOT / "tests" / "fuzz" / "records"
CLEAN_SINCE = "2026-11-28"  # before, records of trees with changes were kept
# Commits of branches that were rewritten before they were merged, with what their records are.
GONE = {
    "8b806a6": "four networks of the board", "68fa03f": "predictions for eleven networks",
    "5f602692caa3": "long runs of fuzzers", "84fffb8496fe": "the first fuzzing of ONNX files",
    "7b033ca19235": "the second fuzzing of ONNX files",
}  # fmt: skip
# The networks of README's claim on training; bench_training.py, which needs a build, has them too.
TRAINED = (
    "resnet18", "resnet50", "vgg11", "densenet121", "googlenet", "mobilenet_v2", "regnet_y_400mf",
    "unet",
)  # fmt: skip
_OF_COMMITS = ("commit", "git", "before", "after")


@dataclass(frozen=True)
class Found:
    """The commits that a record names."""

    place: str
    commits: tuple[str, ...]
    is_dirty: bool
    date: str


def records_of(path: Path) -> Iterator[Any]:
    """Yields the JSON objects of a file."""
    if path.suffix == ".gz":
        yield json.loads(gzip.decompress(path.read_bytes()))["head"]
    elif path.suffix == ".json":
        yield json.loads(path.read_text())
    else:
        for line in path.read_text().splitlines():
            yield json.loads(line)


def found_in(record: Any, place: str) -> Found:
    commits, is_dirty, date = [], False, ""
    parts = [record]
    while parts:
        part = parts.pop()
        date = date or str(part.get("date", ""))
        is_dirty |= part.get("dirty") is True
        for key in _OF_COMMITS:
            if isinstance(value := part.get(key), str) and re.fullmatch("[0-9a-f]{7,40}", value):
                commits.append(value)
        parts += [each for each in part.values() if isinstance(each, dict)]
    return Found(place, tuple(commits), is_dirty, date)


def all_found(root: Path = ROOT) -> list[Found]:
    """Returns what each record says; none of files that say nothing."""
    results, tables = root / RESULTS.relative_to(ROOT), root / "benchmarks" / "tables"
    files = [*results.rglob("*.json*"), *tables.glob("*.gz"),
             *(root / FUZZ.relative_to(ROOT)).glob("*.jsonl")]  # fmt: skip
    return [
        found_in(record, f"{path.relative_to(root)}:{number}")
        for path in sorted(files)
        if "h100" not in path.parts  # its env.json files have the commits
        or path.name == "env.json"
        for number, record in enumerate(records_of(path), 1)
    ]


def git(root: Path, *words: str, text: str = "") -> str | None:
    """Returns what git prints, or None if it fails or is missing."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=root, input=text, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return None if done.returncode else done.stdout.strip()


def wrong_records(records: list[Found], root: Path = ROOT) -> list[str] | None:
    """Returns a line for each wrong record; None if this clone has no history, or another one."""
    if git(root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    names = sorted({commit for each in records for commit in each.commits} - GONE.keys())
    answers = git(
        root, "cat-file", "--batch-check", text="".join(f"{n}^{{commit}}\n" for n in names)
    )
    answered = zip(names, (answers or "").splitlines(), strict=True)
    missing = {name for name, answer in answered if answer.split()[1:2] != ["commit"]}
    if missing == {*names}:
        return None
    lines = [
        f"{each.place}: commit {commit} is not in this repository"
        for each in records
        for commit in each.commits
        if commit in missing
    ]
    for each in records:
        if not each.commits and each.date >= CLEAN_SINCE:
            lines.append(f"{each.place}: names no commit")
        is_fuzz = each.place.startswith("tests/fuzz")
        if each.is_dirty and each.date >= CLEAN_SINCE and not is_fuzz:
            lines.append(f"{each.place}: is of a tree with changes, so nobody can repeat it")
    return lines


def last(name: str, is_meant: Callable[[Record], bool]) -> dict[str, Record]:
    """Returns the last record of each network among those that are meant."""
    lines = read_lines(RESULTS / f"{name}.jsonl")
    return {r["network"]: r for r in lines if "failure" not in r and is_meant(r)}


def ratio(times: Mapping[str, Sequence[float]], peers: Iterable[str], own: str = OWN) -> float:
    """Returns the time of the fastest peer over our own: the median of the rounds' ratios."""
    best = min((times[peer] for peer in peers if times.get(peer)), key=statistics.median)
    return statistics.median(b / a for a, b in zip(times[own], best, strict=True))


def training_claim() -> str:
    """Compares a step with PyTorch's best in f32."""

    def mean(isa: str) -> float:
        setting = (8, 2, 224, isa, False)
        records = last(
            "training",
            lambda r: (
                r["network"] in TRAINED
                and (
                    r["batch"],
                    r["threads"],
                    r["size"],
                    r["machine"]["isa"],
                    r.get("autocast", False),
                )
                == setting
            ),
        )
        return statistics.geometric_mean(
            ratio(times, [peer for peer in times if not peer.startswith(("autocast", OWN))])
            for times in (record["step_ms"] for record in records.values())
        )

    return (
        f"is {mean('avx512'):.2f} times as fast as with the best of PyTorch's own ways, and"
        f" {mean('avx2'):.2f} times without AVX-512"
    )


def board_claim() -> str:
    """Compares the networks that a seed drew with the better of two other engines."""

    def is_meant(r: Record) -> bool:
        setting = (r["threads"], r["size"], r["isa_limit"], r["machine"]["isa"], r["quick"])
        return setting == (2, 224, "", "avx512", False) and r["input"].startswith("1x")

    peers = ("onnxruntime", "onnxruntime_spinning", "openvino")
    ratios = [ratio(each["wall_us"], peers) for each in last("board", is_meant).values()]
    return (
        f"{len(ratios)} networks were drawn at random. On these, torchalgo is"
        f" {statistics.geometric_mean(ratios):.2f} times as fast as the better of ONNX Runtime and"
        f" OpenVINO, with {min(ratios):.2f} as the lowest ratio"
    )


def bf16_claims(instructions: str) -> list[str]:
    """Compares f32, and bf16 under a bound of the error, with OpenVINO's default."""
    records = last(
        "precision",
        lambda r: (r["batch"], r["statistics"], bf16_of(r)) == (1, "drawn", instructions),
    )
    default = ("openvino_default", "openvino_throughput")
    f32 = {name: ratio(r["wall_us"], default) for name, r in records.items()}
    bf16 = [ratio(r["wall_us"], default, "torchalgo_error") for r in records.values()]
    return [
        f"{statistics.geometric_mean(f32.values()):.2f} in the geometric mean of"
        f" {len(f32)} networks, and {f32['resnet50']:.2f} for ResNet-50",
        f"{statistics.geometric_mean(bf16):.2f} times as fast as OpenVINO's default,"
        f" {min(bf16):.2f} to {max(bf16):.2f} per network",
    ]


def wrong_claims(readme: str) -> list[str]:
    """Returns a line for each number of README that is not that of the records.

    `tests/python/test_tables.py` compares the numbers between README's markers.
    """
    text = " ".join(readme.split())
    claims = [training_claim(), board_claim(), *bf16_claims("amx"), *bf16_claims("avx512bf16")]
    return [f"README.md: expected {claim!r}" for claim in claims if claim not in text]


def check_commits() -> int:
    """Prints what is wrong, or how many records there are. Returns the exit status."""
    records = all_found()
    wrong = wrong_records(records)
    claims = wrong_claims((ROOT / "README.md").read_text())
    for line in [*(wrong or []), *claims]:
        print(line)
    if wrong is None:
        print(f"this clone has no history, so the commits of {len(records)} records are not known")
    elif not wrong:
        dirty = sum(each.is_dirty for each in records)
        gone = sum(not GONE.keys().isdisjoint(each.commits) for each in records)
        print(
            f"{len(records)} records of commits of this repository, but {gone} of branches that"
            f" were rewritten; {dirty} of trees with changes"
        )
    return 1 if wrong or claims else 0
