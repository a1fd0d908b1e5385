# SPDX-License-Identifier: BSD-3-Clause
"""Traces a module, and collects the warnings of the tracer."""

from __future__ import annotations

import threading
import warnings
from typing import Any, cast

import torch
from torch import nn
from torch.jit._trace import TracerWarning

from torchalgo._base.overlap import filter_warnings, one_at_a_time

ScriptModule = torch.jit.ScriptModule


def trace_module(model: nn.Module, inputs: tuple[Any, ...], texts: list[str]) -> ScriptModule:
    """Traces with torch.jit.trace, which keeps the names of layers in a variable of the process.

    Args:
        texts: gets the tracer's warnings, which are not shown.
    """
    with one_at_a_time("it traces a model"):
        here, before = threading.get_ident(), warnings.showwarning
        undo = filter_warnings("always", "", TracerWarning)

        def show(message: Any, category: Any, *rest: Any, **named: Any) -> None:
            if issubclass(category, TracerWarning) and threading.get_ident() == here:
                texts.append(str(message))
            else:
                before(message, category, *rest, **named)

        warnings.showwarning = show
        try:
            traced = torch.jit.trace(model, inputs, check_trace=False, strict=False)
        finally:
            warnings.showwarning = before
            undo()
    return cast(ScriptModule, traced)
