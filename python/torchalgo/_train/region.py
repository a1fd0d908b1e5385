# SPDX-License-Identifier: BSD-3-Clause
"""A region of a model: its graph of problems, and the module that runs its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from torchalgo import _C
from torchalgo._train.trace import Op, has_hooks, known_op


@dataclass(frozen=True)
class RegionGraph:
    """The forward pass of a region as a graph of problems."""

    graph: _C.Graph
    modules: list[nn.Module | None]  # of each node
    moments: list[tuple[int, nn.BatchNorm2d]]  # the nodes of moments, and their batch norms

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
    def __init__(self, part: fx.GraphModule) -> None:
        self.part = part
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
        sources = [
            s for each in node.args for s in (each if isinstance(each, list | tuple) else [each])
        ]
        inputs = [self.values[s] for s in sources if isinstance(s, fx.Node)]
        result, name = _sizes(node), self.name(node)
        image = _nchw(_sizes(node.all_input_nodes[0]))
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
            channels_text = "x".join(str(_sizes(s)[1]) for s in sources if isinstance(s, fx.Node))
            problem = f"concat_f32_n{n}c{channels_text}h{h}w{w}"
        elif op.kind == "conv":
            assert isinstance(module, nn.Conv2d)
            problem = _conv(module, image)
        elif op.kind in ("maxpool", "avgpool"):
            assert module is not None
            problem = _pool(op.kind, module, image)
        elif op.kind == "globalpool":
            problem = f"avgpool_f32_{image}_p1q1"
        else:
            problem = f"{op.kind}_f32_{image}"
        own = module if op.kind == "conv" else None
        self.values[node] = self.add(name, inputs, problem, result, own)

    def build(self) -> RegionGraph:
        modules = dict(self.part.named_modules())
        ends: list[str] = []
        for node in self.part.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self.value(f"{node.name}:input", _sizes(node))
                ends.append(f"input\t{self.values[node]}\tnchw")
            elif node.op == "output":
                results = node.args[0] if isinstance(node.args[0], list | tuple) else [node.args[0]]
                ends += [f"output\t{self.values[each]}" for each in results]
            else:
                op = known_op(node, modules)
                assert op is not None
                self.add_op(node, op)
        text = "\n".join(["torchalgo graph 1", *self.value_lines, *self.lines, *ends, ""])
        return RegionGraph(_C.parse_graph(text), self.modules, self.moments)


def region_graph(part: fx.GraphModule) -> RegionGraph:
    """Returns the problems of a region that `trace` has found."""
    return _Builder(part).build()


def _sizes(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape)


def _nchw(sizes: Sequence[int]) -> str:
    return "n{}c{}h{}w{}".format(*sizes)


def _real(number: float) -> str:
    """Returns the number as problems spell it: the shortest text, 1e-05 and 0.001."""
    return str(int(number)) if number == int(number) else repr(float(number))


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _conv(module: nn.Conv2d, image: str) -> str:
    r, s = module.kernel_size
    stride, pad, dilation = (_pair(v) for v in (module.stride, module.padding, module.dilation))
    bias = "" if module.bias is None else "+bias"
    return (
        f"fwd_f32_{image}_k{module.out_channels}r{r}s{s}_st{stride[0]}x{stride[1]}"
        f"_pad{pad[0]}x{pad[1]}_dil{dilation[0]}x{dilation[1]}_g{module.groups}{bias}"
    )


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
    _own: RegionGraph
    _native: _C.TrainingRegion
    others: int  # runs of the region as it was given
    plan_runs: int

    def __init__(self, part: fx.GraphModule, own: RegionGraph, native: _C.TrainingRegion) -> None:
        super().__init__()
        # The model owns its modules; here they are not registered again.
        self.__dict__.update(_part=part, _own=own, _native=native, others=0, plan_runs=0)
        self._shapes = [tuple(own.graph.values[i].sizes) for i in own.graph.inputs]
        self._leaves = [m for m in part.modules() if not isinstance(m, fx.GraphModule)]

    def forward(self, *inputs: Tensor) -> Any:
        if not self._fits(inputs):
            self.__dict__["others"] += 1
            return self._part(*inputs)
        self.__dict__["plan_runs"] += 1
        tensors, _ = self._own.parameters
        results = self._native.run(list(inputs), tensors, self._statistics())
        return results[0] if len(results) == 1 else tuple(results)

    def _fits(self, inputs: Sequence[Tensor]) -> bool:
        return (
            all(
                type(x) in (Tensor, nn.Parameter)
                and x.dtype is torch.float32
                and x.device.type == "cpu"
                and tuple(x.shape) == shape
                for x, shape in zip(inputs, self._shapes, strict=True)
            )
            and not torch.is_autocast_enabled("cpu")
            and all(norm.training for _, norm in self._own.moments)
            and not any(has_hooks(module) for module in self._leaves)
        )

    def _statistics(self) -> list[tuple[int, Tensor, Tensor, float]]:
        """Counts the batch, and returns the running statistics with the weight of this batch."""
        found = []
        for node, norm in self._own.moments:
            mean, var, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
            if not norm.track_running_stats or mean is None or var is None or batches is None:
                continue
            batches.add_(1)
            factor = 1.0 / float(batches) if norm.momentum is None else norm.momentum
            found.append((node, mean, var, factor))
        return found
