# SPDX-License-Identifier: BSD-3-Clause
"""Tunes one model by many processes: `torchrun -m torchalgo.tune ...`. See docs/tune.md.

Exit codes, the same on every rank:
    0: done.
    1: a torchalgo.Error, which one rank prints on stderr.
    2: wrong usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import hashlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from torchalgo import _C
from torchalgo._api.optimize import optimize_prepared, plan_calls
from torchalgo._base.progress import Progress
from torchalgo._C import Error
from torchalgo._capture.calls import as_tensor_models
from torchalgo._capture.freeze import check_model
from torchalgo._capture.options import Options, check_options
from torchalgo._capture.shapes import as_calls
from torchalgo._cli.run import tuning_options as cli_options
from torchalgo._db import CostStore
from torchalgo._db.environment import Environment
from torchalgo._distributed.distribute import (
    Hardware,
    MeasuringRanks,
    choose_measuring_ranks,
    work_for_rank_0,
)
from torchalgo._distributed.heartbeat import Ranks
from torchalgo._ir.plan import Plan
from torchalgo._measure import process_bench
from torchalgo._measure.sampling import Bench, cold_bytes
from torchalgo._plan.preparation import Prepared, prepare
from torchalgo._plan.result import Result
from torchalgo._run.model_files import load_model, random_inputs
from torchalgo._run.optimized import Optimized
from torchalgo._run.original import Original
from torchalgo_cli import EXIT_ERROR
from torchalgo_cli.arguments import Parser
from torchalgo_cli.files import FileError, check_files
from torchalgo_cli.parser import add_model, add_tuning

__all__ = ["Ranks", "tune"]


def tune(
    model: nn.Module,
    example_inputs: Any,
    ranks: Ranks,
    *,
    keep: Callable[[Optimized], None] | None = None,
    bench: Bench | None = None,
    hardware: Hardware | None = None,
    **options: Any,
) -> Optimized:
    """Does the same as torchalgo.optimize, with several processes.

    Each process calls this with the same arguments. Rank 0 plans and writes the cost database.
    Measurements and checks are distributed to all ranks that have cores or a GPU of their own.
    Every rank gets the module. No rank returns before all ranks have run the module once.

        ranks = torchalgo.tune.Ranks(store, rank, size)  # any store of torch.distributed
        fast = torchalgo.tune.tune(model, x, ranks, cost_db=False)

    Args:
        model, example_inputs, options: the arguments of `optimize`. `plan`, several sets of
            inputs, other objectives than "latency", and example_inputs=None are not possible.
        ranks: the processes. This function enters it as a context.
        keep: called on rank 0 with the result, before the other ranks return. It may write files.
        bench: the functions with which this rank measures. None: the same as for `optimize`.
        hardware: the cores or the GPU with which this rank measures. None: the cores that it may
            use, or its GPU.

    Returns: the Optimized module, with the same plan on all ranks.
    Raises: torchalgo.Error, the same on all ranks, if one of them fails. Also if the ranks differ
        in model, options, versions or kind of device.
    """
    with ranks:
        settings = Options(**options)
        check_options(settings)
        if settings.objective != "latency":
            raise Error(
                f"tune: objective={settings.objective!r}: ranks of one machine would share one"
                " meter; use torchalgo.optimize"
            )
        check_model(model)
        progress = Progress(settings.progress if ranks.rank == 0 else False)
        calls = as_calls(model, example_inputs)
        if len(calls) > 1:
            raise Error(f"{len(calls)} sets of inputs; ranks tune for one set at a time")
        one = as_tensor_models(model, calls)[0]
        prepared = prepare(one, progress.say)
        _check_alike(ranks, ranks.gather(_facts(prepared, settings)))
        if hardware is None:
            hardware = Hardware.here(prepared.where)
        listed = ranks.gather([hardware.host, hardware.units])
        numbers = choose_measuring_ranks([Hardware(host, tuple(units)) for host, units in listed])
        if bench is None:
            bench = Bench.on(prepared.device)
            if ranks.rank in numbers:
                process_bench.start_early()
        if ranks.rank == 0:
            progress.say(f"{len(numbers)} of {ranks.size} ranks have a device of their own")
            result = _lead(prepared, settings, MeasuringRanks(ranks, numbers, bench))
        else:
            result = _follow(prepared, settings, ranks, bench)
        planner = functools.partial(plan_calls, settings)
        original = Original(model, planner, calls, one.model, one.formats)
        optimized = Optimized(result, form=one.form, original=original)
        if ranks.rank == 0 and keep is not None:
            keep(optimized)
        _check_alike(ranks, ranks.gather({"plan": plan_hash(optimized.plan)}))
    return optimized


def plan_hash(plan: Plan) -> str:
    """Returns a hash, 16 digits, of the whole text of the plan's file."""
    return hashlib.sha256(plan.to_json().encode()).hexdigest()[:16]


