# SPDX-License-Identifier: BSD-3-Clause
"""docs/api.md lists all public names, and no other."""

from __future__ import annotations

import inspect
import re
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest

import torchalgo
from torchalgo import dynamo, tune

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
EXAMPLE = re.compile(r"^ {8}(with |for |print\(|torchalgo\.|[\w., ]+ = )", re.MULTILINE)
MODULES = {"backends", "dynamo", "nn", "pbqp", "tune"}  # of __all__, documented by their members


def documented() -> list[str]:
    """The names in the first columns of the page's tables, without "torchalgo."."""
    first = [
        line.split(" | ")[0] for line in PAGE.read_text().splitlines() if line.startswith("| ")
    ]
    return [name for cell in first for name in re.findall(r"`torchalgo\.([\w.]+)", cell)]


def members(module: ModuleType) -> set[str]:
    """The functions and classes that a module defines for its users."""
    found = vars(module).items()
    own = [name for name, value in found if getattr(value, "__module__", "") == module.__name__]
    is_code = {
        n for n in own if inspect.isclass(vars(module)[n]) or inspect.isfunction(vars(module)[n])
    }
    return {name for name in is_code if not name.startswith("_")}


def test_every_name_of_the_page_is_there_and_is_explained() -> None:
    assert tune.tune and dynamo.backend
    for name in documented():
        value = attrgetter(name)(torchalgo)
        if inspect.isclass(value) or inspect.isroutine(value):
            text = value.__doc__ or ""
            is_error = inspect.isclass(value) and issubclass(value, Exception)
            assert is_error or "Example:" in text or EXAMPLE.search(text), f"{name} has no example"


def test_the_page_has_every_name_of_the_package() -> None:
    names = documented()
    assert len(names) == len(set(names))
    assert {name for name in names if "." not in name} == set(torchalgo.__all__) - MODULES


@pytest.mark.parametrize("module", ["dynamo", "nn", "pbqp"])
def test_the_page_has_every_name_of_a_module(module: str) -> None:
    names = {name.partition(".")[2] for name in documented() if name.startswith(f"{module}.")}
    assert names == members(getattr(torchalgo, module))


def test_no_public_function_has_the_name_of_its_module() -> None:
    private = [path.stem for path in Path(torchalgo.__file__).parent.glob("*.py")]
    functions = {n for n in torchalgo.__all__ if inspect.isfunction(getattr(torchalgo, n))}
    assert functions.isdisjoint(private)
