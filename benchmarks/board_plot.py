# SPDX-License-Identifier: BSD-3-Clause
"""Draws the ratios of each network of the board, for the page that board_page.py makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from board_page import BEST_OTHER, over, ratio_key, sections, slug_of, title_of
from harness import Record
from model_page import BEST_PYTORCH
from pages import new_figure, save_figure


def draw_section(records: Sequence[Record], path: Path) -> None:
    """Draws the ratio of each network with its interval, the largest loss on top."""
    ran = sorted((r for r in records if "failure" not in r), key=ratio_key, reverse=True)
    figure, axes = new_figure(1, (8.0, 1.6 + 0.16 * len(ran)))
    series = {
        "the better of ONNX Runtime and OpenVINO": (BEST_OTHER, "tab:blue", "o", 0.14),
        "the best PyTorch path": (BEST_PYTORCH, "tab:orange", "D", -0.14),
    }
    for label, (engines, color, marker, shift) in series.items():
        points = [
            (i + shift, ratio)
            for i, record in enumerate(ran)
            if (ratio := over(record, engines)[1]) is not None
        ]
        if points:
            axes.errorbar(
                [ratio.ratio for _, ratio in points],
                [y for y, _ in points],
                xerr=[
                    [ratio.ratio - ratio.low for _, ratio in points],
                    [ratio.high - ratio.ratio for _, ratio in points],
                ],
                fmt=marker, color=color, markersize=3, elinewidth=0.8, label=label,
            )  # fmt: skip
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    ticks = [0.25, 0.5, 0.7, 1, 1.4, 2, 3, 4, 6, 8]
    low, high = axes.get_xlim()
    axes.set_xticks(shown := [tick for tick in ticks if low <= tick <= high], map(str, shown))
    axes.minorticks_off()
    axes.set_yticks(range(len(ran)), [r["network"].removeprefix("timm/") for r in ran], fontsize=6)
    axes.set_ylim(-0.7, len(ran) - 0.3)
    axes.grid(axis="x", linewidth=0.3)
    axes.set_xlabel(
        "time of the other engine / time of torchalgo (right of 1: torchalgo is faster)"
    )
    axes.set_title(title_of(records[0]), fontsize=9)
    figure.legend(loc="outside lower center", ncol=2, fontsize=7, frameon=False)
    save_figure(figure, path)


def draw_all(records: Sequence[Record], folder: Path) -> list[Path]:
    """Draws a plot per section that has times. Returns the files."""
    paths = []
    for group in sections(records).values():
        if any("failure" not in record for record in group):
            paths.append(folder / f"{slug_of(group[0])}.svg")
            draw_section(group, paths[-1])
    return paths
