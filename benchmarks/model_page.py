# SPDX-License-Identifier: BSD-3-Clause
"""Makes docs/benchmarks.md from the records of bench_models.py.

Nothing is left out: a network that loses is marked, an engine that failed has a footnote.
"""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from compare import compared
from harness import Record
from pages import OWN, TableError, ms, ratio_cell, setting_of, table
from torchalgo._base.stats import Faster

START = "<!-- table: benchmarks/make_tables.py models -->"
END = "<!-- end of table -->"
PYTORCH = ("eager", "channels_last", "optimize_for_inference")
EXPORTED = ("onnxruntime", "openvino")
SPINNING = "onnxruntime_spinning"  # the other one has its idle threads asleep
FASTER = ", the faster of on and off"
BEST_PYTORCH = (*PYTORCH, "inductor")
OTHERS = (*BEST_PYTORCH, *EXPORTED)
ENGINES = (OWN, *OTHERS)
TITLES = {
    "optimize_for_inference": "optimize_for_<wbr>inference",
    "inductor": "Inductor",
    "onnxruntime": "ONNX Runtime",
    SPINNING: "ONNX Runtime, spinning",
    "openvino": "OpenVINO",
}
MAX_REL_ERROR = 1e-5


# ---- records -------------------------------------------------------------------------------------


def check_times(record: Record, place: str) -> None:
    """Checks for the times without which there is no table."""
    if not record.get("wall_us", {}).get(OWN):
        raise TableError(f"{place}: no times of {OWN}")


def with_faster_runtime(record: Record) -> Record:
    """The record with the faster of ONNX Runtime's two ways as "onnxruntime".

    Its "ways" says which one that is, and which were timed.
    """
    name = best_of(record, ("onnxruntime", SPINNING))
    if name is None:
        return record
    way = f"spinning {'on' if name == SPINNING else 'off'}"
    has_both = all(record["wall_us"].get(each) for each in ("onnxruntime", SPINNING))
    ways = f"{way}{FASTER}" if has_both else f"timed with {way} only"
    changed = {
        field: {**record[field], "onnxruntime": record[field][name]}
        for field in ("wall_us", "cpu_us", "engines")
    }
    changed["engines"]["onnxruntime"] = {**changed["engines"]["onnxruntime"], "ways": ways}
    return {**record, **changed}


def best_of(record: Record, engines: Sequence[str], clock: str = "wall_us") -> str | None:
    """The engine with the least median; None if none of them ran."""
    ran = [name for name in engines if record[clock].get(name)]
    return min(ran, key=lambda name: statistics.median(record[clock][name]), default=None)


def geometric_mean(ratios: Iterable[Faster | None]) -> str:
    """Returns the mean of the ratios that there are, with their number if some are missing."""
    given = list(ratios)
    known = [each.ratio for each in given if each is not None]
    if not known:
        return "-"
    among = "" if len(known) == len(given) else f" (of {len(known)})"
    return f"**{statistics.geometric_mean(known):.2f}**{among}"


# ---- cells ---------------------------------------------------------------------------------------


@dataclass
class Footnotes:
    """Numbered remarks of the whole page; equal remarks share a number."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """The reference to `text`."""
        if text not in self.texts:
            self.texts.append(text)
        return f"<sup>{self.texts.index(text) + 1}</sup>"


def control_cell(result: Faster | None) -> str:
    """The A/A control: anything but no difference is an alarm."""
    if result is None:
        return "-"
    text = f"{result.ratio:.3f} [{result.low:.3f}, {result.high:.3f}]"
    return text if result.verdict == "unclear" else f"{text} **differs**"


def error_cell(rel_error: float) -> str:
    """Relative L2, with a mark above the bound that the project promises."""
    good = rel_error <= MAX_REL_ERROR  # false for NaN
    return f"{rel_error:.1e}" if good else f"{rel_error:.1e} **above {MAX_REL_ERROR:.0e}**"


def engine_cell(record: Record, name: str, notes: Footnotes) -> str:
    """Median ms, bold for the best of all and of PyTorch; '-' with a footnote if it did not run."""
    times = record["wall_us"].get(name)
    engine = record["engines"].get(name, {})
    if not times:
        failure = engine.get("failure")
        text = f"{TITLES.get(name, name)} was not run in this record"
        if failure:
            text = f"{TITLES.get(name, name)}: {html.escape(failure, quote=False)}"
        return "-" + notes.mark(text)
    bold = name in (best_of(record, ENGINES), best_of(record, PYTORCH))
    text = ms(statistics.median(times))
    text = f"**{text}**" if bold else text
    if ways := engine.get("ways"):
        text += notes.mark(f"{TITLES[name]}: {ways}")
    if name == OWN and engine.get("runs") == "baseline":
        text += notes.mark("plain PyTorch was faster during tuning, so the frozen model runs")
    return text


def ratio_table(
    records: Sequence[Record],
    ratios: dict[str, Callable[[Record], Faster | None]],
    others: dict[str, Callable[[Record], str]],
    loss: str = "slower",
) -> list[str]:
    """One row per network: ratios, then other cells; at the bottom the ratios' geometric means."""
    found = {title: [ratio(record) for record in records] for title, ratio in ratios.items()}
    rows = [
        [
            record["network"],
            *(ratio_cell(column[i], loss) for column in found.values()),
            *(cell(record) for cell in others.values()),
        ]
        for i, record in enumerate(records)
    ]
    means = [geometric_mean(column) for column in found.values()]
    rows.append(["geometric mean", *means, *[""] * len(others)])
    return table(["network", *ratios, *others], rows)


