# SPDX-License-Identifier: BSD-3-Clause
"""Tells from the records what choosing per layer, or one layout, costs in whole networks.

    python benchmarks/compare_layouts.py

Reads the last line of each network, batch, number of threads and instruction set in
benchmarks/results/models.jsonl. Prints times over the plan's, paired by round: the geometric mean
over the networks, the least and the most.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "models.jsonl"
PLANS = {"local_optimum": "each layer's fastest", "best_single_layout": "one layout"}

Setting = tuple[int, int, str]  # batch, threads, instruction set


def last_lines(path: Path) -> dict[tuple[str, Setting], dict[str, Any]]:
    lines = {}
    for line in map(json.loads, path.read_text().splitlines()):
        batch = int(line["input"].partition("x")[0])
        isa = line.get("isa_limit") or line["machine"].get("isa", "")
        lines[line["network"], (batch, line["threads"], isa)] = line
    return lines


def ratios(path: Path) -> dict[tuple[Setting, str], list[float]]:
    """Returns the medians of the networks for each setting and way to plan."""
    found = defaultdict(list)
    for (_, setting), line in last_lines(path).items():
        times = line["wall_us"]
        for plan in PLANS:
            pairs = zip(times.get(plan, []), times["torchalgo"], strict=False)
            found[setting, plan].append(statistics.median(a / b for a, b in pairs))
    return found


def main() -> None:
    for ((batch, threads, isa), plan), each in sorted(ratios(RESULTS).items()):
        print(
            f"batch {batch}, {threads} threads, {isa}: {PLANS[plan]}: {len(each)} networks, mean"
            f" {statistics.geometric_mean(each):.3f}, {min(each):.3f} to {max(each):.3f}"
        )


if __name__ == "__main__":
    main()
