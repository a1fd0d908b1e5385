# SPDX-License-Identifier: BSD-3-Clause
"""Ratios and tables of what bench_load.py measured."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence

from compare import rounded
from harness import Record
from pages import OWN
from torchalgo._base.stats import is_faster
from torchalgo._ir.plan.text_table import text_table

WHAT = {"calls_per_s": "calls per second in all", "median_ms": "median ms", "p95_ms": "95 % ms"}

Results = Mapping[str, Mapping[str, Sequence[Record]]]  # turns by load, by engine, by round


def by_round(turns: Sequence[Record], what: str) -> list[float]:
    """Returns one value for each round: the sum of calls, or the median of the processes' times."""
    join = sum if what == "calls_per_s" else statistics.median
    return [join(turn[what]) for turn in turns]


def ratios(results: Results) -> dict[str, dict[str, list[float]]]:
    """Returns ratios by title, by engine: the median of the rounds, with its 95 % interval."""
    found: dict[str, dict[str, list[float]]] = {}

    def add(title: str, a: Mapping[str, list[float]], b: Mapping[str, list[float]]) -> None:
        found[title] = {e: rounded(is_faster(a[e], b[e])) for e in a if e in b}

    values = {
        load: {what: {e: by_round(turns, what) for e, turns in own.items()} for what in WHAT}
        for load, own in results.items()
    }
    for load, own in values.items():
        alone = re.sub(r"x\d+", "x1", load)  # the same with one thread
        if alone != load and alone in values:
            what = "calls_per_s"
            add(f"{load} over {alone}, {WHAT[what]}", own[what], values[alone][what])
        if "@" in load:
            title = f"{load}, {WHAT['p95_ms']} over {WHAT['median_ms']}"
            add(title, own["p95_ms"], own["median_ms"])
        for what in ["median_ms", "p95_ms"] if load.startswith("1x") else ["calls_per_s"]:
            peers = {engine: values for engine, values in own[what].items() if engine != OWN}
            if peers and OWN in own[what]:
                title = f"{load}, {WHAT[what]}, {OWN} over"
                add(title, dict.fromkeys(peers, own[what][OWN]), peers)
    return found


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def show(record: Record) -> None:
    """Prints the tables of a record, its ratios, and who else used the processors."""
    names = [engine for engine in record["engines"] if engine not in record["failures"]]
    for what, title in WHAT.items():
        rows = [[f"{record['network']}, {title}", *names]]
        for load, own in record["loads"].items():
            rounds = [by_round(own[engine], what) for engine in names]
            middle = [number(statistics.median(values)) for values in rounds]
            ends = [f"[{number(min(values))}, {number(max(values))}]" for values in rounds]
            rows.append([load, *map(" ".join, zip(middle, ends, strict=True))])
        print("\n".join(text_table(rows, right=range(1, len(names) + 1))), end="\n\n")
    rows = [["ratio", *names]]
    for title, own in record["ratios"].items():
        cells = ["{:.2f} [{:.2f}, {:.2f}]".format(*own[e]) if e in own else "" for e in names]
        rows.append([title, *cells])
    print("\n".join(text_table(rows, right=range(1, len(names) + 1))), end="\n\n")
    for engine, by_load in record["engines"].items():
        for load, facts in by_load.items():
            if facts.get("runs") == "baseline":  # a busy machine may have misled the tuning
                print(
                    f"in {load}, {engine} runs PyTorch: the plan was not faster when it was tuned"
                )
            if left := facts.get("left"):
                print(f"in {load}, {engine} leaves {left:.1%} of the predicted time to PyTorch")
    turns = [turn for own in record["loads"].values() for each in own.values() for turn in each]
    for key, who in (
        ("idle_cpus", "processes that should sleep"),
        ("other_cpus", "other programs"),
    ):
        used = [turn[key] for turn in turns]
        middle, most = statistics.median(used), max(used)
        print(f"{who} used {middle:.2f} processors in the median turn, at most {most:.2f}")
