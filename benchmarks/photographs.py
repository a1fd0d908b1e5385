# SPDX-License-Identifier: BSD-3-Clause
"""Crops of the photographs that scikit-image and scikit-learn ship, and networks that know them.

Random pixels are a poor stand-in for images: neighbours do not depend on each other, so a mean over
an image is always about the same. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchalgo._C import Error

# Statistics and the examples of a plan are from these photographs: a woman, a cat, a cup, a
# motorcycle and a flower.
SEEN = ("astronaut", "chelsea", "coffee", "stereo_motorcycle", "flower")
UNSEEN = ("rocket", "china")  # a rocket in its tower, a temple
LEAST_SIDE = 0.3  # of a crop, as a part of the photograph's shorter side
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, per colour
CROPS = 32  # that the batch norms have seen


def read_photographs(names: Sequence[str]) -> list[Tensor]:
    """Reads photographs as [3, h, w], with values from 0 to 1.

    Raises: torchalgo.Error if scikit-image or scikit-learn is not installed.
    """
    try:
        from skimage import data
        from sklearn.datasets import load_sample_image
    except ImportError as problem:
        raise Error(
            f"TA7201 photographs: {problem}: run `pip install -r requirements-bench.txt`"
        ) from None
    found = []
    for name in names:
        own = getattr(data, name, None)
        given = load_sample_image(f"{name}.jpg") if own is None else own()
        pixels = given[0] if isinstance(given, tuple) else given  # one of the stereo pair
        found.append(torch.tensor(pixels).permute(2, 0, 1).float() / 255)
    return found


def crops_of(photographs: Sequence[Tensor], count: int, size: int, seed: int) -> Tensor:
    """Returns square crops of all photographs in turn as [count, 3, size, size], as networks read
    them. The places, sides and flips are random."""
    generator = torch.Generator().manual_seed(seed)
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, DEVIATION))
    found = []
    for i in range(count):
        photograph = photographs[i % len(photographs)]
        share, down, right, flip = torch.rand(4, generator=generator).tolist()
        h, w = photograph.shape[1:]
        side = round(min(h, w) * (LEAST_SIDE + (1 - LEAST_SIDE) * share))
        top, left = round(down * (h - side)), round(right * (w - side))
        crop = photograph[:, top : top + side, left : left + side]
        crop = functional.interpolate(
            crop[None], (size, size), mode="bilinear", align_corners=False, antialias=True
        )[0]
        found.append(((crop.flip(2) if flip < 0.5 else crop) - mean) / deviation)
    return torch.stack(found)


def with_statistics(network: nn.Module, images: Tensor) -> nn.Module:
    """Gives each batch norm the mean and the variance of what it reads for the images."""
    for module in network.modules():
        module.training = isinstance(module, nn.BatchNorm2d)
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean over all calls
    with torch.no_grad():
        network(images)
    return network.eval()
