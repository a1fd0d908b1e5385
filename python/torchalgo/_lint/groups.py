# SPDX-License-Identifier: BSD-3-Clause
"""Finds grouped convolutions that are faster with fewer groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchalgo._lint.facts import CONVOLUTION, OpCall, TensorFacts
from torchalgo._lint.report import Finding, finding_of
from torchalgo._lint.what_if import LEAST_SHARE, Lab

# Channels of a block of kernels with AVX-512, and of those with AVX2.
BLOCK = 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8

FIXES = {
    "slow-groups": "Use groups={new} with block-diagonal weights, which gives the same result:"
    " groups={old} leaves only {per} channels to a group.",
}


def find_slow_groups(lab: Lab) -> Iterator[Finding]:
    """Yields convolutions that are faster with fewer groups, and weights of zeros between them."""
    grouped: dict[Any, list[OpCall]] = {}  # convolutions of equal sizes and settings
    for op in lab.call.ops:
        if _is_grouped(op):
            form = [(t.shape, t.layout, t.dtype) for t in op.inputs]
            settings = [a for a in op.arguments if not isinstance(a, TensorFacts)]
            grouped.setdefault((repr(form), repr(settings)), []).append(op)
    for same in grouped.values():
        yield from _fewer_groups(lab, same)


def _is_grouped(op: OpCall) -> bool:
    """Returns True for a 2-D convolution with several groups that is not transposed."""
    if op.name != CONVOLUTION or len(op.arguments) < 9 or op.arguments[6]:
        return False
    return len(op.inputs[0].shape) == 4 and op.arguments[8] > 1


def _fewer_groups(lab: Lab, same: Sequence[OpCall]) -> Iterator[Finding]:
    conv, groups = same[0], same[0].arguments[8]
    per = conv.inputs[1].shape[1]
    if lab.call.share(same) < LEAST_SHARE or per >= BLOCK:
        return
    best = None
    for new in range(1, groups):
        if groups % new or not BLOCK <= per * groups // new <= 4 * BLOCK:
            continue
        trial = lab.try_calls(_conv(lab, conv, groups), _conv(lab, conv, new), len(same))
        if trial is not None and trial.is_faster and (best is None or best[1].share < trial.share):
            best = (new, trial)
    if best is not None:
        fix = FIXES["slow-groups"].format(new=best[0], old=groups, per=per)
        yield finding_of("slow-groups", same, best[1], fix)


def _conv(lab: Lab, op: OpCall, groups: int) -> Callable[[], Tensor]:
    """Returns a call of the convolution with another number of groups, on random data."""
    generator = torch.Generator().manual_seed(0)
    where = next((p.device for p in lab.model.parameters()), torch.device("cpu"))

    def random(like: TensorFacts, shape: tuple[int, ...]) -> Tensor:
        made = torch.rand(shape, generator=generator).to(where, like.dtype)
        is_last = like.layout == "channels_last"
        return made.contiguous(memory_format=torch.channels_last) if is_last else made

    src, weights, *bias = op.inputs
    k, _, r, s = weights.shape
    tensors = [random(src, src.shape), random(weights, (k, src.shape[1] // groups, r, s))]
    tensors += [random(t, t.shape) for t in bias]
    rest = op.arguments[3:8]
    return lambda: torch.ops.aten.convolution.default(*(*tensors, None)[:3], *rest, groups)
