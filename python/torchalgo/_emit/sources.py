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
_TWO_SOURCES = {"ir/problem.h": ("ir/problem_text.cpp",)}  # headers with a source of another name
_OF_EACH = (f"{RUNTIME}/network.cpp", "ir/thread_pool.cpp")  # of each program
# A program names its own algorithms, and each instruction set has an isa.h of its own.
_NEVER = {"cpu_algo/list.cpp", f"{_KERNELS}/isa.h"}


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
        file = f"{RUNTIME}/{path}" if path.startswith("fmt/") else path
        is_of_system = not (ROOT / file).is_file()  # a header
        if path in found or path in _NEVER or is_of_system:
            continue
        found[path] = read(file)
        waiting += _INCLUDE.findall(found[path])
        if path.endswith(".h"):
            waiting += [path.removesuffix(".h") + ".cpp", *_TWO_SOURCES.get(path, ())]
    return dict(sorted(found.items()))


def is_kernel(path: str) -> bool:
    """Returns whether a source is built for an instruction set."""
    return path.startswith(f"{_KERNELS}/") and path.endswith(".cpp")
