# SPDX-License-Identifier: BSD-3-Clause
"""Finds convolutions of slow sizes: channels that just miss a block, groups, padding apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchalgo import _C
from torchalgo._lint.facts import CONVOLUTION, PRODUCTS, Call, OpCall, TensorFacts
from torchalgo._lint.findings import by_line, finding_of, is_worth_removing, total_bytes
from torchalgo._lint.observe import run_op
from torchalgo._lint.report import Finding
from torchalgo._lint.what_if import LEAST_SHARE, Action, Lab

BLOCK = 16 if "avx512" in _C.cpu_device().isa else 8  # the channels of a block on this machine
NEAR = 2  # channels that miss a multiple of BLOCK by at most so many

FIXES = {
    "channels-miss-block": "Use {new} channels instead of {old}: kernels compute blocks of"
    f" {BLOCK} channels, and {{old}} is just beyond a multiple.",
    "slow-groups": "Use groups={new} with block-diagonal weights, which gives the same result:"
    " groups={old} leaves only {per} channels to a group.",
    "padding-apart": "Set padding={padding} in the convolution that reads it, and remove the"
    " padding before it.",
}


def find_slow_sizes(lab: Lab) -> Iterator[Finding]:
    """Yields convolutions that are faster with a few channels less, or with fewer groups."""
    heads = _heads(lab.call)
    convs = [op for op in lab.call.ops if _is_plain(op)]
    by_width: dict[int, list[OpCall]] = {}
    for op in convs:
        if op.arguments[8] != 1:
            continue
        own = (op.inputs[1].shape[0],) if op.index not in heads else ()
        for width in {*own, op.inputs[0].shape[1]}:
            if width > BLOCK and 0 < width % BLOCK <= NEAR:
                by_width.setdefault(width, []).append(op)
    for width, group in by_width.items():
        yield from _narrower(lab, width, group)
    for same in by_form(op for op in convs if op.arguments[8] > 1):
        yield from _fewer_groups(lab, same)


def _is_plain(op: OpCall) -> bool:
    """Returns True for a 2-D convolution that is not transposed."""
    if op.name != CONVOLUTION or len(op.arguments) < 9 or op.arguments[6]:
        return False
    return len(op.inputs[0].shape) == 4


def _heads(call: Call) -> set[int]:
    """Returns the convolutions that no other one depends on: their channels are the result's."""
    needed: set[int] = set()
    heads = set()
    for op in reversed(call.ops):
        is_layer = op.name == CONVOLUTION or op.name in PRODUCTS
        made = {t.storage for t in op.outputs}
        if is_layer and not made & needed:
            heads.add(op.index)
        if is_layer or made & needed:
            needed |= {t.storage for t in op.inputs}
    return heads


def by_form(ops: Any) -> list[list[OpCall]]:
    """Groups convolutions of equal sizes and settings."""
    groups: dict[Any, list[OpCall]] = {}
    for op in ops:
        form = [(t.shape, t.layout, t.dtype) for t in op.inputs]
        settings = [a for a in op.arguments if not isinstance(a, TensorFacts)]
        groups.setdefault((repr(form), repr(settings)), []).append(op)
    return list(groups.values())


def _share(lab: Lab, ops: Sequence[OpCall]) -> float:
    return sum(op.us for op in ops) / max(lab.call.us, 1e-3)


def _narrower(lab: Lab, width: int, ops: Sequence[OpCall]) -> Iterator[Finding]:
    if _share(lab, ops) < LEAST_SHARE:
        return
    new = width - width % BLOCK

    def cut(count: int) -> int:
        return new if count == width else count

    gain_us, trials = 0.0, []
    for same in by_form(ops):
        conv = same[0]
        k, c = conv.inputs[1].shape[:2]
        given, fixed = _conv(lab, conv, k, c, 1), _conv(lab, conv, cut(k), cut(c), 1)
        trial = lab.try_calls(given, fixed, len(same))
        if trial is not None and trial.times.verdict == "faster":
            trials.append(trial)
            gain_us += trial.gain_us
    share = gain_us / lab.call.us
    if share < LEAST_SHARE:
        return
    fix = FIXES["channels-miss-block"].format(new=new, old=width)
    found = finding_of("channels-miss-block", ops, trials[0], total_bytes(ops), fix)
    yield Finding(**{**vars(found), "gain_us": round(gain_us, 1), "gain_share": round(share, 4)})


