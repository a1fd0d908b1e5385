# SPDX-License-Identifier: BSD-3-Clause
"""Networks with random weights and statistics, for benchmarks and tests: torchvision's, and one of
the layers that none of its classifiers has."""

from __future__ import annotations

import argparse
import difflib

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from torchalgo._cli.demo import randomize_batch_norms

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


class RareLayers(nn.Module):
    """Large and one-dimensional filters (super-resolution, factorized segmentation, ConvNeXt), and
    what runs as a call of its own: upsampling, a product of two images, an activation."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 7, stride=4, padding=3)
        self.dense = nn.ModuleList(
            nn.Conv2d(channels, channels, taps, padding=taps // 2) for taps in (5, 7, 9, 11)
        )
        self.across = nn.Conv2d(channels, channels, (1, 5), padding=(0, 2))
        self.down = nn.Conv2d(channels, channels, (5, 1), padding=(2, 0))
        self.depthwise = nn.ModuleList(
            nn.Conv2d(channels, channels, taps, padding=taps // 2, groups=channels)
            for taps in (3, 5, 7)
        )
        self.last = nn.Conv2d(channels, 3, 9, padding=4)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        for conv in self.dense:
            x = functional.relu(conv(x))
        y = functional.relu(self.down(self.across(x)))
        for conv in self.depthwise:
            y = functional.relu(conv(y))
        y = functional.silu(x + y) * x
        y = functional.interpolate(y, scale_factor=2.0, mode="nearest")
        y = functional.interpolate(y, scale_factor=0.5, mode="bilinear")
        result: Tensor = self.last(y)
        return result


RARE_LAYERS = "rare_layers"
NAMES = f"of torchvision.models, or {RARE_LAYERS}"  # what `network_name` takes


def random_network(name: str, seed: int = 0) -> nn.Module:
    """A network of torchvision, or RARE_LAYERS, in eval mode: no download, the seed decides all
    weights."""
    torch.manual_seed(seed)
    if name == RARE_LAYERS:
        return RareLayers().eval()
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


def network_name(text: str) -> str:
    """The type of a command line's argument: a name that `random_network` takes."""
    names = [*torchvision.models.list_models(), RARE_LAYERS]
    if text not in names:
        similar = ", ".join(difflib.get_close_matches(text, names)) or "resnet50"
        raise argparse.ArgumentTypeError(
            f"expected a network {NAMES}, such as {similar}; got {text!r}"
        )
    return text
