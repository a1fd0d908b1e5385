# SPDX-License-Identifier: BSD-3-Clause
"""Finds batch norms that cannot be folded into a convolution, although another order allows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torchalgo import _C
from torchalgo._lint.facts import BATCH_NORMS, CONVOLUTION, PRODUCTS, Call, OpCall, TensorFacts
from torchalgo._lint.findings import finding_of, is_worth_removing
from torchalgo._lint.report import Finding
from torchalgo._lint.what_if import Lab

# A scale and a shift per channel may be computed before these as well as behind them.
AVERAGES = ("aten.avg_pool2d", "aten._adaptive_avg_pool2d", "aten.mean",
            "aten.upsample_nearest2d", "aten.upsample_bilinear2d")  # fmt: skip
MAXIMA = ("aten.max_pool2d_with_indices",)  # this holds if no scale is negative

FIXES = {
    "before": "Put the batch norm directly behind the convolution {layer}, before {op}: the result"
    " is the same, and optimize folds it.",
    "after": "Fold the batch norm into the weights of {layer}, which alone reads it and does not"
    " pad.",
    "statistics": "Set track_running_stats=True and train the statistics: in eval mode this batch"
    " norm computes the statistics of each batch, so it cannot be folded.",
}
STATISTICS_KIND = "batch-norm-batch-statistics"
STATISTICS = 5  # the argument of native_batch_norm that asks for the statistics of the batch


def find_unfolded(lab: Lab, graph: _C.Graph | None) -> Iterator[Finding]:
    """Yields batch norms that are computed in each call, although they could be folded.

    Args:
        graph: what optimize plans. Batch norms that are not in it are folded. None: not known.
    """
    left = None if graph is None else _norms_of(graph)
    for op in lab.call.ops:
        if op.name not in BATCH_NORMS or op.inputs[0].is_constant:
            continue
        kind, fix = _fault(lab.call, op)
        if not kind or (left is not None and kind != STATISTICS_KIND and op.layer not in left):
            continue
        trial = lab.try_fix({op.index: _skip}, compare=False)
        if trial is not None and is_worth_removing(trial, op.outputs[0].bytes):
            yield finding_of(kind, [op], trial, op.outputs[0].bytes, fix)


def _norms_of(graph: _C.Graph) -> set[str]:
    return {node.name.partition("#")[0] for node in graph.nodes if "batch_norm" in node.kind}


def _skip(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Returns what a batch norm returns, with its input as the result."""
    empty = args[0].new_empty(0)
    count = len(func._schema.returns)
    return (args[0], *([empty] * (count - 1)))


def _fault(call: Call, norm: OpCall) -> tuple[str, str]:
    """Returns the kind of fault and its fix; two empty texts if there is none."""
    is_plain = norm.name == "aten.native_batch_norm"
    if is_plain and norm.arguments[STATISTICS] is True:
        return STATISTICS_KIND, FIXES["statistics"]
    maker = call.maker_of(norm.inputs[0])
    if maker is not None and maker.name == CONVOLUTION and _is_alone(call, maker, norm):
        return "", ""  # optimize folds it
    conv = _convolution_before(call, norm)
    if conv is not None and maker is not None:
        word = maker.name.removeprefix("aten.").removesuffix("_with_indices").lstrip("_")
        text = FIXES["before"].format(layer=conv.layer, op=word)
        return "batch-norm-not-folded", text
    reader = call.only_reader(norm)
    if reader is not None and _takes_a_shift(reader):
        return "batch-norm-not-folded", FIXES["after"].format(layer=reader.layer)
    return "", ""


def _is_alone(call: Call, maker: OpCall, reader: OpCall) -> bool:
    only = call.only_reader(maker)
    return only is not None and only.index == reader.index


def _convolution_before(call: Call, norm: OpCall) -> OpCall | None:
    """Returns the convolution into which the norm folds if it moves before poolings."""
    op, scales = norm, norm.arguments[1]
    is_positive = isinstance(scales, TensorFacts) and norm.layer in call.positive_scales
    for _ in range(4):
        before = call.maker_of(op.inputs[0]) if op.inputs else None
        if before is None or not _is_alone(call, before, op):
            return None
        if before.name == CONVOLUTION:
            return before if op is not norm else None
        is_exact = before.name in AVERAGES and not _pads(before)
        if not is_exact and not (before.name in MAXIMA and is_positive):
            return None
        op = before
    return None


def _pads(op: OpCall) -> bool:
    """Returns True for an average pooling with padding: the zeros would have to be shifted too."""
    padding = op.arguments[3] if op.name == "aten.avg_pool2d" and len(op.arguments) > 3 else ()
    return any(padding)


def _takes_a_shift(reader: OpCall) -> bool:
    """Returns True if a scale and a shift of the input go into the weights, also at the border."""
    if reader.name == CONVOLUTION and len(reader.arguments) > 6:
        has_weights = reader.inputs[1].is_constant
        return has_weights and not any(reader.arguments[4]) and reader.arguments[6] is False
    return reader.name in PRODUCTS[:2] and reader.inputs[-1].is_constant


def positive_scales(model: torch.nn.Module) -> set[str]:
    """Returns the layers of the model whose scales per channel are all positive."""
    return {
        name
        for name, module in model.named_modules()
        if isinstance(weight := getattr(module, "weight", None), torch.Tensor)
        and weight.dim() == 1
        and weight.is_floating_point()
        and bool((weight >= 0).all())
    }
