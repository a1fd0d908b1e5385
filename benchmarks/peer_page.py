# SPDX-License-Identifier: BSD-3-Clause
"""Makes tables from bench_peers.py's records: those of docs/migrating.md and docs/emit.md."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean
from typing import Any

from harness import Record
from model_page import error_cell
from pages import table
from peer_engines import EMITTED, ENGINES, MODULES_PLAN, OWN

START = "<!-- table: benchmarks/make_tables.py peers -->"
PROGRAMS_START = "<!-- table: benchmarks/make_tables.py emit, programs -->"
LIMITS_START = "<!-- table: benchmarks/make_tables.py emit, memory -->"
F32_ERROR = 1e-5  # the usual max_error, with which plans stay in f32
NONE_YET = "There are no records yet. `python benchmarks/bench_peers.py` takes them."


def setting_of(record: Record) -> tuple[int, float]:
    """Returns the threads, and the error that torchalgo's plan may have."""
    return record.get("threads", 1), record.get("max_error", F32_ERROR)


def key_of(record: Record) -> tuple[Any, ...]:
    """Returns what one cell stands for; a later record replaces an earlier one."""
    key = record["cpu"], record["isa"], record["network"], record["engine"]
    return *key, *setting_of(record)


def middle(record: Record, key: str) -> float:
    """Returns the median of a list of a record, or its one value."""
    return float(statistics.median(record[key] if isinstance(record[key], list) else [record[key]]))


def digits(value: float) -> str:
    return (
        f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    )


def time_cell(record: Record) -> str:
    """Milliseconds, and in parentheses the ratio to our module."""
    ratio = f" ({record['ratio'][0]:.2f})" if "ratio" in record else ""
    return digits(middle(record, "ms")) + ratio


def ms_cell(key: str) -> Callable[[Record], str]:
    return lambda record: digits(middle(record, key))


def megabytes(values: Sequence[float]) -> str:
    return digits(statistics.median(values) / 1e6)


def spread(values: Sequence[float]) -> str:
    """Geometric mean and, in brackets, the least and the greatest value."""
    return f"{geometric_mean(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def summary_row(engine: str, records: Sequence[Record]) -> list[str]:
    """Returns the cells of an engine: over all networks that it runs."""
    ran = [record for record in records if "failure" not in record]
    title = ENGINES[engine].title
    if not ran:
        return [title, "-", "0", *["-"] * 8]
    ratios = [record["ratio"][0] for record in ran if "ratio" in record]

    def medians(key: str) -> str:
        return digits(statistics.median(middle(record, key) for record in ran))

    torch_bytes = [record["torch_bytes"] for record in ran]
    libraries = megabytes([record["library_bytes"] for record in ran])
    if any(torch_bytes):
        libraries += f", {megabytes(torch_bytes)} of them PyTorch's"
    version = ran[-1]["torchalgo" if engine in (OWN, EMITTED) else "version"]
    return [
        title, str(version), str(len(ran)),
        spread(ratios) if ratios else "-", medians("start_ms"), medians("open_first_ms"),
        megabytes([record["resident_bytes"] for record in ran]),
        megabytes([record["peak_bytes"] for record in ran]), libraries,
        megabytes([record["file_bytes"] for record in ran]),
        error_cell(max(record["rel_error"] for record in ran)),
    ]  # fmt: skip


def by_network(records: Sequence[Record], title: str, cell: Callable[[Record], str]) -> list[str]:
    """One row per network, one column per engine."""
    engines = [name for name in ENGINES if any(r["engine"] == name for r in records)]
    cells = {(r["network"], r["engine"]): "-" if "failure" in r else cell(r) for r in records}
    networks = sorted({record["network"] for record in records})
    rows = [[name, *(cells.get((name, engine), "") for engine in engines)] for name in networks]
    return ["", *table([title, *(ENGINES[engine].title for engine in engines)], rows)]


def machine_of(records: Sequence[Record]) -> str:
    """Describes the machine, the versions and the settings of records."""

    def all_of(*keys: str) -> str:
        return ", ".join(sorted({" ".join(str(record[key]) for key in keys) for record in records}))

    commits = sorted({f"{r['commit']}{' with changes' if r['dirty'] else ''}" for r in records})
    return (
        f"{all_of('cpu')} ({all_of('isa')}), {all_of('cores')} cores; 224 px, batch 1, 1 thread;"
        f" torch {all_of('torch')}, Python {all_of('python')}; {all_of('starts')} starts,"
        f" {all_of('rounds')} rounds of {all_of('seconds')} s; commit {', '.join(commits)};"
        f" {all_of('date')}."
    )


