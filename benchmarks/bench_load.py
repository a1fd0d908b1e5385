# SPDX-License-Identifier: BSD-3-Clause
"""How fast are calls on a busy machine: several processes, endless loops, a quota of processors?

    python benchmarks/bench_load.py --threads 2
    python benchmarks/bench_load.py resnet50 --loads 1x2,4x1,4x2 --engines torchalgo,openvino
    python benchmarks/bench_load.py --engines torchalgo,torchalgo_left_2,torchalgo_left_10

A load is written PxT: each of P processes calls the network in a loop, with T threads. 1x2+3 means
beside three endless loops of other processes. 1x2@1 means in a control group with a quota of one
processor. Where no such group can be made, these loads are left out, and a line says so.

torchalgo makes a plan once for each number of threads, and all processes load it, as those of a
server do. All engines compute in f32. openvino has the latency hint; openvino_throughput has as
many requests in flight as OpenVINO advises. OpenVINO pins its threads to processors by default, and
engines with _unpinned do not. torchalgo_left_2 and _10 have layers that PyTorch runs, for at most
so many percent of the time that the plan predicts. Only openvino_default keeps OpenVINO's own
precision, maybe bf16.

All processes start before the first round. In a round, each engine runs under each load for
--seconds while all other processes sleep; a record says how many processors these used
nevertheless, and how many other programs did. A process that ends or hangs is killed, and its
engine has no further turns. In tables, a cell is the median of the rounds, with their least and
greatest value. With several processes, times are the median of the processes' own.

Takes 10 to 15 minutes per network with the default options, and about 200 MB for each of some 50
processes. Appends one JSON line per network to benchmarks/results/load.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import harness
from compare import in_rounds
from control_group import control_group
from harness import Record
from load_engines import ENGINES, LEFT, OPENVINO, plan_path, serve, tune
from load_tables import WHAT, ratios, show
from load_turns import loop
from pages import OWN
from single_layers import case_name
from torchalgo._base.processor_load import processors_s, used_s
from torchalgo_cli.child import Child, EndedError
from torchalgo_cli.turns import WARM_S

DEFAULT = (OWN, "onnxruntime", "onnxruntime_spinning", *list(OPENVINO)[:3])
LOADS = "1x{0},1x{0}+1,1x{0}+3,1x{0}@1,2x1,2x{0},4x1,4x{0}"  # by default, of --threads
PAUSE_S = 0.2  # before a turn: until then threads that spin have gone to sleep
LEAD_S = 0.05  # of a turn: until all processes begin
TAIL_S = 0.3  # the loops run longer, since the last calls do
START_LIMIT_S, ANSWER_LIMIT_S = 300.0, 60.0  # of one process; an answer comes after --seconds


@dataclass(frozen=True)
class Load:
    processes: int
    threads: int  # of each process
    loops: int = 0  # endless ones, of other processes
    quota: float = 0.0  # processors; 0: no control group

    def __str__(self) -> str:
        loops = f"+{self.loops}" if self.loops else ""
        return f"{self.processes}x{self.threads}{loops}" + (f"@{self.quota:g}" * (self.quota > 0))


def loads_of(text: str) -> list[Load]:
    """The type of an option: loads, comma-separated."""
    found = []
    for word in text.split(","):
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(?:\+(\d+))?(?:@(\d*\.?\d+))?", word)
        if not match:
            known = LOADS.format(2)
            raise argparse.ArgumentTypeError(f"expected loads such as {known}; got {word!r}")
        processes, threads, loops = (int(digits or 0) for digits in match.groups()[:3])
        found.append(Load(processes, threads, loops, float(match[4] or 0)))
    return list(dict.fromkeys(found))


def engine_names(text: str) -> list[str]:
    """The type of an option: engines, comma-separated."""
    if unknown := [name for name in text.split(",") if name not in ENGINES]:
        raise argparse.ArgumentTypeError(
            f"expected some of {', '.join(ENGINES)}, comma-separated; got {', '.join(unknown)}"
        )
    return text.split(",")


# ---- turns ---------------------------------------------------------------------------------------


def turn(
    servers: Sequence[Child], loops: Sequence[Child], idle: Sequence[Child], seconds: float
) -> Record:
    """Lets the servers call the network, and the loops run, all at the same time.

    Raises: EndedError if one of the servers ends, or does not answer.
    """

    def counted() -> list[float]:
        own = [sum(used_s(child.pid)[0] for child in group) for group in (idle, members)]
        return [monotonic(), own[0], sum(processors_s()) - sum(own)]

    members = [*servers, *loops]
    sleep(PAUSE_S)
    before = counted()
    start_s = before[0] + LEAD_S
    for child in members:
        child.send([start_s, seconds + (TAIL_S if child in loops else 0)])
    found = [child.receive(ANSWER_LIMIT_S + seconds) for child in servers]
    passed_s, idle_s, others_s = (b - a for a, b in zip(before, counted(), strict=True))
    for child in loops:
        child.receive(ANSWER_LIMIT_S + seconds)
    return {
        **{what: [answer[what] for answer in found] for what in WHAT},
        "idle_cpus": round(idle_s / passed_s, 3),
        "other_cpus": round(max(0.0, others_s / passed_s), 3),
    }


class Servers:
    """All processes of a network, by engine, threads and quota. Of several engines, one works."""

    def __init__(self, stack: contextlib.ExitStack, loads: Sequence[Load]) -> None:
        self.facts: dict[str, dict[str, Record]] = {}
        self.failures: dict[str, str] = {}
        self._stack, self._loads = stack, loads
        self._groups = {
            quota: stack.enter_context(control_group(quota))
            for quota in {load.quota for load in loads} - {0.0}
        }
        self._servers: dict[tuple[str, int, float], list[Child]] = {}
        most = max(load.loops for load in loads)
        self._loops = [stack.enter_context(Child(*harness.child_of(loop))) for _ in range(most)]
        for child in self._loops:
            child.receive(START_LIMIT_S)

    def start(self, engine: str, network: str, plans: Mapping[int, str]) -> None:
        """Starts the processes of an engine and waits until all are ready."""
        by_size = sorted(self._loads, key=lambda load: load.processes)
        most = {(load.threads, load.quota): load.processes for load in by_size}
        for (threads, quota), processes in most.items():
            arguments = engine, network, threads, plans.get(threads, "")
            own = self._servers[engine, threads, quota] = []
            for _ in range(processes):
                child = Child(*harness.child_of(serve, *arguments, env=harness.thread_env(threads)))
                own.append(self._stack.enter_context(child))
                if quota:
                    (self._groups[quota] / "cgroup.procs").write_text(str(child.pid))
            try:
                facts, *_ = [child.receive(START_LIMIT_S) for child in own]
            except EndedError as problem:
                self._fail(engine, f"a process {problem}", harness.repro_line(serve, *arguments))
                return
            self.facts.setdefault(engine, {})[str(Load(processes, threads, 0, quota))] = facts

    def _fail(self, engine: str, why: str, repro: str) -> None:
        self.failures[engine] = why
        harness.tell_failure(engine, why, repro)

    def turn(self, engine: str, load: Load, seconds: float) -> Record | None:
        """Returns what was measured; None for an engine that failed, now or before."""
        if engine in self.failures:
            return None
        own = self._servers[engine, load.threads, load.quota][: load.processes]
        loops = self._loops[: load.loops]
        every = [child for group in (*self._servers.values(), self._loops) for child in group]
        idle = [child for child in every if child not in own and child not in loops]
        try:
            return turn(own, loops, idle, seconds)
        except EndedError as problem:
            for child in own:  # the others may hang as well, and compute
                child.close()
            words = "--engines", engine, "--loads", load
            repro = harness.script_line("bench_load.py", *words)
            self._fail(engine, f"under {load}, a process {problem}", repro)
            return None


def measure(network: str, loads: Sequence[Load], args: argparse.Namespace) -> Record:
    """Returns the record of a network."""
    plans = {}
    with contextlib.ExitStack() as stack:
        folder = args.plans or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        own = {OWN, *LEFT} & {*args.engines}
        for threads in {load.threads for load in loads} if own else ():
            path = folder / f"{network.replace('/', '_')}_t{threads}.plan.json"
            plans[threads] = str(path)
            if not all(Path(plan_path(str(path), engine)).exists() for engine in own):
                answer = harness.run_child(
                    tune, network, str(path), args.tune_s, threads, [*own],
                    limit_s=args.tune_s + START_LIMIT_S, env=harness.thread_env(threads),
                )  # fmt: skip
                if answer.failure:
                    raise SystemExit(f"bench_load: {network}: the tuning {answer.failure}")
        servers = Servers(stack, loads)
        for engine in args.engines:
            servers.start(engine, network, plans)
        takers = {
            f"{load} {engine}": partial(servers.turn, engine, load, args.seconds)
            for load in loads
            for engine in args.engines
        }
        taken = in_rounds(takers, args.rounds)
    ran = [engine for engine in args.engines if engine not in servers.failures]
    results = {
        str(load): {engine: [t for t in taken[f"{load} {engine}"] if t] for engine in ran}
        for load in loads
    }
    return {
        "schema": 1, "benchmark": "load", "network": network, "tune_s": args.tune_s,
        "rounds": args.rounds, "seconds": args.seconds,
        "engines": servers.facts, "failures": servers.failures, "loads": results,
        "ratios": ratios(results),
    }  # fmt: skip


def main() -> int:
    parser = harness.make_parser(__doc__, harness.RESULTS / "load.jsonl")
    parser.add_argument("networks", nargs="*", type=case_name, metavar="NETWORK", help="or a layer")
    parser.add_argument(
        "--engines", type=engine_names, default=",".join(DEFAULT), help=f"of {', '.join(ENGINES)}"
    )
    parser.add_argument(
        "--threads", type=harness.count, default=os.cpu_count(), help="T of the loads"
    )
    parser.add_argument("--loads", type=loads_of, help=f"with T for {{0}}, by default {LOADS}")
    parser.add_argument("--rounds", type=harness.count, default=6, help="of all loads and engines")
    parser.add_argument("--seconds", type=harness.seconds, default=1.5, help="of each turn")
    parser.add_argument("--tune-s", type=harness.seconds, default=60.0, help="for each plan")
    parser.add_argument(
        "--plans", type=Path, help="plans are kept here, and used if there are some"
    )
    args = parser.parse_args()
    harness.place_of(args.out)  # a tree with changes is refused before anything is measured
    loads = args.loads or loads_of(LOADS.format(args.threads))
    for quota in {load.quota for load in loads} - {0.0}:
        try:
            with control_group(quota):
                pass
        except OSError as problem:
            loads = [load for load in loads if load.quota != quota]
            print(f"no load with @{quota:g}: {problem}", file=sys.stderr)
    if not loads:
        return 1
    turn_s = PAUSE_S + LEAD_S + WARM_S + args.seconds
    minutes = turn_s * args.rounds * len(loads) * len(args.engines) / 60
    print(f"{minutes:.0f} minutes of turns for each network, and the start", file=sys.stderr)
    failures = 0
    for network in args.networks or ["mobilenet_v2"]:
        line = harness.record(args.out, measure(network, loads, args), show)
        failures += len(line["failures"])
    return int(failures > 0)


if __name__ == "__main__":
    harness.run_script(main)
