# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo emit`."""

from __future__ import annotations

import argparse
import dataclasses

from torchalgo._api.emit import emit
from torchalgo._cli.tuning_flags import print_result
from torchalgo._run.load import load


def run(args: argparse.Namespace) -> int:
    """Writes the plan of a file as C++. Returns the exit code."""
    written = emit(
        load(args.source), args.folder, isa=args.isa, weights=args.weights, threads=args.threads,
        name=args.name,
    )  # fmt: skip
    data = dataclasses.asdict(written) | {"folder": str(written.folder)}
    print_result(args, data, written)
    return 0
