# SPDX-License-Identifier: BSD-3-Clause
"""Finds copies that the model's code makes and nothing needs."""

from __future__ import annotations

from collections.abc import Iterator

from torchalgo._lint.facts import Call, OpCall
from torchalgo._lint.report import Finding, finding_of, total_bytes
from torchalgo._lint.what_if import LEAST_BYTES, Lab, identity

FIXES = {
    "hidden-copy": "Remove the copy ({call}): what reads it accepts the tensor as it is.",
    "channels-last-lost": "Remove the conversion ({call}): the tensor is in channels_last, and what"
    " reads it accepts that.",
}


def find_copies(lab: Lab) -> Iterator[Finding]:
    """Yields the copies without which the call copies fewer bytes or takes less time."""
    copies = [op for op in lab.call.ops if op.index not in lab.reported and _is_copy(lab.call, op)]
    by_line: dict[object, list[OpCall]] = {}
    for op in copies:
        by_line.setdefault(op.line or op.layer, []).append(op)
    for group in by_line.values():
        if total_bytes(group) < LEAST_BYTES:
            continue
        trial = lab.try_fix({op.index: identity for op in group}, needs_copies=True)
        before, after = group[0].inputs[0], group[0].outputs[0]
        is_wanted = before.layout == "contiguous" and after.layout == "channels_last"
        if trial is None or not (trial.is_faster or (trial.is_smaller and not is_wanted)):
            continue
        is_lost = before.layout == "channels_last" and after.layout == "contiguous"
        kind = "channels-last-lost" if is_lost else "hidden-copy"
        call = "clone" if before.strides == after.strides else "contiguous"
        yield finding_of(kind, group, trial, FIXES[kind].format(call=call))


def _is_copy(call: Call, op: OpCall) -> bool:
    """Returns True for a copy of a tensor that is no weight, to the same data type and device.

    `reshape` makes a copy only where it is needed, so its copies do not count.
    """
    if op.name not in ("aten.clone", "aten._to_copy") or not op.inputs or op.inputs[0].is_constant:
        return False
    is_for_reshape = any(
        after.name == "aten._unsafe_view" and after.lines == op.lines
        for after in call.ops[op.index + 1 : op.index + 2]
    )
    is_same_type = op.inputs[0].dtype == op.outputs[0].dtype and "device" not in op.keywords
    return is_same_type and not is_for_reshape
