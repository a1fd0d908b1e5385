# SPDX-License-Identifier: BSD-3-Clause
"""The class of all parsers, and the types of arguments."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

EXIT_USAGE = 2
# Commands of earlier versions, and what to write instead.
GONE = {
    "candidates": "explain PROBLEM, or explain MODEL --candidates",
    "check-outputs": "check MODEL DATA",
    "check-plan": "check FILE.plan.json",
    "completion": "the package shtab, for torchalgo_cli.parser.build_parser",
    "diff": "compare",
    "lint": "check MODEL --input SHAPE",
    "pareto": "explain MODEL --over workspace",
    "profile": "bench PROBLEM, or bench MODEL --layers",
}
_T = TypeVar("_T")


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
            if name == "command" and word in GONE:
                hint = f" any more: use {GONE[word]}"
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


# ---- types ---------------------------------------------------------------------------------------


def _reader(
    convert: Callable[[str], _T], is_right: Callable[[_T], bool], expected: str
) -> Callable[[str], _T]:
    """Returns a type of arguments, which says what was given and what is expected."""

    def read(text: str) -> _T:
        try:
            if is_right(value := convert(text)):
                return value
        except (ValueError, KeyError):
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is no {expected}")

    return read


def _bytes(text: str) -> int:
    number = text.rstrip("BGMk")
    units = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
    return int(number) * units[text[len(number) :]]


def _override(text: str) -> tuple[str, str]:
    glob, _, primitive = text.partition("=")
    return glob, primitive


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


positive = _reader(int, lambda value: value > 0, "number above 0")
seconds = _reader(float, lambda value: value > 0, "number of seconds above 0, such as 90 or inf")
bound = _reader(float, lambda value: 0 < value < float("inf"), "number above 0, such as 1e-4")
byte_count = _reader(_bytes, lambda value: value >= 0, "size such as 20MB or 1048576")
mebibytes = _reader(float, lambda value: 0 <= value < 1 << 40, "size in MiB such as 64")
day = _reader(
    lambda text: datetime.date.fromisoformat(text).isoformat(), bool, "day such as 2026-11-20"
)
override = _reader(_override, all, "override such as 'layer1.*.conv2=cpu.winograd_f4x4_3x3'")
shape = _reader(_shape, lambda sizes: min(sizes) > 0, "shape such as 1x3x224x224")


def shapes(text: str) -> list[tuple[int, ...]]:
    return [shape(part) for part in text.split(",")]


def thread_count(text: str) -> int:
    most = 4 * (os.cpu_count() or 1)  # more threads only wait for each other
    if positive(text) > most:
        raise argparse.ArgumentTypeError(f"{text} threads: this machine has room for {most}")
    return int(text)
