# SPDX-License-Identifier: BSD-3-Clause
"""Compares engines or plans that were timed in the same rounds.

    python benchmarks/compare.py local_optimum best_single_layout
    python benchmarks/compare.py inductor --threads 1 --each

Reads the last record of each network and setting that bench_models.py wrote and prints, for each
setting, the time of each engine named over the time of torchalgo's plan. A ratio is the median of
the rounds' ratios, with its bootstrap 95 % interval. An engine is FASTER or SLOWER only if the
interval excludes 1, otherwise it is UNCLEAR. The line "A/A control" compares the plan with itself,
timed a second time: what differs there is noise. Takes seconds. Nothing is timed or written.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import TypeVar

from harness import RESULTS, Record, count, make_parser, run_script
from pages import OWN, TableError, read_records, setting_of
from torchalgo._base.stats import Faster, is_faster

LEAST_ROUNDS = 7
CONTROL = "torchalgo_again"  # the plan, timed a second time

Time = TypeVar("Time")


def in_rounds(
    takers: Mapping[str, Callable[[], Time]],
    rounds: int,
    budget_s: float = float("inf"),
    now_s: Callable[[], float] = time.monotonic,
) -> dict[str, list[Time]]:
    """Calls each taker once per round and returns what each gave, one value per round.

    The order rotates from round to round, so that a slow phase of the machine hits all alike.
    result[a][i] and result[b][i] are a pair. After `budget_s` seconds no further round begins, once
    LEAST_ROUNDS were taken.
    """
    names = list(takers)
    taken: dict[str, list[Time]] = {name: [] for name in names}
    started = now_s()
    for turn in range(rounds):
        if turn >= LEAST_ROUNDS and now_s() - started > budget_s:
            break
        first = turn % len(names) if names else 0
        for name in names[first:] + names[:first]:
            taken[name].append(takers[name]())
    return taken


def control_of(times: Sequence[float]) -> Faster:
    """Compares the even rounds of one engine with its odd rounds: an A/A control."""
    half = len(times) // 2
    return is_faster(times[0::2][:half], times[1::2][:half])


def ratio_of_starts(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> list[float]:
    """Returns the median of a / b over all rounds and its 95 % interval, as records keep them.

    The interval is a bootstrap that draws starts and then their rounds, because the times of one
    start of a process resemble each other.

    Args:
        a: times by start and round; those of b are of the same starts and rounds.
    """
    ratios = [[x / y for x, y in zip(*pair, strict=True)] for pair in zip(a, b, strict=True)]
    rng = random.Random(0)
    medians = sorted(
        statistics.median(
            ratio
            for start in rng.choices(ratios, k=len(ratios))
            for ratio in rng.choices(start, k=len(start))
        )
        for _ in range(2000)
    )
    middle = statistics.median(ratio for start in ratios for ratio in start)
    return [round(value, 4) for value in (middle, medians[50], medians[1949])]


def geometric_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Returns the geometric mean of at least three ratios and its 95 % interval.

    The interval is Student's for the logarithms. Its quantile is known to 0.1 % from 6 ratios on.
    Source: Abramowitz & Stegun 1964, Handbook of Mathematical Functions, 26.7.5.
    """
    logs, n, z = [math.log(ratio) for ratio in ratios], len(ratios) - 1, 1.959964
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    mean, half = statistics.fmean(logs), t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def rounded(result: Faster) -> list[float]:
    """Returns ratio, low and high as records keep them."""
    return [round(value, 4) for value in (result.ratio, result.low, result.high)]


def said(result: Faster) -> str:
    """Spells a comparison: "1.203x [1.187, 1.214] SLOWER"."""
    return f"{result.ratio:.3f}x [{result.low:.3f}, {result.high:.3f}] {result.verdict.upper()}"


def compared(
    record: Record, peer: str | None, own: str | None = OWN, clock: str = "wall_us"
) -> Faster | None:
    """Time of `peer` over time of `own`, paired by round; None if one of them did not run."""
    peer_us, own_us = record[clock].get(peer), record[clock].get(own)
    return is_faster(peer_us, own_us) if peer_us and own_us else None


def comparisons(records: Iterable[Record], engine: str) -> dict[str, Faster]:
    """Compares an engine with torchalgo's plan in each network that has times of both."""
    results = {record["network"]: compared(record, engine) for record in records}
    return {network: result for network, result in results.items() if result is not None}


def summary(results: Mapping[str, Faster]) -> str:
    """Spells the geometric mean, the extremes and how often each verdict came."""
    ratios = [result.ratio for result in results.values()]
    verdicts = [result.verdict for result in results.values()]
    counts = ", ".join(f"{verdicts.count(v)} {v.upper()}" for v in ("faster", "slower", "unclear"))
    return (
        f"networks: {len(ratios)}, mean {geometric_mean(ratios):.3f},"
        f" {min(ratios):.3f} to {max(ratios):.3f} ({counts})"
    )


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("engines", nargs="+", metavar="ENGINE", help="as the records call them")
    parser.add_argument("--threads", type=count, help="only records with so many threads")
    parser.add_argument("--each", action="store_true", help="a line per network too")
    parser.add_argument(
        "--records", type=Path, default=RESULTS / "models.jsonl", help="of bench_models.py"
    )
    args = parser.parse_args()
    try:
        records = read_records([args.records], "models")
    except TableError as problem:
        parser.error(str(problem))
    known = {name for record in records for name in record["wall_us"]} - {OWN, CONTROL}
    if unknown := [name for name in args.engines if name not in known]:
        parser.error(f"expected some of {', '.join(sorted(known))}; got {', '.join(unknown)}")
    chosen = [r for r in records if args.threads in (None, r["threads"])]
    for setting in sorted(set(map(setting_of, chosen))):
        own = [record for record in chosen if setting_of(record) == setting]
        for engine in (*args.engines, CONTROL):
            results = comparisons(own, engine)
            title = "A/A control" if engine == CONTROL else engine
            if results:
                print(f"{setting.title}: {title}: {summary(results)}")
            for network, result in results.items() if args.each else ():
                print(f"  {network:24} {said(result)}")
    return 0


if __name__ == "__main__":
    run_script(main)
