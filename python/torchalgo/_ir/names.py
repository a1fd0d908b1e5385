# SPDX-License-Identifier: BSD-3-Clause
"""Reads the names of problems and primitives, together with the rest of this package.

No other Python code takes a name apart: tests/python/test_name_prefixes.py.
"""

from __future__ import annotations

import re

# The operation and its type, the channels, height and width, and what follows them.
_IMAGE = re.compile(r"(.+_(?:f64|f32|tf32|f16|bf16)_)n\d+c(\d+(?:x\d+)*)h(\d+)w(\d+)((?:[_+].*)?)")
_RESULT_SIZES = re.compile(r"_p\d+q\d+")


# ---- primitives ----------------------------------------------------------------------------------


def is_atens(primitive: str) -> bool:
    """Returns whether an algorithm of PyTorch computes an operation. Changes of layout are none."""
    return primitive.startswith("aten.")


def is_atens_change(primitive: str) -> bool:
    """Returns whether PyTorch's copy changes the layout."""
    return primitive.startswith("layout.aten")


def is_pytorchs(primitive: str) -> bool:
    """Returns whether PyTorch runs `primitive`, or it is a view that needs no buffer."""
    return is_atens(primitive) or is_atens_change(primitive) or primitive.startswith("view.relabel")


def needs_its_epilogue(primitive: str) -> bool:
    """Returns whether the primitive is named after its epilogue and cannot run without it."""
    return primitive.startswith("cudnn9.conv_bias")


def knobs_of(primitive: str) -> str:
    """Returns the settings at the end of a name, such as "{KNOB=1}"; empty if there are none."""
    return primitive[len(without_knobs(primitive)) :]


def without_knobs(primitive: str) -> str:
    return primitive.partition("{")[0]


def provider_of(algorithm: str) -> tuple[str, str]:
    """Returns the provider of an algorithm, and its name without the provider."""
    provider, _, name = algorithm.partition(".")
    return provider, name


# ---- problems ------------------------------------------------------------------------------------


def without_epilogue(problem: str) -> str:
    return problem.partition("+")[0]


def is_linear(problem: str) -> bool:
    """Returns whether `problem` is a linear layer."""
    return problem.startswith("linear_")


def image_of(problem: str) -> tuple[int, int] | None:
    """Returns the height and width of the source.

    Returns None if the problem has none, or its result's sizes depend on them.
    """
    found = _IMAGE.fullmatch(problem)
    if found is None or _RESULT_SIZES.search(problem):
        return None
    return int(found[3]), int(found[4])


def on_one_image(problem: str, height: int, width: int) -> str:
    """Returns a problem of which `image_of` knows the size, on one image of another size."""
    return _IMAGE.sub(rf"\g<1>n1c\g<2>h{height}w{width}\g<5>", problem)
