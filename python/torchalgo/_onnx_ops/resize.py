# SPDX-License-Identifier: BSD-3-Clause
"""Reads Resize where torch computes the same.

ONNX has many formulas for the position of a sample. The nearest element is computed here, for each
result, and torch's op runs if it takes the same elements; otherwise the elements are copied by
their indices. The linear and cubic modes run for the formulas that torch has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from torchalgo._onnx_ops.op import Op
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError
from torchalgo._onnx_ops.values import Constant, Live, Number, Size, Tensor, Value, dims_of, rank_of

_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_MOST = 1 << 20  # of a size that is resized
_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}


@dataclass(frozen=True)
class _Axis:
    """One dimension. A scale is None if the file gives the size."""

    axis: int
    size: int | None
    result: Number | None
    scale: float | None


def read_resize(op: Op) -> Value:
    src = op.floating(0)
    mode = op.text("mode", "nearest")
    coordinates = op.text("coordinate_transformation_mode", "half_pixel")
    op.ignore("extrapolation_value", "exclude_outside", "cubic_coeff_a", "nearest_mode")
    if op.opset >= 18 and op.flag("antialias"):
        raise NotSupportedError("antialias=1")
    if coordinates not in _COORDINATES:
        raise NotSupportedError(f"coordinate_transformation_mode is {coordinates[:40]!r}")
    axes = _axes(op, src)
    changed = [each for each in axes if not _is_unchanged(each, src)]
    # If no size changes, the result is the input. ONNX Runtime ignores the scales then.
    if all(axis.size is not None and axis.result == axis.size for axis in changed):
        return op.value(0)
    if mode == "nearest":
        return _nearest(op, src, changed, coordinates)
    if mode in ("linear", "cubic"):
        return _interpolated(op, src, axes, changed, mode, coordinates)
    raise DamagedError(f"mode is {mode[:40]!r}, expected nearest, linear or cubic")


def _is_unchanged(axis: _Axis, src: Tensor) -> bool:
    if isinstance(axis.result, Size) and isinstance(src, Live):
        # Two open sizes that are equal for the choices may differ for others, because divisions
        # of sizes are rounded. No model resizes the batch.
        is_read = axis.result.node.target is torch.ops.aten.sym_size.int
        own = tuple(shape.shape[axis.axis] for shape in src.shapes)
        return axis.axis < 2 and is_read and axis.result.values == own
    if axis.scale is not None:  # one near 1 moves the positions, even if the size stays
        return axis.scale == 1.0
    return axis.size is not None and axis.result == axis.size


def _axes(op: Op, src: Tensor) -> list[_Axis]:
    rank = rank_of(src)
    chosen = list(range(rank))
    if op.opset >= 18 and op.has_attribute("axes"):
        chosen = op.axes(op.integers("axes"), rank)
    has_scales = op.has(2) and dims_of(op.tensor(2)) != [0]
    if has_scales == op.has(3):
        raise DamagedError("it has both scales and sizes, or neither")
    if op.opset >= 18 and op.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotSupportedError("keep_aspect_ratio_policy")
    dims = dims_of(src)
    if not has_scales:
        sizes = op.numbers(3)
        _check_count(len(sizes), len(chosen))
        return [_Axis(a, dims[a], n, None) for a, n in zip(chosen, sizes, strict=True)]
    scales = [float(each) for each in op.constant(2).reshape(-1)[:64].tolist()]
    _check_count(len(scales), len(chosen))
    return [_scaled(axis, dims[axis], scale) for axis, scale in zip(chosen, scales, strict=True)]


def _check_count(given: int, axes: int) -> None:
    if given != axes:
        raise DamagedError(f"it has {given} sizes or scales for {axes} axes")


def _scaled(axis: int, size: int | None, scale: float) -> _Axis:
    if not 0 < scale < 1 << 20:
        raise DamagedError(f"the scale {scale} is not a positive number")
    return _Axis(axis, size, None if size is None else math.floor(size * scale), scale)


def _check_result(axis: _Axis) -> None:
    if axis.size is not None and axis.size > _MOST:
        raise NotSupportedError(f"its input has the size {axis.size} on axis {axis.axis}")
    if isinstance(axis.result, int) and not 1 <= axis.result <= _MOST:
        raise DamagedError(f"its result has the size {axis.result} on axis {axis.axis}")
    if axis.size == 0:
        raise NotSupportedError("its input has no elements")


# ---- nearest -------------------------------------------------------------------------------------


def _position(x: int, axis: _Axis, result: int, coordinates: str) -> float:
    """Returns the position of a result in the input, by the formulas of the ONNX standard."""
    size = axis.size or 1
    scale = axis.scale if axis.scale is not None else result / size
    if coordinates == "asymmetric":
        return x / scale
    if coordinates == "align_corners":
        return x * (size - 1) / (result - 1) if result > 1 else 0.0
    if coordinates == "pytorch_half_pixel" and result == 1:
        return 0.0
    return (x + 0.5) / scale - 0.5


def _rounded(position: float, how: str) -> int:
    # Positions that are halves up to rounding errors count as halves.
    position = round(position * (1 << 20)) / (1 << 20)
    if how == "floor":
        return math.floor(position)
    if how == "ceil":
        return math.ceil(position)
    return math.ceil(position - 0.5) if how == "round_prefer_floor" else math.floor(position + 0.5)


def _nearest(op: Op, src: Tensor, changed: list[_Axis], coordinates: str) -> Value:
    how = op.text("nearest_mode", "round_prefer_floor")
    if how not in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"):
        raise DamagedError(f"nearest_mode is {how[:40]!r}")
    for axis in changed:
        _check_result(axis)
    rank = rank_of(src)
    is_torch = rank in _LINEAR and all(axis.axis >= 2 for axis in changed)
    if is_torch and all(_is_torch_nearest(axis, coordinates, how) for axis in changed):
        return op.call(functional.interpolate, src, **_extent(op, src, changed), mode="nearest")
    for axis in changed:
        if axis.size is None or not isinstance(axis.result, int):
            raise NotSupportedError(
                f"{coordinates} with {how} for a size that the file leaves open"
            )
        indices = _indices(axis, axis.result, coordinates, how)
        src = op.call(torch.index_select, src, axis.axis, Constant(torch.tensor(indices)))
    return src


def _indices(axis: _Axis, result: int, coordinates: str, how: str) -> list[int]:
    positions = (_position(x, axis, result, coordinates) for x in range(result))
    return [min(max(_rounded(each, how), 0), (axis.size or 1) - 1) for each in positions]


def _is_torch_nearest(axis: _Axis, coordinates: str, how: str) -> bool:
    """Returns True if torch's nearest mode takes the same elements, for each size that may come."""
    factor = axis.scale
    if factor is not None and axis.result == axis.size:  # torch leaves such an axis as it is
        return False
    if factor is not None and factor == int(factor):
        # x / factor rounded down; for half pixels (x + 0.5) / factor - 0.5, which is no half.
        if coordinates == "asymmetric" and how == "floor":
            return True
        if coordinates in ("half_pixel", "pytorch_half_pixel") and how.startswith("round"):
            return True
    if axis.size is None or not isinstance(axis.result, int):
        return coordinates == "asymmetric" and how == "floor" and axis.scale is None
    ours = _indices(axis, axis.result, coordinates, how)
    probe = torch.arange(axis.size, dtype=torch.float32).reshape(1, 1, -1)
    given = {"scale_factor": factor} if factor is not None else {"size": axis.result}
    theirs = functional.interpolate(probe, **given, mode="nearest")  # type: ignore[arg-type]
    return theirs.reshape(-1).tolist() == ours


