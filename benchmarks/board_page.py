# SPDX-License-Identifier: BSD-3-Clause
"""Makes docs/board.md, its plots and docs/records/board.md from the records of bench_board.py.

A section holds the records of one machine, vector width, image size, batch and number of threads.
Records of different sections are never averaged, and no network is left out.
"""

from __future__ import annotations

import html
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from board_networks import DRAWN, INDUCTOR_NETWORKS, KNOWN, LARGE_FAMILY, RARE_NETWORKS, SEED, SIDE
from compare import compared, control_of
from harness import Record
from layer_lines import lines_of
from layer_page import layers_cell
from model_page import (
    BEST_PYTORCH,
    EXPORTED,
    SPINNING,
    TITLES,
    best_of,
    control_cell,
    error_cell,
    versions,
)
from pages import (
    OWN,
    TableError,
    ms,
    ratio_cell,
    setting_of,
    table,
)
from torchalgo._base.stats import Faster

BEST_OTHER = (EXPORTED[0], SPINNING, *EXPORTED[1:])
RARE = {"ncnn": ("ncnn",), "zentorch": ("zentorch",)}
IMAGES = "images"  # beside the page
Key = tuple[Any, ...]


# ---- records -------------------------------------------------------------------------------------


def section_of(record: Record) -> Key:
    """Returns what must be equal for two records to stand in one section."""
    machine = record["machine"]
    return machine["cpu"], machine["isa"], record["size"], setting_of(record)


def key_of(record: Record) -> Key:
    """Returns what one line of board.jsonl stands for; it does not depend on the commit."""
    return section_of(record), record["network"], record["quick"]


def check(record: Record, place: str) -> None:
    """Checks for the times without which there is no row."""
    if "failure" not in record and not record.get("wall_us", {}).get(OWN):
        raise TableError(f"{place}: no times of {OWN}")


def sections(records: Iterable[Record]) -> dict[Key, list[Record]]:
    """Groups the records that are not quick ones, the largest section first."""
    found: dict[Key, list[Record]] = {}
    for record in records:
        if not record["quick"]:
            found.setdefault(section_of(record), []).append(record)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def over(record: Record, engines: Sequence[str]) -> tuple[str | None, Faster | None]:
    """Returns the fastest of the engines, and its time over torchalgo's."""
    peer = best_of(record, engines)
    return peer, compared(record, peer)


def spread_of(record: Record, engine: str) -> list[float]:
    """Returns minimum, median and 95th percentile of an engine's single calls, in us."""
    calls = sorted(us for each in record["calls_us"][engine] for us in each)
    rank = min(len(calls) - 1, round(0.95 * (len(calls) - 1)))
    return [calls[0], round(statistics.median(calls), 1), calls[rank]]


def runs_baseline(record: Record) -> bool:
    """True if plain PyTorch was faster than the plan during tuning, so that it runs."""
    return bool(record["engines"][OWN]["runs"] == "baseline")


def share_left(record: Record) -> float | None:
    """Returns the part of a call that PyTorch spends on ops of its own; None if it is not known."""
    left = record["left_to_torch"]
    if runs_baseline(record):
        return 1.0
    return None if left["us"] is None else left["us"] / left["run_us"]


def share_text(record: Record) -> str:
    """Spells the share and the number of ops that are left to PyTorch."""
    share, ops = share_left(record), sum(record["left_to_torch"]["ops"].values())
    count = f"{ops} op{'s' * (ops != 1)}"
    return count if share is None else f"{100 * share:.1f} % ({count})"


# ---- one section ---------------------------------------------------------------------------------


def title_of(record: Record) -> str:
    """Names a section: the settings, then the machine."""
    cpu, isa, size, setting = section_of(record)
    return f"{setting.title}, {size} px, {cpu} ({isa})"


def slug_of(record: Record) -> str:
    """Returns the name of a section's plot, without ending."""
    cpu, isa, size, setting = section_of(record)
    words = f"board {cpu} {isa} {setting.isa} {size}px b{setting.batch} t{setting.threads}"
    return re.sub(r"[^a-z0-9]+", "_", words.lower())


def command_of(record: Record) -> str:
    """Returns the command that makes the records of a section."""
    _, _, size, setting = section_of(record)
    command = f"python benchmarks/bench_board.py --threads {setting.threads}"
    command += f" --size {size}" if size != SIDE else ""
    command += f" --batch {setting.batch}" if setting.batch > 1 else ""
    return command + (f" --isa {setting.isa}" if setting.isa else "")


