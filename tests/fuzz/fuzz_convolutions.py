# SPDX-License-Identifier: BSD-3-Clause
"""Random convolutions by every algorithm that offers them, in all directions, against f64.

    python tests/fuzz/fuzz_convolutions.py convolutions --minutes 30

Each seed is a problem: 1-D to 3-D, transposed or not, with odd sizes, strides, layouts of memory
and values (NaN, infinite, denormal, huge). A case is a run of one algorithm by its name. Errors are
measured against the sum of the magnitudes, so that cancellation is no error of an algorithm.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import isolated
import torchalgo
from campaign import FindingError, main
from torchalgo import _C
from torchalgo._C import matches_name

CPU = _C.cpu_device()
MOST_PRODUCTS = 2e7
# How much more than a dot product these may round: csrc/profiler/rounding.cpp derives the factors.
ROUNDING = {
    "cpu.winograd_f2x2_3x3": 2, "cpu.winograd_f4x4_3x3": 8, "cpu.winograd_f6x6_3x3": 32,
    "cpu.winograd_f3x3_3x3s2": 2, "cpu.winograd_f4x4_5x5": 32, "cpu.winograd_f2x2_7x7": 32,
    "cpu.winograd_f1x4_1x3": 4, "cpu.winograd_f4x1_3x1": 4, "cpu.winograd_f1x4_1x5": 8,
    "cpu.winograd_f4x1_5x1": 8, "cpu.winograd_f1x4_1x7": 16, "cpu.winograd_f4x1_7x1": 16,
    "cpu.winograd_f4x4_3x3_nhwc": 8, "cpu.fft": 4,
}  # fmt: skip
SPREADING = ("winograd", "fft", "strassen")  # one odd value reaches many results


@dataclasses.dataclass
class Convolution:
    """A problem: sizes, and what its tensors hold and how they lie in memory."""

    dims: int
    is_transposed: bool
    n: int
    c: int
    k: int
    groups: int
    sizes: list[int]
    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    has_bias: bool
    values: str
    memory: str

    @property
    def name(self) -> str:
        return f"conv{'_transpose' if self.is_transposed else ''}{self.dims}d"

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "stride": self.stride, "padding": self.padding, "groups": self.groups,
            "dilation": self.dilation,
        }  # fmt: skip
        return options | ({"output_padding": self.output_padding} if self.is_transposed else {})

    @property
    def weight_sizes(self) -> list[int]:
        first, second = (self.c, self.k) if self.is_transposed else (self.k, self.c)
        return [first, second // self.groups, *self.kernel]

    @property
    def products(self) -> float:
        """At least the number of multiplications."""
        sizes = zip(self.sizes, self.padding, self.stride, strict=True)
        places = [s if self.is_transposed else (s + 2 * p) // t + 1 for s, p, t in sizes]
        per_place = self.c * self.k // self.groups * math.prod(self.kernel)
        return self.n * per_place * math.prod(places)


def random_convolution(rng: random.Random) -> Convolution:
    dims = rng.choices((2, 1, 3), (8, 1, 1))[0]
    groups, most = rng.choice((1, 1, 1, 1, 2, 3, 4, 8)), rng.choice((4, 20, 40, 70))
    conv = Convolution(
        dims=dims,
        is_transposed=rng.random() < 0.12,
        n=rng.choice((1, 1, 1, 1, 2, 3, 0) if rng.random() < 0.9 else (1, 17)),
        c=rng.randint(1, most) * groups,
        k=rng.randint(1, most) * groups,
        groups=groups,
        sizes=[rng.choice((1, 1, 2, 3, 5, 7, 8, 13, 14, 15, 16, 17, 28, 33)) for _ in range(dims)],
        kernel=[rng.choice((1, 1, 2, 3, 3, 3, 4, 5, 7)) for _ in range(dims)],
        stride=[rng.choice((1, 1, 1, 2, 2, 3, 5)) for _ in range(dims)],
        padding=[rng.choice((0, 0, 1, 1, 2, 3, 8, 40)) for _ in range(dims)],
        dilation=[rng.choice((1, 1, 1, 1, 2, 3, 9)) for _ in range(dims)],
        output_padding=[0] * dims,
        has_bias=rng.random() < 0.5,
        values=rng.choice(["normal"] * 10 + ["nan", "inf", "denormal", "huge", "tiny", "zero"]),
        memory=rng.choice(("dense", "dense", "channels_last", "strided", "expanded", "offset")),
    )
    make_special(rng, conv)
    if rng.random() < 0.3:
        limits = map(max, conv.stride, conv.dilation)
        conv.output_padding = [rng.randint(0, limit - 1) for limit in limits]
    return conv


def make_special(rng: random.Random, conv: Convolution) -> None:
    """Turns most problems into a kind that some algorithms are made for."""
    kind, dims = (
        rng.choice(("", "", "depthwise", "pointwise", "filter", "stem", "grouped")),
        conv.dims,
    )
    if kind == "depthwise":
        conv.groups = conv.c = rng.choice((1, 3, 8, 15, 16, 17, 32, 50, 64))
        conv.k = conv.c * rng.choice((1, 1, 1, 2))
    elif kind == "pointwise":
        conv.kernel, conv.dilation = [1] * dims, [1] * dims
        conv.padding, conv.groups = [rng.choice((0, 0, 0, 1))] * dims, rng.choice((1, 1, 2))
        channels = (1, 15, 16, 17, 63, 64, 65, 100, 128)
        conv.c, conv.k = (conv.groups * rng.choice(channels) for _ in range(2))
    elif kind == "filter":
        kernels = ((3, 3), (3, 3), (5, 5), (7, 7), (1, 3), (3, 1), (1, 5), (7, 1), (8, 8), (11, 9))
        conv.kernel = list(rng.choice(kernels)) if dims == 2 else [3] * dims
        conv.stride, conv.dilation = [rng.choice((1, 1, 1, 2))] * dims, [1] * dims
        conv.padding = [rng.choice((0, size // 2, size - 1)) for size in conv.kernel]
        conv.groups = rng.choice((1, 1, 1, 2))
        conv.c, conv.k = (conv.groups * rng.choice((1, 8, 15, 16, 17, 32, 48)) for _ in range(2))
    elif kind == "stem":
        conv.groups, conv.c, conv.k = 1, rng.randint(1, 4), rng.choice((1, 16, 17, 32, 64, 96))
        conv.kernel, conv.stride = (
            [rng.choice((3, 5, 7, 11))] * dims,
            [rng.choice((1, 2, 4))] * dims,
        )
    elif kind == "grouped":
        conv.groups, conv.kernel = rng.choice((2, 4, 8)), [3] * dims
        conv.c = conv.k = conv.groups * rng.choice((2, 4, 8, 16))


def tensor(conv: Convolution, sizes: list[int]) -> Tensor:
    if conv.memory == "channels_last" and len(sizes) == 4:
        return torch.randn(sizes).contiguous(memory_format=torch.channels_last)
    if conv.memory == "strided":
        return torch.randn(*sizes[:-1], 2 * sizes[-1])[..., ::2]
    if conv.memory == "expanded":
        return torch.randn(1, *sizes[1:]).expand(sizes)
    if conv.memory == "offset":
        return torch.randn(math.prod(sizes) + 3)[3:].view(sizes)
    return torch.randn(sizes)


def tensors(rng: random.Random, conv: Convolution) -> tuple[Tensor, Tensor, Tensor | None]:
    x, w = tensor(conv, [conv.n, conv.c, *conv.sizes]), tensor(conv, conv.weight_sizes)
    bias = torch.randn(conv.k) if conv.has_bias else None
    if conv.values in ("nan", "inf"):
        x = x.clone()
        if x.numel():
            x[tuple(rng.randrange(size) for size in x.shape)] = float(conv.values)
    factors = {"denormal": (1e-40, 1), "huge": (1e18, 1e10), "tiny": (1e-20, 1e-15), "zero": (0, 1)}
    factor_x, factor_w = factors.get(conv.values, (1, 1))
    return (x * factor_x, w * factor_w, bias) if conv.values in factors else (x, w, bias)


@dataclasses.dataclass
class Exact:
    """A result in f64, the sum of its terms' magnitudes, and how many terms there are."""

    value: Tensor
    magnitude: Tensor
    terms: int


