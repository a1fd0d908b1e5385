# SPDX-License-Identifier: BSD-3-Clause
"""A tracer of torch.fx that runs each operation on an example, so that it knows all sizes."""

from __future__ import annotations

import copy
import functools
import operator
import pickle
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from torchalgo._train.known_ops import OF_MODULES, is_altered, is_norm_with_activation
from torchalgo._train.stochastic_depth import is_drop_path

WRITES = "writes"  # the key in a node's meta: did the operation change one of its arguments?
_AUGMENTED = (  # operators such as y += x
    "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imod", "imul", "imatmul", "ior", "ipow",
    "irshift", "isub", "itruediv", "ixor",
)  # fmt: skip
# The attributes of tensors that are constants of the trace. dtype and device are operations.
_SIZES = frozenset(("shape", "ndim", "size", "dim", "numel"))


class _Proxy(fx.Proxy):
    """A value of the trace, with the sizes of the example.

    `y += x` and `y[i] = x` change y, as they do in the model.
    """

    tracer: _Tracer

    def __getattr__(self, name: str) -> Any:
        if name in ("_is_param", "_is_buffer"):  # isinstance(x, nn.Parameter) reads them
            return False
        value = self.tracer.values.get(self.node) if name in _SIZES else None
        return getattr(value, name) if isinstance(value, Tensor) else super().__getattr__(name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Tensor for tensors, so that `isinstance(x, torch.Tensor)` takes the model's branch."""
        tracer = self.__dict__.get("tracer")
        value = None if tracer is None else tracer.values.get(self.node)
        return Tensor if isinstance(value, Tensor) else _Proxy

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("tracer", "node"):
            raise RuntimeError(
                f"forward sets the attribute {name} of a tensor, which a trace does not repeat"
            )
        super().__setattr__(name, value)

    def __len__(self) -> int:
        return len(self.tracer.values[self.node])

    def __iter__(self) -> Iterator[Any]:
        value = self.tracer.values.get(self.node)
        if isinstance(value, tuple | list):
            return iter([self[i] for i in range(len(value))])  # type: ignore[index]
        return super().__iter__()

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
    """Enters modules of a user, unless they have hooks: a hook needs the module's own call.

    It runs each operation on the example, so that Python code may decide by sizes.
    """

    proxy_buffer_attributes = True  # so that a change of a buffer is an operation of the trace

    def __init__(self, example: Sequence[Tensor]) -> None:
        super().__init__()
        self.entered: list[nn.Module] = []
        self.values: dict[fx.Node, Any] = {}
        self._example = iter([x.detach().clone() for x in example])
        self._runs = (
            False  # while an operation runs on real tensors: its inner calls are not traced
        )
        self._thread = threading.get_ident()
        self._modes, self._has_block = _modes(), False
        self._states, self._draws = random_states(), False

    def create_proxy(self, *args: Any, **kwargs: Any) -> fx.Proxy:
        proxy: fx.Proxy = super().create_proxy(*args, **kwargs)
        self._runs = True
        given = [self.values.get(node) for node in proxy.node.all_input_nodes]
        before = _versions(given)
        try:
            with torch.no_grad():
                self.values[proxy.node] = self._value(proxy.node)
            proxy.node.meta[WRITES] = _versions(given) != before
        finally:
            self._runs = False
            self._states = random_states()
        return proxy

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return next(self._example, node.args[0] if node.args else None)
        if node.op == "get_attr":
            return functools.reduce(getattr, str(node.target).split("."), self.root)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._value_before)
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _value_before(self, node: fx.Node) -> Any:
        return self.values[node] if node in self.values else self._value(node)  # a constant

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if self._runs or self._is_elsewhere():
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if self._runs or self._is_elsewhere():
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def _is_elsewhere(self) -> bool:
        """Returns True in other threads than the one that traces.

        While torch.fx traces, the calls and attributes of all modules of the process come here.
        """
        return threading.get_ident() != self._thread

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # trace.py replaces these modules after the trace.
        is_replaced = is_norm_with_activation(m) or is_drop_path(m)
        is_torchs = super().is_leaf_module(m, module_qualified_name)
        # An identity leaves no call in the trace, which would cut a region.
        is_leaf = is_replaced or is_altered(m) or (is_torchs and type(m) is not nn.Identity)
        if not is_leaf:
            self.entered.append(m)
        return is_leaf

    def trace(self, *args: Any, **kwargs: Any) -> fx.Graph:
        graph = super().trace(*args, **kwargs)
        # Not earlier: an error inside a torch.utils.checkpoint would leave its hooks active.
        if self._draws or random_states() != self._states:
            raise RuntimeError(
                "forward draws random numbers that do not come from a tensor of it, such as"
                " torch.randn(x.shape). A trace would repeat the same numbers. Use"
                " torch.randn_like(x)"
            )
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
        self._draws = self._draws or random_states() != self._states
        return super().create_node(*args, **kwargs)

    def create_arg(self, a: Any) -> Any:
        return a.node if isinstance(a, fx.Proxy) else super().create_arg(a)


