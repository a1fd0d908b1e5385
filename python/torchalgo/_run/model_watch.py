# SPDX-License-Identifier: BSD-3-Clause
"""Records a model as it is when its plans are made, so that calls notice later changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules

from torchalgo import _C
from torchalgo._C import Error

# Attributes of PyTorch's layers that a plan has as numbers.
LAYER_SETTINGS = (
    "eps", "stride", "padding", "padding_mode", "dilation", "groups", "kernel_size", "ceil_mode",
    "count_include_pad", "divisor_override", "return_indices", "output_size", "approximate",
    "min_val", "max_val", "negative_slope", "alpha", "output_padding", "num_groups", "size",
    "scale_factor", "mode", "align_corners",
)  # fmt: skip
_NO_LAYERS = ("torch.nn.modules.module", "torch.nn.modules.container")


def watch_weights(model: nn.Module) -> _C.ModelWatch:
    """Records the parameters and buffers of a model."""
    names, places = [], []
    for prefix, module in model.named_modules():
        owners: list[dict[str, Any]] = [module._parameters, module._buffers]
        if isinstance(module, torch.jit.ScriptModule):  # makes new dicts at each access
            owners = [
                dict(module.named_parameters(recurse=False)),
                dict(module.named_buffers(recurse=False)),
            ]
        for owner in owners:
            for key, tensor in owner.items():
                if isinstance(tensor, torch.Tensor):
                    names.append(f"{prefix}.{key}".removeprefix("."))
                    places.append((owner, key))
    return _C.ModelWatch(names, places)


def watch_layers(watch: _C.ModelWatch, model: nn.Module) -> None:
    """Records the layers of a model, their hooks, their methods and their settings.

    TorchScript's modules cannot be changed in this way, so they are left out.
    """
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        is_torchs = _is_layer_of_torch(module)
        settings = _settings(module) if is_torchs else []
        watch.add_layer(module, path, bool(module._modules) or not is_torchs, settings)
    for hooks in (modules._global_forward_hooks, modules._global_forward_pre_hooks):
        watch.add_global_hooks(hooks)
    watch.why_original = hooks_of(model)


def changed_layers(watch: _C.ModelWatch) -> str:
    """Describes the first change of a model's layers; returns "" if there is none.

    Raises: torchalgo.Error, with the weight's name, if only a weight has changed.
    """
    # Under Dynamo, tensors have no addresses.
    change = None if torch.compiler.is_compiling() else watch.first_change()
    if change is None:
        return ""
    text, is_weight = change
    if is_weight:
        raise Error(
            f"TA1404 forward: {text}: call .refresh() on the optimized module. It packs the new"
            " weights for the same plan and measures nothing"
        )
    return text


def hooks_of(model: nn.Module) -> str:
    """Describes the first forward hook that is not one of torch.nn.utils, "" if there is none.

    The hooks of torch.nn.utils compute weights, so they are a part of the plan. Any other hook may
    do more than a plan can repeat.
    """
    if modules._global_forward_hooks or modules._global_forward_pre_hooks:
        return "there was a global forward hook when the model was planned"
    for path, module in model.named_modules():
        if _has_own_hooks(module._forward_hooks) or _has_own_hooks(module._forward_pre_hooks):
            subject = f"layer {path!r}" if path else "the model"
            return f"{subject} had a forward hook when it was planned"
    return ""


def _has_own_hooks(hooks: Mapping[int, Any]) -> bool:
    return not all(
        any(each.__module__.startswith("torch.nn.utils.") for each in type(hook).__mro__)
        for hook in hooks.values()
    )


def _is_layer_of_torch(module: nn.Module) -> bool:
    """Returns True for PyTorch's own layers and for classes that are derived from them."""
    return any(
        each.__module__.startswith("torch.nn.modules.") and each.__module__ not in _NO_LAYERS
        for each in type(module).__mro__
    )


def _settings(module: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Returns the dicts and keys of settings. A weight that is None may be set later."""
    tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
    return [
        *((vars(module), name) for name in LAYER_SETTINGS if name in vars(module)),
        *((table, key) for table in tables for key, value in table.items() if value is None),
    ]
