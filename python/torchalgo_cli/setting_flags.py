# SPDX-License-Identifier: BSD-3-Clause
"""Makes flags from the fields of torchalgo.Settings, which it reads without importing torch.

A field `name` becomes the flag --name, with the first sentence of the field's text as its help. The
types of the fields are:

    bool: a flag without a value, which sets True.
    a Literal: a flag with these words.
    int that ends in _bytes: --name without this ending, with a size such as 20MB.
    float: a number above 0.
    a path or False: --name FILE and --no-name.

A flag that is not given is not in the result, so that `Settings` itself has the default.
"""

from __future__ import annotations

import argparse
import ast
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from torchalgo_cli import arguments
from torchalgo_cli.install import PACKAGE

SOURCE = PACKAGE / "_capture" / "settings.py"
OF_PYTHON = ("progress",)  # a function can be its value; the flag --quiet sets False


class Field(NamedTuple):
    """A field of Settings: its type as it is written, and the first sentence of its text."""

    name: str
    type: str
    text: str


@cache
def fields() -> list[Field]:
    """Returns the fields of Settings in their order."""
    source = SOURCE.read_text()
    kinds = dict(re.findall(r"^(\w+) = (Literal\[.*\])$", source, re.MULTILINE))
    # The fields alone, since parsing the whole file takes several times as long.
    (own,) = ast.parse(source[source.index("class Settings:") :].partition("\n    def ")[0]).body
    assert isinstance(own, ast.ClassDef)
    texts = _texts(ast.get_docstring(own) or "")
    annotated = [node for node in own.body if isinstance(node, ast.AnnAssign)]
    found = [(ast.unparse(node.target), ast.unparse(node.annotation)) for node in annotated]
    return [Field(name, kinds.get(kind, kind), texts[name]) for name, kind in found]


def _texts(docstring: str) -> dict[str, str]:
    """Returns the first sentence on each field in the part "Args:" of a docstring."""
    listed = docstring.partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE)
    return {name: re.split(r"\.(?:\s|$)", " ".join(text.split()))[0] for name, text in entries}


def add_settings(command: argparse.ArgumentParser) -> None:
    """Adds a flag for each field of Settings."""
    for field in fields():
        if field.name not in OF_PYTHON:
            _add(command, field)


def _add(command: argparse.ArgumentParser, field: Field) -> None:
    flag = f"--{field.name.removesuffix('_bytes').replace('_', '-')}"
    shared: dict[str, Any] = {
        "dest": field.name, "default": argparse.SUPPRESS, "help": field.text.replace("%", "%%"),
    }  # fmt: skip
    kind = field.type.removesuffix(" | None")
    if kind == "bool":
        command.add_argument(flag, action="store_true", **shared)
    elif kind.startswith("Literal["):
        words = ast.literal_eval(kind.removeprefix("Literal"))
        command.add_argument(flag, choices=words, **shared)
    elif kind == "int" and field.name.endswith("_bytes"):
        command.add_argument(flag, type=arguments.byte_count, metavar="BYTES", **shared)
    elif kind == "float":
        command.add_argument(flag, type=arguments.bound, metavar="E", **shared)
    elif "Path" in kind:
        group = command.add_mutually_exclusive_group()
        group.add_argument(flag, type=Path, metavar="FILE", **shared)
        shared["help"] = f"use no {field.name.replace('_', ' ')}"
        group.add_argument(f"--no-{flag[2:]}", action="store_false", **shared)
    else:
        raise AssertionError(f"no flag has the type {kind} of Settings.{field.name}")


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of `Settings` for the flags that were given."""
    given = {f.name: getattr(args, f.name) for f in fields() if hasattr(args, f.name)}
    return {**given, "progress": not args.quiet}
