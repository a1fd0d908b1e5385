# SPDX-License-Identifier: BSD-3-Clause
"""Builds the module of a plan, and compares its outputs with those of the model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torchalgo import _C
from torchalgo._base.overlap import quiet_jit
from torchalgo._capture.freeze import ScriptModule
from torchalgo._capture.settings import Options
from torchalgo._ir.costs import key_of
from torchalgo._ir.plan import Plan
from torchalgo._measure.tuning import Tuning
from torchalgo._plan.describe import with_dims
from torchalgo._plan.held import program_of
from torchalgo._plan.limits import Limits
from torchalgo._plan.memory_limit import MemoryLimit
from torchalgo._plan.memory_search import within_memory
from torchalgo._plan.preparation import Prepared
from torchalgo._refine.end_of_call import CallBudget


class Tuned(NamedTuple):
    """A plan, its module, and the relative L2 error of the module's outputs.

    `worst_error` is the error of a single output, see worst_output_error.
    """

    native: _C.Plan
    scripted: ScriptModule
    error: float
    limits: Limits  # the limits under which it was found
    # By node of the module's graph: the node of the model's graph that PyTorch still runs, or -1.
    origins: Sequence[int] = ()
    worst_error: float = math.nan


def choices_of(plan: _C.Plan) -> list[Any]:
    """Returns the choices of a plan, without costs."""
    nodes = [[n.name, n.absorbed_by, *key_of(n.problem, n.primitive)] for n in plan.nodes]
    return nodes + [[t.value, *key_of(t.problem, t.primitive)] for t in plan.transforms]


def rewrite(imported: _C.Imported, native: _C.Plan) -> ScriptModule:
    """Returns the module that runs `native`."""
    return rewrite_with_origins(imported, native)[0]


def rewrite_with_origins(imported: _C.Imported, native: _C.Plan) -> tuple[ScriptModule, list[int]]:
    """Returns the module that runs `native`, and `Tuned.origins`."""
    with quiet_jit():
        rewritten, origins = _C.rewrite_with_origins(imported, native)
        scripted: ScriptModule = torch.jit._recursive.wrap_cpp_module(rewritten)
        return scripted, origins


def limits_of(prepared: Prepared, tuning: Tuning, options: Options) -> Limits:
    """Returns the limits that the caller has set, before any plan's outputs missed their bound."""
    limits = Limits.of(tuning, options.weight_limit_bytes, options.own_kernels)
    if options.memory_limit_bytes is None:
        return limits
    known: dict[str, tuple[int, int]] = {}  # by the choices of a plan

    def use_of(native: _C.Plan) -> tuple[int, int]:
        if (choices := repr(choices_of(native))) not in known:
            known[choices] = memory_use(prepared.imported, native)
        return known[choices]

    memory = MemoryLimit.of(tuning, options.memory_limit_bytes, use_of)
    return dataclasses.replace(limits, memory=memory)


def memory_use(imported: _C.Imported, native: _C.Plan) -> tuple[int, int]:
    """Returns the bytes of the arena and of the constants of a plan as a C++ program.

    Raises: torchalgo.Error if emit cannot write the plan.
    """
    scripted, schedule = rewrite(imported, native), _C.lower(imported.graph, native)
    network = program_of(schedule, imported.graph, scripted, _C.cpu_device(), packs=True)
    return network.arena_bytes, network.packed_bytes


def bind_exact_plan(
    prepared: Prepared, limits: Limits, options: Options, budget: CallBudget
) -> Tuned:
    """Returns the cheapest plan whose outputs keep max_error, with its module and error.

    If there is no such plan, or no time to find it, returns the last plan that was tried. If there
    is no time to bind a plan, and no cost is known, the module is the frozen one, with a NaN error.
    """
    bound, timings, now_s = prepared.output_bound(options), budget.call.timings, budget.now_s
    may_run = budget.can_time or options.run_untimed or limits.tuning.knowledge.has_any_cost
    while True:
        limits = within_memory(limits)
        native = limits.settle()
        if not may_run:
            return Tuned(native, prepared.frozen, float("nan"), limits)
        started = now_s()
        with timings.step("bind"):
            scripted, origins = rewrite_with_origins(prepared.imported, native)
        with timings.step("try"):
            error, worst_error = prepared.reference.errors_of(scripted)
        budget.learn_binding(now_s() - started)
        own = prepared.capture_error  # the plan does not cause this error
        is_last = error <= bound or not budget.can_bind()
        tighter = None if is_last else limits.tightened(native, error - own, bound - own)
        if tighter is None:
            return Tuned(native, scripted, error, limits, origins, worst_error)
        # Exactness matters more than whose kernels run, unless the caller says whose.
        limits = tighter if options.own_kernels else tighter.without_filter()


def with_errors(plan: Plan, native: _C.Plan, tuned: Tuned, prepared: Prepared) -> Plan:
    """Returns `plan`, which describes `native`, with its errors and the limits that it keeps."""
    return dataclasses.replace(
        plan,
        rel_error=tuned.error if tuned.error < math.inf else None,
        worst_error=tuned.worst_error if tuned.worst_error < math.inf else None,
        capture_error=prepared.capture_error,
        **tuned.limits.expected_errors(native, plan.nodes),
        **tuned.limits.described(native),
    )


def with_dims_of(scripted: ScriptModule, plan: Plan, prepared: Prepared) -> Plan:
    """Returns the plan with the sizes for which its module is right."""
    return dataclasses.replace(plan, inputs=with_dims(plan.inputs, prepared.dims_of(scripted)))
