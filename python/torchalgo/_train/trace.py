# SPDX-License-Identifier: BSD-3-Clause
"""Traces a model in train mode, and cuts it into regions of known operations and the rest.

A region is a part of the model whose forward pass and gradients can be planned together. All else
runs as in the model: unknown operations, modules with hooks, and modules that a user has derived.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.fx.passes.split_module import split_module
from torch.nn import functional

from torchalgo import _C

_ADDITIONS: frozenset[Any] = frozenset(
    (operator.add, operator.iadd, torch.add, "add", "add_")
)  # of functions and of methods
_PRODUCTS: frozenset[Any] = frozenset((operator.mul, torch.mul, "mul"))  # they make new tensors
_CONCATS: frozenset[Any] = frozenset((torch.cat, torch.concat))
_MULTIPLICATIONS = _PRODUCTS | {operator.imul, "mul_"}
_ACTIVATIONS: dict[Any, str] = {  # of modules, of functions and of methods: their names in problems
    **dict.fromkeys((nn.ReLU, functional.relu, torch.relu, torch.relu_, "relu", "relu_"), "relu"),
    **dict.fromkeys((nn.ReLU6, functional.relu6), "relu6"),
    **dict.fromkeys((nn.Hardtanh, functional.hardtanh), "clamp"),
    **dict.fromkeys((nn.LeakyReLU, functional.leaky_relu), "leaky_relu"),
    **dict.fromkeys((nn.ELU, functional.elu), "elu"),
    **dict.fromkeys((nn.SiLU, functional.silu), "silu"),
    **dict.fromkeys((nn.Hardswish, functional.hardswish), "hardswish"),
    **dict.fromkeys((nn.Hardsigmoid, functional.hardsigmoid), "hardsigmoid"),
    **dict.fromkeys((nn.GELU, functional.gelu), "gelu"),
    **dict.fromkeys((nn.Mish, functional.mish), "mish"),
    **dict.fromkeys((nn.Sigmoid, torch.sigmoid, torch.sigmoid_, "sigmoid", "sigmoid_"), "sigmoid"),
    **dict.fromkeys((nn.Tanh, torch.tanh, torch.tanh_, "tanh", "tanh_"), "tanh"),
}
_NUMBERS = {  # the numbers in the names of activations: arguments of torch, with their defaults
    "clamp": {"min_val": -1.0, "max_val": 1.0},
    "leaky_relu": {"negative_slope": 0.01},
    "elu": {"alpha": 1.0},
}
_LARGEST_NUMBER = 1e6  # that a problem may have
# The key in a node's meta: may its result be changed in place outside of the regions?
MAY_CHANGE = "may_change"
ACTIVATION_SETTINGS = frozenset(("approximate", *(n for of in _NUMBERS.values() for n in of)))
_AUGMENTED = frozenset(  # operators such as y += x
    ("iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imod", "imul", "imatmul", "ior", "ipow",
     "irshift", "isub", "itruediv", "ixor")
)  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Returns whether a user has attached a hook to the module itself."""
    return any(getattr(module, name) for name in _HOOKS)


class _Proxy(fx.Proxy):
    """A value of the trace. `y += x` and `y[i] = x` change y, as they do in the model."""

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


def _augmented(name: str) -> Any:
    target = getattr(operator, name)

    def method(self: fx.Proxy, other: Any) -> fx.Proxy:
        result: fx.Proxy = self.tracer.create_proxy("call_function", target, (self, other), {})
        return result

    return method


for _name in _AUGMENTED:
    setattr(_Proxy, f"__{_name}__", _augmented(_name))


class _Tracer(fx.Tracer):
    """Enters modules of a user, unless they have hooks: a hook needs the module's own call."""

    def __init__(self) -> None:
        super().__init__()
        self.entered: list[nn.Module] = []
        self._modes = _modes()
        self._has_block = False

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_leaf = has_hooks(m) or super().is_leaf_module(m, module_qualified_name)
        if not is_leaf:
            self.entered.append(m)
        return is_leaf

    def trace(self, *args: Any, **kwargs: Any) -> fx.Graph:
        graph = super().trace(*args, **kwargs)
        # An error in the midst of a checkpoint would leave its hooks behind.
        if self._has_block:
            raise RuntimeError(
                "forward has a block of torch.no_grad, torch.autocast, or of another mode, which a"
                " trace does not see"
            )
        return graph

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        self._has_block = self._has_block or _modes() != self._modes
        return super().create_node(*args, **kwargs)


