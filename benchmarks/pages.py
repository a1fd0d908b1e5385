# SPDX-License-Identifier: BSD-3-Clause
"""Reads records and writes what is made of them: Markdown tables, pages and plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import Record
from torchalgo._base.stats import Faster

SCHEMA = 1
OWN = "torchalgo"


class Setting(NamedTuple):
    """The settings with which a network ran: those of one section of the page."""

    isa: str  # the widest vectors allowed; "": the machine's
    batch: int
    threads: int

    @property
    def title(self) -> str:
        """Names what differs from the usual: batch 1, all vectors."""
        parts = [f"{self.threads} thread{'s' if self.threads > 1 else ''}"]
        parts += [f"batch {self.batch}"] if self.batch > 1 else []
        parts += [f"{self.isa.upper()} only"] if self.isa else []
        return ", ".join(parts)


def setting_of(record: Record) -> Setting:
    """Returns the setting of a record. Older records have the usual one."""
    batch = int(record["input"].partition("x")[0]) if "input" in record else 1
    return Setting(record.get("isa_limit", ""), batch, record["threads"])


class TableError(Exception):
    """A file that cannot be read or written as asked; the message says what to do."""


# ---- records -------------------------------------------------------------------------------------


def network_and_setting(record: Record) -> tuple[Any, ...]:
    """Returns what one row of docs/benchmarks.md and docs/layers.md stands for."""
    return record["network"], setting_of(record)


def read_records(
    paths: Iterable[Path],
    benchmark: str,
    check: Callable[[Record, str], None] | None = None,
    key_of: Callable[[Record], tuple[Any, ...]] = network_and_setting,
) -> list[Record]:
    """The last record of each key, sorted by the keys.

    Args:
        benchmark: whose records they are, "models" of bench_models.py.
        check: raises TableError if a record, which stands at the place given, lacks something.
        key_of: a later record of the same key replaces an earlier one.
    """
    latest: dict[tuple[Any, ...], Record] = {}
    for path in paths:
        try:
            lines = path.read_text().splitlines()
        except OSError as problem:
            raise TableError(
                f"cannot read {path}: {problem.strerror}; bench_{benchmark}.py writes it"
            ) from None
        for number, line in enumerate(lines, 1):
            if line.strip():
                record = parse_record(line, f"{path}:{number}", benchmark)
                if check is not None:
                    check(record, f"{path}:{number}")
                latest[key_of(record)] = record
    if not latest:
        raise TableError(f"no records in {', '.join(map(str, paths))}")
    return [latest[key] for key in sorted(latest)]


def parse_record(line: str, place: str, benchmark: str) -> Record:
    """Parses one line of JSON. Raises: TableError if it is no record of the benchmark."""
    try:
        record: Record = json.loads(line)
    except json.JSONDecodeError as problem:
        raise TableError(f"{place}: no JSON ({problem.msg})") from None
    if record.get("schema") != SCHEMA or record.get("benchmark") != benchmark:
        raise TableError(
            f"{place}: schema {record.get('schema')!r} of benchmark {record.get('benchmark')!r},"
            f" expected schema {SCHEMA} of {benchmark!r}, as bench_{benchmark}.py writes it"
        )
    return record


# ---- cells ---------------------------------------------------------------------------------------


def ms(us: float) -> str:
    """Milliseconds with three digits that count."""
    value = us / 1000
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def ratio_cell(result: Faster | None, loss: str = "slower") -> str:
    """Ratio and interval; of what `result` calls faster than us we say that we are slower."""
    if result is None:
        return "-"
    text = f"{result.ratio:.2f} [{result.low:.2f}, {result.high:.2f}]"
    if result.low <= 1 <= result.high:
        return f"{text} no difference"
    if result.verdict == "unclear":
        return f"{text} too few rounds"
    return f"{text} **{loss}**" if result.verdict == "faster" else text


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], left: str = ":--", right: str = "--:"
) -> list[str]:
    """Lines of a Markdown table; the first column is text, the others numbers."""
    lines = [head, [left] + [right] * (len(head) - 1), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


# ---- files ---------------------------------------------------------------------------------------


def write_changed(texts: dict[Path, str], check: bool) -> list[Path]:
    """Writes the files whose text differs, or with `check` none. Returns these files."""
    changed = [p for p, text in texts.items() if not p.exists() or p.read_text() != text]
    for path in [] if check else changed:
        path.parent.mkdir(exist_ok=True)
        path.write_text(texts[path])
    return changed


def new_figure(panels: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """Returns matplotlib's figure and its panels, side by side, without a display.

    Raises: SystemExit if matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("a plot needs matplotlib: pip install -r requirements-full.txt") from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "torchalgo"  # the same records, the same file
    from matplotlib import pyplot

    made: tuple[Any, Any] = pyplot.subplots(1, panels, figsize=size, layout="constrained")
    return made


def save_figure(figure: Any, path: Path) -> None:
    """Writes a figure without a date: equal figures make equal files. The ending is the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else {})
