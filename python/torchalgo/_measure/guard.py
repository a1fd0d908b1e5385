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
from typing import TypeVar

import torch
from torch import nn

from torchalgo._base.own_thread import apply_where_it_runs
from torchalgo._base.processor_load import may_spin
from torchalgo._base.stats import is_faster
from torchalgo._base.time_budget import GUARD_SHARE, LEAST_END_S, OUT_OF_BUDGET, Deadline
from torchalgo._ir.plan import GuardVerdict, Plan
from torchalgo._measure.baselines import BENCHMARK, Call
from torchalgo._measure.meters import LOOP_STEPS, Meter

LEAST_ROUNDS = 7  # a verdict needs at least this many
CLEAR_ROUNDS = 3  # or this many, if the plan won in each

PLAN = "plan"  # the name of the call that is no baseline
INTERRUPTED = "interrupted before it was timed"

Sample = TypeVar("Sample")


def expect_s(calls: int, call_s: float, *, warmup: int, rounds: int, limit_s: float = 0.0) -> float:
    """Returns the seconds that the rounds of so many calls take, if a call takes `call_s`."""
    return warmup * calls * call_s + max(rounds * calls * call_s, limit_s)


def reserve(deadline: Deadline, efforts_s: Sequence[float], first_s: float = 0.0) -> None:
    """Reserves the step "finish" of a call: `first_s`, and the time of the guard.

    Args:
        efforts_s: the seconds of the efforts that the guard may make, the best first. It has the
            first one that takes at most GUARD_SHARE of the budget, or else the last one: with less
            time there is no verdict, and the plan would not run.
    """
    most_s = GUARD_SHARE * deadline.budget_s
    guard_s = next((own_s for own_s in efforts_s if own_s <= most_s), efforts_s[-1])
    deadline.keep("finish", LEAST_END_S + first_s + guard_s)


def out_of_time(
    deadline: Deadline,
    when: str,
    least_s: float = 0.0,
    *,
    is_busy: bool = False,
    may_run: bool = True,
) -> str:
    """Returns why a plan was not timed.

    Args:
        when: the step that had not ended.
        least_s: the least seconds of a call in which the plan is timed.
        is_busy: True if other programs use the processors.
        may_run: False if the plan is not worth to be run untimed, or runs so already.
    """
    if not math.isfinite(deadline.call_s):
        return INTERRUPTED
    longer = math.ceil(max(least_s, 2 * deadline.call_s))
    spin = ", or start with GOMP_SPINCOUNT=1000," if may_spin() else ""
    other = f"end the other programs that use the processors{spin} and " if is_busy else ""
    text = (
        f"{OUT_OF_BUDGET} {when}: {other}give more time, such as budget_s={longer} (--budget"
        f" {longer})"
    )
    untimed = ", or run the plan untimed, with Settings(run_untimed=True) (--run-untimed)"
    return text + untimed * may_run


