# SPDX-License-Identifier: BSD-3-Clause
"""Holds the current knowledge about one model's candidates, and keeps the database in step."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping

from torchalgo import _C
from torchalgo._base.timings import Timings
from torchalgo._db import DeviceCosts
from torchalgo._ir.bounds import COARSE_BOUND, Peaks, forget_probe
from torchalgo._ir.costs import TICKS_PER_NS, Cost, Key, Passed
from torchalgo._ir.failures import failure_of, is_short_of_memory
from torchalgo._ir.problems import dtype_of
from torchalgo._measure.allowed import Rules
from torchalgo._measure.knowledge import Knowledge, Predictor
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._measure.sampling import Bench
from torchalgo._measure.steps import Limiting, Phase, Question, solve

_log = logging.getLogger("torchalgo")

Guide = Callable[[Peaks | None], Predictor | None]


def _text_of(key: Key) -> str:
    return f"{key.problem}: {key.primitive} {key.src}->{key.dst}"


class CostState:
    """The one place that replaces the knowledge during tuning.

    It begins with the contents of the database. Methods that enter results have written them to the
    database when they return.
    """

    knowledge: Knowledge

    def __init__(
        self,
        rules: Rules,
        bench: Bench,
        stored: DeviceCosts,
        max_error: float,
        timings: Timings,
        call_ticks: int,
        predictor: Predictor | None = None,  # predicts costs instead of measuring
        guide: Guide | None = None,  # makes a predictor for what a budget left unmeasured
        limits: Limiting | None = None,  # of every plan that may run in the end
    ) -> None:
        self._question = Question(limits=limits)
        self._bench, self._stored, self._timings = bench, stored, timings
        self._max_error, self._guide = max_error, guide
        self._probes_left = 2  # the second one if the first was disturbed
        with timings.step("look up"):
            peaks = stored.read_peaks()
        if peaks is None:
            peaks = self._probed(None)
        self.knowledge = Knowledge.start(rules, peaks, call_ticks)
        with timings.step("look up"):
            self._read()
        if predictor is not None:
            with timings.step("predict"):
                known = dataclasses.replace(self.knowledge, predictor=predictor)
                self.knowledge = known.guessing(rules.primitives)

    def bound_of(self, problem: str) -> float:
        """Returns the largest relative L2 error that a candidate of `problem` may have."""
        return max(self._max_error, COARSE_BOUND.get(dtype_of(problem), 0.0))

    @property
    def is_limited(self) -> bool:
        """True if a plan of PyTorch's own primitives may not run in the end."""
        return self._question.limits is not None

    def known_plan(self, phase: Phase, question: Question | None = None) -> _C.Plan | None:
        """Returns the cheapest plan of `phase`, as if it had begun; None if there is none."""
        with self._timings.step("solve"), contextlib.suppress(_C.Error):
            return solve(self.knowledge, phase, question or self._question)[0]
        return None

    # ---- bounds and predictions ------------------------------------------------------------------

    def probe(self) -> bool:
        """Probes the machine's peak rates, unless this was done before without a disturbance.

        Returns True if it is faster than was known before. Then all bounds have become lower.
        """
        peaks = self._probed(self.knowledge.peaks)
        if peaks == self.knowledge.peaks:
            return False
        self.knowledge = self.knowledge.with_peaks(peaks)
        return True

    def _probed(self, before: Peaks | None) -> Peaks | None:
        """Returns the higher rates of `before` and of a probe, or `before` if no probe is left."""
        if not self._probes_left:
            return before
        watch = WaitWatch()
        with self._timings.step("probe"):
            found = self._bench.peaks()
        if found is None:
            self._probes_left = 0
            return before
        peaks = found if before is None else before.raised_by(found)
        if watch.was_disturbed():
            self._probes_left -= 1
            forget_probe()
        else:
            self._probes_left = 0
            if peaks != before and peaks.is_probed:
                self._stored.keep_peaks(peaks)
        return peaks

    def predict(self, keys: Iterable[Key]) -> None:
        """Predicts the unknown costs of `keys`, which there is no time to measure.

        Does nothing if there is neither a predictor nor a guide that makes one.
        """
        if self._guide is not None:
            with self._timings.step("predict"):
                made = self._guide(self.knowledge.peaks)
            self._guide = None
            self.knowledge = dataclasses.replace(self.knowledge, predictor=made)
        if self.knowledge.predictor is not None:
            with self._timings.step("predict"):
                self.knowledge = self.knowledge.guessing(keys)

    def give_up(self, keys: Iterable[Key]) -> None:
        """Gives up measuring those of `keys` whose costs are unknown, for want of time.

        No plan uses them, unless their costs can be predicted or may be assumed.
        """
        knowledge = self.knowledge
        refused, is_known = knowledge.rules.quarantined, knowledge.costs.is_known
        unknown = sorted({key for key in keys if not is_known(key) and key not in refused})
        self.knowledge = knowledge.without_time_to_measure(unknown)
        self.predict(unknown)
        self.knowledge = self.knowledge.assuming(k for k in unknown if k in knowledge.assumable)

    # ---- results of measuring and checking -----------------------------------------------------

    def enter_costs(self, costs: Mapping[Key, Cost], failures: Mapping[Key, str]) -> None:
        """Keeps the results of measuring, in memory and in the database.

        Candidates with a failure are quarantined.
        """
        before = self.knowledge.rules.quarantined
        self._refuse({k: why for k, why in failures.items() if k not in before})
        for key, cost in costs.items():
            _log.debug("%s takes %.2f us", _text_of(key), cost.ticks / TICKS_PER_NS / 1000)
        self.knowledge = self.knowledge.with_costs(costs)
        if costs:
            self._stored.append(costs)
            self._stored.forget_failures(costs, checked=False)

    def enter_checks(self, errors: Mapping[Key, float], failures: Mapping[Key, str]) -> None:
        """Keeps the results of checking, in memory and in the database.

        Candidates with a failure are quarantined.
        """
        self.knowledge = self.knowledge.with_errors(errors)
        self._refuse(failures, checked=True)
        passed = {
            key: Passed(error, self.bound_of(key.problem))
            for key, error in errors.items()
            if key not in failures
        }
        if passed:
            self._stored.append_checks(passed)
            self._stored.forget_failures(passed, checked=True)

    def enter_checks_on_crop(
        self, errors: Mapping[Key, float], failures: Mapping[Key, str]
    ) -> None:
        """Keeps the results of checks on a smaller image, in memory only.

        They are not stored: a later run with more time checks the whole image.
        """
        self.knowledge = self.knowledge.with_errors(errors).with_quarantine(failures)

    def _refuse(self, reasons: Mapping[Key, str], *, checked: bool = False) -> None:
        """Quarantines candidates. Stores the failures that the candidates themselves caused."""
        for key, why in reasons.items():
            _log.info("%s is no candidate any more: %s", _text_of(key), why)
        self.knowledge = self.knowledge.with_quarantine(reasons)
        if reasons:
            is_short, found = is_short_of_memory(), {}
            for key, why in reasons.items():
                bound = self.bound_of(key.problem) if checked else None
                failure = failure_of(why, bound, is_short=is_short)
                if failure is not None:
                    found[key] = failure
            self._stored.append_failures(found)

    def _read(self) -> None:
        """Takes over costs, failures and passed checks of earlier runs.

        A candidate that failed is quarantined, unless an override names it.
        """
        rules, stored = self.knowledge.rules, self._stored
        self.knowledge = self.knowledge.with_costs(stored.read(rules.primitives))
        asked_for = rules.asked_for()
        failed = {
            key: failure.reason
            for key, failure in stored.read_failures(rules.primitives).items()
            if key not in asked_for and failure.holds_for(self.bound_of(key.problem))
        }
        self.knowledge = self.knowledge.with_failed_before(failed)
        checks = stored.read_checks(rules.primitives).items()
        self.knowledge = self.knowledge.with_errors(
            {k: p.rel_error for k, p in checks if p.holds_for(self.bound_of(k.problem))}
        )