def _lead(prepared: Prepared, options: Options, measuring: MeasuringRanks) -> Result:
    """Runs the loop of `optimize` on rank 0, with all measuring ranks. Returns the result."""
    if options.cost_db is False:
        result = optimize_prepared(prepared, options, None, measuring.bench())
    else:
        with CostStore.open(options.cost_db, is_fresh=options.fresh) as store:
            result = optimize_prepared(prepared, options, store, measuring.bench())
    measuring.end(result.plan.to_json())
    return result


def _follow(prepared: Prepared, options: Options, ranks: Ranks, bench: Bench) -> Result:
    """Measures for rank 0 on another rank, then applies its plan. Returns the result."""
    plan = Plan.from_json(work_for_rank_0(ranks, bench), "the plan of rank 0")
    applied = dataclasses.replace(options, plan=plan, overrides=None, strict=True, progress=False)
    return optimize_prepared(prepared, applied, None)


# ---- agreement -----------------------------------------------------------------------------------


def _facts(prepared: Prepared, options: Options) -> dict[str, str]:
    """Returns the facts that must be the same on all ranks, by name, and the host's name.

    The costs of one rank are used for all.
    """
    environment = Environment.of(prepared.device, cold_bytes(prepared.graph))
    own = ("plan", "progress", "cost_db")
    chosen = {f"option {k}": v for k, v in dataclasses.asdict(options).items() if k not in own}
    return {
        "host": socket.gethostname(),
        "torchalgo": _C.version,
        "torch": torch.__version__,
        **environment.facts,
        "algorithms": hashlib.sha256(
            repr(sorted(environment.versions.items())).encode()
        ).hexdigest(),
        "model": prepared.graph.structure_hash,
        "inputs": str(
            [(list(t.shape), str(t.dtype)) for t in prepared.inputs if hasattr(t, "shape")]
        ),
        **{name: repr(value) for name, value in chosen.items()},
    }


def _check_alike(ranks: Ranks, facts: Sequence[Mapping[str, str]]) -> None:
    """Raises torchalgo.Error if a rank's facts differ from those of rank 0.

    The text names the first such rank and its first difference. The host's name may differ.
    """
    first = facts[0]
    for rank, other in enumerate(facts):
        for name in [*first, *other]:
            if name == "host" or first.get(name) == other.get(name):
                continue
            here, there = (f" on {f['host']}" if "host" in f else "" for f in (first, other))
            raise ranks.fail(
                f"rank {rank}{there} differs from rank 0{here} in {name}:"
                f" {other.get(name)}, expected {first.get(name)}. All ranks need the same"
            )


# ---- the command ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Launch:
    """The numbers that torchrun gives to each rank by environment variables."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @staticmethod
    def read(environment: Mapping[str, str]) -> Launch:
        """Reads the environment variables. Without them, there is one rank.

        Raises: torchalgo.Error if one of them is no integer.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        try:
            numbers = [int(environment.get(n, d)) for n, d in zip(names, "0101", strict=True)]
        except ValueError:
            given = ", ".join(f"{n}={environment.get(n)!r}" for n in names)
            raise Error(f"tune: {given}, expected integers, as torchrun sets them") from None
        return Launch(*numbers)


def connect(
    launch: Launch, environment: Mapping[str, str], timeout_s: float
) -> tuple[Store, int | None]:
    """Returns the store that the ranks share, and the rank that holds it.

    The rank is None if torchrun's agent holds the store, or if there is only one rank.

    Raises: torchalgo.Error if the store cannot be reached within `timeout_s`.
    """
    if launch.size == 1:
        return HashStore(), None
    try:
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    except (KeyError, ValueError):
        raise Error(
            f"tune: WORLD_SIZE is {launch.size}, and MASTER_ADDR and MASTER_PORT do not tell where"
            " the ranks meet; start them by torchrun"
        ) from None
    has_agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_holder = not has_agent and launch.rank == 0
    try:
        store = TCPStore(
            host, port, launch.size, is_holder, datetime.timedelta(seconds=timeout_s), False
        )
    except Exception as problem:  # torch.distributed has no documented set of them
        who = "torchrun" if has_agent else "rank 0"
        reason = (str(problem).splitlines() or [""])[0]
        raise Error(f"tune: no store of {who} at {host}:{port} ({reason})") from None
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"attempt {attempt}", store), None if has_agent else 0


