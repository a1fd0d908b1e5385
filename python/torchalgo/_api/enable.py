# SPDX-License-Identifier: BSD-3-Clause
"""Chooses algorithms for unmodified code, by contexts around it.

`enable()` makes torch's own convolutions run torchalgo's algorithms. `algorithms()` sets choices
for a block. `record_runs()` lists the algorithms that ran. All three apply to the whole process, as
torch.backends.cudnn.flags() does.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Union

import torch

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._ir.choices import AUTO, Choice, Direction, choice_text
from torchalgo._ir.names import needs_its_epilogue, without_epilogue
from torchalgo._ir.plan import Plan
from torchalgo._ir.plan.text_table import ShownAsText, text_table
from torchalgo._ir.problems import bare_convolution, direction_of, is_convolution
from torchalgo._run.load import load_plans
from torchalgo.backends.cudnn import FLAGS, flag_property

PlanLike = Union[Plan, str, "os.PathLike[str]", Mapping[str, Choice]]


class _Unset:
    """The default of an argument that was not given, because None is a choice."""

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
    """Sets choices for the convolutions that run inside a `with` block.

    They apply to torchalgo's convolutions, and with `enable()` to torch's. A convolution's own
    algorithms take precedence. The gradients of torchalgo's convolutions use the choices of the
    block in which their forward ran. Those of torch's use the block in which backward() runs.

        with torchalgo.algorithms(forward="cpu.direct"):
            y = model(x)

    Args:
        forward, backward_data, backward_filter: the choice for each direction. An argument that is
            not given keeps the choice of an outer block. None unsets it. "free" leaves the choice
            to PyTorch.

    Raises: torchalgo.Error if a choice is invalid. Then nothing is set.
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
    """The settings before enable(), which disable() restores."""

    is_enabled: bool
    flags: tuple[str, str, str]
    planned: dict[str, str]


_stack: list[_Saved] = []


class _Enabled(AbstractContextManager["_Enabled"]):
    """The context that enable() returns. Leaving it calls disable()."""

    def __init__(self) -> None:
        self._depth = len(_stack)

    def __exit__(self, *_: object) -> None:
        while len(_stack) >= self._depth:  # also ends inner calls of enable()
            disable()

    def __repr__(self) -> str:
        return f"<torchalgo enabled, level {self._depth}>"


