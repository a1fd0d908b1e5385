# SPDX-License-Identifier: BSD-3-Clause
"""Tunes a region: measures the costs that its plan needs."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._capture.settings import Options
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.plan import Plan, micro
from torchalgo._measure.sampling import Bench
from torchalgo._measure.steps import Question
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.describe import Describer, unplanned
from torchalgo._plan.learned_costs import guide_from_store
from torchalgo._plan.limits import Limits
from torchalgo._plan.objective import Latency
from torchalgo._plan.prove import prover
from torchalgo._train.overrides import forced_directions
from torchalgo._train.part import Part
from torchalgo._train.plan import STAGED


class RegionTuning:
    """Plans a region, and measures the costs that the database lacks."""

    def __init__(self, part: Part, options: Options, store: CostStore, call: CallContext) -> None:
        graph, found, device = part.graph, part.found, part.target.device
        costs = DeviceCosts.of(store, device, _C.CHANGED_WEIGHTS)
        forced = forced_directions(part.own.graph, graph, found, options.overrides or {})
        bench = Bench.on(device, call.deadline)
        settings = TuneSettings(
            options.max_error, options.max_componentwise_error, cold_bytes=_C.CHANGED_WEIGHTS
        )
        guide = functools.partial(guide_from_store, store, device, _C.CHANGED_WEIGHTS)
        self._tuning = Tuning(
            graph, found, forced, settings, call=call, cost_file=costs, bench=bench, device=device,
            guide=guide,
        )  # fmt: skip
        sizes = [graph.values[i].sizes for i in part.own.graph.inputs]
        inputs = tuple(torch.empty(each, device="meta") for each in sizes)
        objective = Latency(bench, costs)
        about = unplanned(graph, inputs, [], device)
        self._describe = Describer(about, self._tuning, objective)
        self._prove = prover(Limits.of(self._tuning))

    def _described(self, native: _C.Plan) -> Plan:
        return dataclasses.replace(self._describe(native), prove=self._prove)

    @property
    def is_interrupted(self) -> bool:
        """True after Ctrl-C."""
        return self._tuning.is_interrupted

    def settle(self, *arguments: Any, **options: Any) -> Plan:
        """Returns the plan that Tuning.settle gives for these arguments."""
        return self._described(self._tuning.settle(*arguments, **options))

    def best(self) -> Plan:
        """Returns the cheapest plan, and with it the staged one's cost, unless time was short."""
        plan = self.settle()
        if self._tuning.is_stopped:
            return plan
        staged = self._tuning.estimates({STAGED: Question(_C.make_staged_plan)})
        return dataclasses.replace(
            plan, comparisons={name: micro(native.cost) for name, native in staged.items()}
        )
