# SPDX-License-Identifier: BSD-3-Clause
"""Says why a graph of Dynamo cannot become a plan, before it runs at all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from torchalgo._capture.symbolic_run import NotProvenError, run_with_symbols


def why_not_planned(model: nn.Module, tensors: Sequence[torch.Tensor]) -> str:
    """Returns why no plan can replace `model`; empty if one may.

    A model in train mode is random, or changes its buffers. A plan is made from several runs, and
    fixes the values that Python code reads. It returns copies of weights. A copy of the model runs
    once on fake tensors, which have no data, so nothing changes.
    """
    try:
        recorder = run_with_symbols(model, tensors, lambda i, dim: True, lambda given: (given, {}))
        found, failure = recorder.run, ""
    except NotProvenError as problem:
        assert problem.run is not None
        found, failure = problem.run, f"its effects cannot be found ({problem})"
    if found.draws:
        return f"it makes random numbers ({found.draws})"
    if "batch_norm" in found.writes.rpartition("(")[2]:
        return "its batch norms are in train mode: call model.eval()"
    if found.writes:
        return f"it writes to {found.writes}"
    if found.reads:
        return f"it reads the value of a tensor ({found.reads})"
    # After an error, the rest of the model may write to weights, which planning would repeat.
    return f"it returns {found.returns} or a view of it" if found.returns else failure
