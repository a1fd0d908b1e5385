# SPDX-License-Identifier: BSD-3-Clause
"""Says why a model must not run more often than it is called, before it runs at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


def why_not_repeated(model: nn.Module, tensors: Sequence[torch.Tensor]) -> str:
    """Returns why `model` must not run several times, which planning does; empty if it may.

    A model in train mode is random, or changes its buffers. The model runs once on fake tensors,
    which have no data, so nothing changes.
    """
    effects = _Effects(model)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(tensor) for tensor in tensors]
        try:
            with torch.no_grad(), effects:
                model(*fakes)
        except _FoundError:
            pass
        except Exception:  # an op without a fake kernel: planning tells its errors itself
            return ""
    return effects.found


class _FoundError(Exception):
    """Ends the run at the first effect."""


class _Effects(TorchDispatchMode):
    """Finds ops that are random or that write to a weight."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found = ""
        self._names = {
            id(p): name for name, p in [*model.named_parameters(), *model.named_buffers()]
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.found = self._effect(func, args, kwargs)
        if self.found:
            raise _FoundError
        return func(*args, **kwargs)

    def _effect(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if torch.Tag.nondeterministic_seeded in func.tags:
            return f"it makes random numbers ({func.name()})"
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        if given.get("training") is True and given.get("running_mean") is not None:
            return "its batch norms are in train mode: call model.eval()"
        for argument in func._schema.arguments:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            name = self._names.get(id(given.get(argument.name)), "") if is_written else ""
            if name:
                return f"it writes to {name!r} ({func.name()})"
        return ""