def _modes() -> tuple[Any, ...]:
    """Returns the modes of the process that a block of Python code can set."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch._C._len_torch_dispatch_stack(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
    )


@dataclass(frozen=True)
class Op:
    """A known operation of a region: how a problem is made of it."""

    kind: str  # conv, batch_norm, add, mul, maxpool, avgpool, globalpool, concat or an activation
    module: nn.Module | None
    numbers: tuple[float, ...] = ()  # of an activation


def known_op(node: fx.Node, modules: dict[str, nn.Module]) -> Op | None:
    """Returns what a node computes, or None if it is not known. `node.meta` holds the shapes."""
    if node.op == "call_module":
        return _known_module(node, modules[str(node.target)])
    if node.op not in ("call_function", "call_method"):
        return None
    if node.target in _ACTIVATIONS and len(node.args) == 1 and _images(node.args):
        return _activation(_ACTIVATIONS[node.target], node.kwargs)
    is_plain = len(node.args) == 2 and not node.kwargs
    for kind, targets in (("add", _ADDITIONS), ("mul", _MULTIPLICATIONS)):
        if node.target in targets and is_plain and _images(node.args):
            return Op(kind, None) if _are_alike(*node.args) else None
    parts = _parts_of_concat(node)
    if len(parts) > 1:
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if dim == 1 and _images(parts):
            return Op("concat", None)
    return None


def _parts_of_concat(node: fx.Node) -> list[Any]:
    """Returns the tensors that a concatenation joins; nothing for any other node."""
    is_concat = node.target in _CONCATS and set(node.kwargs) <= {"dim"} and bool(node.args)
    parts = node.args[0] if is_concat else None
    return list(parts) if isinstance(parts, list | tuple) else []


def _known_module(node: fx.Node, module: nn.Module) -> Op | None:
    if has_hooks(module) or len(node.args) != 1 or node.kwargs or not _images(node.args):
        return None
    if type(module) is nn.Conv2d and module.padding_mode == "zeros":
        is_even = not isinstance(module.padding, str)
        return Op("conv", module) if is_even else None
    if type(module) is nn.BatchNorm2d and module.affine and module.training:
        return Op("batch_norm", module)
    if type(module) in _ACTIVATIONS:
        arguments = {name: vars(module)[name] for name in ACTIVATION_SETTINGS & set(vars(module))}
        is_usual = type(module) is nn.ReLU6 and (module.min_val, module.max_val) == (0, 6)
        kind = "clamp" if type(module) is nn.ReLU6 else _ACTIVATIONS[type(module)]
        return _activation("relu6" if is_usual else kind, arguments)
    if type(module) is nn.MaxPool2d and not module.return_indices:
        return Op("maxpool", module)
    if type(module) is nn.AvgPool2d and module.divisor_override is None:
        return Op("avgpool", module)
    if type(module) is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1)):
        return Op("globalpool", module)
    return None


def _activation(kind: str, arguments: Mapping[str, Any]) -> Op | None:
    """Returns the activation with torch's arguments, or None if no problem is equal to it."""
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
    shapes = (_shape(first), _shape(second))
    if shapes[0] == shapes[1]:
        return True
    return any(a is not None and b == (*a[:2], 1, 1) for a, b in (shapes, shapes[::-1]))


def _shape(value: Any) -> tuple[int, ...] | None:
    meta = value.meta.get("tensor_meta") if isinstance(value, fx.Node) else None
    if meta is None or not hasattr(meta, "dtype") or meta.dtype is not torch.float32:
        return None
    return tuple(meta.shape)


def _images(values: Sequence[Any]) -> bool:
    """Returns whether all are images [n, c, h, w] of float32."""
    shapes = [_shape(value) for value in values]
    return all(shape is not None and len(shape) == 4 and min(shape) > 0 for shape in shapes)


@dataclass(frozen=True)
class Traced:
    """A model in parts. `whole` calls the parts, whose modules are those of the model."""

    whole: fx.GraphModule
    regions: dict[str, fx.GraphModule]  # parts of known operations, by their names in `whole`
    entered: list[nn.Module]  # whose forward is a part of the trace
    left_alone: list[str]  # the operations outside of the regions, by layer or by function


