# SPDX-License-Identifier: BSD-3-Clause
"""Reads operations that change the form of a tensor, and those that make tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from torchalgo._onnx_ops import tensors
from torchalgo._onnx_ops.op import Op
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError, TooLargeError
from torchalgo._onnx_ops.values import (
    Constant,
    Number,
    Size,
    Sizes,
    Tensor,
    Value,
    as_value,
    dims_of,
    dtype_of,
    rank_of,
)

_LAST = (1 << 63) - 1
_MOST_INDICES = 1 << 20


def _ignore_reshape(op: Op) -> list[Number]:
    src, wanted = op.tensor(0), op.numbers(1)
    if op.opset >= 14 and op.flag("allowzero"):
        if any(each == 0 for each in wanted):
            raise NotSupportedError("allowzero=1 with a size of 0")
        return wanted
    if any(each == 0 for each in wanted[rank_of(src) :]):
        raise DamagedError("its shape copies a size that the input does not have")
    return [op.size(src, i) if each == 0 else each for i, each in enumerate(wanted)]


def read_reshape(op: Op) -> Value:
    src, wanted = op.tensor(0), _ignore_reshape(op)
    dims, last = dims_of(src), len(wanted) - 1
    if not isinstance(src, Constant) and 1 <= last < rank_of(src) - 1:
        # A reshape that merges the last dimensions is a flatten, which fits other batch sizes.
        target = op.call(torch.reshape, src, wanted)
        if dims_of(target)[:last] == dims[:last] and None not in dims[1:]:
            flat: Value = op.call(torch.flatten, src, last)
            if dims_of(flat) == dims_of(target):  # type: ignore[arg-type]
                return flat
        return target
    return op.call(torch.reshape, src, wanted)


def read_flatten(op: Op) -> Value:
    src, axis = op.tensor(0), op.integer("axis", 1)
    rank = rank_of(src)
    if not -rank <= axis <= rank:
        raise DamagedError(f"the axis {axis} is out of range for rank {rank}")
    axis += rank if axis < 0 else 0
    if axis == 1 and rank >= 2:
        return op.call(torch.flatten, src, 1)
    front = _count(op, src, axis)
    return op.call(torch.reshape, src, [front, -1] if axis < rank else [front, 1])


def _count(op: Op, src: Tensor, dims: int) -> Number:
    """Returns the product of the first sizes."""
    total: Number = 1
    for i in range(dims):
        total = op.builder.compute(operator.mul, total, op.size(src, i))
    return total


def read_transpose(op: Op) -> Value:
    src = op.tensor(0)
    order = op.axes(op.integers("perm", list(range(rank_of(src)))[::-1]), rank_of(src))
    return op.call(torch.permute, src, order)


def read_squeeze(op: Op) -> Value:
    src = op.tensor(0)
    if op.has(1):
        axes = op.axes(op.fixed_numbers(1), rank_of(src))
    else:
        axes = [i for i, size in enumerate(op.fixed_dims(src)) if size == 1]
    if any(dims_of(src)[axis] not in (1, None) for axis in axes):
        raise DamagedError(f"it removes axes {axes} of the sizes {dims_of(src)}, which are not 1")
    if any(dims_of(src)[axis] is None for axis in axes):
        raise NotSupportedError("it removes an axis whose size the file leaves open")
    for axis in sorted(axes, reverse=True):
        src = op.call(torch.squeeze, src, axis)
    return src


def read_unsqueeze(op: Op) -> Value:
    src, given = op.tensor(0), op.fixed_numbers(1)
    if len(given) > tensors.MOST_DIMS:
        raise DamagedError(f"it adds {len(given)} dimensions")
    for axis in sorted(op.axes(given, rank_of(src) + len(given))):
        src = op.call(torch.unsqueeze, src, axis)
    return src


def read_concat(op: Op) -> Value:
    values = [op.tensor(i) for i in range(len(op.inputs))]
    if not values or len({dtype_of(value) for value in values}) > 1:
        raise DamagedError("it has no inputs, or inputs of several types")
    if len({rank_of(value) for value in values}) > 1:
        raise DamagedError("its inputs differ in rank")
    axis = op.axis(op.integer("axis"), rank_of(values[0]))
    return op.call(torch.cat, values, axis)


def read_split(op: Op) -> list[Value]:
    src = op.tensor(0)
    axis = op.axis(op.integer("axis", 0), rank_of(src))
    count = len(op.node.outputs)
    has_count = op.opset >= 18 and op.has_attribute("num_outputs")
    if has_count and (op.has(1) or op.integer("num_outputs") != count):
        raise DamagedError("num_outputs is not the number of its outputs, or it has sizes, too")
    size = dims_of(src)[axis]
    if op.has(1):
        sizes = op.fixed_numbers(1)
    elif size is None:
        raise NotSupportedError("it splits a size that the file leaves open")
    else:
        each = -(-size // count) if op.opset >= 18 else size // count
        sizes = [min(each, size - i * each) for i in range(count)]
    if len(sizes) != count or any(part < 0 for part in sizes) or (size or sum(sizes)) != sum(sizes):
        raise DamagedError(f"the sizes {sizes[:16]} do not fit {count} outputs and the size {size}")
    if len(set(sizes)) == 1 and sizes[0] > 0 and size is not None:
        return op.call_for_many(torch.chunk, src, count, axis)
    return op.call_for_many(torch.split, src, sizes, axis)


def read_slice(op: Op) -> Value:
    src = op.tensor(0)
    starts, ends = op.numbers(1), op.numbers(2)
    given = op.fixed_numbers(3) if op.has(3) else list(range(len(starts)))
    axes = op.axes(given, rank_of(src))
    steps = op.fixed_numbers(4) if op.has(4) else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise DamagedError("starts, ends, axes and steps differ in their numbers")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        src = _sliced(op, src, start, end, axis, step)
    return src


def _sliced(op: Op, src: Tensor, start: Number, end: Number, axis: int, step: int) -> Tensor:
    if step == 0:
        raise DamagedError("a step is 0")
    if step > 0:
        if isinstance(start, int) and isinstance(end, int):
            start, end = max(start, -_LAST), min(max(end, -_LAST), _LAST)
        return _cut(op, src, start, end, axis, step)
    size = dims_of(src)[axis]
    if size is None or not isinstance(start, int) or not isinstance(end, int):
        raise NotSupportedError("it goes backwards over a size that the file leaves open")
    # A start before the first element is the first one here, and an empty slice in Python.
    start = min(max(start + size if start < 0 else start, 0), size - 1)
    end = min(max(end + size if end < 0 else end, -1), size - 1)
    kept = range(start, end, step) if size > 0 else range(0)
    if len(kept) > _MOST_INDICES:
        raise TooLargeError(f"it takes {len(kept)} elements backwards")
    indices = Constant(torch.tensor(list(kept), dtype=torch.int64))
    return op.call(torch.index_select, src, axis, indices)


def _cut(op: Op, src: Tensor, start: Number, end: Number, axis: int, step: int) -> Tensor:
    found = op.call(torch.ops.aten.slice.Tensor, src, axis, start, end, step)
    count = dims_of(found)[axis]
    if dims_of(src)[axis] is None and count is not None and count > 1:
        # A smaller size would give fewer elements.
        raise NotSupportedError(f"it takes {count} elements of a size that the file leaves open")
    if count is not None and (isinstance(start, Size) or isinstance(end, Size)):
        # The choices of open sizes are large, so both take all elements. A small one takes fewer.
        raise NotSupportedError("it takes elements up to a size that the file leaves open")
    return found


def read_gather(op: Op) -> Value:
    src, where = op.tensor(0), op.tensor(1)
    if dtype_of(where) not in (torch.int64, torch.int32):
        raise DamagedError("its indices are not integers")
    axis, rank = op.axis(op.integer("axis", 0), rank_of(src)), rank_of(where)
    size = dims_of(src)[axis] if rank_of(src) else None
    if size is None:
        raise NotSupportedError("it takes from a size that the file leaves open")
    if not isinstance(where, Constant):
        raise NotSupportedError("its indices are computed in each call")
    index = where.tensor.to(torch.int64)
    if index.numel() and not (-size <= int(index.min()) and int(index.max()) < size):
        raise DamagedError(f"an index is out of range for the size {size}")
    index = torch.where(index < 0, index + size, index)
    if rank == 0:
        return op.call(torch.select, src, axis, int(index))
    taken = op.call(torch.index_select, src, axis, Constant(index.reshape(-1)))
    if rank == 1:
        return taken
    return op.call(torch.unflatten, taken, axis, list(index.shape))


def read_expand(op: Op) -> Value:
    src, wanted = op.tensor(0), op.numbers(1)
    dims = dims_of(src)
    while len(wanted) < len(dims):
        wanted.insert(0, 1)
    sizes: list[Number] = []
    for i, target in enumerate(wanted):
        at = i - (len(wanted) - len(dims))
        own = dims[at] if at >= 0 else 1
        if isinstance(target, int) and target < 0:
            raise DamagedError(f"its shape holds {target}")
        if own is None and target != 1:
            raise NotSupportedError("it repeats a size that the file leaves open")
        sizes.append(-1 if at >= 0 and (target == 1 or own == target) else target)
        if isinstance(own, int) and own != 1 and isinstance(target, int) and target not in (1, own):
            raise DamagedError(f"the size {own} does not become {target}")
        if isinstance(own, int) and own != 1 and not isinstance(target, int):
            raise NotSupportedError("its shape is computed from open sizes")
    return op.call(torch.Tensor.expand, src, sizes)


def read_tile(op: Op) -> Value:
    src, repeats = op.tensor(0), op.numbers(1)
    if len(repeats) != rank_of(src) or any(isinstance(r, int) and r < 0 for r in repeats):
        raise DamagedError("its repeats do not fit the rank of the input")
    return op.call(torch.Tensor.repeat, src, repeats)


def read_pad(op: Op) -> Value:
    src, given = op.tensor(0), op.fixed_numbers(1)
    rank = rank_of(src)
    mode = op.text("mode", "constant")
    axes = list(range(rank))
    if op.opset >= 18 and op.has(3):
        axes = op.axes(op.fixed_numbers(3), rank)
    if len(given) != 2 * len(axes) or any(abs(pad) > 1 << 40 for pad in given):
        raise DamagedError(f"its pads {given[:16]} do not fit {len(axes)} axes, or are too large")
    begin, end = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        begin[axis], end[axis] = given[i], given[i + len(axes)]
    pads = [pad for pair in zip(begin[::-1], end[::-1], strict=True) for pad in pair]
    if mode == "constant":
        value = op.number(2) if op.has(2) else 0
        return op.call(functional.pad, src, pads, "constant", value)
    modes = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    if mode not in modes:
        raise DamagedError(f"mode is {mode[:40]!r}, expected constant, reflect, edge or wrap")
    return _pad_from_inside(op, src, pads, modes[mode])


def _pad_from_inside(op: Op, src: Tensor, pads: Sequence[int], mode: str) -> Value:
    """Pads with elements of the input, which torch does for the last dimensions only."""
    rank = rank_of(src)
    count = min(rank - 2, 3)
    is_torch = 3 <= rank <= 5 and not any(pads[2 * count :]) and min(pads) >= 0
    if not is_torch or not dtype_of(src).is_floating_point:
        raise NotSupportedError(f"mode {mode} with these pads, for an input of rank {rank}")
    return op.call(functional.pad, src, list(pads[: 2 * count]), mode)


def _blocks(op: Op, has_blocks: bool) -> tuple[Tensor, int, int, bool]:
    """Returns the input, the block's size, the channels, and whether these lie side by side."""
    src, block, mode = op.tensor(0), op.integer("blocksize"), op.text("mode", "DCR")
    if rank_of(src) != 4 or not 1 <= block <= 1 << 16:
        raise DamagedError(f"blocksize is {block} and the rank {rank_of(src)}, expected rank 4")
    channels = dims_of(src)[1]
    if mode not in ("DCR", "CRD") or channels is None or (has_blocks and channels % block**2):
        raise DamagedError(f"mode is {mode[:40]!r} and the number of channels is {channels}")
    return src, block, channels, mode == "DCR"


