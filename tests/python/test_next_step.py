# SPDX-License-Identifier: BSD-3-Clause
"""The measuring loop's decisions, step by step from recorded tables. Nothing is measured here."""

from __future__ import annotations

from typing import Any

import pytest

import torchalgo
from cost_tables import FOLDER, Table, read_table, usable
from torchalgo import _C
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import Cost, Key, Samples
from torchalgo._measure.allowed import Rules, key_of_candidate
from torchalgo._measure.knowledge import Knowledge, is_trusted
from torchalgo._measure.sampling import RETIMED_SAMPLES, ROUNDS
from torchalgo._measure.steps import (
    Check,
    Done,
    Measure,
    Phase,
    Question,
    Release,
    Retime,
    Step,
    keys_of,
    next_step,
)

LATE_PHASES = (Phase.CHECKING, Phase.FINISHED, Phase.INTERRUPTED)


@pytest.fixture(scope="module", params=["alexnet", "resnet18"])
def table(request: pytest.FixtureRequest) -> Table:
    return usable(read_table(FOLDER / f"{request.param}.json.gz"))


def start(table: Table, *, has_peaks: bool = True) -> Knowledge:
    rules = Rules(table.graph, table.found, table.transforms, {})
    return Knowledge.start(rules, Peaks.probed(table.probes) if has_peaks else None, 0)


def answered(knowledge: Knowledge, step: Step, table: Table) -> Knowledge:
    """The knowledge after the table has answered what the step asks."""
    samples = RETIMED_SAMPLES if isinstance(step, Retime) else ROUNDS
    if isinstance(step, Check):
        return knowledge.with_errors(dict.fromkeys(step.keys, 1e-7))
    assert isinstance(step, (Measure, Retime))
    rows = {key: table.rows[key] for key in step.keys}
    costs = {k: Cost(row.ticks, row.noise_ticks, Samples(samples)) for k, row in rows.items()}
    knowledge = knowledge.with_costs(costs)
    return knowledge.with_retimed(step.keys) if isinstance(step, Retime) else knowledge


def expected_kind(knowledge: Knowledge) -> type[Step]:
    """The kind of the next step while measuring, by the planner's answer alone."""
    rules = knowledge.rules
    plan, unknown = _C.make_plan(rules.graph, rules.found, rules.transforms, knowledge.costs.table)
    if unknown:
        return Measure
    chosen = [key for key in keys_of(plan) if not _C.is_view(key.primitive)]
    if any(key not in knowledge.errors for key in chosen):
        return Check
    return Retime if any(key not in knowledge.retimed for key in chosen) else Done


def facts_of(knowledge: Knowledge) -> Any:
    costs = knowledge.costs
    table = sorted(((*map(str, (k.problem, k.primitive, k.src, k.dst)), ticks, source)
                    for k, ticks, source in costs.table.items()))  # fmt: skip
    return [
        table, dict(costs.costs), dict(costs.rough), dict(costs.guessed), dict(costs.bounds),
        dict(knowledge.errors), dict(knowledge.rules.quarantined), dict(knowledge.failed_before),
        knowledge.retimed, knowledge.no_time_to_measure, knowledge.no_time_to_check,
    ]  # fmt: skip


def text_of(step: Step) -> Any:
    if not isinstance(step, Done):
        return type(step), step.keys, step.chosen
    nodes = [(n.name, n.problem, repr(n.primitive), n.cost) for n in step.plan.nodes]
    return Done, nodes, step.plan.cost, step.plan.status, step.chosen


def asked_twice(knowledge: Knowledge, phase: Phase, question: Question = Question()) -> Step:  # noqa: B008
    """The next step. Asking changes nothing, and asking again gives the same answer."""
    before = facts_of(knowledge)
    first, second = (next_step(knowledge, phase, question) for _ in range(2))
    assert text_of(first) == text_of(second)
    assert facts_of(knowledge) == before
    return first


def plan_uses_known_costs(knowledge: Knowledge, chosen: tuple[Key, ...]) -> bool:
    return all(knowledge.costs.is_known(k) or k in knowledge.assumable for k in chosen)