def trace(model: nn.Module, inputs: Sequence[Tensor]) -> Traced:
    """Traces `model` and cuts it into regions. The model itself stays as it is.

    Raises: torchalgo.Error if Python code of the model depends on values, so that it has no trace.
    """
    tracer = _Tracer()
    try:
        whole = fx.GraphModule(model, tracer.trace(model))
        _leave_out_other_inputs(whole, len(inputs))
        tracer.entered += _leave_out_identities(whole)
        _propagate(whole, inputs)
    except Exception as problem:
        cause = problem.__cause__ or problem
        raise _C.Error(
            "TA1601 optimize: training=True needs a model that torch.fx can trace and that runs"
            f" with the example inputs ({type(cause).__name__}: {str(cause)[:300]}). Mark the part"
            " that decides by values with torch.fx.wrap, or train the model as it is"
        ) from problem
    modules = dict(whole.named_modules())
    _leave_out_copies(whole.graph, modules)
    _name_results_of_in_place_ops(whole.graph, modules)
    return _split(whole, [model, *tracer.entered])


def _leave_out_other_inputs(whole: fx.GraphModule, count: int) -> None:
    """Removes arguments of forward that the example does not give, and that no operation reads."""
    for node in [n for n in whole.graph.nodes if n.op == "placeholder"][count:]:
        if node.users:
            raise RuntimeError(f"forward reads its argument {node.target}, which is not given")
        whole.graph.erase_node(node)
    whole.recompile()


def _leave_out_identities(whole: fx.GraphModule) -> list[nn.Module]:
    """Removes calls of nn.Identity, which would cut regions. Returns these modules."""
    modules = dict(whole.named_modules())
    found: list[nn.Module] = []
    for node in list(whole.graph.nodes):
        module = modules[str(node.target)] if node.op == "call_module" else None
        if type(module) is nn.Identity and not has_hooks(module) and len(node.args) == 1:
            node.replace_all_uses_with(node.args[0])
            whole.graph.erase_node(node)
            found.append(module)
    whole.recompile()
    return found