# ---- the page ------------------------------------------------------------------------------------


def time_table(records: Sequence[Record], notes: Footnotes) -> list[str]:
    """Table A: network x engine, median ms."""
    rows = [[r["network"], *(engine_cell(r, name, notes) for name in ENGINES)] for r in records]
    return table(["network", *(TITLES.get(name, name) for name in ENGINES)], rows)


def peer_table(records: Sequence[Record]) -> list[str]:
    """Table B: how many times as long the others take."""
    ratios = {
        "over the best of all": lambda r: compared(r, best_of(r, OTHERS)),
        "over PyTorch": lambda r: compared(r, best_of(r, PYTORCH)),
        "over Inductor": lambda r: compared(r, "inductor"),
        "over ONNX Runtime and OpenVINO": lambda r: compared(r, best_of(r, EXPORTED)),
    }
    others = {
        "A/A control": lambda r: control_cell(compared(r, "torchalgo_again")),
        "relative L2": lambda r: error_cell(r["rel_error"]),
    }
    return ratio_table(records, ratios, others)


def gain_table(records: Sequence[Record]) -> list[str]:
    """Table C: where the gain comes from, and how good the prediction was."""

    def predicted(record: Record) -> str:
        us = record["engines"].get(OWN, {}).get("predicted_us")
        if us is None:
            return "-"
        measured = statistics.median(record["wall_us"][OWN])
        return f"{ms(us)} / {ms(measured)} = {us / measured:.2f}"

    ratios = {
        "PyTorch / ATen-only": lambda r: compared(r, best_of(r, PYTORCH), "aten_only"),
        "ATen-only / local": lambda r: compared(r, "aten_only", "local_optimum"),
        "local / plan (globality)": lambda r: compared(r, "local_optimum"),
        "ATen-only / plan": lambda r: compared(r, "aten_only"),
        "single layout / plan": lambda r: compared(r, "best_single_layout"),
    }
    others = {
        "predicted / measured ms": predicted,
        "proof": lambda r: str(r["engines"].get(OWN, {}).get("status", "-")),
    }
    return ratio_table(records, ratios, others, loss="loss")


def cpu_table(records: Sequence[Record]) -> list[str]:
    """Time of the process on all its threads: a second thread shows here."""

    def median_ms(record: Record, name: str | None) -> str:
        times = record["cpu_us"].get(name)
        return ms(statistics.median(times)) if times else "-"

    def over(engines: Sequence[str]) -> Callable[[Record], Faster | None]:
        return lambda r: compared(r, best_of(r, engines, "cpu_us"), clock="cpu_us")

    ratios = {
        "over PyTorch": over(PYTORCH),
        "over Inductor": over(["inductor"]),
        "over ONNX Runtime and OpenVINO": over(EXPORTED),
    }
    others = {
        "PyTorch, ms": lambda r: median_ms(r, best_of(r, PYTORCH, "cpu_us")),
        "torchalgo, ms": lambda r: median_ms(r, OWN),
    }
    return ratio_table(records, ratios, others)


def losses(records: Sequence[Record]) -> list[str]:
    """A list item per engine that is faster than torchalgo somewhere."""
    lines = []
    for name in ENGINES[1:]:
        results = [(r["network"], compared(r, name)) for r in records]
        lost = [(net, c) for net, c in results if c is not None and c.verdict == "faster"]
        if lost:
            names = ", ".join(f"{net} ({c.ratio:.2f})" for net, c in lost)
            ran = sum(c is not None for _, c in results)
            lines.append(f"- {TITLES.get(name, name)} on {len(lost)} of {ran}: {names}")
    return lines or ["None on any of these networks, with 95 % confidence."]


