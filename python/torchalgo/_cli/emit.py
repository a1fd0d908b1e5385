# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo emit`."""

from __future__ import annotations

import argparse
import dataclasses

from torchalgo import Error
from torchalgo._api.emit import emit
from torchalgo._cli.tuning_flags import print_result
from torchalgo._run.load import load
from torchalgo_cli.waiting import tell


def run(args: argparse.Namespace) -> int:
    """Writes the plan of a file as C++. Returns the exit code."""
    fast = load(args.source)
    shapes = [*fast.plans]
    if args.shape is not None and args.shape not in shapes:
        raise Error(
            f"TA2802 emit: --shape {args.shape}: {args.source} has no such plan, expected one of"
            f" {', '.join(shapes)}"
        )
    if args.shape is not None:
        fast = fast.by_shape[args.shape]
    written = emit(
        fast, args.folder, isa=args.isa, weights=args.weights, threads=args.threads, name=args.name
    )
    if args.shape is None and len(shapes) > 1:
        tell(f"the program is for {shapes[0]}; --shape writes that for {' or '.join(shapes[1:])}")
    data = dataclasses.asdict(written) | {"folder": str(written.folder)}
    print_result(args, data, written)
    return 0
