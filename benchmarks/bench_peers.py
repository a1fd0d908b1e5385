# SPDX-License-Identifier: BSD-3-Clause
"""Engines for deployment beside our module and the emitted folder: time, start, memory and size.

    python benchmarks/bench_peers.py
    python benchmarks/bench_peers.py squeezenet1_1 --engines torchalgo,ncnn,mnn --draft
    python benchmarks/bench_peers.py squeezenet1_1 --quick --draft    # to see that it works
    python benchmarks/bench_peers.py --engines torchalgo,emitted --threads 2
    python benchmarks/bench_peers.py --memory-limits                  # plans of less memory

The engines are ONNX Runtime, OpenVINO, ExecuTorch, LiteRT, ncnn, MNN and IREE. All compute in f32,
but for torchalgo's plan with a larger --max-error, and on --threads, by default one. Results are
compared with PyTorch's in f64. Each engine has its files, which its converter writes, and processes
of its own, which import only what it needs.

start: from the start of the process to the first result; the median of --starts processes, which
  take turns.
open + first: from the files to the first result, after the engine was imported.
resident: the memory of the process after six calls, less that of Python with NumPy.
libraries: the files that the process has mapped and Python with NumPy has not, without those for
  GPUs. torchalgo's module and ExecuTorch's Python package need PyTorch, whose part is recorded.
time: one process of each engine lives, and they take turns in rounds: --seconds of calls, while all
  others sleep. A ratio is that to our module, of the same rounds.

Converting a network takes 2 to 4 minutes, most of them for tuning and IREE, and measuring it 3. An
engine that is missing or fails gets a record with the reason. Appends one JSON line per network and
engine to benchmarks/results/peers.jsonl. `make_tables.py peers` writes the tables of
docs/migrating.md. `make bench-deps` installs the engines; their converters take 0.8 GB.

--memory-limits plans C++ programs of SqueezeNet and MobileNetV2 for images of 96 px under falling
limits of memory, and times the plans: see memory_limits.py. It needs no other engine, takes a
minute per network, and appends a line per limit to benchmarks/results/memory_limits.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic

import harness
import peer_files
from bench_load import turn
from compare import in_rounds, rounded
from harness import Record
from memory_limits import falling_limits
from networks import NAMES, network_name
from peer_engines import EMITTED, ENGINES, OWN, PYTHON
from peer_page import F32_ERROR
from torchalgo._base.stats import is_faster
from torchalgo._C import cpu_device
from torchalgo_cli.child import Child, EndedError

NETWORKS = (
    "squeezenet1_1", "resnet18", "mobilenet_v2", "resnet50", "mobilenet_v3_large",
    "shufflenet_v2_x1_0", "efficientnet_b0", "densenet121", "googlenet", "regnet_y_400mf",
)  # fmt: skip
SMALL = ("squeezenet1_1", "mobilenet_v2")  # with limits of memory
RARE = (PYTHON, "openvino_default")  # only when asked for by name
DEFAULT = [name for name in ENGINES if name not in RARE]
PEERS = harness.RESULTS / "peers.jsonl"
CONVERT_LIMIT_S, START_LIMIT_S = 900.0, 120.0
SERVE = "peer_engines"  # whose function `serve` runs in the processes
SETTINGS = ("starts", "rounds", "seconds", "tune_s", "max_error", "threads")
QUICK = {"starts": 2, "rounds": 3, "seconds": 0.1, "tune_s": 8.0}

Found = dict[str, Record]  # what is known of each engine; "failure" tells why it has no times


def start(engine: str, folder: str, threads: int) -> tuple[Child, Record]:
    """Starts a process. Returns it with what it says after its first calls, maybe a "failure"."""
    code = f"import {SERVE}; {SERVE}.serve({engine!r}, {folder!r})"
    paths = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = {
        **os.environ,
        **harness.thread_env(threads),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    started_s = monotonic()
    child = Child([sys.executable, "-c", code], env)
    try:
        said: Record = child.receive(START_LIMIT_S)
    except EndedError as problem:
        said = {"failure": f"at its start, the process {problem}"}
    if "failure" not in said:
        said["start_ms"] = 1e3 * (said.pop("first_s") - started_s)
    return child, said


def in_turns(
    found: Found, engines: Sequence[str], rounds: int, take: Callable[[str], Record]
) -> dict[str, list[Record]]:
    """Takes one record of each engine per round. An engine that fails has no further turns.

    Returns: the records of the engines that did not fail.
    """

    def once(engine: str) -> Record:
        if "failure" not in found[engine]:
            taken = take(engine)
            if "failure" not in taken:
                return taken
            found[engine]["failure"] = taken["failure"]
        return {}

    taken = in_rounds({engine: partial(once, engine) for engine in engines}, rounds)
    return {engine: records for engine, records in taken.items() if "failure" not in found[engine]}


def started(engine: str, folder: str, threads: int) -> Record:
    """Returns what a process says that ends after its first calls."""
    child, said = start(engine, folder, threads)
    child.close()
    return said


def timed(engine: str, children: Mapping[str, Child], seconds: float) -> Record:
    """Lets one process call the network while the others sleep."""
    idle = [child for name, child in children.items() if name != engine]
    try:
        return turn([children[engine]], [], idle, seconds)
    except EndedError as problem:
        return {"failure": f"in its turn, the process {problem}"}


# ---- records -------------------------------------------------------------------------------------


def facts_of_starts(said: Sequence[Record], python: Sequence[Record]) -> Record:
    """Returns what the processes of an engine say, less Python with NumPy."""

    def middle(records: Sequence[Record], key: str) -> int:
        return int(statistics.median(record[key] for record in records))

    own = {p: size for p, size in said[-1]["libraries"].items() if p not in python[-1]["libraries"]}
    return {
        "start_ms": [round(each["start_ms"], 1) for each in said],
        "open_first_ms": [round(each["open_first_ms"], 2) for each in said],
        **{
            key: middle(said, key) - middle(python, key) for key in ("resident_bytes", "peak_bytes")
        },
        "library_bytes": sum(own.values()),
        "torch_bytes": sum(size for path, size in own.items() if "/torch/lib/" in path),
        "rel_error": max(float(f"{each['rel_error']:.3g}") for each in said),
    }


def facts_of_turns(turns: Sequence[Record], own: Sequence[Record] | None) -> Record:
    """Returns the times of an engine, and their ratio to those of our module."""
    times = [each["median_ms"][0] for each in turns]
    facts: Record = {
        "ms": times,
        "idle_cpus": max(each["idle_cpus"] for each in turns),
        "other_cpus": statistics.median(each["other_cpus"] for each in turns),
    }
    if own:
        facts["ratio"] = rounded(is_faster(times, [each["median_ms"][0] for each in own]))
    return facts


def converted(network: str, folder: str, engines: Sequence[str], args: argparse.Namespace) -> Found:
    """Writes the files of the engines, each in a process of its own."""
    answer = harness.run_child(peer_files.prepare, network, folder, limit_s=CONVERT_LIMIT_S)
    if answer.failure:
        return {engine: {"failure": f"the network {answer.failure}"} for engine in engines}
    found = {}
    for engine in engines:
        words = engine, network, folder, args.tune_s, args.max_error, args.threads
        answer = harness.run_child(peer_files.convert, *words, limit_s=CONVERT_LIMIT_S)
        ended = {"failure": f"its converter {answer.failure}"}
        found[engine] = ended if answer.failure else answer.values[-1]
        if why := found[engine].get("failure"):
            line = harness.repro_line(peer_files.convert, *words)
            harness.tell_failure(f"{network}, {engine}", why, line)
    return found


def measure(network: str, engines: Sequence[str], args: argparse.Namespace) -> list[Record]:
    """Returns a record for each engine. Our module is always measured, for the ratios."""
    names = list(dict.fromkeys([OWN, *engines]))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-"))
        found = converted(network, folder, names, args)
        found[PYTHON] = {}
        begin = partial(started, folder=folder, threads=args.threads)
        starts = in_turns(found, [PYTHON, *names], args.starts, begin)
        children = {}
        for engine in names:
            if "failure" not in found[engine]:
                child, said = start(engine, folder, args.threads)
                children[engine] = stack.enter_context(child)
                found[engine] |= {key: said[key] for key in ("failure",) if key in said}
        take = partial(timed, children=children, seconds=args.seconds)
        turns = in_turns(found, names, args.rounds, take)
    for engine in turns:
        found[engine] |= facts_of_starts(starts[engine], starts[PYTHON])
        found[engine] |= facts_of_turns(turns[engine], turns.get(OWN))
    return [
        {**head_of(network, engine, args), **found[engine]} for engine in names if engine in engines
    ]


def head_of(network: str, engine: str, args: argparse.Namespace) -> Record:
    """Returns the fields of a record that are known before the network runs."""
    precision = "default" if engine.endswith("_default") else "f32"
    if engine in (OWN, EMITTED) and args.max_error != F32_ERROR:
        precision = f"max_error={args.max_error:g}"
    return {
        "schema": 1, "benchmark": "peers", "network": network, "engine": engine,
        "precision": precision,
        "version": harness.versions_of(ENGINES[engine].package)[ENGINES[engine].package],
        "isa": cpu_device().isa, **harness.settings_of(args, *SETTINGS),
    }  # fmt: skip


def left_to_do(network: str, args: argparse.Namespace) -> list[str]:
    """Returns the engines that --resume does not skip."""
    cpu = harness.machine_state()["cpu"]
    same = {**harness.settings_of(args, *SETTINGS), "network": network, "cpu": cpu}
    done = harness.done_before(args.out, "engine", same) if args.resume else {}
    return [engine for engine in args.engines if engine not in done]


def show(record: Record) -> None:
    """Prints a line per network and engine."""
    title = f"{record['network']}, {record['engine']}"
    if "failure" in record:
        print(f"{title}: {record['failure']}", flush=True)
        return
    ratio = "{:.2f} [{:.2f}, {:.2f}]".format(*record["ratio"]) if "ratio" in record else "-"
    middle = {key: statistics.median(record[key]) for key in ("ms", "start_ms", "open_first_ms")}
    print(
        f"{title}: {middle['ms']:.2f} ms, {ratio} over {OWN}, start {middle['start_ms']:.0f} ms,"
        f" open + first {middle['open_first_ms']:.0f} ms, {record['resident_bytes'] / 1e6:.0f} MB,"
        f" libraries {record['library_bytes'] / 1e6:.1f} MB, relative L2 {record['rel_error']:.1e}",
        flush=True,
    )


def measure_limits(networks: Sequence[str], args: argparse.Namespace) -> None:
    """Records the plans of --memory-limits."""
    out = harness.RESULTS / "memory_limits.jsonl" if args.out == PEERS else args.out
    harness.place_of(out)
    for network in networks:
        for line in falling_limits(network, args.rounds, args.tune_s):
            head = {"schema": 1, "benchmark": "memory_limits", "isa": cpu_device().isa}
            harness.record(out, {**head, **harness.settings_of(args, "rounds", "tune_s"), **line})


def engine_names(text: str) -> list[str]:
    """The type of an option: engines, comma-separated."""
    if unknown := [name for name in text.split(",") if name not in ENGINES or name == PYTHON]:
        raise argparse.ArgumentTypeError(
            f"expected some of {', '.join(ENGINES)}, comma-separated; got {', '.join(unknown)}"
        )
    return text.split(",")


def main() -> int:
    parser = harness.make_parser(__doc__, PEERS, can_resume=True)
    parser.add_argument("networks", nargs="*", type=network_name, metavar="NETWORK", help=NAMES)
    parser.add_argument(
        "--engines", type=engine_names, default=",".join(DEFAULT), help=f"of {', '.join(ENGINES)}"
    )
    parser.add_argument("--starts", type=harness.count, default=5, help="processes of each engine")
    parser.add_argument("--rounds", type=harness.count, default=15, help="of all engines")
    parser.add_argument("--seconds", type=harness.seconds, default=0.4, help="of each turn")
    parser.add_argument("--tune-s", type=harness.seconds, default=60.0, help="seconds of tuning")
    parser.add_argument("--threads", type=harness.count, default=1, help="of each engine")
    parser.add_argument("--max-error", type=float, default=F32_ERROR, help="of torchalgo's plan")
    parser.add_argument("--quick", action="store_true", help="few rounds, short tuning")
    parser.add_argument("--memory-limits", action="store_true", help="only plans of less memory")
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(**QUICK)
        args = parser.parse_args()
    if args.memory_limits:
        measure_limits(args.networks or SMALL, args)
        return 0
    status = 0
    for network in args.networks or NETWORKS:
        if engines := left_to_do(network, args):
            harness.place_of(args.out)  # a tree with changes is refused before anything is measured
            for line in measure(network, engines, args):
                status |= "failure" in line
                harness.record(args.out, line, show=show)
    return status


if __name__ == "__main__":
    harness.run_script(main)
