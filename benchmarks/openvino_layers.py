# SPDX-License-Identifier: BSD-3-Clause
"""OpenVINO's time for one operation, without what converts its inputs and its result.

A model of nothing but that operation is compiled with performance counters. What they say of the
nodes that compute is its time; reorders between layouts, which a network pays at few places, are
left out. A node that OpenVINO removes or does in place, as a concatenation, takes 0.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from engines import openvino_config
from torchalgo import _C

CONVOLUTION = re.compile(
    r"fwd_f32_n\d+c\d+h\d+w\d+_k\d+r\d+s\d+"
    r"_st(\d+)x(\d+)_pad(\d+)x(\d+)(?:x(\d+)x(\d+))?_dil(\d+)x(\d+)_g(\d+)$"
)
POOL = re.compile(
    r"(max|avg)pool_f32_n\d+c\d+h\d+w\d+_r(\d+)s(\d+)_st(\d+)x(\d+)_pad(\d+)x(\d+)"
    r"(?:_dil(\d+)x(\d+))?(_ceil)?(_exclpad)?$"
)
GLOBAL_AVERAGE = re.compile(r"avgpool_f32_n\d+c\d+h\d+w\d+_p1q1$")
BINARY = {"add": "add", "mul": "multiply", "sub": "subtract"}  # OpenVINO's names
NO_WORK = ("Reorder", "Parameter", "Result", "Input", "Output", "Constant")


class NotBuiltError(Exception):
    """Why there is no model of an operation."""


@dataclass
class Layer:
    """An operation as a model that can be compiled again and again."""

    model: Any
    inputs: list[np.ndarray]  # what `given` is written from, just before each run
    given: list[np.ndarray] = field(default_factory=list)
    kernel: str = ""  # what OpenVINO ran, known after the first run


@dataclass(frozen=True)
class Times:
    """One sample of each, us."""

    cold: float
    warm: float


def build(problem: str, seed: int = 0) -> Layer:
    """The operation on random data.

    Raises: NotBuiltError if this file does not know it, or OpenVINO gives it another size.
    """
    import openvino as ov
    import openvino.opset13 as ops

    rng = np.random.default_rng(seed)
    input_sizes, result = _C.tensor_sizes(problem)
    bare, *epilogue = problem.split("+")
    shapes = [*input_sizes, *([result] if "add" in epilogue else [])]
    parameters = [ops.parameter(shape, ov.Type.f32) for shape in shapes]
    node = _operation(ops, bare, parameters[: len(input_sizes)], problem, rng)
    if "bias" in epilogue:
        bias = rng.standard_normal([1, result[1], *[1] * (len(result) - 2)], np.float32)
        node = ops.add(node, ops.constant(bias))
    if "add" in epilogue:
        node = ops.add(node, parameters[-1])
    for word in epilogue:
        if word not in ("bias", "add"):
            node = _activation(ops, word, node)
    model = ov.Model([node.output(0)], parameters)
    if list(model.output(0).shape) != list(result):
        raise NotBuiltError(
            f"OpenVINO gives {list(model.output(0).shape)}, expected {list(result)}"
        )
    inputs = [rng.standard_normal(shape, np.float32) for shape in shapes]
    return Layer(model, inputs, [array.copy() for array in inputs])


def time_once(layer: Layer, cold_bytes: int) -> Times:
    """Compiles the layer anew and times one run with its weights as far away as in a network whose
    weights take `cold_bytes`, then one with its weights where that run left them.

    Anew, since a counter is the mean of all runs so far, cut to whole us: of three runs, each is
    known to about 1 us.
    """
    import openvino as ov

    config = {**openvino_config(), "PERF_COUNT": True}
    request = ov.Core().compile_model(layer.model, "CPU", config).create_infer_request()
    totals = [0.0]
    for swept in (0, swept_bytes(cold_bytes), 0):
        _sweep(swept)
        for given, values in zip(layer.given, layer.inputs, strict=True):
            np.copyto(given, values)
        request.infer(layer.given, share_inputs=True)
        nodes = [node for node in request.profiling_info if _computes(node)]
        mean = sum(node.real_time.total_seconds() * 1e6 for node in nodes)
        # Each node's total lies between its mean times the runs and that many us more.
        runs = len(totals)
        totals.append(runs * mean + (runs - 1) / 2 * len(nodes))
    layer.kernel = ", ".join(f"{n.node_type} {n.exec_type}" for n in nodes) or "in place"
    # Each run was cut to whole us as well.
    cut = len(nodes) / 2
    cold, warm = (max(0.0, b - a + cut) for a, b in itertools.pairwise(totals[1:]))
    return Times(cold, warm)


def swept_bytes(cold_bytes: int) -> int:
    """How much other data to read before a run, as csrc/profiler/warm_bench.cpp has it for weights
    that it cannot flush."""
    where = _C.weights_in(cold_bytes, _C.cpu_device())
    if where == "l2":
        return 0
    if where == "past l2":
        return 2 * torch.get_num_threads() * int(_C.cpu_device().l2_bytes)
    return 2 * int(_C.LARGE_CACHE_BYTES)


_swept: dict[int, torch.Tensor] = {}


def _sweep(count: int) -> None:
    if count:
        if count not in _swept:
            _swept[count] = torch.ones(count // 4)
        _swept[count].sum()


def _computes(node: Any) -> bool:
    is_run = str(node.status).endswith("EXECUTED")
    return is_run and node.node_type not in NO_WORK


def _operation(
    ops: Any, bare: str, inputs: Sequence[Any], problem: str, rng: np.random.Generator
) -> Any:
    src = inputs[0]
    word = bare.partition("_")[0]
    if word == "concat":
        joined = ops.concat(list(inputs), 1)
        _, shuffled, groups = bare.partition("_shuffle")
        return ops.shuffle_channels(joined, 1, int(groups)) if shuffled else joined
    if word == "shuffle":
        return ops.shuffle_channels(src, 1, int(bare.rpartition("_g")[2]))
    if word == "slice":
        count, begin = map(int, bare.rpartition("_k")[2].split("from"))
        bounds = (ops.constant([bound]) for bound in (begin, begin + count, 1, 1))
        return ops.slice(src, *bounds)
    if word in BINARY:
        return getattr(ops, BINARY[word])(*inputs)
    if word == "groupnorm":
        groups, epsilon = bare.rpartition("_g")[2].split("_eps")
        ones = np.ones(_C.weight_sizes(problem), np.float32)
        scale, shift = ops.constant(ones), ops.constant(np.zeros_like(ones))
        return ops.group_normalization(src, scale, shift, int(groups), float(epsilon))
    if word == "linear":
        weights = rng.standard_normal(_C.weight_sizes(problem), np.float32)
        return ops.matmul(src, ops.constant(weights), False, True)
    if GLOBAL_AVERAGE.match(bare):
        return ops.reduce_mean(src, ops.constant(np.array([2, 3])), True)
    if found := CONVOLUTION.match(bare):
        return _convolution(ops, src, problem, found, rng)
    if found := POOL.match(bare):
        return _pool(ops, src, found)
    return _activation(ops, word, src)


def _convolution(
    ops: Any, src: Any, problem: str, found: re.Match[str], rng: np.random.Generator
) -> Any:
    def pair(first: int) -> list[int]:
        return [int(found[first]), int(found[first + 1])]

    stride, before, dilation, groups = pair(1), pair(3), pair(7), int(found[9])
    after = pair(5) if found[5] else before  # zeros
    k, c, r, s = _C.weight_sizes(problem)
    sizes = [k, c, r, s] if groups == 1 else [groups, k // groups, c, r, s]
    # Sums of many: about as large as the inputs, so that no result is denormal or infinite.
    weights = rng.standard_normal(sizes, np.float32) / np.float32((c * r * s) ** 0.5)
    convolve = ops.convolution if groups == 1 else ops.group_convolution
    return convolve(src, ops.constant(weights), stride, before, after, dilation)


def _pool(ops: Any, src: Any, found: re.Match[str]) -> Any:
    kind, *words, ceil, excluded = found.groups()
    r, s, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w = (int(w or 1) for w in words)
    stride, pad, window = [stride_h, stride_w], [pad_h, pad_w], [r, s]
    rounding = "ceil" if ceil else "floor"
    if kind == "max":
        dilation = [dilation_h, dilation_w]
        return ops.max_pool(src, stride, dilation, pad, pad, window, rounding)
    return ops.avg_pool(src, stride, pad, pad, window, excluded is not None, rounding)


def _activation(ops: Any, word: str, src: Any) -> Any:
    makers = {
        "relu": ops.relu,
        "relu6": lambda x: ops.clamp(x, 0.0, 6.0),
        "hardswish": ops.hswish,
        "hardsigmoid": ops.hsigmoid,
        "sigmoid": ops.sigmoid,
        "silu": ops.swish,
    }
    if word not in makers:
        raise NotBuiltError(f"{word} is not built for OpenVINO")
    return makers[word](src)
