# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the candidates to check against f64, their order, and the time for the checks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._base.time_budget import Pace, guess_check_s
from torchalgo._ir.costs import Key
from torchalgo._ir.failures import LATE
from torchalgo._ir.names import image_of, on_one_image
from torchalgo._ir.problems import has_convolution
from torchalgo._measure.allowed import grouped
from torchalgo._measure.cost_state import CostState
from torchalgo._measure.knowledge import is_trusted
from torchalgo._measure.sampling import Bench, Sampler

# If there is too little time for a check, it runs on a smaller image. The smaller problem keeps the
# channels, the filter, and each side modulo 16, so that tiles end at the image's edges as before.
CROPPED_S = 0.02  # the time that a check on a smaller image should take
LEAST_SIDE, SIDE_STEP = 12, 16

# Checks of whole images may take at most this part of the time for measuring and checking.
CHECKS_SHARE = 0.25


@functools.lru_cache(maxsize=1 << 12)
def cropped(key: Key, most_s: float = CROPPED_S) -> str | None:
    """Returns the same problem on one smaller image, whose check takes about `most_s` seconds.

    The operation, the channels and the filter stay the same. Returns None if there is no smaller
    image, if its sums would have fewer terms, or if its sizes depend on each other.
    """
    image = image_of(key.problem)
    if image is None:
        return None
    sides = list(image)
    small = on_one_image(key.problem, *image)
    while guess_check_s(*work_of(key._replace(problem=small))) > most_s:
        longest = sides.index(max(sides))
        if sides[longest] - SIDE_STEP < LEAST_SIDE:
            break
        halved = sides[longest] // 2
        sides[longest] -= max(SIDE_STEP, halved - halved % SIDE_STEP)
        small = on_one_image(key.problem, *sides)
    has_all_terms = _C.terms_per_element(small) == _C.terms_per_element(key.problem)
    return small if small != key.problem and has_all_terms else None


@functools.lru_cache(maxsize=1 << 14)
def work_of(key: Key) -> tuple[float, float]:
    """Returns the flops of a key's problem, and the bytes of its inputs, weights and result.

    Returns 0 bytes if this build lacks the algorithm.
    """
    primitive = _C.Primitive(key.primitive, key.src, key.dst)
    try:
        return _C.flop_count(key.problem), _C.least_work(key.problem, primitive)[1]
    except _C.Error:
        return _C.flop_count(key.problem), 0.0


@dataclass(frozen=True)
class Group:
    """Candidates of one problem, and the problem that they are checked on."""

    problem: str
    keys: Sequence[Key]
    primitives: Sequence[_C.Primitive]
    is_cropped: bool = False


