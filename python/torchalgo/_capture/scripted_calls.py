# SPDX-License-Identifier: BSD-3-Clause
"""Makes tensor models with torch.jit.script, for models whose control flow depends on values.

Types in TorchScript may differ from those in Python. For example, torchvision's detectors return a
tuple of losses and detections there. The tensors of the result, in order, must be the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from torchalgo._base.trees import Constant, Leaf, Node, Tree, flatten, rebuild, tree_text
from torchalgo._C import Error

PART = "model"  # submodule that holds the model; names of layers begin with it

_LITERALS = (type(None), bool, int, float, str)


def script_tensor_model(
    model: nn.Module,
    inputs: Tree,
    names: Sequence[str],
    returned: Tree | None,
    tensors: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> torch.jit.ScriptModule:
    """Returns a module that takes and returns tensors and calls the scripted `model`.

    Args:
        inputs: the form of the model's arguments, a dict.
        names: the names of forward's arguments.
        returned: the form of forward's result. None means a tuple of all tensors.
        tensors: example inputs.
        expected: the tensors in the model's result for them.
    Raises: torchalgo.Error if TorchScript's result has other tensors, or if an argument cannot be
        written in TorchScript. RuntimeError or another error of torch.jit.script if it refuses the
        model.
    """
    scripted = torch.jit.script(model)
    arguments = rebuild(inputs, iter(tensors))
    found: list[torch.Tensor] = []
    paths: list[str] = []
    flatten(scripted(**arguments), "_result", found, paths)
    is_same = len(found) == len(expected) and all(map(_is_close, found, expected))
    if not is_same:
        raise Error("TA1108 its result in TorchScript holds other tensors than in Python")
    holder: nn.Module = type(type(model).__name__, (nn.Module,), {})()
    holder.add_module(PART, scripted)
    module: torch.jit.ScriptModule = torch.jit.script(holder.eval())
    module.define(_source(inputs, names, returned, paths))
    return module


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, equal_nan=True)


def _source(inputs: Tree, names: Sequence[str], returned: Tree | None, paths: list[str]) -> str:
    assert isinstance(inputs, Node)
    places = iter(names)
    items = zip(inputs.keys, inputs.children, strict=True)
    given = ", ".join(f"{key}={_expression(child, places)}" for key, child in items)
    result = f"({', '.join(paths)},)"
    if returned is not None:
        result = _expression(returned, iter(paths))
    parameters = ", ".join(["self", *(f"{name}: Tensor" for name in names)])
    return f"def forward({parameters}):\n  _result = self.{PART}({given})\n  return {result}\n"


def _expression(tree: Tree, places: Iterator[str]) -> str:
    """Returns the TorchScript code of a value of the form `tree`.

    `places` yields the code of its tensors.
    """
    if isinstance(tree, Leaf):
        return next(places)
    if isinstance(tree, Constant):
        if type(tree.value) not in _LITERALS:
            raise Error(f"TA1108 {tree.value!r} cannot be written in TorchScript")
        return repr(tree.value)
    parts = [_expression(child, places) for child in tree.children]
    if tree.kind is tuple:
        return f"({', '.join(parts)},)"
    if tree.kind is list:
        return f"[{', '.join(parts)}]"
    if tree.kind is dict:
        pairs = zip(tree.keys, parts, strict=True)
        return f"{{{', '.join(f'{key!r}: {part}' for key, part in pairs)}}}"
    raise Error(f"TA1108 {tree_text(tree)} has no type in TorchScript")


def check_parameters(signature: inspect.Signature) -> None:
    """Raises torchalgo.Error if TorchScript cannot take the arguments by name."""
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise Error(f"TA1108 forward takes {parameter}, which TorchScript cannot take")
