# SPDX-License-Identifier: BSD-3-Clause
"""Errors that an op has raised inside of TorchScript's interpreter, without its traceback."""

from __future__ import annotations

import re

from torchalgo._base.error_code import with_inner_code
from torchalgo._C import Error


def own_error(problem: RuntimeError, function: str) -> Error | None:
    """Returns the error that one of our ops raised during a call of `function`.

    Returns None if another op raised it.
    """
    if isinstance(problem, Error):  # from a runner
        text = str(problem).replace(" torchalgo: ", " ", 1)
    else:
        own = re.search(r".*RuntimeError: (TA\d{4} )(?:torchalgo: )?(.*)", str(problem), re.DOTALL)
        if own is None:
            return None
        text = (own[1] + own[2]).strip()
    return Error(with_inner_code(f"TA1110 {function}: {text}"))


def plain_error(problem: RuntimeError, function: str) -> Error:
    """Returns torch's error."""
    text = str(problem).rpartition("RuntimeError: ")[2].strip()
    return Error(f"TA1110 {function}: {text}")
