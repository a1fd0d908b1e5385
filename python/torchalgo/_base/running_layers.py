# SPDX-License-Identifier: BSD-3-Clause
"""The layers of a model that run now, and its eval mode during a call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module


class Layers:
    """The modules that run now, as hooks of all modules tell. Use it as a context."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._running: list[str] = []
        self._hooks: list[Any] = []

    @property
    def current(self) -> str:
        return self._running[-1] if self._running else ""

    def __enter__(self) -> Layers:
        def enter(module: nn.Module, _: Any) -> None:
            self._running.append(self._names.get(id(module), self.current))

        def leave(*_: Any) -> None:
            if self._running:
                self._running.pop()

        self._hooks = [
            torch_module.register_module_forward_pre_hook(enter),
            torch_module.register_module_forward_hook(leave, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()


@contextlib.contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[bool]:
    """Puts the whole model into eval mode meanwhile. Yields whether a part was in train mode."""
    trained = [module for module in model.modules() if getattr(module, "training", False)]
    try:
        for module in trained:
            module.training = False
        yield bool(trained)
    finally:
        for module in trained:
            module.training = True
