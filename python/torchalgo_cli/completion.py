# SPDX-License-Identifier: BSD-3-Clause
"""Prints the script with which a shell completes the arguments of `torchalgo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from torchalgo_cli.install import InstallError

SHELLS = ("bash", "zsh", "tcsh")

# Arguments that may be a file, but have another type than Path.
_MAY_BE_FILES = ("model", "target", "plan_or_model", "original")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Returns the script for one of SHELLS.

    Raises: InstallError if the package shtab is missing.
    """
    try:
        import shtab
    except ImportError:
        raise InstallError(
            "TA7302 completion: the package shtab is missing: pip install shtab"
        ) from None
    _mark_files(parser, shtab.FILE)
    text: str = shtab.complete(parser, shell)
    return text


def _mark_files(parser: argparse.ArgumentParser, completion: object) -> None:
    """Sets `completion` for all arguments that name files, also in the parsers of commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _mark_files(each, completion)
        elif action.type is Path or action.dest in _MAY_BE_FILES:
            action.complete = completion  # type: ignore[attr-defined]
