# SPDX-License-Identifier: BSD-3-Clause
"""Makes the pages of measured tables from the records in benchmarks/results.

    python benchmarks/make_tables.py                 # all pages
    python benchmarks/make_tables.py models a.jsonl  # docs/benchmarks.md, README and its picture
    python benchmarks/make_tables.py layers --check  # exit status 1 if docs/layers.md would change
    python benchmarks/make_tables.py board           # docs/board.md and its plots
    python benchmarks/make_tables.py peers           # the tables of docs/migrating.md
    python benchmarks/make_tables.py emit            # the tables of docs/emit.md

"models" are the records of bench_models.py, "layers" those of bench_layers.py, "board" those of
bench_board.py, "peers" those of bench_peers.py. A later record of a network in the same setting
(threads, batch, widest vectors; for the board also size and machine, for peers machine and engine)
replaces an earlier one. Takes seconds; nothing is timed. Writes the pages that change. The long
tables of "layers" and "board" go to docs/records. Only "board" draws plots, with matplotlib.

Exit status: 0 done, 1 --check found a change, 2 an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import board_page
import board_plot
import layer_page
import model_page
import peer_page
import readme_part
from harness import RESULTS, ROOT, Record, count, make_parser, run_script
from pages import TableError, read_records, write_changed

PICTURE = "images/models.svg"  # beside docs/benchmarks.md


def model_texts(args: argparse.Namespace) -> dict[Path, str]:
    """The page of whole networks, README with its numbers, and README's picture."""
    records = read_records(
        args.records or [RESULTS / "models.jsonl"], "models", model_page.check_times
    )
    records = [model_page.with_faster_runtime(record) for record in records]
    try:
        readme = args.readme.read_text()
    except OSError as problem:
        raise TableError(f"cannot read {args.readme}: {problem.strerror}") from None
    body = readme_part.make_readme(records, f"docs/{PICTURE}")
    page = args.page or ROOT / "docs/benchmarks.md"
    return {
        page: model_page.make_page(records),
        page.parent / PICTURE: readme_part.make_picture(records),
        args.readme: model_page.replace_table(readme, body, args.readme.name),
    }


def layer_texts(args: argparse.Namespace) -> dict[Path, str]:
    """The page of single operations, and that of the slowest ones of each network."""
    records = read_records(args.records or [RESULTS / "layers.jsonl"], "layers")
    page = args.page or ROOT / "docs/layers.md"
    tables = layer_page.make_tables(records, args.worst)
    return {page: layer_page.make_page(records), page.parent / "records" / page.name: tables}


BOARD_LAYERS = RESULTS / "board_layers.jsonl"


def board_texts(args: argparse.Namespace) -> dict[Path, str]:
    """The page of the board, and that of all its networks.

    Draws the plots beside the page if it alone is made, and not checked.
    """
    paths = args.records or [RESULTS / "board.jsonl"]
    records = (
        read_records(paths, "board", board_page.check, board_page.key_of)
        if args.records or paths[0].exists()
        else []
    )
    page = args.page or ROOT / "docs/board.md"
    if args.what == "board" and not args.check:
        board_plot.draw_all(records, page.parent / board_page.IMAGES)
    layers = read_records([BOARD_LAYERS], "layers") if BOARD_LAYERS.exists() else []
    tables = board_page.make_tables(records)
    return {
        page: board_page.make_page(records, layers),
        page.parent / "records" / page.name: tables,
    }


def peer_texts(args: argparse.Namespace) -> dict[Path, str]:
    """The page on other engines, with its tables."""
    page = args.page or ROOT / "docs/migrating.md"
    records = records_of(args, "peers", peer_page.key_of)
    table = peer_page.make_tables(records)
    return {page: model_page.replace_table(page.read_text(), table, page.name, peer_page.START)}


def emit_texts(args: argparse.Namespace) -> dict[Path, str]:
    """The page on C++ programs, with the tables of their times and of limits of memory."""
    page = args.page or ROOT / "docs/emit.md"
    text = page.read_text()
    for benchmark, key_of, make, start in (
        ("peers", peer_page.key_of, peer_page.programs_table, peer_page.PROGRAMS_START),
        ("memory_limits", peer_page.limits_key, peer_page.limits_table, peer_page.LIMITS_START),
    ):
        table = make(records_of(args, benchmark, key_of))
        text = model_page.replace_table(text, table, page.name, start)
    return {page: text}


def records_of(
    args: argparse.Namespace, benchmark: str, key_of: Callable[[Record], tuple[Any, ...]]
) -> list[Record]:
    """Returns the records of a benchmark; none if there is no file yet."""
    paths = args.records or [RESULTS / f"{benchmark}.jsonl"]
    is_there = args.records or paths[0].exists()
    return read_records(paths, benchmark, key_of=key_of) if is_there else []


MAKERS = {
    "models": model_texts, "layers": layer_texts, "board": board_texts, "peers": peer_texts,
    "emit": emit_texts,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and returns the exit status."""
    parser = make_parser(__doc__)
    parser.add_argument("what", nargs="?", default="all", choices=["all", *MAKERS])
    parser.add_argument("records", nargs="*", type=Path, help="instead of benchmarks/results")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file differs")
    parser.add_argument("--page", type=Path, help="instead of the page in docs/")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--worst", type=count, default=12, help="rows per network of layers")
    args = parser.parse_args(argv)
    if args.what == "all" and (args.records or args.page):
        kinds = ", ".join(MAKERS)
        parser.error(f"records and --page need to know of what: expected one of {kinds} first")
    try:
        texts: dict[Path, str] = {}
        for what in MAKERS if args.what == "all" else [args.what]:
            texts |= MAKERS[what](args)
        changed = write_changed(texts, args.check)
    except TableError as problem:
        print(f"make_tables: {problem}", file=sys.stderr)
        return 2
    for path in changed:
        print(f"{path} {'would change' if args.check else 'written'}")
    return 1 if args.check and changed else 0


if __name__ == "__main__":
    run_script(main)
