# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that tune together while one of them fails, with clocks that disagree.

    python benchmarks/tune_ranks.py --ranks 8 --rounds 3 --seed 1
    python benchmarks/tune_ranks.py --ranks 3 --rounds 1 --no-record     # to see that it works

Each case forks the ranks, which meet in a TCPStore. Each rank has a calendar of its own that jumps
(tests/faults/clock.c, preloaded) and a monotonic clock with an origin and a rate of its own. Costs
are invented, with each rank's own noise, so that only merging makes plans equal. All ranks must end
with one plan, or with one error that names the rank it lies in, at most 5 s after the last arrival:
of a rank at the agreement that fails or succeeds, or of the fault.

Takes about three minutes per round with 8 ranks. Appends a line per case to
benchmarks/results/tune_ranks.jsonl. Exit status 1 if anything failed; a `repro:` line then repeats
the case.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist_untyped
from torch import nn

import harness
import torchalgo
from torchalgo import _C
from torchalgo._C import Error
from torchalgo._distributed.distribute import Hardware
from torchalgo._distributed.heartbeat import Ranks
from torchalgo._measure.process_bench import TakenSamples
from torchalgo._measure.sampling import Bench
from torchalgo.tune import plan_hash, tune

SHIM = harness.ROOT / "tests" / "faults" / "clock.c"
BOUND_S = 5.0
PATIENCE_S = 40.0  # for a rank to end; more is a hang
YEAR_S = 365 * 86400

dist: Any = dist_untyped
now_s = time.monotonic  # as it is, for the bound


# ---- what the ranks tune -------------------------------------------------------------------------


def make_model(channels: int = 8) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i, k in enumerate((channels, 16, 24, 24, 32, 12)):
        layers += [nn.Conv2d(3 if not i else layers[-2].out_channels, k, 3, 1, 1), nn.ReLU()]  # type: ignore[arg-type]
    return nn.Sequential(*layers).eval()


def invented_ns(problem: str, primitive: _C.Primitive) -> float:
    return 1e3 + zlib.crc32(f"{problem} {primitive}".encode()) % 100_000


class InventedBench:
    """Costs from names, and this rank's noise; every 17th candidate cannot run."""

    def __init__(self, rank: int, fault: Callable[[int], None]) -> None:
        self._noise, self._fault, self._calls = random.Random(rank), fault, 0

    def measure(
        self, tasks: Sequence[tuple[str, _C.Primitive]], *, rounds: int, **_: Any
    ) -> list[TakenSamples]:
        self._fault(self._calls)
        self._calls += 1
        time.sleep(0.005)
        return [self._take(problem, primitive, rounds) for problem, primitive in tasks]

    def check(self, _: str, primitives: Sequence[Any], __: float) -> list[tuple[float, str]]:
        return [(0.0, "")] * len(primitives)

    def _take(self, problem: str, primitive: _C.Primitive, rounds: int) -> TakenSamples:
        ns = invented_ns(problem, primitive)
        if not primitive.name.startswith(("aten", "layout")) and round(ns) % 17 == 0:
            return TakenSamples([], "invented failure")
        return TakenSamples([ns * self._noise.uniform(0.99, 1.01) for _ in range(rounds)])

    def bench(self) -> Bench:
        return Bench(self.measure, self.check, now_s=lambda: time.monotonic())  # type: ignore[arg-type]


# ---- a case and its ranks ------------------------------------------------------------------------


@dataclass
class Case:
    """The rank that fails, how it fails, and the expected result."""

    name: str
    size: int
    seed: int
    victim: int
    expected: str = ""  # in every rank's error; empty: they agree
    holder: int | None = None  # the rank that has the store; None: none of them
    fault: Callable[[Child], None] | None = None  # in the victim, while it measures
    model: Callable[[], nn.Module] | None = None  # of the victim
    delay_s: float | None = 0.0  # before the victim arrives; None: never
    others: Callable[[Child], None] | None = None  # in all but the victim, while they measure
    has_gloo: bool = False
    step_s: float = 600.0
    silent: set[int] = field(default_factory=set)  # ranks that tell nothing in the end

    @staticmethod
    def port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])


