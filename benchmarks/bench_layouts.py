# SPDX-License-Identifier: BSD-3-Clause
"""Compares families of algorithms in their layouts on 3x3 convolutions of known networks.

    python benchmarks/bench_layouts.py               # measures, appends one record per convolution
    python benchmarks/bench_layouts.py --table       # prints tables of the last records

A family is an algorithm in one layout. Its fastest variant is found first; then the families take
turns in rounds. A ratio is the median over the rounds of a family's time over that of Winograd in
nChw16c in the same round. Weights come from memory, as in a network.

The question comes from triNNity's authors (Anderson & Gregg 2018, CGO, pp. 340-351), who found
Winograd fastest in nhwc and im2col in nchw: there the layout decides with the algorithm.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import git_state, machine_state, record

RESULTS = Path(__file__).resolve().parent / "results" / "layouts.jsonl"
FAMILIES = {  # the column's title: the algorithm and its layout
    "Winograd, nChw16c": ("cpu.winograd_f4x4_3x3", "nChw16c"),
    "Winograd, nhwc": ("cpu.winograd_f4x4_3x3_nhwc", "nhwc"),
    "im2col, nchw": ("cpu.im2col_gemm", "nchw"),
    "im2row, nhwc": ("cpu.im2row_gemm", "nhwc"),
    "direct, nChw16c": ("cpu.direct", "nChw16c"),
}
FIRST = next(iter(FAMILIES))
SHAPES = {  # the layer: channels in and out, height and width; 3x3, stride 1, padding 1
    "VGG-16 conv1_2": (64, 64, 224),
    "VGG-16 conv2_2": (128, 128, 112),
    "VGG-16 conv3_2": (256, 256, 56),
    "VGG-16 conv4_2": (512, 512, 28),
    "VGG-16 conv5_1": (512, 512, 14),
    "ResNet-50 layer1": (64, 64, 56),
    "ResNet-50 layer2": (128, 128, 28),
    "ResNet-50 layer3": (256, 256, 14),
    "ResNet-50 layer4": (512, 512, 7),
    "Inception v3 Mixed_5": (64, 96, 35),
    "Inception v3 Mixed_7": (448, 384, 8),
}
COLD_BYTES = 48 << 20  # read between two samples, so that weights come from memory
RACE_ROUNDS, SAMPLES = 5, 3


def problem_of(c: int, k: int, size: int) -> str:
    return f"fwd_f32_n1c{c}h{size}w{size}_k{k}r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu"


def times_us(problem: str, primitives: Sequence[Any], rounds: int, *, race: bool) -> list[float]:
    """Returns one time per primitive, all of which were measured in turns."""
    from torchalgo import _C
    from torchalgo._base.stats import cost_of_samples

    results = _C.measure(
        [(problem, primitive) for primitive in primitives],
        warmup=1, rounds=rounds, budget_s=10.0, cold_bytes=COLD_BYTES, race=race,
    )  # fmt: skip
    for primitive, result in zip(primitives, results, strict=True):
        if result.failure or not result.ns:
            raise SystemExit(f"bench_layouts: {primitive.name} {problem}: {result.failure}")
    return [cost_of_samples(result.ns)[0] / 1000 for result in results]


def fastest_of(problem: str) -> dict[str, Any]:
    """Returns the fastest primitive of each family that can run the problem."""
    from torchalgo import _C

    offered = _C.offers_of(problem)[0]
    fastest = {}
    for family, (algorithm, layout) in FAMILIES.items():
        own = [
            p for p in offered
            if _C.matches_name(p.name, algorithm) and {str(p.src), str(p.dst)} == {layout}
        ]  # fmt: skip
        if own:
            times = times_us(problem, own, RACE_ROUNDS, race=True)
            fastest[family] = min(zip(times, own, strict=True), key=lambda pair: pair[0])[1]
    return fastest


def measure(layer: str, problem: str, rounds: int) -> dict[str, Any]:
    fastest = fastest_of(problem)
    taken = [times_us(problem, list(fastest.values()), SAMPLES, race=False) for _ in range(rounds)]
    wall = dict(zip(fastest, zip(*taken, strict=True), strict=True))
    return {
        "schema": 1, "layer": layer, "problem": problem,
        "primitives": {family: primitive.name for family, primitive in fastest.items()},
        "wall_us": {family: [round(us, 1) for us in times] for family, times in wall.items()},
    }  # fmt: skip


def ratios(wall_us: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns each family's time over the first one's: the median over the rounds."""
    return {
        family: statistics.median(a / b for a, b in zip(times, wall_us[FIRST], strict=True))
        for family, times in wall_us.items()
    }


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a Markdown table; the smallest ratio of a row is bold."""
    others = [family for family in FAMILIES if family != FIRST]
    rows = [f"| layer | c, k, h = w | {FIRST} | {' | '.join(others)} |", "|---|---|" + "--:|" * 5]
    for line in lines:
        found = ratios(line["wall_us"])
        least = min(found.values())
        cells = [f"{statistics.median(line['wall_us'][FIRST]):.0f} us"]
        cells += [f"{found[family]:.2f}" if family in found else "-" for family in others]
        for i, family in enumerate(FAMILIES):
            if found.get(family) == least:
                cells[i] = f"**{cells[i]}**"
        c, k, size = SHAPES[line["layer"]]
        rows.append(f"| {line['layer']} | {c}, {k}, {size} | {' | '.join(cells)} |")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="measure nothing; print the records")
    args = parser.parse_args()
    if args.table:
        lines = [json.loads(line) for line in args.out.read_text().splitlines()]
        for isa, threads in sorted({(line["isa"], line["threads"]) for line in lines}):
            own = [line for line in lines if (line["isa"], line["threads"]) == (isa, threads)]
            last = {line["layer"]: line for line in own}
            print(f"{isa}, threads: {threads}", "", *table(list(last.values())), "", sep="\n")
        return 0
    import torch

    from torchalgo import _C

    torch.set_num_threads(args.threads)
    state = {
        "threads": args.threads, **git_state(), "isa": _C.cpu_device().isa,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }  # fmt: skip
    for layer, shape in SHAPES.items():
        record(
            args.out,
            {**measure(layer, problem_of(*shape), args.rounds), **state, **machine_state()},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
