# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's own samples and error inputs of all convolutions, through torchalgo and enable()."""

from __future__ import annotations

import contextlib
import copy
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchalgo


def torchs_samples() -> tuple[list[Any], list[Any]]:
    """Imports the samples; undoes what this import changes in torch for the other tests."""
    calls = torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # hypothesis is not needed here
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_modules import module_db
    torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__ = calls
    # torch.backends is a wrapper: the flag is a global of the module that it wraps.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    return op_db, module_db


OP_DB, MODULE_DB = torchs_samples()
NAMES = [f"conv{kind}{d}d" for kind in ("", "_transpose") for d in (1, 2, 3)]
OPS = {op.name.removeprefix("nn.functional."): op for op in OP_DB}
MODULES = {m.name: m for m in MODULE_DB if "Conv" in m.name and "Lazy" not in m.name}
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2, torch.float16: 1e-3}
ROUNDING |= {torch.complex64: 1e-6, torch.complex128: 1e-14}
BY = ("function", "enable")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths"),
]


def ours(name: str, by: str) -> Callable[..., Tensor]:
    """Returns torchalgo's function, or torch's inside enable()."""
    if by == "function":
        return getattr(torchalgo, name)  # type: ignore[no-any-return]

    def enabled(*args: Any, **kwargs: Any) -> Tensor:
        with torchalgo.enable():
            return OPS[name].op(*args, **kwargs)  # type: ignore[no-any-return]

    return enabled


def samples_of(name: str, dtype: torch.dtype, requires_grad: bool = False) -> Iterator[Any]:
    """Yields PyTorch's samples, then the same with tensors that are not contiguous."""
    torch.manual_seed(0)
    for sample in OPS[name].sample_inputs("cpu", dtype, requires_grad=requires_grad):
        yield sample
        yield sample.noncontiguous()


def assert_near(result: Tensor, expected: Tensor, what: str) -> None:
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape), what
    if expected.dtype not in ROUNDING:
        assert torch.equal(result, expected), what
        return
    wide = torch.complex128 if expected.is_complex() else torch.float64
    error = (result.to(wide) - expected.to(wide)).norm()
    assert error <= ROUNDING[expected.dtype] * expected.to(wide).norm(), f"{what}: {error}"


def gradients(y: Tensor, inputs: Sequence[Any]) -> list[Tensor]:
    """Returns the gradients of a weighted sum of `y`; the weights are the same at each call."""
    tensors = [t for t in inputs if isinstance(t, Tensor) and t.requires_grad]
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    return list(torch.autograd.grad(y, tensors, weights))


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", NAMES)
def test_samples_give_torchs_results_and_gradients(name: str, by: str) -> None:
    for dtype in (torch.float32, torch.float64):
        for sample in samples_of(name, dtype, requires_grad=True):
            what = f"{name} {dtype} {sample.summary()}"
            args = (sample.input, *sample.args)
            expected = OPS[name].op(*args, **sample.kwargs)
            result = ours(name, by)(*args, **sample.kwargs)
            assert_near(result, expected, what)
            pairs = zip(gradients(result, args), gradients(expected, args), strict=True)
            for i, (a, b) in enumerate(pairs):
                assert_near(a, b, f"gradient {i} of {what}")


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", NAMES)
def test_samples_reach_torchalgo(name: str, by: str) -> None:
    for sample in samples_of(name, torch.float32):
        added, strides = (sample.kwargs.get(key, ()) for key in ("output_padding", "stride"))
        if added and isinstance(added, tuple) and any(map(operator.ge, added, strides)):
            continue  # no convolution has this gradient: torch computes it
        with torchalgo.record_runs() as runs:
            ours(name, by)(sample.input, *sample.args, **sample.kwargs)
        assert runs.runs, sample.summary()


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", NAMES)
def test_other_dtypes_are_as_in_torch_or_refused(name: str, by: str) -> None:
    for dtype in OPS[name].dtypes - {torch.float32, torch.float64}:
        for sample in samples_of(name, dtype):
            args = (sample.input, *sample.args)
            expected = OPS[name].op(*args, **sample.kwargs)
            with contextlib.suppress(torchalgo.Error):
                result = ours(name, by)(*args, **sample.kwargs)
                assert_near(result, expected, f"{name} {dtype} {sample.summary()}")


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", [n for n in NAMES if OPS[n].error_inputs_func])
def test_error_inputs_raise(name: str, by: str) -> None:
    for case in OPS[name].error_inputs("cpu"):
        sample = case.sample_input
        args = (sample.input, *sample.args)
        with pytest.raises(case.error_type):
            OPS[name].op(*args, **sample.kwargs)
        try:
            ours(name, by)(*args, **sample.kwargs)
        except (torchalgo.Error, case.error_type):
            continue
        pytest.fail(f"{name} accepts what torch refuses: {case.error_regex}: {sample.summary()}")


@pytest.mark.parametrize("by", ("convert", "enable"))
@pytest.mark.parametrize("name", MODULES)
def test_modules_give_torchs_results_and_gradients(name: str, by: str) -> None:
    info = MODULES[name]
    for dtype in (torch.float32, torch.float64):
        cases = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=True
        )
        for case in cases:
            given = case.constructor_input
            model: nn.Module = info.module_cls(*given.args, **given.kwargs).to(dtype)
            converted = torchalgo.convert(copy.deepcopy(model)) if by == "convert" else model
            args = case.forward_input.args
            expected = model(*args)
            with torchalgo.enable() if by == "enable" else contextlib.nullcontext():
                result = converted(*args)
            what = f"{model} {dtype} {[tuple(a.shape) for a in args]}"
            assert_near(result, expected, what)
            theirs = gradients(expected, [*args, *model.parameters()])
            mine = gradients(result, [*args, *converted.parameters()])
            for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                assert_near(a, b, f"gradient {i} of {what}")
