# SPDX-License-Identifier: BSD-3-Clause
"""Graphs that the importer makes of models, and questions about them."""

from __future__ import annotations

from torch import Tensor, nn

from support.graph_models import freeze, make_model
from torchalgo import _C


def import_model(model: nn.Module, inputs: tuple[Tensor, ...], capture: str) -> _C.Graph:
    return _C.import_graph(freeze(model, inputs, capture)._c, inputs).graph


def graph_of(name: str, capture: str) -> _C.Graph:
    model, inputs = make_model(name)
    return import_model(model, inputs, capture)


def problems(graph: _C.Graph) -> dict[str, str | None]:
    return {node.name: node.problem for node in graph.nodes}


def notes(graph: _C.Graph) -> dict[str, str]:
    return {node.name: node.note for node in graph.nodes if node.note}


def reads(graph: _C.Graph, name: str) -> list[str]:
    node = next(node for node in graph.nodes if node.name == name)
    return [graph.values[value].name for value in node.inputs]


def outputs(graph: _C.Graph) -> list[str]:
    return [graph.values[value].name for value in graph.outputs]
