# SPDX-License-Identifier: BSD-3-Clause
"""Converts a user's choice of an algorithm to the text that ops, flags and plans hold.

The text is `auto`, which chooses nothing, or entries separated by `;`. An entry is
`[dtype:]primitive`. The first entry that applies to a tensor's device and compute type is used. If
no entry applies, the next source decides. The sources in their order are argument, context, flag,
plan.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Union, get_args

import torch

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._ir.costs import algorithm_of

Direction = Literal["fwd", "bwd_data", "bwd_filter"]
Choice = Union[None, int, str, Mapping[Any, "Choice"], Sequence["Choice"]]  # noqa: UP007

AUTO = "auto"
FREE = "free"
DType = Literal["f64", "f32", "tf32", "f16", "bf16"]
DTYPES: tuple[DType, ...] = get_args(DType)
DEVICES = ("cpu", "cuda")

TORCH_DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}
_NAME = re.compile(r"[a-z]\w*(\.\w+)+(\{[^{};]*\})?(@\w+)?")
_ENUM_PREFIX = {
    "fwd": "CUDNN_CONVOLUTION_FWD_",
    "bwd_data": "CUDNN_CONVOLUTION_BWD_DATA_",
    "bwd_filter": "CUDNN_CONVOLUTION_BWD_FILTER_",
}


class _Entry(NamedTuple):
    dtype: str  # empty for all compute types
    name: str


def choice_text(choice: Choice, direction: Direction, what: str = "choice") -> str:
    """Returns the text of `choice` for problems of `direction`; `auto` if it chooses nothing.

    Args:
        choice: None or "auto" choose nothing. "free" is PyTorch's own choice, whatever other
            sources choose. A primitive's name, such as "cpu.direct", chooses this primitive. One of
            cuDNN's numbers, such as 1, or words, such as "WINOGRAD" or
            "CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD" in any case, chooses cuDNN's algorithm; a suffix
            such as "@fma" is possible. A dict maps compute types ("f16" or torch.float16) and
            devices ("cpu", "cuda") to choices. A sequence holds choices; the first one that applies
            is used. A text that this function returned is accepted too.
        direction: the direction of the problem. A transposed convolution's forward is a "bwd_data".
        what: the argument's name for errors.

    Raises: torchalgo.Error with the given value, the known values, and a way to fix it.
    """
    if choice is None or isinstance(choice, str):
        return _text_of_string(choice or AUTO, direction, what)
    entries = list(dict.fromkeys(_entries(choice, direction, what)))
    return str(_C.parse_choice(";".join(map(_entry_text, entries)))) if entries else AUTO


# torch.compile runs it while it compiles, and keeps the text. torch.compiler.assume_constant_result
# does this too, but imports torch._dynamo.
choice_text._dynamo_marked_constant = True  # type: ignore[attr-defined]


def read_choice(text: str, direction: Direction) -> int | str | None:
    """Returns the short form of a choice's text: None for `auto`, and cuDNN's number if it is one.

    Returns any other text unchanged.
    """
    if text == AUTO:
        return None
    number = text.removeprefix(f"cudnn_legacy.{direction}.")
    return int(number) if number != text and number.isdecimal() else text


def near(word: str, known: Sequence[str], cutoff: float = 0.6) -> str:
    """Returns the end of an error, "; did you mean ...?", or "" if no known word is similar.

    `cutoff` is the least similarity, from 0 to 1. Primitives need 0.75, since all their names begin
    with a provider.
    """
    # Names with the same start are similar too: the end of a name is a variant.
    found = get_close_matches(word, known, n=3, cutoff=cutoff)
    others = [k for k in known if word and k.startswith(word)]
    # "winogard" means cpu.winograd_f4x4_3x3, though most letters are missing.
    heads = [re.split("[._]", k.partition(".")[2])[0] for k in known]
    alike = get_close_matches(word, heads, n=3, cutoff=max(cutoff, 0.75))
    others += [k for k, head in zip(known, heads, strict=True) if head and head in alike]
    found += [k for k in dict.fromkeys(others) if k not in found][: 3 - len(found)]
    return f"; did you mean {', '.join(map(repr, found))}?" if found else ""


@lru_cache(maxsize=4096)
def _text_of_string(text: str, direction: Direction, what: str) -> str:
    entries = _entries(text, direction, what)
    return str(_C.parse_choice(";".join(map(_entry_text, entries)))) if entries else AUTO


def _entry_text(entry: _Entry) -> str:
    return f"{entry.dtype}:{entry.name}" if entry.dtype else entry.name


def _entries(choice: Choice, direction: Direction, what: str) -> list[_Entry]:
    if choice is None:
        return []
    if isinstance(choice, str):
        return _entries_of_text(choice, direction, what)
    if isinstance(choice, Mapping):
        return _entries_of_mapping(choice, direction, what)
    if isinstance(choice, Sequence):
        return [entry for item in choice for entry in _entries(item, direction, what)]
    if isinstance(choice, bool):
        raise _no_choice(what, choice)
    try:
        number = operator.index(choice)
    except TypeError:
        raise _no_choice(what, choice) from None
    return [_Entry("", _legacy_name(number, direction, what))]


def _no_choice(what: str, choice: object) -> Error:
    return Error(
        f"TA4101 {what}: got {choice!r} of type {type(choice).__name__}, expected a primitive's"
        " name, one of cuDNN's numbers or words, 'free', None, a dict such as {'f16': ..., 'cpu':"
        " ...}, or a sequence of these"
    )


def _entries_of_text(text: str, direction: Direction, what: str) -> list[_Entry]:
    entries = []
    for part in text.split(";"):
        word = part.strip()
        if word.lower() == AUTO and ";" not in text:
            return []
        dtype, colon, name = word.partition(":")
        if colon and dtype not in DTYPES:
            raise Error(
                f"TA4007 {what}: {part!r}: {dtype!r} is no compute type; expected one of"
                f" {', '.join(DTYPES)}"
            )
        entries.append(
            _Entry(dtype if colon else "", _name(name if colon else word, direction, what))
        )
    return entries


def _entries_of_mapping(
    choice: Mapping[Any, Choice], direction: Direction, what: str
) -> list[_Entry]:
    found: list[tuple[int, _Entry]] = []
    for key, value in choice.items():
        for entry in _entries(value, direction, f"{what}[{key!r}]"):
            found.append(_entry_of_key(key, entry, choice, what))
    # Entries for one compute type or one device come before entries for all.
    return [entry for _, entry in sorted(found, key=lambda item: item[0])]


def _entry_of_key(
    key: Any, entry: _Entry, choice: Mapping[Any, Choice], what: str
) -> tuple[int, _Entry]:
    word = TORCH_DTYPES.get(key, key) if isinstance(key, torch.dtype) else key
    if word in DTYPES:
        if entry.dtype not in ("", word):
            raise Error(
                f"TA4102 {what}: the entry of {key!r} holds a choice for {entry.dtype}, expected"
                f" one for {key}"
            )
        return 0, _Entry(word, entry.name)
    if word not in DEVICES:
        known = (*DTYPES, *DEVICES)
        raise Error(
            f"TA4102 {what}: {key!r} is neither a compute type ({', '.join(DTYPES)}) nor a device"
            f" ({', '.join(DEVICES)}){near(str(key), known)}"
        )
    if (home := _home(entry.name)) not in ("", word):
        raise Error(f"TA4102 {what}: {entry.name!r} runs only on {home}, so {key!r} cannot use it")
    if not home and not all(device in choice for device in DEVICES):
        raise Error(
            f"TA4102 {what}: {entry.name!r} runs on every device, so {key!r} alone cannot hold it;"
            " give it without a device, or name another primitive for the other device too"
        )
    if not home and all(_is_everywhere(choice[device]) for device in DEVICES):
        raise Error(
            f"TA4102 {what}: primitives that run on every device cannot differ by device: give one"
            " without a device"
        )
    return (3 if not home else 1 if entry.dtype else 2), entry


def _home(name: str) -> str:
    """Returns the only device that can run a primitive; empty if all devices can."""
    provider = name.split(".")[0]
    return "cpu" if provider == "cpu" else "cuda" if provider.startswith("cudnn") else ""


def _is_everywhere(choice: Choice) -> bool:
    return isinstance(choice, str) and choice.startswith(("aten.", FREE))


# ---- names ---------------------------------------------------------------------------------------


def _name(word: str, direction: Direction, what: str) -> str:
    """Returns a primitive's name for a name, a number in digits or one of cuDNN's words.

    Raises: torchalgo.Error if there is no such primitive, or if it computes another direction.
    """
    if word.lower() == FREE:
        return FREE
    if "." not in word.partition("{")[0]:
        head, at, math = word.partition("@")
        return _legacy_name(head, direction, what) + at + math
    if not _NAME.fullmatch(word):
        raise Error(
            f"TA4101 {what}: {word!r} is no primitive's name; expected"
            " provider.algorithm[.variant][{KNOB=value,...}], such as 'cpu.direct' or"
            f" 'cudnn9.conv.e22'{near(word, _known_algorithms())}"
        )
    algorithm = algorithm_of(word)
    if algorithm is None:
        known = f"; known: {', '.join(_known_algorithms())}"
        raise Error(
            f"TA4004 {what}: there is no primitive"
            f" {word!r}{near(word, _known_algorithms()) or known}"
        )
    own = _cudnn_direction(algorithm)
    if own is not None and own != direction:
        names = [name for name in _known_algorithms() if _cudnn_direction(name) == direction]
        raise Error(
            f"TA4103 {what}: {word!r} computes {own}, expected an algorithm for {direction};"
            f" cuDNN has {', '.join(names)}"
        )
    return word


def _known_algorithms() -> list[str]:
    """Returns the names of all algorithms, also of those of cuDNN on a machine without it."""
    return sorted(name for name, _ in _C.algorithms())


def _cudnn_direction(algorithm: str) -> Direction | None:
    """Returns the direction of an algorithm of cuDNN, whose name ends with it, or None."""
    if not algorithm.startswith("cudnn"):
        return None
    backward: tuple[Direction, ...] = ("bwd_data", "bwd_filter")
    return next((d for d in backward if algorithm.endswith(d)), "fwd")


def _legacy_name(given: int | str, direction: Direction, what: str) -> str:
    known = {
        number: str(word).upper().removeprefix(_ENUM_PREFIX[direction]).removeprefix("ALGO_")
        for number, word in _C.legacy_algorithms(direction)
    }
    word = str(given).strip().upper().removeprefix(_ENUM_PREFIX[direction]).removeprefix("ALGO_")
    for number, spelling in known.items():
        if word in (str(number), spelling):
            return f"cudnn_legacy.{direction}.{number}"
    table = ", ".join(f"{n} {w}" if w != str(n) else str(n) for n, w in known.items())
    others = [d for d, prefix in _ENUM_PREFIX.items() if word.startswith(prefix)]
    if others:
        hint = f"; {given!r} is an algorithm for {others[-1]}"
    else:
        hint = "" if isinstance(given, int) else near(word, [*known.values(), *_known_algorithms()])
    raise Error(
        f"TA4103 {what}: {given!r} is neither a primitive's name nor an algorithm of cuDNN for"
        f" {direction}; cuDNN has {table}{hint}"
    )
