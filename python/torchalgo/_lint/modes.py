# SPDX-License-Identifier: BSD-3-Clause
"""Finds work of training that runs in inference: train mode, dropout, gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torchalgo._base.stats import cost_of_samples, is_faster
from torchalgo._capture.freeze import tensors_in
from torchalgo._lint.facts import Call, OpCall, Saved
from torchalgo._lint.findings import by_line, finding_of, is_worth_removing, total_bytes
from torchalgo._lint.observe import Arguments, run_model, same_random
from torchalgo._lint.report import Finding, source_text
from torchalgo._lint.source import Lines
from torchalgo._lint.what_if import LEAST_BYTES, LEAST_SHARE, Action, Lab, identity, time_pairs

NO_GRADIENTS = "Remove torch.enable_grad or set_grad_enabled(True) here: without gradients these"
FIXES = {
    "train-mode": "Call {call} before inference: dropout and batch norm work as in training now.",
    "active-dropout": "Pass training=self.training to dropout, or use nn.Dropout: it is active in"
    " eval mode.",
    "gradients-enabled": f"{NO_GRADIENTS} tensors are not kept.",
    "input-requires-grad": "Call the model inside torch.no_grad(), or detach the input: PyTorch"
    " keeps these tensors for its gradient.",
}
_NORMS = nn.modules.batchnorm._BatchNorm
_DROPOUTS = nn.modules.dropout._DropoutNd


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[list[str]]:
    """Yields the modules that were in train mode; the whole model is in eval mode meanwhile."""
    modules = dict(model.named_modules())
    trained = [name for name, module in modules.items() if getattr(module, "training", False)]
    try:
        for name in trained:
            modules[name].training = False
        yield trained
    finally:
        for name in trained:
            modules[name].training = True


def find_train_mode(lab: Lab, trained: Sequence[str]) -> Iterator[Finding]:
    """Yields the outermost modules in train mode that work otherwise than in eval mode.

    Args:
        trained: the names of all modules that were in train mode. They are in eval mode now.
    """
    modules = dict(lab.model.named_modules())
    active = [name for name in trained if _is_active(modules[name])]
    if not active:
        return
    tops = [name for name in trained if not _is_below(name, trained)]
    tops = [top for top in tops if any(name == top or _inside(name, top) for name in active)]
    size = sum(op.bytes for name in active for op in lab.call.below(name))
    before, after = _time_modes(lab, [modules[name] for name in trained])
    gain_us = cost_of_samples(before)[0] - cost_of_samples(after)[0]
    share = gain_us / max(lab.call.us, 1e-3)
    is_gain = share >= LEAST_SHARE and is_faster(after, before).verdict == "faster"
    if not is_gain and size < LEAST_BYTES:
        return
    top = tops[0]
    line = next((op.line for op in lab.call.below(top) if op.line is not None), None)
    call = f"model.{top}.eval()" if top else "model.eval()"
    yield Finding(
        "train-mode", top, source_text(line), size, round(gain_us, 1), round(share, 4),
        FIXES["train-mode"].format(call=call), tuple(tops) if len(tops) > 1 else (),
    )  # fmt: skip


def _is_active(module: nn.Module) -> bool:
    """Returns True if the module computes something else in train mode."""
    kind = getattr(module, "original_name", "")  # of a TorchScript module
    is_dropout = isinstance(module, _DROPOUTS) or kind in ("Dropout", "Dropout2d", "Dropout3d")
    is_norm = isinstance(module, _NORMS) or "BatchNorm" in kind
    is_attention = isinstance(module, nn.MultiheadAttention) and module.dropout > 0
    return is_norm or is_attention or (is_dropout and getattr(module, "p", 0.0) > 0)


def _inside(name: str, top: str) -> bool:
    return not top or name.startswith(f"{top}.")


def _is_below(name: str, tops: Sequence[str]) -> bool:
    return any(top != name and _inside(name, top) for top in tops)


def _time_modes(lab: Lab, modules: Sequence[nn.Module]) -> tuple[list[float], list[float]]:
    """Times the call in train mode and in eval mode. Statistics are restored afterwards."""
    kept = [(buffer, buffer.clone()) for buffer in lab.model.buffers()]

    def run(is_training: bool) -> Callable[[], None]:
        def call() -> None:
            for module in modules:
                module.training = is_training
            try:
                with torch.no_grad(), same_random():
                    run_model(lab.model, lab.args, lab.kwargs)
            finally:
                for module in modules:
                    module.training = False

        return call

    try:
        return time_pairs(run(True), run(False), lab.wait)
    except Exception:  # such as a batch norm that needs more than one value per channel
        return [1.0], [1.0]
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)


# ---- dropout and gradients -----------------------------------------------------------------------


def find_dropout(lab: Lab) -> Iterator[Finding]:
    """Yields dropouts that are active although all modules are in eval mode."""
    randoms = ("aten.bernoulli_", "aten.native_dropout", "aten.bernoulli")
    for group in by_line(op for op in lab.call.ops if op.name in randoms):
        actions: dict[int, Action] = {}
        ops = []
        for op in group:
            drop = _dropout_of(lab, op)
            actions |= drop
            ops += [lab.call.ops[i] for i in drop]
        size = total_bytes(ops)
        trial = lab.try_fix(actions, compare=False) if actions else None
        if trial is not None and size >= LEAST_BYTES // 4 and is_worth_removing(trial, size):
            yield finding_of("active-dropout", group, trial, size, FIXES["active-dropout"])


def _dropout_of(lab: Lab, op: OpCall) -> dict[int, Action]:
    """Returns actions that leave out one dropout: its noise, and the product with it."""
    if op.name == "aten.native_dropout":
        return {op.index: _same_and_mask}
    following = [o for o in lab.call.ops[op.index : op.index + 4] if o.lines == op.lines]
    noise = {t.storage for t in op.outputs}
    actions: dict[int, Action] = {}
    for other in following:
        is_product = other.name in ("aten.mul", "aten.mul_")
        reads_noise = bool(noise & {t.storage for t in other.inputs})
        if other.name in ("aten.bernoulli_", "aten.div_") or (is_product and reads_noise):
            actions[other.index] = identity
    return actions if any(lab.call.ops[i].name.startswith("aten.mul") for i in actions) else {}


def _same_and_mask(func: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    return args[0], args[0].new_empty(0, dtype=torch.bool)


def find_gradients(lab: Lab) -> Iterator[Finding]:
    """Yields lines that enable gradients inside a call that needs none."""
    saved = lab.call.saved
    if sum(each.bytes for each in saved) >= LEAST_BYTES:
        yield _kept("gradients-enabled", saved, saved[0].layer, saved[0].lines)


def find_input_gradients(
    call: Call, model: nn.Module, args: Arguments, kwargs: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yields an input that requires a gradient, if the caller has not disabled gradients."""
    inputs = tensors_in((args, dict(kwargs)))
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in inputs):
        return
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.numel() * tensor.element_size()
        return tensor

    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), same_random():
        result = run_model(model, args, kwargs)
    size = sum(count for place, count in kept.items() if place not in weights)
    del result
    if size >= LEAST_BYTES:
        line = next((op.line for op in call.ops if op.line is not None), None)
        fix = FIXES["input-requires-grad"]
        yield Finding("input-requires-grad", "", source_text(line), size, None, None, fix)


def _kept(kind: str, saved: Sequence[Saved], layer: str, lines: Lines) -> Finding:
    size = sum(each.bytes for each in saved)
    line = lines[0] if lines else None
    return Finding(kind, layer, source_text(line), size, None, None, FIXES[kind])
