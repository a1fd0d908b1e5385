# SPDX-License-Identifier: BSD-3-Clause
"""Rewrites torchalgo's docstrings into the form that mkdocstrings reads.

Our docstrings begin a section on the line of its name ("Returns: the plan.") and indent code. The
result has the text of a section on lines of its own, fenced code, and links to pages.
"""

from __future__ import annotations

import re
import textwrap

SECTION = re.compile(r"^(Returns|Raises|Yields|Source): (?=\S)(.*(?:\n(?=[ \t]+\S).*)*)", re.M)
EXAMPLE = re.compile(r"^Example:[ \t]*(\S.*\n?|\n(?:(?: {4}.*)?(?:\n|$))+)", re.MULTILINE)
CODE = re.compile(r"(?<=\n\n)((?: {4}.*\n|\n(?= {4}))+)")
FENCE = re.compile(r"(```.*?```)", re.DOTALL)
PAGE = re.compile(r"\bdocs/([\w-]+)\.md\b")


def section(match: re.Match[str]) -> str:
    """Returns a section with its text in an indented block."""
    name, text = match[1], " ".join(match[2].split())
    if name == "Raises":
        error, _, reason = text.partition(" ")
        return f"Raises:\n    {error.rstrip(',')}: {reason}"
    if name == "Source":
        return f"\n**{name}:** {text}"
    return f"{name}:\n    {text}"


def example(match: re.Match[str]) -> str:
    """Returns an example as a block of code."""
    code = textwrap.dedent(match[1].strip("\n")).strip()
    return f"\n**Example:**\n\n```python\n{code}\n```\n\n"


def rewrite(text: str) -> str:
    """Returns a docstring in the form that mkdocstrings reads."""
    parts, is_before_args = [], True
    for part in FENCE.split(EXAMPLE.sub(example, text)):
        if not part.startswith("```"):
            before, args, after = part.partition("\nArgs:\n")
            if is_before_args:
                before = CODE.sub(fenced, before + "\n").rstrip("\n")
            is_before_args = is_before_args and not args
            part = before + ("\n\nArgs:\n" + after if args else "\n")
        parts += [part]
    text = "".join(
        part if part.startswith("```") else prose(part) for part in FENCE.split("".join(parts))
    )
    return re.sub(r"\n(?=(Returns|Raises|Yields):\n)", "\n\n", text)


def fenced(match: re.Match[str]) -> str:
    """Returns indented code as a block."""
    return f"```python\n{textwrap.dedent(match[1])}```\n"


def prose(text: str) -> str:
    """Returns text outside of code with its sections on lines of their own and links of pages."""
    text = PAGE.sub(r"[\1](../\1.html)", text)
    return SECTION.sub(section, re.sub(r"\](?=\[)", r"\]", text))  # a[0][1] is no link
