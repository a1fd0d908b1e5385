# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo bench`: times a model, a training step, or each algorithm of a layer."""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path
from typing import Any

import torch

from torchalgo._api.optimize import optimize
from torchalgo._api.optimize_training import optimize_training
from torchalgo._api.profile import profile
from torchalgo._capture.example_calls import random_inputs
from torchalgo._capture.settings import Settings
from torchalgo._cli.optimize import trained_model
from torchalgo._cli.processes import LoadTimes, time_processes
from torchalgo._cli.tuning_flags import (
    error_arguments,
    loaded,
    need_input,
    plans_in,
    print_result,
    refuse,
)
from torchalgo._measure.guard import PLAN
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._run.call_times import CallTimes
from torchalgo._run.optimized import Optimized
from torchalgo._train.guard import time_steps
from torchalgo._train.plan import TrainingPlan
from torchalgo_cli.files import is_problem

BUDGET_S = 60.0  # the most seconds for timing calls or steps


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    of_calls = "--plan", "--compile", "--processes"
    if is_problem(args.target):
        refuse(args, "a problem", "--training", "--layers", "--input", *of_calls)
        return _profile(args, args.target, None, device=args.device, directions=None)
    need_input(args, args.target)
    if args.layers:
        refuse(args, "--layers", *of_calls)
        model = loaded(args, args.target)
        directions = "all" if args.training else "forward"
        return _profile(args, model, random_inputs(model, args.input), directions=directions)
    if args.training:
        refuse(args, "--training", "--compile")
    if args.processes is not None:
        refuse(args, "--processes", "--training", "--compile", "--device")
    times = _times(args)
    print_result(args, times.records(), times)
    return 0


def _profile(args: argparse.Namespace, target: Any, inputs: Any, **options: Any) -> int:
    options["progress"] = not (args.json or args.quiet)
    found = profile(target, inputs, budget_s=args.budget, **options, **error_arguments(args))
    print(found.to_json() if args.json else found, end="" if args.json else "\n")
    return 0


def _times(args: argparse.Namespace) -> CallTimes | LoadTimes:
    if args.training:
        return _times_of_steps(args)
    if args.processes is not None:
        return _times_of_processes(args)
    return _optimized(args).compare(rounds=args.rounds, budget_s=BUDGET_S, compiled=args.compile)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    settings = Settings(run_untimed=True, progress=not (args.json or args.quiet))
    return {"settings": settings, **error_arguments(args)}


def _optimized(args: argparse.Namespace) -> Optimized:
    model = loaded(args, args.target)
    plan = None if args.plan is None else plans_in(args.plan)
    return optimize(model, random_inputs(model, args.input), plan=plan, **_options(args))


def _times_of_processes(args: argparse.Namespace) -> LoadTimes:
    with tempfile.TemporaryDirectory() as folder:
        plan = args.plan or Path(folder) / "plan.json"
        if args.plan is None:
            _optimized(args).plan.save(plan)
        return time_processes(args.target, args.input, plan, args.processes, args.rounds)


def _times_of_steps(args: argparse.Namespace) -> CallTimes:
    """Times steps of a planned model, of the model as it is, and of it in channels_last."""
    model = trained_model(args, args.target)
    inputs = random_inputs(model, args.input)
    own, plain, last = (copy.deepcopy(model) for _ in range(3))
    last = last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    plan = None if args.plan is None else TrainingPlan.load(args.plan)
    planned = optimize_training(own, inputs, plan=plan, **_options(args))
    sides = {PLAN: (own, planned), "as it is": (plain, plain), "channels_last": (last, last)}
    watch = WaitWatch()
    times = time_steps(sides, inputs, args.rounds, BUDGET_S)
    return CallTimes(times, waited=watch.share(), wanted_rounds=args.rounds)