@pytest.mark.parametrize("has_peaks", [True, False])
def test_the_steps_lead_from_nothing_to_the_optimum_of_the_table(
    table: Table, has_peaks: bool
) -> None:
    knowledge, kinds = start(table, has_peaks=has_peaks), []
    while True:
        step = asked_twice(knowledge, Phase.MEASURING)
        assert type(step) is expected_kind(knowledge)
        kinds.append(type(step))
        if isinstance(step, Done):
            break
        knowledge = answered(knowledge, step, table)
    assert kinds[0] is Measure and {Measure, Check, Retime} < set(kinds)
    optimum, _ = _C.make_plan(table.graph, table.found, table.transforms, table.costs())
    assert step.plan.cost == optimum.cost and step.plan.status == "optimal"
    assert has_peaks <= (len(knowledge.costs.costs) < len(table.rows))


def test_at_each_step_the_time_or_the_user_may_end_it(table: Table) -> None:
    """A late phase is a question, too: the step while measuring is the same before and after."""
    knowledge, seen = start(table), set()
    while True:
        step = next_step(knowledge, Phase.MEASURING)
        for phase in LATE_PHASES:
            known, late = knowledge, asked_twice(knowledge, phase)
            while isinstance(late, Check):
                assert phase is Phase.CHECKING and not any(map(is_trusted, late.keys))
                known = answered(known, late, table)
                late = asked_twice(known, phase)
                seen.add(Check)
            assert isinstance(late, Done)
            assert plan_uses_known_costs(known, late.chosen)
            assert all(key in known.errors or is_trusted(key) for key in late.chosen)
        assert text_of(next_step(knowledge, Phase.MEASURING)) == text_of(step)
        if isinstance(step, Done):
            break
        knowledge = answered(knowledge, step, table)
    assert seen == {Check}


def test_what_there_is_no_time_for_is_used_by_no_plan(table: Table) -> None:
    knowledge = start(table)
    first = next_step(knowledge, Phase.MEASURING)
    assert isinstance(first, Measure)
    lost = knowledge.without_time_to_measure(first.keys)
    step = asked_twice(lost, Phase.MEASURING)
    assert not set(step.chosen) & lost.no_time_to_measure
    known = answered(knowledge, first, table)
    while not isinstance(check := next_step(known, Phase.MEASURING), Check):
        known = answered(known, check, table)
    unchecked = known.without_time_to_check(check.keys)
    step = asked_twice(unchecked, Phase.MEASURING)
    assert all(is_trusted(key) for key in set(step.chosen) & unchecked.no_time_to_check)


def test_failures_of_earlier_runs_are_released_where_no_plan_does_without(table: Table) -> None:
    knowledge = start(table)
    node = next(i for i, own in enumerate(table.found.by_anchor) if own)
    every = [c for c in knowledge.rules.all if node in c.covers]
    failed = dict.fromkeys(map(key_of_candidate, every), "SIGSEGV")
    failing = knowledge.with_failed_before(failed)
    step = asked_twice(failing, Phase.MEASURING)
    assert isinstance(step, Release) and set(step.keys) == set(failed)
    assert text_of(next_step(failing.released(), Phase.MEASURING)) == text_of(
        next_step(knowledge, Phase.MEASURING)
    )
    for refused in (failing, knowledge.with_quarantine(failed)):
        with pytest.raises(torchalgo.Error, match=r"quarantined: .*SIGSEGV"):
            next_step(refused, Phase.CHECKING)


def test_an_older_value_answers_as_before_after_newer_ones_were_made_of_it(table: Table) -> None:
    knowledge = start(table)
    before = facts_of(knowledge)
    step = next_step(knowledge, Phase.MEASURING)
    newer = answered(knowledge, step, table)
    after = facts_of(newer)
    newest = newer.assuming(list(newer.assumable)).with_quarantine({step.chosen[0]: "broken"})
    assert facts_of(newest) != after != before
    assert facts_of(knowledge) == before and facts_of(newer) == after
    assert text_of(next_step(knowledge, Phase.MEASURING)) == text_of(step)
