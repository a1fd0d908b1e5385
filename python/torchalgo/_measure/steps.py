# SPDX-License-Identifier: BSD-3-Clause
"""Decides the next step of tuning. Nothing here measures, waits, or changes a value.

`next_step` asks the planner for the cheapest plan with the knowledge so far. The result is the
plan, if it counts, or the keys that must be measured, checked or timed again before it counts.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torchalgo import _C
from torchalgo._base.error_code import with_inner_code
from torchalgo._base.time_budget import OUT_OF_BUDGET
from torchalgo._ir.costs import Key, key_of, key_of_native
from torchalgo._measure.allowed import key_of_candidate
from torchalgo._measure.knowledge import Knowledge, is_trusted
from torchalgo._measure.sampling import RETIMED_SAMPLES

Planner = Callable[..., tuple[_C.Plan, list[_C.CostKey]]]  # called like _C.make_plan
Allows = Callable[[_C.Candidate], bool]


class Phase(enum.Enum):
    """The part of tuning that goes on. It says what a plan may use.

    While measuring, a plan may use any candidate: what it lacks is measured. In the other phases, a
    plan uses known costs only.
    """

    MEASURING = "measuring"
    CHECKING = "checking"  # no time to measure; the chosen candidates are still checked
    FINISHED = "finished"  # no time to check either: a plan uses checked candidates
    INTERRUPTED = "interrupted"  # Ctrl-C ended measuring and checking

    @property
    def needs_checked(self) -> bool:
        """True if a plan may use only candidates that were checked or are PyTorch's own."""
        return self in (Phase.FINISHED, Phase.INTERRUPTED)

    @property
    def reason(self) -> str:
        """The reason why nothing more is measured; empty while measuring."""
        if self is Phase.MEASURING:
            return ""
        return "interrupted" if self is Phase.INTERRUPTED else OUT_OF_BUDGET


class Limiting(Protocol):
    """Limits of plans: of their candidates, and of sums over all nodes."""

    @property
    def allows(self) -> Allows | None:
        """True for the candidates that a plan may use. None: any. Overrides stay in force."""
        ...

    def resources(self, knowledge: Knowledge) -> list[_C.Resource]:
        """Returns the limits as resources for a planner; empty if there are none."""
        ...


@dataclass(frozen=True)
class Question:
    """A request for a plan: the planner, and the restrictions beside the overrides."""

    planner: Planner = _C.make_plan
    limits: Limiting | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of `planner`


@dataclass(frozen=True)
class _OfKeys:
    """A step for `keys`. `chosen` is the keys of a plan that may need them, if there is one."""

    keys: tuple[Key, ...]
    chosen: tuple[Key, ...] = ()


class Measure(_OfKeys):
    """Measure `keys`."""


class Check(_OfKeys):
    """Check `keys` of a plan against f64."""


class Retime(_OfKeys):
    """Time `keys` of a plan again, so that luck has no influence on their costs."""


class Release(_OfKeys):
    """Take `keys` out of quarantine: they failed in earlier runs, and no plan does without them."""


@dataclass(frozen=True)
class Done:
    """Do nothing more: `plan` is the answer, and its keys are `chosen`."""

    plan: _C.Plan
    chosen: tuple[Key, ...]


Step = Measure | Check | Retime | Release | Done


def next_step(knowledge: Knowledge, phase: Phase, question: Question = Question()) -> Step:
    """Returns the next step towards the cheapest plan that `question` asks for. Changes nothing.

    Raises: torchalgo.Error if there is no plan.
    """
    try:
        plan, unknown = solve(knowledge, phase, question)
    except _C.Error as problem:
        if phase is Phase.MEASURING and knowledge.failed_before:
            return Release(tuple(knowledge.failed_before))
        if not (quarantined := knowledge.rules.quarantined):
            raise
        reasons = [f"{k.primitive} ({k.problem}): {why}" for k, why in quarantined.items()]
        raise _C.Error(
            with_inner_code(f"TA2301 {problem}; quarantined: {'; '.join(reasons[:5])}")
        ) from None
    chosen = tuple(keys_of(plan))
    wanted = unknown or _left_to_do(knowledge, phase, chosen)
    if not wanted:
        return Done(plan, chosen)
    unknown = [key for key in wanted if not knowledge.costs.is_known(key)]
    if unknown and phase is Phase.MEASURING:
        return Measure(tuple(unknown), chosen)
    unchecked = knowledge.unchecked(wanted)
    if unchecked:
        return Check(tuple(unchecked), chosen)
    return Retime(tuple(wanted), chosen)


# ---- the planner ---------------------------------------------------------------------------------


class PlannerInput(NamedTuple):
    """The arguments of a planner, in its order."""

    graph: _C.Graph
    found: _C.Candidates
    transforms: Sequence[_C.Candidate]
    costs: _C.CostTable
    allow: Allows | None  # None: all candidates


