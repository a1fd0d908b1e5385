# SPDX-License-Identifier: BSD-3-Clause
"""The board: 86 networks that were drawn by seed, beside PyTorch, ONNX Runtime and OpenVINO.

    python benchmarks/bench_board.py --threads 2
    python benchmarks/bench_board.py --threads 2 --limit-minutes 50     # the next command goes on
    python benchmarks/bench_board.py --threads 1 --only resnet18 timm/ghostnet_100 --again
    python benchmarks/bench_board.py --threads 2 --again disturbed      # if other programs ran
    python benchmarks/bench_board.py --threads 2 --isa avx2             # without ONNX Runtime
    python benchmarks/bench_board.py --only dqn squeezenet1_1 --quick    # to see that it works

board_networks.py holds the networks and the rule by which they were drawn. Each network runs in a
process of its own and is tuned without a cost database, as the first network on a machine. All
engines compute in f32. They are timed in rounds, like those of bench_models.py: the order rotates,
each engine runs once untimed, then --inner single calls are timed, and idle threads of the others
are asleep. Inductor runs ten of the networks, ncnn and zentorch run twenty, chosen by seed.

Takes 2 to 3 minutes per network. Appends one JSON line per network to
benchmarks/results/board.jsonl. A network that has a line for this machine and these settings, of
any commit, is skipped unless --again is given. With `--again disturbed` it is measured again only
if other programs used the processors when its last line was taken (is_disturbed). A network that
fails gets a line with the reason. `make_tables.py board` makes docs/board.md from the lines.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

import engines
import harness
from bench_models import ISA_LIMITS, build_peers, relative_error, sample, tuned, wall_us
from board_networks import SIDE, board, build, build_input, sizes_of, with_inductor, with_rare
from board_page import BEST_OTHER, key_of, over, share_text, spread_of
from compare import control_of, rounded
from model_page import BEST_PYTORCH, PYTORCH
from pages import OWN, SCHEMA, ms, ratio_cell

LIMIT_S = 1800.0  # of one network
DISTURBED = 1.15  # median over minimum of single calls; quiet machines have 1.02 to 1.1
# These ops only change the sizes of a tensor, so they are not counted as left to PyTorch.
SIZES_ONLY = {
    f"aten::{name}"
    for name in (
        "size", "view", "reshape", "flatten", "unsqueeze", "squeeze", "expand", "permute", "lt",
        "transpose", "slice", "select", "chunk", "split", "unbind", "contiguous", "detach", "alias",
        "dropout",
    )
}  # fmt: skip
QUICK = {"rounds": 7, "inner": 1, "budget": 10.0, "tune_s": 8.0, "quick": True}


def ops_of(block: Any) -> Counter[str]:
    """Counts the nodes of a TorchScript block and of the blocks inside it, by kind."""
    kinds: Counter[str] = Counter()
    for node in block.nodes():
        kinds[node.kind()] += 1
        for inner in node.blocks():
            kinds += ops_of(inner)
    return kinds


def left_to_torch(optimized: Any) -> dict[str, Any]:
    """Returns the ops that PyTorch runs by itself in the planned module, and their time if known.

    "ops" counts them by kind. "us" is their time in a call of "run_us", and "slowest" lists the
    first five with their time and source line. These are None if the tuning did not time them.
    """
    planned = [child for _, child in optimized.scripted.named_children()]
    kinds: Counter[str] = Counter()
    for module in planned or [optimized.scripted]:
        kinds += ops_of(module.graph)
    ops = {k: n for k, n in kinds.items() if k.startswith("aten::") and k not in SIZES_ONLY}
    plan = optimized.plan
    run_us = 0.0 if plan.guard is None else plan.guard.plan_us
    if not run_us or all(op.measured_us is None for op in plan.left_alone):
        return {"ops": ops, "us": None, "run_us": None, "slowest": None}
    timed = sorted(
        (
            [round(op.measured_us, 1), op.name, op.source]
            for op in plan.left_alone
            if op.measured_us
        ),
        reverse=True,
    )
    return {
        "ops": ops,
        "us": round(sum(us for us, *_ in timed), 1),
        "run_us": round(run_us, 1),
        "slowest": timed[:5],
    }


def head_of(name: str, options: harness.Record) -> harness.Record:
    """Returns the fields of a record that are known before the network runs."""
    return {
        "schema": SCHEMA,
        "benchmark": "board",
        "network": name,
        "input": "x".join(map(str, (options["batch"], *sizes_of(name, options["size"])))),
        "size": options["size"],
        "dtype": "f32",
        "threads": options["threads"],
        "isa_limit": options["isa"],
        "quick": options["quick"],
        "machine": options["machine"],
        "git": harness.git_state(),
        "date": time.strftime("%Y-%m-%d"),
    }


def peers_of(name: str, isa: str, is_quick: bool) -> list[str]:
    """Returns the engines beside torchalgo. With `isa`, only those that keep this limit.

    OpenVINO keeps it in its convolutions, which are oneDNN's. ONNX Runtime asks the processor.
    """
    torch_ways = [*PYTORCH, *(["inductor"] if name in with_inductor() and not is_quick else [])]
    if isa:
        return [*torch_ways, "openvino"]
    # zentorch comes last: importing it may change what Inductor does.
    rare = engines.RARE if name in with_rare() and not is_quick else ()
    return [*torch_ways, *BEST_OTHER, *rare]


def run_one(name: str, options: harness.Record) -> harness.Record:
    """Returns the record of one network, measured in this process."""
    torch.set_num_threads(options["threads"])
    torch.set_grad_enabled(False)
    network = build(name)
    x = build_input(name, options["size"], options["batch"])
    load_before = os.getloadavg()[0]
    make = lambda: copy.deepcopy(network)  # noqa: E731
    optimized, entry = tuned(make, x, options["tune_s"], cost_db=False)
    left = left_to_torch(optimized)
    built: dict[str, Any] = {OWN: {"run": lambda: optimized(x), **entry}}
    built |= build_peers(peers_of(name, options["isa"], options["quick"]), make, x)
    error = relative_error(network, x, built[OWN]["run"])
    taken = sample(built, options["rounds"], options["inner"], options["budget"])
    record: harness.Record = {
        **head_of(name, options),
        "tune_s": options["tune_s"],
        "rel_error": error,
        "left_to_torch": left,
        "engines": {n: {k: v for k, v in e.items() if k != "run"} for n, e in built.items()},
        "wall_us": wall_us(taken),
        "calls_us": {
            n: [[round(us, 1) for us in each.calls_us] for each in rounds]
            for n, rounds in taken.items()
        },
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
    }
    measured = statistics.median(record["wall_us"][OWN])
    record["predicted_over_measured"] = round(entry["predicted_us"] / measured, 3)
    record["single_calls"] = {n: spread_of(record, n) for n in record["calls_us"]}
    record["ratios"] = {
        title: [peer, *rounded(ratio)]
        for title, engines_of in {"other": BEST_OTHER, "pytorch": BEST_PYTORCH}.items()
        for peer, ratio in [over(record, engines_of)]
        if ratio is not None
    }
    return record


def show(record: harness.Record) -> None:
    """Prints a line per network."""
    if "failure" in record:
        print(f"{record['network']}: {record['failure']}", flush=True)
        return
    own = ms(statistics.median(record["wall_us"][OWN]))
    ratios = [
        f"{ratio_cell(ratio)} over {peer}"
        for peer, ratio in (over(record, BEST_OTHER), over(record, BEST_PYTORCH))
        if ratio is not None
    ]
    print(
        f"{record['network']} {record['input']}, {record['threads']} thread(s): {own} ms,"
        f" {', '.join(ratios)}, left to torch {share_text(record)},"
        f" relative L2 {record['rel_error']:.1e}",
        flush=True,
    )


def is_disturbed(record: harness.Record) -> bool:
    """True if other programs probably used the processors while the network was timed.

    Then the median of single calls is above DISTURBED times the minimum, for torchalgo or for the
    faster other engine, or torchalgo's even rounds differ from its odd ones. This does not depend
    on which engine is faster.
    """
    if "failure" in record:
        return False
    peer, _ = over(record, BEST_OTHER)
    spreads = [spread_of(record, engine) for engine in (OWN, peer) if engine is not None]
    if any(median > DISTURBED * least for least, median, _ in spreads):
        return True
    return control_of(record["wall_us"][OWN]).verdict != "unclear"


def measure(names: Sequence[str], options: harness.Record, args: argparse.Namespace) -> int:
    """Measures the networks without a line, or those of --again. Returns the exit status."""
    known = [] if args.again == "all" else harness.read_lines(args.out)
    last = {key_of(line): line for line in known if line.get("benchmark") == "board"}
    done = {key for key, line in last.items() if not (args.again and is_disturbed(line))}
    todo = [name for name in names if key_of(head_of(name, options)) not in done]
    print(f"{len(names) - len(todo)} of {len(names)} networks are in {args.out}", flush=True)
    env = {**harness.thread_env(args.threads), **ISA_LIMITS[args.isa]}
    return harness.record_networks(
        todo, run_one, head_of, options, args.out, show,
        env=env, limit_s=LIMIT_S, limit_minutes=args.limit_minutes,
    )  # fmt: skip


def board_name(text: str) -> str:
    """The type of an option: a network of the board."""
    if text not in board():
        raise argparse.ArgumentTypeError(
            f"expected a network of board_networks.py, such as {board()[0]}; got {text!r}"
        )
    return text


def main() -> int:
    """Each network in a fresh process; its record is appended to --out."""
    parser = harness.make_parser(__doc__, harness.RESULTS / "board.jsonl")
    parser.add_argument("--threads", type=harness.count, default=2, help="of each engine")
    parser.add_argument("--size", type=harness.count, default=SIDE, help="side of the images")
    parser.add_argument("--batch", type=harness.count, default=1, help="images per run")
    parser.add_argument(
        "--isa", default="", choices=[*ISA_LIMITS],
        help="the widest vectors of torchalgo, torch, and OpenVINO's convolutions",
    )  # fmt: skip
    parser.add_argument(
        "--only", type=board_name, nargs="+", metavar="NAME", help="these networks only"
    )
    parser.add_argument(
        "--again", nargs="?", const="all", choices=["all", "disturbed"],
        help="measure what has a line, too; only if that line was disturbed",
    )  # fmt: skip
    parser.add_argument(
        "--limit-minutes", type=harness.seconds, default=float("inf"),
        help="start no network after so many minutes",
    )  # fmt: skip
    parser.add_argument(
        "--tune-s", type=harness.seconds, default=60.0, help="seconds of tuning per network"
    )
    parser.add_argument(
        "--rounds", type=harness.count, default=25, help="if --budget does not end first"
    )
    parser.add_argument("--inner", type=harness.count, default=3, help="calls per engine and round")
    parser.add_argument(
        "--budget", type=harness.seconds, default=45.0, help="seconds of rounds per network"
    )
    parser.add_argument(
        "--quick", action="store_true",
        help="few rounds, short tuning; docs/board.md leaves such lines out",
    )  # fmt: skip
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(**QUICK)
        args = parser.parse_args()
    options = harness.settings_of(
        args, "threads", "size", "batch", "isa", "rounds", "inner", "budget", "tune_s", "quick"
    )
    return measure(args.only or board(), {**options, "machine": engines.machine()}, args)


if __name__ == "__main__":
    harness.run_script(main)
