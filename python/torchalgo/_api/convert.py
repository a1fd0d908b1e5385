# SPDX-License-Identifier: BSD-3-Clause
"""Converts a model's convolutions to torchalgo.nn's, and sets algorithms on them by name."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import parametrize

from torchalgo._C import Error
from torchalgo._ir.choices import DEVICES, DTYPES, Choice, choice_text, read_choice
from torchalgo._ir.overrides import near_layers, some
from torchalgo._ir.problems import DIRECTION_WORDS, DIRECTIONS, check_directions
from torchalgo.functional import directions_of
from torchalgo.nn import ATTRIBUTES, OURS

LayerChoices = Choice | Mapping[str, Choice]

_TORCH_CONVOLUTIONS = tuple(OURS)
_OUR_CONVOLUTIONS = tuple(OURS.values())


class LayerAlgorithms(NamedTuple):
    """The algorithms that are set on one convolution: names, cuDNN's numbers, or None."""

    name: str
    forward: int | str | None
    backward_data: int | str | None
    backward_filter: int | str | None


def convert(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Returns a model like `model` whose convolutions are modules of torchalgo.nn.

    This covers nn.Conv* and nn.ConvTranspose*. The model computes the same as before until
    algorithms are set. state_dict, hooks, parametrizations, flags and shared modules are kept.
    Subclasses of torch's convolutions are left alone, because their forward may be different. A
    warning names them.

        ours = torchalgo.convert(model)
        ours.conv1.forward_algorithm = "cpu.direct"

    Args:
        model: the model, in train or eval mode, on any device.
        inplace: True changes `model` itself. False copies it. The copy shares its parameters and
            buffers, so that they are in memory once, and training one model trains the other.

    Returns: the converted model; `model` itself if `inplace`.
    Raises: torchalgo.Error if `model` is no nn.Module, or cannot be copied.
    """
    if not isinstance(model, nn.Module):
        raise Error(f"TA1101 convert: model is {type(model).__name__}, expected torch.nn.Module")
    if not inplace:
        model = _copy_sharing_tensors(model)
    left = []
    for name, module in model.named_modules():
        if (reason := _make_ours(module)) and reason != "no convolution":
            left.append(f"{name or 'the model'} ({reason})")
    if left:
        warnings.warn(f"torchalgo.convert left alone: {', '.join(left)}", stacklevel=2)
    return model


def set_algorithms(
    model: nn.Module, algorithms: Mapping[str, LayerChoices]
) -> list[LayerAlgorithms]:
    """Sets algorithms on the convolutions of `model` by name.

    Matching convolutions of torch.nn are converted to torchalgo.nn's in place.

        torchalgo.set_algorithms(model, {"layer1.*.conv2": {"forward": "cpu.direct"}})

    Args:
        model: the model; it is changed in place.
        algorithms: a dict from globs of module names to choices. `*` also matches dots. Later
            entries override earlier ones. A choice is a dict with the keys "forward",
            "backward_data" and "backward_filter"; a missing key leaves its algorithm unchanged. A
            choice may also be that of forward alone, or None, which unsets all three.

    Returns: the convolutions that a glob matched and the algorithms that are set on them now, in
        the order of the model.
    Raises: torchalgo.Error if a glob matches no convolution or a choice is invalid. Then nothing
        is changed.
    """
    if not isinstance(model, nn.Module):
        raise Error(
            f"TA1101 set_algorithms: model is {type(model).__name__}, expected torch.nn.Module"
        )
    if not isinstance(algorithms, Mapping):
        raise Error(
            f"TA4403 set_algorithms: algorithms is {type(algorithms).__name__}, expected {{glob of"
            " module names: choice}, such as {'layer1.*.conv2': {'forward': 'cpu.direct'}}"
        )
    convolutions = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, _TORCH_CONVOLUTIONS)
    }
    wanted: dict[str, dict[str, str]] = {}
    for glob, choices in algorithms.items():
        for name in _matches(glob, convolutions):
            texts = _texts(glob, choices, convolutions[name])
            wanted.setdefault(name, {}).update(texts)
    for name, texts in wanted.items():
        _make_ours(convolutions[name])
        for attribute, text in texts.items():
            setattr(convolutions[name], attribute, text)
    return [_algorithms_of(name, m) for name, m in convolutions.items() if name in wanted]


def _algorithms_of(name: str, module: nn.Module) -> LayerAlgorithms:
    texts = [getattr(module, attribute) for attribute in ATTRIBUTES]
    return LayerAlgorithms(name, *map(read_choice, texts, directions_of(bool(module.transposed))))


def _texts(glob: str, choices: LayerChoices, module: nn.Module) -> dict[str, str]:
    """Returns the texts that one entry of `algorithms` sets on a convolution, by attribute."""
    by_direction: Mapping[Any, Choice]
    if choices is None:
        by_direction = dict.fromkeys(DIRECTION_WORDS)
    elif isinstance(choices, Mapping) and any(_is_word_of_directions(key) for key in choices):
        by_direction = choices
    else:
        by_direction = {"forward": choices}
    texts = {}
    for word, choice in by_direction.items():
        index = DIRECTIONS.index(check_directions(str(word), f"set_algorithms: {glob!r}")[0])
        direction = directions_of(bool(module.transposed))[index]
        what = f"set_algorithms: {glob!r}: {word}"
        texts[ATTRIBUTES[index]] = choice_text(choice, direction, what)
    return texts


def _is_word_of_directions(key: object) -> bool:
    """Returns True unless `key` is a compute type or a device.

    With such a key, a dict holds directions, of which one may be misspelled. Otherwise it is a
    single choice by compute type or device.
    """
    return isinstance(key, str) and key not in (*DTYPES, *DEVICES)


def _matches(glob: str, convolutions: Mapping[str, nn.Module]) -> list[str]:
    """Returns the names that `glob` matches and whose algorithms can be set.

    Raises: torchalgo.Error if there is none.
    """
    if not isinstance(glob, str):
        raise Error(
            f"TA4403 set_algorithms: the key {glob!r} is no string: expected a glob of module names"
        )
    found = [name for name in convolutions if fnmatchcase(name, glob)]
    reasons = {name: _reason_against(convolutions[name]) for name in found}
    settable = [name for name in found if not reasons[name]]
    if settable:
        return settable
    if found:
        text = some([f"{name} ({reasons[name]})" for name in found])
        raise Error(
            f"TA4403 set_algorithms: {glob!r} matches only modules whose algorithms cannot be set:"
            f" {text}"
        )
    raise Error(
        f"TA4403 set_algorithms: {glob!r} matches no"
        f" convolution{near_layers(glob, list(convolutions))}"
    )


# ---- converting one module -----------------------------------------------------------------------


def _plain_type(module: nn.Module) -> type[nn.Module]:
    """Returns the class of `module` without the subclass that parametrizations create."""
    if parametrize.is_parametrized(module):
        return type(module).__bases__[0]
    return type(module)


def _reason_against(module: nn.Module) -> str:
    """Returns the reason why a module cannot be converted; "" if it can be or already is."""
    plain = _plain_type(module)
    if plain in OURS or issubclass(plain, _OUR_CONVOLUTIONS):
        return ""
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        return "is lazy; run the model once first"
    if isinstance(module, torch.jit.ScriptModule):
        return "is TorchScript; convert before scripting"
    if isinstance(module, _TORCH_CONVOLUTIONS):
        return f"is a {plain.__module__}.{plain.__qualname__}"
    return "no convolution"


def _make_ours(module: nn.Module) -> str:
    """Converts `module` in place, so that all references to it stay valid.

    Returns the reason if it cannot be converted, otherwise "".
    """
    if reason := _reason_against(module):
        return reason
    plain = _plain_type(module)
    if plain not in OURS:  # it is converted already
        return ""
    ours = OURS[plain]
    if plain is not type(module):
        # parametrize has created a subclass with properties. It is made again from our class.
        inserted = {
            key: value
            for key, value in vars(type(module)).items()
            if key not in ("__dict__", "__weakref__", "__doc__")
        }
        ours = type(type(module).__name__, (ours,), inserted)
    module.__class__ = ours
    for attribute in ATTRIBUTES:
        setattr(module, attribute, None)
    return ""


def _copy_sharing_tensors(model: nn.Module) -> nn.Module:
    """Returns a deep copy of `model` that shares its parameters and buffers.

    It also shares tensors that a hook computes from them and stores in an attribute, as
    weight_norm does.

    Raises: torchalgo.Error if the model cannot be copied.
    """
    tensors = [*model.parameters(), *model.buffers()]
    for module in model.modules():
        tensors += [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
    try:
        return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    except Exception as problem:
        raise Error(
            f"TA1120 convert: the model cannot be copied ({type(problem).__name__}: {problem});"
            " pass inplace=True"
        ) from problem
