# SPDX-License-Identifier: BSD-3-Clause
"""Compares our gradients with respect to weights with PyTorch's, convolution by convolution.

    python benchmarks/bench_backward_filter.py            # measures all problems: 5 minutes
    python benchmarks/bench_backward_filter.py --quick    # one problem: seconds
    python benchmarks/bench_backward_filter.py --table    # prints a table of the last records

Our fastest primitive is found first. Then it takes turns with PyTorch's convolution in nchw and in
channels_last, in rounds. A ratio is the median over the rounds of the faster one of PyTorch's two
times over ours. Each problem runs in a process of its own. Appends one JSON line per problem and
round to benchmarks/results/backward_filter.jsonl.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

import harness
from pages import table
from torchalgo import _C
from torchalgo._base.stats import cost_of_samples

SHAPES = {  # the title: channels, height and width, output channels, filter, stride, groups
    "3x3, 64 @ 56": (64, 56, 64, 3, 1, 1),
    "3x3, 128 @ 28": (128, 28, 128, 3, 1, 1),
    "3x3, 256 @ 14": (256, 14, 256, 3, 1, 1),
    "3x3, 512 @ 7": (512, 7, 512, 3, 1, 1),
    "3x3 stride 2, 128 @ 56": (128, 56, 128, 3, 2, 1),
    "3x3 stride 2, 256 @ 28": (256, 28, 256, 3, 2, 1),
    "1x1, 64 to 256 @ 56": (64, 56, 256, 1, 1, 1),
    "1x1, 512 to 128 @ 28": (512, 28, 128, 1, 1, 1),
    "1x1, 1024 to 256 @ 14": (1024, 14, 256, 1, 1, 1),
    "1x1, 96 to 24 @ 56": (96, 56, 24, 1, 1, 1),
    "1x1 stride 2, 256 to 512 @ 56": (256, 56, 512, 1, 2, 1),
    "7x7 stride 2, 3 to 64 @ 224": (3, 224, 64, 7, 2, 1),
    "3x3 stride 2, 3 to 32 @ 224": (3, 224, 32, 3, 2, 1),
    "depthwise 3x3, 144 @ 56": (144, 56, 144, 3, 1, 144),
    "depthwise 3x3 stride 2, 144 @ 56": (144, 56, 144, 3, 2, 144),
    "3x3 in 4 groups, 128 @ 28": (128, 28, 128, 3, 1, 4),
}
PYTORCH = {"nchw": "aten.conv", "nhwc": "aten.conv.krsc"}  # the primitive of each layout
RACE_ROUNDS, SAMPLES = 5, 3
LIMIT_S = 600.0  # of one problem


def problem_of(title: str, batch: int) -> str:
    c, size, k, filter_size, stride, groups = SHAPES[title]
    pad = filter_size // 2
    return (
        f"bwd_filter_f32_n{batch}c{c}h{size}w{size}_k{k}r{filter_size}s{filter_size}"
        f"_st{stride}x{stride}_pad{pad}x{pad}_dil1x1_g{groups}"
    )


def times_us(problem: str, primitives: Sequence[Any], rounds: int, *, race: bool) -> list[float]:
    """Returns one time per primitive, all of which were measured in turns."""
    results = _C.measure(
        [(problem, primitive) for primitive in primitives],
        warmup=1, rounds=rounds, budget_s=20.0, race=race,
    )  # fmt: skip
    for primitive, result in zip(primitives, results, strict=True):
        if result.failure or not result.ns:
            raise SystemExit(f"{primitive.name} {problem}: {result.failure}")
    return [cost_of_samples(result.ns)[0] / 1000 for result in results]


def measure(title: str, batch: int, rounds: int, threads: int) -> list[harness.Record]:
    """Returns the records of one problem, which is measured in this process."""
    torch.set_num_threads(threads)
    problem = problem_of(title, batch)
    offered = _C.offers_of(problem)[0]
    ours = [p for p in offered if not _C.matches_name(p.name, "aten.conv")]
    raced = times_us(problem, ours, RACE_ROUNDS, race=True)
    best = min(zip(raced, ours, strict=True), key=lambda pair: pair[0])[1] if ours else None
    arms = {
        layout: next(p for p in offered if p.name == name and str(p.src) == layout)
        for layout, name in PYTORCH.items()
    }
    if best is not None:
        arms["ours"] = best
    records = []
    for turn in range(rounds):
        times = times_us(problem, list(arms.values()), SAMPLES, race=False)
        records.append({
            "schema": 1, "title": title, "problem": problem, "round": turn,
            "primitive": best and best.name, "layout": best and str(best.src),
            "wall_us": {arm: round(us, 1) for arm, us in zip(arms, times, strict=True)},
            "threads": threads, "isa": _C.cpu_device().isa,
        })  # fmt: skip
    return records


def gains(lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns how many times faster ours is than PyTorch's faster layout, in each round, sorted."""
    walls = [line["wall_us"] for line in lines]
    return sorted(min(wall[key] for key in PYTORCH) / wall["ours"] for wall in walls)


