# SPDX-License-Identifier: BSD-3-Clause
"""Runs the model again with some operations replaced, to learn what a fix would gain.

A rule only suspects. A suspicion becomes a finding if such a run copies fewer bytes, or takes less
time in paired rounds, and gives the same outputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from torchalgo._base.compare_outputs import output_error
from torchalgo._base.stats import Faster, cost_of_samples, is_faster
from torchalgo._capture.freeze import tensors_in
from torchalgo._lint.facts import Call, OpCall, copied_bytes
from torchalgo._lint.observe import (
    Arguments,
    Layers,
    Memory,
    Watcher,
    lines_here,
    op_name,
    run_model,
    run_op,
    same_random,
    weight_storages,
)

# Runs instead of an operation: takes the operation and its arguments, returns its result.
Action = Callable[[Any, Arguments, Mapping[str, Any]], Any]
Rewrite = Callable[[Any, Arguments, Mapping[str, Any]], tuple[Arguments, Mapping[str, Any]]]

LEAST_SHARE = 0.02  # of the call's time; a gain below it is not reported for its time
LEAST_BYTES = 1 << 14  # fewer bytes are not reported for themselves
SLOWER = 1.01  # a fix with a larger ratio of times is none
ROUNDS, LEAST_ROUNDS, WARMUP = 15, 7, 2
BATCHES = 3  # of rounds, if the first ones do not decide


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
    def is_slower(self) -> bool:
        """Returns True if the fix costs time beyond the noise."""
        return self.times.verdict == "slower" and self.times.ratio > SLOWER


def identity(func: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Returns the operation's input instead of its result."""
    return args[0]


@dataclass(frozen=True)
class Fix:
    """Other tensors for a call: for some weights, for the inputs, and for arguments."""

    weights: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()  # pairs of a weight and another one
    inputs: Callable[[Any], Any] | None = None  # changes the arguments of the model
    rewrite: Rewrite | None = None  # changes the arguments of each operation

    def inputs_of(self, lab: Lab) -> tuple[Arguments, Mapping[str, Any]]:
        """Returns the arguments of the changed call."""
        if self.inputs is None:
            return lab.args, lab.kwargs
        return self.inputs(lab.args), self.inputs(dict(lab.kwargs))