class Checker:
    """Checks candidates while there is time, in the order of their gain per second of checking.

    Candidates for which there is no time are noted in the knowledge. `on_crop` holds the candidates
    that were checked on a smaller image.
    """

    def __init__(
        self,
        state: CostState,
        bench: Bench,
        sampler: Sampler,
        call: CallContext,
        device: _C.Device | None,
    ) -> None:
        self._state, self._bench, self._sampler = state, bench, sampler
        self._deadline, self._progress, self._device = call.deadline, call.progress, device
        self._pace = Pace(2.0)
        self._time_s = max(0.0, self._deadline.left_s("check"))  # for measuring and checking
        self._is_short = False  # True: checks run on smaller images
        self.on_crop: set[Key] = set()

    def reserve(self, keys: Iterable[Key]) -> None:
        """Reserves the time to check `keys`.

        If this is more than CHECKS_SHARE of the time, checks run on smaller images from now on.
        """
        wanted = [key for key in self._state.knowledge.unchecked(keys) if not is_trusted(key)]
        expected_s = self._expect_s(wanted)
        self._is_short = expected_s > CHECKS_SHARE * self._time_s
        if self._is_short:
            expected_s = sum(self._expect_s([key], cropped(key)) for key in wanted)
        self._deadline.keep("check", min(expected_s, self._time_s / 2))

    def check(self, keys: Iterable[Key]) -> bool:
        """Checks `keys`, grouped by problem. Returns False if there was time for none.

        If `deadline.can_break`, keys for which there is no time are checked on a smaller image, or
        given up. Otherwise all are checked, since there would be no plan without them.
        """
        groups = [self._group(*item) for item in grouped(keys, lambda key: key.problem).items()]
        groups.sort(key=self._gain_per_s, reverse=True)
        checked = 0
        for i in range(0, len(groups), self._sampler.lot):
            planned = [self._fitting(group) for group in groups[i : i + self._sampler.lot]]
            checked += self._check([group for group in planned if group is not None])
        return checked > 0

    # ---- one group of candidates of one problem --------------------------------------------------

    def _group(self, problem: str, keys: Sequence[Key]) -> Group:
        own = self._state.knowledge.rules.primitives
        return Group(problem, keys, [own[key] for key in keys])

    def _fitting(self, group: Group) -> Group | None:
        """Returns the group, on a smaller image or with its best candidate only, if there is time.

        Gives up candidates for which there is no time. Returns None if none is left.
        """
        left_s = self._deadline.left_s("check")
        is_fitting = self._expect_s(group.keys) <= left_s
        if not self._deadline.can_break or (is_fitting and not self._is_short):
            return group
        smaller = self._smaller(group)
        if smaller is None and is_fitting:
            return group
        if smaller is not None and self._expect_s(smaller.keys, smaller.problem) <= left_s:
            return smaller
        best = max(group.keys, key=self._gain_s)
        fits_alone = self._expect_s([best]) <= left_s
        self._give_up(key for key in group.keys if key != best or not fits_alone)
        return self._group(group.problem, [best]) if fits_alone else None

    def _smaller(self, group: Group) -> Group | None:
        """Returns the group on a smaller image.

        Returns None if there is no smaller image, or if a primitive does not run on it.
        """
        problem = cropped(group.keys[0])
        if problem is None:
            return None
        offers, _, _ = _C.offers_of(problem, device=self._device, coarse_types=True)
        offered = {(p.name, p.src, p.dst): p for p in offers}
        primitives = [offered.get((p.name, p.src, p.dst)) for p in group.primitives]
        found = [p for p in primitives if p is not None]
        if len(found) < len(primitives):
            return None
        return Group(problem, group.keys, found, is_cropped=True)

    def _check(self, lot: Sequence[Group]) -> int:
        """Checks `lot` and returns the number of candidates that were checked.

        Candidates whose check was stopped because the time was over are given up.
        """
        if not lot:
            return 0
        bound_of = self._state.bound_of
        asked = [(group.problem, group.primitives, bound_of(group.problem)) for group in lot]
        guess_s = sum(self._guess_s(group.keys, group.problem) for group in lot)
        started, checked = self._bench.now_s(), 0
        for group, results in zip(lot, self._sampler.check_all(asked), strict=True):
            found = list(zip(group.keys, results, strict=True))
            done = [(key, error, why) for key, (error, why) in found if why != LATE]
            self._give_up(key for key, (_, why) in found if why == LATE)
            self._enter(group, done)
            checked += len(done)
            self._progress.advance(f"check {group.problem}", check_work(group.problem))
        self._pace.learn(guess_s, self._bench.now_s() - started)
        return checked

    def _enter(self, group: Group, done: Sequence[tuple[Key, float, str]]) -> None:
        failures = {key: why for key, _, why in done if why}
        errors = {key: error for key, error, _ in done}
        if not group.is_cropped:
            self._state.enter_checks(errors, failures)
            return
        self.on_crop.update(errors)
        reasons = {key: f"{why} (on {group.problem})" for key, why in failures.items()}
        self._state.enter_checks_on_crop(errors, reasons)

    def _give_up(self, keys: Iterable[Key]) -> None:
        self._state.knowledge = self._state.knowledge.without_time_to_check(keys)

    # ---- time ----------------------------------------------------------------------------------

    def _expect_s(self, keys: Iterable[Key], problem: str | None = None) -> float:
        return self._pace.expect_s(self._guess_s(keys, problem))

    def _guess_s(self, keys: Iterable[Key], problem: str | None = None) -> float:
        asked = (key._replace(problem=problem or key.problem) for key in keys)
        return sum(guess_check_s(*work_of(key)) for key in asked)

    def _gain_per_s(self, group: Group) -> float:
        """Returns a plan's gain if it may use the group, divided by the seconds of the check.

        The gain is in seconds per run.
        """
        gains = [self._gain_s(key) for key in group.keys]
        return max(gains) / max(self._guess_s(group.keys), 1e-9)

    def _gain_s(self, key: Key) -> float:
        knowledge = self._state.knowledge
        own_s = knowledge.least_s(key)
        others = [
            knowledge.least_s(rival)
            for rival in knowledge.rules.family(key)
            if rival != key and (is_trusted(rival) or rival in knowledge.errors)
        ]
        return max(0.0, min(others, default=2 * own_s) - own_s)


def check_work(problem: str) -> int:
    """Returns a rough measure of the work of checking `problem`, for the progress display."""
    return 3 if has_convolution(problem) else 1
