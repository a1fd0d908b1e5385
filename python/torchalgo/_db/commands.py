# SPDX-License-Identifier: BSD-3-Clause
"""`torchalgo db`: shows the cost database, checks it, and exchanges rows with others.

torchalgo_cli/parser.py reads the arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import fnmatch
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchalgo._base.read_file import check_size, read_file
from torchalgo._base.write_file import write_file
from torchalgo._C import Error
from torchalgo._db import files
from torchalgo._db.environment import find_here
from torchalgo._db.row import Check, Entry, Refusal, Row, Verdict
from torchalgo._db.store import MAX_BYTES, CostStore, Info, Merged
from torchalgo._ir.plan.text_table import text_table
from torchalgo_cli import EXIT_ERROR

MIB = 1 << 20
KINDS: dict[str, type[Entry]] = {
    "costs": Row, "failures": Refusal, "checks": Check, "verdicts": Verdict,
}  # fmt: skip
MOST_IMPORTED_BYTES = 4 * MAX_BYTES  # the lines of a full database are shorter


def run(args: argparse.Namespace) -> int:
    """Runs the verb and returns its exit code."""
    return VERBS[args.verb](args)


# ---- verbs ---------------------------------------------------------------------------------------


def _info(args: argparse.Namespace) -> int:
    path = _path(args)
    if not path.exists():
        info = Info(str(path), "none", "there is none yet", 0, 0, {}, 0, 0, {}, {}, {}, 0)
    else:
        with _opened(path, shows_trouble=True) as store:
            info = store.info()
    return _print(args, dataclasses.asdict(info), describe(info))


def _merge(args: argparse.Namespace) -> int:
    for source in args.source:
        _check_exists(source)
        if Path(source).suffix in (".jsonl", ".json"):
            raise Error(
                f"TA3102 db merge: {source} is no database, expected one such as costs.sqlite3;"
                " db import reads lines of JSON"
            )
    with _opened(_path(args), makes=True) as store:
        for source in args.source:
            with _opened(source, read_only=True) as other:
                merged = store.merge(other)
            _print_merged(args, str(source), merged)
    return 0


def _export(args: argparse.Namespace) -> int:
    with _opened(_existing(args), read_only=True) as store:
        lines = list(store.export_lines())
    if args.file == "-":
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return 0
    write_file(args.file, "".join(f"{line}\n" for line in lines), "db export")
    record = {"file": args.file, "rows": len(lines)}
    return _print(args, record, f"wrote {len(lines)} rows to {args.file}")


def _import(args: argparse.Namespace) -> int:
    lines = _lines_of(args.file)
    with _opened(_path(args), makes=True) as store:
        merged = store.import_lines(lines)
        if merged.seen and merged.unsound == merged.seen:
            raise Error(
                f"TA3102 db import: {args.file} has no row that torchalgo db export wrote; expected"
                " such a file; db merge reads a database"
            )
    return _print_merged(args, args.file, merged)


def _gc(args: argparse.Namespace) -> int:
    with _opened(_existing(args)) as store:
        dropped = store.gc(None if args.max_mib is None else int(args.max_mib * MIB))
        info = store.info()
    record = {"dropped": dropped, "rows": info.rows, "bytes": info.bytes}
    text = f"dropped {dropped} rows; {info.rows} are left in {_size(info.bytes)}"
    return _print(args, record, text)


def _retry(args: argparse.Namespace) -> int:
    globs = args.primitive or ["*"]
    with _opened(_existing(args)) as store:
        forgotten = store.forget(
            refusal
            for refusal in store.refusals()
            if any(fnmatch.fnmatchcase(refusal.primitive, glob) for glob in globs)
        )
    text = f"{forgotten} candidates that failed will be tried again"
    return _print(args, {"forgotten": forgotten}, text)


def _forget(args: argparse.Namespace) -> int:
    path = _existing(args)
    if args.verdicts and (args.problem or args.primitive):
        raise Error(
            "TA3103 db forget: verdicts belong to models, so --verdicts takes no --problem or"
            " --primitive: leave them out"
        )
    with _opened(path, read_only=not args.yes) as store:
        is_here = find_here() if args.environment == "here" else None
        found = {
            name: [e for e in store.all_of(kind) if _is_selected(e, args, is_here)]
            for name, kind in KINDS.items()
        }
        if args.yes:
            for entries in found.values():
                store.forget(entries)
    counts = {name: len(entries) for name, entries in found.items()}
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    verb, note = ("forgot", "") if args.yes else ("would forget", "; --yes does it")
    return _print(args, {**counts, "forgotten": args.yes}, f"{path}: {verb} {listed}{note}")


def _verify(args: argparse.Namespace) -> int:
    path = _existing(args)
    with _opened(path, read_only=True) as store:
        found = store.verify()
    verdict = "ok" if found.is_sound else "FAILS; torchalgo db gc drops damaged rows"
    counts = {"refusals": found.refusals, "checks": found.checks}
    others = "".join(f", {n} {name}" for name, n in counts.items() if n)
    text = f"{path}: {found.rows} sound rows{others}, {found.unsound} damaged: {verdict}"
    record = {**dataclasses.asdict(found), "is_sound": found.is_sound}
    _print(args, record, "\n".join([*found.damages, text]))
    return 0 if found.is_sound else EXIT_ERROR


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "info": _info,
    "merge": _merge,
    "export": _export,
    "import": _import,
    "gc": _gc,
    "retry": _retry,
    "forget": _forget,
    "verify": _verify,
}


# ---- helpers -------------------------------------------------------------------------------------


def _is_selected(
    entry: Entry, args: argparse.Namespace, is_here: Callable[[str], bool] | None
) -> bool:
    """Returns whether the arguments of `db forget` select an entry; an empty one selects all.

    Verdicts belong to whole models, so globs of problems or primitives select no verdicts.
    """
    has_globs = bool(args.problem or args.primitive)
    if has_globs if isinstance(entry, Verdict) else args.verdicts:
        return False
    environment, day = entry.environment, _day(entry.written_at)
    words = environment_text(environment).lower()
    return (
        (is_here(environment) if is_here else args.environment.lower() in words)
        and fnmatch.fnmatchcase(entry.problem, args.problem or "*")
        and fnmatch.fnmatchcase(entry.primitive, args.primitive or "*")
        and (args.since or "") <= day < (args.before or "~")
    )


def _day(time_s: float) -> str:
    """Returns the day in UTC, such as 2026-11-20."""
    try:
        return datetime.datetime.fromtimestamp(time_s, datetime.timezone.utc).date().isoformat()
    except (OverflowError, ValueError, OSError):  # the clock was wrong by centuries
        return "9999-12-31"


def environment_text(environment: str) -> str:
    """Returns the JSON of an environment as words; any other text unchanged."""
    try:
        return ", ".join(f"{name} {value}" for name, value in json.loads(environment).items())
    except (ValueError, AttributeError, RecursionError):  # not written by torchalgo
        return environment


def describe(info: Info) -> str:
    """Formats `info` as a few lines."""
    if info.access == "none":
        return f"{info.path}: {info.trouble}; torchalgo.optimize makes it"
    lines = [
        f"{info.path}: {info.rows} rows, {sum(info.refusals.values())} candidate(s) that failed,"
        f" {info.checks} that passed a check, {info.verdicts} verdict(s) on plans,"
        f" {_size(info.bytes)} of at most {_size(info.max_bytes)}, {info.access}"
    ]
    is_here = find_here()
    environments = {
        f"{environment_text(text)}{'' if is_here(text) else '  (not this one)'}": count
        for text, count in sorted(info.environments.items(), key=lambda item: -item[1])
    }
    failures = {f"failed: {why}": count for why, count in info.refusals.items()}
    for title, counts in (
        ("rows by environment", environments),
        ("rows by algorithm", info.algorithms),
        ("candidates that failed", failures),
    ):
        if counts:
            rows = [(str(count), name) for name, count in counts.items()]
            lines += [f"{title}:", *text_table(rows, right=(0,), indent="  ")]
    return "\n".join(lines)


def _size(count: int) -> str:
    return f"{count / MIB:.1f} MiB" if count >= MIB else f"{count / 1024:.0f} KiB"


def _print(args: argparse.Namespace, record: dict[str, Any], text: str) -> int:
    """Prints `record` as JSON with --json, and `text` otherwise. Returns the exit code 0."""
    print(json.dumps(record) if args.json else text)
    return 0


def _print_merged(args: argparse.Namespace, source: str, merged: Merged) -> int:
    left_out = f", {merged.unsound} damaged or foreign left out" if merged.unsound else ""
    text = f"{source}: {merged.seen} rows, {merged.taken} taken{left_out}"
    return _print(args, {"source": source, **dataclasses.asdict(merged)}, text)


def _path(args: argparse.Namespace) -> Path:
    if args.cost_db is not None:
        return Path(args.cost_db)
    try:
        return files.default_path()
    except RuntimeError as problem:
        raise Error(
            f"TA3101 db: there is no folder for the database: {problem}; name a file with --cost-db"
        ) from None


@contextlib.contextmanager
def _opened(
    path: Path, *, makes: bool = False, read_only: bool = False, shows_trouble: bool = False
) -> Iterator[CostStore]:
    """Opens the store in a file.

    Raises torchalgo.Error if that fails, unlike a run, which only warns. Raises it in the end if
    something could not be read or written, unless `shows_trouble`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if makes:
            try:
                files.make_folder(path.absolute().parent)
            except OSError as problem:
                raise Error(
                    f"TA3101 db: cannot make the folder of {path}: {problem.strerror}"
                ) from None
        with CostStore.open(path, read_only=read_only) as store:
            if store.is_in_memory:
                raise Error(f"TA3101 db: {path} {store.trouble}")
            yield store
            if store.trouble and not shows_trouble:
                lost = f"{store.unwritten} rows were not written: " if store.unwritten else ""
                raise Error(
                    f"TA3101 db: {store.path} {store.trouble}; {lost}check the disk and the"
                    " permissions, then try again"
                )


def _existing(args: argparse.Namespace) -> Path:
    path = _path(args)
    _check_exists(path)
    return path


def _check_exists(path: Path) -> None:
    if not path.exists():
        raise Error(f"TA3104 db: there is no database {path}: torchalgo.optimize makes it")


def _lines_of(name: str) -> list[str]:
    if name != "-":
        data = read_file(name, "db import", MOST_IMPORTED_BYTES)
    else:
        read = b"" if sys.stdin is None else sys.stdin.buffer.read(MOST_IMPORTED_BYTES + 1)
        data = check_size(read, "the standard input", "db import", MOST_IMPORTED_BYTES)
    return data.decode("utf-8", errors="replace").splitlines()
