# SPDX-License-Identifier: BSD-3-Clause
"""What a reason tells about a candidate."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from torchalgo._ir.failures import (
    Failure,
    ended_by,
    ended_too_often,
    failure_of,
    is_short_of_memory,
    silent_for,
)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (ended_by(-signal.SIGSEGV), "ended"),
        (ended_by(-signal.SIGABRT, "free(): invalid pointer"), "ended"),
        (ended_by(-63), "ended"),
        (ended_by(3), "ended"),
        (ended_by(-signal.SIGKILL), "memory"),
        (ended_by(1, "MemoryError: std::bad_alloc"), "memory"),
        ("DefaultCPUAllocator: can't allocate memory: you tried", "memory"),
        ("CUDA out of memory. Tried to allocate 3 GiB", "memory"),
        (silent_for(12), "hung"),
        ("an answer that makes no sense", "ended"),
        ("oneDNN: could not create a primitive", "failed"),
    ],
)
def test_the_words_of_a_measurement_tell_its_kind(reason: str, kind: str) -> None:
    assert failure_of(reason) == Failure(reason, kind)  # type: ignore[arg-type]


def test_a_wrong_answer_is_one_for_callers_who_allow_no_more() -> None:
    failure = failure_of("relative L2 2e-05", bound=1e-5)
    assert failure is not None and failure.kind == "wrong"
    assert failure.holds_for(1e-5) and failure.holds_for(1e-6)
    assert not failure.holds_for(1e-4)
    crash = failure_of(ended_by(-signal.SIGSEGV), bound=1e-5)
    assert crash is not None and crash.kind == "ended" and crash.holds_for(1.0)


def test_what_was_not_run_tells_nothing() -> None:
    assert failure_of(ended_too_often(["SIGSEGV"] * 3)) is None


def test_without_memory_left_no_candidate_is_to_blame(tmp_path: Path) -> None:
    for reason in (ended_by(-signal.SIGSEGV), silent_for(12)):
        failure = failure_of(reason, is_short=True)
        assert failure is not None and failure.is_transient
    wrong = failure_of("relative L2 0.5", bound=1e-5, is_short=True)
    assert wrong is not None and not wrong.is_transient
    facts = tmp_path / "meminfo"
    for left, is_short in ((40, True), (60, False)):
        facts.write_text(f"MemTotal: 1000 kB\nMemAvailable: {left} kB\nodd\n")
        assert is_short_of_memory(facts) is is_short
    assert not is_short_of_memory(tmp_path / "none")
