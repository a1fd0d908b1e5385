# SPDX-License-Identifier: BSD-3-Clause
"""The operations whose forward pass and gradients can be planned, as torch.fx shows them."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from torchalgo import _C

# Functions, and names of methods. Products that are not in place make new tensors.
_ADDITIONS: frozenset[Any] = frozenset((operator.add, operator.iadd, torch.add, "add", "add_"))
PRODUCTS: frozenset[Any] = frozenset((operator.mul, torch.mul, "mul"))
_MEANS: frozenset[Any] = frozenset((torch.mean, "mean"))
_IMAGE_DIMS = ({2, 3}, {-2, -1}, {-2, 3}, {-1, 2})  # rows and columns
_CONCATS: frozenset[Any] = frozenset((torch.cat, torch.concat))
_MULTIPLICATIONS = PRODUCTS | {operator.imul, "mul_"}
_CLASSES = {name.lower(): cls for name, cls in vars(nn).items()}  # nn.LeakyReLU is leaky_relu


def _callers(name: str) -> Iterator[Any]:
    """Yields the module, the functions and the methods of torch with the name of an activation."""
    yield from (name, f"{name}_")
    places = (
        (_CLASSES, name.replace("_", "")), (vars(functional), name),
        (vars(torch), name), (vars(torch), f"{name}_"),
    )  # fmt: skip
    yield from (place[key] for place, key in places if key in place)


_ACTIVATIONS: dict[Any, str] = {  # of modules, functions and methods: their names in problems
    caller: name
    for name in _C.activation_names()
    # clamp has other arguments than Hardtanh, which is one.
    for caller in (_callers(name) if name != "clamp" else (nn.Hardtanh, functional.hardtanh))
}
_NUMBERS = {  # arguments that are written into a problem's name, with PyTorch's defaults
    "clamp": {"min_val": -1.0, "max_val": 1.0},
    "leaky_relu": {"negative_slope": 0.01},
    "elu": {"alpha": 1.0},
}
_LARGEST_NUMBER = 1e6  # that a problem's name may have
ACTIVATION_SETTINGS = frozenset(("approximate", *(n for of in _NUMBERS.values() for n in of)))
_POOLS: dict[
    Any, tuple[type[nn.Module], tuple[str, ...]]
] = {  # the names of their arguments after the image
    functional.max_pool2d: (
        nn.MaxPool2d,
        ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    ),
    functional.avg_pool2d: (
        nn.AvgPool2d,
        ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    ),
    functional.adaptive_avg_pool2d: (nn.AdaptiveAvgPool2d, ("output_size",)),
}
_CALLED = frozenset(("forward", "_conv_forward"))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


OF_MODULES = frozenset(vars(nn.Module()))  # the attributes that each module has


def is_altered(module: nn.Module) -> bool:
    """Returns whether a call of the module itself is not just the forward of its class.

    A user may have attached a hook, or set a forward on the instance.
    """
    return any(getattr(module, name) for name in _HOOKS) or not _CALLED.isdisjoint(vars(module))


@dataclass(frozen=True)
class Op:
    """A known operation of a region: how a problem is made of it."""

    # conv, batch_norm, add, mul, maxpool, avgpool, globalpool, concat, slice, shuffle, or the name
    # of an activation
    kind: str
    # The module with the settings: a layer of the model, or of a pool by a function a new one.
    module: nn.Module | None
    # An activation's arguments; a slice's first channel and number of channels; a shuffle's groups.
    numbers: tuple[float, ...] = ()


class NormPart(nn.Module):
    """The batch norm of timm's BatchNormAct2d, whose activation is an operation of its own."""

    def __init__(self, layer: nn.BatchNorm2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Returns x normalized as torch.nn.BatchNorm2d does it."""
        return nn.BatchNorm2d.forward(self.layer, x)


def calls(node: Any, targets: Collection[Any]) -> TypeGuard[fx.Node]:
    """Returns whether a node calls one of these functions, or of the methods with these names."""
    is_call = isinstance(node, fx.Node) and node.op in ("call_function", "call_method")
    return is_call and node.target in targets


def is_class(module: nn.Module, name: str) -> bool:
    """Returns whether this is the class's own type, such as "timm.layers.drop.DropPath".

    Classes of timm are known by name, since torchalgo does not need timm. A class that a user has
    derived from one may compute anything, so it is another.
    """
    kind = type(module)
    return f"{kind.__module__}.{kind.__name__}" == name


def is_norm_with_activation(module: nn.Module) -> bool:
    """Returns whether this is timm's batch norm, followed by its `drop` and its `act`."""
    return is_class(module, "timm.layers.norm_act.BatchNormAct2d")


def known_op(node: fx.Node, modules: dict[str, nn.Module]) -> Op | None:
    """Returns what a node computes, or None if it is not known. `node.meta` holds the shapes."""
    if node.op == "call_module":
        return _known_module(node, modules[str(node.target)])
    if node.op not in ("call_function", "call_method"):
        return None
    if not _images(node.args[:1]) and node.target not in _CONCATS:
        return None
    if node.target in _ACTIVATIONS and len(node.args) == 1:
        return _activation(_ACTIVATIONS[node.target], node.kwargs)
    if node.target in _POOLS:
        return _called_pool(node)
    if node.target in _MEANS:
        return _mean_of_images(node)
    if node.target is operator.getitem:
        return _slice(node)
    if node.target is channel_shuffle:
        return Op("shuffle", None, (float(node.args[1]),))  # type: ignore[arg-type]
    is_plain = len(node.args) == 2 and not node.kwargs
    for kind, targets in (("add", _ADDITIONS), ("mul", _MULTIPLICATIONS)):
        if node.target in targets and is_plain and _images(node.args):
            return Op(kind, None) if _are_alike(*node.args) else None
    parts = parts_of_concat(node)
    if len(parts) > 1:
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if dim == 1 and _images(parts):
            return Op("concat", None)
    return None


def parts_of_concat(node: fx.Node) -> list[Any]:
    """Returns the tensors that a concatenation joins; nothing for any other node."""
    is_concat = node.target in _CONCATS and set(node.kwargs) <= {"dim"} and bool(node.args)
    parts = node.args[0] if is_concat else None
    return list(parts) if isinstance(parts, list | tuple) else []


def _known_module(node: fx.Node, module: nn.Module) -> Op | None:
    if is_altered(module) or len(node.args) != 1 or node.kwargs or not _images(node.args):
        return None
    if type(module) is nn.Conv2d and module.padding_mode == "zeros":
        return Op("conv", module) if padding_of(module) is not None else None
    norm = module.layer if type(module) is NormPart else module
    if type(norm) is nn.BatchNorm2d or norm is not module:
        return Op("batch_norm", norm) if norm.affine and norm.training else None
    if type(module) in _ACTIVATIONS:
        arguments = {name: vars(module)[name] for name in ACTIVATION_SETTINGS & set(vars(module))}
        is_usual = type(module) is nn.ReLU6 and (module.min_val, module.max_val) == (0, 6)
        kind = "clamp" if type(module) is nn.ReLU6 else _ACTIVATIONS[type(module)]
        return _activation("relu6" if is_usual else kind, arguments)
    return _pool(module)


def padding_of(module: nn.Conv2d) -> tuple[int, int] | None:
    """Returns the zeros on each side of the rows and columns; None if the sides differ."""
    if module.padding == "valid":
        return 0, 0
    if module.padding == "same":  # PyTorch allows it for a stride of 1 only
        both = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        return None if any(total % 2 for total in both) else (both[0] // 2, both[1] // 2)
    assert not isinstance(module.padding, str)
    return module.padding[0], module.padding[1]


def _pool(module: nn.Module) -> Op | None:
    if type(module) is nn.MaxPool2d and not module.return_indices:
        return Op("maxpool", module)
    if type(module) is nn.AvgPool2d and module.divisor_override is None:
        return Op("avgpool", module)
    if type(module) is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1), [1, 1]):
        return Op("globalpool", module)
    return None


