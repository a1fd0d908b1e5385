# SPDX-License-Identifier: BSD-3-Clause
"""Makes docs/layers.md and docs/records/layers.md from the records of bench_layers.py."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness import Record
from layer_lines import CONVOLUTIONS, PLACES, Line, family_of, line_of, lines_of, roofline, time_of
from pages import ms, ratio_cell, table
from torchalgo import _C
from torchalgo._ir.bounds import Peaks

# ---- cells ---------------------------------------------------------------------------------------


def us_cell(us: float | None) -> str:
    """Microseconds with three digits that count."""
    if us is None:
        return "-"
    return f"{us:.0f}" if us >= 99.95 else f"{us:.1f}"


def layers_cell(layers: Sequence[str]) -> str:
    """The first name, and how many there are."""
    return layers[0] if len(layers) == 1 else f"{layers[0]}, ... ({len(layers)})"


def row_cells(line: Line) -> list[str]:
    """A row of the table of a network's worst."""
    ours = [f"{name.removeprefix('cpu.')} {us_cell(us)}" for name, us in line.algorithms]
    share = f"{line.roofline_us / line.us:.0%} of {line.limit}" if line.us else "-"
    return [
        layers_cell(line.layers),
        f"`{line.problem}`",
        line.place.removesuffix("_us"),
        f"{us_cell(line.us)} ({line.own})",
        share,
        ", ".join(ours) or "none",
        us_cell(line.aten_us),
        us_cell(line.peer_us),
        ratio_cell(line.ratio),
        us_cell(line.lost_us),
        f"**{us_cell(line.behind_us)}**" if line.behind_us > 0 else "0",
        *(f"{us_cell(line.own_us[each])} / {us_cell(line.openvino_us[each])}" for each in PLACES),
    ]


HEAD = (
    "layers", "problem", "weights", "ours, us", "of the roofline", "ours by algorithm, us",
    "ATen, us", "OpenVINO, us", "OpenVINO / ours", "lost, us", "to others, us",
    "cold: ours / OpenVINO", "warm: ours / OpenVINO",
)  # fmt: skip


def total(lines: Sequence[Line], time: Callable[[Line], float | None]) -> str:
    """The time of all layers in ms, with how many have none."""
    known = [(line.count, us) for line in lines if (us := time(line)) is not None]
    missing = sum(line.count for line in lines) - sum(count for count, _ in known)
    text = ms(sum(count * us for count, us in known)) if known else "-"
    return f"{text} (without {missing})" if known and missing else text


def family_table(lines: Sequence[Line]) -> list[str]:
    """Sums over layers, by kind of work; the last row is of all."""
    families = list(dict.fromkeys(line.family for line in lines))
    families.sort(key=lambda f: -sum(line.count * line.us for line in lines if line.family == f))
    groups = [(name, [line for line in lines if line.family == name]) for name in families]
    columns: dict[str, Callable[[Line], float | None]] = {
        "ours, ms": lambda line: line.us,
        "roofline": lambda line: line.roofline_us,
        "ATen": lambda line: line.aten_us,
        "OpenVINO": lambda line: line.peer_us,
        "lost": lambda line: line.lost_us / line.count,
        "to others": lambda line: line.behind_us / line.count,
        "ours cold": lambda line: line.own_us["cold_us"],
        "OpenVINO cold": lambda line: line.openvino_us["cold_us"],
        "ours warm": lambda line: line.own_us["warm_us"],
        "OpenVINO warm": lambda line: line.openvino_us["warm_us"],
    }
    rows = [
        [
            name,
            str(sum(line.count for line in group)),
            *(total(group, time) for time in columns.values()),
        ]
        for name, group in [*groups, ("all", list(lines))]
    ]
    return table(["kind", "layers", *columns], rows)


def plan_shares(plan: Record) -> dict[str, float]:
    """Returns the time that a plan expects of each kind of work, in us."""
    sums: dict[str, float] = {}
    for _, problem, _, us in plan["nodes"]:
        family = family_of(problem)
        sums[family] = sums.get(family, 0.0) + us
    changed = sum(us for _, _, us in plan["transforms"])
    return sums | {"transforms": changed} if changed else sums