def read_depth_to_space(op: Op) -> Value:
    src, block, _, is_together = _blocks(op, True)
    src = op.call(torch.channel_shuffle, src, block**2) if is_together else src
    return op.call(functional.pixel_shuffle, src, block)


def read_space_to_depth(op: Op) -> Value:
    src, block, channels, is_together = _blocks(op, False)
    found = op.call(functional.pixel_unshuffle, src, block)
    return op.call(torch.channel_shuffle, found, channels) if is_together else found


def read_identity(op: Op) -> Value:
    return op.value(0)


def read_dropout(op: Op) -> Value:
    op.one_output()
    op.ignore("seed")
    if op.has(2) and bool(op.constant(2).any()):
        raise NotSupportedError("training_mode is true: export the model in eval mode")
    return op.value(0)


def read_cast(op: Op) -> Value:
    op.ignore("saturate", "round_mode")  # they are about types of 8 bits, which are refused
    target = tensors.dtype_of(op.integer("to"), "its result")
    src = op.tensor(0)
    return op.call(torch.Tensor.to, src, target)


def read_constant(op: Op) -> Value:
    given = [name for name in op.node.attributes if name.startswith("value")]
    if len(given) != 1:
        raise DamagedError(f"it has {len(given)} values, expected one")
    value = op.any_attribute(given[0])
    if given[0] == "value" and isinstance(value, torch.Tensor):
        return Constant(value)
    if given[0] == "value_float":
        return Constant(torch.tensor(op.real("value_float"), dtype=torch.float32))
    if given[0] == "value_int":
        return Constant(torch.tensor(op.integer("value_int"), dtype=torch.int64))
    kinds = {"value_floats": (float, torch.float32), "value_ints": (int, torch.int64)}
    if given[0] not in kinds:
        raise NotSupportedError(f"a constant with the attribute {given[0][:40]!r}")
    kind, dtype = kinds[given[0]]
    if not isinstance(value, tuple) or not all(isinstance(each, kind) for each in value):
        raise DamagedError(f"the attribute {given[0]!r} has a wrong type")
    return Constant(torch.tensor(value, dtype=dtype))


