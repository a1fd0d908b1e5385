# SPDX-License-Identifier: BSD-3-Clause
"""Random networks that are trained, with views of channels and changes in place."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from torch import Tensor, nn

_MOST_CHANNELS = 24


class ViewsNet(nn.Module):
    """Runs `source`, a program of convolutions, norms, sums, views of channels, changes in place.

    Its tensors are v0, v1 and so on. An in-place step may change what a view or its source holds.
    """

    def __init__(self, seed: str) -> None:
        super().__init__()
        torch.manual_seed(random.Random(seed).randrange(1 << 30))
        self.layers = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1)])
        self.source = self._program(random.Random(seed))
        self._code = compile(self.source, f"views of {seed}", "exec")

    def _program(self, pick: random.Random) -> str:
        lines, channels = ["v0 = self.layers[0](x)"], [8]
        for _ in range(pick.randint(3, 10)):
            i = pick.randrange(len(channels))
            for text, c in self._step(pick, i, channels):
                lines.append(f"v{len(channels)} = {text}")
                channels.append(c)
        results = []
        for i in {len(channels) - 1, pick.randrange(len(channels))}:
            results.append(f"{self._layer(nn.Conv2d(channels[i], 3, 1))}(v{i})")
        if pick.random() < 0.2:
            results += ["v0", f"v{len(channels) - 1}"]
        return "\n".join([*lines, f"results = ({', '.join(results)},)"])

    def _layer(self, layer: nn.Module) -> str:
        self.layers.append(layer)
        return f"self.layers[{len(self.layers) - 1}]"

    def _step(self, pick: random.Random, i: int, channels: list[int]) -> list[tuple[str, int]]:
        """Returns the expressions of a step on tensor i, with the channels of their results."""
        c, v = channels[i], f"v{i}"
        alike = f"v{pick.choice([j for j, k in enumerate(channels) if k == c])}"
        other = pick.randrange(len(channels))
        begin, groups = pick.randrange(c), pick.choice([2, 4])
        end = pick.randint(begin + 1, c)
        steps = {
            "conv": [(f"{{layer}}({v})", 8)],
            "norm": [(f"{{layer}}({v})", c)],
            "relu": [(f"{v}.relu()", c)],
            "change": [(f"{v}.relu_()", c)],
            "change of a slice": [(f"{v}[:, :1].relu_()", 1)],
            "sum": [(f"{v} + {alike}", c)],
            "sum in place": [(f"{v}.add_({alike})", c)],
            "product": [(f"{v} * {alike}", c)],
            "slice": [(f"{v}[:, {begin}:{end}]", end - begin)],
            "halves": [(f"{v}[:, : {c // 2}]", c // 2), (f"{v}[:, {c // 2} :]", c - c // 2)],
            "split": [(f"{v}.split({c // 2}, 1)[0]", c // 2)],
            "all channels": [(f"{v}[:, :{c}]", c)],
            "contiguous": [(f"{v}.contiguous()", c)],
            "wait": [(f"torch.nn.functional.dropout({v}, 0.0)", c)],  # runs in PyTorch
            "rows as columns": [(f"{v}.permute(0, 1, 3, 2)", c)],
            "pool": [(f"torch.nn.functional.max_pool2d({v}, 3, 1, 1)", c)],
            "scale": [(f"{v} * {v}.mean((2, 3), keepdim=True)", c)],
        }
        if c < 2:
            del steps["halves"], steps["split"]
        if c + channels[other] <= _MOST_CHANNELS:
            steps["join"] = [(f"torch.cat([{v}, v{other}], 1)", c + channels[other])]
        if c % groups == 0:
            sizes = f"-1, {groups}, {c // groups}, {v}.shape[2], {v}.shape[3]"
            views = f"{v}.reshape({sizes}).transpose(1, 2).reshape({v}.shape)"
            steps["shuffle"] = [(views, c)]
        kind = pick.choice(list(steps))
        layers = {"conv": nn.Conv2d(c, 8, 3, padding="same"), "norm": nn.BatchNorm2d(c)}
        layer = self._layer(layers[kind]) if kind in layers else ""
        return [(text.format(layer=layer), k) for text, k in steps[kind]]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        names: dict[str, Any] = {"torch": torch, "self": self, "x": x}
        exec(self._code, names)
        results: tuple[Tensor, ...] = names["results"]
        return results


def random_views_net(seed: int, x: Tensor) -> ViewsNet:
    """Returns a network that eager PyTorch can train on x: the first such one of a seed."""
    for number in range(100):
        net = ViewsNet(f"{seed} {number}")
        try:
            results = copy.deepcopy(net)(x)
            sum(result.square().mean() for result in results).backward()  # type: ignore[union-attr]
        except RuntimeError:  # a tensor was changed that a gradient needs
            continue
        return net
    raise AssertionError(f"no network of seed {seed} can be trained")
