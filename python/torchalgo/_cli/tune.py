# SPDX-License-Identifier: BSD-3-Clause
"""The command `torchrun ... -m torchalgo tune`: each process is one rank. See docs/tune.md."""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from torchalgo._base.error_code import with_inner_code
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._cli.tuning_flags import on_device, tuning_arguments
from torchalgo._distributed.ranks import Ranks, SharedError
from torchalgo._run.model_files import load_model
from torchalgo._run.optimized import Optimized
from torchalgo.tune import plan_hash, tune
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


def connect(launch: Launch, timeout_s: float) -> None:
    """Makes the default group of torch.distributed, unless there is only one rank.

    Raises: torchalgo.Error if the ranks cannot reach each other within `timeout_s`.
    """
    if launch.size == 1:
        return
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    except ValueError as problem:
        raise Error(
            f"TA6001 tune: WORLD_SIZE is {launch.size}, but the variables that say where the ranks"
            f" meet are wrong ({problem}): start the ranks with torchrun"
        ) from None
    except RuntimeError as problem:
        reason = (str(problem).splitlines() or [""])[0]
        raise Error(
            f"TA6002 tune: rank {launch.rank} cannot reach the others ({reason}): check the address"
            " and that all ranks run"
        ) from None


def pin(launch: Launch) -> None:
    """Gives this rank its part of the host's cores, and sets torch's threads to their number.

    Raises: torchalgo.Error if there are more ranks than cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    count = len(cores) // launch.local_size
    if not count:
        raise Error(
            f"TA6003 tune: --pin: got {launch.local_size} ranks on a host with {len(cores)} cores,"
            " expected a core for each: start fewer ranks or leave --pin out"
        )
    os.sched_setaffinity(0, cores[launch.local_rank * count :][:count])
    torch.set_num_threads(count)


def run(args: argparse.Namespace) -> int:
    """Runs one rank and returns its exit code, the same on every rank.

    Rank 0 prints an error that all ranks raise. A rank that loses another one says so itself.
    """
    launch = Launch.read(os.environ)
    if launch.rank and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 handles it, and makes a plan
    connect(launch, args.timeout)
    try:
        return _run(args, launch)
    except SharedError:
        if launch.rank == 0:
            raise
        return EXIT_ERROR
    finally:
        if launch.size > 1:
            dist.destroy_process_group()


def _run(args: argparse.Namespace, launch: Launch) -> int:
    with Ranks().step():
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

    optimized = tune(model, inputs, keep=keep, **tuning_arguments(args))
    if launch.rank == 0:
        text = f"plan {plan_hash(optimized.plan)} on all {launch.size} ranks"
        print(optimized.plan.to_json() if args.json else f"{optimized.plan}\n{text}", flush=True)
    return EXIT_INTERRUPTED if optimized.is_interrupted else 0
