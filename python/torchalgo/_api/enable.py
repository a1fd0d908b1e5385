# SPDX-License-Identifier: BSD-3-Clause
"""Algorithms for code that nobody wants to change: contexts around it.

`enable()` puts torchalgo between torch's own convolutions and what computes them; `algorithms()`
sets choices for a block; `record_runs()` tells what ran. All three are process-wide, as
torch.backends.cudnn.flags() is.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Union

import torch

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._ir.choices import AUTO, Choice, Direction, choice_text
from torchalgo._ir.plan import Plan
from torchalgo._ir.problems import bare_convolution, direction_of, is_convolution
from torchalgo._run.load import load_plans
from torchalgo.backends.cudnn import FLAGS, flag_property

PlanLike = Union[Plan, str, "os.PathLike[str]", Mapping[str, Choice]]


class _Unset:
    """What an argument is that was not given: None is a choice."""

    def __repr__(self) -> str:
        return "as it is"


UNSET = _Unset()


@contextmanager
def algorithms(
    *,
    forward: Choice | _Unset = UNSET,
    backward_data: Choice | _Unset = UNSET,
    backward_filter: Choice | _Unset = UNSET,
) -> Iterator[None]:
    """Choices for the convolutions that run inside the block; a convolution's own go before them.

    They hold for torchalgo's convolutions, and for torch's inside enable(). What is not given
    stays as an outer block has it; None unsets it, "free" leaves it to PyTorch. The gradients of
    torchalgo's convolutions obey the block in which their forward ran, those of torch's the block
    in which backward() runs.

    Raises: torchalgo.Error if a choice is none; nothing is set then.
    """
    names: tuple[tuple[str, Choice | _Unset, Direction], ...] = (
        ("forward", forward, "fwd"),
        ("backward_data", backward_data, "bwd_data"),
        ("backward_filter", backward_filter, "bwd_filter"),
    )
    given = [
        None
        if isinstance(choice, _Unset)
        else choice_text(choice, direction, f"algorithms: {name}")
        for name, choice, direction in names
    ]
    before = _C.context_choices()
    _C.set_context_choices(*(new or old for new, old in zip(given, before, strict=True)))
    try:
        yield
    finally:
        _C.set_context_choices(*before)


# ---- enable --------------------------------------------------------------------------------------


class _Saved(NamedTuple):
    """What enable() changed and disable() puts back."""

    is_enabled: bool
    flags: tuple[str, str, str]
    planned: dict[str, str]


_stack: list[_Saved] = []


class _Enabled:
    """The end of enable() as a block: leaving it disables."""

    def __init__(self) -> None:
        self._depth = len(_stack)

    def __enter__(self) -> _Enabled:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while len(_stack) >= self._depth:  # an inner enable() that nobody ended ends here
            disable()

    def __repr__(self) -> str:
        return f"<torchalgo enabled, level {self._depth}>"


def enable(plan: PlanLike | None = None) -> _Enabled:
    """From now on torch's own convolutions, forward and backward, run what is chosen.

    As a call it holds until disable(); as a block, `with torchalgo.enable():`, until its end, which
    puts back the flags and the plan as they were. Blocks nest. Inside, unmodified code runs what
    torchalgo.algorithms(), torchalgo.backends.cudnn or `plan` say, and the lines
    `torch.backends.cudnn.conv_fwd_algo = 1`, `conv_bwd_data_algo` and `conv_bwd_filter_algo`
    work; stock torch accepts them silently and ignores them, so a value set before is obeyed from
    here on. Without any choice everything runs as torch would run it.

    Args:
        plan: choices by problem, for what nothing else decides: {problem: choice}; or a
            torchalgo.Plan, or its file, whose convolutions say them.

    Raises: torchalgo.Error if the plan is none, or a flag set before holds no algorithm.
    """
    planned = None if plan is None else planned_choices(plan)
    adopted = _flags_with_adopted()
    saved = _Saved(_C.is_enabled(), _C.flag_choices(), _C.set_planned_choices({}))
    _C.set_planned_choices(saved.planned if planned is None else planned)
    _C.set_flag_choices(*adopted)
    _C.set_enabled(True)
    if not _stack:
        _add_flags_to_torch()
    _stack.append(saved)
    return _Enabled()


def disable() -> None:
    """Ends the latest enable() that has not ended, and puts back what it changed.

    Raises: torchalgo.Error if none is left.
    """
    if not _stack:
        raise Error("disable: torchalgo is not enabled; enable() comes first")
    saved = _stack.pop()
    if not _stack:
        _remove_flags_from_torch()
    _C.set_enabled(saved.is_enabled)
    _C.set_flag_choices(*saved.flags)
    _C.set_planned_choices(saved.planned)


def _flags_with_adopted() -> tuple[str, str, str]:
    """The flags, with those that stock torch was given where torchalgo's are free."""
    texts = _C.flag_choices()
    if _stack:  # torch's flags are ours already
        return texts
    ignored = vars(torch.backends.cudnn)

    def adopt(name: str, text: str) -> str:
        if name not in ignored or text != AUTO:
            return text
        what = f"enable: torch.backends.cudnn.{name}, set before,"
        return choice_text(ignored[name], FLAGS[name], what)

    forward, backward_data, backward_filter = map(adopt, FLAGS, texts)
    return forward, backward_data, backward_filter


