# SPDX-License-Identifier: BSD-3-Clause
"""Real networks through all steps, at small images; full size: benchmarks/bench_models.py."""

from __future__ import annotations

import copy

import pytest
import torch

import torchalgo
from torchalgo._capture.calls import as_tensor_model, bind_call
from torchalgo._capture.freeze import freeze_model

pytest.importorskip("torchvision")
from networks import CLASSIFIERS, random_input, random_network

SMALLEST = {"inception_v3": 96, "googlenet": 48, "squeezenet1_1": 48, "alexnet": 80, "vgg16": 32}


@pytest.mark.parametrize(
    "name",
    [
        name if name == "resnet18" else pytest.param(name, marks=pytest.mark.slow)
        for name in CLASSIFIERS
    ],
)
def test_network_agrees_with_its_fp64_model(name: str) -> None:
    network = random_network(name)
    x = random_input(name, SMALLEST.get(name, 48))
    fast = torchalgo.optimize(
        network, x, budget_s=4, settings=torchalgo.Settings(run_untimed=True, progress=False)
    )
    with torch.no_grad():
        exact = copy.deepcopy(network).double()(x.double())
        result = fast(x)
    assert (result - exact).norm() / exact.norm() <= 1e-5
    convolutions = {n for n, m in network.named_modules() if isinstance(m, torch.nn.Conv2d)}
    assert convolutions <= {node.name for node in fast.plan.nodes}, "each convolution is planned"


@pytest.mark.slow
def test_segmentation_network_with_a_dict_output_agrees() -> None:
    network = random_network("lraspp_mobilenet_v3_large")
    x = random_input("lraspp_mobilenet_v3_large", 64)
    fast = torchalgo.optimize(network, x, budget_s=4, settings=torchalgo.Settings(progress=False))
    with torch.no_grad():
        exact = copy.deepcopy(network).double()(x.double())["out"]
        result = fast(x)["out"]
    assert (result - exact).norm() / exact.norm() <= 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:To copy construct", "ignore:SSD always returns")
def test_a_detection_network_is_scripted_and_returns_the_types_of_the_original() -> None:
    network = random_network("ssdlite320_mobilenet_v3_large")
    image = random_input("ssdlite320_mobilenet_v3_large", 320)[0]
    made = as_tensor_model(bind_call(network, ([image],), {}))
    with torch.no_grad():
        frozen = freeze_model(made.model, made.inputs)
        expected, result = network([image]), made.form.result(frozen(image))
    assert "prim::If" in str(frozen.graph)
    assert type(result) is list
    assert [list(each) for each in result] == [list(each) for each in expected]
    # With random weights all anchors score nearly alike: rounding decides which of them survive.
    assert torch.allclose(result[0]["scores"], expected[0]["scores"], rtol=0.1)