@contextlib.contextmanager
def swapped(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Gives weights other data, and restores them at the end."""
    before = [weight.data for weight, _ in pairs]
    try:
        for weight, other in pairs:
            weight.data = other
        yield
    finally:
        for (weight, _), data in zip(pairs, before, strict=True):
            weight.data = data


def _unchanged(
    func: Any, args: Arguments, kwargs: Mapping[str, Any]
) -> tuple[Arguments, Mapping[str, Any]]:
    """Returns the arguments as they are, in the time that a rewrite needs to look at them."""
    return tree_map(_same, args), tree_map(_same, dict(kwargs))


def _same(value: Any) -> Any:
    return value


class Cached:
    """Returns the result of the first run in all later runs."""

    def __init__(self) -> None:
        self._results: list[Any] = []

    def __call__(self, func: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
        if not self._results:
            self._results.append(run_op(func, args, kwargs))
        return self._results[0]


class _Counting(TorchDispatchMode):
    """Counts the operations of a call, and rewrites their arguments."""

    def __init__(self, rewrite: Rewrite | None) -> None:
        super().__init__()
        self._rewrite, self._count = rewrite, 0

    def _begin(self, func: Any, args: Arguments, kwargs: Any) -> tuple[int, Arguments, Any]:
        """Returns the position of an operation in the call, and its arguments."""
        kwargs = kwargs or {}
        if self._rewrite is not None:
            args, kwargs = self._rewrite(func, args, kwargs)
        self._count += 1
        return self._count - 1, args, kwargs


class _Learn(_Counting):
    """Runs the actions, and notes at which positions of the call they ran."""

    def __init__(self, wanted: Mapping[Any, Action], rewrite: Rewrite | None) -> None:
        super().__init__(rewrite)
        self._wanted = wanted
        self._names = {name for name, _, _ in wanted}
        self._counts: dict[Any, int] = {}
        self.positions: dict[int, Action] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Any = None
    ) -> Any:
        at, args, kwargs = self._begin(func, args, kwargs)
        name = op_name(func)
        if name in self._names:
            key = (name, lines_here())
            nth = self._counts[key] = self._counts.get(key, -1) + 1
            action = self._wanted.get((*key, nth))
            if action is not None:
                self.positions[at] = action
                return action(func, args, kwargs)
        return run_op(func, args, kwargs)


class _Repeat(_Counting):
    """Runs the actions at the positions that _Learn has found."""

    def __init__(self, positions: Mapping[int, Action], rewrite: Rewrite | None) -> None:
        super().__init__(rewrite)
        self._positions = positions

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Any = None
    ) -> Any:
        at, args, kwargs = self._begin(func, args, kwargs)
        action = self._positions.get(at)
        return run_op(func, args, kwargs) if action is None else action(func, args, kwargs)


class Lab:
    """Tries fixes on one call of the model."""

    def __init__(
        self,
        model: nn.Module,
        args: Arguments,
        kwargs: Mapping[str, Any],
        call: Call,
        wait: Callable[[], None],
        budget_s: float,
    ) -> None:
        self.model, self.args, self.kwargs, self.call, self.wait = model, args, kwargs, call, wait
        self._end = time.monotonic() + budget_s
        self.untried = 0  # suspicions for which no time was left
        self.reported: set[int] = set()  # operations of which a rule has reported a fault
        self._outputs = self._run()
        self._copied = sum(map(copied_bytes, call.ops))

    def _run(self, mode: TorchDispatchMode | None = None, fix: Fix | None = None) -> Any:
        args, kwargs = (self.args, self.kwargs) if fix is None else fix.inputs_of(self)
        weights = () if fix is None else fix.weights
        watched = mode or contextlib.nullcontext()
        with torch.no_grad(), same_random(), swapped(weights), watched:
            return run_model(self.model, args, kwargs)

    def try_fix(
        self,
        actions: Mapping[int, Action],
        *,
        fix: Fix | None = None,
        tolerance: float = 1e-3,
        compare: bool = True,
        needs_copies: bool = False,
    ) -> Trial | None:
        """Runs the call with other operations at some positions, and compares it with the call.

        Returns None if this fails, changes the outputs, or if there is no time left.

        Args:
            actions: what runs instead of an operation of the call, by its index.
            fix: other weights, inputs and arguments of operations.
            tolerance: the largest relative L2 error of an output.
            compare: False accepts other outputs.
            needs_copies: True takes no times if neither bytes nor much time can be gained.
        """
        if time.monotonic() > self._end:
            self.untried += 1
            return None
        ops = self.call.ops
        wanted = {(ops[i].name, ops[i].lines, ops[i].nth): act for i, act in actions.items()}
        fix = fix or Fix()
        learn = _Learn(wanted, fix.rewrite)
        inputs = [t.clone() for t in tensors_in((self.args, dict(self.kwargs)))]
        try:
            result = self._run(learn, fix)
            copied = self._copied_with(learn.positions, fix)
        except Exception:  # the model's code needs what was replaced
            return None
        if actions and not learn.positions:
            return None
        if compare and not self._is_right(result, inputs, tolerance):
            return None
        saved = self._copied - copied
        most_us = sum(ops[i].us for i in actions)
        if needs_copies and saved < LEAST_BYTES and most_us < LEAST_SHARE / 2 * self.call.us:
            return None
        return self._timed(learn.positions, fix, saved)

    def _is_right(self, result: Any, inputs: list[torch.Tensor], tolerance: float) -> bool:
        now = tensors_in((self.args, dict(self.kwargs)))
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
            if before.shape != after.shape or not _is_close(before, after, tolerance):
                return False
        return len(both[0]) == len(both[1])

    def _copied_with(self, positions: Mapping[int, Action], fix: Fix) -> int:
        """Returns the bytes that the changed call copies."""
        call = Call()
        memory = Memory(weight_storages(self.model))
        watcher = Watcher(call, memory, Layers(self.model), self.wait)
        args, kwargs = fix.inputs_of(self)
        repeat = _Repeat(positions, fix.rewrite)
        with torch.no_grad(), same_random(), swapped(fix.weights), watcher, repeat:
            run_model(self.model, args, kwargs)
        return sum(map(copied_bytes, call.ops))

    def _timed(self, positions: Mapping[int, Action], fix: Fix, saved_bytes: int) -> Trial:
        def fixed() -> None:
            self._run(_Repeat(positions, fix.rewrite), fix)

        def given() -> None:
            self._run(_Repeat({}, None if fix.rewrite is None else _unchanged))

        return self._decided(given, fixed, 1, saved_bytes)

    def _decided(
        self, given: Callable[[], object], fixed: Callable[[], object], count: int, saved: int
    ) -> Trial:
        """Times two calls until the result is clear, in BATCHES batches of rounds at most."""
        before: list[float] = []
        after: list[float] = []
        for _ in range(BATCHES):
            more = time_pairs(given, fixed, self.wait)
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
        if time.monotonic() > self._end:
            self.untried += 1
            return None
        with torch.no_grad():
            return self._decided(given, fixed, count, 0)


def _is_close(before: torch.Tensor, after: torch.Tensor, tolerance: float) -> bool:
    if not before.is_floating_point():
        return bool(torch.equal(before, after))
    return output_error(after.double(), before.double()) <= tolerance


def time_pairs(
    first: Callable[[], object], second: Callable[[], object], wait: Callable[[], None]
) -> tuple[list[float], list[float]]:
    """Times two calls in turn, the order changing from round to round. Returns times in us."""
    times: tuple[list[float], list[float]] = ([], [])
    calls = (first, second)
    for _ in range(WARMUP):
        first()
        second()
    wait()
    began = time.monotonic()
    for i in range(ROUNDS):
        if i >= LEAST_ROUNDS and time.monotonic() - began > 1.5:
            break
        for which in (0, 1) if i % 2 else (1, 0):
            before = time.perf_counter_ns()
            calls[which]()
            wait()
            times[which].append((time.perf_counter_ns() - before) / 1000)
    return times


def cached(ops: Iterable[OpCall]) -> dict[int, Action]:
    """Returns actions that compute each of the operations only in the first run."""
    return {op.index: Cached() for op in ops}