def outside_share(shares: Mapping[str, float]) -> float:
    """Returns the share of the whole that is in no convolution."""
    whole = sum(shares.values())
    outside = sum(us for name, us in shares.items() if name not in CONVOLUTIONS)
    return outside / whole if whole else 0.0


def plan_line(plan: Record | None) -> str:
    """Describes the parts of a plan's time, and its share outside convolutions."""
    if plan is None:
        return "No plan was made."
    shares = plan_shares(plan)
    whole = sum(shares.values())
    if not whole:
        return "The plan costs nothing."
    parts = sorted(shares.items(), key=lambda item: -item[1])
    return (
        f"Our plan expects {ms(whole)} ms, **{outside_share(shares):.1%} outside convolutions**."
        f" Its parts: {', '.join(f'{name} {us / whole:.1%}' for name, us in parts if us)}."
        f" The plan is {plan['status']}: {plan['method']}."
    )


def behind_line(lines: Sequence[Line]) -> str:
    """Describes how often, and by how much, another engine is faster than ours."""
    behind = [line for line in lines if line.behind_us > 0]
    if not behind:
        return "No other engine is faster on any operation."
    summed = sum(line.behind_us for line in behind)
    slower = [line for line in behind if line.ratio is not None and line.ratio.verdict == "faster"]
    return (
        f"Another engine is faster on {len(behind)} of {len(lines)} operations, by"
        f" {ms(summed)} ms in all. OpenVINO is faster on {len(slower)} with 95 % confidence."
    )


def network_section(record: Record, worst: int) -> list[str]:
    """Heading, sums and the worst rows of one record."""
    lines, threads = lines_of(record), record["threads"]
    cold = f"{record['cold_bytes'] / 2**20:.0f} MiB of weights ({record['weights_in']})"
    peak = f"{record['peaks'][0]:.0f} GFLOP/s"
    commit = f"{record.get('commit') or 'unknown'}{' with changes' if record.get('dirty') else ''}"
    names = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    left_out = [row["problem"] for row in record["rows"] if line_of(row) is None]
    return [
        f"## {record['network']}, {threads} thread{'s' if threads > 1 else ''}",
        "",
        f"{record['rounds']} rounds; {cold}; peak {peak}; load {record['load_before']} before;"
        f" {record.get('cpu', 'unknown processor')}; {names}; commit {commit}; {record['date']}.",
        *([f"Nothing ran: {', '.join(left_out)}."] if left_out else []),
        "",
        plan_line(record["plan"]),
        behind_line(lines),
        "",
        *family_table(lines),
        "",
        f"The worst {min(worst, len(lines))} of {len(lines)} distinct operations:",
        "",
        *table(HEAD, [row_cells(line) for line in lines[:worst]]),
    ]


WINOGRAD = re.compile(
    r"fwd_f32_n\d+c(?P<c>\d+)h(?P<h>\d+)w(?P<w>\d+)_k(?P<k>\d+)r3s3_st1x1_pad1x1_dil1x1_g1\b.*"
)


def winograd_rows(records: Sequence[Record]) -> list[tuple[float, list[str]]]:
    """3x3 layers of stride 1 with 64 to 512 channels on at least 28 x 28 pixels, weights cold,
    one thread: multiply-adds of the definition per second over the probed peak, and the cells."""
    rows: dict[str, tuple[float, list[str]]] = {}
    for record in records:
        for row in record["rows"] if record["threads"] == 1 else []:
            found = WINOGRAD.fullmatch(row["problem"])
            times = {
                name: us
                for name, engine in row["engines"].items()
                if name.startswith("cpu.winograd") and (us := time_of(engine, "cold_us"))
            }
            if found is None or not times:
                continue
            c, h, w, k = (int(found[key]) for key in "chwk")
            if not (64 <= c <= 512 and 64 <= k <= 512 and min(h, w) >= 28):
                continue
            us, name = min((us, name) for name, us in times.items())
            rate = _C.flop_count(row["problem"]) / us / 1000  # GFLOP/s
            share = rate / record["peaks"][0]
            cells = [f"`{row['problem']}`", record["network"], name, us_cell(us)]
            rows[row["problem"]] = share, [*cells, f"{rate:.0f}", f"{share:.2f}"]
    return sorted(rows.values(), key=lambda row: -row[0])


