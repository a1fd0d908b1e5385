# SPDX-License-Identifier: BSD-3-Clause
"""Rewrites torchalgo's docstrings into the form that mkdocstrings reads.

Our docstrings begin a section on the line of its name ("Returns: the plan.") and indent code. This
extension puts the text of a section on lines of its own, fences the code, and links pages.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(
    r"^(Returns|Raises|Yields|Source|Example): (?=\S)(.*(?:\n(?=[ \t]+\S).*)*)", re.M
)
CODE = re.compile(r"(?<=\n\n)((?: {4}.*\n|\n(?= {4}))+)")
PAGE = re.compile(r"\bdocs/([\w-]+)\.md\b")


def section(match: re.Match[str]) -> str:
    """Returns a section with its text in an indented block."""
    name, text = match[1], " ".join(match[2].split())
    if name == "Raises":
        error, _, reason = text.partition(" ")
        return f"Raises:\n    {error.rstrip(',')}: {reason}"
    if name in ("Source", "Example"):
        return f"\n**{name}:** {text}"
    return f"{name}:\n    {text}"


def rewrite(text: str) -> str:
    """Returns a docstring in the form that mkdocstrings reads."""
    before, args, after = text.partition("\nArgs:\n")
    before = CODE.sub(
        lambda m: "```python\n" + re.sub("^    ", "", m[1], flags=re.M) + "```\n", before + "\n"
    )
    text = before.rstrip("\n") + ("\n\nArgs:\n" + after if args else "")
    text = PAGE.sub(r"[\1](../\1.html)", text)
    text = re.sub(r"\](?=\[)", r"\]", text)  # no link
    return re.sub(r"\n(?=(Returns|Raises|Yields):\n)", "\n\n", SECTION.sub(section, text))


class Docstrings(griffe.Extension):
    """Rewrites the docstring of each object."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = rewrite(obj.docstring.value)
