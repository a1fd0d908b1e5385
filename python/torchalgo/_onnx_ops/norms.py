# SPDX-License-Identifier: BSD-3-Clause
"""Reads norms."""

from __future__ import annotations

import torch
from torch.nn import functional

from torchalgo._onnx_ops.op import Op
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError
from torchalgo._onnx_ops.values import Tensor, Value, dims_of, rank_of


def _check_vectors(op: Op, first: int, last: int, length: int | None) -> None:
    for i in range(first, last + 1):
        dims = dims_of(op.floating(i))
        if len(dims) != 1 or (length is not None and dims != [length]):
            raise DamagedError(f"input {i} has the sizes {dims}, expected one number per channel")


def read_batch_norm(op: Op) -> Value:
    op.one_output()
    op.ignore("momentum")
    if op.opset >= 14 and op.flag("training_mode"):
        raise NotSupportedError("training_mode=1: export the model in eval mode")
    src = op.floating(0)
    _check_vectors(op, 1, 4, dims_of(src)[1] if rank_of(src) > 1 else 1)
    scale, bias, mean, var = (op.tensor(i) for i in range(1, 5))
    eps = op.real("epsilon", 1e-5)
    return op.call(functional.batch_norm, src, mean, var, scale, bias, False, 0.0, eps)


def read_instance_norm(op: Op) -> Value:
    src = op.floating(0)
    _check_vectors(op, 1, 2, dims_of(src)[1] if rank_of(src) > 1 else 1)
    eps = op.real("epsilon", 1e-5)
    scale, bias = op.tensor(1), op.tensor(2)
    return op.call(functional.instance_norm, src, None, None, scale, bias, True, 0.0, eps)


def read_group_norm(op: Op) -> Value:
    src = op.floating(0)
    groups = op.integer("num_groups")
    eps = op.real("epsilon", 1e-5)
    channels = dims_of(src)[1] if rank_of(src) > 1 else None
    if channels is None or groups < 1 or channels % groups:
        raise DamagedError(f"{groups} groups do not divide {channels} channels")
    scale, bias = op.tensor(1), op.tensor(2)
    if op.opset >= 21:
        _check_vectors(op, 1, 2, channels)
        _check_stash(op)
    else:
        # Before opset 21 there was one number per group.
        _check_vectors(op, 1, 2, groups)
        scale, bias = (
            op.call(torch.repeat_interleave, each, channels // groups, output_size=channels)
            for each in (scale, bias)
        )
    return op.call(functional.group_norm, src, groups, scale, bias, eps)


def _check_stash(op: Op) -> None:
    if op.integer("stash_type", 1) != 1:
        raise NotSupportedError("stash_type is not 1 (float32)")


def _normalized(op: Op, src: Tensor) -> list[int]:
    """Returns the sizes from `axis` on, over which a layer norm goes."""
    axis = op.axis(op.integer("axis", -1), rank_of(src))
    sizes = dims_of(src)[axis:]
    found = [size for size in sizes if size is not None]
    if len(found) != len(sizes) or not found:
        raise NotSupportedError("it goes over a size that the file leaves open")
    return found


def _as_shape(op: Op, i: int, sizes: list[int]) -> Tensor:
    value = op.floating(i)
    if dims_of(value) == list(sizes):
        return value
    return op.call(torch.broadcast_to, value, sizes)


def read_layer_norm(op: Op) -> Value:
    op.one_output()
    _check_stash(op)
    src = op.floating(0)
    sizes = _normalized(op, src)
    scale = _as_shape(op, 1, sizes)
    bias = _as_shape(op, 2, sizes) if op.has(2) else None
    eps = op.real("epsilon", 1e-5)
    return op.call(functional.layer_norm, src, sizes, scale, bias, eps)


def read_rms_norm(op: Op) -> Value:
    _check_stash(op)
    src = op.floating(0)
    sizes = _normalized(op, src)
    scale, eps = _as_shape(op, 1, sizes), op.real("epsilon", 1e-5)
    return op.call(functional.rms_norm, src, sizes, scale, eps)


def read_lrn(op: Op) -> Value:
    src = op.computed(0)
    size = op.integer("size")
    if size < 1 or size % 2 == 0 or rank_of(src) < 3:
        raise NotSupportedError(
            f"size is {size}, expected an odd number, for an input of rank 3 or more"
        )
    alpha, beta, bias = op.real("alpha", 1e-4), op.real("beta", 0.75), op.real("bias", 1.0)
    return op.call(functional.local_response_norm, src, size, alpha, beta, bias)


NORMS = {
    "BatchNormalization": read_batch_norm,
    "InstanceNormalization": read_instance_norm,
    "GroupNormalization": read_group_norm,
    "LayerNormalization": read_layer_norm,
    "RMSNormalization": read_rms_norm,
    "LRN": read_lrn,
}