def solve(knowledge: Knowledge, phase: Phase, question: Question) -> tuple[_C.Plan, list[Key]]:
    """Returns the planner's plan, and the keys in it whose costs are unknown.

    Raises: torchalgo.Error if there is no plan.
    """
    graph, found, transforms, costs, allow = planner_input(knowledge, phase, question)
    options = dict(question.options)
    if question.limits is not None:
        options["resources"] = question.limits.resources(knowledge)
    plan, native = question.planner(graph, found, transforms, costs, allow=allow, **options)
    return plan, list(map(key_of_native, native))


def planner_input(knowledge: Knowledge, phase: Phase, question: Question) -> PlannerInput:
    """Returns the candidates and costs for the plan that `question` asks for."""
    rules = knowledge.rules
    is_within = None if question.limits is None else question.limits.allows
    is_restricted = phase is not Phase.MEASURING or knowledge.has_gaps

    def allows(candidate: _C.Candidate) -> bool:
        if not may_use(knowledge, phase, key_of_candidate(candidate)):
            return False
        if not rules.allows(candidate):
            return False
        return is_within is None or candidate.covers[0] in rules.forced or is_within(candidate)

    transforms = rules.allowed_transforms()
    if is_restricted:
        transforms = [t for t in transforms if may_use(knowledge, phase, key_of_candidate(t))]
    if is_within is not None and not rules.forced:
        transforms = list(filter(is_within, transforms))
    are_all_allowed = is_within is None and not is_restricted and rules.are_free
    costs = knowledge.costs.table
    if phase is not Phase.MEASURING:
        costs = knowledge.costs.measured(assumed=knowledge.assumable)
    return PlannerInput(
        rules.graph, rules.found, transforms, costs, None if are_all_allowed else allows
    )


def known_input(knowledge: Knowledge) -> PlannerInput:
    """Returns the candidates with known costs, checked or not."""
    rules = knowledge.rules

    def is_known(candidate: _C.Candidate) -> bool:
        return knowledge.costs.is_known(key_of_candidate(candidate))

    return PlannerInput(
        rules.graph,
        rules.found,
        list(filter(is_known, rules.allowed_transforms())),
        knowledge.costs.measured(),
        lambda candidate: rules.allows(candidate) and is_known(candidate),
    )


def may_use(knowledge: Knowledge, phase: Phase, key: Key) -> bool:
    """Returns True if a plan of `phase` may use `key`, as far as time is concerned.

    While measuring, this is every key that can still be measured or has a known cost. In the other
    phases it is every key that ran, has a known cost, or may be assumed. If the phase needs checked
    candidates, the key must also be checked or be PyTorch's own.
    """
    if key in knowledge.no_time_to_check and not is_trusted(key):
        return False
    costs = knowledge.costs
    if phase is Phase.MEASURING:
        return key not in knowledge.no_time_to_measure or costs.is_known(key)
    is_possible = costs.is_touched(key) or costs.is_known(key) or key in knowledge.assumable
    return is_possible and (not phase.needs_checked or key in knowledge.errors or is_trusted(key))


def keys_of(plan: _C.Plan) -> list[Key]:
    """Returns the keys of the plan's primitives and layout changes, each once."""
    keys = [key_of(n.problem, n.primitive) for n in plan.nodes if n.primitive.name]
    keys += [key_of(t.problem, t.primitive) for t in plan.transforms]
    return list(dict.fromkeys(keys))


# ---- the keys that a plan still needs ------------------------------------------------------------


def _left_to_do(knowledge: Knowledge, phase: Phase, chosen: Sequence[Key]) -> list[Key]:
    """Returns the chosen keys that must be checked before a plan counts.

    If all are checked, returns the keys that must be timed again.
    """
    if phase.needs_checked:
        return []
    unchecked = knowledge.unchecked(chosen)
    is_measuring = phase is Phase.MEASURING
    if not is_measuring or knowledge.has_gaps:  # time is short: PyTorch's own stay unchecked
        unchecked = [key for key in unchecked if not is_trusted(key)]
    if unchecked or not is_measuring:
        return unchecked
    return [key for key in chosen if _may_be_lucky(knowledge, key)]


def _may_be_lucky(knowledge: Knowledge, key: Key) -> bool:
    """Returns True if `key` was measured, but was not timed again since."""
    is_retimed = key in knowledge.retimed or _C.is_view(key.primitive)
    cost = knowledge.costs.costs.get(key)  # None: the cost is predicted
    return not is_retimed and cost is not None and 0 < cost.samples.n < RETIMED_SAMPLES


def with_forced(knowledge: Knowledge, forced: Mapping[int, str]) -> Knowledge:
    """Returns the knowledge with other overrides, for a what-if question."""
    return dataclasses.replace(knowledge, rules=knowledge.rules.with_forced(forced))