def problem_table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a Markdown table of records of one instruction set and number of threads."""
    rows = []
    for title in SHAPES:
        last: list[Mapping[str, Any]] = []
        for line in (line for line in lines if line["title"] == title):
            last = [line] if line["round"] == 0 else [*last, line]
        if not last or "ours" not in last[0]["wall_us"]:
            continue
        times = {
            arm: statistics.median(line["wall_us"][arm] for line in last)
            for arm in ("ours", *PYTORCH)
        }
        found = gains(last)
        spread = f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"
        name = f"`{last[0]['primitive']}` {last[0]['layout']}"
        rows.append([title, name, *(f"{us:.0f}" for us in times.values()), spread])
    return table(["problem", "ours", "us", "PyTorch, nchw", "channels_last", "gain"], rows)


def show(lines: Sequence[Mapping[str, Any]]) -> None:
    """Prints a table per instruction set and number of threads."""
    for isa, threads in sorted({(line["isa"], line["threads"]) for line in lines}):
        own = [line for line in lines if (line["isa"], line["threads"]) == (isa, threads)]
        print(f"{isa}, threads: {threads}", "", *problem_table(own), "", sep="\n")


def each(title: str, batch: int, rounds: int, threads: int) -> Iterator[harness.Record]:
    """Yields the records of one problem, for a child process."""
    yield from measure(title, batch, rounds, threads)


def main() -> int:
    parser = harness.make_parser(__doc__, harness.RESULTS / "backward_filter.jsonl")
    parser.add_argument("--threads", type=harness.count, default=1, help="of each process")
    parser.add_argument("--batch", type=harness.count, default=8, help="images")
    parser.add_argument("--rounds", type=harness.count, default=9, help="per problem")
    parser.add_argument("--only", default="", help="problems whose title has this text")
    parser.add_argument("--quick", action="store_true", help="one problem only")
    parser.add_argument("--table", action="store_true", help="measure nothing; print the records")
    args = parser.parse_args()
    if args.table:
        show(harness.read_lines(args.out))
        return 0
    titles = [title for title in SHAPES if args.only in title][: 1 if args.quick else None]
    lines: list[harness.Record] = []
    failed = False
    for title in titles:
        arguments = (title, args.batch, args.rounds, args.threads)
        env = harness.thread_env(args.threads)
        answer = harness.run_child(each, *arguments, limit_s=LIMIT_S, env=env)
        if answer.failure:
            failed = True
            harness.tell_failure(
                title, answer.failure, harness.repro_line(each, *arguments, env=env)
            )
            continue
        lines += [harness.record(args.out, line, show=lambda _: None) for line in answer.values]
    show(lines)
    return 1 if failed else 0


if __name__ == "__main__":
    harness.run_script(main)
