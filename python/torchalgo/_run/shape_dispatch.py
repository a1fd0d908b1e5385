# SPDX-License-Identifier: BSD-3-Clause
"""Joins several planned modules to one TorchScript module that chooses by its inputs' sizes.

The choice is TorchScript too, so that torch.jit.load and C++ choose as Python does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torchalgo._base.error_code import with_inner_code
from torchalgo._base.overlap import quiet_jit
from torchalgo._C import Error
from torchalgo._capture import shapes as shapes_module
from torchalgo._capture.freeze import JOINED, ScriptModule
from torchalgo._capture.shapes import Dims, Shapes, as_numbers

_PART = "plan_{}"  # the name of a plan's submodule, also in saved files


def join(
    modules: Sequence[ScriptModule],
    shapes: Sequence[Shapes],
    dims: Sequence[Dims | None],
) -> ScriptModule:
    """Joins `modules` to one module, which runs the one whose shapes are nearest to its inputs'.

    Its method `nearest` takes forward's arguments and returns the index of that module. Weights are
    shared. The joined module raises for inputs of sizes for which none of the modules is right.

    Args:
        shapes: the shapes for which each module was planned.
        dims: the sizes for which each module is right; None for any sizes.

    Raises: torchalgo.Error if TorchScript cannot express it, for example if the modules return
        results of different types.
    """
    with quiet_jit():
        try:
            joined: ScriptModule = torch.jit.script(_holder(modules, shapes, dims))
            # The source calls functions of these names. The leading _ avoids conflicts with the
            # names of forward's arguments.
            _choose = torch.jit.script(shapes_module.choose)
            _explain = torch.jit.script(shapes_module.explain)
            joined.define(_source(modules))
        except RuntimeError as problem:
            reason = " ".join(str(problem).split())
            raise Error(
                with_inner_code(
                    "TA2003 save: the plans for several shapes cannot be saved as one TorchScript"
                    f" module: {reason if len(reason) < 300 else reason[:297] + '...'}; save each"
                    " module of .by_shape alone"
                )
            ) from None
    return joined


def _holder(
    modules: Sequence[ScriptModule],
    shapes: Sequence[Shapes],
    dims: Sequence[Dims | None],
) -> nn.Module:
    """Returns a module with the parts of the joined module, but without forward."""

    # The class is a new one each time. TorchScript gives all modules of one class one type, whose
    # forward can be defined only once.
    holder: nn.Module = type(JOINED, (nn.Module,), {})()
    planned = [[list(sizes) for sizes in tensors] for tensors in shapes]
    holder.planned = torch.jit.Attribute(planned, list[list[list[int]]])  # type: ignore[assignment]
    numbers = list(map(as_numbers, dims))
    holder.dims = torch.jit.Attribute(numbers, list[list[list[list[int]]]])  # type: ignore[assignment]
    for i, module in enumerate(modules):
        # The wrapper that torch.jit.freeze returns lacks attributes that a submodule needs. So the
        # same C++ module is wrapped again.
        part = torch.jit._recursive.wrap_cpp_module(module._c)
        holder.add_module(_PART.format(i), part)
    return holder


def parts_of(joined: ScriptModule) -> list[ScriptModule]:
    """Returns the modules that were joined; none if `joined` was not made by `join`."""
    names = map(_PART.format, itertools.count())
    return [getattr(joined, n) for n in itertools.takewhile(lambda n: hasattr(joined, n), names)]


def _source(modules: Sequence[ScriptModule]) -> str:
    forward: Any = modules[0].forward
    arguments = forward.schema.arguments[1:]
    names = ", ".join(argument.name for argument in arguments)
    parameters = ", ".join(["self", *map(_parameter, arguments)])
    lines = [f"def sizes({parameters}) -> List[List[int]]:", "  _shapes: List[List[int]] = []"]
    for argument in arguments:
        lines += _appends(argument.name, argument.type, "  ")
    lines += ["  return _shapes", "", f"def nearest({parameters}) -> int:"]
    lines += [f"  return _choose(self.sizes({names}), self.planned, self.dims)", ""]
    lines += [f"def forward({parameters}):", f"  _plan = self.nearest({names})", "  if _plan < 0:"]
    lines.append(f"    _why = _explain(self.sizes({names}), self.planned, self.dims)")
    lines.append('    raise RuntimeError("torchalgo: " + _why)')
    for i in range(1, len(modules)):
        lines += [f"  if _plan == {i}:", f"    return self.{_PART.format(i)}({names})"]
    lines.append(f"  return self.{_PART.format(0)}({names})")
    return "\n".join(lines) + "\n"


def _parameter(argument: Any) -> str:
    text = f"{argument.name}: {argument.type.annotation_str}"
    return f"{text} = {argument.default_value!r}" if argument.has_default_value() else text


def _appends(value: str, kind: Any, indent: str) -> list[str]:
    """Returns lines that append the shapes of the tensors in `value`, as freeze.tensors_in does."""
    inner = f"_{len(indent)}"  # one name per depth
    if kind.kind() == "TensorType":
        return [f"{indent}_shapes.append({value}.size())"]
    if kind.kind() == "TupleType":
        parts = [_appends(f"{value}[{i}]", k, indent) for i, k in enumerate(kind.elements())]
        return [line for part in parts for line in part]
    if kind.kind() == "OptionalType":
        head = [f"{indent}if {value} is not None:", f"{indent}  {inner} = {value}"]
        body = _appends(inner, kind.getElementType(), indent + "  ")
    elif kind.kind() == "ListType":
        head = [f"{indent}for {inner} in {value}:"]
        body = _appends(inner, kind.getElementType(), indent + "  ")
    elif kind.kind() == "DictType":
        head = [f"{indent}for {inner} in {value}.values():"]
        body = _appends(inner, kind.getValueType(), indent + "  ")
    else:
        return []  # a number or a text holds no tensors
    return [*head, *body] if body else []
