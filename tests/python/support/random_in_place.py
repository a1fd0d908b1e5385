# SPDX-License-Identifier: BSD-3-Clause
"""Random networks that change tensors in place while views and lists hold them."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

FULL, HALF = "full", "half"  # 8 and 4 channels


class InPlaceNet(torch.jit.ScriptModule):
    """A random program of convolutions, sums, changes in place, views, lists, reshapes.

    `forward` is compiled from `source`, and `run` executes the same source in Python. The two may
    differ: TorchScript drops some changes through views while a list holds the whole tensor.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.join = nn.Conv2d(16, 8, 1)
        self.source = _source(random.Random(seed))
        self.define(self.source)

    def run(self, x: Tensor) -> tuple[Tensor, ...]:
        names: dict[str, Any] = {"torch": torch}
        exec(self.source, names)
        results: tuple[Tensor, ...] = names["forward"](self, x)
        return results


def random_in_place_net(seed: int) -> InPlaceNet:
    """Returns the network of a seed, in eval mode.

    Each one has a class of its own, since TorchScript compiles `forward` once for each class.
    """
    kind = type(f"InPlaceNet{seed}", (InPlaceNet,), {})
    net: InPlaceNet = kind(seed).eval()
    return net


def _source(pick: random.Random) -> str:
    lines = ["def forward(self, x):", "    t0 = self.conv(x)", "    t1 = self.conv(t0)"]
    tensors = {"t0": FULL, "t1": FULL}
    roots = {"t0": "t0", "t1": "t1"}  # whose memory a tensor may share
    lists: list[str] = []
    # TorchScript may drop a change of a chunk's part while a list holds the whole tensor.
    read_only: set[str] = set()

    def any_of(shape: str) -> str:
        return pick.choice([name for name, own in tensors.items() if own == shape])

    def writable(shape: str) -> str:
        names = [name for name, own in tensors.items() if own == shape]
        return pick.choice([name for name in names if name not in read_only] or ["t0"])

    def add(shape: str, expression: str, root: str = "") -> None:
        name = f"t{len(tensors)}"
        tensors[name], roots[name] = shape, roots.get(root, name)
        lines.append(f"    {name} = {expression}")

    for _ in range(pick.randint(6, 16)):
        shapes = sorted(set(tensors.values()))
        shape = pick.choice(shapes)
        kind = pick.choice(
            ("conv", "sum", "add_", "add_", "unary_", "unary_", "view", "view", "list", "cat")
            + ("reshape", "chunk", "into")
        )
        if kind == "conv":
            add(FULL, f"self.conv({any_of(FULL)})")
        elif kind == "sum":
            add(shape, f"torch.tanh({any_of(shape)} + {any_of(shape)})")
        elif kind == "add_":
            target = writable(shape)
            other = any_of(tensors[target])
            if roots[target] == roots[other]:  # with a partial overlap the sum is not defined
                other = f"torch.tanh({other})"
            lines.append(f"    {target}.add_({other}, alpha=0.5)")
        elif kind == "unary_":
            op = pick.choice(("relu_()", "sigmoid_()", "mul_(0.5)", "tanh_()"))
            if pick.random() < 0.5:
                lines.append(f"    {writable(shape)}.{op}")
            else:
                target = writable(shape)
                add(tensors[target], f"{target}.{op}", target)
        elif kind == "view":
            whole = any_of(FULL)
            add(HALF, f"{whole}.narrow(1, {pick.randint(0, 4)}, 4)", whole)
        elif kind == "chunk":
            first, second = f"t{len(tensors)}", f"t{len(tensors) + 1}"
            whole = any_of(FULL)
            lines.append(f"    {first}, {second} = {whole}.chunk(2, 1)")
            tensors[first] = tensors[second] = HALF
            roots[first] = roots[second] = roots[whole]
            read_only |= {first, second}
        elif kind == "reshape":
            whole = any_of(FULL)
            add(FULL, f"{whole}.reshape({whole}.size(0), 8, -1).reshape({whole}.size())", whole)
        elif kind == "list":
            lists.append(f"l{len(lists)}")
            lines.append(f"    {lists[-1]} = [{any_of(FULL)}, {any_of(FULL)}]")
        elif kind == "cat" and lists:
            add(FULL, f"self.join(torch.cat({pick.choice(lists)}, 1))")
        elif kind == "into":
            add(FULL, f"torch.cat([{any_of(FULL)}, {any_of(FULL)}], 1)[:, :8]")
    results = pick.sample(sorted(tensors), min(3, len(tensors)))
    lines.append(f"    return {', '.join(results)}, x")
    return "\n".join(lines) + "\n"
