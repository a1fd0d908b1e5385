# SPDX-License-Identifier: BSD-3-Clause
"""Texts of plans: the five lines of a command, and plain text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchalgo._ir.plan import (
    GuardVerdict,
    Plan,
    guard_line,
    planned_shapes,
    shapes_text,
    when_timed,
)
from torchalgo._ir.plan.text import memory_text

MOST_SPEEDS = 3  # how many plans' speeds short_report lists


def short_report(plans: Sequence[Plan], file: Path, given: Path | None = None) -> str:
    """Returns five lines: speed against the fastest baseline, error, memory, file, next command.

    For several plans the first line is repeated with the shapes of each, up to MOST_SPEEDS times.
    `given` is the file from which the plans came, with the speed of the day when they were made.
    """
    lines = []
    said = "" if given is None else f"as {given} says: "
    for plan in plans[:MOST_SPEEDS]:
        shapes = "" if len(plans) == 1 else f"{shapes_text(planned_shapes(plan))}: "
        lines.append(f"speed   {said}{shapes}{speed_line(plan.guard)}")
    if len(plans) > MOST_SPEEDS:
        lines.append(f"        and {len(plans) - MOST_SPEEDS} more plans")
    lines += [
        f"error   {_error_line(plans)}",
        f"memory  {memory_text(plans)}",
        f"file    {file}",
        f"next    torchalgo explain {file}",
    ]
    return "".join(f"{line}\n" for line in lines)


def speed_line(guard: GuardVerdict | None) -> str:
    """Returns a text on the speed of the module that runs, compared with the fastest baseline."""
    if guard is None:
        return "not compared with PyTorch"
    if not guard.rounds or guard.plan_uj is not None:
        return guard_line(guard).removeprefix("guard: ")
    times = f"{guard.plan_us / 1000:.2f} ms against {guard.baseline_us / 1000:.2f} ms"
    baseline, plan, when = f"{guard.baseline}, the fastest baseline", "plan ", when_timed(guard)
    call = "a step" if guard.is_of_step else "a call"
    since = ", since the plan is not faster"
    if guard.is_of_step:
        baseline, plan, times = guard.baseline, "", f"a step of {times}"
        if guard.reason:
            since, when = "", f"{when}; {guard.reason}"
    if guard.runs == "baseline":
        return f"{baseline_text(guard)} runs{since}: {plan}{times}{when}"
    when += "; the best plan in one layout runs" if guard.runs == "single_layout" else ""
    if guard.verdict != "faster":
        return f"no clear difference from {baseline}: {times}{when}"
    # A baseline's own median is of other rounds, so it may contradict the ratio of paired rounds.
    return (
        f"{1 / guard.ratio:.2f}x as fast as {baseline}, in the median of {guard.rounds} rounds"
        f" [95 %: {1 / guard.high:.2f}x to {1 / guard.low:.2f}x];"
        f" {call} takes {guard.plan_us / 1000:.2f} ms{when}"
    )


def baseline_text(guard: GuardVerdict) -> str:
    """Returns a text for the baseline, such as "PyTorch's frozen"."""
    return guard.baseline if guard.is_of_step else f"PyTorch's {guard.baseline}"


def _error_line(plans: Sequence[Plan]) -> str:
    errors = [plan.rel_error for plan in plans if plan.rel_error is not None]
    if not errors:
        return "not compared"
    return f"relative L2 {max(errors):.1e} between the outputs and those of the given model"


def text_report(plans: Sequence[Plan]) -> str:
    """Returns the text that `print` shows for a plan.

    For several plans, each follows the shapes for which it was made.
    """
    if len(plans) == 1:
        return f"{plans[0]}\n"
    return "\n".join(f"plan for {shapes_text(planned_shapes(plan))}\n\n{plan}\n" for plan in plans)
