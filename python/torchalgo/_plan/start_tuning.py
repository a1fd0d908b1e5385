# SPDX-License-Identifier: BSD-3-Clause
"""Starts the tuning of a prepared model: its objective, the costs in the database, predictions."""

from __future__ import annotations

import dataclasses

from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._capture.settings import Options
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.call_overhead import CALL_TICKS
from torchalgo._ir.overrides import forced_primitives
from torchalgo._measure.cost_state import Guide
from torchalgo._measure.knowledge import Predictor
from torchalgo._measure.sampling import Bench, cold_bytes, no_peaks
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.learned_costs import guide_from_store, learn_from_store
from torchalgo._plan.objective import Latency, find_objective
from torchalgo._plan.preparation import Prepared


def start_tuning(
    prepared: Prepared,
    found: _C.Candidates,
    options: Options,
    store: CostStore | None,
    bench: Bench | None,
    call: CallContext,
    *,
    has_time: bool = True,
) -> tuple[Tuning, Latency]:
    """Returns a tuning that has measured nothing yet, and its objective.

    Args:
        store: the cost database; None: costs are not stored.
        bench: the functions that measure. None: this machine's.
        has_time: if False, nothing is measured if the database is enough for a plan.
    """
    graph, device = prepared.graph, prepared.device
    costs = None if store is None else DeviceCosts.of(store, device, cold_bytes(graph))
    if bench is None:
        bench = Bench.on(device, call.deadline)
    if not has_time:
        bench = dataclasses.replace(bench, peaks=no_peaks)
    objective = find_objective(options.objective, device, costs, bench)
    is_latency = objective.name == "latency"
    predictor = guide = None
    if store is not None and is_latency and options.mode == "tune":
        guide = _guide(store, prepared)
    elif store is not None and is_latency:
        predictor = _predictor(store, prepared, objective)
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


def _predictor(store: CostStore, prepared: Prepared, objective: Latency) -> Predictor:
    """Returns a model of the database's costs, which predicts instead of measuring."""
    before = None if objective.costs is None else objective.costs.read_peaks()
    peaks = objective.bench.peaks() if before is None else before
    return learn_from_store(store, prepared.device, cold_bytes(prepared.graph), peaks)


def _guide(store: CostStore, prepared: Prepared) -> Guide:
    """Returns the function that makes a model if the budget leaves candidates unmeasured."""
    device, cold = prepared.device, cold_bytes(prepared.graph)
    return lambda peaks: guide_from_store(store, device, cold, peaks)
