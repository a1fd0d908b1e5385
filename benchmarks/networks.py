# SPDX-License-Identifier: BSD-3-Clause
"""torchvision's networks with random weights and statistics, for benchmarks and tests."""

from __future__ import annotations

import torch
import torchvision
from torch import Tensor, nn

from torchalgo.demo import randomize_batch_norms

CLASSIFIERS = (
    "resnet18",
    "resnet50",
    "vgg16",
    "alexnet",
    "googlenet",
    "inception_v3",
    "squeezenet1_1",
    "densenet121",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "shufflenet_v2_x1_0",
    "regnet_y_400mf",
    "mnasnet1_0",
)
SEGMENTATION = ("lraspp_mobilenet_v3_large",)
DETECTION = ("ssdlite320_mobilenet_v3_large",)


def random_network(name: str, seed: int = 0) -> nn.Module:
    """A network of torchvision in eval mode: no download, the seed decides all weights."""
    torch.manual_seed(seed)
    options: dict[str, object] = {"weights": None}
    if name in ("googlenet", "inception_v3"):
        options |= {"init_weights": False, "aux_logits": False}
    if name in SEGMENTATION + DETECTION:
        options |= {"weights_backbone": None}
    network: nn.Module = torchvision.models.get_model(name, **options)
    randomize_batch_norms(network, seed)
    return network.eval()


def random_input(name: str, size: int | None = None, batch: int = 1, seed: int = 1) -> Tensor:
    """An image batch of the network's usual size, or of `size` x `size`."""
    usual = {"inception_v3": 299, "ssdlite320_mobilenet_v3_large": 320}
    side = usual.get(name, 224) if size is None else size
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, 3, side, side, generator=generator) * 2 - 1
