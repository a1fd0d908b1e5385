# SPDX-License-Identifier: BSD-3-Clause
"""The problems of gpu_check.py's stages, and who offers what for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gpu_stage import Context
from torchalgo import _C

DTYPES = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
BOUND = 1e-5  # of float; the others have bounds of their own

# n of the problem is set by the stage: c, h, k, r, stride, pad, groups.
LAYERS = {
    "stem": (3, 224, 64, 7, 2, 3, 1),
    "3x3_56": (64, 56, 64, 3, 1, 1, 1),
    "1x1_56": (64, 56, 256, 1, 1, 0, 1),
    "1x1_28": (512, 28, 128, 1, 1, 0, 1),
    "3x3_28_s2": (128, 56, 128, 3, 2, 1, 1),
    "3x3_14": (256, 14, 256, 3, 1, 1, 1),
    "1x1_14": (1024, 14, 256, 1, 1, 0, 1),
    "3x3_7": (512, 7, 512, 3, 1, 1, 1),
    "1x1_7": (2048, 7, 512, 1, 1, 0, 1),
    "dw7x7_28": (192, 28, 192, 7, 1, 3, 192),
    "dw3x3_56": (96, 56, 96, 3, 1, 1, 96),
    "grouped": (256, 28, 256, 3, 1, 1, 32),
    "odd": (63, 30, 65, 3, 1, 1, 1),
    "5x5_28": (32, 28, 96, 5, 1, 2, 1),
}


def spell(layer: str, dtype: str, n: int, direction: str = "fwd") -> str:
    c, h, k, r, stride, pad, groups = LAYERS[layer]
    return _C.parse_problem(
        f"{direction}_{dtype}_n{n}c{c}h{h}w{h}_k{k}r{r}s{r}_st{stride}x{stride}_pad{pad}x{pad}"
        f"_dil1x1_g{groups}"
    )


def live() -> _C.Device:
    return _C.cuda_device(torch.cuda.current_device())


def offers(problem: str, device: _C.Device, prefix: str) -> list[tuple[_C.Primitive, _C.Traits]]:
    primitives, traits, _ = _C.offers_of(problem, device=device)
    pairs = zip(primitives, traits, strict=True)
    return [(p, t) for p, t in pairs if p.name.startswith(prefix)]


class Rows(list[Any]):
    """A stage's results, each of which is on disk as soon as it is known."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._emit = context.emit

    def append(self, row: Any) -> None:
        super().append(row)
        self._emit(row)


def spelled(p: _C.Primitive) -> str:
    return f"{p.name} {p.src}->{p.dst}"


def problems(context: Context, dtypes: tuple[str, ...], n: int = 4) -> Iterator[str]:
    layers = list(LAYERS)[:4] if context.quick else list(LAYERS)
    for layer in layers:
        for dtype in dtypes:
            for direction in DIRECTIONS:
                yield spell(layer, dtype, n, direction)
            for fused in ("+bias+relu", "+bias+add+relu"):
                yield spell(layer, dtype, n) + fused


def runtime_compiled(traits: _C.Traits) -> bool:
    """Engines that a machine without a driver cannot list."""
    return traits.is_runtime_compiled
