# SPDX-License-Identifier: BSD-3-Clause
"""Texts about a tuning: how much was measured, what was left out, and how sure the plan is."""

from __future__ import annotations

from collections.abc import Mapping

from torchalgo import _C
from torchalgo._base.time_budget import OUT_OF_BUDGET
from torchalgo._ir.costs import Cost, Key, key_of
from torchalgo._ir.overrides import is_convolution
from torchalgo._measure.allowed import Rules
from torchalgo._measure.checking import check_work
from torchalgo._measure.knowledge import Knowledge
from torchalgo._measure.sampling import Sampler
from torchalgo._measure.steps import Phase
from torchalgo._measure.visits import measure_work


def method_note(knowledge: Knowledge, phase: Phase, sampler: Sampler, cropped: int) -> str:
    """Returns a text on how much was measured, for the plan's `method`.

    Args:
        cropped: the number of candidates that were checked on smaller images.
    """
    costs, predictor = knowledge.costs, knowledge.predictor
    every = [key for key in knowledge.rules.primitives if not _C.is_view(key.primitive)]
    measured = sum(key in costs.costs for key in every)
    when = "" if sampler.samples or not measured else ", all before this run"
    notes = [f"measured {measured} of {len(every)} candidates{when}"]
    if predictor is not None:
        notes.append(
            f"{sum(map(costs.is_known, every)) - measured} costs predicted from"
            f" {predictor.costs} measured ones of {predictor.problems} problems"
        )
    if sampler.disturbed:
        share = sampler.disturbed / sampler.samples
        notes.append(f"{share:.0%} of the samples were disturbed and taken again")
    if cropped:
        notes.append(f"{cropped} candidates checked on a smaller image")
    disturbed = sum(cost.is_disturbed for cost in costs.costs.values())
    if disturbed:
        notes.append(
            f"other programs used the processors while {disturbed} of the costs were measured, so"
            " these are not stored"
        )
    if phase is not Phase.MEASURING:
        kind = "checked" if phase.needs_checked else "measured"
        notes.append(f"{phase.reason}: only {kind} candidates")
    elif knowledge.no_time_to_measure:
        number = len(knowledge.no_time_to_measure)
        notes.append(f"{OUT_OF_BUDGET}: {number} candidates had no time to be measured")
    if knowledge.no_time_to_check:
        notes.append(f"no time to check {len(knowledge.no_time_to_check)} candidates")
    return "; ".join(notes)


def expected_work(rules: Rules) -> int:
    """Guesses the whole work, from which the progress display computes the time left.

    Each problem is measured once, and a third of them are checked, as in tunings of ResNet-18 and
    SqueezeNet.
    """
    problems = {key.problem for key in rules.primitives}
    checked = {candidate.problem for candidate in rules.all}
    return sum(map(measure_work, problems)) + sum(map(check_work, checked)) // 3


def tied_layers(graph: _C.Graph, plan: _C.Plan, known: Mapping[Key, Cost]) -> int:
    """Returns the number of convolutions for which another choice may be as good.

    There, the next best plan costs more by no more than the noise of the convolution's own cost.
    """
    convolutions = {node.name for node in graph.nodes if is_convolution(node)}
    count = 0
    for node in plan.nodes:
        if node.name in convolutions and node.primitive.name and node.regret is not None:
            cost = known.get(key_of(node.problem, node.primitive))
            count += cost is not None and node.regret <= cost.noise_ticks
    return count
