# SPDX-License-Identifier: BSD-3-Clause
"""Starts the tuning of a prepared model: its objective, the costs in the database, predictions."""

from __future__ import annotations

import dataclasses
import functools

from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._capture.settings import Options
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.call_overhead import CALL_TICKS
from torchalgo._ir.overrides import forced_primitives
from torchalgo._measure import meters
from torchalgo._measure.sampling import Bench, cold_bytes, no_peaks
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.learned_costs import guide_from_store, learn_from_store
from torchalgo._plan.objective import Energy, Latency
from torchalgo._plan.preparation import Prepared


def start_tuning(
    prepared: Prepared,
    found: _C.Candidates,
    options: Options,
    store: CostStore,
    bench: Bench | None,
    call: CallContext,
    *,
    has_time: bool = True,
) -> tuple[Tuning, Latency]:
    """Returns a tuning that has measured nothing yet, and its objective.

    Args:
        bench: the functions that measure. None: this machine's.
        has_time: if False, nothing is measured if the database is enough for a plan.
    """
    graph, device = prepared.graph, prepared.device
    costs = DeviceCosts.of(store, device, cold_bytes(graph))
    if bench is None:
        bench = Bench.on(device, call.deadline)
    if not has_time:
        bench = dataclasses.replace(bench, peaks=no_peaks)
    is_latency = options.objective == "latency"
    objective = Latency(bench, costs)
    if not is_latency:
        objective = Energy(bench, costs, meters.find_meter(device))
    predictor = guide = None
    if is_latency and options.mode == "tune":
        guide = functools.partial(guide_from_store, store, device, cold_bytes(graph))
    elif is_latency:
        peaks = objective.costs.read_peaks() or objective.bench.peaks()
        predictor = learn_from_store(store, device, cold_bytes(graph), peaks)
        call.progress.say(f"learned from {predictor.costs} costs of {predictor.problems} problems")
    tuning = Tuning(
        graph,
        found,
        forced_primitives(graph, found, options.overrides),
        TuneSettings(
            options.max_error,
            options.max_componentwise_error,
            call_ticks=CALL_TICKS if device is None and is_latency else 0,
            own_kernels=options.own_kernels,
        ),
        call=call,
        cost_file=objective.costs,
        bench=objective.bench,
        device=device,
        predictor=predictor,
        guide=guide,
    )
    if not has_time:
        tuning.end_now()
    return tuning, objective
