# SPDX-License-Identifier: BSD-3-Clause
"""Errors of runs on fake tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torchalgo._capture.fake_run import fake_mode, reads_values

READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "a branch": lambda x: 1 if x.sum() > 0 else 2,
    "bool": lambda x: bool(x.any()),
    "int": lambda x: int(x[0, 0]),
    "float": lambda x: float(x[0, 0]),
    "index": lambda x: [1, 2][x[0, 0].long()],
    "range": lambda x: range(x[0, 0].long()),
    "a slice": lambda x: x[: x[0, 0].long()].numel() + 1,
    "tolist": lambda x: x.tolist(),
    "tolist of a number": lambda x: x[0, 0].tolist(),
    "numpy": lambda x: x.numpy(),
    "numpy with force": lambda x: x.numpy(force=True),
    "np.asarray": lambda x: np.asarray(x),
    "np.add": lambda x: np.add(x, 1),  # type: ignore[call-overload]
    "data_ptr": lambda x: x.data_ptr(),
    "ctypes": lambda x: ctypes.c_float.from_address(x.data_ptr()),
    "pointer of the storage": lambda x: x.untyped_storage().data_ptr(),
    "element of the storage": lambda x: x.untyped_storage()[0],
    "bytes of the storage": lambda x: bytes(x.untyped_storage()),
    "list of the storage": lambda x: x.untyped_storage().tolist(),
    "typed storage": lambda x: x.storage()[0],
    "copy of the storage": lambda x: x.untyped_storage().clone().tolist(),
    "dlpack": lambda x: np.from_dlpack(x),  # type: ignore[arg-type]
    "torch's dlpack": lambda x: torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
    "nonzero": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x + 1),
    "repeat_interleave": lambda x: torch.repeat_interleave(x[0].long()),
    "text": lambda x: f"{x.sum().item()}",
    "contains": lambda x: 1.0 in x,
}


def problem_of(code: Callable[[Tensor], Any], shape_env: ShapeEnv | None) -> Exception | None:
    mode = fake_mode(shape_env)
    with mode, torch.no_grad():
        x = torch.ones(2, 3)
        try:
            code(x)
        except Exception as problem:
            return problem
    return None


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("has_symbols", [False, True])
@pytest.mark.parametrize("code", READS.values(), ids=READS.keys())
def test_an_error_of_code_that_reads_values_is_recognized(
    code: Callable[[Tensor], Any], has_symbols: bool
) -> None:
    shape_env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    problem = problem_of(code, shape_env if has_symbols else None)
    assert problem is not None and reads_values(problem), problem


@torch.library.custom_op("torchalgo_test::no_fake", mutates_args=())
def no_fake(x: Tensor) -> Tensor:
    return x.clone()


OTHERS: dict[str, Callable[[Tensor], Any]] = {
    "sizes of a product": lambda x: x @ x,
    "sizes of a sum": lambda x: x + torch.ones(5),
    "view": lambda x: x.view(7),
    "number of channels": lambda x: torch.conv2d(x[None, None], torch.ones(1, 2, 1, 1)),
    "wrong type": lambda x: x + "text",  # type: ignore[operator]
    "no such attribute": lambda x: x.nothing,  # type: ignore[attr-defined]
    "index out of range": lambda x: x[5],
    "no fake kernel": lambda x: no_fake(x),
    "the model's own error": lambda x: [][1],
    "types of a product": lambda x: torch.addmm(x, x, x.T),
    "the model's own check": lambda x: torch._check(x.shape[0] == 3),
}


@pytest.mark.parametrize("code", OTHERS.values(), ids=OTHERS.keys())
def test_other_errors_say_nothing_about_values(code: Callable[[Tensor], Any]) -> None:
    problem = problem_of(code, None)
    assert problem is not None and not reads_values(problem), problem


def test_the_error_that_code_raises_instead_is_recognized() -> None:
    def guarded(x: Tensor) -> None:
        try:
            x.sum().item()
        except RuntimeError as problem:
            raise ValueError("no number") from problem

    def unguarded(x: Tensor) -> None:
        try:
            x.sum().item()
        finally:
            raise KeyError("lost")

    for code in (guarded, unguarded):
        problem = problem_of(code, None)
        assert problem is not None and reads_values(problem)


def test_an_unbacked_size_that_decides_a_branch_is_recognized() -> None:
    def code(x: Tensor) -> int:
        return 1 if x.sum().long().item() > 3 else 2

    problem = problem_of(code, ShapeEnv(allow_scalar_outputs=True))
    assert problem is not None and reads_values(problem)
