# SPDX-License-Identifier: BSD-3-Clause
"""Runs a model as it was given, with plans in the place of some of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchalgo._C import Error
from torchalgo._capture.freeze import tensors_in

if TYPE_CHECKING:
    from torchalgo._run.optimized import Optimized


@dataclass(frozen=True)
class AsGiven:
    """A model that no plan can replace as a whole.

    Args:
        why: the reason.
        parts: the planned modules, by the names of the submodules that they replace.
    """

    why: str
    parts: Mapping[str, Optimized]

    def run(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the model. Plans run its parts, without gradients, unless an input needs one."""
        given = tensors_in([*args, *kwargs.values()])
        needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in given)
        if not self.parts or needs_gradient or model.training:
            return model(*args, **kwargs)
        with_parts = _WithParts(model, self.parts)
        try:
            with torch.no_grad():
                return with_parts.top(*args, **kwargs)
        finally:
            with_parts.write_back()

    def error(self, what: str) -> Error:
        """Returns the error of a call that needs a plan of the whole model."""
        return Error(
            f"TA1408 {what}: the model runs as it was given, so there is no plan of the whole:"
            f" {self.why}. {self._advice()}"
        )

    def _advice(self) -> str:
        if not self.parts:
            return "Change what the text names, or optimize a part of the model"
        return f".parts has planned modules for {', '.join(map(repr, self.parts))}"


class _WithParts:
    """A model for one call: the modules around its parts are shallow copies.

    The copies take the attributes that the modules have now, and `write_back` gives the modules
    the attributes that the call has set. So the caller's model is never without its own parts.
    """

    def __init__(self, model: nn.Module, parts: Mapping[str, Optimized]) -> None:
        self._copies: list[tuple[nn.Module, nn.Module, dict[str, Any]]] = []
        self.top = self._copied(model, parts, "")

    def _copied(self, module: nn.Module, parts: Mapping[str, Optimized], prefix: str) -> nn.Module:
        made = nn.Module.__new__(type(module))  # copy.copy may run code of the model
        made.__dict__.update(module.__dict__)
        children = dict(module._modules)
        for name, child in module._modules.items():
            path = f"{prefix}{name}"
            if child is not None and any(each.startswith(f"{path}.") for each in parts):
                children[name] = self._copied(child, parts, f"{path}.")
            elif path in parts and child is parts[path].original_model:
                children[name] = parts[path]
        made.__dict__["_modules"] = children
        self._copies.append((module, made, dict(made.__dict__)))
        return made

    def write_back(self) -> None:
        for module, made, before in self._copies:
            for name, value in made.__dict__.items():
                if name not in before or value is not before[name]:
                    module.__dict__[name] = value
