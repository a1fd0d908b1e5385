# SPDX-License-Identifier: BSD-3-Clause
"""The quarantine: candidates that failed must not be chosen. Rules holds it: allowed.py.

A candidate fails if it ends its process, hangs, needs too much memory, or gives a wrong result.
_ir/failures.py names the kinds. The database stores failures for later runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torchalgo import _C
from torchalgo._base.error_code import with_inner_code
from torchalgo._db import DeviceCosts
from torchalgo._ir.costs import Key
from torchalgo._ir.failures import Failure, failure_of, is_short_of_memory
from torchalgo._ir.plan import Quarantined
from torchalgo._measure.allowed import Rules

BoundOf = Callable[[str], float]  # problem -> the largest relative L2 that a result may have


def failed_before(rules: Rules, stored: DeviceCosts, bound_of: BoundOf) -> dict[Key, str]:
    """Returns the candidates that failed in earlier runs, with the reasons.

    Leaves out those that an override names: they are tried again.
    """
    asked_for = rules.asked_for()
    return {
        key: failure.reason
        for key, failure in stored.read_failures(rules.primitives).items()
        if key not in asked_for and failure.holds_for(bound_of(key.problem))
    }


def failures_to_store(reasons: Mapping[Key, str], bound_of: BoundOf | None) -> dict[Key, Failure]:
    """Returns the failures that the candidates themselves caused, for the database.

    `bound_of` is None if the candidates were only measured, and not checked.
    """
    is_short = is_short_of_memory()
    found = {
        key: failure_of(why, bound_of and bound_of(key.problem), is_short=is_short)
        for key, why in reasons.items()
    }
    return {key: failure for key, failure in found.items() if failure is not None}


def with_quarantine_reasons(problem: Exception, quarantined: Mapping[Key, str]) -> Exception:
    """Returns the error of a search for a plan, with the reasons why candidates are missing."""
    if not quarantined:
        return problem
    reasons = [f"{k.primitive} ({k.problem}): {why}" for k, why in quarantined.items()]
    return _C.Error(with_inner_code(f"TA2301 {problem}; quarantined: {'; '.join(reasons[:5])}"))


def quarantine_list(rules: Rules) -> list[Quarantined]:
    """Returns the candidates that may not be chosen, with the reasons."""
    return [
        Quarantined(key.problem, key.primitive, key.src, key.dst, reason)  # type: ignore[arg-type]
        for key, reason in sorted(rules.quarantined.items())
    ]
