# SPDX-License-Identifier: BSD-3-Clause
"""Holds the network of a file: nodes with ops of ONNX, and their weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

MOST_BYTES = 2**31 - 1  # of a file: protobuf's limit
Attribute = int | float | str | tuple[Any, ...] | torch.Tensor


@dataclass(frozen=True)
class Input:
    """An input of the graph. A size that the file leaves open is its name, or None."""

    name: str
    dtype: torch.dtype
    sizes: Sequence[int | str | None]


@dataclass(frozen=True)
class Node:
    """A node of the graph. An input or an output that is left out has the name ""."""

    name: str
    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Attribute]
    notes: Mapping[str, str]  # what the exporter noted about the node


@dataclass(frozen=True)
class Model:
    """The contents of a file."""

    opset: int
    inputs: Sequence[Input]
    outputs: Sequence[str]
    nodes: Sequence[Node]
    weights: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Calls:
    """A network as calls of torch's functions.

    Args:
        weights: the paths and the tensors of the weights, by the names of nodes of the graph.
        inputs: the names of the nodes that are the network's inputs.
        sizes: those of the inputs that the graph relies on; equal words are equal sizes.
    """

    graph: fx.GraphModule
    weights: Mapping[str, tuple[str, torch.Tensor]]
    inputs: Sequence[str]
    sizes: Sequence[Sequence[int | str | None]]


def identifier(name: str) -> str:
    """Returns a text as a name of Python: "input.1" is "input_1"."""
    found = re.sub(r"\W", "_", name, flags=re.ASCII)[:100]
    return found if found[:1].isalpha() or found[:1] == "_" else f"_{found}"
