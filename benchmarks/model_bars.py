# SPDX-License-Identifier: BSD-3-Clause
"""Draws README's picture: bars of mean times, with a dot for each network, as SVG."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, ROW, BAR = 640, 12, 50, 18  # pixels; a phone shows the picture at half of its size
# A page may show it on any ground, so it has one of its own, for light and for dark colors.
STYLE = """
text { font: 16px sans-serif; fill: #1f2328 } .bold { font-weight: bold } .ground { fill: #fff }
.peer { fill: #b3b9c1 } .choice { fill: #86b0dd } .plan { fill: #2b6cb0 }
.dot { fill: #1f2328; fill-opacity: 0.5 } .line { stroke: #1f2328; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .ground { fill: #0d1117 } .peer { fill: #565d67 } .choice { fill: #4577ab }
.plan { fill: #5ea3ee } .dot { fill: #fff; fill-opacity: 0.55 } .line { stroke: #e6edf3 }
}
"""


@dataclass(frozen=True)
class Bar:
    """The times of one engine or plan, divided by those of torchalgo's plan."""

    name: str
    kind: str  # a class of STYLE: peer, choice or plan
    ratios: Sequence[float]  # of the networks


def draw(bars: Sequence[Bar], axis: str) -> str:
    """Returns the picture. Each bar ends at the geometric mean, which stands beside its name."""
    height = ROW * len(bars) + 62
    scale = (WIDTH - 2 * LEFT - 12) / max(max(bar.ratios) for bar in bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}">',
        f"<title>{escape(axis)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="6"/>',
    ]
    for row, bar in enumerate(bars):
        y, mean = ROW * row + 26, statistics.geometric_mean(bar.ratios)
        parts += [
            f'<text x="{LEFT}" y="{y}">{escape(bar.name)}: '
            f'<tspan class="bold">{mean:.2f}</tspan></text>',
            f'<rect class="{bar.kind}" x="{LEFT}" y="{y + 6}" width="{scale * mean:.1f}"'
            f' height="{BAR}"/>',
        ]
        if bar.kind != "plan":
            parts += [
                f'<circle class="dot" cx="{LEFT + scale * r:.1f}" cy="{y + 6 + BAR / 2}" r="3.5"/>'
                for r in sorted(bar.ratios)
            ]
    ticks = "".join(f"M{LEFT + scale:.1f} {ROW * row + 30}v{BAR + 4}" for row in range(len(bars)))
    parts += [
        f'<path class="line" d="{ticks}"/>',
        f'<text x="{LEFT}" y="{height - 32}">{escape(axis)}</text>',
        f'<text x="{LEFT}" y="{height - 12}">Bars: geometric means. Dots: single networks.'
        " Shorter is faster.</text>",
    ]
    return "\n".join([*parts, "</svg>\n"])
