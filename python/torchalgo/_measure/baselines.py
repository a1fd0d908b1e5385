# SPDX-License-Identifier: BSD-3-Clause
"""The baselines: the ways to run a model without torchalgo, with which a plan is compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from torchalgo._base.own_thread import BenchmarkedCall
from torchalgo._capture.freeze import ScriptModule, device_of, freeze_model, to_channels_last

Call = Callable[[], Any]

# The names of baselines that run with torch.backends.cudnn.benchmark = True end with this, see
# BenchmarkedCall.
BENCHMARK = "+benchmark"


class BuiltOnCall:
    """A call that is built when it is called first, so in the thread in which it is timed."""

    def __init__(self, build: Callable[[], Call]) -> None:
        self._build = build
        self._call: Call | None = None

    def __call__(self) -> Any:
        if self._call is None:
            self._call = self._build()
        return self._call()


def baseline_calls(
    model: nn.Module, frozen: ScriptModule, inputs: tuple[Any, ...], has_channels_last: bool = True
) -> dict[str, Call]:
    """Returns the ways to run `model` without torchalgo: eager, channels_last and frozen.

    See channels_last.py for when the model may run in channels_last. On a GPU, each of them is
    returned a second time, with cuDNN's benchmark mode.
    """
    calls: dict[str, Call] = {"eager": lambda: model(*inputs), "frozen": lambda: frozen(*inputs)}
    last = _channels_last_copy(model) if has_channels_last else None
    if last is not None:
        converted = to_channels_last(inputs)
        calls["channels_last"] = lambda: last(*converted)
    if device_of(model, inputs).type == "cuda":
        calls |= {name + BENCHMARK: BenchmarkedCall(call) for name, call in calls.items()}
    return calls


def drop_failing(calls: Mapping[str, Call]) -> tuple[dict[str, Call], dict[str, str]]:
    """Runs each call once. Returns the calls that did not raise, and why each other one failed.

    A baseline may be unable to run: a view may need nchw strides, or memory may run out. Then the
    plan is compared with the others.
    """
    sound: dict[str, Call] = {}
    failures: dict[str, str] = {}
    with torch.no_grad():
        for name, call in calls.items():
            try:
                call()
            except Exception as problem:
                first, *_ = [*str(problem).strip().splitlines(), ""]
                failures[name] = f"{type(problem).__name__}: {first}"
            else:
                sound[name] = call
    return sound, failures


def _channels_last_copy(model: nn.Module) -> nn.Module | None:
    """Returns a copy of the model in channels_last.

    Returns None if the model cannot be copied, or is a ScriptModule: its weights may be constants.
    """
    if isinstance(model, torch.jit.ScriptModule):
        return None
    try:
        return copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    except (RuntimeError, TypeError):
        return None


def baseline_module(
    model: nn.Module, frozen: ScriptModule, inputs: tuple[Any, ...], name: str
) -> ScriptModule:
    """Returns the TorchScript module that runs instead of the plan if baseline `name` was faster.

    This is `frozen`, unless `name` is a channels_last baseline and the model can be converted.
    """
    is_last = name.removesuffix(BENCHMARK) == "channels_last"
    last = _channels_last_copy(model) if is_last else None
    return frozen if last is None else freeze_model(last, inputs)
