# SPDX-License-Identifier: BSD-3-Clause
"""Turns each type of layer into the nodes that load_onnx reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchalgo._caffe.layer import Layer
from torchalgo._onnx_ops.refusal import DamagedError, NotSupportedError

_MOST = 1 << 31  # of a size, a pad or a step


def _size(p: Any, name: str, least: int = 1) -> int:
    value: int = getattr(p, name)
    if not least <= value < _MOST:
        raise DamagedError(f"{name} is {value}, expected {least} or more")
    return value


def _pair(p: Any, name: str, default: int | None, least: int = 1) -> list[int]:
    """Returns a number for the height and one for the width."""
    short = name.removesuffix("_size")
    sides = [f"{short}_h", f"{short}_w"]
    if sides[0] in p.DESCRIPTOR.fields_by_name and any(map(p.HasField, sides)):
        return [_size(p, side, least) for side in sides]
    given: Any = getattr(p, name)
    if isinstance(given, int):
        given = [given] if p.HasField(name) else []
    if len(given) > 2 or (not given and default is None):
        raise DamagedError(f"{name} has {len(given)} numbers, expected 1 or 2")
    found = (list(given) or [default]) * 2
    if not all(least <= each < _MOST for each in found):
        raise DamagedError(f"{name} is {found[0]}, expected {least} or more")
    return found[:2]


def _image(layer: Layer) -> list[int]:
    dims = layer.dims()
    if len(dims) != 4:
        raise NotSupportedError(f"its bottom has the sizes {dims}, expected those of images")
    return dims


def _axis(value: int, rank: int) -> int:
    if not -rank <= value < rank:
        raise DamagedError(f"the axis {value} is out of range for rank {rank}")
    return value % rank


def _ints(values: Sequence[int]) -> torch.Tensor:
    if not all(abs(value) < _MOST for value in values):
        raise DamagedError(f"a number of {list(values)[:16]} is out of range")
    return torch.tensor(list(values), dtype=torch.int64)


def _reshaped(layer: Layer, source: str, wanted: Sequence[int]) -> str:
    """Reshapes a value; 0 keeps a size, and -1 is what is left."""
    return layer.emit("Reshape", source, layer.constant("shape", _ints(wanted)))


def _steps(layer: Layer, source: str, *steps: tuple[str, float]) -> str:
    """Adds, multiplies or raises to a power, and leaves out what changes nothing."""
    for op, value in steps:
        if value != (0.0 if op == "Add" else 1.0):
            number = torch.tensor(value, dtype=torch.float32)
            source = layer.emit(op, source, layer.constant(op.lower(), number))
    return source


# ---- layers with weights -------------------------------------------------------------------------


def convolution(layer: Layer) -> str:
    p = layer.parameters("convolution_param")
    channels = _image(layer)[1]
    count, groups = _size(p, "num_output"), _size(p, "group")
    if channels % groups or count % groups or _axis(p.axis, 4) != 1:
        raise DamagedError(f"group {groups} or axis {p.axis} does not fit {channels} channels")
    kernel, pads = _pair(p, "kernel_size", None), _pair(p, "pad", 0, 0)
    is_forward = layer.type == "Convolution"
    sizes = [count, channels // groups] if is_forward else [channels, count // groups]
    weights = layer.weights(weight=[*sizes, *kernel], **({"bias": [count]} if p.bias_term else {}))
    return layer.emit(
        "Conv" if is_forward else "ConvTranspose", layer.source(), *weights, group=groups,
        kernel_shape=kernel, strides=_pair(p, "stride", 1), pads=pads * 2,
        dilations=_pair(p, "dilation", 1),
    )  # fmt: skip


def inner_product(layer: Layer) -> str:
    p, dims = layer.parameters("inner_product_param"), layer.dims()
    axis, count = _axis(p.axis, len(dims)), _size(p, "num_output")
    length = math.prod(dims[axis:])
    shape = [length, count] if p.transpose else [count, length]
    weight, *bias = layer.blobs(weight=shape, **({"bias": [count]} if p.bias_term else {}))
    weight = weight.t() if p.transpose == (axis == 1) else weight
    names = [layer.constant("weight", weight.contiguous())]
    names += [layer.constant("bias", each) for each in bias]
    if axis == 1:
        flat = layer.source() if len(dims) == 2 else layer.emit("Flatten", layer.source(), axis=1)
        return layer.emit("Gemm", flat, *names, transB=1)
    result = layer.emit("MatMul", _reshaped(layer, layer.source(), [0] * axis + [-1]), names[0])
    return layer.emit("Add", result, names[1]) if bias else result


def batch_norm(layer: Layer) -> str:
    p, dims = layer.parameters("batch_norm_param"), layer.dims()
    if not p.use_global_stats or len(dims) < 2:
        raise NotSupportedError("use_global_stats: false, or an input without channels")
    sizes = dims[1:2]
    mean, variance, factor = layer.blobs(running_mean=sizes, running_var=sizes, factor=[1])
    # The file holds sums. The third blob counts what they are sums of.
    share = 1 / float(factor) if factor != 0 else 0.0
    norm = [
        layer.constant("running_mean", mean * share),
        layer.constant("running_var", variance * share),
    ]
    return layer.normalize(layer.source(), layer.unit(sizes), norm, p.eps)


def scale(layer: Layer) -> str:
    """Multiplies, and adds a bias. A scale behind a batch norm becomes a part of it."""
    p = layer.parameters("scale_param")
    axis, sizes = _channels(layer, p)
    shapes = {} if len(layer.sources) > 1 else {"weight": sizes}
    shapes |= {"bias": sizes} if p.bias_term else {}
    found = dict(zip(shapes, layer.blobs(**shapes), strict=True))
    norm = layer.norm_before()
    if norm is not None and axis == 1 and "weight" in found and len(sizes) == 1:
        bias = found.get("bias", torch.zeros(sizes, dtype=torch.float32))
        names = [layer.constant("weight", found["weight"]), layer.constant("bias", bias)]
        return layer.normalize(norm[0], names, norm[1], norm[2])
    result = _combined(layer, "Mul", layer.source(), found.get("weight"), axis, len(sizes))
    if "bias" in found:
        result = _combined(layer, "Add", result, found["bias"], axis, len(sizes))
    return result


def bias(layer: Layer) -> str:
    axis, sizes = _channels(layer, layer.parameters("bias_param"))
    own = None if len(layer.sources) > 1 else layer.blobs(bias=sizes)[0]
    return _combined(layer, "Add", layer.source(), own, axis, len(sizes))


def _channels(layer: Layer, p: Any) -> tuple[int, list[int]]:
    """Returns the first axis of a scale or a bias, and the sizes of its factor."""
    dims = layer.dims()
    axis = _axis(p.axis, len(dims))
    if len(layer.sources) > 1:
        sizes = layer.dims(1)
    else:
        sizes = dims[axis:] if p.num_axes == -1 else dims[axis:][: _size(p, "num_axes", 0)]
    if dims[axis : axis + len(sizes)] != sizes:
        raise DamagedError(f"the sizes {sizes} do not fit {dims} at the axis {axis}")
    return axis, sizes


def _combined(
    layer: Layer, op: str, source: str, own: torch.Tensor | None, axis: int, rank: int
) -> str:
    """Adds or multiplies by the layer's own factor, or by its second bottom."""
    behind = [1] * (len(layer.dims()) - axis - rank)
    if own is None:
        other = _reshaped(layer, layer.source(1), [0] * rank + behind)
        return layer.emit(op, source, other)
    role = "weight" if op == "Mul" else "bias"
    return layer.emit(op, source, layer.constant(role, own.reshape([*own.shape, *behind])))


