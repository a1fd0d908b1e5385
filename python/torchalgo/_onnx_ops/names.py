# SPDX-License-Identifier: BSD-3-Clause
"""Finds the modules of the exported model to which the nodes of a file belong.

torch.onnx.export keeps them in three places: in notes of each node (the present exporter), in the
names of nodes such as "/layer1/layer1.0/conv1/Conv" (the one before it), and in the names of
weights such as "layer1.0.conv1.weight". The last one says which layer a weight belongs to, also if
the exporter merged a batch norm into it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from torchalgo._onnx_ops.network import Node

_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_PART = re.compile(r"[A-Za-z0-9_-]+")
_CLASS = re.compile(r"torch\.nn\.modules\.\w+\.(\w+)", re.ASCII)
_MOST_PARTS = 64
_WEIGHTS_AT = {
    "Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1, "BatchNormalization": 1,
    "InstanceNormalization": 1, "LayerNormalization": 1, "GroupNormalization": 1, "PRelu": 1,
}  # fmt: skip
# The class of a module whose call is these ops, in the files of the exporter before the present.
_ONE_OP: dict[frozenset[str], type[nn.Module]] = {
    frozenset({"Relu"}): nn.ReLU, frozenset({"LeakyRelu"}): nn.LeakyReLU,
    frozenset({"Sigmoid"}): nn.Sigmoid, frozenset({"Tanh"}): nn.Tanh, frozenset({"Elu"}): nn.ELU,
    frozenset({"Clip"}): nn.ReLU6, frozenset({"HardSigmoid"}): nn.Hardsigmoid,
    frozenset({"HardSwish"}): nn.Hardswish, frozenset({"Gelu"}): nn.GELU,
    frozenset({"Sigmoid", "Mul"}): nn.SiLU, frozenset({"HardSigmoid", "Mul"}): nn.Hardswish,
    frozenset({"Softplus", "Tanh", "Mul"}): nn.Mish, frozenset({"Mish"}): nn.Mish,
    frozenset({"MaxPool"}): nn.MaxPool2d, frozenset({"AveragePool"}): nn.AvgPool2d,
    frozenset({"GlobalAveragePool"}): nn.AdaptiveAvgPool2d, frozenset({"Flatten"}): nn.Flatten,
    frozenset({"Resize"}): nn.Upsample, frozenset({"Softmax"}): nn.Softmax,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """The module that calls a node: its path, and its class if the file tells it."""

    path: str = ""
    made_by: type[nn.Module] = nn.Module

    def stack(self) -> dict[str, tuple[str, type]]:
        """Returns the path as fx_model reads it: each module from the outermost on."""
        parts = self.path.split(".") if self.path else []
        paths = [".".join(parts[: i + 1]) for i in range(len(parts))]
        return {path: (path, self.made_by if path == self.path else nn.Module) for path in paths}


def notes_of(path: str) -> dict[str, str]:
    """Returns notes that give a node this path."""
    return {_SCOPES: f"['', '{path}', '']", _CLASSES: "['', '', '']"}


def places_of(nodes: Sequence[Node], weights: Mapping[str, torch.Tensor]) -> list[Place]:
    """Returns the place of each node; an empty path if the file does not tell it."""
    by_name = _places_by_name(nodes)
    noted = _all_noted(nodes)
    places = []
    for node, named, found in zip(nodes, by_name, noted, strict=True):
        place = found or named
        at = _WEIGHTS_AT.get(node.op)
        if at is not None and at < len(node.inputs):
            owner, _, last = node.inputs[at].rpartition(".")
            if node.inputs[at] in weights and last == "weight" and checked_path(owner):
                place = replace(place, path=owner)
        places.append(place)
    return places


def checked_path(path: str) -> str:
    """Returns the path if modules may have it, otherwise ""."""
    parts = path.split(".")
    blank = nn.Module()
    is_good = len(parts) <= _MOST_PARTS and len(path) <= 1000
    if is_good and all(_PART.fullmatch(p) and not hasattr(blank, p) for p in parts):
        is_good = not any(p.startswith("_fx") or p == "run_graph" for p in parts)
        return path if is_good else ""
    return ""


def _all_noted(nodes: Sequence[Node]) -> list[Place | None]:
    """Reads all notes. A node without any gets the module that holds all nodes that read it."""
    found = [_noted(node) for node in nodes]
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for node, place in zip(nodes, found, strict=True):
        for name in node.inputs if place is not None else ():
            readers[name].append(place.path if place is not None else "")
    for i, node in enumerate(nodes):
        paths = [path for name in node.outputs for path in readers[name]]
        if found[i] is None and paths:
            steps = zip(*(path.split(".") for path in paths), strict=False)
            shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, steps)
            found[i] = Place(".".join(parts[0] for parts in shared))
    return found


def _noted(node: Node) -> Place | None:
    """Reads the notes of the present exporter; None if there are none."""
    scopes = re.findall(r"'([^']*)'", node.notes.get(_SCOPES, "")[:4000])
    classes = re.findall(r"'([^']*)'", node.notes.get(_CLASSES, "")[:4000])
    if len(scopes) < 2 or len(scopes) != len(classes):
        return None
    path = checked_path(scopes[-2])
    return Place(path, _class_named(classes[-2]) if path else nn.Module)


def _class_named(name: str) -> type[nn.Module]:
    match = _CLASS.fullmatch(name)
    found = getattr(nn, match[1], None) if match else None
    return found if isinstance(found, type) and issubclass(found, nn.Module) else nn.Module


def _places_by_name(nodes: Sequence[Node]) -> list[Place]:
    """Reads names of nodes such as "/layer1/layer1.0/conv1/Conv"."""
    paths = [_path_of_name(node.name) for node in nodes]
    known = set(paths)
    parents = {path[:i] for path in known for i in range(len(path)) if path[i] == "."}
    ops: defaultdict[str, list[str]] = defaultdict(list)
    for node, path in zip(nodes, paths, strict=True):
        if node.op not in ("Constant", "Identity"):
            ops[path].append(node.op)
    places = []
    for path in paths:
        made_by: type[nn.Module] = nn.Module
        if path and path not in parents and ops[path] and max(Counter(ops[path]).values()) == 1:
            made_by = _ONE_OP.get(frozenset(ops[path]), nn.Module)
        places.append(Place(_without_count(path, known), made_by))
    return places


def _path_of_name(name: str) -> str:
    """Returns "layer1.0.conv1" for "/layer1/layer1.0/conv1/Conv".

    A name of a module that begins with the one before it and a dot takes its place.
    """
    if not name.startswith("/") or len(name) > 4000:
        return ""
    steps: list[str] = []
    for part in name.split("/")[1:-1]:
        if steps and part.startswith(f"{steps[-1]}."):
            steps[-1] = part
        else:
            steps.append(part)
    return checked_path(".".join(steps)) if steps else ""


def _without_count(path: str, known: set[str]) -> str:
    """Removes the number that a second call of a module has: "relu_1" is "relu".

    The number belongs to the name if no module of the file has the name without it.
    """
    base = re.sub(r"_\d+$", "", path)
    return base if base != path and base in known else path
