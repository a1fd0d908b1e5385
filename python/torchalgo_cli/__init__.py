# SPDX-License-Identifier: BSD-3-Clause
"""The command `torchalgo`: reads its arguments, then imports what the command needs.

This package does not import torch or torchalgo until a command runs. So `--help`, a wrong argument
and a missing file are answered at once.

Exit codes:
    0: done.
    1: an error, printed as one line on stderr, or a check that failed.
    2: wrong usage. For `check`: any error.
    130: interrupted by Ctrl-C, also if a plan was written with the costs measured so far.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from torchalgo_cli.arguments import EXIT_USAGE
from torchalgo_cli.doctor import examine_installation, print_facts
from torchalgo_cli.files import FileError, check_files
from torchalgo_cli.parser import build_parser
from torchalgo_cli.waiting import tell, told

EXIT_ERROR, EXIT_INTERRUPTED = 1, 130
WRONG_COMBINATION = "TA7201"  # of wrong arguments that the parser cannot detect
MOST_CHARACTERS = 500  # longer errors are cut

# These commands work for seconds to minutes, so they say at once that they have begun.
_LONG = ("optimize", "bench", "check", "demo")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        try:
            with _warnings_as_lines():
                return _run_command(argv)
        finally:  # argparse exits after --help: an error of the flush must not come later
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:  # `torchalgo ... | head`
        _drop_stdout()
        return 0
    except (FileError, ImportError) as problem:
        return _fail(str(problem), _error_code(argv))
    except OSError as problem:
        _drop_stdout()  # if the disk is full, the rest of the buffer cannot be written either
        text = f"{problem.filename or 'stdout'}: {problem.strerror or problem}"
        return _fail(text, _error_code(argv))


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Shows torchalgo's warnings without a line of Python code, since the user wrote none."""
    before = warnings.formatwarning

    def in_a_line(message: Warning | str, *place: Any, **source: Any) -> str:
        text = str(message)
        return f"{text}\n" if text.startswith("torchalgo: ") else before(message, *place, **source)

    warnings.formatwarning = in_a_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def _error_code(argv: Sequence[str] | None) -> int:
    """Returns the exit code of an error. For `check` it is another one: 1 means a finding there."""
    words = sys.argv[1:] if argv is None else argv
    return EXIT_USAGE if list(words[:1]) == ["check"] else EXIT_ERROR


def _run_command(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words == ["help"]:
        parser.print_help(None if words else sys.stderr)
        return 0 if words else EXIT_USAGE
    args = parser.parse_args(words)
    if args.command != "tune":  # its ranks check them together, and only one tells the error
        check_files(args)
    is_silent = args.command not in _LONG or getattr(args, "quiet", False) or args.json
    with told(f"{args.command}: loading PyTorch", is_silent or "torch" in sys.modules):
        try:
            from torchalgo._C import Error

            run = _function_of(args)
        except (ImportError, OSError) as problem:
            if args.command == "doctor":
                print_facts(examine_installation(problem), args.json)
            if isinstance(problem, OSError):  # of torch's own libraries
                return _fail(f"torch cannot be imported: {problem}", _error_code(argv))
            raise
    try:
        return run(args)
    except Error as problem:
        is_wrong_usage = problem.code == WRONG_COMBINATION
        return _fail(str(problem), EXIT_USAGE if is_wrong_usage else _error_code(argv))


def _function_of(args: argparse.Namespace) -> Callable[[argparse.Namespace], int]:
    """Returns the function `run` of the command's module. Importing it imports torch."""
    if args.command == "db":
        return import_module("torchalgo._db.commands").run  # type: ignore[no-any-return]
    if args.threads is not None and args.command != "tune":
        import_module("torch").set_num_threads(args.threads)
    return import_module(f"torchalgo._cli.{args.command}").run  # type: ignore[no-any-return]


def _fail(text: str, code: int = EXIT_ERROR) -> int:
    """Prints an error as one line on stderr. Returns `code`."""
    line = " ".join(text.split()).removeprefix("torchalgo: ")
    if len(line) > MOST_CHARACTERS:
        line = f"{line[: MOST_CHARACTERS - 3]}..."
    tell(line)
    return code


def _drop_stdout() -> None:
    """Redirects stdout to /dev/null.

    At its end, Python writes the rest of the buffer, which would raise a second error.
    """
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
