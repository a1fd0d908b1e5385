# SPDX-License-Identifier: BSD-3-Clause
"""Finds work that need not be done in each call: repeated, constant, unused, or done by Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchalgo._lint.facts import Call, OpCall
from torchalgo._lint.findings import Group, finding_of, is_worth_removing, total_bytes
from torchalgo._lint.observe import run_op
from torchalgo._lint.report import Finding, source_text
from torchalgo._lint.source import Lines
from torchalgo._lint.what_if import (
    LEAST_BYTES,
    LEAST_SHARE,
    Action,
    Lab,
    Trial,
    cached,
)

FIXES = {
    "computed-twice": "Keep the first result and use it again: the second computation has the same"
    " inputs.",
    "constant-recomputed": "Compute this once, in __init__ or after loading, and keep it as a"
    " buffer: it depends on the weights, and on the input's size at most.",
    "unused-result": "Do not compute this in eval mode: nothing reads the result.",
    "value-read": "Remove the Python branch on a tensor's value, or use torch.where: the branch"
    " needs work whose result is not part of the output.",
    "read-by-python": "Compute this with PyTorch: {function} hands the data to Python.",
    "duplicate-weights": "Use one parameter for equal ones, such as {names}, unless the layers were"
    " copied to be trained apart.",
}


def find_repeats(lab: Lab) -> Iterator[Finding]:
    """Yields operations that compute again what is known, and results that nothing reads."""
    call = lab.call
    done = lab.reported
    unused = _unused(call)
    reads = [op for op in call.ops if op.name == "aten._local_scalar_dense"]
    feeding = _unused(call, but_for=reads) - unused if reads else set()
    groups = (
        ("constant-recomputed", [op for op in call.ops if _is_lasting(call, op)]),
        ("value-read", [op for op in call.ops if op.index in feeding and _computes(op)]),
        ("unused-result", [op for op in call.ops if op.index in unused and _computes(op)]),
    )
    for kind, ops in groups:
        ops = [op for op in ops if op.index not in done]
        is_constant = kind == "constant-recomputed"
        for group in _by_result(call, ops) if is_constant else _by_part(call, ops):
            if total_bytes(group) < LEAST_BYTES and _share(lab, group) < LEAST_SHARE:
                continue
            if kind == "unused-result" and _is_part(call, group, unused):
                continue
            trial = lab.try_fix(cached(group))
            if trial is not None and _is_worth(trial, group, kind):
                done |= {op.index for op in group}
                yield finding_of(kind, group, trial, total_bytes(group), FIXES[kind])
    yield from _find_twice(lab)


def _is_worth(trial: Trial, group: Sequence[OpCall], kind: str) -> bool:
    """Returns True if the results that are no longer made are large, or the time is."""
    needs_time = kind == "value-read"
    return trial.is_faster if needs_time else is_worth_removing(trial, total_bytes(group))


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


def _share(lab: Lab, ops: Iterable[OpCall]) -> float:
    return sum(op.us for op in ops) / max(lab.call.us, 1e-3)


def _find_twice(lab: Lab) -> Iterator[Finding]:
    first: dict[tuple[int, ...], OpCall] = {}
    repeated: dict[int, OpCall] = {}  # the first computation, by the index of a later one
    for op in lab.call.ops:
        if not _computes(op) or op.is_constant or op.index in lab.reported:
            continue
        key = tuple(t.number for t in op.outputs)
        if op.name in ("aten.clone", "aten._to_copy"):
            continue  # copies have rules of their own
        if key in first:
            repeated[op.index] = first[key]
        else:
            first[key] = op
    for group in _by_part(lab.call, [lab.call.ops[i] for i in repeated]):
        if total_bytes(group) < LEAST_BYTES and _share(lab, group) < LEAST_SHARE:
            continue
        trial = lab.try_fix(_reuse({op.index: repeated[op.index] for op in group}))
        if trial is not None and _is_worth(trial, group, "computed-twice"):
            size = total_bytes(group)
            lab.reported |= {op.index for op in group}
            yield finding_of("computed-twice", group, trial, size, FIXES["computed-twice"])


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


def _common(a: Lines, b: Lines) -> Lines:
    """Returns the outer lines that two operations share."""
    shared = []
    for x, y in zip(reversed(a), reversed(b), strict=False):
        if x != y:
            break
        shared.append(x)
    return tuple(reversed(shared))


def _with_common_place(group: list[OpCall]) -> list[OpCall]:
    """Returns the group, headed by an operation with the line and the layer of all of them."""
    lines, parts = group[0].lines, group[0].layer.split(".")
    for op in group[1:]:
        lines = _common(lines, op.lines)
        own = op.layer.split(".")
        same = 0
        while same < min(len(parts), len(own)) and parts[same] == own[same]:
            same += 1
        parts = parts[:same]
    if lines == group[0].lines and len(group) == 1:
        return group
    return Group(group, lines, ".".join(parts))


def _unused(call: Call, but_for: Sequence[OpCall] = ()) -> set[int]:
    """Returns the operations whose results reach no output, and no tensor that was there before.

    Args:
        but_for: operations that count as unused too, so that what only they read is unused.
    """
    made = {t.storage for op in call.ops if not op.is_view for t in op.outputs}
    needed = {t.storage for t in (*call.outputs, *(read.tensor for read in call.reads))}
    left_out = {op.index for op in but_for}
    unused = set()
    for op in reversed(call.ops):
        is_read = op.name == "aten._local_scalar_dense" and op.index not in left_out
        written = {t.storage for t in (op.inputs[:1] if op.writes else op.outputs)}
        if is_read or written & needed or (op.writes and not written <= made):
            needed |= {t.storage for t in op.inputs}
        elif op.outputs:
            unused.add(op.index)
    return unused


# ---- weights and Python --------------------------------------------------------------------------


def find_python_reads(lab: Lab) -> Iterator[Finding]:
    """Yields places where Python code computes with the values of a tensor."""
    groups: dict[Lines, list[Any]] = {}
    for read in lab.call.reads:
        groups.setdefault(read.lines, []).append(read)
    for lines, reads in groups.items():
        us, size = sum(read.us for read in reads), sum(read.tensor.bytes for read in reads)
        share = us / max(lab.call.us, 1e-3)
        if share < LEAST_SHARE:
            continue
        fix = FIXES["read-by-python"].format(function=f"tensor.{reads[0].function}()")
        source = source_text(lines[0] if lines else None)
        yield Finding(
            "read-by-python", reads[0].layer, source, size, round(us, 1), round(share, 4), fix
        )


def find_duplicates(lab: Lab) -> Iterator[Finding]:
    """Yields one finding on all parameters that hold equal values in memory of their own."""
    groups: dict[Any, list[tuple[str, torch.Tensor]]] = {}
    for name, weight in lab.model.named_parameters():
        size = weight.numel() * weight.element_size()
        if size >= LEAST_BYTES and weight.layout == torch.strided:
            data = weight.detach()
            key = (weight.shape, weight.dtype, float(data.double().sum()), float(data.min()))
            groups.setdefault(key, []).append((name, data))
    found: list[tuple[str, ...]] = []  # names of equal weights
    size = 0
    for group in groups.values():
        (name, data), others = group[0], group[1:]
        same = [other for other, tensor in others if torch.equal(tensor, data)]
        if not same or bool((data == data.flatten()[0]).all()):
            continue
        size += len(same) * data.numel() * data.element_size()
        found.append((name, *same))
    if found:
        second = found[0][1].rpartition(".")[0]
        layers = dict.fromkeys(each.rpartition(".")[0] for names in found for each in names)
        line = next((op.line for op in lab.call.below(second) if op.line), None)
        fix = FIXES["duplicate-weights"].format(names=", ".join(found[0][:3]))
        yield Finding(
            "duplicate-weights", second, source_text(line), size, None, None, fix, tuple(layers)
        )
