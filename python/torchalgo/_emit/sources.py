# SPDX-License-Identifier: BSD-3-Clause
"""The sources of kernels that a network needs, and those that they include."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from torchalgo import Error

ROOT = Path(__file__).resolve().parent.parent / "share" / "sources"
RUNTIME = "write/runtime"
_KERNELS = "cpu_algo/kernels"
_INCLUDE = re.compile(r'^#include [<"]([a-z0-9_/]+\.h)[>"]', re.MULTILINE)
_ISA = f"{_KERNELS}/isa.h"  # each instruction set has one of its own
_TWO_SOURCES = {"ir/problem.h": ("ir/problem_text.cpp",)}  # headers with a source of another name
_OF_EACH = (f"{RUNTIME}/network.cpp", "ir/thread_pool.cpp")  # of each program
# The list names all algorithms, and a program names its own.
_NEVER = {"cpu_algo/list.cpp"}


def read(path: str) -> str:
    """Returns the text of a source.

    Raises: torchalgo.Error if this torchalgo was installed without its sources.
    """
    try:
        return (ROOT / path).read_text()
    except OSError as error:
        raise Error(
            f"TA2803 emit: the sources of the kernels are missing ({error.filename}): install"
            " torchalgo again"
        ) from None


def sources_for(algorithms: Iterable[str]) -> dict[str, str]:
    """Returns the texts of all files, by path, for these files of algorithms.

    A source brings the headers that it includes, and a header the source of the same name.
    """
    found: dict[str, str] = {}
    waiting = [*_OF_EACH, *(f"cpu_algo/{name}.cpp" for name in sorted(algorithms))]
    while waiting:
        path = waiting.pop()
        if path in found or path in _NEVER:
            continue
        if path.startswith("fmt/"):
            found[path] = read(f"{RUNTIME}/{path}")
            waiting += _included(found[path])
            continue
        if path == _ISA:
            continue
        if not (ROOT / path).is_file():
            continue  # a header of the system
        found[path] = read(path)
        waiting += _included(found[path])
        if path.endswith(".h"):
            waiting += [path.removesuffix(".h") + ".cpp", *_TWO_SOURCES.get(path, ())]
    return dict(sorted(found.items()))


def _included(text: str) -> list[str]:
    return _INCLUDE.findall(text)


def is_kernel(path: str) -> bool:
    """Returns whether a source is built for an instruction set."""
    return path.startswith(f"{_KERNELS}/") and path.endswith(".cpp")
