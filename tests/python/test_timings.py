# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

from torchalgo._base.timings import StepTime, Timings, timings_text


def test_a_step_within_another_is_not_part_of_it_and_nothing_is_lost() -> None:
    clock = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0])
    half = iter([0.0, 0.5, 1.5, 3.5, 7.5, 15.5])
    timings = Timings(lambda: next(clock), lambda: next(half))
    with timings.step("solve"), timings.step("measure"):
        pass
    found = timings.all()
    assert found == {
        "measure": StepTime(4.0, 2.0),
        "solve": StepTime(2.0 + 8.0, 1.0 + 4.0),
        "rest": StepTime(1.0 + 16.0, 0.5 + 8.0),
    }
    assert list(found) == ["measure", "solve", "rest"]
    assert sum(step.wall_s for step in found.values()) == 31.0


def test_the_line_has_the_longest_first_and_the_sum() -> None:
    times = {"read": StepTime(0.2), "solve": StepTime(1.5), "find": StepTime(0.001)}
    assert timings_text(times) == "1.70 s: solve 1.50, read 0.20"