def time_interleaved(
    calls: Mapping[str, Call],
    *,
    rounds: int = 25,
    budget_s: float = 6.0,
    warmup: int = 3,
    now_ns: Callable[[], int] = time.perf_counter_ns,
    synchronize: Call = lambda: None,
    most_s: float = float("inf"),
    least: int = 0,
    untimed: int = 0,
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
        untimed: so many runs of a call come before each timed one.
    """
    end_ns = math.inf if most_s == math.inf else now_ns() + most_s * 1e9

    def timed(call: Call) -> float:
        for _ in range(untimed):
            call()
            synchronize()
        before = now_ns()
        call()
        synchronize()
        return float(now_ns() - before)

    with torch.no_grad():
        for _ in range(warmup):  # TorchScript optimizes in its first two runs
            for call in calls.values():
                if end_ns == math.inf or now_ns() < end_ns:
                    call()
        synchronize()
        return _in_rounds(
            list(calls), lambda name: apply_where_it_runs(calls[name], timed), now_ns,
            rounds=rounds, limit=budget_s * 1e9, end=end_ns, least=least,
        )  # fmt: skip


def _in_rounds(
    names: Sequence[str],
    sample: Callable[[str], Sample],
    now: Callable[[], float],
    *,
    rounds: int,
    limit: float,
    end: float,
    least: int,
) -> dict[str, list[Sample]]:
    """Takes one sample of each name per round, in random order within the round.

    After `limit` no further round begins, once LEAST_ROUNDS were run. After the time `end` none
    begins in any case, once `least` were run.
    """
    rng = random.Random(0)
    taken: dict[str, list[Sample]] = {name: [] for name in names}
    started = now()
    for i in range(rounds):
        if i >= LEAST_ROUNDS and now() - started > limit:
            break
        if i >= least and end < math.inf and now() >= end:
            break
        for name in rng.sample(names, len(names)):
            taken[name].append(sample(name))
    return taken


def is_clear(times: Mapping[str, Sequence[float]]) -> bool:
    """Returns whether each of at least CLEAR_ROUNDS of the plan beat each round of the others."""
    plan = times[PLAN]
    others = [ns for name, each in times.items() if name != PLAN for ns in each]
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
    now_s: Callable[[], float] = time.perf_counter,
    synchronize: Call = lambda: None,
    most_s: float = math.inf,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Measures times in ns and energies in nJ of each call, in rounds as time_interleaved does.

    Within a round, each call is repeated for about LOOP_STEPS steps of the meter. The values are
    per call. There may be none if `most_s` is over before.
    """
    counts = dict.fromkeys(calls, 1)
    end_s = now_s() + most_s

    def run(name: str) -> tuple[float, float]:
        return apply_where_it_runs(calls[name], lambda call: run_here(call, counts[name]))

    def run_here(call: Call, count: int) -> tuple[float, float]:
        before, started = meter.read_uj(), now_s()
        for _ in range(count):
            call()
        synchronize()
        seconds = now_s() - started
        return 1e9 * seconds / count, 1e3 * (meter.read_uj() - before) / count

    with torch.no_grad():
        # TorchScript optimizes in its first two runs.
        first = _in_rounds(list(calls), run, now_s, rounds=3, limit=budget_s, end=end_s, least=1)
        for name, taken in first.items():
            counts[name] = math.ceil(1e9 * LOOP_STEPS * meter.interval_s / max(taken[-1][0], 1.0))
        pairs = _in_rounds(
            list(calls), run, now_s, rounds=rounds, limit=budget_s, end=end_s, least=0
        )
    times, energies = ({name: [p[i] for p in each] for name, each in pairs.items()} for i in (0, 1))
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


def guard_verdict(times: Mapping[str, list[float]]) -> GuardVerdict:
    """Compares the plan with the fastest baseline. The plan loses only at 95 % confidence.

    Args:
        times: in ns, by call and round.
    """
    others = {name: statistics.median(ns) for name, ns in times.items() if name != PLAN}
    baseline = min(others, key=lambda name: (others[name], name))
    result = is_faster(times[PLAN], times[baseline])
    is_slower = result.verdict == "slower"
    needs_flag = is_slower and baseline.endswith(BENCHMARK)
    return GuardVerdict(
        **dataclasses.asdict(result),
        runs="baseline" if is_slower else "plan",
        baseline=baseline,
        plan_us=statistics.median(times[PLAN]) / 1000,
        baseline_us=others[baseline] / 1000,
        rounds=len(times[PLAN]),
        reason="needs torch.backends.cudnn.benchmark = True to be as fast" if needs_flag else "",
    )


def verdict_key(model: nn.Module, plan: Plan) -> str:
    """Returns a hash of everything that a verdict is about.

    It covers the choices of the plan, and the type of the model. It does not cover costs: they lead
    to a choice, but do not change how fast the choice runs.
    """
    facts = [
        f"{type(model).__module__}.{type(model).__qualname__}",
        plan.structure_hash,
        [[i.shape, i.dtype, i.layout] for i in plan.inputs],
        [[n.name, n.problem, n.primitive, n.src, n.dst, n.absorbed_by] for n in plan.nodes],
        [[t.value, t.producer, t.problem, t.primitive, t.src, t.dst] for t in plan.transforms],
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