def pin(launch: Launch) -> None:
    """Gives this rank its part of the host's cores, and sets torch's threads to their number.

    Raises: torchalgo.Error if there are more ranks than cores, or the system cannot do it.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise Error("--pin: this system cannot bind a process to cores")
    cores = sorted(os.sched_getaffinity(0))
    count = len(cores) // launch.local_size
    if not count:
        raise Error(f"--pin: {launch.local_size} ranks on a host with {len(cores)} cores")
    os.sched_setaffinity(0, cores[launch.local_rank * count :][:count])
    torch.set_num_threads(count)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one rank and returns its exit code."""
    args = _parser().parse_args(argv)
    ranks: Ranks | None = None

    def end() -> None:
        """Ends this process if it still computes after another rank failed."""
        assert ranks is not None
        _tell(ranks, ranks.failure_text())
        _exit_now(EXIT_ERROR)

    def terminate(number: int, _: Any) -> None:
        """Ends this process on SIGTERM, unless a failure will end it anyway.

        torchrun sends SIGTERM to all ranks when the first one has failed.
        """
        if ranks is None or not ranks.failure_text():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    try:
        launch = Launch.read(os.environ)
        if launch.size > 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminate)
            if launch.rank:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 handles it, and makes a plan
        store, holder = connect(launch, os.environ, args.join_timeout)
        ranks = Ranks(
            store, launch.rank, launch.size, holder=holder, join_s=args.join_timeout,
            patience_s=args.patience, step_s=args.step_timeout, on_stuck=end,
        )  # fmt: skip
        _run(args, launch, ranks)
        return 0
    except Error as problem:
        _tell(ranks, str(problem))
        return EXIT_ERROR


def _run(args: argparse.Namespace, launch: Launch, ranks: Ranks) -> None:
    with ranks:
        try:
            check_files(args)
        except FileError as problem:
            raise Error(str(problem)) from None
        if args.pin:
            pin(launch)
        if args.threads is not None:
            torch.set_num_threads(args.threads)
        torch.manual_seed(0)  # random weights are the same on all ranks
        model = load_model(args.model)
        inputs = random_inputs(model, args.input)
        if args.device == "cuda":
            if not torch.cuda.is_available():
                raise Error("there is no GPU that torch can use")
            where = torch.device("cuda", launch.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(where)
            model, inputs = model.to(where), tuple(x.to(where) for x in inputs)

        def keep(optimized: Optimized) -> None:
            if args.output is not None:
                optimized.save(args.output)
            if args.plan_out is not None:
                optimized.plan.save(args.plan_out)

        optimized = tune(model, inputs, ranks, keep=keep, **cli_options(args))
    if launch.rank == 0:
        print(optimized.plan)
        print(f"plan {plan_hash(optimized.plan)} on all {launch.size} ranks", flush=True)


def _tell(ranks: Ranks | None, text: str) -> None:
    """Prints `text` on stderr as one line, on one rank only."""
    if ranks is None or ranks.rank == ranks.speaker:
        print(f"torchalgo: {' '.join(text.split())}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="torchrun ... -m torchalgo.tune",
        description="Tune one model on many devices: each rank that has cores or a GPU of its own"
        " measures a part, rank 0 plans, and all ranks end with the same plan or the same error.",
        epilog="exit codes, the same on every rank: 0 done; 1 error; 2 wrong usage. Example:"
        " torchrun --nproc-per-node 2 -m torchalgo.tune torchvision.models:resnet18 --input"
        " 1x3x224x224 --plan-out resnet18.plan.json --pin",
    )
    add_model(parser)
    parser.add_argument("-o", "--output", type=Path, help="the .pt file that rank 0 writes")
    parser.add_argument("--plan-out", type=Path, help="the plan that rank 0 writes, as JSON")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, help="threads of torch in each rank")
    parser.add_argument(
        "--pin", action="store_true",
        help="give each rank of a host its own part of the cores; else ranks that share cores do"
        " not measure at the same time, and the first of them measures alone",
    )  # fmt: skip
    add_tuning(parser)
    for name, default, text in (
        ("join-timeout", 3.5, "since the last rank arrived, while others are missing"),
        ("patience", 2.5, "without a sign of life, after which a rank is dead"),
        ("step-timeout", 600.0, "that a living rank may let the others wait"),
    ):
        parser.add_argument(
            f"--{name}", type=float, default=default, metavar="S",
            help=f"seconds {text} (default {default:g})",
        )  # fmt: skip
    return parser


def _exit_now(code: int) -> NoReturn:
    """Ends the process without Python's usual cleanup.

    A thread may wait for a store that never answers, for which the cleanup would wait.
    """
    process_bench.worker.end()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit_now(main())
