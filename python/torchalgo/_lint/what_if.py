# SPDX-License-Identifier: BSD-3-Clause
"""Runs the model again with some operations replaced, to learn what a fix would gain.

A rule only suspects. A suspicion becomes a finding if such a run copies fewer bytes, or takes less
time in paired rounds, and gives the same outputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchalgo._base.compare_outputs import output_error
from torchalgo._base.running_layers import Layers
from torchalgo._base.stats import Faster, cost_of_samples, is_faster
from torchalgo._lint.facts import Call, copied_bytes, tensors_in
from torchalgo._lint.observe import (
    Arguments,
    Memory,
    Watcher,
    op_name,
    run_model,
    run_op,
    same_random,
    wait,
    weight_storages,
)

# Runs instead of an operation: takes the operation and its arguments, returns its result.
Action = Callable[[Any, Arguments, Mapping[str, Any]], Any]

LEAST_SHARE = 0.02  # of the call's time; a gain below it is not reported for its time
LEAST_BYTES = 1 << 14  # fewer bytes are not reported for themselves
SLOWER = 1.01  # a fix with a larger ratio of times is none
ROUNDS, LEAST_ROUNDS, WARMUP = 15, 7, 2
BATCHES = 3  # of rounds, if the first ones do not decide
TOLERANCE = 1e-3  # the largest relative L2 error of an output of a fixed call


@dataclass(frozen=True)
class Trial:
    """The difference that a fix makes."""

    gain_us: float  # of a call; below 0 if the fix makes it slower
    share: float  # the same, as a part of the call's time
    times: Faster  # the call with the fix, compared with the call without it
    saved_bytes: int  # that are copied without the fix only
    again: Callable[[], Trial] | None = None  # tries the same fix again, with other samples
    fixed: Callable[[], object] | None = None  # runs the call with the fix
    given: Callable[[], object] | None = None  # runs the call without it

    @property
    def is_faster(self) -> bool:
        """Returns True if the fix gains LEAST_SHARE of the call, beyond the noise."""
        return self.share >= LEAST_SHARE and self.times.verdict == "faster"

    @property
    def is_smaller(self) -> bool:
        """Returns True if the fix removes copies and costs no time."""
        return self.saved_bytes >= LEAST_BYTES and not self.is_slower

    @property
    def is_slower(self) -> bool:
        """Returns True if the fix costs time beyond the noise."""
        return self.times.verdict == "slower" and self.times.ratio > SLOWER


def identity(func: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Returns the operation's input instead of its result."""
    return args[0]


class Cached:
    """Returns the result of the first run in all later runs."""

    def __init__(self) -> None:
        self._results: list[Any] = []

    def __call__(self, func: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
        if not self._results:
            self._results.append(run_op(func, args, kwargs))
        return self._results[0]


class _Replace(TorchDispatchMode):
    """Runs the actions instead of the operations at their positions.

    Raises: LookupError if another operation is at such a position than in the call.
    """

    def __init__(self, call: Call, actions: Mapping[int, Action]) -> None:
        super().__init__()
        self._ops, self._actions, self._at = call.ops, actions, -1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Any = None
    ) -> Any:
        self._at += 1
        action = self._actions.get(self._at, run_op)
        if action is not run_op and op_name(func) != self._ops[self._at].name:
            raise LookupError(f"the call runs {op_name(func)} at {self._at}")
        return action(func, args, kwargs or {})


