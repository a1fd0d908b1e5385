# SPDX-License-Identifier: BSD-3-Clause
"""Measured tables: every candidate and layout change of a network with what it costs.

A table is a gzipped JSON object in benchmarks/tables/<network>.json.gz. It holds the graph, the
candidates (so that it is read alike on a machine that offers others) and, per cost, the columns of
Row; strings occur once, and everything else points to them.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchalgo import _C
from torchalgo._ir.costs import Key, key_of, native_key

SCHEMA = 1
FOLDER = Path(__file__).with_name("tables")


@dataclass(frozen=True)
class Row:
    """One measured cost. Ticks are 1/1024 ns; seconds are those that measuring it took."""

    ticks: int  # median of the faster half, weights as cold as inside the network
    noise_ticks: int  # half the width of the 95 % interval of ticks
    samples: int
    look_ticks: int  # the fastest of LOOK_ROUNDS runs with warm weights
    setup_s: float  # to make its tensors and to pack its weights
    spent_s: float  # on `ticks`, setup and warm-up included; the quick look not


@dataclass(frozen=True)
class Table:
    head: dict[str, Any]  # network, input, threads, machine, git, date, load, rounds
    probes: tuple[float, list[tuple[int, float]]]  # as _C.probe_peaks
    graph: _C.Graph
    found: _C.Candidates
    transforms: list[_C.Candidate]
    rows: dict[Key, Row]
    failures: dict[Key, str]  # could not be measured: no candidates

    @property
    def network(self) -> str:
        return str(self.head["network"])

    def has(self, candidate: _C.Candidate) -> bool:
        """True if its cost is known; a view costs nothing by construction."""
        key = key_of(candidate.problem, candidate.primitive)
        return key in self.rows or _C.is_view(key.primitive)

    def ticks_of(self, candidate: _C.Candidate) -> int:
        """Raises KeyError if it could not be measured."""
        key = key_of(candidate.problem, candidate.primitive)
        return 0 if _C.is_view(key.primitive) else self.rows[key].ticks

    def costs(self, ticks: Mapping[Key, int] | None = None) -> _C.CostTable:
        """The recorded costs, or `ticks`, for the planner."""
        table = _C.CostTable()
        chosen = ticks if ticks is not None else {k: row.ticks for k, row in self.rows.items()}
        for key, value in chosen.items():
            table.set(native_key(key), value, "measured")
        return table


def candidates_of(table: Table) -> Iterable[_C.Candidate]:
    """Yields the candidates of all nodes, and the layout changes."""
    for own in table.found.by_anchor:
        yield from own
    yield from table.transforms


class _Strings:
    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.index.setdefault(text, len(self.index))


def write_table(table: Table, path: Path) -> None:
    """Writes `table`; readers never see half a file, and equal tables make equal files."""
    word = _Strings()
    rows = sorted(table.rows.items())
    record = {
        "schema": SCHEMA,
        "head": table.head,
        "probes": table.probes,
        "graph": table.graph.to_text(),
        "candidates": [[_plain(c, word) for c in own] for own in table.found.by_anchor],
        "transforms": [_plain(c, word) for c in table.transforms],
        "keys": [[word(part) for part in key] for key, _ in rows],
        **{name: [_short(getattr(row, name)) for _, row in rows] for name in _COLUMNS},
        "failures": [[*(word(p) for p in k), why] for k, why in sorted(table.failures.items())],
    }
    record["strings"] = list(word.index)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(json.dumps(record, separators=(",", ":")).encode())
    part.replace(path)


_COLUMNS = [field.name for field in dataclasses.fields(Row)]


def _short(number: float) -> float:
    return number if isinstance(number, int) else float(f"{number:.3g}")


def _plain(c: _C.Candidate, word: _Strings) -> list[Any]:
    p = c.primitive
    spelled = [word(text) for text in (c.problem, p.name, p.src, p.dst)]
    return [c.covers, *spelled, p.workspace_bytes, c.inputs]


def read_table(path: Path) -> Table:
    """Raises ValueError, naming the file, for one of another schema."""
    record = json.loads(gzip.decompress(path.read_bytes()))
    if record.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema is {record.get('schema')}, expected {SCHEMA}")
    strings: list[str] = record["strings"]

    def candidate(plain: list[Any]) -> _C.Candidate:
        covers, problem, name, src, dst, workspace, inputs = plain
        primitive = _C.Primitive(strings[name], strings[src], strings[dst], workspace)
        return _C.Candidate(covers, strings[problem], primitive, inputs)

    keys = [Key(*(strings[part] for part in key)) for key in record["keys"]]
    columns = zip(*(record[name] for name in _COLUMNS), strict=True)
    return Table(
        head=record["head"],
        probes=(record["probes"][0], [(int(b), float(r)) for b, r in record["probes"][1]]),
        graph=_C.parse_graph(record["graph"]),
        found=_C.Candidates([[candidate(c) for c in own] for own in record["candidates"]]),
        transforms=[candidate(c) for c in record["transforms"]],
        rows={key: Row(*row) for key, row in zip(keys, columns, strict=True)},
        failures={Key(*(strings[p] for p in words)): why for *words, why in record["failures"]},
    )


def read_tables(paths: Iterable[Path]) -> list[Table]:
    """Tables by name of network; without paths, those of benchmarks/tables."""
    chosen = list(paths) or sorted(FOLDER.glob("*.json.gz"))
    return [read_table(path) for path in chosen]


def usable(table: Table) -> Table:
    """Returns the table without the candidates that could not be measured."""
    if not table.failures:
        return table

    def measured(some: Iterable[_C.Candidate]) -> list[_C.Candidate]:
        return [c for c in some if table.has(c)]

    return dataclasses.replace(
        table,
        found=_C.Candidates([measured(own) for own in table.found.by_anchor]),
        transforms=measured(table.transforms),
    )
