# SPDX-License-Identifier: BSD-3-Clause
"""Finds copies that the model's code makes and nothing needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from torchalgo._lint.facts import CONVOLUTION, Call, OpCall, TensorFacts
from torchalgo._lint.findings import by_line, finding_of, is_worth, total_bytes
from torchalgo._lint.report import Finding
from torchalgo._lint.what_if import LEAST_BYTES, Action, Lab, identity

FIXES = {
    "hidden-copy": "Remove the copy ({call}): what reads it accepts the tensor as it is.",
    "channels-last-lost": "Remove the conversion ({call}): the tensor is in channels_last, and what"
    " reads it accepts that.",
    "broadcast-copied": "Use the tensor without {call}: PyTorch broadcasts dimensions of size 1.",
    "copied-back": "Remove both conversions: the second one undoes the first.",
    "layout-dropped": "Create the tensor with memory_format=torch.channels_last, as the tensors"
    " that are written to it have.",
    "dtype-round-trip": "Remove both conversions of the data type: the second one undoes the"
    " first.",
}
FACTORIES = ("aten.zeros", "aten.ones", "aten.empty", "aten.full", "aten.new_zeros",
             "aten.new_empty", "aten.new_ones", "aten.new_full")  # fmt: skip


def find_copies(lab: Lab) -> Iterator[Finding]:
    """Yields the copies without which the call copies fewer bytes or takes less time."""
    call = lab.call
    reported = lab.reported
    copies = [
        op
        for op in call.ops
        if _is_plain_copy(op) and not _is_for_reshape(call, op) and op.index not in reported
    ]
    for group in _round_trips(call, copies):
        if total_bytes(group) < LEAST_BYTES:
            continue
        trial = lab.try_fix({op.index: identity for op in group})
        if trial is not None and is_worth(trial):
            reported |= {op.index for op in group}
            yield finding_of(
                _kind_of_pair(group), group, trial, total_bytes(group), FIXES["copied-back"]
            )
    for group in by_line(op for op in copies if op.index not in reported):
        if total_bytes(group) >= LEAST_BYTES:
            yield from _single(lab, group)


def _kind_of_pair(group: Sequence[OpCall]) -> str:
    is_last = group[0].inputs[0].layout == "channels_last"
    return "channels-last-lost" if is_last else "copied-back"


def _single(lab: Lab, group: Sequence[OpCall]) -> Iterator[Finding]:
    actions: dict[int, Action] = {
        op.index: _expand if op.name == "aten.repeat" else identity for op in group
    }
    trial = lab.try_fix(actions, needs_copies=True)
    source = group[0].inputs[0]
    is_wanted = source.layout == "contiguous" and group[0].outputs[0].layout == "channels_last"
    if trial is None or not is_worth(trial, needs_time=is_wanted):
        return
    kind = "hidden-copy"
    if group[0].name == "aten.repeat" or source.layout == "broadcast":
        kind = "broadcast-copied"
    elif source.layout == "channels_last" and group[0].outputs[0].layout == "contiguous":
        kind = "channels-last-lost"
    text = FIXES[kind].format(call=_spelled(group[0]))
    yield finding_of(kind, group, trial, total_bytes(group), text)


def _spelled(op: OpCall) -> str:
    if op.name == "aten.repeat":
        return "repeat"
    return "clone" if op.inputs[0].strides == op.outputs[0].strides else "contiguous"


def _is_plain_copy(op: OpCall) -> bool:
    """Returns True for a copy of a tensor that is no weight, to the same data type and device."""
    if op.name == "aten.repeat":
        return _is_broadcast(op)
    if op.name not in ("aten.clone", "aten._to_copy") or not op.inputs or op.inputs[0].is_constant:
        return False
    return op.inputs[0].dtype == op.outputs[0].dtype and "device" not in op.keywords


def _is_broadcast(op: OpCall) -> bool:
    """Returns True if `repeat` repeats dimensions of size 1 only, of a tensor of equal rank."""
    shape, counts = op.inputs[0].shape, op.arguments[1]
    if len(counts) != len(shape) or all(count == 1 for count in counts):
        return False
    return all(count == 1 or size == 1 for size, count in zip(shape, counts, strict=True))


def _expand(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Returns what `repeat` returns, without a copy."""
    sizes = [size * count for size, count in zip(args[0].shape, args[1], strict=True)]
    return args[0].expand(sizes)


