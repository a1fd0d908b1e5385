# SPDX-License-Identifier: BSD-3-Clause
"""Plans from random costs, and what they compute."""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from torchalgo import _C, EmittedNetwork
from torchalgo._api.emit import write_plan
from torchalgo._capture.freeze import freeze_model


def priced_plan(
    graph: _C.Graph, price: Callable[[_C.CostKey], int], coarse_on: _C.Device | None = None
) -> _C.Plan:
    """The best plan where each candidate costs what `price` says.

    `coarse_on` is a device whose candidates that store data in coarser types are among them.
    """
    candidates = _C.find_candidates(graph, device=coarse_on, coarse_types=coarse_on is not None)
    transforms = _C.transform_candidates(graph, candidates, coarse_on)
    costs = _C.CostTable()
    while True:
        plan, wanted = _C.make_plan(graph, candidates, transforms, costs)
        if not wanted:
            return plan
        for key in wanted:
            costs.set(key, price(key), "measured")


def drawn_price(seed: int, key: _C.CostKey) -> int:
    text = f"{seed} {key.problem} {key.primitive} {key.src} {key.dst}"
    return int(hashlib.sha256(text.encode()).hexdigest()[:6], 16) + 1


def own_plan(graph: _C.Graph, seed: int) -> _C.Plan:
    """A plan of random kernels of torchalgo, and of others only where it has none."""
    most = 1 << 24

    def price(key: _C.CostKey) -> int:
        drawn = drawn_price(seed, key)
        if not _C.has_own_kernel(key.primitive):
            return 1000 * most
        return drawn // 100 if key.problem.startswith("transform_") else drawn

    return priced_plan(graph, price)


def any_plan(graph: _C.Graph, seed: int, prefix: str = "") -> _C.Plan:
    """The best plan for costs drawn by `seed`: it mixes providers and layouts as no real one would.

    Transforms are cheap, so that layouts change often; primitives whose name starts with `prefix`
    are nearly free.
    """

    def price(key: _C.CostKey) -> int:
        drawn = drawn_price(seed, key)
        if key.problem.startswith("transform_"):
            return drawn // 100
        return drawn // 1000 if prefix and key.primitive.startswith(prefix) else drawn

    return priced_plan(graph, price)


def rewrite(imported: _C.Imported, plan: _C.Plan) -> torch.jit.ScriptModule:
    module: Any = _C.rewrite_graph(imported, plan)
    return torch.jit._recursive.wrap_cpp_module(module)


def emit_random_plan(
    model: nn.Module,
    x: Tensor,
    folder: Path,
    devices: Sequence[_C.Device],
    *,
    is_packed: bool = True,
) -> EmittedNetwork:
    """Writes a plan of random kernels of torchalgo as C++."""
    imported = _C.import_graph(freeze_model(model.eval(), (x,))._c, (x,))
    graph = imported.graph
    plan = own_plan(graph, seed=len(folder.name))
    scripted = rewrite(imported, plan)
    return write_plan(graph, plan, scripted, folder, folder.name, devices, is_packed=is_packed)


def assert_close(got: Any, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(*[x.double() for x in inputs])
    got_leaves, exact_leaves = tree_leaves(got), tree_leaves(exact)
    assert len(got_leaves) == len(exact_leaves)
    for a, b in zip(got_leaves, exact_leaves, strict=True):
        assert a.shape == b.shape
        error = (a.double() - b).norm() / b.norm().clamp_min(1e-30)
        assert error < 1e-4, f"relative L2 {error:.1e}"


def op_counts(module: torch.jit.ScriptModule) -> Counter[str]:
    graph: Any = module.graph
    kinds = [node.kind() for node in graph.nodes()]
    return Counter(kind for kind in kinds if kind.startswith("torchalgo::"))
