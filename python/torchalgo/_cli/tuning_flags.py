# SPDX-License-Identifier: BSD-3-Clause
"""Reads flags that several commands have: of models, tunings and plans."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchalgo._api.optimize import optimize
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._capture.settings import Settings
from torchalgo._ir.plan import Plan
from torchalgo._run.load import load_plans
from torchalgo._run.model_files import load_model
from torchalgo._run.optimized import Optimized
from torchalgo_cli import EXIT_INTERRUPTED
from torchalgo_cli.setting_flags import settings_of
from torchalgo_cli.waiting import tell, told


def tuning_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of `optimize` for the flags that parser.add_tuning defines."""
    return {
        "overrides": dict(args.override) or None,
        "budget_s": args.budget,
        "settings": Settings(**settings_of(args)),
        **error_arguments(args),
    }


def error_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Returns `max_error` if it is given, so that functions keep their own default."""
    return {} if args.max_error is None else {"max_error": args.max_error}


def refuse(args: argparse.Namespace, what: str, *flags: str) -> None:
    """Raises torchalgo.Error if one of `flags` is given, since it does not go with `what`."""
    for flag in flags:
        name = {"-o": "report"}.get(flag, flag.strip("-"))
        if getattr(args, name) not in (None, False, [], "cpu"):  # the defaults
            raise Error(f"TA7201 {args.command}: {flag} does not go with {what}: leave {flag} out")


def need_input(args: argparse.Namespace, name: str) -> None:
    """Raises torchalgo.Error if the model `name` is given without --input."""
    if not args.input:
        raise Error(
            f"TA7201 {args.command}: {name} is a model and needs its input, such as --input"
            " 1x3x224x224"
        )


def loaded(args: argparse.Namespace, name: str) -> nn.Module:
    """Loads a model to the device of `--device`. A download or a large file may take minutes."""
    with told(f"loading {name}", args.quiet or args.json, at_once=False):
        return on_device(args, load_model(name))


def on_device(args: argparse.Namespace, model: nn.Module, local_rank: int = 0) -> nn.Module:
    """Returns the model on the device of `--device`.

    Args:
        local_rank: the number of this process on its host. On a host with several GPUs, each
            process gets the next one.

    Raises: torchalgo.Error if there is no such device.
    """
    if args.device == "cpu":
        return model
    if args.device != "cuda":
        raise Error(
            f"TA7201 {args.command}: --device {args.device} does not go with a model that runs:"
            " expected cpu or cuda"
        )
    if not torch.cuda.is_available():
        raise Error(
            f"TA5002 {args.command}: --device cuda: there is no GPU that torch can use; use"
            " --device cpu"
        )
    where = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(where)
    return model.to(where)


def optimized_model(
    args: argparse.Namespace, name: str, plan: Plan | dict[str, Plan] | None = None
) -> Optimized:
    """Loads a model and plans it for --input or --shapes, or applies a plan."""
    model = loaded(args, name)
    inputs = None if args.shapes else random_inputs(model, args.input)
    return optimize(
        model, inputs, shapes=args.shapes, plan=plan, objective=args.objective,
        **tuning_arguments(args),
    )  # fmt: skip


def plans_in(path: Path) -> Plan | dict[str, Plan]:
    """Reads the plans of `--plan`."""
    plans = load_plans(path)
    return plans if len(plans) > 1 else next(iter(plans.values()))


def print_result(args: argparse.Namespace, data: Any, text: object) -> None:
    """Prints `data` as JSON with `--json`, otherwise `text`."""
    print(json.dumps(data, indent=1) if args.json else text)


def end_code(is_interrupted: bool, note: str) -> int:
    """Returns the exit code of a command. Prints `note` if Ctrl-C ended its tuning early."""
    if not is_interrupted:
        return 0
    tell(f"interrupted; {note}")
    return EXIT_INTERRUPTED