def versions(record: Record) -> str:
    """Describes the machine and the versions of a record."""
    machine, git = record["machine"], record["git"]
    peers = {
        TITLES[name]: record["engines"].get(name, {}).get("version") or "not run"
        for name in EXPORTED
    }
    libraries = {"torch": machine["torch"], "torchalgo": machine["torchalgo"], **peers}
    return (
        f"{machine['cpu']} ({machine['isa']}), {machine['cores']} cores,"
        f" {machine['memory_gib']} GiB; "
        + ", ".join(f"{name} {version}" for name, version in libraries.items())
        + f"; commit {git['commit'] or 'unknown'}{' with changes' if git['dirty'] else ''}"
        + f"; {record['date']}"
    )


def versions_list(records: Sequence[Record]) -> list[str]:
    """Each machine with its versions; a table with the records of each if they differ."""
    groups: dict[str, list[str]] = {}
    for record in records:
        title = f"{record['network']} ({setting_of(record).title})"
        groups.setdefault(versions(record), []).append(title)
    if len(groups) == 1:
        return [f"- {next(iter(groups))}"]
    rows = [[text, ", ".join(titles)] for text, titles in sorted(groups.items())]
    return table(["machine and versions", "records"], rows, right=":--")


def how_taken(records: Sequence[Record]) -> list[str]:
    """The head of the page."""
    rounds = sorted({len(r["wall_us"][OWN]) for r in records})
    inner = sorted({r["inner"] for r in records})
    load = max(max(r["load_before"], r["load_after"]) for r in records)
    spelled = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"{rounds[0]}"
    timed = " or ".join(map(str, inner))
    return [
        "<!-- made by benchmarks/make_tables.py from the records of benchmarks/bench_models.py -->",
        "# Benchmarks: whole networks",
        "",
        "The networks are torchvision's, with random weights and batch-norm statistics, in f32."
        " The batch size is 1 if nothing else is said.",
        "",
        *summary(records),
        "",
        "## How the times were taken",
        "",
        f"- Rounds are interleaved, {spelled} per network. In each round every engine runs once"
        f" untimed and then {timed} times timed. The order of the engines rotates. Before each"
        " engine there is a pause, so that the idle threads of the other engines are asleep.",
        "- ONNX Runtime is timed with spinning idle threads and with sleeping ones, and the"
        " faster of the two counts. A footnote says which were timed.",
        "- Times are medians. A ratio is the time of the other engine divided by the time of"
        " torchalgo. Each ratio is the median of the rounds' ratios, with a bootstrap 95 %"
        " interval in brackets. Below 1 torchalgo is **slower**. If the interval contains 1,"
        " there is *no difference*.",
        "- The A/A control is the same plan, timed a second time. Relative L2 is the error"
        " compared with the model in f64. Tuning and compilation are not in the times.",
        "",
        "[board.md](board.md) has networks that were drawn by seed."
        " [layers.md](layers.md) shows layer by layer where a network's time is lost."
        " [glossary.md](glossary.md) explains the terms.",
        "",
        f"Machine and versions (the 1-minute load was at most {load:.1f} before and after):",
        "",
        *versions_list(records),
    ]


def section(records: Sequence[Record], notes: Footnotes) -> list[str]:
    """The tables of one setting."""
    setting = setting_of(records[0])
    lines = [
        f"## {setting.title[0].upper()}{setting.title[1:]}",
        "",
        "The table shows the median time of a run in ms. Bold are the fastest engine and the"
        " fastest of the PyTorch engines (eager, channels_last, optimize_for_inference).",
        "",
        *time_table(records, notes),
        "",
        "The next table shows how many times as long as torchalgo the other engines take. It"
        " compares with the fastest of all other engines, the fastest PyTorch engine, Inductor"
        " with frozen weights, and the faster of ONNX Runtime and OpenVINO.",
        "",
        *peer_table(records),
        "",
        "Engines that are faster than torchalgo (their time divided by torchalgo's time):",
        "",
        *losses(records),
        "",
        "The third table shows where the gain comes from. These were timed in the same rounds, and"
        " the plans are made from the same costs:",
        "",
        "- *PyTorch*: the fastest of the PyTorch engines.",
        "- *ATen-only*: the best plan that uses only ATen's algorithms. It chooses algorithms and"
        " layouts, but no kernel of torchalgo.",
        "- *Local*: each convolution's own fastest primitive. It uses torchalgo's kernels, but"
        " chooses them one by one.",
        "- *Single layout*: the best plan in which all operations have the same layout.",
        "- *Plan*: the plan of torchalgo, in which all primitives are chosen together.",
        "",
        "The product of the first three ratios is the whole gain, except that medians of ratios"
        " do not multiply exactly. The other two ratios compare the plan with the ATen-only plan"
        " and with the single layout. A ratio below 1 is a **loss**.",
        "",
        *gain_table(records),
    ]
    if setting.threads == 1:
        lines += ["", "CPU time of the process, in the same rounds:", "", *cpu_table(records)]
    return lines


