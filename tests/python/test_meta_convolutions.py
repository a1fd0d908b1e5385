# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions without data, and with sizes at the edge of what kernels count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchalgo


def meta(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes, device="meta")


@pytest.mark.parametrize(
    "wrong",
    [{"stride": 0}, {"dilation": 0}, {"groups": 0}, {"stride": 2, "padding": 0}],
    ids=str,
)
def test_wrong_numbers_are_errors_without_data_as_with_data(wrong: dict[str, Any]) -> None:
    for device in ("meta", "cpu"):
        x, w = (torch.zeros(sizes, device=device) for sizes in ((1, 1, 2, 2), (1, 1, 3, 3)))
        with pytest.raises(RuntimeError):
            torchalgo.conv2d(x, w, **wrong)


@pytest.mark.parametrize("output_padding", [(1, 1), []], ids=str)
def test_output_padding_of_another_length_is_an_error(output_padding: Any) -> None:
    x, w = meta(1, 2, 4, 4, 4), meta(2, 2, 3, 3, 3)
    with pytest.raises(RuntimeError, match="expected 3 numbers"):
        torchalgo.conv_transpose3d(x, w, stride=2, output_padding=output_padding)
    assert torchalgo.conv_transpose3d(x, w, stride=2, output_padding=1).shape[2:] == (10, 10, 10)


def test_padding_of_same_follows_the_weight() -> None:
    layer = nn.Conv2d(3, 4, 3, padding="same")
    layer.weight = nn.Parameter(torch.randn(4, 3, 5, 1))
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(torchalgo.convert(layer)(x), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["cpu.direct", "cpu.im2row_gemm"])
def test_taps_that_are_2_31_elements_apart_are_refused(name: str) -> None:
    x, w = torch.randn(1, 16, 4, 1024), torch.randn(16, 16, 5, 1)
    far: Any = {"padding": (131072, 0), "dilation": (65536, 1)}
    expected = torch.nn.functional.conv2d(x, w, **far)
    found = torchalgo.conv2d(x, w, **far, forward=name)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torchalgo.set_strict(True)
    try:
        with pytest.raises(torchalgo.Error, match=r"TA43.*2\^31"):
            torchalgo.conv2d(x, w, **far, forward=name)
    finally:
        torchalgo.set_strict(False)
