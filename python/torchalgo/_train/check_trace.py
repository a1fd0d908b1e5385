# SPDX-License-Identifier: BSD-3-Clause
"""Compares a trace with the model: for other inputs, both must compute the same."""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten

from torchalgo._base.compare_outputs import output_error
from torchalgo._base.kept_model import kept_random_states
from torchalgo._train.known_ops import OF_MODULES, is_altered

_TOLERANCE = 1e-3  # both run the same operations of PyTorch


def check_trace(model: nn.Module, whole: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
    """Raises RuntimeError if the trace does not compute what the model computes.

    Copies of both run in train mode with two other inputs and other random numbers. A model with
    hooks is not run, since a copy would call them.
    """
    if any(is_altered(module) for module in model.modules()):
        return
    given = copy.deepcopy(model)
    _, traced = copy.deepcopy((model, whole))
    states = []
    for seed in (1, 2):
        others = [_other(x, seed) for x in inputs]
        expected = _run(given.forward, others, seed)
        difference = _difference(expected, _run(traced, others, seed))
        if difference:
            raise RuntimeError(
                f"for inputs of other values, the trace gives other results than forward:"
                f" {difference}. The reason may be code that a trace does not repeat, such as a"
                " change of weights or of settings of a layer"
            )
        states.append(_attributes(given))
    for name, value in states[0].items():
        if states[1].get(name) != value:
            raise RuntimeError(
                f"forward changes {name} in each call, which a trace does not repeat"
            )


def _other(x: Tensor, seed: int) -> Tensor:
    return x.detach().flip(-1) / (1 + seed) if x.is_floating_point() and x.dim() else x.detach()


def _run(run: Callable[..., Any], inputs: Sequence[Tensor], seed: int) -> Any:
    """Calls `run`. Random numbers depend on the seed only; the generators are restored."""
    with kept_random_states(), torch.no_grad():
        torch.manual_seed(seed)
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed)
        return run(*[x.clone() for x in inputs])


def _difference(expected: Any, got: Any) -> str:
    """Returns how two results differ; "" if they are equal but for rounding."""
    (wanted, form), (found, got_form) = tree_flatten(expected), tree_flatten(got)
    if form != got_form:
        return f"got {got_form}, expected {form}"
    error = output_error(found, wanted)
    return f"they differ by relative L2 {error:.1e}" if error > _TOLERANCE else ""


def _attributes(model: nn.Module) -> dict[str, Any]:
    """Returns the attributes of all modules that are not PyTorch's, in a form to compare."""
    return {
        f"{path}.{name}".lstrip("."): _comparable(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in OF_MODULES
    }


def _comparable(value: Any, depth: int = 3) -> Any:
    """Returns numbers and texts, what is in containers, and of other objects the identity."""
    if isinstance(value, Tensor):
        return [list(value.shape), value.dtype, repr(value.sum().item())]
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        return repr(value)  # so that NaN equals NaN
    if depth and isinstance(value, dict):
        return [(_comparable(k, 0), _comparable(v, depth - 1)) for k, v in value.items()]
    if depth and isinstance(value, list | tuple | deque):
        return [_comparable(each, depth - 1) for each in value]
    return id(value)
