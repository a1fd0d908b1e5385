# SPDX-License-Identifier: BSD-3-Clause
"""Makes visits while there is time, and gives up what would take too long."""

from __future__ import annotations

from collections.abc import Sequence

from torchalgo._base.call_context import CallContext
from torchalgo._base.progress import Progress
from torchalgo._base.time_budget import Deadline, Pace
from torchalgo._ir.bounds import family_of
from torchalgo._ir.costs import TICKS_PER_NS, Key
from torchalgo._ir.failures import LATE
from torchalgo._ir.problems import has_convolution
from torchalgo._measure.checking import Checker
from torchalgo._measure.cost_state import CostState
from torchalgo._measure.knowledge import is_trusted
from torchalgo._measure.sampling import Bench, Sampler
from torchalgo._measure.steps import Phase, keys_of
from torchalgo._measure.visits import Visit, guess_s, measure_work, next_visit, promising

# The best plan so far is shown at most this often, and solving for it takes at most this part of
# the time.
TELL_EVERY_S, TELL_SHARE = 0.5, 0.01
MOST_SHARE_S = 10.0  # the most seconds for one operation's visit; less with a budget
LEADERS_SHARE = 0.05  # the part of the time for finding the leading candidates


class Fallback:
    """Tells the deadline whether it may stop work: if there is a plan without it.

    The plan uses only candidates that were checked or are PyTorch's own.
    """

    def __init__(self, state: CostState, deadline: Deadline) -> None:
        self._state, self._deadline = state, deadline
        # The number of quarantined keys and the phase of the last search for a plan.
        self._searched: tuple[int, Phase] | None = None

    def look(self, is_measuring: bool = True) -> None:
        """Sets `deadline.can_break`. Solves only if the answer may have changed.

        If PyTorch's own primitives may not run, measuring may end when any plan is known. Then the
        plan is checked, however long that takes.
        """
        has_checks = is_measuring and self._state.is_limited
        phase = Phase.CHECKING if has_checks else Phase.FINISHED
        searched = len(self._state.knowledge.rules.quarantined), phase
        is_known = self._deadline.can_break and searched == self._searched
        if self._deadline.has_end and not is_known:
            plan = self._state.known_plan(phase)
            self._deadline.can_break = plan is not None
            self._searched = searched


class BestSoFar:
    """Shows the time of the best plan so far. Each time needs a solve, so it is not always due."""

    def __init__(self, state: CostState, bench: Bench, progress: Progress) -> None:
        self._state, self._bench, self._progress = state, bench, progress
        self._began = self._told_at = bench.now_s()
        self._telling_s = 0.0

    def tell(self) -> None:
        now = self._bench.now_s()
        is_due = now - self._told_at >= TELL_EVERY_S and self._telling_s <= TELL_SHARE * (
            now - self._began
        )
        if self._progress.is_silent or not is_due:
            return
        plan = self._state.known_plan(Phase.CHECKING)
        self._told_at = self._bench.now_s()
        self._telling_s += self._told_at - now
        if plan is not None:
            self._progress.set_best(plan.cost / (1000 * TICKS_PER_NS))