def note_of(record: Record) -> str:
    """Says why an engine has no times, or that it does not run the plan of the module."""
    if record.get("runs") == "baseline":
        return "runs PyTorch, since the plan was not faster when it was tuned"
    plan = str(record.get("plan", MODULES_PLAN))
    return str(record.get("failure") or ("" if plan == MODULES_PLAN else f"runs a plan {plan}"))


def section(records: Sequence[Record]) -> list[str]:
    """Returns the lines of one machine."""
    head = [
        "engine", "version", "networks", "time over our module", "start, ms", "open + first, ms",
        "resident, MB", "peak, MB", "libraries, MB", "files, MB", "largest relative L2",
    ]  # fmt: skip
    rows = [
        summary_row(engine, own)
        for engine in ENGINES
        if (own := [record for record in records if record["engine"] == engine])
    ]
    lines = [machine_of(records), "", *table(head, rows)]
    lines += by_network(records, "time, ms (over our module)", time_cell)
    lines += by_network(records, "open + first, ms", ms_cell("open_first_ms"))
    lines += by_network(records, "resident, MB", lambda r: megabytes([r["resident_bytes"]]))
    notes = [
        f"- {ENGINES[r['engine']].title}, {r['network']}: {html.escape(note, quote=False)}"
        for r in records
        if (note := note_of(r))
    ]
    return lines + (["", "Notes:", "", *notes] if notes else [])


def make_tables(records: Iterable[Record]) -> str:
    """Returns the text between the markers of docs/migrating.md: in f32, on one thread."""
    machines: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if setting_of(record) == (1, F32_ERROR):
            machines.setdefault((record["cpu"], record["isa"]), []).append(record)
    return "\n\n".join("\n".join(section(own)) for own in machines.values()) or NONE_YET


def programs_table(records: Iterable[Record]) -> str:
    """Returns the table of emitted programs, with their times beside those of the modules."""
    own = sorted(
        (r for r in records if r["engine"] == EMITTED and "failure" not in r),
        key=lambda r: (r["cpu"], *reversed(setting_of(r)), r["network"]),
    )
    rows = []
    for each in own:
        threads, max_error = setting_of(each)
        rows.append([
            each["network"], each["cpu"], "f32" if max_error == F32_ERROR else "bf16", str(threads),
            digits(middle(each, "ms")), "{:.2f} [{:.2f}, {:.2f}]".format(*each["ratio"]),
            digits(middle(each, "open_first_ms")), megabytes([each["resident_bytes"]]),
            megabytes([each["file_bytes"]]),
        ])  # fmt: skip
    if not rows:
        return NONE_YET
    head = [
        "network", "processor", "types", "threads", "ms", "time over the module",
        "open + first result, ms", "resident, MB", "of these the weights, MB",
    ]  # fmt: skip
    commits = ", ".join(sorted({each["commit"] for each in own}))
    torches = ", ".join(sorted({each["torch"] for each in own}))
    return "\n".join([
        *table(head, rows), "",
        "bf16: plans of `max_error=1e-2`. 224 px, batch 1,"
        f" AVX-512; torch {torches}; commits {commits}.",
    ])  # fmt: skip


def limits_key(record: Record) -> tuple[Any, ...]:
    """Returns what one row of limits of memory stands for."""
    return record["cpu"], record["isa"], record["network"], record["number"]


def limits_table(records: Iterable[Record]) -> str:
    """Returns the table of plans under falling limits of memory."""
    kept = list(records)
    if not kept:
        return NONE_YET
    rows = [
        [
            each["network"], "none" if each["number"] == 0 else f"{each['limit_bytes'] / 1e6:.2f}",
            f"{each['memory_bytes'] / 1e6:.2f}", f"{each['predicted']:.2f}",
            "{:.2f} [{:.2f}, {:.2f}]".format(*each["ratio"]),
        ]
        for each in kept
    ]  # fmt: skip
    head = ["network", "limit, MB", "needs, MB", "predicted time", "measured time"]
    last = kept[-1]
    return "\n".join([
        *table(head, rows), "",
        "Times are relative to the plan without a limit, in f32 on one thread, for images of"
        f" {last['px']} px. The last limit of a network is the smallest that a plan keeps."
        f" {last['cpu']} ({last['isa']}), torch {last['torch']}, commit {last['commit']},"
        f" {last['date']}.",
    ])  # fmt: skip
