# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo demo`: optimizes torchvision's ResNet-50 here and shows the gain."""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from pathlib import Path

import torch
from torch import nn

from torchalgo._api.optimize import optimize
from torchalgo._base.compare_outputs import output_error
from torchalgo._base.progress import Progress
from torchalgo._C import Error
from torchalgo._capture.settings import Settings
from torchalgo._ir.plan import MOST_WAITING
from torchalgo._run.call_times import CallTimes

TUNE_S, COMPARE_S = 90.0, 15.0
RESNET18 = "torchvision.models:resnet18 --input 1x3x224x224"
NEXT = (
    "explain resnet50.pt  # each layer: its algorithm, its time, the next best one",
    f"check {RESNET18}  # faults of a model that cost time",
    f"optimize {RESNET18} -o resnet18.pt  # or package.module:factory, a model of yours",
)


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
    progress = Progress(not args.quiet)
    progress.say("step 1 of 3: building a ResNet-50 with random weights")
    try:
        model = build_model()
    except ImportError:
        raise Error("TA7301 demo: torchvision is missing: pip install torchvision") from None
    x = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    progress.say(f"step 2 of 3: choosing all algorithms, at most {TUNE_S:.0f} s")
    # If there is no time to compare in this step, the plan runs: the next step compares.
    settings = Settings(progress=not args.quiet, run_untimed=True)
    fast = optimize(model, (x,), budget_s=TUNE_S, settings=settings)
    fast.save("resnet50.pt")
    fast.plan.save("resnet50.plan.json")
    if fast.is_interrupted:
        raise KeyboardInterrupt
    progress.say(
        f"step 3 of 3: timing it beside PyTorch, about {COMPARE_S + 5:.0f} s if nothing else runs"
    )
    with progress.watched(lambda: "guard"):
        times = fast.compare(rounds=30, budget_s=COMPARE_S)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        error = output_error(fast(x), exact)
    fast.report("resnet50.html")
    print(f"\n{times}\n\nresult  {verdict(times)}")
    print(f"error   relative L2 {error:.1e} between the outputs and those in double precision")
    print(f"files   resnet50.pt, resnet50.plan.json, {Path('resnet50.html').absolute()}")
    for head, words in zip(("next", "", ""), NEXT, strict=True):
        print(f"{head:<7} {command_name()} {words}")
    return 0


def verdict(times: CallTimes) -> str:
    """Returns what the times say about the plan and PyTorch's fastest way."""
    own = next(iter(times.ns))
    peer = min(times.ratios, key=lambda name: statistics.median(times.ns[name]))
    found = times.ratios[peer]
    text = f"{found.ratio:.2f} times as fast as"
    if found.verdict == "unclear":
        text = "no clear difference from"
    text += f" {peer}, PyTorch's fastest way here [95 %: {found.low:.2f} to {found.high:.2f}]"
    if own == "baseline":
        text = "PyTorch runs, because it was faster than the plan in step 2"
    if times.waited > MOST_WAITING:
        text += f"; do not rely on it: other programs ran {times.waited:.0%} of the time"
    return text


def command_name() -> str:
    """Returns how the user can type this command, relative to the folder if it lies in it."""
    path = Path(sys.argv[0]).absolute()
    is_here = path.is_file() and Path.cwd() in path.parents
    return str(path.relative_to(Path.cwd())) if is_here else "torchalgo"
