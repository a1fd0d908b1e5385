# SPDX-License-Identifier: BSD-3-Clause
"""Errors for keywords that a function does not have. They say which one it has instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from torchalgo._C import Error
from torchalgo._ir.choices import near

P = ParamSpec("P")
R = TypeVar("R")


def known_keywords(elsewhere: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator. Its function raises torchalgo.Error for a keyword that it lacks.

    Python's TypeError names neither the nearest keyword nor one that is at another function.

    Args:
        elsewhere: keywords that other functions have, with the rest of a sentence about each.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own = [name for name in inspect.signature(function).parameters if name != "self"]
        caller = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for word in kwargs:
                if word not in own:
                    raise Error(f"TA1005 {caller}: {_instead(word, own, elsewhere)}")
            return function(*args, **kwargs)

        return checked

    return decorate


def _instead(word: str, own: list[str], elsewhere: Mapping[str, str]) -> str:
    if word in elsewhere:
        return f"{word} {elsewhere[word]}"
    text = f"there is no argument {word}"
    if close := near(word, own):
        return text + close
    if close := near(word, list(elsewhere)):
        return (
            f"{text}{close} It {next(elsewhere[name] for name in elsewhere if repr(name) in close)}"
        )
    return f"{text}, expected one of {', '.join(own)}"