def _extent(op: Op, src: Tensor, changed: list[_Axis]) -> dict[str, list[Number] | list[float]]:
    """Returns `size` or `scale_factor`, as the file has it, for all spatial dimensions."""
    by_axis = {axis.axis: axis for axis in changed}
    spatial = range(2, rank_of(src))
    if changed[0].scale is not None:
        scales = [(by_axis[i].scale or 1.0) if i in by_axis else 1.0 for i in spatial]
        return {"scale_factor": scales}
    sizes: list[Number] = []
    for i in spatial:
        result = by_axis[i].result if i in by_axis else op.size(src, i)
        assert result is not None
        sizes.append(result)
    return {"size": sizes}


# ---- linear and cubic ----------------------------------------------------------------------------


def _interpolated(
    op: Op, src: Tensor, axes: list[_Axis], changed: list[_Axis], mode: str, coordinates: str
) -> Value:
    rank = rank_of(src)
    if rank not in _LINEAR or any(axis.axis < 2 for axis in changed):
        raise NotSupportedError(f"mode {mode} for an input of rank {rank}, or on batch or channels")
    if coordinates == "asymmetric":
        raise NotSupportedError(f"mode {mode} with asymmetric coordinates, which torch lacks")
    if mode == "cubic" and (rank != 4 or abs(op.real("cubic_coeff_a", -0.75) + 0.75) > 1e-7):
        raise NotSupportedError("cubic with another coefficient than -0.75, or another rank than 4")
    if mode == "cubic" and op.flag("exclude_outside"):
        raise NotSupportedError("cubic with exclude_outside=1")
    is_aligned = coordinates == "align_corners"
    for axis in axes if is_aligned else changed:
        _check_result(axis)
        is_whole = axis.scale is None or (
            axis.scale == int(axis.scale) or (axis.size or 0.5) * axis.scale == axis.result
        )
        # PyTorch leaves an axis as it is if its size stays. By the standard the positions move.
        may_stay = axis.scale is not None and 1 < axis.scale < 1.5 and axis.size is None
        if may_stay or (axis.scale is not None and axis.result == axis.size):
            raise NotSupportedError(f"the scale {axis.scale}, which is near 1")
        if is_aligned and not is_whole:
            raise NotSupportedError("align_corners with a scale that gives no whole size")
        if coordinates == "pytorch_half_pixel" and axis.result == 1 and axis.size != 1:
            raise NotSupportedError("pytorch_half_pixel with a result of size 1")
    name = "bicubic" if mode == "cubic" else _LINEAR[rank]
    extent = _extent(op, src, changed)
    return op.call(functional.interpolate, src, **extent, mode=name, align_corners=is_aligned)
