# SPDX-License-Identifier: BSD-3-Clause
"""The numbers of convolutions and poolings: filters, strides, dilations and pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.nn import functional

from torchalgo._onnx_ops.op import Op
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError
from torchalgo._onnx_ops.values import Tensor, dims_of


@dataclass(frozen=True)
class Window:
    """Strides, dilations and pads, one number per dimension."""

    sizes: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]  # the pads
    end: list[int]
    is_auto: bool

    @property
    def is_symmetric(self) -> bool:
        return self.begin == self.end


def read_window(op: Op, src: Tensor, sizes: Sequence[int]) -> Window:
    """Reads the attributes that convolutions and poolings share.

    Args:
        sizes: those of the filter or the window.
    """
    n = len(sizes)
    if any(size < 1 for size in sizes):
        raise DamagedError(f"its window has the sizes {list(sizes)}, expected 1 or more")
    strides = op.integers_of_length("strides", n, [1] * n, 1)
    dilations = op.integers_of_length("dilations", n, [1] * n, 1)
    auto, pads = read_pads(op, n)
    begin, end = pads[:n], pads[n:]
    if auto != "NOTSET" and any(pads):
        raise DamagedError(f"it has pads beside auto_pad={auto}")
    if auto.startswith("SAME"):
        same = [
            _same_pads(size, window, stride, dilation, auto == "SAME_UPPER")
            for size, window, stride, dilation in zip(
                dims_of(src)[2:], sizes, strides, dilations, strict=True
            )
        ]
        begin, end = [pads[0] for pads in same], [pads[1] for pads in same]
    return Window(list(sizes), strides, dilations, begin, end, auto != "NOTSET")


def read_pads(op: Op, dims: int) -> tuple[str, list[int]]:
    """Returns auto_pad and pads: those at the begin of each dimension, then those at the end."""
    auto = op.text("auto_pad", "NOTSET")
    pads = op.integers_of_length("pads", 2 * dims, [0] * 2 * dims, 0)
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise DamagedError(f"auto_pad is {auto[:40]!r}, expected NOTSET, VALID or SAME_*")
    return auto, pads


def _same_pads(
    size: int | None, window: int, stride: int, dilation: int, is_upper: bool
) -> tuple[int, int]:
    """Returns the pads that give ceil(size / stride) results."""
    extent = (window - 1) * dilation + 1
    if size is None and stride > 1:
        raise NotSupportedError(
            "auto_pad needs a size that the file leaves open; fix it at the export"
        )
    total = (
        extent - 1 if size is None else max(0, (-(-size // stride) - 1) * stride + extent - size)
    )
    small, large = total // 2, total - total // 2
    return (small, large) if is_upper else (large, small)


def padded(op: Op, src: Tensor, begin: list[int], end: list[int], value: float = 0.0) -> Tensor:
    """Pads the dimensions behind the channels."""
    pads = [pad for pair in zip(reversed(begin), reversed(end), strict=True) for pad in pair]
    if not any(pads):
        return src
    return op.call(functional.pad, src, pads, "constant", value)