@dataclass
class Child:
    """One rank, from inside."""

    case: Case
    rank: int
    port: int
    pipe: int

    def tell(self, **event: Any) -> None:
        os.write(
            self.pipe, (json.dumps({"rank": self.rank, "at": now_s(), **event}) + "\n").encode()
        )

    def skew_clocks(self) -> None:
        rng = random.Random(self.case.seed * 1000 + self.rank)
        offset, rate = rng.uniform(-1e6, 1e6), rng.uniform(0.5, 2.0)
        time.monotonic = lambda: offset + rate * now_s()
        years = rng.randrange(-20, 20)
        library = ctypes.CDLL(None)
        if hasattr(library, "clock_skew"):
            library.clock_skew.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_uint64]
            library.clock_skew(years * YEAR_S, rng.choice((0, 2, YEAR_S)), self.case.seed + 1)
        else:
            before = time.time
            time.time = lambda: before() + years * YEAR_S + rng.uniform(-YEAR_S, YEAR_S)

    def run(self) -> NoReturn:
        torch.set_num_threads(1)
        case, is_victim = self.case, self.rank == self.case.victim
        if is_victim and case.delay_s:
            time.sleep(case.delay_s)
        self.skew_clocks()
        code = 1
        try:
            self.tell(event="ended", hash=self.tuned(is_victim))
            code = 0
        except Error as problem:
            self.tell(event="ended", error=str(problem))
        except BaseException as problem:
            self.tell(event="ended", error=f"NOT AN ERROR OF TORCHALGO: {problem!r}")
        os._exit(code)

    def tuned(self, is_victim: bool) -> str:
        case = self.case
        fault = case.fault if is_victim else case.others
        store = dist.TCPStore(
            "127.0.0.1", self.port, case.size, case.holder == self.rank,
            datetime.timedelta(seconds=3.5), False,
        )  # fmt: skip
        self.tell(event="arrives")
        if case.has_gloo:
            dist.init_process_group(
                "gloo", store=dist.PrefixStore("gloo", store), rank=self.rank,
                world_size=case.size, timeout=datetime.timedelta(seconds=20),
            )  # fmt: skip

        def stuck() -> None:
            self.tell(event="ended", error=ranks.failure_text())
            os._exit(1)

        ranks = WatchedRanks(
            store, self.rank, case.size, holder=case.holder, step_s=case.step_s, on_stuck=stuck
        )
        ranks.tell = self.tell

        def strike(calls: int) -> None:
            if fault is not None and calls == 0:
                self.tell(event="fault")
                fault(self)

        model = (case.model if is_victim and case.model else make_model)()
        optimized = tune(
            model, torch.rand(1, 3, 24, 24), ranks,
            settings=torchalgo.Settings(progress=False, cost_db=False),
            bench=InventedBench(self.rank, strike).bench(),
            hardware=Hardware(f"host {self.rank}", ("core 0",)),
        )  # fmt: skip
        text = plan_hash(optimized.plan)
        if case.has_gloo:
            own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
            every = [torch.empty_like(own) for _ in range(case.size)]
            dist.all_gather(every, own)
            assert all(torch.equal(own, other) for other in every)
            dist.destroy_process_group()
        return text


class WatchedRanks(Ranks):
    """Tells when it arrives at an agreement of all."""

    tell: Callable[..., None]

    def gather(self, value: Any) -> list[Any]:
        self.tell(event="arrives")
        return super().gather(value)


# ---- the cases -----------------------------------------------------------------------------------


def raise_error(_: Child) -> None:
    raise Error("measure: an invented trouble")


def kill_own(signal_: int) -> Callable[[Child], None]:
    return lambda _: os.kill(os.getpid(), signal_)


def sleep_on(_: Child) -> None:
    time.sleep(PATIENCE_S * 2)