def read_constant_of_shape(op: Op) -> Value:
    sizes = op.numbers(0)
    zero = torch.zeros(1, dtype=torch.float32)
    value = op.any_attribute("value") if op.has_attribute("value") else zero
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise DamagedError("its value is not a tensor of one element")
    if any(isinstance(each, int) and each < 0 for each in sizes):
        raise DamagedError("a size is negative")
    return op.call(torch.Tensor.expand, Constant(value.reshape(())), sizes)


def read_shape(op: Op) -> Value:
    src = op.value(0)
    if isinstance(src, Sizes):
        src = Constant(src.positions)
    rank = rank_of(src)
    start, end = (op.integer("start", 0), op.integer("end", rank)) if op.opset >= 15 else (0, rank)
    return as_value([op.size(src, i) for i in range(rank)][slice(start, end)])


def read_size(op: Op) -> Value:
    return as_value([_count(op, op.tensor(0), rank_of(op.tensor(0)))], ())


def read_range(op: Op) -> Value:
    op.ignore("stash_type")
    first = op.constant(0)
    start, limit, step = (op.number(i) for i in range(3))
    if step == 0 or any(abs(each) > 1 << 53 or each != each for each in (start, limit, step)):
        raise DamagedError(f"it counts from {start} to {limit} in steps of {step}")
    return op.call(torch.arange, start, limit, step, dtype=first.dtype)


SHAPES: dict[str, Callable[[Op], Value | list[Value]]] = {
    "Reshape": read_reshape, "Flatten": read_flatten, "Transpose": read_transpose,
    "Squeeze": read_squeeze, "Unsqueeze": read_unsqueeze, "Concat": read_concat,
    "Split": read_split, "Slice": read_slice, "Gather": read_gather, "Expand": read_expand,
    "Tile": read_tile, "Pad": read_pad, "DepthToSpace": read_depth_to_space,
    "SpaceToDepth": read_space_to_depth, "Identity": read_identity, "Dropout": read_dropout,
    "Cast": read_cast, "Constant": read_constant, "ConstantOfShape": read_constant_of_shape,
    "Shape": read_shape, "Size": read_size, "Range": read_range,
}  # fmt: skip
