# SPDX-License-Identifier: BSD-3-Clause
"""Holds what is known about the candidates of one model, in memory and in the database.

This is costs and their bounds, numeric errors, and failures with their reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torchalgo import _C
from torchalgo._base.timings import Timings
from torchalgo._ir.bounds import COARSE_BOUND, KnownCosts, Peaks
from torchalgo._ir.costs import TICKS_PER_NS, Cost, CostFile, Key, Passed
from torchalgo._ir.failures import failure_of, is_short_of_memory
from torchalgo._ir.problems import dtype_of
from torchalgo._measure.allowed import Rules
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._measure.sampling import Bench

_log = logging.getLogger(__name__)


def _text_of(key: Key) -> str:
    return f"{key.problem}: {key.primitive} {key.src}->{key.dst}"


class CostState:
    """The costs, errors and failures of one model's candidates.

    It begins with the contents of the database. Methods that enter results have written them to the
    database, if there is one, when they return.
    """

    def __init__(
        self,
        rules: Rules,
        bench: Bench,
        cost_file: CostFile | None,
        max_rel_error: float,
        timings: Timings,
        call_ticks: int,
    ) -> None:
        self.rules = rules
        # The relative L2 error of each checked candidate. A view computes nothing, so its is 0.
        self.errors = {key: 0.0 for key in rules.primitives if _C.is_view(key.primitive)}
        self._bench, self._cost_file, self._timings = bench, cost_file, timings
        self._max_rel_error = max_rel_error
        self._failed_before: dict[Key, str] = {}  # failures of earlier runs: reasons
        self._is_probed = False
        self.peaks: Peaks | None
        with timings.step("look up"):
            self.peaks = None if cost_file is None else cost_file.read_peaks()
        if self.peaks is None:
            self._raise_peaks()
        self.costs = KnownCosts(self._work_bounds(), call_ticks)
        if cost_file is not None:
            with timings.step("look up"):
                self.costs.learn(cost_file.read(rules.primitives))
                self._obey_failures(cost_file)
                self._trust_checks(cost_file)

    def bound_of(self, problem: str) -> float:
        """Returns the largest relative L2 error that a candidate of `problem` may have."""
        return max(self._max_rel_error, COARSE_BOUND.get(dtype_of(problem), 0.0))

    def least_s(self, key: Key) -> float:
        """Returns the seconds of a run, by its cost, or by the cost's lower bound if unknown."""
        return self.costs.lower(key) / (TICKS_PER_NS * 1e9)

    # ---- bounds --------------------------------------------------------------------------------

    def probe(self) -> bool:
        """Probes the machine's peak rates, once.

        Returns True if it is faster than was known before. Then all bounds have become lower.
        """
        if not self._raise_peaks():
            return False
        self.costs = self.costs.with_bounds(self._work_bounds())
        return True

    def _raise_peaks(self) -> bool:
        if self._is_probed:
            return False
        self._is_probed = True
        watch = WaitWatch()
        with self._timings.step("probe"):
            found, before = self._bench.peaks(), self.peaks
        if found is None:
            return False
        self.peaks = found if before is None else before.raised_by(found)
        if self.peaks == before:
            return False
        if self._cost_file is not None and not watch.was_disturbed():
            self._cost_file.keep_peaks(self.peaks)
        return True

    def _work_bounds(self) -> dict[Key, int]:
        peaks, primitives = self.peaks, self.rules.primitives
        if peaks is None:
            return dict.fromkeys(primitives, 0)
        return {k: peaks.bound_ticks(k.problem, p) for k, p in primitives.items()}

    # ---- results of measuring and checking -----------------------------------------------------

    def enter_costs(self, costs: Mapping[Key, Cost], failures: Mapping[Key, str]) -> None:
        """Keeps the results of measuring, in memory and in the database.

        Candidates with a failure are quarantined.
        """
        self._refuse({k: why for k, why in failures.items() if k not in self.rules.quarantined})
        for key, cost in costs.items():
            _log.debug("%s takes %.2f us", _text_of(key), cost.ticks / TICKS_PER_NS / 1000)
        self.costs.learn(costs)
        if self._cost_file is not None and costs:
            self._cost_file.append(costs)
            self._cost_file.forget_failures(costs, checked=False)

    def enter_checks(self, errors: Mapping[Key, float], failures: Mapping[Key, str]) -> None:
        """Keeps the results of checking, in memory and in the database.

        Candidates with a failure are quarantined.
        """
        self.errors.update(errors)
        self._refuse(failures, checked=True)
        passed = {
            key: Passed(error, self.bound_of(key.problem))
            for key, error in errors.items()
            if key not in failures
        }
        if self._cost_file is not None and passed:
            self._cost_file.append_checks(passed)
            self._cost_file.forget_failures(passed, checked=True)

    def release_failures(self) -> bool:
        """Takes candidates that failed in earlier runs out of quarantine.

        Returns whether there were any.
        """
        released, self._failed_before = self._failed_before, {}
        for key in released:
            del self.rules.quarantined[key]
        return bool(released)

    def _refuse(self, reasons: Mapping[Key, str], *, checked: bool = False) -> None:
        """Quarantines candidates. Stores the failures that the candidates themselves caused."""
        for key, why in reasons.items():
            _log.info("%s is no candidate any more: %s", _text_of(key), why)
        self.rules.quarantined.update(reasons)
        if self._cost_file is None or not reasons:
            return
        is_short = is_short_of_memory()
        found = {
            key: failure_of(why, self.bound_of(key.problem) if checked else None, is_short=is_short)
            for key, why in reasons.items()
        }
        self._cost_file.append_failures({key: f for key, f in found.items() if f is not None})

    def _trust_checks(self, cost_file: CostFile) -> None:
        """Takes over the checks that were passed in earlier runs, so that none is repeated."""
        for key, passed in cost_file.read_checks(self.rules.primitives).items():
            if passed.holds_for(self.bound_of(key.problem)):
                self.errors[key] = passed.rel_error

    def _obey_failures(self, cost_file: CostFile) -> None:
        """Quarantines candidates that failed in earlier runs, unless an override names them."""
        asked_for = self.rules.asked_for()
        self._failed_before = {
            key: failure.reason
            for key, failure in cost_file.read_failures(self.rules.primitives).items()
            if key not in asked_for and failure.holds_for(self.bound_of(key.problem))
        }
        self.rules.quarantined.update(self._failed_before)