def factor_of(name: str) -> float:
    return next((factor for known, factor in ROUNDING.items() if matches_name(name, known)), 1.0)


def check(conv: Convolution, what: str, result: Tensor, exact: Exact) -> None:
    """Raises FindingError if a result is wrong, lost a NaN or is infinite for no reason."""
    y, expected, magnitude = result.double(), exact.value, exact.magnitude
    if y.shape != expected.shape:
        raise FindingError(f"{what}: shape {tuple(y.shape)}, expected {tuple(expected.shape)}")
    if (expected.isnan() & ~y.isnan()).any():
        raise FindingError(f"{what}: lost a NaN")
    if (expected.isinf() & y.isfinite()).any():
        raise FindingError(f"{what}: lost an infinity")
    spreads = any(part in what for part in SPREADING)
    if spreads and conv.values in ("nan", "inf"):
        return
    sound = expected.isfinite() & (magnitude < 1e38)
    if (sound & ~y.isfinite()).any():
        raise FindingError(f"{what}: not finite where f64 is")
    error = (y - expected)[sound].norm().item()
    bound = max(2e-7, factor_of(what) * 2**-23 * (4 + 0.5 * math.sqrt(exact.terms)))
    least = 1.2e-38 * exact.terms * math.sqrt(y.numel())  # results below f32's range
    if error > bound * magnitude[sound].norm().item() + least:
        raise FindingError(f"{what}: error {error:.3g}, bound {bound:.3g} times the magnitude")


Call = Callable[..., Any]