class Rounds:
    """Makes visits one after another. Each visit's results are kept before the next begins."""

    def __init__(
        self,
        state: CostState,
        bench: Bench,
        sampler: Sampler,
        checker: Checker,
        fallback: Fallback,
        call: CallContext,
    ) -> None:
        self._state, self._bench, self._sampler = state, bench, sampler
        self._checker, self._fallback = checker, fallback
        self._deadline, self._progress, self._timings = call.deadline, call.progress, call.timings
        self._best = BestSoFar(state, bench, call.progress)
        self._pace = Pace(4.0)
        self._began = bench.now_s()
        self._leading_s = 0.0  # spent on finding the leading candidates

    def run(self, visits: Sequence[Visit], again: bool = False) -> bool:
        """Makes the visits. Returns False if the time was over before the last one.

        Args:
            again: the candidates are timed again, see Sampler.take.
        """
        self._fallback.look()
        left = list(visits)
        while left:
            if self._deadline.is_over("measure") and self._deadline.can_break:
                return False
            is_hurried = not again and self._may_run_out(left)
            planned = left[: self._sampler.lot]
            if is_hurried and len(planned) == 1:
                planned = [next_visit(self._state.knowledge, left, self._is_short)]
            left = [keys for keys in left if not any(keys is one for one in planned)]
            if is_hurried:
                planned = [self._promising(keys) for keys in planned]
            lot = [keys for keys in (self._in_time(own, again) for own in planned) if keys]
            if lot:
                self._progress.doing(f"{family_of(lot[0][0])} ({sum(map(len, lot))})")
                self._visit(lot, self._share_s(1 + len(left)), again)
                self._best.tell()
            for keys in planned if again else ():  # also if there was no time for some of them
                self._state.knowledge = self._state.knowledge.with_retimed(keys)
            for keys in lot:
                self._progress.advance(keys[-1].problem, measure_work(keys[-1].problem))
            if not again and self._may_run_out(left):
                self._check_leaders()
        return True

    def give_up(self, keys: Sequence[Key]) -> None:
        """Gives up measuring `keys`, unless there is no plan without them."""
        if self._deadline.can_break:
            self._state.give_up(keys)

    # ---- one visit -------------------------------------------------------------------------------

    def _visit(self, lot: Sequence[Visit], share_s: float, again: bool) -> None:
        keys = [key for visit in lot for key in visit]
        guess, started = self._guess_s(keys, again), self._bench.now_s()
        costs = self._sampler.take_all(lot, share_s, again)
        failures = self._sampler.failures
        late = [key for key, why in failures.items() if why == LATE]
        for key in late:  # it did not fail: the time was over while it ran
            del failures[key]
        self._state.enter_costs(costs, failures)
        if late:
            self._state.knowledge = self._state.knowledge.without_time_to_measure(late)
            self._state.predict(late)
        self._pace.learn(guess, self._bench.now_s() - started)

    def _check_leaders(self) -> None:
        """Checks the measured candidates of the plan that is cheapest now.

        So a plan may use them, whenever the time ends. Only convolutions are checked.
        """
        started = self._bench.now_s()
        if self._leading_s > LEADERS_SHARE * (started - self._began):
            return
        plan = self._state.known_plan(Phase.MEASURING)
        if plan is None:
            return
        self._leading_s += self._bench.now_s() - started
        chosen, knowledge = keys_of(plan), self._state.knowledge
        self._checker.reserve(chosen)
        leaders = [
            key
            for key in knowledge.unchecked(chosen)
            if key in knowledge.costs.costs and not is_trusted(key) and has_convolution(key.problem)
        ]
        if leaders:
            self._fallback.look()
            with self._timings.step("check"):
                self._checker.check(leaders)

    # ---- the time that is left -------------------------------------------------------------------

    def _may_run_out(self, visits: Sequence[Visit]) -> bool:
        """Returns True if the time may not suffice for twice the work of `visits`."""
        if not self._deadline.has_end:
            return False
        left_s = self._deadline.left_s("measure")
        keys = [key for visit in visits for key in visit]
        return 2 * self._pace.expect_s(self._guess_s(keys)) > left_s

    def _is_short(self, keys: Visit) -> bool:
        """Returns True if a visit takes at most an eighth of the time that is left."""
        return 8 * self._pace.expect_s(self._guess_s(keys)) <= self._deadline.left_s("measure")

    def _promising(self, keys: Visit) -> Visit:
        """Returns the candidates of an operation that may be close to its best.

        If some of its candidates were measured before, the others are given up.
        """
        if not self._deadline.can_break:
            return keys
        chosen = promising(self._state.knowledge, keys)
        if self._state.knowledge.has_run_family(keys[0]):
            self.give_up([key for key in keys if key not in chosen])
        return chosen

    def _in_time(self, keys: Visit, again: bool) -> Visit:
        """Returns the keys of one visit that can be measured in the time that is left.

        The time is guessed from the costs or their bounds, and from what earlier visits took. The
        other keys are given up. Returns all keys if no plan could be made otherwise.
        """
        left_s, expected_s = self._deadline.left_s("measure"), 0.0
        too_long: set[Key] = set()
        for key in sorted(keys, key=self._state.knowledge.costs.lower):
            expected_s += self._pace.expect_s(self._guess_s([key], again))
            if expected_s > left_s:
                too_long.add(key)
        if not too_long or not self._deadline.can_break:
            return list(keys)
        self.give_up(sorted(too_long))
        return [key for key in keys if key not in too_long]

    def _share_s(self, visits_left: int) -> float:
        """Returns the seconds for the next visit."""
        left_s = max(0.0, self._deadline.left_s("measure"))
        return min(MOST_SHARE_S, left_s / (2 * visits_left))  # half is left to later steps

    def _guess_s(self, keys: Visit, again: bool = False) -> float:
        return guess_s(self._state.knowledge, keys, again)
