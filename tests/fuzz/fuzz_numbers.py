# SPDX-License-Identifier: BSD-3-Clause
"""Values, channel counts and sizes that zero-mean noise of round sizes does not show.

    python tests/fuzz/fuzz_numbers.py bright --minutes 10

bright: one large value in the input; results that do not read it must be as exact as with PyTorch.
The word "componentwise" keeps Winograd and the like out. offsets: inputs with a large mean, through
norms and normalizations of inputs. channels: each own CPU primitive of the check's kinds, around
blocks of channels. sizes: one plan at many sizes of the input; packed weights must not grow. onnx:
files with two or three inputs whose open sizes have no name, or names of their own. A case is one
comparison, or an error of torchalgo.
"""

from __future__ import annotations

import copy
import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import isolated
import torchalgo
from campaign import FindingError, main
from torchalgo import _C

# Older commits have neither the word nor the bound.
HAS_WORD = "max_componentwise_error" in torchalgo.Settings.__dataclass_fields__


def prepare(seed: int) -> random.Random:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(seed)
    warnings.simplefilter("ignore")
    return random.Random(seed)


def optimized(model: nn.Module, x: Tensor, **more: Any) -> Any:
    """Optimizes in a second. The plan runs, whatever is faster."""
    settings = torchalgo.Settings(progress=False, cost_db=False, run_untimed=True)
    return torchalgo.optimize(model, x, budget_s=1.0, settings=settings, **more)


def errors_of(fast: Any, model: nn.Module, x: Tensor, where: Any = ...) -> tuple[float, float]:
    """Returns the largest errors of outputs of `fast` and `model`, relative to the mean size."""
    exact = copy.deepcopy(model).double()(x.double())[where]
    scale = exact.abs().mean()
    ours, eager = (float((f(x)[where].double() - exact).abs().max() / scale) for f in (fast, model))
    return ours, eager


def compare(fast: Any, model: nn.Module, x: Tensor, what: str, where: Any = ...) -> str:
    ours, eager = errors_of(fast, model, x, where)
    if not ours <= 30 * eager + 1e-4:
        raise FindingError(f"{what}: error {ours:.1e}, PyTorch's own {eager:.1e}")
    return "near"