def _versions(values: Any) -> list[int]:
    """Returns the numbers of changes of all tensors in these values."""
    return [each._version for each in tree_leaves(values) if isinstance(each, Tensor)]


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


def random_states() -> tuple[Any, ...]:
    """Returns the states of the random generators of PyTorch's CPU, of Python and of NumPy."""
    states: list[Any] = [torch.get_rng_state().numpy().tobytes(), random.getstate()]
    if (numpy := sys.modules.get("numpy")) is not None:
        states.append(pickle.dumps(numpy.random.get_state(legacy=False)))
    return tuple(states)


def _refuse_kept_tensors(
    tracer: _Tracer, copied: nn.Module, buffers: Mapping[tuple[nn.Module, str], Tensor]
) -> None:
    """Raises if forward has assigned a tensor to an attribute, which no later step would do.

    `self.count += 1` is allowed for a buffer: it changes the same tensor, and the trace shows it.
    """
    for path, module in copied.named_modules():
        own = {k: v for k, v in vars(module).items() if k not in OF_MODULES}
        for name, value in {**own, **module._buffers, **module._parameters}.items():
            kept = [each for each in tree_leaves(value) if isinstance(each, fx.Proxy)]
            buffer = buffers.get((module, name), tracer)
            if any(tracer.values.get(each.node) is not buffer for each in kept):
                raise RuntimeError(
                    f"forward assigns a tensor to {path + '.' if path else ''}{name}, which a trace"
                    " does not repeat"
                )


class TensorMeta(NamedTuple):
    """The sizes and the types of a tensor in the trace.

    A region may compute in f32 where autocast rounds to bf16.
    """

    shape: torch.Size
    dtype: torch.dtype  # float32 for a tensor in bf16 if the trace was made inside of autocast
    given: torch.dtype  # the type that the model gives it


def _meta_of(value: Any) -> Any:
    """Returns the sizes and the type of a tensor, or of each tensor of a tuple; else None."""
    if isinstance(value, tuple | list):
        return tuple(map(_meta_of, value))
    if not isinstance(value, Tensor):
        return None
    is_rounded = value.dtype is torch.bfloat16 and torch.is_autocast_enabled("cpu")
    return TensorMeta(value.shape, torch.float32 if is_rounded else value.dtype, value.dtype)


def run_and_trace(
    model: nn.Module, inputs: Sequence[Tensor]
) -> tuple[fx.GraphModule, list[nn.Module]]:
    """Returns the trace of a model, and the modules of it whose forward is a part of the trace.

    Tracing runs the model and may change buffers, so a copy is traced. The state of the random
    generators is restored. The nodes have the sizes of their tensors in `meta`, as after ShapeProp
    of torch.fx. Inside of torch.autocast, these are the tensors of calls inside of it.
    """
    copied = copy.deepcopy(model)
    buffers = {(module, name): value for module in copied.modules()
               for name, value in module.named_buffers(recurse=False)}  # fmt: skip
    tracer = _Tracer(inputs)
    with torch.random.fork_rng(devices=[x.device for x in inputs if x.is_cuda]):
        graph = tracer.trace(copied)
    _refuse_kept_tensors(tracer, copied, buffers)
    for node, value in tracer.values.items():
        if (meta := _meta_of(value)) is not None:
            node.meta["tensor_meta"] = meta
    names = {module: name for name, module in copied.named_modules()}
    targets = [str(n.target) for n in graph.nodes if n.op in ("call_module", "get_attr")]
    own = {}
    for target in targets:
        path = target.split(".")
        try:
            own[target] = functools.reduce(getattr, path, model)
        except AttributeError:  # a constant of the trace
            own[target] = functools.reduce(getattr, path, copied)
    return fx.GraphModule(own, graph), [model.get_submodule(names[m]) for m in tracer.entered]