def mean_text(ratios: Sequence[Faster]) -> str:
    """Spells the geometric mean of the ratios and the worst one."""
    if not ratios:
        return "-"
    values = [each.ratio for each in ratios]
    return f"{statistics.geometric_mean(values):.2f}, worst {min(values):.2f} (of {len(values)})"


def known(records: Iterable[Record], engines: Sequence[str]) -> list[Faster]:
    """Returns the ratios over the fastest of the engines, where one of them ran."""
    found = (over(record, engines)[1] for record in records)
    return [ratio for ratio in found if ratio is not None]


def spreads(records: Iterable[Record], engines: Sequence[str], part: int) -> list[float]:
    """Returns a part of the single calls (1: median, 2: 95th percentile) over their minimum."""
    values = []
    for record in records:
        engine = best_of(record, engines)
        if engine is not None:
            single = spread_of(record, engine)
            values.append(single[part] / single[0])
    return values


def spread_text(records: Sequence[Record], part: int) -> str:
    """Spells the geometric means of torchalgo and of ONNX Runtime."""
    texts = []
    for title, engines in {"torchalgo": (OWN,), "ONNX Runtime": BEST_OTHER[:2]}.items():
        values = spreads(records, engines, part)
        texts.append(f"{title} {statistics.geometric_mean(values):.2f}" if values else f"{title} -")
    return ", ".join(texts)


def left_text(records: Sequence[Record]) -> str:
    """Spells the median and the worst share that is left to PyTorch."""
    shares = {r["network"]: share for r in records if (share := share_left(r)) is not None}
    if not shares:
        return "not timed"
    worst = max(shares, key=lambda name: shares[name])
    middle = statistics.median(shares.values())
    return f"median {middle:.1%}, worst {shares[worst]:.1%} ({worst}), of {len(shares)} networks"


def summary(records: Sequence[Record]) -> list[str]:
    """The table of a section's means."""
    built = [record["engines"][OWN]["build_s"] for record in records]
    rows = [
        ["over the better of ONNX Runtime and OpenVINO", mean_text(known(records, BEST_OTHER))],
        ["over the best PyTorch path", mean_text(known(records, BEST_PYTORCH))],
        *([f"over {name}", mean_text(known(records, one))] for name, one in RARE.items()),
        ["left to PyTorch", left_text(records)],
        ["median / minimum of single calls", spread_text(records, 1)],
        ["95th percentile / minimum of single calls", spread_text(records, 2)],
        ["seconds of tuning", f"median {statistics.median(built):.0f}, most {max(built):.0f}"],
    ]
    return table(["geometric means", "value"], rows, right=":--")


def predicted_text(record: Record) -> str:
    """Spells the predicted time of the plan over its measured time, if the plan runs."""
    return "-" if runs_baseline(record) else f"{record['predicted_over_measured']:.2f}"


def slowest_text(record: Record) -> str:
    """Lists the slowest ops that are left to PyTorch."""
    slowest = record["left_to_torch"]["slowest"] or []
    return ", ".join(f"{name} {ms(us)} ms" for us, name, *_ in slowest[:2]) or "-"


def losing_layers(record: Record, layers: Sequence[Record]) -> str:
    """Names the layers that lose most to ATen and OpenVINO, if bench_layers.py timed them."""
    cpu, isa = record["machine"]["cpu"], record["machine"]["isa"]
    timed = [
        r
        for r in layers
        if (r["network"], r["threads"], r["cpu"]) == (record["network"], record["threads"], cpu)
        and r.get("isa", isa) == isa  # the first records have none
    ]
    if not timed or record["isa_limit"]:
        return "-"
    found = [
        f"{layers_cell(line.layers)} {ms(line.behind_us)} ms of {ms(line.count * line.us)}"
        for line in sorted(lines_of(timed[-1]), key=lambda line: -line.behind_us)[:2]
        if line.behind_us > 0
    ]
    return "; ".join(found) or "none"


def losses(records: Sequence[Record], layers: Sequence[Record]) -> list[str]:
    """The networks in which an engine is faster than torchalgo, the largest loss first."""
    lost = []
    for record in records:
        for peers in (BEST_OTHER, BEST_PYTORCH, *RARE.values()):
            peer, ratio = over(record, peers)
            if peer is not None and ratio is not None and ratio.verdict == "faster":
                lost.append((ratio.ratio, record, peer, ratio))
    if not lost:
        return ["No engine is faster than torchalgo on any of these networks at 95 % confidence."]
    lost.sort(key=lambda item: (item[0], item[1]["network"]))
    rows = [
        [
            record["network"], TITLES.get(peer, peer), ratio_cell(ratio).split(" **")[0],
            share_text(record), slowest_text(record), losing_layers(record, layers),
            predicted_text(record),
        ]
        for _, record, peer, ratio in lost
    ]  # fmt: skip
    head = [
        "network", "faster engine", "ratio", "left to PyTorch", "slowest of these",
        "layers that lose most", "predicted / measured",
    ]  # fmt: skip
    return table(head, rows)