def winograd_section(records: Sequence[Record]) -> list[str]:
    """Empty if no record has such a layer."""
    rows = winograd_rows(records)
    if not rows:
        return []
    median = statistics.median(share for share, _ in rows)
    head = ["problem", "network", "ours", "us", "GFLOP/s", "over the peak"]
    return [
        "",
        "## Winograd over the peak of multiply-adds",
        "",
        "These are 3x3 convolutions of stride 1 with 64 to 512 channels on at least 28 x 28"
        " pixels. They run in one thread with cold weights. GFLOP/s counts the operations of a"
        " direct convolution. The last column divides this rate by the peak rate that was probed"
        f" in the run. A direct algorithm stays below 1; the median is **{median:.2f}**.",
        "",
        *table(head, [cells for _, cells in rows]),
    ]


def outside_section(records: Sequence[Record]) -> list[str]:
    """Lists the time that each network's plan expects to spend outside convolutions."""
    rows = [
        [
            record["network"],
            str(record["threads"]),
            ms(sum(us.values())),
            f"{outside_share(us):.1%}",
        ]
        for record in records
        if record["plan"] is not None and (us := plan_shares(record["plan"]))
    ]
    head = ["network", "threads", "plan, ms", "outside convolutions"]
    return ["", "## Time outside convolutions", "", *table(head, rows)] if rows else []


WITHIN = 1.1  # times the fastest: as good, another machine may prefer it


@dataclass
class Wins:
    """The results of one algorithm on the distinct operations that it ran."""

    layouts: set[str] = field(default_factory=set)
    ran: int = 0
    near: int = 0
    # The next one's time over its own (0: there was none), and the problem.
    won: list[tuple[float, str]] = field(default_factory=list)


def wins_of(records: Sequence[Record]) -> dict[str, Wins]:
    """Returns the results by algorithm of ours. A view moves nothing, and is no rival."""
    found: dict[str, Wins] = {}
    rows = {row["problem"]: row for record in records for row in record["rows"]}
    for problem, row in rows.items():
        line = line_of(row)
        times = {n: us for n, us in line.algorithms if not n.startswith("view.")} if line else {}
        if line is None or not times:
            continue
        rivals = times if line.aten_us is None else {**times, "aten": line.aten_us}
        least, *others = sorted(rivals.values())
        for name, us in times.items():
            wins = found.setdefault(name, Wins())
            wins.ran += 1
            wins.near += us <= WITHIN * least
            wins.layouts.add(row["engines"][name]["layouts"].replace("->", " to "))
            if us == least:
                wins.won.append((others[0] / us if others else 0.0, problem))
    return found


def wins_section(records: Sequence[Record]) -> list[str]:
    """Lists where each algorithm is the fastest."""
    rows = []
    for name, wins in sorted(wins_of(records).items()):
        ahead, where = max(wins.won, default=(0.0, ""))
        best = f"{ahead:.2f}: `{where}`" if ahead else "alone" if where else "-"
        cells = [f"`{name}`", str(wins.ran), str(len(wins.won)), str(wins.near)]
        rows.append([*cells, ", ".join(sorted(wins.layouts)), best])
    head = ["algorithm", "ran", "fastest", "within 10 %", "layouts", "furthest ahead of the next"]
    return [
        "",
        "## Where each algorithm is the fastest",
        "",
        "This table compares torchalgo's algorithms with each other and with ATen's, over the"
        " distinct operations below. The fastest of an algorithm's variants and layouts counts. A"
        " plan may still choose another algorithm because of its layouts.",
        "",
        *table(head, rows),
    ]


