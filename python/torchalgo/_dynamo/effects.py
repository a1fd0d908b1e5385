# SPDX-License-Identifier: BSD-3-Clause
"""Says why a graph of Dynamo cannot become a plan, before it runs at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchalgo._base.kept_autocast import kept_autocast


def why_not_planned(model: nn.Module, tensors: Sequence[torch.Tensor]) -> str:
    """Returns why no plan can replace `model`; empty if one may.

    A model in train mode is random, or changes its buffers. A plan is made from several runs, and
    fixes the values that Python code reads. It returns copies of weights. The model runs once on
    fake tensors, which have no data, so nothing changes.
    """
    with kept_autocast(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(tensor) for tensor in tensors]
        effects = _Effects(model, mode)
        try:
            with torch.no_grad(), effects:
                outputs = model(*fakes)
        except DataDependentOutputException as problem:
            return effects.found or f"it reads the value of a tensor ({problem.func})"
        except Exception:  # an op without a fake kernel: planning tells its errors itself
            return effects.found
        return effects.found or effects.of_outputs(outputs)


class _Effects(TorchDispatchMode):
    """Finds ops that are random or that write to a weight, and results that are weights."""

    def __init__(self, model: nn.Module, mode: FakeTensorMode) -> None:
        super().__init__()
        self.found = ""  # the first effect
        self._mode = mode
        weights = [*model.named_parameters(), *model.named_buffers()]
        # They are kept, so that no other tensor gets their memory.
        self._fakes = [mode.from_tensor(weight) for _, weight in weights]
        self._names = {self._memory(weight): name for name, weight in weights}

    def _memory(self, tensor: torch.Tensor) -> int:
        """Returns what stands for the memory of a tensor, which its views have in common."""
        fake = tensor if isinstance(tensor, FakeTensor) else self._mode.from_tensor(tensor)
        return int(fake.untyped_storage()._cdata)

    def _weight_in(self, value: Any) -> str:
        """Returns the name of a weight that a tensor, or one in a list, is a view of."""
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        return next(filter(None, (self._names.get(self._memory(t), "") for t in tensors)), "")

    def of_outputs(self, outputs: Any) -> str:
        """Returns why a plan cannot return these outputs; empty if it can."""
        name = self._weight_in(outputs)
        return f"it returns {name!r} or a view of it" if name else ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.found = self.found or self._effect(func, args, kwargs)
        return func(*args, **kwargs)

    def _effect(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if torch.Tag.nondeterministic_seeded in func.tags:
            return f"it makes random numbers ({func.name()})"
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        if given.get("training") is True and given.get("running_mean") is not None:
            return "its batch norms are in train mode: call model.eval()"
        for argument in func._schema.arguments:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            name = self._weight_in(given.get(argument.name)) if is_written else ""
            if name:
                return f"it writes to {name!r} ({func.name()})"
        return ""