class Lab:
    """Tries fixes on one call of the model."""

    def __init__(
        self, model: nn.Module, args: Arguments, kwargs: dict[str, Any], call: Call, budget_s: float
    ) -> None:
        self.model, self.args, self.kwargs, self.call = model, args, kwargs, call
        self._end = time.monotonic() + budget_s
        self.untried = 0  # suspicions for which no time was left
        self.reported: set[int] = set()  # operations of which a rule has reported a fault
        self._outputs = self._run()
        self._copied = sum(map(copied_bytes, call.ops))

    def _run(self, *modes: TorchDispatchMode | Layers) -> Any:
        with torch.no_grad(), same_random(), contextlib.ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            return run_model(self.model, self.args, self.kwargs)

    def try_fix(self, actions: Mapping[int, Action], needs_copies: bool = False) -> Trial | None:
        """Runs the call with other operations at some positions, and compares it with the call.

        Returns None if this fails, changes the outputs, or if there is no time left.

        Args:
            actions: what runs instead of an operation of the call, by its index.
            needs_copies: True takes no times if neither bytes nor much time can be gained.
        """
        if not self._has_time():
            return None
        ops = self.call.ops
        inputs = [t.clone() for t in tensors_in((self.args, self.kwargs))]
        try:
            result = self._run(_Replace(self.call, actions))
            saved = self._copied - self._copied_with(actions)
        except Exception:  # the model's code needs what was replaced
            return None
        if not self._is_right(result, inputs):
            return None
        most_us = sum(ops[i].us for i in actions)
        if needs_copies and saved < LEAST_BYTES and most_us < LEAST_SHARE / 2 * self.call.us:
            return None
        fixed, given = (
            lambda own=own: self._run(_Replace(self.call, own)) for own in (actions, {})
        )
        return self._decided(given, fixed, 1, saved)

    def _is_right(self, result: Any, inputs: list[torch.Tensor]) -> bool:
        now = tensors_in((self.args, self.kwargs))
        if not all(map(torch.equal, inputs, now)):
            for tensor, before in zip(now, inputs, strict=True):
                tensor.copy_(before)
            return False
        places = {t.untyped_storage()._cdata for t in now}
        both = tensors_in(self._outputs), tensors_in(result)
        for before, after in zip(*both, strict=False):
            is_alias = after.untyped_storage()._cdata in places
            if is_alias and before.untyped_storage()._cdata not in places:
                return False
            if before.shape != after.shape or not _is_close(before, after):
                return False
        return len(both[0]) == len(both[1])

    def _copied_with(self, actions: Mapping[int, Action]) -> int:
        """Returns the bytes that the changed call copies."""
        call, layers = Call(), Layers(self.model)
        watcher = Watcher(call, Memory(weight_storages(self.model)), layers)
        self._run(watcher, _Replace(self.call, actions))
        return sum(map(copied_bytes, call.ops))

    def _decided(
        self, given: Callable[[], object], fixed: Callable[[], object], count: int, saved: int
    ) -> Trial:
        """Times two calls until the result is clear, in BATCHES batches of rounds at most."""
        before: list[float] = []
        after: list[float] = []
        for _ in range(BATCHES):
            more = time_in_turns([given, fixed], rounds=ROUNDS, least=LEAST_ROUNDS, most_s=1.5)
            before += [us * count for us in more[0]]
            after += [us * count for us in more[1]]
            trial = self._trial(before, after, saved)
            if trial.is_faster or (trial.share < LEAST_SHARE and not trial.is_slower):
                break

        def again() -> Trial:
            return self._decided(given, fixed, count, saved)

        return dataclasses.replace(trial, again=again, fixed=fixed, given=given)

    def _trial(self, before: list[float], after: list[float], saved_bytes: int) -> Trial:
        gain_us = cost_of_samples(before)[0] - cost_of_samples(after)[0]
        share = gain_us / max(self.call.us, 1e-3)
        return Trial(gain_us, share, is_faster(after, before), saved_bytes)

    def try_calls(
        self, given: Callable[[], object], fixed: Callable[[], object], count: int = 1
    ) -> Trial | None:
        """Compares two calls that run alone; the network makes `count` of them.

        Returns None if there is no time left.
        """
        if not self._has_time():
            return None
        with torch.no_grad():
            return self._decided(given, fixed, count, 0)

    def _has_time(self) -> bool:
        """Returns False, and counts a suspicion that is not tried, at the end of the budget."""
        is_late = time.monotonic() > self._end
        self.untried += is_late
        return not is_late


def _is_close(before: torch.Tensor, after: torch.Tensor) -> bool:
    if not before.is_floating_point():
        return bool(torch.equal(before, after))
    return output_error(after.double(), before.double()) <= TOLERANCE


def time_in_turns(
    calls: Sequence[Callable[[], object]], *, rounds: int, least: int, most_s: float
) -> list[list[float]]:
    """Times calls in turn, the order changing from round to round. Returns times in us.

    After `most_s` no further round begins, once `least` were run.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(WARMUP):
        for call in calls:
            call()
    wait()
    began = time.monotonic()
    for i in range(rounds):
        if i >= least and time.monotonic() - began > most_s:
            break
        for which in range(len(calls))[:: 1 if i % 2 else -1]:
            before = time.perf_counter_ns()
            calls[which]()
            wait()
            times[which].append((time.perf_counter_ns() - before) / 1000)
    return times
