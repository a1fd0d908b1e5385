# SPDX-License-Identifier: BSD-3-Clause
"""Mutated names of primitives as an override, as `forward=` and under the gate.

A name is refused with torchalgo.Error, or the convolution gives the right values.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import torch
from torch.nn.functional import conv2d

import isolated
import torchalgo
from campaign import FindingError, main
from mutate import mutated
from small_model import model
from torchalgo import _C
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.overrides import forced_primitives

PROBLEM = "fwd_f32_n1c16h9w9_k16r3s3_st1x1_pad1x1_dil1x1_g1"
LAYOUTS = ("nchw", "nhwc", "nChw16c")
NAMES = (
    "cpu.winograd_f4x4_3x3.t14", "cpu.winograd_f4x4_3x3", "cpu.direct", "cpu.fft.t32", "aten.conv",
    "aten.prepacked", "cpu.im2col_gemm", "view.relabel", "cudnn9.eng3{K1=2}", "cudnn_legacy.fwd.6",
    "WINOGRAD", "1", "cpu.conv_chain", "cpu.depthwise", "layout.tiled", "f32:cpu.direct; free",
)  # fmt: skip
GLOBS = ("layer1.0.conv1", "layer*", "stem.0", "fc", "*", "layer1.?.conv[12]", "layer1..conv1")


@functools.cache
def graph() -> Any:
    x = torch.rand(1, 3, 24, 24)
    return _C.import_graph(freeze_model(model(), (x,))._c, (x,)).graph


@functools.cache
def candidates() -> Any:
    return _C.find_candidates(graph())


@functools.cache
def tensors() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(2)
    x, w = torch.randn(1, 16, 9, 9), torch.randn(16, 16, 3, 3)
    return x, w, conv2d(x.double(), w.double(), padding=1)


def as_override(rng: random.Random, name: str) -> str:
    pattern = mutated(rng, rng.choice(GLOBS), GLOBS) if rng.random() < 0.5 else rng.choice(GLOBS)
    forced = forced_primitives(graph(), candidates(), {pattern: name})
    if not forced:
        raise FindingError(f"{pattern!r}: {name!r} has no effect")
    return "forced"


def as_forward(rng: random.Random, name: str) -> str:
    x, w, expected = tensors()
    y = torchalgo.conv2d(x, w, padding=1, forward=name)
    error = ((y.double() - expected).norm() / expected.norm()).item()
    if not error <= 1e-5:
        raise FindingError(f"{name!r} has an error of {error:.2g}")
    return "run"


def as_primitive(rng: random.Random, name: str) -> str:
    layouts = rng.choice(LAYOUTS), rng.choice(LAYOUTS)
    primitive = _C.Primitive(name, *layouts, rng.choice((0, 64, 10**6)))
    failure = _C.check_primitives(PROBLEM, [primitive], 1e-5)[0][1]
    return "failed the gate" if failure else "passed the gate"


def names(seed: int) -> list[str]:
    rng = random.Random(seed)
    torch.set_num_threads(1)
    name = rng.choice(NAMES)
    if rng.random() < 0.75:
        name = mutated(rng, name, NAMES)
    # The gate takes a hundred times as long as an override.
    use = rng.choices((as_override, as_forward, as_primitive), (95, 4, 1))[0]
    try:
        return [f"{use.__name__} {use(rng, name)}"]
    except (torchalgo.Error, UnicodeError):
        return [f"{use.__name__} refused"]
    except FindingError:
        raise
    except Exception as error:
        raise FindingError(f"{use.__name__}({name!r}): {type(error).__name__}: {error}") from None


FUZZERS = {"names": names}

if __name__ == "__main__":
    main(__doc__, FUZZERS, isolated.results)
