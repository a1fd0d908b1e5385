# SPDX-License-Identifier: BSD-3-Clause
"""The guard: times a plan against the baselines, and says which of them runs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from torchalgo._base.own_thread import apply_where_it_runs
from torchalgo._base.stats import is_faster
from torchalgo._ir.plan import GuardVerdict, Plan
from torchalgo._measure.baselines import BENCHMARK, Call
from torchalgo._measure.meters import LOOP_STEPS, Meter

LEAST_ROUNDS = 7  # a verdict needs at least this many
CLEAR_ROUNDS = 3  # or this many, if the plan won in each

# The names of the calls that are no baselines.
PLAN, SINGLE_LAYOUT = "plan", "single_layout"


def time_interleaved(
    calls: Mapping[str, Call],
    *,
    rounds: int = 25,
    budget_s: float = 6.0,
    warmup: int = 3,
    seed: int = 0,
    now_ns: Callable[[], int] = time.perf_counter_ns,
    synchronize: Call = lambda: None,
    most_s: float = float("inf"),
    least: int = 0,
) -> dict[str, list[float]]:
    """Times each call once per round, in random order within the round. Returns times in ns.

    Each round times all calls, so result[a][i] and result[b][i] are a pair.

    Args:
        rounds: the number of rounds, unless the time ends before.
        budget_s: after this many seconds no further round begins, once LEAST_ROUNDS were run.
        warmup: rounds that run before and are not timed.
        synchronize: waits until the device has finished the call; it is part of the time.
        most_s: after this many seconds, warmup included, no further round begins in any case.
        least: so many rounds run even then.
    """
    rng = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        end = float("inf") if most_s == float("inf") else now_ns() + most_s * 1e9

        def timed(call: Call) -> float:
            before = now_ns()
            call()
            synchronize()
            return float(now_ns() - before)

        def is_over() -> bool:
            return end < float("inf") and now_ns() >= end

        for _ in range(warmup):  # TorchScript optimizes in its first two runs
            for call in calls.values():
                if not is_over():
                    call()
        synchronize()
        started = now_ns()
        for i in range(rounds):
            if i >= LEAST_ROUNDS and now_ns() - started > budget_s * 1e9:
                break
            if i >= least and is_over():
                break
            for name in rng.sample(list(calls), len(calls)):
                times[name].append(apply_where_it_runs(calls[name], timed))
    return times


def is_clear(times: Mapping[str, Sequence[float]]) -> bool:
    """Returns whether each of at least CLEAR_ROUNDS of the plan beat each round of the others."""
    plan = times[PLAN]
    others = [
        ns for name, each in times.items() if name not in (PLAN, SINGLE_LAYOUT) for ns in each
    ]
    return len(plan) >= CLEAR_ROUNDS and bool(others) and max(plan) < min(others)


def has_verdict(times: Mapping[str, Sequence[float]], least_rounds: int = LEAST_ROUNDS) -> bool:
    """Returns whether the rounds suffice for a verdict, or the plan won clearly in fewer."""
    return len(times[PLAN]) >= least_rounds or is_clear(times)


def meter_interleaved(
    calls: Mapping[str, Call],
    meter: Meter,
    *,
    rounds: int = 15,
    budget_s: float = 6.0,
    seed: int = 0,
    now_s: Callable[[], float] = time.perf_counter,
    synchronize: Call = lambda: None,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Measures times in ns and energies in nJ of each call, in rounds as time_interleaved does.

    Within a round, each call is repeated for about LOOP_STEPS steps of the meter. The values are
    per call.
    """
    rng = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in calls}
    energies: dict[str, list[float]] = {name: [] for name in calls}

    def run(name: str, count: int) -> tuple[float, float]:
        return apply_where_it_runs(calls[name], lambda call: run_here(call, count))

    def run_here(call: Call, count: int) -> tuple[float, float]:
        before, started = meter.read_uj(), now_s()
        for _ in range(count):
            call()
        synchronize()
        seconds = now_s() - started
        return 1e9 * seconds / count, 1e3 * (meter.read_uj() - before) / count

    with torch.no_grad():
        counts = {}
        for name in calls:
            for _ in range(3):  # TorchScript optimizes in its first two runs
                ns, _ = run(name, 1)
            counts[name] = math.ceil(1e9 * LOOP_STEPS * meter.interval_s / max(ns, 1.0))
        started = now_s()
        for i in range(rounds):
            if i >= 7 and now_s() - started > budget_s:
                break
            for name in rng.sample(list(calls), len(calls)):
                ns, nj = run(name, counts[name])
                times[name].append(ns)
                energies[name].append(nj)
    return times, energies


