# SPDX-License-Identifier: BSD-3-Clause
"""Loss curves of a planned network and of eager runs that differ only in rounding.

The training uses SGD on images with patterns of their classes. One label of ten is random, so
the loss does not go to zero. Eight eager runs differ only in rounding: in threads, layout, library,
and the order of the images in a batch. Curves are means of ten steps. The distance of a curve is
the root of the mean square of its difference to the mean of the eager curves, without itself, over
the mean eager loss. The goal was set before the first run, for the run `planned`:

1. Its distance is at most the upper 99 % prediction bound of the logarithms of the eager distances.
2. Its final loss, the mean of 20 steps, is in the 99 % prediction interval of the eager ones.

Both take Student's t for eight values. A difference of at most 0.1 % of the loss is allowed in any
case. With five networks and two tests each, chance alone breaks a goal in one of ten complete runs.
The other runs of the plan are recorded, but do not count. `inside` is the part of the steps in
which a curve is between the least and the largest of the (other) eager curves.
"""

from __future__ import annotations

import math
import statistics

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness import Record

# Of each run: threads (0: as many as --threads), and the seed of the order of the images.
PLANNED = {"planned": (0, 0), "planned, 1 thread": (1, 0), "planned, order 1": (0, 1)}
EAGER = {
    "eager": (0, 0), "1 thread": (1, 0), "channels_last": (0, 0), "without oneDNN": (0, 0),
    "order 1": (0, 1), "order 2": (0, 2), "order 3": (0, 3), "order 4": (0, 4),
}  # fmt: skip
T_ONE_SIDED, T_TWO_SIDED = 2.998, 3.499  # Student's t of 99 %, with 7 degrees of freedom
SMALL = 1e-3  # a difference that is always allowed, in parts of the loss
WINDOW, LAST, KEPT = 10, 20, 5  # steps: of a mean, of the final loss, between recorded values
LEARNING_RATE, MOMENTUM = 0.01, 0.9


def images_of(step: int, options: Record) -> tuple[Tensor, Tensor]:
    """Returns the images and the labels of one step."""
    classes, size, batch = options["classes"], options["size"], options["batch"]
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(classes, 3, 8, 8, generator=generator)
    generator.manual_seed(1000 + step)
    y = torch.randint(0, classes, (batch,), generator=generator)
    x = 0.5 * functional.interpolate(patterns[y], size=(size, size), mode="bilinear")
    x += torch.randn(x.shape, generator=generator)
    other = torch.randint(0, classes, (batch,), generator=generator)
    return x, torch.where(torch.rand(batch, generator=generator) < 0.1, other, y)


def train(model: nn.Module, options: Record, run: str) -> list[float]:
    """Returns the loss of each step."""
    threads, seed = {**PLANNED, **EAGER}[run]
    torch.set_num_threads(threads or options["threads"])
    order = torch.arange(options["batch"])
    if seed:
        order = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))
    layout = torch.channels_last if run == "channels_last" else torch.contiguous_format
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    losses = []
    with torch.backends.mkldnn.flags(enabled=run != "without oneDNN"):
        for step in range(options["steps"]):
            x, y = (each[order] for each in images_of(step, options))
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(model(x.contiguous(memory_format=layout)), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def smoothed(losses: list[float]) -> Tensor:
    return torch.tensor(losses, dtype=torch.float64).unfold(0, WINDOW, 1).mean(1)


def distance(curve: Tensor, others: list[Tensor]) -> float:
    mean = torch.stack(others).mean(0)
    return float((curve - mean).square().mean().sqrt() / mean.mean())


def inside(curve: Tensor, others: list[Tensor]) -> float:
    low, high = torch.stack(others).amin(0), torch.stack(others).amax(0)
    return float(((low <= curve) & (curve <= high)).double().mean())


def judge(losses: dict[str, list[float]]) -> Record:
    """Returns distances, final losses, and the goals, as the docstring of this file says."""
    curves = {run: smoothed(each) for run, each in losses.items()}
    others = {run: [curves[e] for e in EAGER if e != run] for run in losses}
    far = {run: max(distance(curves[run], others[run]), 1e-12) for run in losses}
    final = {run: statistics.fmean(each[-LAST:]) for run, each in losses.items()}
    logs = [math.log(far[run]) for run in EAGER]
    ends = [final[run] for run in EAGER]
    wider = math.sqrt(1 + 1 / len(EAGER))
    bound = math.exp(statistics.fmean(logs) + T_ONE_SIDED * wider * statistics.stdev(logs))
    middle = statistics.fmean(ends)
    half = max(T_TWO_SIDED * wider * statistics.stdev(ends), SMALL * middle)
    return {
        "distance": far,
        "distance_bound": max(bound, SMALL),
        "final": final,
        "final_interval": [middle - half, middle + half],
        "inside": {run: inside(curves[run], others[run]) for run in losses},
        "distinct": len({tuple(losses[run]) for run in EAGER}),
        "met": {
            "distance": far["planned"] <= max(bound, SMALL),
            "final": abs(final["planned"] - middle) <= half,
        },
        "first_loss": losses["eager"][0],
        "curves": {run: [round(float(v), 4) for v in c[::KEPT]] for run, c in curves.items()},
    }
