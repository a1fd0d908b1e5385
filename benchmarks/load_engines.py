# SPDX-License-Identifier: BSD-3-Clause
"""The engines of bench_load.py, in the processes that call a network."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import engines
import torchalgo
from harness import Record
from pages import OWN
from single_layers import input_of, model_of
from torchalgo._C import has_own_kernel
from torchalgo_cli.turns import Drive, answers, by_call

UNPINNED = {"ENABLE_CPU_PINNING": False}
THROUGHPUT = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": None}
OPENVINO: dict[str, dict[str, Any]] = {  # options; None: OpenVINO's own choice
    "openvino": {},
    "openvino_unpinned": UNPINNED,
    "openvino_throughput": THROUGHPUT,
    "openvino_throughput_unpinned": {**THROUGHPUT, **UNPINNED},
    "openvino_default": {"INFERENCE_PRECISION_HINT": None},
}
LEFT = {f"{OWN}_left_{percent}": percent for percent in (2, 10)}  # of the time, to PyTorch
ENGINES = (OWN, *LEFT, *dict.fromkeys((*engines.PEERS, *OPENVINO)))
QUIET: dict[str, Any] = {"progress": False, "cost_db": False}


def openvino_drive(model: nn.Module, x: Tensor, options: Mapping[str, Any]) -> tuple[Drive, Record]:
    """Keeps as many requests in flight as OpenVINO advises."""
    import openvino as ov

    config = {**engines.openvino_config(), **options}
    config = {name: value for name, value in config.items() if value is not None}
    compiled = engines.openvino_compiled(model, x, config)
    requests = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    precision = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    facts = {"options": config, "precision": precision, "in_flight": requests}
    feed = {0: x.numpy()}
    if requests == 1:
        return by_call(partial(compiled.create_infer_request().infer, feed)), facts
    queue, times = ov.AsyncInferQueue(compiled, requests), list[float]()
    queue.set_callback(lambda _, started: times.append(time.monotonic() - started))

    def drive(until_s: float) -> list[float]:
        times.clear()
        while not times or time.monotonic() < until_s:
            queue.get_idle_request_id()  # waits for one
            queue.start_async(feed, time.monotonic())
        queue.wait_all()
        return list(times)

    return drive, facts


def make_drive(engine: str, model: nn.Module, x: Tensor, plan: str) -> tuple[Drive, Record]:
    """Builds an engine. Returns its calls, and what a record says of it."""
    if engine in OPENVINO:
        return openvino_drive(model, x, OPENVINO[engine])
    facts: Record = {"precision": "f32", "in_flight": 1}
    if engine not in (OWN, *LEFT):
        return by_call(engines.PEERS[engine](model, x)), facts
    settings = torchalgo.Settings(**QUIET)
    loaded = torchalgo.load_plan(plan_path(plan, engine))
    fast = torchalgo.optimize(model, x, plan=loaded, settings=settings)
    left = round(part_left(loaded), 4)
    return by_call(partial(fast, x)), {**facts, "runs": fast.runs, "left": left}


def serve(engine: str, network: str, threads: int, plan: str) -> Iterator[Record]:
    """Yields what a record says of the engine, and then what each turn measured."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    drive, facts = make_drive(engine, model_of(network), input_of(network), plan)
    drive(0.0)
    yield {"version": engines.peer_version(engine.partition("_")[0]), **facts}
    yield from answers(drive)


def plan_path(path: str, engine: str) -> str:
    """Returns the file of an engine's plan beside that of torchalgo's own."""
    return f"{path}.{LEFT[engine]}" if engine in LEFT else path


def part_left(plan: torchalgo.Plan) -> float:
    """Returns the part of a plan's predicted time that PyTorch's operators take."""
    left = (n.predicted_us for n in plan.nodes if n.primitive and not has_own_kernel(n.primitive))
    return sum(left) / plan.cost_us


def leave(plan: torchalgo.Plan, percent: float) -> torchalgo.Plan:
    """Returns the plan with layers left to PyTorch, the slowest that fit first, for at most so many
    percent of its time."""
    kept = {node.name: node.primitive for node in plan.nodes if node.primitive}
    for name in [node.name for node in sorted(plan.nodes, key=lambda node: -node.predicted_us)]:
        if name not in kept:
            continue
        with contextlib.suppress(torchalgo.Error):  # PyTorch refuses it
            other = plan.with_overrides({**kept, name: "aten"})
            if part_left(other) <= percent / 100:
                kept[name] = "aten"
    return plan.with_overrides(kept)


def tune(network: str, path: str, tune_s: float, threads: int, names: Sequence[str]) -> str:
    """Writes a plan, and those of the engines `names` beside it. Returns what torchalgo runs."""
    torch.set_num_threads(threads)
    fast = torchalgo.optimize(
        model_of(network), input_of(network), budget_s=tune_s, settings=torchalgo.Settings(**QUIET)
    )
    fast.plan.save(path)
    for engine in LEFT.keys() & {*names}:
        leave(fast.plan, LEFT[engine]).save(plan_path(path, engine))
    return fast.runs
