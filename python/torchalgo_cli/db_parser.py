# SPDX-License-Identifier: BSD-3-Clause
"""Defines the arguments of `torchalgo db` and its verbs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torchalgo_cli import arguments


def add_db(commands: Any) -> None:
    command = arguments.add_parser(
        commands, "db", "inspect and maintain the cost database",
        "The database keeps every cost that was measured, so that no cost is measured twice. A row"
        " is the cost of one primitive on one problem in one environment (processor, threads,"
        " versions). docs/database.md explains more.",
    )  # fmt: skip
    verbs = command.add_subparsers(required=True, metavar="verb", dest="verb")
    _add_verb(verbs, "info", "print the path, the size, and the number of rows of each kind")
    verb = _add_verb(verbs, "merge", "copy the rows of other databases into this one")
    verb.add_argument(
        "source", type=Path, nargs="+", metavar="FILE", help="another database; it is not changed"
    )
    verb = _add_verb(verbs, "export", "write the rows as lines of JSON with checksums")
    verb.add_argument("file", help="the file to write; - is stdout")
    verb = _add_verb(verbs, "import", "read rows that `db export` wrote")
    verb.add_argument("file", help="the file to read; - is stdin")
    verb = _add_verb(
        verbs,
        "gc",
        "delete damaged rows, and the least recently used ones if the file is too large",
    )
    verb.add_argument(
        "--max-mib", type=arguments.mebibytes, metavar="MIB",
        help="the size to shrink the file to, in MiB (default 128)",
    )  # fmt: skip
    verb = _add_verb(verbs, "retry", "forget failures, so that these candidates are tried again")
    verb.add_argument(
        "primitive", nargs="*",
        help="only primitives that match a glob, such as 'cpu.winograd*' (default: all)",
    )  # fmt: skip
    _add_forget(
        _add_verb(
            verbs, "forget", "count entries, and delete them with --yes",
            "An entry must match all options that are given.",
        )
    )  # fmt: skip
    _add_verb(verbs, "verify", "check every row and the file; exit code 1 if one is damaged")


def _add_forget(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--environment", default="", metavar="TEXT",
        help="only environments whose text in `db info` contains TEXT; 'here' is this machine now",
    )  # fmt: skip
    verb.add_argument(
        "--problem", default="", metavar="GLOB", help="only problems that match GLOB, no verdicts"
    )
    verb.add_argument(
        "--primitive", default="", metavar="GLOB",
        help="only primitives that match GLOB, no verdicts",
    )  # fmt: skip
    verb.add_argument(
        "--verdicts", action="store_true", help="only verdicts, the times of whole models"
    )
    for name, text in (("--since", "from this day on"), ("--before", "before this day")):
        verb.add_argument(
            name, type=arguments.day, metavar="DAY",
            help=f"only entries {text}, in UTC, such as 2026-11-20",
        )  # fmt: skip
    verb.add_argument(
        "--yes", action="store_true", help="delete the entries (default: only count them)"
    )


def _add_verb(verbs: Any, name: str, text: str, more: str = "") -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = arguments.add_parser(verbs, name, text, more)
    arguments.add_cost_db(verb)
    verb.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    return verb
