# SPDX-License-Identifier: BSD-3-Clause
"""Applies a plan that was given: finds the part of each region, and checks its primitives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._C import Error
from torchalgo._capture.settings import Options
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.costs import Key
from torchalgo._ir.plan import Plan
from torchalgo._measure.allowed import Rules
from torchalgo._measure.checking import Checker
from torchalgo._measure.cost_state import CostState
from torchalgo._measure.knowledge import is_trusted
from torchalgo._measure.sampling import Bench, no_peaks
from torchalgo._train.overrides import layers_of
from torchalgo._train.part import Part, Run
from torchalgo._train.plan import TrainingPlan


def given_runs(
    plan: Any,
    parts: Mapping[str, Part],
    options: Options,
    store: CostStore,
    call: CallContext,
) -> dict[str, Run]:
    """Returns the regions with their parts of a plan, by the structures of their graphs.

    The primitives are compared with f64, as those of a measured plan are. Results are stored, so
    that a primitive is checked once.

    Raises: torchalgo.Error if it is no plan of training, if a region has none, or if a primitive of
        it is wrong or fails.
    """
    if not isinstance(plan, TrainingPlan):
        raise Error(
            f"TA1004 optimize_training: plan is {type(plan).__name__}, expected a"
            " torchalgo.TrainingPlan, such as planned.plan or TrainingPlan.load(path)"
        )
    runs = {name: _run_of(plan, part) for name, part in parts.items()}
    for run in runs.values():
        with call.timings.step("check"):
            _check(run, options, store, call)
    return runs


def _run_of(plan: TrainingPlan, plain: Part) -> Run:
    for each in plan.regions:
        again = {node.name for node in each.nodes}
        recomputed = [
            i for i in _C.recomputable_values(plain.own.graph)
            if f"{plain.value(i)}.bwd_again" in again
        ]  # fmt: skip
        part = plain.with_recomputed(recomputed) if recomputed else plain
        if part.graph.structure_hash == each.structure_hash:
            return Run(part, each)
    first, *_ = layers_of(plain.own.graph)
    raise Error(
        "TA2201 optimize_training: the plan was made for another model, or for inputs of other"
        f" sizes: it has none for the region that begins with {first}. Leave plan= out to make a"
        " new one"
    )


def _check(run: Run, options: Options, store: CostStore, call: CallContext) -> None:
    part, device, names = run.part, run.part.target.device, _names_by_key(run.plan)
    rules = Rules(
        part.graph, part.found, _C.transform_candidates(part.graph, part.found, device), {}
    )
    for key in names:  # the plan may have a layout change that no candidate needs
        rules.primitives.setdefault(key, _C.Primitive(key.primitive, key.src, key.dst))
    costs = DeviceCosts.of(store, device, _C.CHANGED_WEIGHTS)
    bench = dataclasses.replace(Bench.on(device, call.deadline), peaks=no_peaks)
    state = CostState(rules, bench, costs, options.max_error, call.timings, 0)
    checker = Checker(state, bench, bench.sampler(rules.primitives, 0), call, device)

    def check_unknown() -> None:
        known = {*state.knowledge.errors, *state.knowledge.rules.quarantined}
        checker.check([key for key in names if key not in known])

    checker.reserve(names)
    call.deadline.can_break = True  # if there is little time, images are smaller
    check_unknown()
    call.deadline.can_break = False  # no primitive runs unchecked, also if there is no time
    check_unknown()
    for key, name in names.items():
        if (why := state.knowledge.rules.quarantined.get(key)) is not None:
            raise Error(
                f"TA2204 optimize_training: the plan has {key.primitive} for {name}, which fails"
                f" its check: {why}. Leave plan= out to make a new one"
            )


def _names_by_key(plan: Plan) -> dict[Key, str]:
    """Returns the primitives of a plan that must be checked, each with a node or value."""
    nodes = [(Key(n.problem, n.primitive, n.src, n.dst), n.name) for n in plan.nodes if n.primitive]
    changes = [(Key(t.problem, t.primitive, t.src, t.dst), t.value) for t in plan.transforms]
    return {key: name for key, name in [*nodes, *changes] if not is_trusted(key)}
