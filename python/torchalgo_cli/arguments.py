# SPDX-License-Identifier: BSD-3-Clause
"""Parts that all parsers share: the class, common arguments, and the types of arguments."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

EXIT_USAGE = 2
EXIT_CODES = """exit codes:
  0    success
  1    an error, or a check that failed
  2    wrong arguments
  130  Ctrl-C; optimize still writes a plan if it had measured any cost"""

# The exit codes of other linters: a script can tell a finding (1) from an error (2).
LINT_EXIT_CODES = """exit codes:
  0    nothing found
  1    something found
  2    an error, or wrong arguments
  130  Ctrl-C"""


def near(word: str, known: Iterable[str]) -> str:
    """Returns the end of an error, "; did you mean ...?"; "" if no known word is similar."""
    found = get_close_matches(word, list(known), n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line and suggests similar words."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Prints one line on stderr and exits with 2."""
        choice = re.match(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message)
        if "required" in message or message.startswith("unrecognized"):
            message = self._unknown_flag() or message
        elif choice is not None:
            name, word, listed = choice.groups()
            known = re.findall(r"[\w.-]+", listed)
            hint = near(word, known) or f"; expected one of {', '.join(known)}"
            message = f"there is no {name} {word!r}{hint}"
        if sys.stderr is not None:
            print(f"{self.prog}: {message} (see {self._chosen().prog} --help)", file=sys.stderr)
        sys.exit(EXIT_USAGE)

    def _unknown_flag(self) -> str:
        """Returns a text on the first flag that this parser does not have; "" if there is none.

        argparse reports a missing argument first, although its flag may only be misspelled.
        """
        parser = self._chosen()
        known = list(parser._option_string_actions)
        for word in parser._given:
            flag = word.split("=")[0]
            is_flag = re.match(r"--?[A-Za-z]", flag) and flag != "--"
            if is_flag and not any(name.startswith(flag) for name in known):
                if not flag.startswith("--") and flag[:2] in known:
                    continue  # -oFILE
                return f"there is no flag {flag}{near(flag, known)}"
        return ""

    def _chosen(self) -> Parser:
        """Returns the parser of the command that was given, at any depth."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word in self._given:
                    if word in action.choices:
                        chosen = action.choices[word]
                        assert isinstance(chosen, Parser)
                        return chosen._chosen()
        return self


def add_parser(commands: Any, name: str, text: str, more: str = "", example: str = "") -> Any:
    """Adds a command or a verb.

    Args:
        text: one line for the list of commands.
        more: what the command's own help says after this line.
        example: the arguments of a call that works.
    """
    description = textwrap.fill(f"{text[0].upper()}{text[1:]}. {more}", 79)
    call = f"example:\n  {example}\n\n" if example else ""
    return commands.add_parser(
        name, help=text, description=description, epilog=call + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def add_cost_db(parser: Any) -> None:
    parser.add_argument(
        "--cost-db", type=Path, metavar="FILE",
        help="the cost database (default: costs.sqlite3 in $TORCHALGO_CACHE_DIR, or in"
        " ~/.cache/torchalgo)",
    )  # fmt: skip


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def seconds(text: str) -> float:
    """Reads a time budget in seconds. "inf" means no limit."""
    return _number(text, "number of seconds above 0, such as 90 or inf")


def bound(text: str) -> float:
    value = _number(text, "number above 0, such as 1e-4")
    if value == float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no bound such as 1e-4")
    return value


def _number(text: str, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:  # NaN, too
        raise argparse.ArgumentTypeError(f"{text!r} is no {expected}")
    return value


def byte_count(text: str) -> int:
    units = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
    match = re.fullmatch(r"(\d+)(|B|kB|MB|GB)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 20MB or 1048576")
    return int(match[1]) * units[match[2]]


def mebibytes(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 <= size < 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is no size in MiB such as 64")
    return size


def day(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day such as 2026-11-20") from None


def thread_count(text: str) -> int:
    most = 4 * (os.cpu_count() or 1)  # more threads only wait for each other
    if positive(text) > most:
        raise argparse.ArgumentTypeError(f"{text} threads: this machine has room for {most}")
    return int(text)


def shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape such as 1x3x224x224")
    return tuple(map(int, text.split("x")))


def shapes(text: str) -> list[tuple[int, ...]]:
    return [shape(part) for part in text.split(",")]


def override(text: str) -> tuple[str, str]:
    glob, _, primitive = text.partition("=")
    if not glob or not primitive:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no override such as 'layer1.*.conv2=cpu.winograd_f4x4_3x3'"
        )
    return glob, primitive