def _is_for_reshape(call: Call, op: OpCall) -> bool:
    """Returns True if the copy is a part of `reshape`, which makes it only where it is needed."""
    after = call.ops[op.index + 1 : op.index + 2]
    return any(
        next_op.name == "aten._unsafe_view" and next_op.lines == op.lines for next_op in after
    )


def _round_trips(call: Call, copies: Sequence[OpCall]) -> Iterator[list[OpCall]]:
    """Yields pairs of copies of which the second restores the layout before the first."""
    used: set[int] = set()
    for op in copies:
        before = op.inputs[0].layout
        if op.index in used or before == op.outputs[0].layout:
            continue
        for other in _next_copies(call, op, copies):
            if other.index not in used and other.outputs[0].layout == before:
                used |= {op.index, other.index}
                yield [op, other]
                break


def _next_copies(call: Call, op: OpCall, copies: Sequence[OpCall]) -> Iterator[OpCall]:
    """Yields the copies that read the result of `op`, directly or through operations of one reader
    that keep its size."""
    known = {copy.index for copy in copies}
    for _ in range(8):
        readers = call.readers_of(op)
        yield from (reader for reader in readers if reader.index in known)
        following = call.only_reader(op)
        if following is None or following.index in known or following.name == CONVOLUTION:
            return
        op = following


# ---- layouts of new tensors, and data types ------------------------------------------------------


def find_dropped_layouts(lab: Lab) -> Iterator[Finding]:
    """Yields tensors that are made contiguous and then filled from channels_last tensors."""
    for op in lab.call.ops:
        if op.name not in FACTORIES or len(op.outputs[0].shape) != 4:
            continue
        if op.bytes < LEAST_BYTES or op.outputs[0].layout != "contiguous":
            continue
        is_filled = any(
            reader.writes and any(_has_channels_last(t) for t in reader.inputs[1:])
            for reader in lab.call.ops
            if op.outputs[0].storage in {t.storage for t in reader.inputs[:1]}
        )
        trial = lab.try_fix({op.index: _channels_last}) if is_filled else None
        if trial is not None and is_worth(trial):
            yield finding_of("layout-dropped", [op], trial, op.bytes, FIXES["layout-dropped"])


def _has_channels_last(tensor: TensorFacts) -> bool:
    """Returns True if the channels of a pixel lie side by side, also in a part of an image."""
    shape, strides = tensor.shape, tensor.strides
    return len(shape) == 4 and shape[1] > 1 and strides[1] == 1 and strides[3] >= shape[1]


def _channels_last(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    made = func(*args, **kwargs)
    return torch.empty_like(made, memory_format=torch.channels_last).copy_(made)


def find_dtype_round_trips(lab: Lab) -> Iterator[Finding]:
    """Yields conversions to a narrower data type that the next reader undoes."""
    for op in lab.call.ops:
        if op.name != "aten._to_copy" or op.inputs[0].is_constant or op.bytes < LEAST_BYTES // 2:
            continue
        reader = lab.call.only_reader(op)
        is_back = (
            reader is not None
            and reader.name == "aten._to_copy"
            and reader.outputs[0].dtype == op.inputs[0].dtype != op.outputs[0].dtype
        )
        if reader is None or not is_back or op.outputs[0].dtype == torch.float64:
            continue
        group = [op, reader]
        trial = lab.try_fix({each.index: identity for each in group}, tolerance=2e-2)
        if trial is not None and is_worth(trial):
            fix = FIXES["dtype-round-trip"]
            yield finding_of("dtype-round-trip", group, trial, total_bytes(group), fix)
