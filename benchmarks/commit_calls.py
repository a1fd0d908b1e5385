# SPDX-License-Identifier: BSD-3-Clause
"""Makes and runs plans in the processes of bench_commits.py.

This runs with the torchalgo of either commit. So it uses only what both have.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import torchalgo
from single_layers import LAYERS, input_of, model_of

TURN_S, LEAST_CALLS = 0.05, 3  # of one turn
QUIET: dict[str, Any] = {"progress": False, "cost_db": False, "run_untimed": True}


def tune(name: str, path: str, tune_s: float, threads: int) -> dict[str, int]:
    """Writes a plan for one image. Returns how often it chooses each primitive."""
    torch.set_num_threads(threads)
    layer = LAYERS.get(name)
    tuned = torchalgo.optimize(
        model_of(name), input_of(name), overrides=layer.overrides if layer else None,
        budget_s=tune_s, settings=torchalgo.Settings(**QUIET),
    )  # fmt: skip
    layout = layer.layout if layer else ""
    plan = tuned.alternatives[f"single_layout_{layout}"] if layout else tuned.plan
    plan.save(path)
    return dict(Counter(node.primitive for node in plan.nodes if node.primitive))


def read_plan(path: str) -> torchalgo.Plan:
    """Reads a plan of either commit, without its guard.

    A field that this torchalgo does not know only describes the plan, and is left out.
    """
    data = json.loads(Path(path).read_text())
    known = {field.name for field in dataclasses.fields(torchalgo.Plan)}
    text = json.dumps({name: value for name, value in data.items() if name in known})
    return dataclasses.replace(torchalgo.Plan.from_json(text), guard=None)


def serve(name: str, path: str, threads: int) -> Iterator[Any]:
    """Yields where torchalgo lies, or why it refuses the plan. Then it answers lines of stdin.

    A line is a batch, and a file for the outputs or "". With a file, the answer is the reason by
    layer that did not run as planned. Without, it is the median time of a call in us.
    """
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    settings = torchalgo.Settings(**QUIET)
    try:
        plan = read_plan(path)
        fast = torchalgo.optimize(model_of(name), input_of(name), plan=plan, settings=settings)
    except torchalgo.Error as problem:
        yield {"refused": str(problem)}
        return
    yield {"package": torchalgo.__file__}
    x = input_of(name)
    for line in sys.stdin:
        batch, outputs = json.loads(line)
        x = x if len(x) == batch else input_of(name, batch)
        if not outputs:
            yield median_us(partial(fast, x))
            continue
        torchalgo.reset_fallbacks()
        torch.save(torch.utils._pytree.tree_leaves(fast(x)), outputs)
        yield {layer: reason for layer, (_, reason) in torchalgo.fallbacks().items()}


def median_us(call: Callable[[], Any], now_s: Callable[[], float] = time.perf_counter) -> float:
    """Times the calls of one turn, after an untimed one."""
    call()
    times: list[float] = []
    started = now_s()
    while len(times) < LEAST_CALLS or now_s() - started < TURN_S:
        start = now_s()
        call()
        times.append((now_s() - start) * 1e6)
    return statistics.median(times)
