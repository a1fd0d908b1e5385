# SPDX-License-Identifier: BSD-3-Clause
"""The C++ programs of examples/: a .pt2 file in nativert beside a .pt file in torchalgo's runner.

    make example                                # builds the programs
    python benchmarks/bench_cpp.py resnet18 mobilenet_v2 --threads 2

Each network is tuned once, and its plan is saved as .pt and as .pt2. Then processes take turns:
cpp_deploy runs the .pt file, cpp_pt2 the .pt2 file, each for some seconds. A record has the mean
time of a call for each process, and tells whether both compute the same bits.

Takes 1 to 2 minutes per network. Appends one JSON line per network to
benchmarks/results/cpp.jsonl.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

import torch

import harness
from bench_models import tuned
from compare import said
from networks import NAMES, network_name, random_input, random_network
from pages import table
from torchalgo._base.stats import is_faster

LIMIT_S = 900.0  # of one network
BUILD = Path(__file__).parents[1] / "build"
QUICK = {"rounds": 2, "seconds": 0.2, "tune_s": 8.0}


def call(kind: str, folder: Path, sizes: str, calls: int) -> tuple[str, float]:
    """Runs the program of a file in a process. Returns its output and the ms of a call."""
    program = BUILD / ("cpp_deploy/cpp_deploy" if kind == "pt" else "cpp_pt2/cpp_pt2")
    copy = [str(folder / "copy.pt")] if kind == "pt" else []  # cpp_deploy writes one
    done = subprocess.run(
        [program, folder / f"model.{kind}", sizes, *copy, str(calls)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    taken = re.search(r"([\d.]+) ms per call", done.stderr)
    assert taken is not None, done.stderr
    return done.stdout, float(taken[1])


def run_one(name: str, options: harness.Record) -> harness.Record:
    """The record of one network in this process."""
    torch.set_num_threads(options["threads"])
    x = random_input(name)
    optimized, entry = tuned(lambda: random_network(name), x, options["tune_s"])
    sizes = "x".join(map(str, x.shape))
    times: dict[str, list[float]] = {"pt": [], "pt2": []}
    outputs = set()
    with tempfile.TemporaryDirectory() as folder:
        for kind in times:
            optimized.save(Path(folder, f"model.{kind}"))
        _, first_ms = call("pt", Path(folder), sizes, 3)
        calls = max(3, round(options["seconds"] * 1e3 / first_ms))
        for _ in range(options["rounds"]):
            for kind, taken in times.items():
                output, ms = call(kind, Path(folder), sizes, calls)
                outputs.add(output)
                taken.append(ms)
    return {
        "schema": 1, "benchmark": "cpp", "network": name, "input": sizes,
        "threads": options["threads"], "plan": entry, "calls": calls, "ms": times,
        "same_bits": len(outputs) == 1, "load_after": os.getloadavg()[0],
    }  # fmt: skip


def cells(record: harness.Record) -> list[str]:
    runner, nativert = record["ms"]["pt"], record["ms"]["pt2"]
    ratio = is_faster(nativert, runner)
    return [
        record["network"], str(record["threads"]), f"{statistics.median(runner):.2f}",
        f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]",
        "yes" if record["same_bits"] else "NO",
    ]  # fmt: skip


def show(record: harness.Record) -> None:
    """Prints a line about a network."""
    ratio = is_faster(record["ms"]["pt2"], record["ms"]["pt"])
    print(f"{record['network']}: nativert {said(ratio)} over the runner", flush=True)


def main() -> int:
    """Each network in a fresh process; its record is appended to --out."""
    parser = harness.make_parser(__doc__, harness.RESULTS / "cpp.jsonl")
    parser.add_argument("networks", nargs="*", type=network_name, metavar="NETWORK", help=NAMES)
    parser.add_argument("--threads", type=harness.count, default=2)
    parser.add_argument("--rounds", type=harness.count, default=10, help="processes of each kind")
    parser.add_argument("--seconds", type=harness.seconds, default=2.0, help="of each process")
    parser.add_argument("--tune-s", type=harness.seconds, default=60.0, help="seconds of tuning")
    parser.add_argument("--quick", action="store_true", help="few rounds, short tuning")
    parser.add_argument("--table", action="store_true", help="print a table, measure nothing")
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(**QUICK)
        args = parser.parse_args()
    if args.table:
        last = {(r["network"], r["threads"]): r for r in harness.read_lines(args.out)}
        titles = ["network", "threads", "runner, ms", "nativert / runner", "same bits"]
        print("\n".join(table(titles, [cells(record) for record in last.values()])))
        return 0
    options = harness.settings_of(args, "threads", "rounds", "seconds", "tune_s")
    outcome = harness.measure_each(
        run_one, {name: (name, options) for name in args.networks}, out=args.out, limit_s=LIMIT_S,
        env=harness.thread_env(args.threads), show=show,
    )  # fmt: skip
    return outcome.status


if __name__ == "__main__":
    harness.run_script(main)
