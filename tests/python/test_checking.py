# SPDX-License-Identifier: BSD-3-Clause
"""Which candidates are checked if there is no time for all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from torchalgo._ir.costs import Key
from torchalgo._measure.checking import Checker, Group

PROBLEM = "linear_f32_n1c16_k16"
GAINS = {Key(PROBLEM, name, "nchw", "nchw"): gain for name, gain in (("a", 1), ("b", 3), ("c", 2))}
CHECK_S = 4.0  # of each candidate


@pytest.mark.parametrize(
    ("left_s", "expected"), [(12.0, ["a", "b", "c"]), (11.0, ["b"]), (3.0, [])]
)
def test_the_best_candidate_is_checked_if_there_is_no_time_for_its_rivals(
    monkeypatch: pytest.MonkeyPatch, left_s: float, expected: list[str]
) -> None:
    given_up: list[Key] = []
    fakes: dict[str, Any] = {
        "_deadline": SimpleNamespace(can_break=True, left_s=lambda kept: left_s),
        "_is_short": False,
        "_expect_s": lambda keys, problem=None: CHECK_S * len(list(keys)),
        "_gain_s": GAINS.__getitem__,
        "_give_up": given_up.extend,
        "_group": lambda problem, keys: Group(problem, keys, []),
    }
    checker = object.__new__(Checker)
    for name, fake in fakes.items():
        monkeypatch.setattr(checker, name, fake, raising=False)
    found = checker._fitting(Group(PROBLEM, list(GAINS), []))
    assert [key.primitive for key in (found.keys if found else [])] == expected
    assert {key.primitive for key in given_up} == {"a", "b", "c"} - set(expected)
