# SPDX-License-Identifier: BSD-3-Clause
"""Makes the first paragraph of README and its picture from the records of bench_models.py."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence

from harness import Record
from model_bars import Bar, draw
from model_page import BEST_PYTORCH, OTHERS, best_of, usual_records
from pages import OWN, setting_of


def ratios_to(records: Sequence[Record], engines: Sequence[str]) -> dict[str, float]:
    """Returns the time of the fastest of the engines over torchalgo's, by network."""
    found = {}
    for record in records:
        if (peer := best_of(record, engines)) is not None:
            pairs = zip(record["wall_us"][peer], record["wall_us"][OWN], strict=True)
            found[record["network"]] = statistics.median(other / own for other, own in pairs)
    return found


def make_readme(records: Sequence[Record], picture: str) -> str:
    """Returns what README says first: the mean ratios, their conditions, and the picture."""
    chosen = usual_records(records)
    over_all, over_torch = ratios_to(chosen, OTHERS), ratios_to(chosen, BEST_PYTORCH)
    least = min(over_all, key=lambda name: over_all[name])
    machine = chosen[0]["machine"]
    isa = {"avx512": "AVX-512", "avx2": "AVX2"}.get(machine["isa"], machine["isa"])
    mean, mean_torch = (
        statistics.geometric_mean(ratios.values()) for ratios in (over_all, over_torch)
    )
    text = (
        "torchalgo makes convolutional networks of PyTorch faster on CPUs. In f32 it is"
        f" **{mean:.2f} times as fast as the fastest other engine**, and {mean_torch:.2f} times as"
        " fast as the fastest way of PyTorch itself. These are geometric means of"
        f" {len(over_all)} networks with one image and {setting_of(chosen[0]).title}"
        f" ({machine['cpu']}, {isa}). The other engines are ONNX Runtime, OpenVINO and four ways"
        " of PyTorch: eager, channels_last, `optimize_for_inference` and Inductor. The lowest ratio"
        f" to the fastest of them is {over_all[least]:.2f}, for {least}."
    )
    alt = "Times of other engines and of other plans, divided by the time of torchalgo's plan"
    return f"{textwrap.fill(text, 120)}\n\n![{alt}]({picture})"


def make_picture(records: Sequence[Record]) -> str:
    """Returns README's picture: other engines, other plans and the plan, all in f32."""
    chosen = usual_records(records)
    bars = {
        "Fastest other engine": ("peer", OTHERS),
        "PyTorch, the fastest of its four ways": ("peer", BEST_PYTORCH),
        "Local choice: for each layer the fastest algorithm": ("choice", ("local_optimum",)),
        "Single layout: the best plan with one layout": ("choice", ("best_single_layout",)),
        "Plan of torchalgo": ("plan", (OWN,)),
    }
    return draw(
        [
            Bar(name, kind, list(ratios.values()))
            for name, (kind, engines) in bars.items()
            if (ratios := ratios_to(chosen, engines))
        ],
        f"Time of {len(chosen)} networks in f32, divided by that of torchalgo's plan.",
    )
