# SPDX-License-Identifier: BSD-3-Clause
"""Finds work that need not be done in each call: repeated, constant, or unused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchalgo._lint.facts import Call, OpCall
from torchalgo._lint.observe import run_op
from torchalgo._lint.report import Finding, Group, finding_of, total_bytes
from torchalgo._lint.what_if import LEAST_BYTES, LEAST_SHARE, Action, Cached, Lab

FIXES = {
    "computed-twice": "Keep the first result and use it again: the second computation has the same"
    " inputs.",
    "constant-recomputed": "Compute this once, in __init__ or after loading, and keep it as a"
    " buffer: it depends on the weights, and on the input's size at most.",
    "unused-result": "Do not compute this in eval mode: nothing reads the result.",
}


def find_repeats(lab: Lab) -> Iterator[Finding]:
    """Yields operations that compute again what is known, and results that nothing reads."""
    call = lab.call
    for group in _by_result(call, [op for op in call.ops if _is_lasting(call, op)]):
        yield from _tried(lab, "constant-recomputed", group, {op.index: Cached() for op in group})
    unused = _unused(call)
    ops = [op for op in call.ops if op.index in unused - lab.reported and _computes(op)]
    for group in _by_part(call, ops):
        if not _is_part(call, group, unused):
            yield from _tried(lab, "unused-result", group, {op.index: Cached() for op in group})
    repeated = _repeated(lab)
    for group in _by_part(call, [call.ops[i] for i in repeated]):
        actions = _reuse({op.index: repeated[op.index] for op in group})
        yield from _tried(lab, "computed-twice", group, actions)


def _tried(
    lab: Lab, kind: str, group: Sequence[OpCall], actions: Mapping[int, Action]
) -> Iterator[Finding]:
    """Yields the finding if the results that are no longer made are large, or the time is."""
    size = total_bytes(group)
    if size < LEAST_BYTES and lab.call.share(group) < LEAST_SHARE:
        return
    trial = lab.try_fix(actions)
    # To do less cannot make the call slower, so a small loss of time is noise.
    is_large = trial is not None and max(size, trial.saved_bytes) >= LEAST_BYTES
    if trial is not None and (is_large or trial.is_faster):
        lab.reported |= {op.index for op in group}
        yield finding_of(kind, group, trial, FIXES[kind])


def _is_part(call: Call, group: Sequence[OpCall], unused: set[int]) -> bool:
    """Returns True if one call of PyTorch computes the group with results that are used.

    For example, nn.LSTM also returns its last states. Nobody can leave these out.
    """
    lines = {op.lines for op in group}
    around = call.ops[max(0, group[0].index - 8) : group[-1].index + 8]
    return any(
        op.lines in lines and not op.is_view and op.index not in unused and _computes(op)
        for op in around
    )


def _is_lasting(call: Call, op: OpCall) -> bool:
    """Returns True if the result depends on the weights only, and nothing writes to it later."""
    if not op.is_constant or not _computes(op):
        return False
    made = {t.storage for t in op.outputs}
    readers = call.readers_of(op)
    return not any(r.writes and r.inputs[:1] and r.inputs[0].storage in made for r in readers)


def _computes(op: OpCall) -> bool:
    """Returns True if the operation makes a result from tensors, always the same one."""
    is_input = op.inputs and not op.is_view and op.bytes > 0
    return bool(is_input) and not op.is_random and not op.writes and op.name != "aten.lift_fresh"


def _repeated(lab: Lab) -> dict[int, OpCall]:
    """Returns the first computation of equal results, by the index of a later one."""
    first: dict[tuple[int, ...], OpCall] = {}
    repeated: dict[int, OpCall] = {}
    for op in lab.call.ops:
        if not _computes(op) or op.is_constant or op.index in lab.reported:
            continue
        if op.name in ("aten.clone", "aten._to_copy"):
            continue  # copies have a rule of their own
        before = first.setdefault(tuple(t.number for t in op.outputs), op)
        if before is not op:
            repeated[op.index] = before
    return repeated


def _reuse(firsts: Mapping[int, OpCall]) -> dict[int, Action]:
    """Returns actions that keep the first results of a call, and return them the second time."""
    actions: dict[int, Action] = {}
    for index, first in firsts.items():
        kept: list[Any] = []

        def keep(func: Any, args: Any, kwargs: Any, kept: list[Any] = kept) -> Any:
            kept[:] = [run_op(func, args, kwargs)]
            return kept[0]

        def use(func: Any, args: Any, kwargs: Any, kept: list[Any] = kept) -> Any:
            return kept[0] if kept else run_op(func, args, kwargs)

        if first.index in actions:
            continue
        actions[first.index] = keep
        actions[index] = use
    return actions


def _by_result(call: Call, ops: Sequence[OpCall]) -> list[list[OpCall]]:
    """Groups constant operations by the line that computes the last one, which other ones read.

    A group begins with operations of that line.
    """
    known = {op.index for op in ops}
    last: dict[int, OpCall] = {}  # by the index of an operation
    groups: dict[object, list[OpCall]] = {}
    for op in reversed(ops):
        readers = [r for r in call.readers_of(op) if r.index in known]
        is_inner = readers and len(readers) == len(call.readers_of(op))
        last[op.index] = last[readers[0].index] if is_inner else op
        end = last[op.index]
        groups.setdefault(end.line or end.layer, []).append(op)
    order = ((group, {last[op.index].index for op in group}) for group in groups.values())
    return [sorted(group, key=lambda op: (op.index not in ends, op.index)) for group, ends in order]


def _by_part(call: Call, ops: Sequence[OpCall]) -> list[list[OpCall]]:
    """Groups operations that follow each other, and gives each group its common line."""
    groups: list[list[OpCall]] = []
    for op in ops:
        between = call.ops[groups[-1][-1].index + 1 : op.index] if groups else []
        if groups and all(each.is_view or not each.inputs for each in between):
            groups[-1].append(op)
        else:
            groups.append([op])
    return [_with_common_place(group) for group in groups]


def _common_start(sequences: Iterable[Sequence[Any]]) -> list[Any]:
    """Returns the items with which all sequences begin."""
    equal = itertools.takewhile(lambda items: len(set(items)) == 1, zip(*sequences, strict=False))
    return [items[0] for items in equal]


def _with_common_place(group: list[OpCall]) -> list[OpCall]:
    """Returns the group, with the line and the layer inside of which all its operations run."""
    if len(group) == 1:
        return group
    lines = tuple(reversed(_common_start(op.lines[::-1] for op in group)))
    return Group(group, lines, ".".join(_common_start(op.layer.split(".") for op in group)))


def _unused(call: Call) -> set[int]:
    """Returns the operations whose results reach no output, and no tensor that was there before.

    What Python code reads counts as an output.
    """
    made = {t.storage for op in call.ops if not op.is_view for t in op.outputs}
    needed = {t.storage for t in (*call.outputs, *call.reads)}
    unused = set()
    for op in reversed(call.ops):
        is_read = op.name == "aten._local_scalar_dense"
        written = {t.storage for t in (op.inputs[:1] if op.writes else op.outputs)}
        if is_read or written & needed or (op.writes and not written <= made):
            needed |= {t.storage for t in op.inputs}
        elif op.outputs:
            unused.add(op.index)
    return unused
