# SPDX-License-Identifier: BSD-3-Clause
"""Codes of errors: the first word of an error's text, such as TA1101. docs/errors.md lists them."""

from __future__ import annotations

import re

from torchalgo._C import Error

ERROR_DOC = """The error of a wrong call, or of a failure that the caller can mend.

The text begins with a code, such as TA1101, and says what was given, what was expected and how to
fix it. `error.code` is the code, "" if the text has none. docs/errors.md explains each code.

Example: torchalgo.optimize(1)  # TA1101 optimize: model is int, expected torch.nn.Module
"""

_CODE = re.compile(r"\bTA\d{4} ")
_LEADING = re.compile(r"TA\d{4}(?= )")


def code_of(problem: BaseException) -> str:
    """Returns the code at the start of an error's text; empty if there is none."""
    found = _LEADING.match(str(problem))
    return found[0] if found else ""


def without_code(text: str) -> str:
    """Returns the text of an error without its codes, for a text that is not shown as an error."""
    return _CODE.sub("", text)


def with_inner_code(text: str) -> str:
    """Returns the text of an error that wraps the text of another, with one code in front.

    The code is that of the wrapped error, which names the cause. If the wrapped text has no code,
    the code of the wrapping text remains.
    """
    codes = _CODE.findall(text)
    return (codes[-1] if codes else "") + without_code(text)


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