def names_of(problem: str) -> list[str]:
    primitives, _, _ = _C.offers_of(problem, 1 << 30, CPU)
    return sorted({primitive.name for primitive in primitives})


def forward_runs(conv: Convolution, call: Call, exact: Exact) -> Iterator[str]:
    """Runs the default, then each algorithm by its name."""
    with torchalgo.record_runs() as record:
        check(conv, "default", call(), exact)
    yield "default"
    for problem in {str(run.problem) for run in record.runs}:
        fused = problem + ("+bias" if conv.has_bias and not conv.is_transposed else "")
        for name in names_of(fused):
            with torchalgo.record_runs() as record:
                result = call(forward=name)
            ran = [run.primitive for run in record.runs]
            check(conv, ran[0] if ran else name, result, exact)
            if not (len(ran) == 1 and matches_name(ran[0], name)):
                raise FindingError(f"{name} was asked for and {ran} ran on {fused}")
            yield "forward"


def backward_runs(
    conv: Convolution, call: Call, inputs: tuple[Tensor, Tensor], exact: tuple[Exact, Exact]
) -> Iterator[str]:
    """Runs each algorithm of both gradients by its name."""

    def gradients(**choice: str) -> tuple[list[Tensor], list[tuple[str, str]]]:
        with torchalgo.record_runs() as record:
            y = call(**choice)
            made = torch.autograd.grad(y, inputs, torch.ones_like(y))
        return list(made), [(str(run.problem), run.primitive) for run in record.runs]

    made, ran = gradients()
    for i, gradient in enumerate(made):
        check(conv, f"default gradient {i}", gradient, exact[i])
    data_prefix = "fwd" if conv.is_transposed else "bwd_data"
    for problem, _ in ran:
        is_filter = problem.startswith("bwd_filter")
        if not is_filter and not problem.startswith(data_prefix):
            continue
        for name in names_of(problem):
            made, ran = gradients(**{"backward_filter" if is_filter else "backward_data": name})
            if not any(p == problem and matches_name(r, name) for p, r in ran):
                raise FindingError(f"{name} was asked for on {problem} and {ran} ran")
            check(conv, name, made[int(is_filter)], exact[int(is_filter)])
            yield "backward_filter" if is_filter else "backward_data"


def exact_gradients(conv: Convolution, x: Tensor, w: Tensor) -> tuple[Exact, Exact]:
    def gradients(*inputs: Tensor) -> tuple[Tensor, ...]:
        inputs = tuple(t.double().contiguous().requires_grad_() for t in inputs)
        y = getattr(F, conv.name)(*inputs, **conv.options)
        return torch.autograd.grad(y.sum(), inputs)

    values, magnitudes = gradients(x, w), gradients(x.abs(), w.abs())
    counts = math.prod(conv.kernel) * max(conv.c, conv.k), conv.n * 40000
    a, b = (Exact(*args) for args in zip(values, magnitudes, counts, strict=True))
    return a, b


def shape_of(call: Call) -> tuple[int, ...] | None:
    """Returns the shape of a result; None if the call is refused."""
    try:
        return tuple(call().shape)
    except (torchalgo.Error, RuntimeError):
        return None


def convolutions(seed: int) -> list[str]:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    conv = random_convolution(rng)
    if conv.products > MOST_PRODUCTS:
        return ["too large"]
    x, w, bias = tensors(rng, conv)
    function = getattr(torchalgo, conv.name)
    call = lambda **choice: function(x, w, bias, **conv.options, **choice)  # noqa: E731
    try:
        exact = exact_of(conv, x, w, bias)
    except RuntimeError as refused:
        theirs = lambda: getattr(F, conv.name)(x, w, bias, **conv.options)  # noqa: E731
        if shape_of(call) != shape_of(theirs):  # some sizes torch refuses in f64 alone
            raise FindingError(f"accepts what torch refuses: {refused}: {conv}") from None
        return ["refused, as torch does"]
    try:
        outcomes = list(forward_runs(conv, call, exact))
        if conv.values in ("normal", "zero") and rng.random() < 0.35 and exact.value.numel():
            x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
            outcomes += backward_runs(conv, call, (x, w), exact_gradients(conv, x, w))
    except FindingError as finding:
        raise FindingError(f"{finding}: {conv}") from None
    return outcomes


def exact_of(conv: Convolution, x: Tensor, w: Tensor, bias: Tensor | None) -> Exact:
    function = getattr(F, conv.name)
    inputs = [t if t is None else t.double().contiguous() for t in (x, w, bias)]
    magnitudes = [t if t is None else t.abs() for t in inputs]
    with torch.no_grad():
        value, magnitude = function(*inputs, **conv.options), function(*magnitudes, **conv.options)
    return Exact(value, magnitude, math.prod(conv.kernel) * conv.c)


FUZZERS = {"convolutions": convolutions}

if __name__ == "__main__":
    main(__doc__ or "", FUZZERS, isolated.results)
