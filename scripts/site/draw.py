# SPDX-License-Identifier: BSD-3-Clause
"""Draws the pictures of the pages that explain: boxes, arrows and dots, as SVG.

python scripts/site/draw.py          # writes docs/images/drawing_*.svg
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
LINE = 18  # pixels between lines of text
BLUE, GRAY, ORANGE = "#dbe7f5", "#f2f2f2", "#fbe3cf"


class Drawing:
    """A picture; coordinates are pixels from the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" font-family="sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4"'
            ' orient="auto"><path d="M0 0 L9 4 L0 8 z" fill="#444"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
        ]

    def text(self, x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> None:
        self.parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="#222" {more}>'
            f"{escape(words)}</text>"
        )

    def box(self, x: int, y: int, width: int, lines: Sequence[str], color: str = BLUE) -> None:
        """Draws a box with lines of text; the first one is bold."""
        height = LINE * len(lines) + 14
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{color}"'
            ' stroke="#667"/>'
        )
        for i, line in enumerate(lines):
            bold = 'font-weight="bold"' if i == 0 else ""
            self.text(x + width / 2, y + LINE * (i + 1), line, more=bold)

    def arrow(self, x1: int, y1: int, x2: int, y2: int, words: str = "", dy: int = -7) -> None:
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#444" stroke-width="1.4"'
            ' marker-end="url(#head)"/>'
        )
        if words:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 + dy, words, more='font-style="italic"')

    def dot(self, x: int, y: int, is_filled: bool = True) -> None:
        fill = "#2b6cb0" if is_filled else "#fff"
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="6" fill="{fill}" stroke="#2b6cb0"/>')

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>\n"])


def pbqp() -> Drawing:
    d = Drawing(900, 290, "A tensor with two readers as a PBQP")
    d.box(
        10,
        85,
        210,
        [
            "conv1",
            "Winograd, writes nChw16c",
            "matrix product, writes nhwc",
            "PyTorch, writes nchw",
        ],
    )
    d.box(
        370, 85, 190, ["set node of its result", "{nhwc}", "{nChw16c}", "{nhwc, nChw16c}"], ORANGE
    )
    d.box(700, 20, 190, ["conv2", "reads nChw16c", "reads nhwc"])
    d.box(700, 170, 190, ["add", "reads nChw16c", "reads nhwc"])
    d.arrow(220, 128, 368, 128, "time of the")
    d.text(294, 146, "layout changes", more='font-style="italic"')
    d.arrow(560, 118, 698, 60)
    d.text(600, 70, "0, or forbidden", more='font-style="italic"')
    d.arrow(560, 138, 698, 200)
    d.text(600, 198, "0, or forbidden", more='font-style="italic"')
    d.text(450, 265, "A copy of the result in nhwc is paid once, however many readers want it.")
    return d


def race() -> Drawing:
    d = Drawing(900, 250, "A race of four candidates")
    rounds, left, step = 9, 270, 62
    for i in range(rounds):
        d.text(left + step * i, 28, f"round {i + 1}")
    rows = (
        ("Winograd, tiles of 28", rounds, (4,), ""),
        ("Winograd, tiles of 14", rounds, (), ""),
        ("direct", 4, (), "leaves: more than 1.12 times the fastest rival"),
        ("PyTorch", 2, (), "leaves: more than twice the fastest of all"),
    )
    for row, (name, count, disturbed, words) in enumerate(rows):
        y = 65 + 45 * row
        d.text(20, y + 5, name, "start")
        for i in range(count):
            d.dot(left + step * i, y, i not in disturbed)
        if words:
            d.text(left + step * count - 20, y + 5, words, "start", 'font-style="italic"')
    d.text(
        450,
        238,
        "Each column is one sample of each candidate. An empty circle is a disturbed sample.",
    )
    return d


def proof() -> Drawing:
    d = Drawing(900, 240, "The solver proves, and a checker that shares no code with it checks")
    d.box(10, 20, 170, ["graph and costs", "of the plan's file"], GRAY)
    d.box(270, 20, 150, ["planner", "writes the PBQP"])
    d.box(500, 20, 150, ["solver", "pbqp.solve"])
    d.box(730, 20, 160, ["plan", "choice, cost, bound", "certificate"], GRAY)
    d.arrow(180, 45, 268, 45)
    d.arrow(420, 45, 498, 45)
    d.arrow(650, 45, 728, 45)
    d.box(
        270,
        150,
        380,
        [
            "check_plan, without planner and solver",
            "writes the PBQP again from graph and costs,",
            "and follows the certificate step by step",
        ],
        ORANGE,
    )
    d.arrow(95, 72, 268, 175)
    d.arrow(810, 90, 652, 175)
    d.text(
        460,
        236,
        "It refuses a plan that claims to be optimal if a choice with a lower sum could exist.",
        more='font-style="italic"',
    )
    return d


def algorithm() -> Drawing:
    d = Drawing(900, 250, "The two phases of an algorithm")
    d.box(10, 20, 140, ["problem, device"], GRAY)
    d.box(230, 20, 130, ["offer"])
    d.box(440, 12, 200, ["primitives", "names and layouts"], GRAY)
    d.box(440, 75, 200, ["or a refusal", "the reason in words"], GRAY)
    d.arrow(150, 36, 228, 36)
    d.arrow(360, 36, 438, 36)
    d.arrow(360, 42, 438, 95)
    d.box(720, 20, 130, ["prepare"])
    d.arrow(640, 36, 718, 36)
    d.box(640, 130, 250, ["kernel", "knows sizes, threads and memory"], ORANGE)
    d.arrow(785, 52, 785, 128)
    d.box(330, 130, 210, ["pack", "once per set of weights"])
    d.box(330, 190, 210, ["run", "in every call, allocates nothing"])
    d.arrow(640, 150, 542, 150)
    d.arrow(640, 165, 542, 208)
    d.box(10, 130, 210, ["packed weights"], GRAY)
    d.box(10, 190, 210, ["result"], GRAY)
    d.arrow(330, 146, 222, 146)
    d.arrow(330, 212, 222, 212)
    d.arrow(115, 162, 328, 198)
    return d


DRAWINGS = {"pbqp": pbqp, "race": race, "proof": proof, "algorithm": algorithm}


def main() -> int:
    """Writes the pictures."""
    for name, draw in DRAWINGS.items():
        (IMAGES / f"drawing_{name}.svg").write_text(draw().svg())
    return 0


if __name__ == "__main__":
    sys.exit(main())