def make_case(name: str, size: int, seed: int) -> Case:
    rng = random.Random(seed)
    any_rank, not_first = rng.randrange(size), rng.randrange(1, size)
    failed = "^TA6004 tune: rank"
    dead = failed + r" {} died or hangs"
    cases: dict[str, Callable[[], Case]] = {
        "agree": lambda: Case(name, size, seed, -1, has_gloo=True),
        "agree, store in rank 0": lambda: Case(name, size, seed, -1, holder=0),
        "another model": lambda: Case(
            name, size, seed, not_first, failed + rf" {not_first} .* rank 0 .* in model",
            model=lambda: make_model(12),
        ),
        "raises": lambda: Case(
            name, size, seed, any_rank, failed + f" {any_rank}: measure: an invented trouble$",
            fault=raise_error,
        ),
        "SIGKILL": lambda: Case(
            name, size, seed, any_rank, dead.format(any_rank), fault=kill_own(signal.SIGKILL),
            silent={any_rank},
        ),
        "SIGSTOP": lambda: Case(
            name, size, seed, any_rank, dead.format(any_rank), fault=kill_own(signal.SIGSTOP),
            silent={any_rank},
        ),
        "SIGKILL, store in rank 0": lambda: Case(
            name, size, seed, 0, failed + " 0, which has the store, died or hangs$", holder=0,
            fault=kill_own(signal.SIGKILL), silent={0},
        ),
        "SIGSTOP, store in rank 0": lambda: Case(
            name, size, seed, 0, failed + " 0, which has the store, died or hangs$", holder=0,
            fault=kill_own(signal.SIGSTOP), silent={0},
        ),
        "raises, others compute on": lambda: Case(
            name, size, seed, any_rank, failed + f" {any_rank}: measure: an invented trouble$",
            fault=raise_error, others=sleep_on,
        ),
        "alive and stuck": lambda: Case(
            name, size, seed, not_first, failed + rf" \d+ waited .* of rank {not_first}$",
            fault=sleep_on, step_s=3.0,
        ),
        "never arrives": lambda: Case(
            name, size, seed, any_rank, failed + f" {any_rank} did not arrive", delay_s=None,
            silent={any_rank},
        ),
        "arrives late": lambda: Case(name, size, seed, any_rank, delay_s=2.0),
    }  # fmt: skip
    return cases[name]()


CASES = (
    "agree", "agree, store in rank 0", "another model", "raises", "SIGKILL", "SIGSTOP",
    "SIGKILL, store in rank 0", "SIGSTOP, store in rank 0", "raises, others compute on",
    "alive and stuck", "never arrives", "arrives late",
)  # fmt: skip


# ---- running and judging -------------------------------------------------------------------------


@dataclass
class Outcome:
    """after_s: from the last arrival until the last rank ended; wrong: what must not be."""

    after_s: float
    wrong: list[str]
    told: list[str]  # plan hash or error, of each rank that told one


