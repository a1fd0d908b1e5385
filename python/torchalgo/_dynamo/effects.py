# SPDX-License-Identifier: BSD-3-Clause
"""Says why a graph of Dynamo cannot become a plan, before it runs at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from torchalgo._base.fake_errors import fake_mode, reads_values
from torchalgo._base.kept_autocast import kept_autocast
from torchalgo._capture.fake_run import memory_of, written


def why_not_planned(model: nn.Module, tensors: Sequence[torch.Tensor]) -> str:
    """Returns why no plan can replace `model`; empty if one may.

    A model in train mode is random, or changes its buffers. A plan is made from several runs, and
    fixes the values that Python code reads. It returns copies of weights. The model runs once on
    fake tensors, which have no data, so nothing changes. Its weights and constants are fake too.
    """
    # With a ShapeEnv, the run goes on after an op whose result's size depends on values.
    mode = fake_mode(ShapeEnv(allow_scalar_outputs=False), static_shapes=True)
    effects = _Effects(model, mode)
    fakes = tuple(mode.from_tensor(tensor) for tensor in tensors)
    with kept_autocast(), torch.no_grad(), mode, effects:
        try:
            outputs = torch.func.functional_call(model, effects.weights, fakes)
        except Exception as problem:
            return effects.found or _reason(problem)
    return effects.found or effects.of_outputs(outputs)


def _reason(problem: Exception) -> str:
    """Returns why a model is not planned whose run on fake tensors has ended with an error."""
    if reads_values(problem):
        return f"it reads the value of a tensor ({getattr(problem, 'func', problem)})"
    # The rest of the model may write to weights, which planning would repeat.
    line = (str(problem).splitlines() or [""])[0][:200]
    return f"its effects cannot be found ({type(problem).__name__}: {line})"


class _Effects(TorchDispatchMode):
    """Finds ops that are random or that write to a weight, and results that are weights.

    Args:
        model: its parameters and buffers are the weights.
        mode: the mode in which the model runs.
    """

    def __init__(self, model: nn.Module, mode: FakeTensorMode) -> None:
        super().__init__()
        self.found = ""  # the first effect
        self._mode = mode
        self._names: dict[int, str] = {}  # of the tensors that outlive a call, by their memory
        self._kept: list[torch.Tensor] = []  # so that no other tensor gets their memory
        own: list[tuple[str, torch.Tensor]] = [*model.named_parameters(remove_duplicate=False)]
        own += model.named_buffers(remove_duplicate=False)
        self.weights = {name: self._fake(weight, repr(name)) for name, weight in own}

    def _fake(self, tensor: torch.Tensor, name: str = "a constant") -> torch.Tensor:
        """Returns a fake tensor instead of one that has data, always the same one."""
        if is_fake(tensor):
            return tensor
        fake = self._mode.from_tensor(tensor)
        self._names.setdefault(memory_of(fake), name)
        self._kept.append(fake)
        return fake

    def _weight_in(self, value: Any) -> str:
        """Returns the name of a weight that a tensor, or one in a list, is a view of."""
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        fakes = map(self._fake, tensors)
        return next(filter(None, (self._names.get(memory_of(fake), "") for fake in fakes)), "")

    def of_outputs(self, outputs: Any) -> str:
        """Returns why a plan cannot return these outputs; empty if it can."""
        name = self._weight_in(outputs)
        return f"it returns {name} or a view of it" if name else ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in self._mode.lift_fns:  # these get a tensor that the graph makes of numbers
            args, kwargs = tree_map_only(torch.Tensor, self._fake, (args, kwargs))
        self.found = self.found or self._effect(func, args, kwargs)
        return func(*args, **kwargs)

    def _effect(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if torch.Tag.nondeterministic_seeded in func.tags:
            return f"it makes random numbers ({func.name()})"
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        if given.get("training") is True and given.get("running_mean") is not None:
            return "its batch norms are in train mode: call model.eval()"
        name = self._weight_in([*written(func, args, kwargs)])
        return f"it writes to {name} ({func.name()})" if name else ""
