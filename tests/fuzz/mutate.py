# SPDX-License-Identifier: BSD-3-Clause
"""Mutations of texts and of JSON values that fuzzers share."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NUMBERS = (
    "0", "-1", "1", "007", "+5", " 3", "1e3", "", "0x10", "\u0663", "65536", "1000000",
    "2147483647", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808",
    "18446744073709551616", "-9223372036854775808", "99999999999999999999999",
)  # fmt: skip
PIECES = ("", "_", "x", "+", "-", "\0", "é", "\n", "\t", " ", "{", "}", "@", ".", "nan", "c", "g0")
VALUES = (None, True, -1, 0, 2**63, 2**70, 1.5, 1e308, "", "x", [], {}, [[]], "\0", "a" * 10000)


def seeds_of(name: str) -> list[str]:
    """Reads the seeds of a kind of text, as tests/fuzz/cpp uses them too."""
    folder = Path(__file__).parent / "seeds"
    return [text.rstrip("\n") for text in (folder / f"{name}.txt").read_text().split("----\n")]


def mutated(rng: random.Random, text: str, others: Sequence[str]) -> str:
    """Changes numbers, drops, repeats or splices pieces, 1 to 6 times."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        text = _mutated_once(rng, text, others)
    return text[:200_000]


def _mutated_once(rng: random.Random, text: str, others: Sequence[str]) -> str:
    kind, i = rng.random(), rng.randrange(len(text) + 1)
    if kind < 0.45:
        numbers = list(re.finditer(r"\d+", text))
        if not numbers:
            return text
        at = rng.choice(numbers)
        new = rng.choice(NUMBERS) if rng.random() < 0.7 else str(rng.randint(0, 5000))
        return text[: at.start()] + new + text[at.end() :]
    if kind < 0.6:
        return text[:i] + rng.choice(PIECES) + text[i + rng.randint(0, 2) :]
    if kind < 0.75:
        return text[:i] + text[i + rng.randint(1, 20) :]
    if kind < 0.9:
        j = rng.randrange(len(text) + 1)
        return text[:j] + text[i : i + rng.randint(1, 40)] + text[j:]
    other = rng.choice(others)
    return text[:i] + other[rng.randrange(len(other) + 1) :]


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of each part of a JSON value."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, part in items:
        yield (*path, key)
        yield from paths_of(part, (*path, key))


def with_value(root: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a JSON value with one part replaced."""
    root = copy.deepcopy(root)
    part = root
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return root


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """Changes, cuts off or repeats bytes."""
    changed = bytearray(data)
    kind = rng.random()
    if kind < 0.2:
        return data[: rng.randrange(len(data))]
    if kind < 0.3:
        i = rng.randrange(len(data))
        return data[:i] + data[i : i + rng.randrange(5000)] + data[i:]
    for _ in range(rng.choice((1, 1, 2, 8, 60))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)
