# SPDX-License-Identifier: BSD-3-Clause
"""A region of a model: its graph of problems, and the module that runs its plan."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.utils import _pair

from torchalgo import _C
from torchalgo._capture.settings import cpu_autocasts_to_bf16
from torchalgo._ir.problems import spell_convolution
from torchalgo._run.model_watch import LAYER_SETTINGS
from torchalgo._train.known_ops import (
    Op,
    is_altered,
    known_op,
    padding_of,
)
from torchalgo._train.trace import MAY_CHANGE


@dataclass(frozen=True)
class RegionGraph:
    """The forward pass of a region as a graph of problems."""

    graph: _C.Graph
    modules: list[nn.Module | None]  # of each node
    moments: list[tuple[int, nn.BatchNorm2d]]  # the nodes of moments, and their batch norms
    results: list[int]  # for each result of the region, its position among the graph's outputs
    # For each result: may the model or its caller change it in place later?
    may_change: list[bool]
    # The types of the inputs and of the results in the model: those of autocast, where it is on.
    input_types: list[torch.dtype]
    result_types: list[torch.dtype]

    @property
    def parameters(self) -> tuple[list[Tensor], list[tuple[int, int]]]:
        """Returns the parameters now, and the places of the weights and the bias of each node."""
        tensors: list[Tensor] = []
        known: dict[int, int] = {}

        def place(tensor: Tensor | None) -> int:
            if tensor is None:
                return -1
            if id(tensor) not in known:
                known[id(tensor)] = len(tensors)
                tensors.append(tensor)
            return known[id(tensor)]

        places = [
            (-1, -1) if module is None else (place(module.weight), place(module.bias))  # type: ignore[arg-type]
            for module in self.modules
        ]
        return tensors, places


class _Builder:
    def __init__(self, part: fx.GraphModule, conv_dtype: str) -> None:
        self.part, self.conv_dtype = part, conv_dtype
        self.names: dict[str, int] = {}
        self.lines: list[str] = []
        self.values: dict[fx.Node, int] = {}
        self.value_lines: list[str] = []
        self.modules: list[nn.Module | None] = []
        self.moments: list[tuple[int, nn.BatchNorm2d]] = []

    def value(self, name: str, sizes: Sequence[int]) -> int:
        self.value_lines.append(f"value\t{name}\t{','.join(map(str, sizes))}\tf32")
        return len(self.value_lines) - 1

    def name(self, node: fx.Node) -> str:
        """Returns the name of the layer in the model; a repeated call gets "#1"."""
        name = str(node.meta.get("layer", node.name))
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        return f"{name}#{count}" if count else name

    def add(
        self,
        name: str,
        inputs: Sequence[int],
        problem: str,
        sizes: Sequence[int],
        module: nn.Module | None = None,
    ) -> int:
        result = self.value(name, sizes)
        reads = ",".join(map(str, inputs))
        kind = problem.partition("_")[0]
        self.lines.append(f"node\t{name}\t{kind}\t{reads}\t{result}\t{problem}\t")
        self.modules.append(module)
        return result

    def add_op(self, node: fx.Node, op: Op) -> None:
        result, name = _sizes(node), self.name(node)
        arguments = [
            s for each in node.args for s in (each if isinstance(each, list | tuple) else [each])
        ]
        sources = [s for s in arguments if isinstance(s, fx.Node)]
        if op.kind in ("add", "mul"):  # an image comes before the numbers of its channels
            sources.sort(key=lambda source: _sizes(source) != result)
        inputs = [self.values[s] for s in sources]
        image = _nchw(_sizes(sources[0]))
        module = op.module
        if op.kind == "batch_norm":
            assert isinstance(module, nn.BatchNorm2d)
            self.moments.append((len(self.lines), module))
            channels = (2, result[1], 1, 1)
            moments = self.add(f"{name}.moments", inputs, f"moments_f32_{image}", channels)
            problem = f"normalize_f32_{image}_eps{_real(module.eps)}"
            self.values[node] = self.add(name, [*inputs, moments], problem, result, module)
            return
        if op.kind == "concat":
            n, _, h, w = result
            channels_text = "x".join(str(_sizes(s)[1]) for s in sources)
            problem = f"concat_f32_n{n}c{channels_text}h{h}w{w}"
        elif op.kind == "conv":
            assert isinstance(module, nn.Conv2d)
            pad, shape = padding_of(module), module.weight.shape
            assert pad is not None
            geometry = module.stride, pad, module.dilation
            problem = spell_convolution(
                "fwd", self.conv_dtype, _sizes(sources[0]), shape, geometry, module.groups
            )
            problem += "" if module.bias is None else "+bias"
        elif op.kind in ("maxpool", "avgpool"):
            assert module is not None
            problem = _pool(op.kind, module, image)
        elif op.kind == "globalpool":
            problem = f"avgpool_f32_{image}_p1q1"
        elif op.kind == "slice":
            begin, k = op.numbers
            problem = f"slice_f32_{image}_k{k:.0f}from{begin:.0f}"
        elif op.kind == "shuffle":
            problem = f"shuffle_f32_{image}_g{op.numbers[0]:.0f}"
        elif op.kind in ("add", "mul"):
            is_channelwise = _sizes(sources[-1]) != result
            problem = f"{op.kind}_f32_{_nchw(result)}" + "_channelwise" * is_channelwise
        else:
            problem = f"{op.kind}{'x'.join(map(_real, op.numbers))}_f32_{image}"
        own = module if op.kind == "conv" else None
        self.values[node] = self.add(name, inputs, problem, result, own)

    def build(self) -> RegionGraph:
        modules = dict(self.part.named_modules(remove_duplicate=False))
        *nodes, end = self.part.graph.nodes
        inputs = [node for node in nodes if node.op == "placeholder"]
        for node in inputs:
            self.values[node] = self.value(f"{node.name}:input", _sizes(node))
        for node in nodes[len(inputs) :]:
            op = known_op(node, modules)
            assert op is not None
            self.add_op(node, op)
        results: Any = end.args[0] if isinstance(end.args[0], list | tuple) else end.args
        outputs = [self.values[each] for each in results]
        in_order = list(dict.fromkeys(outputs))  # a value may be returned twice
        ends = [f"input\t{self.values[node]}\tnchw" for node in inputs]
        ends += [f"output\t{each}" for each in in_order]
        may_change = [bool(each.meta[MAY_CHANGE]) for each in results]
        types = [[each.meta["tensor_meta"].given for each in group] for group in (inputs, results)]
        text = "\n".join(["torchalgo graph 1", *self.value_lines, *self.lines, *ends, ""])
        positions = [in_order.index(each) for each in outputs]
        graph = _C.parse_graph(text)
        return RegionGraph(graph, self.modules, self.moments, positions, may_change, *types)


def region_graph(part: fx.GraphModule, conv_dtype: str = "f32") -> RegionGraph:
    """Returns the problems of a region that `trace` has found.

    Args:
        conv_dtype: of convolutions: "f32", or "tf32" on a GPU. Tensors of the graph are f32.
    """
    return _Builder(part, conv_dtype).build()


def _sizes(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape)


def _nchw(sizes: Sequence[int]) -> str:
    return "n{}c{}h{}w{}".format(*sizes)


def _real(number: float) -> str:
    """Returns the number as problems spell it: the shortest text, 1e-05 and 0.001."""
    return str(int(number)) if number == int(number) else repr(float(number))


def _pool(kind: str, module: Any, image: str) -> str:
    window, pad = _pair(module.kernel_size), _pair(module.padding)
    stride = _pair(module.stride)
    text = f"{kind}_f32_{image}_r{window[0]}s{window[1]}_st{stride[0]}x{stride[1]}"
    text += f"_pad{pad[0]}x{pad[1]}"
    if kind == "maxpool":
        dilation = _pair(module.dilation)
        text += f"_dil{dilation[0]}x{dilation[1]}"
    text += "_ceil" if module.ceil_mode else ""
    return text + ("_exclpad" if kind == "avgpool" and not module.count_include_pad else "")


class PlannedRegion(nn.Module):
    """Runs the plan of a region, or the region as it was given where the plan does not fit."""

    _part: fx.GraphModule

    def __init__(
        self, part: fx.GraphModule, own: RegionGraph, wanted: Sequence[int],
        native: _C.TrainingRegion, device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__()
        # The model owns its modules; here they are not registered again.
        self.__dict__["_part"] = part
        self._own, self._native, self._device = own, native, device
        self.planned_runs = 0
        self.original_runs = Counter[str]()  # runs of the region as it was given, by reason
        self.why = ""  # the reason why the last call did not run the plan; empty if it did
        graph = own.graph
        self._shapes = [tuple(graph.values[i].sizes) for i in graph.inputs]
        self._wanted = [i in wanted for i in graph.inputs]
        # PyTorch may keep other tensors for the gradients than a plan does. A change of one that it
        # does not keep is legal, so it must not reach the tensors that the plan keeps. A result in
        # another type is a copy in any case.
        kept = {name for name, layout, _ in native.saved if layout == "nchw"}
        self._copied = [
            may_change and graph.values[graph.outputs[position]].name in kept
            and type_ is torch.float32
            for position, may_change, type_ in zip(
                own.results, own.may_change, own.result_types, strict=True
            )
        ]  # fmt: skip
        self._leaves = [
            (str(node.meta.get("layer", node.target)), module)
            for node in part.graph.nodes
            if node.op == "call_module"
            for module in part.get_submodule(str(node.target)).modules()
        ]
        tensors, self._places = own.parameters
        self._parameter_shapes = [tensor.shape for tensor in tensors]
        self._types = [*own.input_types, *[torch.float32] * len(tensors)]
        # The attributes of modules that the plan has as numbers.
        self._settings = [
            (layer, vars(module), name, vars(module)[name])
            for layer, module in self._leaves
            for name in LAYER_SETTINGS
            if name in vars(module)
        ]

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedRegion:
        own = self._own
        modules, moments = copy.deepcopy((own.modules, own.moments), memo)
        part = copy.deepcopy(self._part, memo)
        copied = dataclasses.replace(own, modules=modules, moments=moments)
        wanted = [
            i for i, is_wanted in zip(own.graph.inputs, self._wanted, strict=True) if is_wanted
        ]
        return PlannedRegion(part, copied, wanted, self._native, self._device)

    def forward(self, *inputs: Tensor) -> Any:
        tensors, places = self._own.parameters
        self.__dict__["why"] = self._why_not(inputs, tensors, places)
        if self.why:
            self.original_runs[self.why] += 1
            return self._part(*inputs)
        self.__dict__["planned_runs"] += 1
        found = self._native.run([x.float() for x in inputs], tensors, self._statistics())
        results = [found[position].to(type_) for position, type_ in
                   zip(self._own.results, self._own.result_types, strict=True)]  # fmt: skip
        recorded = next((x.grad_fn for x in found if x.grad_fn is not None), None)
        if recorded is not None:
            recorded.register_prehook(_refuse_second_derivatives)
            results = [x.clone() if is_copied else x
                       for x, is_copied in zip(results, self._copied, strict=True)]  # fmt: skip
        return results[0] if len(results) == 1 else tuple(results)

    def _why_not(
        self,
        inputs: Sequence[Tensor],
        tensors: Sequence[Tensor],
        places: Sequence[tuple[int, int]],
    ) -> str:
        """Returns why the plan cannot run; empty if it can."""
        shapes = [*self._shapes, *self._parameter_shapes]
        if len(tensors) != len(self._parameter_shapes) or places != self._places:
            return "layers share other weights than when the plan was made"
        if not all(map(self._is_plain, (*inputs, *tensors), shapes, self._types)):
            return "a tensor or a weight has another size, type or device than in the plan"
        if torch.is_grad_enabled() and any(
            x.requires_grad and not is_wanted
            for x, is_wanted in zip(inputs, self._wanted, strict=True)
        ):
            return "a tensor requires a gradient that the plan does not compute"
        for layer, module in self._leaves:
            if is_altered(module):
                return f"{layer!r} has a hook, or a forward of its own"
            if isinstance(module, nn.BatchNorm2d) and not module.training:
                return f"{layer!r} is in eval mode"
        for layer, own, name, value in self._settings:
            if own.get(name) != value:
                return f"{name} of {layer!r} was changed"
        return ""

    def _is_plain(self, tensor: Tensor, shape: Sequence[int], type_: torch.dtype) -> bool:
        return (
            type(tensor) in (Tensor, nn.Parameter)
            and tensor.dtype is type_
            and tensor.device == self._device
            and tensor.layout is torch.strided
            and tuple(tensor.shape) == tuple(shape)
        )

    def _statistics(self) -> list[tuple[int, Tensor, Tensor, float]]:
        """Counts the batch, and returns the running statistics with the weight of this batch."""
        found = []
        for node, norm in self._own.moments:
            mean, var, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
            if not norm.track_running_stats or mean is None or var is None:
                continue
            factor = 0.0 if norm.momentum is None else norm.momentum
            if batches is not None:
                batches.add_(1)
                factor = 1.0 / float(batches) if norm.momentum is None else norm.momentum
            found.append((node, mean, var, factor))
        return found


def _refuse_second_derivatives(_: Any) -> None:
    """Raises torchalgo.Error where PyTorch would make a RuntimeError of it."""
    if torch.is_grad_enabled():
        raise _C.Error(
            "TA2702 training: a gradient of a gradient was asked for (create_graph=True); a model"
            " of optimize_training has first derivatives only. Use the model as it was given"
            " for this loss"
        )


def why_transformed(in_autocast: bool) -> str:
    """Returns what looks at each operation of PyTorch, or changes what it does; empty if none.

    Args:
        in_autocast: True if the plan is for calls inside of torch.autocast in bf16 on the CPU.
    """
    if in_autocast:
        if not cpu_autocasts_to_bf16():
            return "torch.autocast in bf16 is off, and it was on when the plan was made"
    elif torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return (
            "torch.autocast is on, and it was off when the plan was made: call optimize_training"
            " inside of it too"
        )
    if torch.nn.modules.module._has_any_global_hook():
        return "a hook of all modules is registered"
    is_transformed = (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )
    return "a mode, a transform or a trace looks at each operation" if is_transformed else ""
