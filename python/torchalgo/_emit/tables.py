# SPDX-License-Identifier: BSD-3-Clause
"""The tables of a network as C++."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchalgo import _C
from torchalgo._emit.network import Call, Copy, Network, Place

_LAYOUTS = {"nchw": "kNchw", "nhwc": "kNhwc", "nhwc.bf16": "kNhwcBf16", "nChw16c": "kNChw16c"}


def tables_of(network: Network) -> dict[str, str]:
    """Returns the parts of the program that differ between networks, by name in the template."""
    tables: list[str] = []
    steps: list[str] = []
    for number, call in enumerate(network.calls):
        tables += [f"constexpr Place kSrc{number}[] = {_list(map(_place, call.src))};"]
        steps += [f"    // {number}: {in_comment(call.layer)}", _step(number, call)]
    copies = [_copy(copy) for copy in network.copies]
    return {
        "declarations": "\n".join(_declarations(network)),
        "tables": "\n".join(tables),
        "steps": "\n".join(steps),
        "copies": f"constexpr Copy kCopies[] = {_list(copies)};" if copies else "",
        "copy_list": "kCopies" if copies else "{}",
        "hash": f"0x{_C.content_hash(network.weights):016x}ULL",
    }


def in_comment(text: str) -> str:
    """Returns a text of the model for a comment of C++: letters, digits and a few signs."""
    return re.sub(r"[^A-Za-z0-9_.#+-]", "_", text)[:100]


def _declarations(network: Network) -> list[str]:
    files = sorted({call.file for call in network.calls})
    kinds = {True: "Algorithms", False: "Algorithm"}
    return [f"{kinds[file in network.families]} {file}(const std::string& isa);" for file in files]


def _step(number: int, call: Call) -> str:
    src, dst = (f"Layout::{_LAYOUTS[word]}" for word in (call.primitive.src, call.primitive.dst))
    places = ", ".join(map(_place, (call.residual, call.dst, call.workspace)))
    return (
        f"    {{[](const Problem& problem) {{\n"
        f"       return bind_step(cpu::{call.file}(kIsa), {_text(call.primitive.name)}, problem,\n"
        f"                        {src}, {dst}, device());\n"
        f"     }},\n"
        f"     []() -> Problem {{ {_C.problem_code(call.problem)} return problem; }},\n"
        f"     kSrc{number}, {places}, {call.workspace_bytes}}},"
    )


def _text(text: str) -> str:
    """Returns a literal. Names of primitives have no other signs than these."""
    assert re.fullmatch(r"[A-Za-z0-9_.+=,{}@x:-]*", text), text
    return f'"{text}"'


def _place(place: Place) -> str:
    if place.memory == "none":
        return "{}"
    return f"{{Memory::k{place.memory.capitalize()}, {place.number}, {place.offset}}}"


def _copy(copy: Copy) -> str:
    return f"{{{_place(copy.source)}, {_place(copy.target)}, {copy.bytes}}}"


def _list(items: object) -> str:
    parts: Sequence[str] = list(items)  # type: ignore[call-overload]
    return f"{{{', '.join(parts)}}}"