def make_page(records: Sequence[Record]) -> str:
    """docs/benchmarks.md."""
    notes = Footnotes()
    lines = how_taken(records)
    for setting in sorted(set(map(setting_of, records))):
        lines += ["", *section([r for r in records if setting_of(r) == setting], notes)]
    if notes.texts:
        lines += ["", "## Footnotes", ""]
        for text in notes.texts:
            lines += [f"- {notes.mark(text)} {text}"]
    return "\n".join(lines) + "\n"


# ---- summary -------------------------------------------------------------------------------------


def usual_records(records: Sequence[Record]) -> list[Record]:
    """Chooses the records of batch 1 with all vectors and the number of threads that has the most
    networks; if several have as many, the most threads."""
    usual = [r for r in records if setting_of(r)[:2] == ("", 1)]
    counts = statistics.multimode(r["threads"] for r in usual)
    return [r for r in usual if r["threads"] == max(counts)]


def summary(records: Sequence[Record]) -> list[str]:
    """The first table: networks x (best other engine, torchalgo, ratios), with a caption."""
    chosen = usual_records(records)
    peers = [best_of(record, OTHERS) for record in chosen]
    ratios = [compared(r, peer) for r, peer in zip(chosen, peers, strict=True)]
    over_torch = [compared(r, best_of(r, BEST_PYTORCH)) for r in chosen]
    rows = []
    for record, peer, *pair in zip(chosen, peers, ratios, over_torch, strict=True):
        peer_ms = "-"
        if peer is not None:
            title = TITLES.get(peer, peer).replace("<wbr>", "")
            peer_ms = f"{ms(statistics.median(record['wall_us'][peer]))} ({title})"
        own_ms = ms(statistics.median(record["wall_us"][OWN]))
        rows.append([record["network"], peer_ms, own_ms, *map(ratio_cell, pair)])
    means = [geometric_mean(column) for column in (ratios, over_torch)]
    rows.append(["geometric mean", "", "", *means])
    head = ["network", "best other engine, ms", "torchalgo, ms", "ratio [95 % interval]"]
    return [
        "## Summary",
        "",
        f"Batch 1, f32, {setting_of(chosen[0]).title}. The table compares torchalgo with the"
        " fastest of these engines: eager, channels_last, optimize_for_inference, Inductor, ONNX"
        f" Runtime ({_ways(chosen)}) and OpenVINO. A ratio may differ a little from the quotient of"
        " the two times. The last column compares with the fastest of the first four.",
        "",
        *table([*head, "ratio over PyTorch"], rows),
        "",
        shares(chosen),
    ]


def _ways(records: Sequence[Record]) -> str:
    """Describes how ONNX Runtime's idle threads waited in these records."""
    found = {r["engines"].get("onnxruntime", {}).get("ways", "not run") for r in records}
    if all(ways.endswith(FASTER) for ways in found):
        return "its idle threads spinning or asleep, the faster"
    return "spinning off" if found == {"timed with spinning off only"} else "see docs/benchmarks.md"


def shares(records: Sequence[Record]) -> str:
    """Splits the gain: own kernels, the choice among ATen's, the choice of all layers together."""

    def factor(slow: str, fast: str) -> float:
        found = [compared(r, slow or best_of(r, PYTORCH), fast) for r in records]
        known = [each.ratio for each in found if each is not None]
        return statistics.geometric_mean(known) if known else 1.0

    factors = {
        "torchalgo's kernels": factor("aten_only", "local_optimum"),
        "choosing among PyTorch's own convolutions": factor("", "aten_only"),
        "choosing all layers together instead of one by one": factor("local_optimum", OWN),
    }
    most, *others = sorted(factors, key=lambda text: -factors[text])
    rest = " and ".join(f"{factors[text]:.2f} for {text}" for text in others)
    return (
        f"Most of the gain over PyTorch without Inductor comes from {most}: a factor of"
        f" {factors[most]:.2f} in the geometric mean. The other factors are {rest}."
    )


def replace_table(text: str, body: str, name: str = "README.md", start: str = START) -> str:
    """`text` with `body` between `start` and the next END."""
    if text.count(start) != 1:
        raise TableError(
            f"{name} holds {start!r} {text.count(start)} times, expected once: the table goes"
            f" between {start!r} and {END!r}"
        )
    before, rest = text.split(start)
    if END not in rest:
        raise TableError(f"{name} holds no {END!r} after {start!r}")
    return f"{before}{start}\n{body}\n{END}{rest.partition(END)[2]}"