def prelu(layer: Layer) -> str:
    dims, is_shared = layer.dims(), layer.parameters("prelu_param").channel_shared
    (slope,) = layer.blobs(slope=[1] if is_shared or len(dims) < 2 else dims[1:2])
    name = layer.constant("weight", slope.reshape([-1, *[1] * (len(dims) - 2)]))
    return layer.emit("PRelu", layer.source(), name)


# ---- layers without weights ----------------------------------------------------------------------


def pooling(layer: Layer) -> str:
    p, sizes = layer.parameters("pooling_param"), _image(layer)[2:]
    if p.pool == 2:
        raise NotSupportedError("stochastic pooling")
    name = "AveragePool" if p.pool else "MaxPool"
    if p.global_pooling:
        return layer.emit(f"Global{name}", layer.source())
    kernel, pads = _pair(p, "kernel_size", None), _pair(p, "pad", 0, 0)
    strides, is_ceil = _pair(p, "stride", 1), p.round_mode == 0 and p.ceil_mode
    for size, window, stride, pad in zip(sizes, kernel, strides, pads, strict=True):
        if pad >= window:
            raise DamagedError(f"the pad {pad} is not smaller than the window {window}")
        # Caffe keeps such a window, which holds nothing. With pads it is left out, as in torch.
        if is_ceil and not any(pads) and -(-(size - window) // stride) * stride >= size:
            raise NotSupportedError("the last window lies outside of its input")
    more = {"count_include_pad": 1} if p.pool else {}
    return layer.emit(
        name, layer.source(), kernel_shape=kernel, strides=strides, pads=pads * 2,
        ceil_mode=int(is_ceil), **more,
    )  # fmt: skip


def lrn(layer: Layer) -> str:
    p = layer.parameters("lrn_param")
    size = _size(p, "local_size")
    if p.norm_region == 0:
        return layer.emit("LRN", layer.source(), size=size, alpha=p.alpha, beta=p.beta, bias=p.k)
    _image(layer)
    if size % 2 == 0:
        raise DamagedError(f"local_size is {size}, expected an odd number")
    square = layer.emit("Mul", layer.source(), layer.source())
    mean = layer.emit(
        "AveragePool", square, kernel_shape=[size] * 2, pads=[size // 2] * 4, count_include_pad=1
    )
    share = _steps(layer, mean, ("Mul", p.alpha), ("Add", 1.0), ("Pow", -p.beta))
    return layer.emit("Mul", layer.source(), share)


def relu(layer: Layer) -> str:
    slope = layer.parameters("relu_param").negative_slope
    if slope == 0:
        return layer.emit("Relu", layer.source())
    return layer.emit("LeakyRelu", layer.source(), alpha=slope)


def power(layer: Layer) -> str:
    p = layer.parameters("power_param")
    steps = ("Mul", p.scale), ("Add", p.shift), ("Pow", p.power)
    return _steps(layer, layer.source(), *steps)


def _log_of_base(p: Any) -> float:
    if p.base == -1:
        return 1.0
    if not 0 < p.base < math.inf or p.base == 1:
        raise DamagedError(f"base is {p.base}, expected a number above 0 other than 1, or -1")
    return math.log(p.base)


def exp(layer: Layer) -> str:
    p = layer.parameters("exp_param")
    log = _log_of_base(p)
    inner = _steps(layer, layer.source(), ("Mul", p.scale * log), ("Add", p.shift * log))
    return layer.emit("Exp", inner)


def log(layer: Layer) -> str:
    p = layer.parameters("log_param")
    inner = _steps(layer, layer.source(), ("Mul", p.scale), ("Add", p.shift))
    return _steps(layer, layer.emit("Log", inner), ("Mul", 1 / _log_of_base(p)))


def eltwise(layer: Layer) -> str:
    p, sources = layer.parameters("eltwise_param"), layer.sources
    op, coefficients = ("Mul", "Add", "Max")[p.operation], list(p.coeff)
    if any(layer.dims(i) != layer.dims() for i in range(len(sources))):
        raise DamagedError(
            f"its bottoms differ: {[layer.dims(i) for i in range(len(sources))][:4]}"
        )
    if coefficients and (op != "Add" or len(coefficients) != len(sources)):
        raise DamagedError(f"it has {len(coefficients)} coefficients, for a sum of {len(sources)}")
    if coefficients:
        factors = zip(sources, coefficients, strict=True)
        sources = [_steps(layer, source, ("Mul", factor)) for source, factor in factors]
    result = sources[0]
    for source in sources[1:]:
        result = layer.emit(op, result, source)
    return result


def concat(layer: Layer) -> str:
    p = layer.parameters("concat_param")
    axis = p.concat_dim if p.HasField("concat_dim") else p.axis
    return layer.emit("Concat", *layer.sources, axis=axis)


def slices(layer: Layer) -> list[str]:
    p, dims, count = layer.parameters("slice_param"), layer.dims(), len(layer.tops)
    axis = _axis(p.slice_dim if p.HasField("slice_dim") else p.axis, len(dims))
    points = list(p.slice_point) or [dims[axis] * i // count for i in range(1, count)]
    sizes = [end - begin for begin, end in zip([0, *points], [*points, dims[axis]], strict=True)]
    if len(sizes) != count or min(sizes) < 1 or (not p.slice_point and len(set(sizes)) > 1):
        raise DamagedError(f"{count} tops at {points[:16]} do not fit the size {dims[axis]}")
    if count == 1:
        return layer.sources
    name = layer.constant("sizes", _ints(sizes))
    return layer.emit_many(count, "Split", layer.source(), name, axis=axis)


def flatten(layer: Layer) -> str:
    p, dims = layer.parameters("flatten_param"), layer.dims()
    first, last = _axis(p.axis, len(dims)), _axis(p.end_axis, len(dims))
    if first == 1 and last == len(dims) - 1:
        return layer.emit("Flatten", layer.source(), axis=1)
    return _reshaped(layer, layer.source(), [0] * first + [-1] + dims[last + 1 :])


def reshape(layer: Layer) -> str:
    p, dims = layer.parameters("reshape_param"), layer.dims()
    first = p.axis if p.axis >= 0 else p.axis + len(dims) + 1
    last = len(dims) if p.num_axes == -1 else first + p.num_axes
    if not 0 <= first <= last <= len(dims):
        raise DamagedError(f"axis {p.axis} and num_axes {p.num_axes} do not fit rank {len(dims)}")
    return _reshaped(layer, layer.source(), [0] * first + list(p.shape.dim) + dims[last:])


def permute(layer: Layer) -> str:
    order, rank = list(layer.parameters("permute_param").order), len(layer.dims())
    order += [axis for axis in range(rank) if axis not in order]
    return layer.emit("Transpose", layer.source(), perm=order)


def crop(layer: Layer) -> str:
    p, dims, wanted = layer.parameters("crop_param"), layer.dims(), layer.dims(1)
    axes = list(range(_axis(p.axis, len(dims)), len(dims)))
    offsets = list(p.offset) * (len(axes) if len(p.offset) == 1 else 1) or [0] * len(axes)
    if len(wanted) != len(dims) or len(offsets) != len(axes):
        raise DamagedError(f"{len(offsets)} offsets or the sizes {wanted} do not fit {dims}")
    ends = [offset + wanted[axis] for offset, axis in zip(offsets, axes, strict=True)]
    if min(offsets) < 0 or any(end > dims[axis] for end, axis in zip(ends, axes, strict=True)):
        raise DamagedError(f"it crops {dims} to {wanted} at {offsets}, which is outside")
    bounds = [layer.constant("bounds", _ints(each)) for each in (offsets, ends, axes)]
    return layer.emit("Slice", layer.source(), *bounds)


def arg_max(layer: Layer) -> str:
    p = layer.parameters("argmax_param")
    if p.top_k != 1 or p.out_max_val or not p.HasField("axis"):
        raise NotSupportedError("an ArgMax other than of one index along an axis")
    return layer.emit("Cast", layer.emit("ArgMax", layer.source(), axis=p.axis), to=1)


def softmax(layer: Layer) -> str:
    axis = layer.parameters("softmax_param").axis
    return layer.emit("Softmax", layer.source(), axis=axis)


def elu(layer: Layer) -> str:
    return layer.emit("Elu", layer.source(), alpha=layer.parameters("elu_param").alpha)


def _op(name: str) -> Callable[[Layer], str]:
    return lambda layer: layer.emit(name, layer.source())


ANY = 1 << 20
# The function of a type, and the least and largest numbers of its bottoms.
LAYERS: dict[str, tuple[Callable[[Layer], str | list[str]], int, int]] = {
    "AbsVal": (_op("Abs"), 1, 1), "ArgMax": (arg_max, 1, 1), "BatchNorm": (batch_norm, 1, 1),
    "Bias": (bias, 1, 2), "BNLL": (_op("Softplus"), 1, 1), "Concat": (concat, 1, ANY),
    "Convolution": (convolution, 1, 1), "Crop": (crop, 2, 2), "Deconvolution": (convolution, 1, 1),
    "Dropout": (Layer.source, 1, 1), "Eltwise": (eltwise, 2, ANY), "ELU": (elu, 1, 1),
    "Exp": (exp, 1, 1), "Flatten": (flatten, 1, 1), "InnerProduct": (inner_product, 1, 1),
    "Log": (log, 1, 1), "LRN": (lrn, 1, 1), "Permute": (permute, 1, 1), "Pooling": (pooling, 1, 1),
    "Power": (power, 1, 1), "PReLU": (prelu, 1, 1), "ReLU": (relu, 1, 1),
    "Reshape": (reshape, 1, 1), "Scale": (scale, 1, 2), "Sigmoid": (_op("Sigmoid"), 1, 1),
    "Slice": (slices, 1, 1), "Softmax": (softmax, 1, 1),
    "Split": (lambda layer: layer.sources * len(layer.tops), 1, 1), "TanH": (_op("Tanh"), 1, 1),
}  # fmt: skip
