# SPDX-License-Identifier: BSD-3-Clause
"""The command `torchrun ... -m torchalgo tune`: each process is one rank. See docs/tune.md."""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from torchalgo._base.error_code import with_inner_code
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._cli.tuning_flags import on_device, tuning_arguments
from torchalgo._measure import process_bench
from torchalgo._run.model_files import load_model
from torchalgo._run.optimized import Optimized
from torchalgo.tune import Ranks, plan_hash, tune
from torchalgo_cli import EXIT_ERROR, EXIT_INTERRUPTED
from torchalgo_cli.files import FileError, check_files


@dataclass(frozen=True)
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
            raise Error(f"TA6001 tune: {given}, expected integers, as torchrun sets them") from None
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
            f"TA6001 tune: WORLD_SIZE is {launch.size}, but MASTER_ADDR and MASTER_PORT, where the"
            " ranks meet, are not set: start the ranks with torchrun"
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
        raise Error(
            f"TA6002 tune: {who} cannot be reached at {host}:{port} ({reason}): check the address"
            " and that all ranks run"
        ) from None
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"attempt {attempt}", store), None if has_agent else 0


def pin(launch: Launch) -> None:
    """Gives this rank its part of the host's cores, and sets torch's threads to their number.

    Raises: torchalgo.Error if there are more ranks than cores, or the system cannot do it.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise Error(
            "TA6003 tune: --pin: this system cannot bind a process to cores: leave --pin out"
        )
    cores = sorted(os.sched_getaffinity(0))
    count = len(cores) // launch.local_size
    if not count:
        raise Error(
            f"TA6003 tune: --pin: got {launch.local_size} ranks on a host with {len(cores)} cores,"
            " expected a core for each: start fewer ranks or leave --pin out"
        )
    os.sched_setaffinity(0, cores[launch.local_rank * count :][:count])
    torch.set_num_threads(count)


def run(args: argparse.Namespace) -> NoReturn:
    """Runs one rank and ends the process.

    Exit codes, the same on every rank: 0 done; 1 an error, which one rank prints on stderr.
    """
    _exit_now(run_rank(args))


def run_rank(args: argparse.Namespace) -> int:
    """Runs one rank and returns its exit code."""
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
        return _run(args, launch, ranks)
    except Error as problem:
        _tell(ranks, str(problem))
        return EXIT_ERROR


def _run(args: argparse.Namespace, launch: Launch, ranks: Ranks) -> int:
    with ranks:
        try:
            check_files(args)
        except FileError as problem:
            raise Error(with_inner_code(f"TA7101 {problem}")) from None
        if args.pin:
            pin(launch)
        if args.threads is not None:
            torch.set_num_threads(args.threads)
        torch.manual_seed(0)  # random weights are the same on all ranks
        model = on_device(args, load_model(args.model), launch.local_rank)
        inputs = random_inputs(model, args.input)

        def keep(optimized: Optimized) -> None:
            if args.output is not None:
                optimized.save(args.output)
            if args.plan_out is not None:
                optimized.plan.save(args.plan_out)

        optimized = tune(model, inputs, ranks, keep=keep, **tuning_arguments(args))
    if launch.rank == 0:
        text = f"plan {plan_hash(optimized.plan)} on all {launch.size} ranks"
        print(optimized.plan.to_json() if args.json else f"{optimized.plan}\n{text}", flush=True)
    return EXIT_INTERRUPTED if optimized.is_interrupted else 0


def _tell(ranks: Ranks | None, text: str) -> None:
    """Prints `text` on stderr as one line, on one rank only."""
    if ranks is None or ranks.rank == ranks.speaker:
        print(f"torchalgo: {' '.join(text.split())}", file=sys.stderr, flush=True)


def _exit_now(code: int) -> NoReturn:
    """Ends the process without Python's usual cleanup.

    A thread may wait for a store that never answers, for which the cleanup would wait.
    """
    process_bench.worker.end()
    sys.stdout.flush()
    os._exit(code)