def enable(plan: PlanLike | None = None) -> _Enabled:
    """Makes torch's own convolutions, forward and backward, run the chosen algorithms.

    A plain call lasts until `disable()`. As a `with` block, it lasts until the end of the block,
    which restores the flags and the plan. Blocks may be nested.

    Unmodified code then runs the choices of torchalgo.algorithms(), torchalgo.backends.cudnn or
    `plan`. Assignments such as `torch.backends.cudnn.conv_fwd_algo = 1` take effect, also to
    `conv_bwd_data_algo` and `conv_bwd_filter_algo`. Without torchalgo, torch ignores them silently.
    Values that were assigned before are used from now on. Convolutions without any choice run as in
    torch.

        with torchalgo.enable(plan="model.plan.json"):
            loss = model(x).sum()
            loss.backward()

    Args:
        plan: choices for convolutions that nothing else decides. A dict from problems to choices,
            or a torchalgo.Plan or its file, whose convolutions are the choices. None keeps those of
            an outer enable().

    Returns: a context that calls disable() at its end.
    Raises: torchalgo.Error if the plan is invalid, or a flag that was set before is no algorithm.
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
    """Ends the latest enable() that has not ended, and restores the settings before it.

        torchalgo.enable()
        y = model(x)
        torchalgo.disable()

    Raises: torchalgo.Error if there is no such enable().
    """
    if not _stack:
        raise Error("TA4404 disable: torchalgo is not enabled: call enable() first")
    saved = _stack.pop()
    if not _stack:
        _remove_flags_from_torch()
    _C.set_enabled(saved.is_enabled)
    _C.set_flag_choices(*saved.flags)
    _C.set_planned_choices(saved.planned)


def _flags_with_adopted() -> tuple[str, str, str]:
    """Returns the flags; a flag that is not set takes the value that torch was given before.

    Raises: torchalgo.Error if that value is no algorithm.
    """
    texts = _C.flag_choices()
    if _stack:  # torch's attributes set our flags already
        return texts
    ignored = vars(torch.backends.cudnn)

    def adopt(name: str, text: str) -> str:
        if name not in ignored or text != AUTO:
            return text
        what = f"enable: torch.backends.cudnn.{name}, set before,"
        return choice_text(ignored[name], FLAGS[name], what)

    forward, backward_data, backward_filter = map(adopt, FLAGS, texts)
    return forward, backward_data, backward_filter


_hidden: dict[str, object] = {}  # attributes of torch's class that ours replace for a time


def _add_flags_to_torch() -> None:
    # A property of the class takes precedence over the module's own dict, which is not changed.
    cudnn = type(torch.backends.cudnn)
    for name in FLAGS:
        if name in vars(cudnn):  # torch 2.11 has no such attributes
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
    """Returns the texts of choices by problem without epilogue.

    Args:
        plan: a plan, its file, or a dict from problems to choices.

    Raises: torchalgo.Error, with the entry, if an entry is invalid.
    """
    if isinstance(plan, (str, os.PathLike)):
        return _choices_of_plans(list(load_plans(Path(plan)).values()))
    if isinstance(plan, Plan):
        return _choices_of_plans([plan])
    if not isinstance(plan, Mapping):
        raise Error(
            f"TA4404 enable: plan is {type(plan).__name__}, expected a torchalgo.Plan, the path of"
            " its file, or {problem: choice}"
        )
    choices = {}
    for problem, choice in plan.items():
        spelled = bare_convolution(problem, "enable: plan")
        choices[spelled] = choice_text(choice, direction_of(spelled), f"enable: plan[{problem!r}]")
    return choices


def _choices_of_plans(plans: Sequence[Plan]) -> dict[str, str]:
    """Returns the primitive of each problem in the plans, as a choice's text.

    If layers with the same problem run several primitives, the most frequent one is taken.
    """
    ways: dict[str, Counter[str]] = {}
    for node in (node for plan in plans for node in plan.nodes):
        if node.primitive and is_convolution(node.problem):
            problem = without_epilogue(node.problem)
            if not needs_its_epilogue(node.primitive):
                ways.setdefault(problem, Counter())[node.primitive] += 1
    return {
        problem: choice_text(
            max(sorted(names), key=names.__getitem__), direction_of(problem), "plan"
        )
        for problem, names in ways.items()
    }


# ---- recording runs ------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Run:
    """The number of times that a primitive computed a problem. `step` tells how it was chosen."""

    problem: str
    primitive: str
    step: str
    count: int


@dataclass
class Runs(ShownAsText):
    """The convolutions that ran while record_runs() was active. `print` shows a table."""

    _before: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _final: list[Run] | None = None

    @property
    def runs(self) -> list[Run]:
        """The runs so far or until the end of the block, sorted by problem and primitive."""
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
        return "\n".join(text_table(rows, right=(0,)))


def _recorded() -> Counter[tuple[str, str, str]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for problem, primitive, step, count in _C.recorded_runs():
        counts[problem, primitive, step] += count
    return counts


@contextmanager
def record_runs() -> Iterator[Runs]:
    """Lists what each convolution that torchalgo handles runs inside a `with` block.

    This includes forward and backward. Blocks may be nested.

        with torchalgo.record_runs() as ran:
            model(x)
        print(ran)

    Returns: a context that gives a Runs. Iterating it gives each Run; `print` shows a table.
    """
    was_recording = _C.set_recording(True)
    if not was_recording:
        _C.reset_recorded_runs()
    runs = Runs(_recorded())
    try:
        yield runs
    finally:
        runs._final = runs._now()
        _C.set_recording(was_recording)