def energy_verdict(
    times: Mapping[str, list[float]], energies: Mapping[str, list[float]]
) -> GuardVerdict:
    """Compares the plan with the leanest baseline by energy.

    Works as guard_verdict does. Returns the verdict of a plan that was not timed if the meter did
    not count.

    Args:
        times: in ns, by call and round.
        energies: in nJ, by call and round.
    """
    if min(map(min, energies.values())) <= 0:
        return untimed_verdict("the meter stood still while the plan ran")
    verdict = guard_verdict(energies)
    other = verdict.baseline
    return dataclasses.replace(
        verdict,
        plan_us=statistics.median(times["plan"]) / 1000,
        baseline_us=statistics.median(times[other]) / 1000,
        objective="energy",
        plan_uj=statistics.median(energies["plan"]) / 1000,
        baseline_uj=statistics.median(energies[other]) / 1000,
    )


def synchronizer(device: torch.device) -> Call:
    """Returns a function that waits until `device` has finished all its work."""
    if device.type != "cuda":
        return lambda: None
    return lambda: torch.cuda.synchronize(device)


def guard_verdict(times: Mapping[str, list[float]], seed: int = 0) -> GuardVerdict:
    """Compares the plan with the fastest baseline. The plan loses only at 95 % confidence.

    The best single-layout plan may have been timed too. If it is faster than the plan at 95 %
    confidence, it is compared with the baseline instead of the plan.

    Args:
        times: in ns, by call and round.
    """
    runs, second_us = PLAN, None
    if SINGLE_LAYOUT in times:
        is_better = is_faster(times[SINGLE_LAYOUT], times[PLAN], seed=seed).verdict == "faster"
        runs, second = (SINGLE_LAYOUT, PLAN) if is_better else (PLAN, SINGLE_LAYOUT)
        second_us = statistics.median(times[second]) / 1000
    others = {
        name: statistics.median(ns)
        for name, ns in times.items()
        if name not in (PLAN, SINGLE_LAYOUT)
    }
    baseline = min(others, key=lambda name: (others[name], name))
    result = is_faster(times[runs], times[baseline], seed=seed)
    needs_flag = result.verdict == "slower" and baseline.endswith(BENCHMARK)
    return GuardVerdict(
        **dataclasses.asdict(result),
        runs="baseline" if result.verdict == "slower" else runs,  # type: ignore[arg-type]
        baseline=baseline,
        plan_us=statistics.median(times[runs]) / 1000,
        baseline_us=others[baseline] / 1000,
        rounds=len(times[runs]),
        reason="needs torch.backends.cudnn.benchmark = True to be as fast" if needs_flag else "",
        second_us=second_us,
    )


def verdict_key(model: nn.Module, plan: Plan, *others: Plan) -> str:
    """Returns a hash of everything that a verdict is about.

    It covers the choices of all plans that were timed, and the type of the model. It does not cover
    costs: they lead to a choice, but do not change how fast the choice runs.
    """
    facts = [
        f"{type(model).__module__}.{type(model).__qualname__}",
        plan.structure_hash,
        [[i.shape, i.dtype, i.layout] for i in plan.inputs],
    ]
    for timed in (plan, *others):
        facts += [
            [[n.name, n.problem, n.primitive, n.src, n.dst, n.absorbed_by] for n in timed.nodes],
            [[t.value, t.producer, t.problem, t.primitive, t.src, t.dst] for t in timed.transforms],
        ]
    if plan.energy is not None:
        facts.append([plan.objective, plan.energy.meter])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def untimed_verdict(reason: str, run_untimed: bool = False) -> GuardVerdict:
    """Returns the verdict on a plan that was not timed, with the reason.

    The frozen baseline runs, or the plan if `run_untimed` is set.
    """
    return GuardVerdict(
        verdict="not timed",
        runs="plan" if run_untimed else "baseline",
        baseline="frozen",
        plan_us=0.0,
        baseline_us=0.0,
        ratio=1.0,
        low=1.0,
        high=1.0,
        rounds=0,
        reason=reason,
    )
