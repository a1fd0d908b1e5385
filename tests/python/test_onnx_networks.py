# SPDX-License-Identifier: BSD-3-Clause
"""Networks of torchvision through both exporters: results, names and structures.

TORCHALGO_ALL_NETWORKS=1 runs the 14 networks of docs/onnx.md and prints the rows of its table.
"""

# ruff: noqa: E402
from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
models = pytest.importorskip("torchvision").models

import torchalgo
from torchalgo import _C
from torchalgo._base.compare_outputs import output_error
from torchalgo._cli.demo import randomize_batch_norms
from torchalgo._plan.candidates import best_capture

# The structures differ for these, by exporter; docs/onnx.md says why.
OTHER_STRUCTURE = {
    "resnet18": (True, False), "resnet50": (True, False), "densenet121": (True,),
    "shufflenet_v2_x1_0": (False,),
}  # fmt: skip
OTHER_NAMES = {"densenet121": (True,), "shufflenet_v2_x1_0": (False,)}
NETWORKS = ["squeezenet1_1", "shufflenet_v2_x1_0"]
if os.environ.get("TORCHALGO_ALL_NETWORKS"):
    NETWORKS += [
        "resnet18", "resnet50", "vgg16", "alexnet", "mobilenet_v2", "mobilenet_v3_large",
        "efficientnet_b0", "densenet121", "googlenet", "inception_v3", "mnasnet1_0",
        "regnet_y_400mf",
    ]  # fmt: skip
SIZES = {"inception_v3": 96, "vgg16": 224, "alexnet": 224}


def make(name: str) -> nn.Module:
    """Returns a network with random weights. Biases of zeros would be dropped by an exporter."""
    torch.manual_seed(0)
    options = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = getattr(models, name)(weights=None, **options).eval()
    randomize_batch_norms(model)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.uniform_(module.bias, -0.1, 0.1)
    return model


def graph_of(model: nn.Module, x: torch.Tensor) -> Any:
    return _C.import_graph(best_capture(model, (x,)).frozen._c, (x,)).graph


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_an_exported_network_keeps_results_names_and_structure(name: str, tmp_path: Path) -> None:
    model, size = make(name), SIZES.get(name, 64)
    x = torch.rand(1, 3, size, size)
    graph = graph_of(model, x)
    errors, same = [], []
    for dynamo in (True, False):
        path = tmp_path / f"{dynamo}.onnx"
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            torch.onnx.export(model, (x,), path, dynamo=dynamo, input_names=["x"])
        loaded = torchalgo.load_onnx(path)
        wanted = onnxruntime.InferenceSession(path).run(None, {"x": x.numpy()})[0]
        errors.append(output_error(loaded(x), torch.from_numpy(wanted)))
        found = graph_of(loaded, x)
        names = [sorted(node.name for node in each.nodes) for each in (graph, found)]
        assert (names[0] == names[1]) == (dynamo not in OTHER_NAMES.get(name, ()))
        same.append(graph.structure_hash == found.structure_hash)
        assert same[-1] == (dynamo not in OTHER_STRUCTURE.get(name, ()))
    yes = ["yes" if each else "no" for each in same]
    print(f"| {name} | {errors[0]:.1e} | {errors[1]:.1e} | {yes[0]} | {yes[1]} |")
    assert max(errors) < 1e-5
