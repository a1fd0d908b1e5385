# SPDX-License-Identifier: BSD-3-Clause
"""Traces modules in several threads at once."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch._jit_internal import get_callable_argument_names
from torch.jit._trace import TracerWarning

from torchalgo._base.overlap import WhileAny, filter_warnings

ScriptModule = torch.jit.ScriptModule


class _Warnings(threading.local):
    """The texts of the tracer's warnings in this thread; None if it does not trace."""

    def __init__(self) -> None:
        self.texts: list[str] | None = None


_warnings = _Warnings()


def _keep_warnings() -> Callable[[], None]:
    before, remove = warnings.showwarning, filter_warnings("always", "", TracerWarning)

    def show(message: Any, category: Any, *rest: Any, **named: Any) -> None:
        if _warnings.texts is not None and issubclass(category, TracerWarning):
            _warnings.texts.append(str(message))
        else:
            before(message, category, *rest, **named)

    def undo() -> None:
        warnings.showwarning = before
        remove()

    warnings.showwarning = show
    return undo


_kept = WhileAny(_keep_warnings)


class _Names(threading.local):
    """The names of the submodules of the module that this thread traces; a dict elsewhere."""

    def __init__(self) -> None:
        self.of: dict[nn.Module, str] = {}

    def get(self, module: nn.Module, otherwise: Any = None) -> Any:
        return self.of.get(module, otherwise)


_names = _Names()


def _show_names() -> Callable[[], None]:
    before = torch.jit._trace._trace_module_map
    torch.jit._trace._trace_module_map = _names  # type: ignore[assignment]

    def undo() -> None:
        torch.jit._trace._trace_module_map = before

    return undo


_shown = WhileAny(_show_names)


def trace_module(model: nn.Module, inputs: tuple[Any, ...], texts: list[str]) -> ScriptModule:
    """Traces as torch.jit.trace(model, inputs, check_trace=False, strict=False) does.

    torch.jit.trace keeps the names of the traced module in a variable of the process. Of two traces
    that overlap, one gets no names, and the variable keeps the module of the other for good.

    Args:
        texts: gets the tracer's warnings, which are not shown.
    """
    before = _names.of
    _names.of, _warnings.texts = {}, texts
    _add_names(model, "__module")
    try:
        with _kept.block(), _shown.block():
            module = torch.jit._trace.make_module(model, None, torch.jit._state._python_cu)
            module._c._create_method_from_trace(
                "forward", model, inputs, torch.jit._trace._create_interpreter_name_lookup_fn(0),
                False, False, get_callable_argument_names(model.forward), True,
            )  # fmt: skip
    finally:
        _names.of, _warnings.texts = before, None
    return cast(ScriptModule, module)


def _add_names(module: nn.Module, path: str) -> None:
    for name, child in module.named_children():
        _names.of[child] = f"{path}.{name}"
        _add_names(child, _names.of[child])
