# SPDX-License-Identifier: BSD-3-Clause
"""torchalgo::conv2d and its kin: any primitive by name, in every direction, as torch's own op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import torchalgo
from torchalgo import _C

pytestmark = pytest.mark.usefixtures("clean_settings")
ops = torch.ops.torchalgo
Runs = Callable[[], dict[tuple[str, str], int]]


def rand(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# (op, rank of the image, arguments): strides, dilation, groups, padding, transposed ones.
CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], bool, dict[str, Any]]] = [
    ("conv1d", (2, 4, 9), (6, 4, 3), True, {"stride": [2], "padding": [1]}),
    ("conv2d", (2, 4, 9, 8), (6, 4, 3, 3), True, {"padding": [1, 1]}),
    ("conv2d", (2, 4, 9, 8), (6, 2, 3, 1), False, {"groups": 2, "dilation": [2, 1]}),
    ("conv2d", (2, 4, 9, 8), (4, 1, 3, 3), True, {"groups": 4, "stride": [2, 3]}),
    ("conv3d", (1, 3, 5, 6, 4), (4, 3, 3, 2, 2), True, {"padding": [1, 0, 1]}),
    (
        "conv_transpose1d",
        (2, 4, 7),
        (4, 3, 3),
        True,
        {"stride": [2], "output_padding": [1]},
    ),
    (
        "conv_transpose2d",
        (2, 4, 5, 6),
        (4, 3, 3, 3),
        True,
        {"stride": [2, 1], "padding": [1, 0], "output_padding": [1, 0], "groups": 2},
    ),
    ("conv_transpose3d", (1, 2, 3, 4, 3), (2, 3, 2, 2, 2), False, {"dilation": [1, 2, 1]}),
]
IDS = [f"{name}_{index}" for index, (name, *_) in enumerate(CASES)]


def make(case: Any, dtype: torch.dtype, requires_grad: bool = True) -> list[Tensor | None]:
    name, src, weight, has_bias, args = case
    channels = weight[1] * args.get("groups", 1) if "transpose" in name else weight[0]
    tensors: list[Tensor | None] = [rand(*src, dtype=dtype), rand(*weight, dtype=dtype, seed=1)]
    tensors.append(rand(channels, dtype=dtype, seed=2) if has_bias else None)
    return [t if t is None else t.requires_grad_(requires_grad) for t in tensors]


def gradients(call: Callable[..., Tensor], tensors: list[Tensor | None]) -> list[Tensor]:
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in tensors]
    y = call(*leaves)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    return [y.detach(), *[t.grad for t in leaves if t is not None]]


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("name", ["auto", "aten.conv"])
def test_equals_torch_forward_and_backward(case: Any, name: str, runs: Runs) -> None:
    op, args = getattr(ops, case[0]), case[4]
    tensors = make(case, torch.float64)
    choices = {"forward": name, "backward_data": name, "backward_filter": name}
    ours = gradients(lambda *t: op(*t, **args, **choices), tensors)
    theirs = gradients(lambda *t: getattr(torch.nn.functional, case[0])(*t, **args), tensors)
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-10, atol=1e-10)
    assert set(runs()) == {("fwd", name), ("bwd_data", name), ("bwd_filter", name)}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_first_and_second_derivatives_are_right(case: Any) -> None:
    op, args = getattr(ops, case[0]), case[4]
    tensors = [t for t in make(case, torch.float64) if t is not None]
    choices = {"forward": "aten.conv", "backward_data": "aten.conv", "backward_filter": "aten.conv"}

    def call(*t: Tensor) -> Tensor:
        return op(t[0], t[1], t[2] if len(t) > 2 else None, **args, **choices)

    assert torch.autograd.gradcheck(call, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("choice", ["auto", "cpu.im2col_gemm;aten.conv"])
def test_opcheck_finds_nothing(case: Any, choice: str) -> None:
    name, _, weight, _, args = case
    dims = len(weight) - 2
    tensors = make(case, torch.float32)
    choices = {"forward": choice, "backward_data": "auto", "backward_filter": "aten.conv"}
    opcheck(getattr(ops, name).default, (*tensors,), {**args, **choices})
    plain = (
        args.get("stride", [1] * dims),
        args.get("padding", [0] * dims),
        args.get("dilation", [1] * dims),
        "transpose" in name,
        args.get("output_padding", [0] * dims),
        args.get("groups", 1),
    )
    opcheck(ops.convolution.default, (*tensors, *plain), choices)
    y = ops.convolution(*tensors, *plain, **choices).detach()
    bias_sizes = None if tensors[2] is None else [tensors[2].numel()]
    del choices["forward"]
    opcheck(
        ops.convolution_backward.default,
        (y, tensors[0], tensors[1], bias_sizes, *plain, [True, True, bias_sizes is not None]),
        choices,
    )


@pytest.mark.parametrize("choice", ["auto", "cpu.im2col_gemm", "aten.conv"])
@pytest.mark.parametrize("of", ["input", "weight", "both"])
def test_opcheck_finds_nothing_in_channels_last(choice: str, of: str) -> None:
    x, w = rand(2, 4, 9, 8), rand(6, 4, 3, 3)
    if of != "weight":
        x = x.to(memory_format=torch.channels_last)
    if of != "input":
        w = w.to(memory_format=torch.channels_last)
    choices = {"forward": choice, "backward_data": choice, "backward_filter": "aten.conv"}
    args = (x.requires_grad_(), w.requires_grad_(), None, [1, 1], [1, 1])
    opcheck(ops.conv2d.default, args, choices)
    y = ops.conv2d(*args, **choices)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert y.stride() == torch.conv2d(*args).stride()


@pytest.mark.parametrize(
    "primitive",
    ["aten.prepacked", "cpu.direct", "cpu.im2col_gemm", "cpu.winograd_f2x2_3x3"],
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_pinned_primitive_runs(primitive: str, channels_last: bool, runs: Runs) -> None:
    x, w, b = rand(2, 16, 12, 10), rand(24, 16, 3, 3, seed=1), rand(24, seed=2)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    y = ops.conv2d(x, w, b, [1, 1], [1, 1], forward=primitive)
    reference = torch.conv2d(x, w, b, 1, 1)
    torch.testing.assert_close(y, reference, rtol=1e-4, atol=1e-4)
    assert y.stride() == reference.stride()
    ((ran, count),) = runs().items()
    assert ran[0] == "fwd" and ran[1].startswith(primitive) and count == 1
    assert torchalgo.fallbacks() == {}


@pytest.mark.filterwarnings("ignore:torchalgo")
def test_what_cannot_run_falls_back_counted_and_raises_when_strict(runs: Runs) -> None:
    x, w = rand(1, 4, 8, 8), rand(4, 4, 3, 3)
    y = ops.conv2d(x, w, forward="cpu.depthwise")
    assert torch.equal(y, torch.conv2d(x, w))
    ((problem, (count, reason)),) = torchalgo.fallbacks().items()
    assert problem == "fwd_f32_n1c4h8w8_k4r3s3_st1x1_pad0x0_dil1x1_g1"
    assert count == 1 and "groups" in reason
    assert runs() == {("fwd", "aten.conv"): 1}
    torchalgo.set_strict(True)
    with pytest.raises(RuntimeError, match=r"cpu\.depthwise"):
        ops.conv2d(x, w, forward="cpu.depthwise")
    ops.conv2d(x, w, forward="cpu.direct")  # with layout changes around it: as asked for


def test_a_fallback_warns_once(capfd: pytest.CaptureFixture[str]) -> None:
    x, w = rand(1, 4, 8, 8), rand(4, 4, 3, 3)
    for _ in range(3):
        ops.conv2d(x, w, forward="cpu.depthwise")
        ops.conv2d(x, w, forward="cpu.none")
    assert capfd.readouterr().err.count("aten.conv runs instead") == 2


def test_a_choice_that_is_none_says_where() -> None:
    with pytest.raises(RuntimeError, match="character 5"):
        ops.conv2d(rand(1, 4, 8, 8), rand(4, 4, 3, 3), forward="cpu.;")


def test_wrong_arguments_raise_torchs_own_errors() -> None:
    x, w = rand(1, 4, 8, 8), rand(4, 3, 3, 3)
    with pytest.raises(RuntimeError) as theirs:
        torch.conv2d(x, w)
    with pytest.raises(RuntimeError) as ours:
        ops.conv2d(x, w, forward="aten.conv")
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "types",
    [("int64", "float64"), ("float64", "float32"), ("float64", "complex128"), ("float32", "half")],
)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_bias_of_another_type_raises_as_in_torch(types: tuple[str, str], dims: int) -> None:
    kind, bias_kind = (getattr(torch, name) for name in types)
    x, w = torch.ones(1, 2, *[4] * dims, dtype=kind), torch.ones(3, 2, *[3] * dims, dtype=kind)
    bias = torch.ones(3, dtype=bias_kind)
    with pytest.raises(RuntimeError):
        getattr(torch.nn.functional, f"conv{dims}d")(x, w, bias)
    for forward in ("auto", "aten.conv"):
        with pytest.raises(torchalgo.Error, match="expected one dtype"):
            getattr(ops, f"conv{dims}d")(x, w, bias, forward=forward)
    with pytest.raises(torchalgo.Error, match="expected one dtype"):
        getattr(ops, f"conv{dims}d")(x.to("meta"), w.to("meta"), bias.to("meta"))


@pytest.mark.filterwarnings("ignore:torchalgo")
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("channels", [3, 256])
def test_an_empty_transposed_result_is_refused_where_torch_does(
    kind: torch.dtype, channels: int
) -> None:
    """Whether torch refuses depends on the library that it takes: oneDNN does not."""
    x, w = torch.ones(4, channels, 3, 3, dtype=kind), torch.ones(channels, 4, 2, 2, dtype=kind)

    def outcome(convolve: Any, **choice: str) -> Any:
        try:
            return tuple(convolve(x, w, padding=[2, 2], **choice).shape)
        except RuntimeError as problem:
            return str(problem)

    theirs = outcome(torch.nn.functional.conv_transpose2d)
    assert outcome(ops.conv_transpose2d) == theirs
    assert outcome(ops.conv_transpose2d, forward="aten.conv") == theirs


def test_argument_comes_before_context_before_flag_before_plan(runs: Runs) -> None:
    x, w = rand(1, 4, 8, 8), rand(4, 4, 3, 3)
    problem = "fwd_f32_n1c4h8w8_k4r3s3_st1x1_pad0x0_dil1x1_g1"
    call = lambda **choice: ops.conv2d(x, w, **choice)  # noqa: E731
    _C.set_planned_choices({problem: "cpu.direct"})
    call()
    _C.set_flag_choices("cpu.im2col_gemm", "", "")
    call()
    _C.set_context_choices("f64:cpu.direct;aten.prepacked", "", "")
    call()
    call(forward="aten.conv")
    call(forward="f64:aten.conv")  # does not apply: the next one is asked
    call(forward="free")
    names = {name: count for (_, name), count in runs().items()}
    assert names == {
        "cpu.direct": 1,
        "cpu.im2col_gemm": 1,
        "aten.prepacked": 2,
        "aten.conv": 1,
        "auto": 1,
    }


def test_a_plan_names_a_convolution_with_or_without_its_bias(runs: Runs) -> None:
    x, w, b = rand(1, 4, 8, 8), rand(4, 4, 3, 3), rand(4)
    problem = "fwd_f32_n1c4h8w8_k4r3s3_st1x1_pad0x0_dil1x1_g1"
    _C.set_planned_choices({problem: "cpu.direct"})
    ops.conv2d(x, w, b)
    _C.set_planned_choices({problem: "cpu.direct", problem + "+bias": "cpu.im2col_gemm"})
    ops.conv2d(x, w, b)
    assert runs() == {("fwd", "cpu.direct"): 1, ("fwd", "cpu.im2col_gemm"): 1}


def test_backward_obeys_what_was_asked_for_in_forward(runs: Runs) -> None:
    x, w = rand(1, 4, 8, 8).requires_grad_(), rand(4, 4, 3, 3).requires_grad_()
    _C.set_context_choices("", "aten.conv", "")
    y = ops.conv2d(x, w)
    _C.set_context_choices("", "", "aten.conv")
    y.sum().backward()
    assert runs() == {
        ("fwd", "auto"): 1,
        ("bwd_data", "aten.conv"): 1,
        ("bwd_filter", "auto"): 1,
    }


def test_settings_speak_of_a_primitives_direction_and_arguments_of_the_modules(
    runs: Runs,
) -> None:
    x, w = rand(1, 4, 8, 8).requires_grad_(), rand(4, 4, 3, 3).requires_grad_()
    ops.conv_transpose2d(x, w, forward="aten.conv").sum().backward()
    assert runs() == {
        ("bwd_data", "aten.conv"): 1,  # the output of a transposed convolution
        ("fwd", "auto"): 1,  # the gradient of its input
        ("bwd_filter", "auto"): 1,
    }
    _C.reset_recorded_runs()
    _C.set_flag_choices("", "aten.conv", "")
    ops.conv_transpose2d(x, w).sum().backward()
    assert runs()["bwd_data", "aten.conv"] == 1 and runs()["fwd", "auto"] == 1


@pytest.mark.parametrize("primitive", ["auto", "aten.conv", "cpu.im2col_gemm"])
def test_empty_batches_and_inputs_without_a_batch(primitive: str) -> None:
    w = rand(4, 4, 3, 3)
    for sizes in [(0, 4, 8, 8), (4, 8, 8)]:
        x = rand(*sizes)
        y = ops.conv2d(x, w, forward=primitive)
        torch.testing.assert_close(y, torch.conv2d(x, w), rtol=1e-4, atol=1e-4)
    assert torchalgo.fallbacks() == {}


def test_inputs_of_any_strides(runs: Runs) -> None:
    x, w = rand(2, 8, 9, 14)[:, ::2, 1:, ::2], rand(4, 3, 3, 4).permute(0, 3, 1, 2)
    for primitive in ["aten.conv", "cpu.im2col_gemm", "cpu.direct", "aten.prepacked"]:
        y = ops.conv2d(x, w, forward=primitive)
        torch.testing.assert_close(y, torch.conv2d(x, w), rtol=1e-4, atol=1e-4)
    assert len(runs()) == 4


def test_complex_tensors_are_pytorchs_own() -> None:
    x, w = torch.randn(1, 2, 5, 5, dtype=torch.cfloat), torch.randn(3, 2, 3, 3, dtype=torch.cfloat)
    assert torch.equal(ops.conv2d(x, w, forward="aten.conv"), torch.conv2d(x, w))
    w = w.transpose(0, 1)
    y = ops.conv_transpose2d(x, w, forward="aten.conv")
    assert torch.equal(y, torch.conv_transpose2d(x, w))


@pytest.mark.filterwarnings("ignore:torchalgo")
def test_other_types_are_pytorchs_own_and_counted() -> None:
    x, w = torch.arange(32).view(1, 2, 4, 4), torch.arange(36).view(2, 2, 3, 3)
    assert torch.equal(ops.conv2d(x, w, forward="aten.conv"), torch.conv2d(x, w))
    assert list(torchalgo.fallbacks()) == ["a convolution of Strided Long tensors on cpu"]
    torchalgo.set_strict(True)
    with pytest.raises(RuntimeError, match="Long"):
        ops.conv2d(x, w, forward="aten.conv")


def test_forward_mode_differentiation_fails_loudly() -> None:
    from torch.autograd import forward_ad

    x, w = rand(1, 4, 8, 8), rand(4, 4, 3, 3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(RuntimeError, match="jvp"):
            ops.conv2d(dual, w)


def test_autocast_runs_the_lower_precision_and_its_choice(runs: Runs) -> None:
    x, w = rand(1, 4, 8, 8), rand(4, 4, 3, 3).requires_grad_()
    choice = "bf16:aten.conv;cpu.direct"
    with torch.autocast("cpu", torch.bfloat16):
        y = ops.conv2d(x, w, forward=choice, backward_filter=choice)
    y.sum().backward()
    ops.conv2d(x, w.detach(), forward=choice)
    assert y.dtype == torch.bfloat16 and w.grad is not None and w.grad.dtype == torch.float32
    assert runs() == {
        ("fwd", "aten.conv"): 1,
        ("bwd_filter", "aten.conv"): 1,
        ("fwd", "cpu.direct"): 1,
    }


def test_a_primitive_that_is_not_deterministic_is_no_issue_without_the_flag() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        ops.conv2d(rand(1, 4, 8, 8), rand(4, 4, 3, 3), forward="cpu.im2col_gemm")
    finally:
        torch.use_deterministic_algorithms(False)