def bright(seed: int) -> list[str]:
    rng = prepare(seed)
    filters = [rng.choice([1, 3, 3, 5, 7, (1, 3), (5, 1)]) for _ in range(rng.choice([1, 2]))]
    layers: list[nn.Module] = []
    reach, width = 0, rng.choice([16, 32, 64])
    x = torch.rand(1, width, 40, 40)
    for each in filters:
        r, s = (each, each) if isinstance(each, int) else each
        layers += [nn.Conv2d(width, width, (r, s), padding=(r // 2, s // 2)), nn.ReLU()]
        reach += max(r, s) // 2
    model = nn.Sequential(*layers).eval()
    fast = optimized(model, x, **({"overrides": {"*": "componentwise"}} if HAS_WORD else {}))
    far = torch.ones(40, 40, dtype=torch.bool)
    far[20 - reach : 21 + reach, 20 - reach : 21 + reach] = False
    ended = []
    for value in (1e4, -9999.0, 65025.0, 1e6):
        x[..., 20, 20] = value
        ended.append(compare(fast, model, x, f"filters {filters}, {value:g}", (..., far)))
    return ended


class Normalize(nn.Module):
    """The normalization of an input, as models do it."""

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((1, 3, 1, 1), mean))
        self.register_buffer("deviation", torch.full((1, 3, 1, 1), deviation))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


def _normed(rng: random.Random, mean: float, deviation: float) -> nn.Module:
    """Returns a model that a large mean of its input may spoil."""
    if rng.random() < 0.5:
        norm = nn.BatchNorm2d(3)
        norm.running_mean.fill_(mean)
        norm.running_var.fill_(deviation**2)
        return nn.Sequential(
            rng.choice([Normalize(mean, deviation), norm]),
            nn.Conv2d(3, 16, rng.choice([1, 3])), nn.ReLU(), nn.Conv2d(16, 16, 1),
        )  # fmt: skip
    width = rng.choice([16, 32])
    norms = [nn.GroupNorm(4, width), nn.InstanceNorm2d(width), nn.GroupNorm(1, width)]
    identity = nn.Conv2d(width, width, 1, bias=False)
    identity.weight.copy_(torch.eye(width)[:, :, None, None])
    return nn.Sequential(identity, rng.choice(norms), nn.SiLU(), nn.Conv2d(width, 16, 1))


def offsets(seed: int) -> list[str]:
    rng = prepare(seed)
    mean, deviation = rng.choice([10.0, 1e3, 101325.0, 1e6]), rng.choice([1.0, 10.0, 300.0])
    model = _normed(rng, mean, deviation).eval()
    width = next(m for m in model.modules() if isinstance(m, nn.Conv2d)).in_channels
    x = torch.randn(2, width, 16, 18)
    fast = optimized(model, x)
    return [
        compare(fast, model, mean * part + deviation * x, f"{model[0]}, mean {mean * part:g}")
        for part in (1.0, 0.0, 0.9)
    ]


CHANNELS = (
    "channelsums_f32_n{n}c{c}h{h}w{w}", "moments_f32_n{n}c{c}h{h}w{w}",
    "fwd_f32_n{n}c{c}h{h}w{w}_k{k}r1s1_st1x1_pad0x0_dil1x1_g1",
    "fwd_f32_n{n}c{c}h{h}w{w}_k{k}r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_f32_n{n}c{c}h{h}w{w}_k{c}r3s3_st1x1_pad1x1_dil1x1_g{c}",
    "bwd_filter_f32_n{n}c{c}h{h}w{w}_k{k}r3s3_st1x1_pad1x1_dil1x1_g1",
    "maxpool_f32_n{n}c{c}h{h}w{w}_r3s3_st2x2_pad1x1_dil1x1", "relu_f32_n{n}c{c}h{h}w{w}",
)  # fmt: skip


def channels(seed: int) -> list[str]:
    rng = prepare(seed)
    around = [rng.choice([8, 16, 32, 48, 64, 128]) * rng.choice([1, 2]) for _ in range(2)]
    c, k = (n + rng.choice([-1, 0, 1, 1, 1, 2, 15]) for n in around)
    sizes = {"n": rng.choice([1, 2]), "c": c, "k": k, "h": rng.choice([1, 4, 7]), "w": 5}
    problem = rng.choice(CHANNELS).format(**sizes)
    offered = [p for p in _C.offers_of(problem)[0] if p.name.startswith("cpu.")]
    ended = []
    for primitive in offered:
        ((_, failure),) = _C.check_primitives(problem, [primitive], 1e-4)
        if failure:
            raise FindingError(f"{problem} {primitive}: {failure}")
        ended.append("right")
    return ended or ["no primitive"]


def sizes(seed: int) -> list[str]:
    rng = prepare(seed)
    width = rng.choice([32, 64])
    groups = rng.choice([1, 1, width])
    model = nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1, groups=groups), nn.ReLU(), nn.Conv2d(width, 16, 1)
    ).eval()
    fast = optimized(model, torch.rand(1, width, 40, 40))
    first, ended = 0, []
    for turn in range(10):
        x = torch.rand(rng.choice([1, 2]), width, 20 + 4 * turn, rng.randrange(20, 64))
        ended.append(compare(fast, model, x, "sizes"))
        first = first or fast.weight_bytes
        if fast.weight_bytes > 1.1 * first:
            raise FindingError(f"{first} bytes of packed weights became {fast.weight_bytes}")
    return ended


class Several(nn.Module):
    def __init__(self, join: int) -> None:
        super().__init__()
        self.conv, self.join = nn.Conv2d(3, 4, 3, padding=1), join

    def forward(self, *inputs: Tensor) -> Tensor:
        first, *others = map(self.conv, inputs)
        for y in others:
            if self.join == 2:
                first = torch.cat([first, y], 1)
            else:
                first = first * y if self.join else first + y
        return first


def onnx(seed: int) -> list[str]:
    rng = prepare(seed)
    names = ["a", "b", "c"][: rng.choice([2, 3])]
    model = Several(rng.randrange(3)).eval()
    inputs = tuple(torch.rand(2, 3, 8, 8) for _ in names)
    dims = rng.choice([[0], [0, 2, 3], [2, 3]])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            model, inputs, str(path), dynamo=False, input_names=names,
            dynamic_axes=dict.fromkeys(names, dims),
        )  # fmt: skip
        try:
            loaded = torchalgo.load_onnx(path)
        except torchalgo.Error as problem:
            raise FindingError(f"open {dims} of {names}: {problem}") from problem
    shape = [rng.randrange(1, 4) if 0 in dims else 2, 3, *([9, 7] if 2 in dims else [8, 8])]
    given = tuple(torch.rand(shape) for _ in names)
    if not torch.allclose(loaded(*given), model(*given), 1e-4, 1e-5):
        raise FindingError(f"open {dims} of {names}: other values")
    return ["equal"]


FUZZERS = {
    "bright": bright, "offsets": offsets, "channels": channels, "sizes": sizes, "onnx": onnx
}  # fmt: skip

if __name__ == "__main__":
    main(__doc__ or "", FUZZERS, isolated.results)
