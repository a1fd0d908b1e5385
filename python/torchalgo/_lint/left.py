# SPDX-License-Identifier: BSD-3-Clause
"""Lists the operations that torchalgo leaves to PyTorch, with the time that each takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torchalgo import _C
from torchalgo._base.error_code import without_code
from torchalgo._capture.freeze import device_of, first_lines, tensors_in
from torchalgo._lint.facts import Call, OpCall
from torchalgo._lint.report import LeftOp, source_text
from torchalgo._lint.source import SourceLine, is_user_file
from torchalgo._plan.find import import_model, native_device
from torchalgo._plan.preparation import best_capture

LEAST_SHARE = 0.01  # of the call; operations that take less are not listed
_CALL = re.compile(r"(.+)\((\d+)\): (.+)")


def graph_of(model: nn.Module, args: tuple[Any, ...]) -> tuple[_C.Imported | None, str]:
    """Returns the graph that optimize would plan, or None and the reason why there is none."""
    is_tensors = all(isinstance(each, torch.Tensor) for each in args)
    if not is_tensors or not tensors_in(args):
        return None, "only calls with tensors as positional arguments are checked for it"
    try:
        capture = best_capture(model, args)
        return import_model(native_device(device_of(model, args)), capture.frozen, args), ""
    except Exception as problem:
        return None, without_code(first_lines(problem))


def find_left(call: Call, imported: _C.Imported) -> tuple[LeftOp, ...]:
    """Returns the operations that have no problem, the slowest first.

    The times are those of the operations of the same name that the same line runs.
    """
    found: dict[Any, LeftOp] = {}
    for i, node in enumerate(imported.graph.nodes):
        if node.problem is not None or node.reads_shape_only:
            continue
        line = _line(imported.source_calls(i))
        key = (node.kind, line or node.name)
        us = sum(op.us for op in call.ops if _is_same(op, node.kind, line, node.name))
        if key not in found and us >= LEAST_SHARE * call.us:
            found[key] = LeftOp(node.name, node.kind, source_text(line), round(us, 1), node.note)
    return tuple(sorted(found.values(), key=lambda op: -op.us))


def _line(calls: Sequence[str]) -> SourceLine | None:
    """Returns the innermost line of the user's code."""
    for text in calls:
        match = _CALL.fullmatch(text)
        if match is not None and is_user_file(match[1]):
            return SourceLine(match[1], int(match[2]), match[3])
    return None


def _is_same(op: OpCall, kind: str, line: SourceLine | None, layer: str) -> bool:
    if line is None:
        is_here = op.line is None and layer.startswith(op.layer)
    else:
        is_here = op.line is not None and (op.line.file, op.line.line) == (line.file, line.line)
    return is_here and _stem(op.name) == _stem(kind)


def _stem(name: str) -> str:
    """Returns the name of an operation as a user writes it, "softmax" for "aten._softmax"."""
    for prefix in ("aten::", "aten.", "_", "native_"):
        name = name.removeprefix(prefix)
    return name.removesuffix("_")