def peer_cell(record: Record, engines: Sequence[str]) -> str:
    """Names the fastest of the engines, with its median in ms."""
    peer = best_of(record, engines)
    if peer is None:
        return "-"
    return f"{ms(statistics.median(record['wall_us'][peer]))} ({TITLES.get(peer, peer)})"


def single_cell(record: Record, engines: Sequence[str]) -> str:
    """Spells the minimum of single calls in ms, and the median and 95th percentile over it."""
    engine = best_of(record, engines)
    if engine is None:
        return "-"
    least, middle, high = spread_of(record, engine)
    return f"{ms(least)}, {middle / least:.2f}, {high / least:.2f}"


def ratio_key(record: Record) -> float:
    """Sorts records: those with the largest loss first, those without other engines last."""
    ratio = over(record, BEST_OTHER)[1] or over(record, BEST_PYTORCH)[1]
    return ratio.ratio if ratio is not None else float("inf")


def rows_of(records: Sequence[Record]) -> list[str]:
    """The table of all networks, sorted by ratio."""
    columns: dict[str, Callable[[Record], str]] = {
        "network": lambda r: r["network"],
        "torchalgo, ms": lambda r: ms(statistics.median(r["wall_us"][OWN])),
        "ONNX Runtime or OpenVINO, ms": lambda r: peer_cell(r, BEST_OTHER),
        "ratio": lambda r: ratio_cell(over(r, BEST_OTHER)[1]),
        "PyTorch, ms": lambda r: peer_cell(r, BEST_PYTORCH),
        "ratio over PyTorch": lambda r: ratio_cell(over(r, BEST_PYTORCH)[1]),
        "left to PyTorch": share_text,
        "transforms": lambda r: str(r["engines"][OWN]["transforms"]),
        "predicted / measured": predicted_text,
        "single calls": lambda r: single_cell(r, (OWN,)),
        "of ONNX Runtime": lambda r: single_cell(r, BEST_OTHER[:2]),
        "A/A control": lambda r: control_cell(control_of(r["wall_us"][OWN])),
        "relative L2": lambda r: error_cell(r["rel_error"]),
        "tuning, s": lambda r: f"{r['engines'][OWN]['build_s']:.0f}",
        "runs": lambda r: r["engines"][OWN]["runs"],
    }
    rows = [[cell(r) for cell in columns.values()] for r in sorted(records, key=ratio_key)]
    return table([*columns], rows)