def _fewer_groups(lab: Lab, same: Sequence[OpCall]) -> Iterator[Finding]:
    """Yields the convolutions if fewer groups with weights of zeros between them are faster."""
    conv, groups = same[0], same[0].arguments[8]
    k, per = conv.inputs[1].shape[:2]
    if _share(lab, same) < LEAST_SHARE or per >= BLOCK:
        return
    counts = {
        new
        for new in range(1, groups)
        if groups % new == 0 and BLOCK <= per * groups // new <= 4 * BLOCK
    }
    best = None
    for new in sorted(counts):
        given = _conv(lab, conv, k, per, groups)
        fixed = _conv(lab, conv, k, per * groups // new, new)
        trial = lab.try_calls(given, fixed, len(same))
        if trial is not None and trial.is_faster and (best is None or best[1].share < trial.share):
            best = (new, trial)
    if best is not None:
        fix = FIXES["slow-groups"].format(new=best[0], old=groups, per=per)
        yield finding_of("slow-groups", same, best[1], total_bytes(same), fix)


def _conv(lab: Lab, op: OpCall, k: int, c: int, groups: int) -> Callable[[], Tensor]:
    """Returns a call of the convolution with other numbers of channels, on random data."""
    generator = torch.Generator().manual_seed(0)
    where = next((p.device for p in lab.model.parameters()), torch.device("cpu"))
    n, _, h, w = op.inputs[0].shape
    r, s = op.inputs[1].shape[2:]

    def random(shape: tuple[int, ...], like: TensorFacts) -> Tensor:
        made = torch.rand(shape, generator=generator).to(where, like.dtype)
        is_last = like.layout == "channels_last"
        return made.contiguous(memory_format=torch.channels_last) if is_last else made

    src = random((n, c * groups, h, w), op.inputs[0])
    weights = random((k, c, r, s), op.inputs[1])
    bias = random((k,), op.inputs[2]) if len(op.inputs) > 2 else None
    rest = op.arguments[3:8]
    return lambda: torch.ops.aten.convolution.default(src, weights, bias, *rest, groups)


# ---- padding -------------------------------------------------------------------------------------


def find_padding(lab: Lab) -> Iterator[Finding]:
    """Yields zero paddings that the one convolution which reads them could do itself."""
    found = []
    for op in lab.call.ops:
        if op.name != "aten.constant_pad_nd" or len(op.inputs[0].shape) != 4:
            continue
        reader = lab.call.only_reader(op)
        value = op.arguments[2] if len(op.arguments) > 2 else 0
        if reader is not None and _is_plain(reader) and value == 0 and _padding(op) is not None:
            found.append((op, reader))
    for group in by_line(op for op, _ in found):
        readers = [reader for op, reader in found if op in group]
        actions: dict[int, Action] = {}
        for op, reader in zip(group, readers, strict=True):
            own = _padding(op) or (0, 0)
            actions |= {op.index: _unpadded, reader.index: _padded(own)}
        trial = lab.try_fix(actions)
        if trial is None or trial.is_slower:
            continue
        if is_worth_removing(trial, total_bytes(group)):
            h, w = _padding(group[0]) or (0, 0)
            own = readers[0].arguments[4]
            fix = FIXES["padding-apart"].format(padding=(own[0] + h, own[1] + w))
            yield finding_of("padding-apart", group, trial, total_bytes(group), fix)


def _padding(op: OpCall) -> tuple[int, int] | None:
    """Returns the padding of height and width; None if it is one-sided or for other dimensions."""
    sizes = list(op.arguments[1])
    if len(sizes) > 4 and any(sizes[4:]):
        return None
    left, right, top, bottom = (sizes + [0, 0, 0, 0])[:4]
    return (top, left) if left == right >= 0 and top == bottom >= 0 else None


def _unpadded(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return args[0]


def _padded(more: tuple[int, int]) -> Action:
    def run(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        padding = [own + extra for own, extra in zip(args[4], more, strict=True)]
        return run_op(func, (*args[:4], padding, *args[5:]), kwargs)

    return run
