# SPDX-License-Identifier: BSD-3-Clause
"""Estimates how much the outputs of a model change if a node's result or its weights do."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torchalgo import _C
from torchalgo._base.overlap import quiet_jit
from torchalgo._capture.freeze import tensors_in
from torchalgo._ir.names import is_linear
from torchalgo._ir.overrides import is_convolution

# The estimate of a square is a mean over this many random vectors. For outputs of ten independent
# parts its relative deviation is sqrt(2 / (10 * 8)), so that of a sensitivity is 8 %.
DRAWS = 8
SENSITIVITY_SHARE = 0.05  # of a call's time: the most for random vectors


class Sensitivity(NamedTuple):
    """The relative error of the outputs per relative error of each element.

    A result's elements have independent errors. A weight's error is the same for all pixels, so it
    does not average out behind them.
    """

    result: float = 1.0
    weights: float | None = None  # None: the node has none, or they are not known


def sensitivities_of(
    imported: _C.Imported, inputs: Sequence[Any], limit_s: float = math.inf, seed: int = 0
) -> list[Sensitivity]:
    """Returns the sensitivity of each node of the graph, for these inputs.

    After `limit_s` seconds no further random vector is drawn. The first one always is.

    Each element of a result or of weights v gets a random error of its own in proportion to its
    size, as rounding makes it. The outputs y then change by J e, where J is the derivative of y by
    v. The expectation of |J e|^2 / |y|^2 is s^2 = sum_i (|J_i| v_i)^2 / |y|^2, where J_i are the
    columns of J. For a random vector z of independent deviations of 1, (J^T z)_i^2 has the
    expectation |J_i|^2 (Hutchinson 1990). So a few backward passes give the sensitivities of all
    nodes together. Several outputs count as one whose parts have the norm 1.

    A result that has no derivative, or is not a float, gets 1.
    """
    found = [Sensitivity()] * len(imported.graph.nodes)
    try:
        run = _run(imported, inputs)
    except RuntimeError:  # an operation without a derivative
        return found
    norms = [float(y.detach().norm()) for y in run.outputs]
    parts = [(y, norm) for y, norm in zip(run.outputs, norms, strict=True) if norm > 0]
    values = [*run.results.values(), *run.weights.values()]
    if not parts or not values:
        return found
    generator = torch.Generator(parts[0][0].device).manual_seed(seed)
    squares = [0.0] * len(values)
    began, draws = time.monotonic(), 0
    while draws < DRAWS and (draws == 0 or time.monotonic() - began < limit_s):
        draws += 1
        drawn = [
            torch.randn(y.shape, generator=generator, device=y.device, dtype=y.dtype) / norm
            for y, norm in parts
        ]
        gradients = torch.autograd.grad(
            [y for y, _ in parts], values, drawn, retain_graph=True, allow_unused=True
        )
        for i, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
            if gradient is not None:
                squares[i] += float((gradient * value.detach()).square().sum())
    sizes = [math.sqrt(square / draws) for square in squares]
    for node, size in zip(run.results, sizes, strict=False):
        found[node] = found[node]._replace(result=size)
    for node, size in zip(run.weights, sizes[len(run.results) :], strict=True):
        found[node] = found[node]._replace(weights=size)
    return found


class _Run(NamedTuple):
    """Tensors of one run that have derivatives: by node, and the outputs."""

    results: dict[int, torch.Tensor]
    weights: dict[int, torch.Tensor]
    outputs: list[torch.Tensor]


def _run(imported: _C.Imported, inputs: Sequence[Any]) -> _Run:
    own = imported.module._get_method("forward").graph
    graph = own.copy()  # its values have other names
    nodes = {
        value.debugName(): after
        for before, after in zip(own.nodes(), graph.nodes(), strict=True)
        for value in before.outputs()
    }
    names = zip(imported.graph.nodes, imported.result_names, strict=True)
    planned = {n: nodes[name] for n, (node, name) in enumerate(names) if node.problem is not None}
    count = len(list(graph.outputs()))
    weights: dict[int, torch.Tensor] = {}
    for n, node in planned.items():
        graph.registerOutput(node.outputsAt(0))
        constant = node.inputsAt(1).node() if _has_weights(imported.graph.nodes[n]) else None
        if constant is not None and constant.kind() == "prim::Constant":
            weights[n] = constant.t("value").detach().requires_grad_()
            constant.output().replaceAllUsesWith(graph.addInput())
    graph.makeMultiOutputIntoTuple()
    given = [
        x.detach().clone().requires_grad_(x.is_floating_point()) for x in tensors_in(tuple(inputs))
    ]
    module = torch.jit._recursive.wrap_cpp_module(imported.module)
    with quiet_jit(), torch.enable_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
        function = torch._C._create_function_from_graph("forward", graph)
        found = function(module, *given, *weights.values())
    results = zip(planned, found[count:], strict=True)
    outputs = [y for y in tensors_in(found[:count]) if y.requires_grad]
    return _Run({n: v for n, v in results if v.requires_grad}, weights, outputs)


def _has_weights(node: _C.Node) -> bool:
    return is_convolution(node) or is_linear(node.problem or "")
