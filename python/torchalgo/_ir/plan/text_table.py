# SPDX-License-Identifier: BSD-3-Clause
"""Tables of plain text, the same on a terminal, in a pipe and in a file."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence


class ShownAsText:
    """A notebook shows an object of this class as its text, in letters of equal width."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return monospace(str(self))


def monospace(text: str) -> str:
    """Returns HTML that shows a text with its lines and columns."""
    style = "white-space: pre; overflow-x: auto; line-height: 1.3"
    return f'<pre style="{style}">{html.escape(text)}</pre>'


def text_table(
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    indent: str = "",
    columns: int | None = None,
    shrink: Sequence[Mapping[int, int]] = (),
) -> list[str]:
    """Returns one line per row. Its cells are aligned, with two spaces between them.

    A column whose cells are all empty is left out.

    Args:
        rows: rows of equal length; a head is a row like any other.
        right: the numbers of the columns that are aligned to the right.
        indent: begins each line.
        columns: the most characters of a line. None: no limit.
        shrink: steps that make a wider table narrower, until it fits. A step maps the number of a
            column to its least width; the widest of these columns is cut first.
    """
    if not rows:
        return []
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    if columns is not None:
        room = columns - len(indent) - 2 * (sum(map(bool, widths)) - 1)
        for least in shrink:
            while sum(widths) > room and (loose := [i for i in least if widths[i] > least[i]]):
                widths[max(loose, key=lambda i: widths[i])] -= 1
    lines = []
    for row in rows:
        cells = [
            cut(cell, width).rjust(width) if i in right else cut(cell, width).ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            if width
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def cut(text: str, width: int) -> str:
    """Returns `text` with ".." in place of its middle if it is longer than `width`."""
    if len(text) <= width:
        return text
    left = (width - 2) // 2
    return text[:left] + ".." + text[len(text) - (width - 2 - left) :]