def fork_store(port: int) -> int:
    """The process that has the store, as torchrun's agent does: this one stays without threads,
    which a fork would copy in any state."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        store = dist.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
        os.write(writing, str(store.port).encode())
        while True:
            signal.pause()
    os.close(writing)
    with os.fdopen(reading) as told:
        told.read(1)
    return pid


def run_case(case: Case) -> Outcome:
    port = case.port()
    agent = fork_store(port) if case.holder is None else None
    reading, writing = os.pipe()
    pids: dict[int, int] = {}
    for rank in range(case.size):
        if rank == case.victim and case.delay_s is None:
            continue
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            os.close(reading)
            Child(case, rank, port, writing).run()
        pids[pid] = rank
    os.close(writing)
    ends, wrong = _await_ends(case, pids)
    with os.fdopen(reading) as lines:
        events = [json.loads(line) for line in lines]
    if agent is not None:
        os.kill(agent, signal.SIGKILL)
        os.waitpid(agent, 0)
    return _judge(case, events, ends, wrong)


def _await_ends(case: Case, pids: dict[int, int]) -> tuple[dict[int, float], list[str]]:
    """When each rank ended; silent ones, which may be stopped for good, are killed at the end."""
    ends: dict[int, float] = {}
    wrong: list[str] = []
    deadline = now_s() + PATIENCE_S
    while len(ends) < len(pids):
        for pid, rank in pids.items():
            if rank not in ends and os.waitpid(pid, os.WNOHANG)[0]:
                ends[rank] = now_s()
        left = set(pids.values()) - set(ends)
        is_over = now_s() > deadline
        wrong += [f"rank {rank} hangs" for rank in left - case.silent if is_over]
        if is_over or left <= case.silent:
            for pid, rank in pids.items():
                if rank in left:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            break
        time.sleep(0.01)
    return {rank: at for rank, at in ends.items() if rank not in case.silent}, wrong


def _judge(
    case: Case, events: list[dict[str, Any]], ends: dict[int, float], wrong: list[str]
) -> Outcome:
    key = "error" if case.expected else "hash"
    told = {e["rank"]: e for e in events if e["event"] == "ended"}
    for rank in sorted(set(range(case.size)) - case.silent):
        if key not in told.get(rank, {}):
            wrong.append(f"rank {rank} ended with {told.get(rank)}, expected {key}")
    texts = {e.get(key, "") for e in told.values()}
    if len(texts) != 1:
        wrong.append(f"ranks tell {len(texts)} things: {sorted(texts)}")
    wrong += [f"{t!r} is not {case.expected!r}" for t in texts if not re.search(case.expected, t)]
    faults = [e["at"] for e in events if e["event"] == "fault" and e["rank"] == case.victim]
    arrivals = [e["at"] for e in events if e["event"] == "arrives"]
    if case.fault is not None and not faults:
        wrong.append("the fault did not happen")
    after_s = max(ends.values(), default=0.0) - (faults[0] if faults else max(arrivals))
    if after_s > BOUND_S:
        wrong.append(f"the last rank ended {after_s:.1f} s after the last arrival")
    return Outcome(after_s, wrong, sorted(texts))


# ---- the command ---------------------------------------------------------------------------------


def preload_shim() -> None:
    """Starts this program again with the calendar of tests/faults/clock.c before libc."""
    if "TORCHALGO_CLOCK_SHIM" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="torchalgo-clock-")
    shim = Path(folder) / "clock.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", shim, SHIM, "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(shim), "TORCHALGO_CLOCK_SHIM": "1"}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def main() -> int:
    parser = harness.make_parser(__doc__, harness.RESULTS / "tune_ranks.jsonl")
    parser.add_argument("--ranks", type=harness.count, default=8, help="at least 2")
    parser.add_argument("--rounds", type=harness.count, default=3, help="of all cases")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--case", choices=CASES, action="append", default=[], help="default: all")
    parser.add_argument("--no-record", action="store_true", help="print the lines only")
    args = parser.parse_args()
    if args.ranks < 2:
        parser.error(f"--ranks: expected at least 2, got {args.ranks}")
    preload_shim()
    torch.set_num_threads(1)
    failed = 0
    for name in args.case or CASES:
        line = run_rounds(name, args.ranks, args.rounds, args.seed)
        failed += bool(line["wrong"])
        if args.no_record:
            print(json.dumps(line), flush=True)
        else:
            harness.record(args.out, line)
    return int(failed > 0)


def run_rounds(name: str, ranks: int, rounds: int, seed: int) -> harness.Record:
    """The record of one case with several seeds. Tells how to repeat what is wrong."""
    seeds = [seed * 1000 + i for i in range(rounds)]
    outcomes = [run_case(make_case(name, ranks, each)) for each in seeds]
    wrong = [f"seed {s}: {w}" for s, o in zip(seeds, outcomes, strict=True) for w in o.wrong]
    if wrong:
        words = ("--ranks", ranks, "--rounds", rounds, "--seed", seed, "--case", name)
        repro = harness.script_line("tune_ranks.py", *words, "--no-record")
        harness.tell_failure(name, "; ".join(wrong), repro)
    return {
        "schema": 1, "case": name, "seeds": seeds,
        "after_s": [round(o.after_s, 2) for o in outcomes], "bound_s": BOUND_S,
        "told": outcomes[0].told, "wrong": wrong, "ranks": ranks, "seed": seed,
    }  # fmt: skip


if __name__ == "__main__":
    harness.run_script(main)