def failures(records: Sequence[Record]) -> list[str]:
    """Lists what did not run: whole networks, and engines with the reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if "failure" in record:
            found.setdefault(("the process", record["failure"]), []).append(record["network"])
        for name, engine in record.get("engines", {}).items():
            if "failure" in engine:
                title = TITLES.get(name, name)
                found.setdefault((title, engine["failure"]), []).append(record["network"])
    if not found:
        return ["No engine failed on these networks."]
    rows = [
        [name, ", ".join(networks), html.escape(reason, quote=False)]
        for (name, reason), networks in sorted(found.items())
    ]
    return table(["engine", "networks", "reason"], rows, right=":--")


def heading(first: Record) -> str:
    title = title_of(first)
    return f"## {title[0].upper()}{title[1:]}"


def ran_of(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if "failure" not in record]


def loss_section(records: Sequence[Record], layers: Sequence[Record]) -> list[str]:
    """The losses of one section, and its plot."""
    if not (ran := ran_of(records)):
        return []
    plot = f"The plot shows every ratio. ![ratio of each network]({IMAGES}/{slug_of(ran[0])}.svg)"
    return ["", heading(ran[0]), "", *losses(ran, layers), "", plot]


def table_section(records: Sequence[Record]) -> list[str]:
    """The tables of one section."""
    ran = ran_of(records)
    lines = [
        "",
        heading(records[0]),
        "",
        f"{len(ran)} of {len(DRAWN) + len(KNOWN)} networks have records. This command makes them.",
        "",
        f"    {command_of(records[0])}",
        "",
    ]
    if ran:
        lines += [*summary(ran), "", "### All networks", "", *rows_of(ran), ""]
    lines += ["### Failures", "", *failures(records), "", "### Machine and versions", ""]
    return lines + [f"- {text}." for text in dict.fromkeys(versions(r) for r in ran)]


def overview(groups: Iterable[Sequence[Record]]) -> list[str]:
    """The table with a row for each section."""
    rows = []
    for records in groups:
        others, pytorch = (known(ran_of(records), peers) for peers in (BEST_OTHER, BEST_PYTORCH))
        lost = sum(ratio.verdict == "faster" for ratio in others)
        rows.append([title_of(records[0]), mean_text(others), str(lost), mean_text(pytorch)])
    head = ["setting", "over the better of ONNX Runtime and OpenVINO", "lost", "over PyTorch"]
    return table(head, rows, right=":--")


# ---- the pages -----------------------------------------------------------------------------------

MADE = "<!-- made by benchmarks/make_tables.py from the records of benchmarks/bench_board.py -->"


def make_page(records: Sequence[Record], layers: Sequence[Record] = ()) -> str:
    """docs/board.md. `layers` are records of bench_layers.py of networks of the board."""
    groups = sections(records).values()
    lines = [
        MADE,
        "# The board",
        "",
        f"The board has {len(DRAWN)} networks that were drawn by seed {SEED} from torchvision and"
        " timm, and three small known ones: MobileNet v1, a DQN and a DS-CNN for keyword spotting."
        " No measured time played a part in the drawing. One network was drawn from each family,"
        f" and two from families with at least {LARGE_FAMILY} networks. A family is the module that"
        " registers the network.",
        "",
        f"- A network is eligible if it accepts {SIDE}x{SIDE} images, and has at most 30 M"
        " parameters and 6 G multiply-adds. Convolutions must do at least half of these.",
        "- Weights and batch-norm statistics are random, by seed. All engines compute in f32.",
        "- Each network runs in a process of its own. torchalgo tunes it without a cost database,"
        " as the first network on a machine.",
        "- Rounds are interleaved, and the order of the engines rotates. In each round every engine"
        " runs once untimed. Then single calls are timed. Before each engine there is a pause, so"
        " that the idle threads of the other engines are asleep.",
        "- A ratio is the time of the other engine divided by the time of torchalgo, with a"
        " bootstrap 95 % interval in brackets. Below 1 torchalgo is **slower**. ONNX Runtime was"
        " timed with spinning idle threads and with sleeping ones; the faster of the two counts.",
        "- The PyTorch paths are eager, channels_last and optimize_for_inference. Inductor with"
        f" frozen weights is a fourth one on {INDUCTOR_NETWORKS} networks, chosen by seed.",
        f"- ncnn, converted by pnnx, and zentorch run {RARE_NETWORKS} networks, chosen by seed."
        " MNN is not on the board: [migrating.md](migrating.md) compares it.",
        "- With `--isa avx2`, torchalgo, PyTorch and OpenVINO's convolutions use AVX2 only."
        " OpenVINO's other operations keep no limit. ONNX Runtime has none, so it is left out.",
        "",
        "The first table has geometric means of ratios, the worst ratio, and how many networks are"
        " *lost*: on these, ONNX Runtime or OpenVINO is faster. The other tables list all losses,"
        " also those to PyTorch, ncnn and zentorch. [The tables of all networks](records/board.md)"
        " have every time.",
        "",
        "- *Left to PyTorch* is the part of a call that is not planned; up to 2026-11-25 with"
        " torchalgo's own attention.",
        "- *Layers that lose most* are planned layers that take longer than the faster of ATen and"
        " OpenVINO, each timed alone by bench_layers.py: how much longer, and their own time.",
        "",
        "The page is made by `python benchmarks/make_tables.py board`."
        " [benchmarks.md](benchmarks.md) has the networks on which the kernels were tuned."
        " [glossary.md](glossary.md) explains the terms.",
        "",
        *(overview(groups) if groups else ["No network has been measured yet."]),
    ]
    for group in groups:
        lines += loss_section(group, layers)
    return "\n".join(lines) + "\n"


def make_tables(records: Sequence[Record]) -> str:
    """docs/records/board.md."""
    lines = [
        MADE,
        "# The board: all networks",
        "",
        "[The board](../board.md) says how the times were taken, and explains ratios and what is"
        " *left to PyTorch*. *Single calls* are the minimum in ms, then the median and the 95th"
        " percentile divided by it. The A/A control compares even rounds with odd ones.",
    ]
    for group in sections(records).values():
        lines += table_section(group)
    return "\n".join(lines) + "\n"