def limits_of(record: Record) -> dict[str, float]:
    """Splits a plan's time in us: up to the least time of each call's algorithm, by the limit that
    binds it ("flops", "bytes" or "weights"), "above" it, and "transforms"."""
    us_of = dict.fromkeys(("flops", "bytes", "weights", "above"), 0.0)
    peaks = Peaks.probed(record["peaks"])
    for _, problem, name, us in record["plan"]["nodes"]:
        if name.startswith("view."):
            continue
        # The layouts do not enter.
        least = roofline(problem, [_C.Primitive(name, "nchw", "nchw")], peaks, record["cold_bytes"])
        bound = min(us, least["us"])
        us_of[least["limit"]] += bound
        us_of["above"] += us - bound
    return us_of | {"transforms": sum(us for _, _, us in record["plan"]["transforms"])}


def limits_section(records: Sequence[Record]) -> list[str]:
    """Lists the limits of each network's plan."""
    rows = []
    for record in records:
        if record["plan"] is not None and (us_of := limits_of(record)):
            whole = sum(us_of.values())
            shares = [f"{us / whole:.0%}" if whole else "-" for us in us_of.values()]
            rows.append([record["network"], str(record["threads"]), ms(whole), *shares])
    head = ["network", "threads", "plan, ms", "arithmetic", "memory", "weights", "above", "layouts"]
    text = (
        "These are shares of the time that the plan expects. Each call has three tasks: its"
        " multiply-adds (Winograd's and Strassen's algorithms need fewer), reading and writing its"
        " tensors, and reading its weights from where they are inside the network. The task that"
        " takes longest, at the peak rates probed in the run, limits the call. *Above* is the time"
        " beyond this limit, which a better kernel could gain. *Layouts* is the time of layout"
        " changes."
    )
    title = "## What limits each network"
    return ["", title, "", text, "", *table(head, rows)] if rows else []


MADE = "<!-- made by `python benchmarks/make_tables.py layers` from bench_layers.py's records -->"


def make_page(records: Sequence[Record]) -> str:
    """docs/layers.md."""
    lines = [
        MADE,
        "# Benchmarks: layer by layer",
        "",
        "This page compares the times of each distinct operation of a network. An operation"
        " includes the steps that our candidates compute in the same call, such as a bias or an"
        " activation.",
        "",
        "- *Cold* means that the weights are where they are inside the network, for example not"
        " in a cache. *Warm* means that they are where the run before left them. If most bytes of"
        " an operation are weights, its row compares cold times, otherwise warm times.",
        "- *Ours* is the fastest of torchalgo's algorithms, or ATen's fastest if torchalgo has"
        " none.",
        "- OpenVINO runs a model of only this operation. Its time comes from its performance"
        " counters, which are accurate to about 1 us. Layout conversions are not included. 0"
        " means that OpenVINO computes the operation in place.",
        "- The *roofline* is the least time that any direct algorithm can take on this machine."
        " Winograd's and Strassen's algorithms may be faster.",
        "- *Lost* is the time that all layers of a row take beyond the least of roofline, ATen"
        " and OpenVINO. *To others* is the time beyond the faster of ATen and OpenVINO.",
        "- Ratios are medians of the rounds' ratios, with bootstrap 95 % intervals. Below 1 ours"
        " is **slower**.",
        "",
        "`benchmarks/bench_layers.py` explains which times can be compared and which cannot."
        " [The tables of the slowest operations](records/layers.md) have a part for each network."
        " [glossary.md](glossary.md) explains the terms.",
    ]
    lines += [*outside_section(records), *winograd_section(records)]
    lines += [*limits_section(records), *wins_section(records)]
    return "\n".join(lines) + "\n"


def make_tables(records: Sequence[Record], worst: int) -> str:
    """docs/records/layers.md."""
    lines = [
        MADE,
        "# Layer by layer: the slowest operations of each network",
        "",
        "[The summary](../layers.md) explains the columns.",
    ]
    for record in records:
        lines += ["", *network_section(record, worst)]
    return "\n".join(lines) + "\n"
