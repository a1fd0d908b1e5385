# SPDX-License-Identifier: BSD-3-Clause
"""Records are of commits of this repository, and records of changed trees are drafts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import bench_training
import campaign
import check_records
import drafts
import harness
from harness import ROOT


def git(folder: Path, *words: str) -> str:
    own = ["git", "-c", "user.name=n", "-c", "user.email=e", *words]
    done = subprocess.run(own, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    for name in ("benchmarks/results", "tests/fuzz/records", "python"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("a")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def write(folder: Path, *records: dict[str, Any], name: str = "benchmarks/results/a.jsonl") -> None:
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))


def wrong(folder: Path) -> list[str] | None:
    return check_records.wrong_records(check_records.all_found(folder), folder)


# ---- the records of this repository --------------------------------------------------------------


def test_each_record_here_is_of_a_commit_of_this_repository() -> None:
    records = check_records.all_found()
    assert len(records) > 1000
    assert not check_records.wrong_records(records)  # None if this clone has no history


def test_readme_says_what_the_records_say() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert check_records.wrong_claims(readme) == []
    for number in ("1.46 times", "1.17 times", "0.55 in", "1.05 to 1.38"):
        wrong = readme.replace(number, f"9{number[1:]}")
        assert len(check_records.wrong_claims(wrong)) == 1, number
    assert check_records.TRAINED == bench_training.NETWORKS


# ---- other repositories --------------------------------------------------------------------------


def test_a_record_of_an_unknown_commit_is_wrong_wherever_the_commit_stands(
    repository: Path,
) -> None:
    known, other = git(repository, "rev-parse", "--short", "HEAD"), "0123abc"
    good = [{"commit": known}, {"git": {"commit": known}}, {"before": known, "after": known}]
    write(repository, *good)
    assert wrong(repository) == []
    for bad in ({"commit": other}, {"git": {"commit": other}}, {"before": known, "after": other}):
        write(repository, *good, bad)
        assert wrong(repository) == [
            f"benchmarks/results/a.jsonl:4: commit {other} is not in this repository"
        ]


def test_new_records_of_changed_trees_are_wrong_but_those_of_newer_fuzzers(
    repository: Path,
) -> None:
    known = git(repository, "rev-parse", "HEAD")
    dirty = {"commit": known, "dirty": True}
    write(repository, {**dirty, "date": "2026-11-20"}, {**dirty, "date": "2027-01-01"})
    write(repository, {**dirty, "date": "2027-01-01"}, name="tests/fuzz/records/a.jsonl")
    (line,) = wrong(repository) or []
    assert line.startswith("benchmarks/results/a.jsonl:2: is of a tree with changes")
    write(repository, {"commit": known}, {"date": "2027-01-01"})
    assert wrong(repository) == ["benchmarks/results/a.jsonl:2: names no commit"]


def test_a_clone_without_history_cannot_tell(repository: Path, tmp_path: Path) -> None:
    write(repository, {"commit": git(repository, "rev-parse", "HEAD")})
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "second")
    shallow, exported = tmp_path / "shallow", tmp_path / "exported"
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), str(shallow))
    assert check_records.all_found(shallow) and wrong(shallow) is None
    git(repository, "checkout-index", "-a", f"--prefix={exported}/")
    assert check_records.all_found(exported) and wrong(exported) is None  # no git
    write(repository, {"commit": "0123abc"})
    assert wrong(repository) is None  # another history


# ---- drafts --------------------------------------------------------------------------------------


@pytest.fixture
def changed_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes the tree look changed. Returns the folder of records."""
    monkeypatch.setattr(drafts, "git_state", lambda: {"commit": "0123abc", "dirty": True})
    monkeypatch.setattr(drafts, "RESULTS", tmp_path / "benchmarks" / "results")
    monkeypatch.setattr(drafts, "DRAFTS", ROOT / "build" / "drafts" / tmp_path.name)
    monkeypatch.delenv("TORCHALGO_BENCH_DRAFT", raising=False)
    return tmp_path / "benchmarks" / "results"


def test_a_changed_tree_adds_no_record(changed_tree: Path) -> None:
    path = changed_tree / "some.jsonl"
    with pytest.raises(SystemExit, match=r"some.jsonl: the tree has changes.*--draft"):
        harness.record(path, {"network": "a"})
    ran: list[str] = []
    with pytest.raises(SystemExit, match="the tree has changes"):
        harness.measure_each(ran.append, {"a": ["a"]}, out=path, limit_s=1.0)
    assert not path.exists() and not ran


def test_a_record_elsewhere_may_be_of_a_changed_tree(changed_tree: Path, tmp_path: Path) -> None:
    harness.record(tmp_path / "mine.jsonl", {"network": "a"})
    assert (tmp_path / "mine.jsonl").exists()


def test_a_draft_lies_where_no_page_reads(
    changed_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHALGO_BENCH_DRAFT", "")  # restored behind the test
    parser = harness.make_parser("doc", changed_tree / "some.jsonl", can_resume=True)
    args = parser.parse_args(["--draft"])
    harness.record(args.out, {"network": "a", "threads": 1})
    draft = drafts.DRAFTS / "results" / "some.jsonl"
    assert draft.exists() and not args.out.exists()
    assert drafts.DRAFTS.is_relative_to(ROOT / "build")
    draft.unlink()
    draft.parent.rmdir()
    draft.parent.parent.rmdir()


@pytest.mark.parametrize(
    "script",
    [
        "bench_models",
        "bench_tuning",
        "bench_runtime",
        "bench_build",
        "bench_commits",
        "record_tables",
        "bench_replay",
    ],
)
def test_scripts_that_write_records_have_the_option(script: str) -> None:
    source = (ROOT / "benchmarks" / f"{script}.py").read_text()
    assert "make_parser(__doc__, harness.RESULTS" in source or "has_records=True" in source


def test_only_changes_outside_of_the_fuzzers_refuse_their_records(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = repository / "tests" / "fuzz" / "records"
    monkeypatch.setattr(campaign, "RECORDS", records)
    path = records / "file"
    assert campaign.why_not_kept(path) == "" and not campaign.Start().commit["dirty"]
    path.write_text("b")  # a record of an earlier run
    assert campaign.why_not_kept(path) == "" and not campaign.Start().commit["dirty"]
    (repository / "tests" / "fuzz" / "fuzzer.py").write_text("newer")
    git(repository, "add", ".")
    assert campaign.why_not_kept(path) == "" and campaign.Start().commit["dirty"]
    (repository / "python" / "file").write_text("b")
    assert "outside of tests/fuzz" in campaign.why_not_kept(path)
    assert campaign.why_not_kept(None) == "" == campaign.why_not_kept(repository / "mine.jsonl")