def _called_pool(node: fx.Node) -> Op | None:
    kind, names = _POOLS[node.target]
    if len(node.all_input_nodes) != 1:  # a size that depends on another tensor
        return None
    return _pool(kind(**dict(zip(names, node.args[1:], strict=False)), **node.kwargs))


def _mean_of_images(node: fx.Node) -> Op | None:
    """Returns the mean of each channel of each image, if the node computes that."""
    given = {**dict(zip(("dim", "keepdim"), node.args[1:], strict=False)), **node.kwargs}
    dims = given.pop("dim", None)
    is_of_images = isinstance(dims, list | tuple) and set(dims) in _IMAGE_DIMS
    return Op("globalpool", None) if is_of_images and given == {"keepdim": True} else None


def _slice(node: fx.Node) -> Op | None:
    """Returns the slice of channels, if the node takes some channels and all rows and columns."""
    index = node.args[1]
    if not isinstance(index, tuple) or not 2 <= len(index) <= 4:
        return None
    channels, others = index[1], (index[0], *index[2:])
    if not isinstance(channels, slice) or any(each != slice(None) for each in others):
        return None
    ends_are_numbers = all(isinstance(n, int | None) for n in (channels.start, channels.stop))
    sizes = sizes_of(node.args[0])
    if not ends_are_numbers or channels.step not in (None, 1) or sizes is None:
        return None
    begin, end, _ = channels.indices(sizes[1])
    return Op("slice", None, (begin, end - begin)) if begin < end else None


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Returns x with channel j * (c / groups) + i at place i * groups + j."""
    n, c, h, w = x.shape
    return x.reshape(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


def _activation(kind: str, arguments: Mapping[str, Any]) -> Op | None:
    """Returns the activation with torch's arguments, or None if no problem computes it."""
    names = _NUMBERS.get(kind, {})
    numbers = tuple(arguments.get(name, default) for name, default in names.items())
    is_known = ACTIVATION_SETTINGS | {"inplace"} >= set(arguments) and all(
        isinstance(number, int | float) and abs(number) <= _LARGEST_NUMBER for number in numbers
    )
    if not is_known or (kind == "clamp" and not numbers[0] <= 0 <= numbers[1]):
        return None
    is_approximate = arguments.get("approximate", "none") == "tanh"  # of gelu
    return Op(f"{kind}_tanh" if is_approximate else kind, None, numbers)


def _are_alike(first: Any, second: Any) -> bool:
    """Returns whether both images have one shape, or one of them is [n, c, 1, 1] for the other."""
    shapes = (sizes_of(first), sizes_of(second))
    if shapes[0] == shapes[1]:
        return True
    return any(a is not None and b == (*a[:2], 1, 1) for a, b in (shapes, shapes[::-1]))


def sizes_of(value: Any) -> tuple[int, ...] | None:
    """Returns the sizes of a tensor of float32 in the trace; None for anything else."""
    meta = value.meta.get("tensor_meta") if isinstance(value, fx.Node) else None
    if meta is None or not hasattr(meta, "dtype") or meta.dtype is not torch.float32:
        return None
    return tuple(meta.shape)


def _images(values: Sequence[Any]) -> bool:
    """Returns whether there are values, and all are images [n, c, h, w] of float32."""
    shapes = [sizes_of(value) for value in values]
    return bool(shapes) and all(
        shape is not None and len(shape) == 4 and min(shape) > 0 for shape in shapes
    )