_hidden: dict[str, object] = {}  # attributes of torch's class that ours stand in front of


def _add_flags_to_torch() -> None:
    # Data descriptors of the class go before what lies in the module's own dict, which stays.
    cudnn = type(torch.backends.cudnn)
    for name in FLAGS:
        if name in vars(cudnn):  # not so in torch 2.11
            _hidden[name] = vars(cudnn)[name]
        setattr(cudnn, name, flag_property(name))


def _remove_flags_from_torch() -> None:
    cudnn = type(torch.backends.cudnn)
    for name in FLAGS:
        delattr(cudnn, name)
    for name in list(_hidden):
        setattr(cudnn, name, _hidden.pop(name))


# ---- plans by problem ----------------------------------------------------------------------------


def planned_choices(plan: PlanLike) -> dict[str, str]:
    """{problem without epilogue: choice's text} of a plan, its file, or {problem: choice}.

    Raises: torchalgo.Error naming the entry that is none.
    """
    if isinstance(plan, (str, os.PathLike)):
        return _choices_of_plans(list(load_plans(Path(plan)).values()))
    if isinstance(plan, Plan):
        return _choices_of_plans([plan])
    if not isinstance(plan, Mapping):
        raise Error(
            f"enable: plan is {type(plan).__name__}, expected a torchalgo.Plan, its file, or"
            " {problem: choice}"
        )
    choices = {}
    for problem, choice in plan.items():
        spelled = bare_convolution(problem, "enable: plan")
        choices[spelled] = choice_text(choice, direction_of(spelled), f"enable: plan[{problem!r}]")
    return choices


def _choices_of_plans(plans: Sequence[Plan]) -> dict[str, str]:
    """A problem that the plans compute in several ways gets that of most of their layers."""
    ways: dict[str, Counter[str]] = {}
    for node in (node for plan in plans for node in plan.nodes):
        if node.primitive and is_convolution(node.problem):
            problem = node.problem.partition("+")[0]
            # What is named after its epilogue cannot run without it.
            if not node.primitive.startswith("cudnn9.conv_bias"):
                ways.setdefault(problem, Counter())[node.primitive] += 1
    return {
        problem: choice_text(
            max(sorted(names), key=names.__getitem__), direction_of(problem), "plan"
        )
        for problem, names in ways.items()
    }


# ---- what ran ------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Run:
    """How often a problem was computed by a primitive; `step` says how it was found."""

    problem: str
    primitive: str
    step: str
    count: int


@dataclass
class Runs:
    """The convolutions that ran while record_runs() was active; prints as a table."""

    _before: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _final: list[Run] | None = None

    @property
    def runs(self) -> list[Run]:
        """Sorted by problem and primitive."""
        return self._now() if self._final is None else self._final

    def _now(self) -> list[Run]:
        counts = _recorded()
        counts.subtract(self._before)
        return sorted(Run(*key, count) for key, count in counts.items() if count > 0)

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __str__(self) -> str:
        rows = [("count", "primitive", "step", "problem")]
        rows += [(str(r.count), r.primitive, r.step, r.problem) for r in self.runs]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join(
            f"{count:>{widths[0]}}  {primitive:{widths[1]}}  {step:{widths[2]}}  {problem}"
            for count, primitive, step, problem in rows
        )


def _recorded() -> Counter[tuple[str, str, str]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for problem, primitive, step, count in _C.recorded_runs():
        counts[problem, primitive, step] += count
    return counts


@contextmanager
def record_runs() -> Iterator[Runs]:
    """Notes what every convolution that passes torchalgo runs inside the block, forward and
    backward: `with torchalgo.record_runs() as ran: ...; print(ran)`. Blocks nest."""
    was_recording = _C.set_recording(True)
    if not was_recording:
        _C.reset_recorded_runs()
    runs = Runs(_recorded())
    try:
        yield runs
    finally:
        runs._final = runs._now()
        _C.set_recording(was_recording)
