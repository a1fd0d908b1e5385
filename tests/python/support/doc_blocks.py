# SPDX-License-Identifier: BSD-3-Clause
"""Reads the fenced blocks of the pages in docs."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"
NOT_RUN = "<!-- not run -->\n"  # stands before a block of an engine that is not installed


def text_of(page: str, *sections: str) -> str:
    """Returns the text of a page, or that of the sections with these headings."""
    text = (DOCS / page).read_text()
    found = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    return "\n".join(found[section] for section in sections) if sections else text


def blocks(page: str, *sections: str) -> list[tuple[str, str]]:
    """Returns the language and the text of each block; a block of commands has none."""
    text = re.sub(f"{NOT_RUN}```.*?^```$", "", text_of(page, *sections), flags=re.M | re.S)
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def small(text: str) -> str:
    """Returns a snippet or a command for small images and for a model of the tests."""
    text = text.replace("package.module:factory", "support.nets:net_factory")
    text = re.sub(r"\b(224|320), (224|320)\b", lambda m: f"{size(m[1])}, {size(m[2])}", text)
    text = text.replace("x3x224x224", "x3x40x40").replace("112, 112", "24, 24")
    return text.replace("56, 56", "12, 12").replace("x3x112x112", "x3x24x24")


def size(digits: str) -> int:
    return {"224": 40, "320": 48}[digits]
