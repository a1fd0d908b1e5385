# SPDX-License-Identifier: BSD-3-Clause
"""Flags that several commands have in common, and the exit code after an interrupted tuning."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchalgo._C import Error
from torchalgo._capture.settings import Settings
from torchalgo._ir.plan import Plan
from torchalgo._run.load import load_plans
from torchalgo_cli import EXIT_INTERRUPTED
from torchalgo_cli.waiting import tell


def tuning_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of `optimize` for the flags that parser.add_tuning defines."""
    settings = Settings(
        mode=args.mode,
        strict=args.strict,
        run_untimed=args.run_untimed,
        cost_db=False if args.no_cost_db else args.cost_db,
        fresh=args.fresh,
        workspace_limit_bytes=args.workspace_limit,
        runtime_compiled=args.runtime_compiled,
        all_knobs=args.all_knobs,
        weight_limit_bytes=args.weight_limit,
        memory_limit_bytes=getattr(args, "memory_limit", None),  # only of `optimize`
        max_componentwise_error=args.max_componentwise_error,
        progress=not args.quiet,
    )
    return {
        "overrides": dict(args.override) or None,
        "budget_s": args.budget,
        "max_error": args.max_error,
        "settings": settings,
    }


def on_device(args: argparse.Namespace, model: nn.Module, local_rank: int = 0) -> nn.Module:
    """Returns the model on the device of `--device`.

    Args:
        local_rank: the number of this process on its host. On a host with several GPUs, each
            process gets the next one.

    Raises: torchalgo.Error if there is no such device.
    """
    if args.device == "cuda":
        if not torch.cuda.is_available():
            raise Error(
                f"TA5002 {args.command}: --device cuda: there is no GPU that torch can use; use"
                " --device cpu"
            )
        where = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(where)
        model = model.to(where)
    return model


def plans_in(path: Path) -> Plan | dict[str, Plan]:
    """Reads the plans of `--plan`."""
    plans = load_plans(path)
    return plans if len(plans) > 1 else next(iter(plans.values()))


def end_code(is_interrupted: bool, note: str) -> int:
    """Returns the exit code of a command. Prints `note` if Ctrl-C ended its tuning early."""
    if not is_interrupted:
        return 0
    tell(f"interrupted; {note}")
    return EXIT_INTERRUPTED
