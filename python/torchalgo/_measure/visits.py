# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the visits: the operations to measure, their candidates, and their order.

A visit measures candidates of one operation in the same rounds. Nothing here runs a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torchalgo._base.time_budget import guess_visit_s
from torchalgo._ir.bounds import family_of
from torchalgo._ir.costs import Key
from torchalgo._ir.problems import has_convolution, weight_count
from torchalgo._measure.allowed import grouped
from torchalgo._measure.knowledge import Knowledge
from torchalgo._measure.sampling import SETUPS
from torchalgo._measure.similar import kind_of

# A rival is timed again with the chosen candidate if it costs at most this many times as much.
CLOSE = 1.06
# A candidate of a later operation runs if its predicted cost is at most this times the best one.
CLOSE_ENOUGH = 1.25

Visit = Sequence[Key]


def races(knowledge: Knowledge, unknown: Sequence[Key]) -> list[Visit]:
    """Returns the visits that measure `unknown`, one per operation.

    The first visit of an operation measures all of its candidates, so that rivals run in the same
    rounds. A later visit measures only the unknown keys. Operations that take longest come first,
    so that they are measured if tuning ends early.
    """
    costs = knowledge.costs
    found: list[Visit] = []
    for wanted in grouped(unknown, family_of).values():
        family = knowledge.rules.family(wanted[0])
        is_new = not any(map(costs.is_touched, family))
        found.append(family if is_new else wanted)
    return sorted(found, key=lambda keys: -max(map(costs.lower, keys)))


def rematches(knowledge: Knowledge, chosen: Sequence[Key]) -> list[Visit]:
    """Returns the visits that time `chosen` again, one per operation, with close rivals.

    Rivals that were timed again before are left out. If costs changed each time, the plan would
    never be final.
    """
    found: list[Visit] = []
    for keys in grouped(chosen, family_of).values():
        close = [k for key in keys for k in _close_rivals(knowledge, key)]
        found.append(list(dict.fromkeys([*keys, *close])))
    return found


def _close_rivals(knowledge: Knowledge, key: Key) -> list[Key]:
    costs = knowledge.costs
    most = CLOSE * costs.lower(key)
    known = filter(costs.is_known, knowledge.rules.same_place(key))
    return [k for k in known if costs.lower(k) <= most and k not in knowledge.retimed]


def next_visit(
    knowledge: Knowledge, visits: Sequence[Visit], is_short: Callable[[Visit], bool]
) -> Visit:
    """Returns the visit to make next if the time may run out.

    One operation of each kind is measured with all its candidates. The measured costs then predict
    which candidates of the other operations have to be measured.

    Takes the first kind of which nothing was measured. Among the smaller half of its operations, up
    to the middle one, it chooses the largest whose visit is short. If none is short, it chooses the
    smallest operation. If every kind was measured, returns the first visit.
    """
    is_touched = knowledge.costs.is_touched
    seen = {kind_of(key.problem) for key in knowledge.rules.primitives if is_touched(key)}
    for kind, same in grouped(visits, lambda keys: kind_of(keys[0].problem)).items():
        if kind not in seen:
            by_size = sorted(same, key=lambda keys: max(map(knowledge.costs.lower, keys)))
            smaller = by_size[: len(by_size) // 2 + 1]
            return next(filter(is_short, reversed(smaller)), by_size[0])
    return visits[0]


def promising(knowledge: Knowledge, keys: Visit) -> Visit:
    """Returns those of one operation's candidates that are predicted to be close to its best.

    Returns no candidates if one that was measured before is much better than all of `keys`. Returns
    all of `keys` if no prediction is possible.
    """
    similar = knowledge.similar_costs()
    family = knowledge.rules.family(keys[0])
    predicted = {} if similar is None else similar.predict([*family, *keys])
    most = CLOSE_ENOUGH * min(predicted.values(), default=0)
    return [key for key in keys if predicted.get(key, 0) <= most] if predicted else keys


def guess_s(knowledge: Knowledge, keys: Iterable[Key], again: bool = False) -> float:
    """Estimates the seconds of a visit to `keys`; `again` is one that times them again."""
    least_s = knowledge.least_s
    once_s = sum(guess_visit_s(weight_count(k.problem), least_s(k)) for k in keys)
    return SETUPS * once_s if again else once_s


def measure_work(problem: str) -> int:
    """Returns a rough measure of the work of measuring `problem`; 1 is that of a layout change.

    The progress display uses it.
    """
    return 15 if has_convolution(problem) else 1
