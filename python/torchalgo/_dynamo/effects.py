# SPDX-License-Identifier: BSD-3-Clause
"""Says why a graph of Dynamo cannot become a plan, before it runs at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchalgo._base.kept_model import kept_autocast
from torchalgo._capture.fake_run import Calls, FakeRun, fake_mode, reads_values


def why_not_planned(model: nn.Module, tensors: Sequence[torch.Tensor]) -> str:
    """Returns why no plan can replace `model`; empty if one may.

    A model in train mode is random, or changes its buffers. A plan is made from several runs, and
    fixes the values that Python code reads. It returns copies of weights. A copy of the model runs
    once on fake tensors, which have no data, so nothing changes.
    """
    # With a ShapeEnv, the run goes on after an op whose result's size depends on values.
    run = FakeRun(fake_mode(ShapeEnv(allow_scalar_outputs=False), static_shapes=True))
    ops, failure = _Ops(run), ""
    try:
        with kept_autocast(), torch.no_grad():
            fakes = [run.mode.from_tensor(tensor) for tensor in tensors]
            copied = run.copied(model)
            with run.mode, ops, Calls(run.call):
                outputs = copied(*fakes)
            if name := next(filter(None, map(run.name_of, tree_leaves(outputs))), ""):
                failure = f"it returns {name} or a view of it"
    except Exception as problem:
        failure = _reason(problem)
    finally:
        run.end()
    if run.writes:
        return ops.found or f"it writes to {run.writes}"
    return ops.found or (f"it reads the value of a tensor ({run.reads})" if run.reads else failure)


def _reason(problem: Exception) -> str:
    """Returns why a model is not planned whose run on fake tensors has ended with an error."""
    if reads_values(problem):
        return f"it reads the value of a tensor ({getattr(problem, 'func', problem)})"
    # The rest of the model may write to weights, which planning would repeat.
    line = (str(problem).splitlines() or [""])[0][:200]
    return f"its effects cannot be found ({type(problem).__name__}: {line})"


class _Ops(TorchDispatchMode):
    """Passes each op to a FakeRun, and finds ops that are random, or count batches."""

    def __init__(self, run: FakeRun) -> None:
        super().__init__()
        self.found = ""  # the first such op
        self._run = run

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.found = self.found or f"it makes random numbers ({func.name()})"
        elif given.get("training") is True and given.get("running_mean") is not None:
            self.found = self.found or "its batch norms are in train mode: call model.eval()"
        return self._run.run_op(func, args, kwargs or {}, func)
