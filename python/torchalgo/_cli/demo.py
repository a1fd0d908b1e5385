# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo demo`: optimizes torchvision's ResNet-50 here and shows the gain."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from torch import nn

from torchalgo._api.optimize import optimize
from torchalgo._base.compare_outputs import output_error
from torchalgo._base.progress import Progress
from torchalgo._C import Error
from torchalgo._capture.settings import Settings
from torchalgo._report.texts import short_report


def randomize_batch_norms(model: nn.Module, seed: int = 0) -> None:
    """Gives batch norms statistics as after training. With the initial ones, they do nothing."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            shape = module.running_mean.shape  # type: ignore[union-attr]
            module.running_mean = 0.1 * torch.randn(shape, generator=generator)
            module.running_var = 0.5 + torch.rand(shape, generator=generator)
            with torch.no_grad():
                module.weight.copy_(0.5 + 0.5 * torch.rand(shape, generator=generator))
                module.bias.copy_(0.1 * torch.randn(shape, generator=generator))


def build_model() -> nn.Module:
    """Returns ResNet-50 with random weights. Downloads nothing."""
    import torchvision

    torch.manual_seed(0)
    model: nn.Module = torchvision.models.resnet50(weights=None)
    randomize_batch_norms(model)
    return model.eval()


def run(args: argparse.Namespace) -> int:
    """Optimizes, checks and times ResNet-50. Writes resnet50.pt, its plan and its report."""
    try:
        model = build_model()
    except ImportError:
        raise Error("TA7301 demo: torchvision is missing: pip install torchvision") from None
    x = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    fast = optimize(model, (x,), settings=Settings(progress=not args.quiet))
    fast.save("resnet50.pt")
    fast.plan.save("resnet50.plan.json")
    print(short_report([fast.plan], Path("resnet50.pt")), end="", flush=True)
    if fast.is_interrupted:
        raise KeyboardInterrupt
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        print(f"\nrelative L2 of the output to the fp64 model: {output_error(fast(x), exact):.1e}")
    progress = Progress(not args.quiet)
    progress.say("timing the network beside PyTorch")
    with progress.watched(lambda: "guard"):
        times = fast.compare(rounds=30, budget_s=15.0)
    print(f"\n{times}")
    fast.report("resnet50.html")
    print(f"\nreport  {Path('resnet50.html').absolute()}: open it in a browser")
    return 0