def _leave_out_copies(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Removes concatenations of one tensor, which would cut regions.

    The copy must not be told from its source. So the source is the new result of a known op, the
    copy is no result of the model, and no op changes a tensor, unless such a change stays unseen.
    """
    called = [n for n in graph.nodes if n.op in ("call_module", "call_function", "call_method")]
    if any(_may_write(n, modules) and not _is_planned(n, modules) for n in called):
        return
    for node in called:
        parts = _parts_of_concat(node)
        if len(parts) != 1:
            continue
        (source,) = parts
        is_new = known_op(source, modules) is not None and not _writes_in_place(source, modules)
        if is_new and not any(user.op == "output" for user in node.users):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _propagate(whole: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
    """Runs a copy once, which notes the shapes, and changes neither statistics nor random state."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        copied = fx.GraphModule(copy.deepcopy(whole), whole.graph)
        ShapeProp(copied).propagate(*(x.detach().clone() for x in inputs))
    for node, noted in zip(whole.graph.nodes, copied.graph.nodes, strict=True):
        if "tensor_meta" in noted.meta:
            node.meta["tensor_meta"] = noted.meta["tensor_meta"]


def _writes_in_place(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    name = _called_name(node)
    is_written = name.endswith("_") and name[-2:] != "__"
    return (
        is_written
        or node.target in (operator.iadd, operator.imul)
        or bool(node.kwargs.get("inplace"))
    )


def _called_name(node: fx.Node) -> str:
    """Returns the name of the function or of the method that a node calls."""
    is_method = node.op == "call_method"
    return str(node.target) if is_method else str(getattr(node.target, "__name__", ""))


def _name_results_of_in_place_ops(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Lets later readers of a tensor that a known op changes in place read the op's result.

    Then the op may as well make a new tensor.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not _writes_in_place(node, modules) or not _is_planned(node, modules):
            continue
        changed = node.args[0]
        for reader in list(changed.users):
            if order[reader] > order[node]:
                reader.replace_input_with(changed, node)


def _is_planned(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Returns whether the op can be a part of a region."""
    if known_op(node, modules) is None:
        return False
    # A change must stay unseen. So the changed tensor is new, and only known ops read it before.
    if not _writes_in_place(node, modules):
        return True
    changed = node.args[0]
    assert isinstance(changed, fx.Node)
    is_new = changed.target in _PRODUCTS or (
        known_op(changed, modules) is not None
        and (not _writes_in_place(changed, modules) or _is_planned(changed, modules))
    )
    readers = [user for user in changed.users if user < node]
    return is_new and all(known_op(each, modules) is not None for each in readers)


def _may_write(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Returns whether the op may change a tensor that exists already.

    It does so by its name, or it is code of a user, which may do anything.
    """
    if node.op == "call_module":
        module = modules[str(node.target)]
        is_other = has_hooks(module) or not type(module).__module__.startswith("torch.nn")
        return is_other or _writes_in_place(node, modules)
    name, is_other = _called_name(node), False
    if node.op != "call_method":
        owner = str(getattr(node.target, "__module__", None))
        is_other = owner.partition(".")[0] not in ("torch", "_operator", "math", "builtins", "None")
    is_augmented = node.op == "call_function" and name in _AUGMENTED
    return (
        is_other
        or name in ("setitem", "delitem")
        or is_augmented
        or "out" in node.kwargs
        or _writes_in_place(node, modules)
    )


class _Levels:
    """Gives each node the number of its part: parts run in the order of their numbers."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self._modules = modules
        self._of: dict[fx.Node, tuple[int, bool]] = {}
        self._least = {False: 0, True: 0}  # of the next node that is unknown, or known
        self._most_known = -1

    def add(self, node: fx.Node, is_known: bool) -> None:
        before = [self._of[source] for source in node.all_input_nodes if source in self._of]
        level = max((at + (kind != is_known) for at, kind in before), default=0)
        level = max(level, self._least[is_known])
        if is_known:
            self._most_known = max(self._most_known, level)
        else:
            if _may_write(node, self._modules):  # all that comes before it runs before it
                level = max(level, self._most_known + 1)
                self._least[True] = level
            self._least[False] = level  # unknown ops keep their order: they may draw random numbers
        self._of[node] = (level, is_known)

    @property
    def numbers(self) -> dict[fx.Node, int]:
        places = {each: number for number, each in enumerate(sorted(set(self._of.values())))}
        return {node: places[place] for node, place in self._of.items()}


def _split(whole: fx.GraphModule, entered: list[nn.Module]) -> Traced:
    modules = dict(whole.named_modules())
    nodes = [n for n in whole.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    levels = _Levels(modules)
    known: set[fx.Node] = set()
    for node in reversed(nodes):  # an op without readers has no gradient
        if _is_planned(node, modules) and any(
            user in known or user.op == "output" or not _is_planned(user, modules)
            for user in node.users
        ):
            known.add(node)
    _note_changes(nodes, known, modules)
    for node in nodes:
        levels.add(node, node in known)
    numbers = levels.numbers
    _sort_and_rename(whole, nodes, numbers)
    split = split_module(whole, nn.Module(), lambda n: numbers[n], keep_original_order=True)
    regions = {f"submod_{numbers[n]}": split.get_submodule(f"submod_{numbers[n]}") for n in known}
    convolutions = {
        name: part for name, part in sorted(regions.items(), key=lambda each: int(each[0][7:]))
        if any(type(m) is nn.Conv2d for m in part.modules())
    }  # fmt: skip
    planned = {int(name.removeprefix("submod_")) for name in convolutions}
    left = [_name_of(n) for n in nodes if numbers[n] not in planned]
    return Traced(split, convolutions, entered, left)


def _note_changes(
    nodes: Sequence[fx.Node], known: set[fx.Node], modules: dict[str, nn.Module]
) -> None:
    """Notes for each op whether its result may be changed in place outside of the regions."""

    def may_change(reader: fx.Node) -> bool:
        if reader.op == "output":  # the caller of the model may do anything
            return True
        if reader in known:
            return False
        return _may_write(reader, modules) or bool(reader.meta[MAY_CHANGE])  # it may be a view

    for node in reversed(nodes):
        node.meta[MAY_CHANGE] = any(map(may_change, node.users))


def _name_of(node: fx.Node) -> str:
    """Returns the name of a layer in the model, or of a function."""
    return str(node.meta.get("layer", getattr(node.target, "__name__", node.target)))


def _sort_and_rename(
    whole: fx.GraphModule, nodes: Sequence[fx.Node], numbers: dict[fx.Node, int]
) -> None:
    """Sorts the nodes by their parts, and gives each called module a name without dots.

    split_module would replace the dots, and two names may then be equal.
    """
    end = next(n for n in whole.graph.nodes if n.op == "output")
    names: dict[str, str] = {}
    for node in sorted(nodes, key=lambda n: numbers[n]):
        end.prepend(node)
        if node.op == "call_module":
            node.meta["layer"] = node.target
            name = names.setdefault(str(node.target), f"torchalgo_layer_{len(names)}")
            whole.add_module(name, whole.get_submodule(str(node.target)))
            node.target = name
    whole.recompile()
