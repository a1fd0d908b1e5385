# SPDX-License-Identifier: BSD-3-Clause
"""Compares families of algorithms in their layouts on 3x3 convolutions of known networks.

    python benchmarks/bench_layouts.py               # measures all convolutions: 5 minutes
    python benchmarks/bench_layouts.py --quick       # one convolution: seconds
    python benchmarks/bench_layouts.py --table       # prints tables of the last records

A family is an algorithm in one layout. Its fastest variant is found first; then the families take
turns in rounds. A ratio is the median over the rounds of a family's time over that of Winograd in
nChw16c in the same round. Weights come from memory, as in a network. Each convolution runs in a
process of its own. Appends one JSON line per convolution to benchmarks/results/layouts.jsonl.

The question comes from triNNity's authors (Anderson & Gregg 2018, CGO, pp. 340-351), who found
Winograd fastest in nhwc and im2col in nchw: there the layout decides with the algorithm.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import harness
from pages import table
from torchalgo import _C
from torchalgo._base.stats import cost_of_samples, is_faster

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
LIMIT_S = 600.0  # of one convolution


def problem_of(c: int, k: int, size: int) -> str:
    return f"fwd_f32_n1c{c}h{size}w{size}_k{k}r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu"


def times_us(problem: str, primitives: Sequence[Any], rounds: int, *, race: bool) -> list[float]:
    """Returns one time per primitive, all of which were measured in turns."""
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


def measure(layer: str, rounds: int, threads: int) -> harness.Record:
    """The record of one convolution in this process."""
    torch.set_num_threads(threads)
    problem = problem_of(*SHAPES[layer])
    fastest = fastest_of(problem)
    taken = [times_us(problem, list(fastest.values()), SAMPLES, race=False) for _ in range(rounds)]
    wall = dict(zip(fastest, zip(*taken, strict=True), strict=True))
    return {
        "schema": 1, "layer": layer, "problem": problem,
        "primitives": {family: primitive.name for family, primitive in fastest.items()},
        "wall_us": {family: [round(us, 1) for us in times] for family, times in wall.items()},
        "threads": threads, "isa": _C.cpu_device().isa,
    }  # fmt: skip


def ratios(wall_us: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns each family's time over the first one's: the median over the rounds."""
    return {family: is_faster(times, wall_us[FIRST]).ratio for family, times in wall_us.items()}


def layout_table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a Markdown table; the smallest ratio of a row is bold."""
    others = [family for family in FAMILIES if family != FIRST]
    rows = []
    for line in lines:
        found = ratios(line["wall_us"])
        least = min(found.values())
        cells = [f"{statistics.median(line['wall_us'][FIRST]):.0f} us"]
        cells += [f"{found[family]:.2f}" if family in found else "-" for family in others]
        for i, family in enumerate(FAMILIES):
            if found.get(family) == least:
                cells[i] = f"**{cells[i]}**"
        c, k, size = SHAPES[line["layer"]]
        rows.append([line["layer"], f"{c}, {k}, {size}", *cells])
    return table(["layer", "c, k, h = w", FIRST, *others], rows)


def main() -> int:
    parser = harness.make_parser(__doc__, harness.RESULTS / "layouts.jsonl", can_resume=True)
    parser.add_argument("--threads", type=harness.count, default=1, help="of each process")
    parser.add_argument("--rounds", type=harness.count, default=15, help="per convolution")
    parser.add_argument("--quick", action="store_true", help="one convolution only")
    parser.add_argument("--table", action="store_true", help="measure nothing; print the records")
    args = parser.parse_args()
    if args.table:
        lines = harness.read_lines(args.out)
        for isa, threads in sorted({(line["isa"], line["threads"]) for line in lines}):
            own = [line for line in lines if (line["isa"], line["threads"]) == (isa, threads)]
            last = {line["layer"]: line for line in own}
            rows = layout_table(list(last.values()))
            print(f"{isa}, threads: {threads}", "", *rows, "", sep="\n")
        return 0
    layers = ["ResNet-50 layer4"] if args.quick else list(SHAPES)
    same = {"threads": args.threads}
    return harness.measure_each(
        measure, {layer: (layer, args.rounds, args.threads) for layer in layers}, out=args.out,
        limit_s=LIMIT_S, env=harness.thread_env(args.threads),
        done=harness.done_before(args.out, "layer", same) if args.resume else {},
    ).status  # fmt: skip


if __name__ == "__main__":
    harness.run_script(main)
