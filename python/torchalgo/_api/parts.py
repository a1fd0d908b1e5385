# SPDX-License-Identifier: BSD-3-Clause
"""Plans parts of a model that cannot be planned as a whole."""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torchalgo._base.call_context import CallContext
from torchalgo._base.kept_model import KeptModel, kept_model
from torchalgo._C import Error
from torchalgo._capture.calls import as_tensor_models
from torchalgo._capture.example_calls import ModelCall
from torchalgo._capture.freeze import tensors_in
from torchalgo._capture.settings import Options
from torchalgo._capture.shapes import shapes_of
from torchalgo._ir.overrides import check_form, near_layers
from torchalgo._run.optimized import Optimized
from torchalgo._run.original import Original, Planned

_OF_OVERRIDES = ("TA4004", "TA4201", "TA4202", "TA4203")  # codes of their errors
MOST_CALLS = 4  # of one part that get a plan; others run the nearest one

_CONVOLUTIONS = (nn.modules.conv._ConvNd, torch.jit.ScriptModule)


def plan_parts(
    options: Options,
    model: nn.Module,
    calls: Sequence[ModelCall],
    planner: Callable[..., Planned],
    call: CallContext,
) -> dict[str, Optimized]:
    """Returns plans of the largest submodules that can be captured and have convolutions.

    Args:
        calls: the calls of the whole model, which show what its submodules are called with.
        planner: plans calls of a submodule as plan_calls does.

    Raises: torchalgo.Error if an override names no layer of a part, or cannot be kept.
    """
    found = dict(_largest(model, "", _calls_of_parts(model, calls)))
    overrides = _overrides_by_part(options.overrides, {n: model.get_submodule(n) for n in found})
    planned: dict[str, Optimized] = {}
    for i, (name, of_part) in enumerate(found.items()):
        part = model.get_submodule(name)
        seconds = max(1.0, call.part(len(found) - i).deadline.budget_s)
        own = dataclasses.replace(options, budget_s=seconds, overrides=overrides.get(name))
        deadline = call.within(seconds).deadline
        call.progress.say(f"part {i + 1} of {len(found)}: {name}")
        original = Original(part, functools.partial(planner, own))
        try:
            result = original.plan(of_part, deadline=deadline)
        except Error as problem:
            if problem.code in _OF_OVERRIDES:
                raise
            call.progress.say(f"{name} runs as it was given: {problem}")
            continue
        if result.as_given is not None:
            inner = result.as_given.parts
            planned |= {f"{name}.{below}": module for below, module in inner.items()}
        else:
            planned[name] = Optimized(*result.results, form=result.form, original=original)
    return planned


def _calls_of_parts(model: nn.Module, calls: Sequence[ModelCall]) -> dict[str, list[ModelCall]]:
    """Returns the calls of each submodule with convolutions, of different shapes each.

    The calls are those of a copy of the model. Without a copy, nothing is known.
    """
    try:
        copied = copy.deepcopy(model)
    except Exception:  # it holds a lock, a file or the like
        return {}
    found: dict[str, list[ModelCall]] = {}
    kept = KeptModel(copied)
    kept.copy_weights()

    def keep(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        known = found.setdefault(name, [])
        shapes = shapes_of(tensors_in([args, kwargs]))
        if all(shapes_of(tensors_in([*call])) != shapes for call in known):
            known.append((args, kwargs))

    for name, module in copied.named_modules():
        if name and _has_convolutions(module) and not isinstance(module, torch.jit.ScriptModule):
            module.register_forward_pre_hook(functools.partial(keep, name), with_kwargs=True)
    with torch.no_grad():
        for args, kwargs in calls:
            copied(*args, **kwargs)
    written = kept.written()  # such weights cannot be packed
    return {
        name: each[:MOST_CALLS]
        for name, each in found.items()
        if not any(weight.startswith(f"{name}.") for weight in written)
    }


def _largest(
    module: nn.Module, prefix: str, calls: Mapping[str, list[ModelCall]]
) -> Iterator[tuple[str, list[ModelCall]]]:
    """Yields the names of the largest submodules that can be captured, and their calls."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if path in calls and _is_capturable(child, calls[path]):
            yield path, calls[path]
        else:
            yield from _largest(child, f"{path}.", calls)


def _is_capturable(module: nn.Module, calls: Sequence[ModelCall]) -> bool:
    try:
        with kept_model(module) as kept:
            models = as_tensor_models(module, calls, kept)
    except Error:
        return False
    return not any(each.seen.reads for each in models)


def _has_convolutions(module: nn.Module) -> bool:
    return any(isinstance(each, _CONVOLUTIONS) for each in module.modules())


def _overrides_by_part(overrides: Any, parts: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Returns the overrides of the layers of each part, by the part's own names of them.

    As in a plan of the whole, a glob selects convolutions, or other modules if it matches none.
    """
    if not overrides:
        return {}
    check_form(overrides)
    layers = {
        f"{part}.{layer}".removesuffix("."): (part, layer, isinstance(module, _CONVOLUTIONS))
        for part, within in parts.items()
        for layer, module in within.named_modules()
    }
    own: dict[str, Any] = {}
    for glob, primitive in overrides.items():
        named = [each for name, each in layers.items() if fnmatch.fnmatchcase(name, glob)]
        if not named:
            names = [name for name, (*_, is_convolution) in layers.items() if is_convolution]
            raise Error(
                f"TA4202 overrides: {glob!r} matches no module of a planned part (the model runs in"
                f" parts){near_layers(glob, names)}"
            )
        for part, layer, _ in [each for each in named if each[2]] or named:
            own.setdefault(part, {})[layer] = primitive
    return own
