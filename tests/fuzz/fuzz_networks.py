# SPDX-License-Identifier: BSD-3-Clause
"""Random networks with plans of random costs, against f64: each seed is a network.

    python tests/fuzz/fuzz_networks.py networks --minutes 30

Each plan runs in TorchScript's interpreter, in the runner and, sometimes, from a saved file; on the
planned input and on inputs of other sizes, batches and strides, and with a NaN. A case is a run.
"""

from __future__ import annotations

import copy
import hashlib
import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import isolated
from campaign import FindingError, main
from random_network import Network
from torchalgo import _C
from torchalgo._capture.freeze import freeze_model

PLANS = 5
PREFERRED = (
    "",
    "cpu.",
    "cpu.",
    "view.",
    "cpu.conv_chain",
)  # by plan: made a thousand times cheaper
TRANSFORM_DISCOUNTS = (100, 10, 1, 1000, 100)  # by plan
Run = Callable[[Tensor], Any]
Case = tuple[str, Tensor, list[tuple[Tensor, float]]]  # name, input; outputs and their bounds


def price(seed: int, plan: int, key: Any) -> int:
    """Invents a cost for a candidate; always the same one."""
    text = f"{seed} {plan} {key.problem} {key.primitive} {key.src} {key.dst}"
    ticks = int(hashlib.sha256(text.encode()).hexdigest()[:6], 16)
    if key.problem.startswith("transform_"):
        return 1 + ticks // TRANSFORM_DISCOUNTS[plan]
    is_fused = plan == 4 and (key.problem.startswith("chain") or "+" in key.problem)
    wanted = PREFERRED[plan] and key.primitive.startswith(PREFERRED[plan])
    return 1 + ticks // (1000 if wanted or is_fused else 1)


def planned(seed: int, plan: int, imported: Any) -> Any:
    """Rewrites the graph by the best plan for invented costs."""
    candidates = _C.find_candidates(imported.graph)
    transforms, costs = _C.transform_candidates(imported.graph, candidates), _C.CostTable()
    while True:
        native, wanted = _C.make_plan(imported.graph, candidates, transforms, costs)
        if not wanted:
            break
        for key in wanted:
            costs.set(key, price(seed, plan, key), "measured")
    return torch.jit._recursive.wrap_cpp_module(_C.rewrite_graph(imported, native))


def inputs_of(rng: random.Random, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields inputs by name; the first one is planned."""
    n, c, h, w = x.shape
    yield "planned", x
    yield "channels_last", x.contiguous(memory_format=torch.channels_last)
    yield "batch", torch.randn(n + 2, c, h, w)
    yield "batch_1", torch.randn(1, c, h, w)
    yield "batch_0", torch.randn(0, c, h, w)
    yield "size", torch.randn(n, c, h + rng.choice((1, 2, 4, 5)), w + rng.choice((0, 1, 3)))
    yield "small", torch.randn(2, c, max(3, h // 2), max(3, w // 2))
    yield "strided", torch.randn(n, c, h, 2 * w)[..., ::2]
    with_nan = x.clone()
    with_nan[0, 0, h // 2, w // 2] = float("nan")
    yield "nan", with_nan
    yield "planned again", x


def cases_of(rng: random.Random, network: Network, frozen: Any, x: Tensor) -> Iterator[Case]:
    """Yields inputs with their outputs in f64, if the frozen network has these outputs."""
    exact = copy.deepcopy(network).double()
    for name, given in inputs_of(rng, x):
        try:
            expected, results = exact(given.double()), frozen(given)
        except (RuntimeError, ValueError):  # too small an image
            continue
        pairs = list(zip(results, expected, strict=True))
        if any(a.shape != b.shape for a, b in pairs):
            continue
        errors = [error_of(a, b) for a, b in pairs]
        if name == "nan" or all(error <= 1e-4 for error in errors):
            bounds = [max(2e-5, 4 * error) for error in errors]  # what cancels does so in any plan
            yield name, given, list(zip(expected, bounds, strict=True))


def error_of(result: Tensor, expected: Tensor) -> float:
    """Returns the relative L2 error; 0 if the absolute one is below 1e-7."""
    error = float((result.double() - expected).norm())
    return 0.0 if error <= 1e-7 else error / max(float(expected.norm()), 1e-30)


def ways_to_run(rng: random.Random, module: Any, x: Tensor) -> Iterator[tuple[str, Run]]:
    yield "script", module
    runner = _C.GraphRunner.make(module._c, [(tuple(x.shape), x.dtype)])
    if runner is not None:
        yield "runner", runner.run
        if rng.random() < 0.2:
            plan = _C.make_plan_object([(module._c, [(tuple(x.shape), x.dtype)], [])], "cpu")
            (written,) = _C.modules_of_plan_object(plan, ["x"])
            yield "program", torch.jit._recursive.wrap_cpp_module(written)
    if rng.random() < 0.2:
        buffer = io.BytesIO()
        torch.jit.save(module, buffer)
        buffer.seek(0)
        yield "file", torch.jit.load(buffer)


def check(run: Run, case: Case, where: str) -> str:
    """Runs one input; raises FindingError where a value, a shape or the input is wrong."""
    name, x, expected = case
    before = x.clone()
    results = run(x)
    if results is NotImplemented:
        return "left to the interpreter"
    for i, (y, (exact, bound)) in enumerate(zip(results, expected, strict=True)):
        if y.shape != exact.shape:
            raise FindingError(f"{where}, {name}: output {i} has shape {tuple(y.shape)}")
        if name == "nan":
            if (exact.isnan() & ~y.isnan()).any():
                raise FindingError(f"{where}: output {i} lost a NaN")
        elif not (error := error_of(y, exact)) <= bound:
            raise FindingError(f"{where}, {name}: output {i} has an error of {error:.2g}")
    if name != "nan" and not torch.equal(x, before):
        raise FindingError(f"{where}, {name}: the input was changed")
    return "run"


@torch.no_grad()
def networks(seed: int) -> list[str]:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    network, outcomes = Network(rng).eval(), []
    height = rng.choice((7, 8, 12, 14, 16, 20, 28))
    width = height + rng.choice((0, 0, 1, 3))
    x = torch.randn(rng.choice((1, 1, 1, 2)), network.channels, height, width)
    try:
        network(x)
    except (RuntimeError, ValueError):  # an image became too small
        return ["no network"]
    frozen = freeze_model(network, (x,))
    imported = _C.import_graph(frozen._c, (x,))
    cases = list(cases_of(rng, network, frozen, x))
    for plan in range(PLANS):
        module = planned(seed, plan, imported)
        for way, run in ways_to_run(rng, module, x):
            outcomes += [f"{way}: {check(run, case, f'plan {plan}, {way}')}" for case in cases]
    return outcomes


FUZZERS = {"networks": networks}

if __name__ == "__main__":
    main(__doc__ or "", FUZZERS, isolated.results)
