# SPDX-License-Identifier: BSD-3-Clause
"""Tunes one model by several processes. See docs/tune.md."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from torchalgo import _C
from torchalgo._api.optimize import optimize_prepared, plan_calls
from torchalgo._base.call_context import CallContext
from torchalgo._base.kept_model import kept_model
from torchalgo._base.progress import Progress
from torchalgo._base.time_budget import Deadline, budget_of_call
from torchalgo._capture.calls import as_tensor_models
from torchalgo._capture.example_calls import example_calls
from torchalgo._capture.freeze import check_model
from torchalgo._capture.keywords import known_keywords
from torchalgo._capture.settings import IN_SETTINGS, Options, Settings
from torchalgo._db import CostStore
from torchalgo._db.environment import Environment
from torchalgo._distributed.distribute import (
    DistributedBench,
    Hardware,
    choose_measuring_ranks,
    follow,
    lead,
)
from torchalgo._distributed.ranks import Ranks, SharedError
from torchalgo._ir.costs import MAX_ERROR
from torchalgo._ir.plan import Plan
from torchalgo._measure import process_bench
from torchalgo._measure.sampling import Bench, cold_bytes
from torchalgo._plan.preparation import Prepared, prepare, quick_run_s
from torchalgo._plan.result import Result
from torchalgo._run.optimized import Optimized
from torchalgo._run.original import Original

__all__ = ["tune"]


@known_keywords(IN_SETTINGS)
def tune(
    model: nn.Module,
    example_inputs: Any,
    *,
    group: dist.ProcessGroup | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    overrides: Mapping[str, str] | None = None,
    budget_s: float | None = None,
    max_error: float = MAX_ERROR,
    settings: Settings | None = None,
    keep: Callable[[Optimized], None] | None = None,
    bench: Bench | None = None,
    hardware: Hardware | None = None,
) -> Optimized:
    """Does the same as torchalgo.optimize, with several processes.

    Each process of a group of torch.distributed (a *rank*) calls this with the same arguments. Rank
    0 plans and writes the cost database. Measurements and checks are distributed to all ranks that
    have cores or a GPU of their own. Every rank gets the module. No rank returns before all ranks
    have run the module once.

        torch.distributed.init_process_group("gloo")
        fast = torchalgo.tune.tune(model, x, budget_s=60)

    Args:
        model, example_inputs, example_kwargs, overrides, budget_s, max_error, settings:
            as for `optimize`.
            There is one plan, its objective is "latency", and example_inputs may not be None.
        group: the processes. None: the default group; if there is none, this process alone.
        keep: called on rank 0 with the result, before the other ranks return. It may write files.
        bench: the functions with which this rank measures. None: the same as for `optimize`.
        hardware: the cores or the GPU with which this rank measures. None: the cores that it may
            use, or its GPU.

    Returns: the Optimized module, with the same plan on all ranks.
    Raises: torchalgo.Error, the same on all ranks, if one of them raises an exception. Also if the
        ranks differ in model, options, versions or kind of device. If a rank dies, the others raise
        an error after the timeout of the group at the latest.
    """
    ranks = Ranks(group)
    with ranks.step():
        options = Options.of(settings, overrides=overrides, budget_s=budget_s, max_error=max_error)
        check_model(model)
        progress = Progress(options.progress if ranks.rank == 0 else False)
        call = CallContext.start(Deadline(budget_of_call(budget_s)), progress)
        calls = example_calls(model, example_inputs, example_kwargs)
        with call.timings.step("values"), kept_model(model) as kept:
            one = as_tensor_models(model, calls, kept)[0]
        with call.timings.step("read"):
            quick_s = quick_run_s(call.deadline.budget_s)
            prepared = prepare(one, progress.say, timings=call.timings, quick_s=quick_s)
        facts = _facts(prepared, options)
        own = hardware or Hardware.here(prepared.where)
    _check_alike(ranks.gather(facts))
    numbers = choose_measuring_ranks(ranks.gather(own))
    if bench is None:
        bench = Bench.on(prepared.device)
        if ranks.rank in numbers:
            process_bench.start_early()
    if ranks.rank == 0:
        progress.say(f"{len(numbers)} of {ranks.size} ranks have a device of their own")
        shared = DistributedBench.of(bench, ranks, numbers)
        result = lead(ranks, lambda: _planned(prepared, options, shared, call), _text_of)
    else:
        text = follow(ranks, bench)
    with ranks.step():
        if ranks.rank:
            result = _applied(prepared, options, Plan.from_json(text, "the plan of rank 0"), call)
        result = dataclasses.replace(result, timings=call.timings.all())
        planner = functools.partial(plan_calls, options)
        original = Original(model, planner, calls, one.model, one.formats)
        optimized = Optimized(result, form=one.form, original=original)
        if ranks.rank == 0 and keep is not None:
            keep(optimized)
    _check_alike(ranks.gather({"plan": plan_hash(optimized.plan)}))
    return optimized


def plan_hash(plan: Plan) -> str:
    """Returns a hash, 16 digits, of the whole text of the plan's file."""
    return hashlib.sha256(plan.to_json().encode()).hexdigest()[:16]


def _text_of(result: Result) -> str:
    return result.plan.to_json()


def _planned(prepared: Prepared, options: Options, bench: Bench, call: CallContext) -> Result:
    """Does what `optimize` does, on rank 0."""
    with CostStore.of_call(options.cost_db, is_fresh=options.fresh) as store:
        return optimize_prepared(prepared, options, store, call, bench)


def _applied(prepared: Prepared, options: Options, plan: Plan, call: CallContext) -> Result:
    """Applies rank 0's plan on another rank."""
    applied = dataclasses.replace(options, plan=plan, overrides=None, strict=True, progress=False)
    with CostStore.of_call(False, is_fresh=False) as store:
        return optimize_prepared(prepared, applied, store, call)


# ---- agreement -----------------------------------------------------------------------------------


def _facts(prepared: Prepared, options: Options) -> dict[str, str]:
    """Returns the facts that must be the same on all ranks, by name, and the host's name.

    The costs of one rank are used for all.
    """
    environment = Environment.of(prepared.device, cold_bytes(prepared.graph))
    own = ("plan", "progress", "cost_db")
    names = [field.name for field in dataclasses.fields(options) if field.name not in own]
    chosen = {f"option {name}": getattr(options, name) for name in names}
    chosen["option overrides"] = dict(options.overrides or {})
    return {
        "host": socket.gethostname(),
        "torchalgo": _C.version,
        "torch": torch.__version__,
        **environment.facts,
        "algorithms": hashlib.sha256(
            repr(sorted(environment.versions.items())).encode()
        ).hexdigest(),
        "model": prepared.graph.structure_hash,
        "inputs": str(
            [(list(t.shape), str(t.dtype)) for t in prepared.inputs if hasattr(t, "shape")]
        ),
        **{name: repr(value) for name, value in chosen.items()},
    }


def _check_alike(facts: Sequence[Mapping[str, str]]) -> None:
    """Raises torchalgo.Error if a rank's facts differ from those of rank 0.

    The text names the first such rank and its first difference. The host's name may differ.
    """
    first = facts[0]
    for rank, other in enumerate(facts):
        for name in [*first, *other]:
            if name == "host" or first.get(name) == other.get(name):
                continue
            here, there = (f" on {f['host']}" if "host" in f else "" for f in (first, other))
            raise SharedError(
                f"TA6004 tune: rank {rank}{there} differs from rank 0{here} in {name}:"
                f" {other.get(name)}, expected {first.get(name)}. All ranks need the same"
            )
