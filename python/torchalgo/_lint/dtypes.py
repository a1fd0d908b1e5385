# SPDX-License-Identifier: BSD-3-Clause
"""Finds float64 where float32 serves, and weights so small that they slow the processor down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from torchalgo._lint.facts import Call, OpCall
from torchalgo._lint.findings import by_line, finding_of, is_worth
from torchalgo._lint.observe import Arguments
from torchalgo._lint.report import Finding
from torchalgo._lint.what_if import LEAST_BYTES, Fix, Lab

FIXES = {
    "float64-weights": "Convert these weights with .float(): float64 takes twice the bytes and"
    " time of float32.",
    "float64-input": "Pass the input as float32: the call computes with it in float64.",
    "float64-intermediate": "Make this tensor with dtype=torch.float32, or remove the conversion to"
    " float64.",
    "denormal-weights": "Set weights below 1.2e-38 to zero: the processor computes with such"
    " numbers slowly.",
}
F64 = torch.float64


def find_float64(lab: Lab) -> Iterator[Finding]:
    """Yields what makes a part of the call compute in float64.

    The bytes are those that float32 would not take.
    """
    call = lab.call
    origins = _origins(call)
    if sum(size for _, _, size in origins.values()) < LEAST_BYTES:
        return
    trial = lab.try_fix({}, fix=_in_float32(lab), compare=False)
    if trial is None or trial.is_slower:
        return
    shown = trial if len(origins) == 1 else None  # the gain is that of all together
    for kind in ("float64-weights", "float64-input", "float64-intermediate"):
        ops = [op for of, op, _ in origins.values() if of == kind]
        sizes = {op.index: size for of, op, size in origins.values() if of == kind}
        for group in [ops] if kind == "float64-weights" and ops else by_line(ops):
            size = sum(sizes[op.index] for op in group)
            if size >= LEAST_BYTES:
                yield finding_of(kind, group, shown, size, FIXES[kind])


def _origins(call: Call) -> dict[int, tuple[str, OpCall, int]]:
    """Returns the operations at which float64 begins: kind, operation, and bytes that it costs."""
    origin_of: dict[tuple[int, int], int] = {}  # the first operation, by storage and version
    found: dict[int, tuple[str, OpCall, int]] = {}
    inputs = {t.storage for t in call.inputs if t.dtype == F64}
    for op in call.ops:
        wide = [t for t in op.inputs if t.dtype == F64 and t.shape]
        made = [t for t in op.outputs if t.dtype == F64 and t.shape]
        known = [origin_of[key] for t in wide if (key := (t.storage, t.version)) in origin_of]
        weights = [t for t in wide if t.is_weight]
        origin = known[0] if known else op.index
        if op.is_view and not known:
            continue
        if not known and not weights and wide and wide[0].storage in inputs:
            found[origin] = ("float64-input", op, sum(t.bytes for t in wide) // 2)
        elif not known and weights:
            found[origin] = ("float64-weights", op, sum(t.bytes for t in weights) // 2)
        elif not known and made and not wide:
            found[origin] = ("float64-intermediate", op, 0)
        elif not known:
            continue
        if weights and known and found[origin][0] != "float64-input":
            found[op.index] = ("float64-weights", op, sum(t.bytes for t in weights) // 2)
        kind, first, size = found[origin]
        found[origin] = (kind, first, size + (0 if op.is_view else sum(t.bytes for t in made) // 2))
        for t in made:
            origin_of[t.storage, t.version] = origin
    return found


def _in_float32(lab: Lab) -> Fix:
    """Returns a fix that computes in float32 wherever the call computes in float64."""
    kept = [*lab.model.parameters(), *lab.model.buffers()]
    weights = [(weight, weight.detach().float()) for weight in kept if weight.dtype == F64]

    def narrow(value: Any) -> Any:
        if value is F64:
            return torch.float32
        is_wide = isinstance(value, torch.Tensor) and value.dtype == F64
        return value.float() if is_wide else value

    def rewrite(
        func: Any, args: Arguments, kwargs: Mapping[str, Any]
    ) -> tuple[Arguments, Mapping[str, Any]]:
        return tree_map(narrow, args), tree_map(narrow, dict(kwargs))

    return Fix(weights, lambda inputs: tree_map(narrow, inputs), rewrite)


# ---- denormal weights ----------------------------------------------------------------------------


def find_denormals(lab: Lab) -> Iterator[Finding]:
    """Yields weights with denormal numbers, if the call is faster with zeros in their place.

    Not every processor is slower with them, so nothing is reported without this measurement.
    """
    pairs, layers, size = [], [], 0
    for name, weight in lab.model.named_parameters():
        if not weight.is_floating_point() or weight.layout != torch.strided:
            continue
        data = weight.detach()
        tiny = (data != 0) & (data.abs() < torch.finfo(data.dtype).tiny)
        if bool(tiny.any()):
            pairs.append((weight, torch.empty_like(data).copy_(data.masked_fill(tiny, 0.0))))
            layers.append(name.rpartition(".")[0])
            size += data.numel() * data.element_size()
    ops = [op for op in lab.call.ops if op.layer in layers]
    if not pairs or not ops:
        return
    trial = lab.try_fix({}, fix=Fix(pairs))
    if trial is not None and is_worth(trial, needs_time=True):
        yield finding_of("denormal-weights", ops, trial, size, FIXES["denormal-weights"])
