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
_FLAGS = f"{_KERNELS}/flags.cmake"
_INCLUDE = re.compile(r'^#include [<"]([a-z0-9_/]+\.h)[>"]', re.MULTILINE)
# Headers with a source of another name.
_TWO_SOURCES = {
    "ir/problem.h": ("ir/problem_text.cpp",),
    f"{_KERNELS}/scale_shift.h": (f"{_KERNELS}/scale_shift_bf16.cpp",),
}
_OF_EACH = (f"{RUNTIME}/network.cpp", "ir/thread_pool.cpp")  # of each program
# The list names all algorithms, and a program names its own. The isa.h is one of each set.
_NEVER = {"cpu_algo/list.cpp", f"{_KERNELS}/isa.h"}
# A program with gradients or transposed convolutions has the source of the product.
_WITHOUT_GRADIENTS = "cpu_algo/backward_data.h"


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


def bf16_kernels(isa: str) -> list[str]:
    """Returns the paths of the kernels that are built for `isa` because they multiply in bf16."""
    found = re.search(rf"^set\(bf16_sources_{isa} (.*)\)$", read(_FLAGS), re.MULTILINE)
    return [f"{_KERNELS}/{name}" for name in found[1].split()] if found else []


def sources_for(
    algorithms: Iterable[str], *, has_gradients: bool = False, bf16_isas: Iterable[str] = ()
) -> dict[str, str]:
    """Returns the texts of all files, by path, for these files of algorithms.

    A source brings the headers that it includes, and a header the source of the same name. A header
    below csrc/write/runtime takes the place of the product's one. `bf16_isas` are the sets whose
    kernels in bf16 the network calls.
    """
    found = {_FLAGS: read(_FLAGS)}
    waiting = [*_OF_EACH, *(f"cpu_algo/{name}.cpp" for name in sorted(algorithms))]
    while waiting:
        path = waiting.pop()
        if path in found or path in _NEVER:
            continue
        own = f"{RUNTIME}/{path}"
        has_own = (ROOT / own).is_file() and not (has_gradients and path == _WITHOUT_GRADIENTS)
        if not has_own and not (ROOT / path).is_file():
            continue  # a header of the system
        found[path] = read(own if has_own else path)
        waiting += _INCLUDE.findall(found[path])
        if path.endswith(".h") and not has_own:
            waiting += [path.removesuffix(".h") + ".cpp", *_TWO_SOURCES.get(path, ())]
    for path in (path for isa in bf16_isas for path in bf16_kernels(isa)):
        headers = [header for header in _INCLUDE.findall(read(path)) if "/" in header]
        if all(header in found for header in headers):  # as the build for other sets has them
            found[path] = read(path)
    return dict(sorted(found.items()))


def is_kernel(path: str) -> bool:
    """Returns whether a source is built for an instruction set."""
    return path.startswith(f"{_KERNELS}/") and path.endswith(".cpp")
