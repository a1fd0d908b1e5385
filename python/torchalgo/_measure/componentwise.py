# SPDX-License-Identifier: BSD-3-Clause
"""Finds the candidates that a large value in the input spoils: Winograd, FFT and Strassen."""

from __future__ import annotations

from collections.abc import Sequence

from torchalgo import _C
from torchalgo._ir.costs import Key, key_of
from torchalgo._ir.names import without_epilogue
from torchalgo._measure.allowed import Rules, key_of_candidate
from torchalgo._measure.checking import cropped
from torchalgo._measure.sampling import Bench

Task = tuple[str, _C.Primitive]


def errors_of(tasks: Sequence[Task], bench: Bench) -> list[tuple[float, str]]:
    """Returns the componentwise error of each task, and why it has none; "" if it has one.

    The error depends on the algorithm, the channels and the filter. So the convolutions run without
    their epilogues, and on small images, unless a primitive cannot run on a small one.
    """
    bare = [(without_epilogue(problem), primitive) for problem, primitive in tasks]
    small = [(cropped(key_of(*task)) or task[0], task[1]) for task in bare]
    results = _each_once(small, bench)
    failed = [i for i, (_, why) in enumerate(results) if why and small[i] != bare[i]]
    for i, result in zip(failed, _each_once([bare[i] for i in failed], bench), strict=True):
        results[i] = result
    return results


def _each_once(tasks: Sequence[Task], bench: Bench) -> list[tuple[float, str]]:
    """Returns the results of `tasks`, of which equal ones run once."""
    by_key = {key_of(*task): task for task in tasks}
    results = dict(zip(by_key, bench.componentwise(list(by_key.values())), strict=True))
    return [results[key_of(*task)] for task in tasks]


def too_large_errors(rules: Rules, most: float, bench: Bench) -> dict[Key, str]:
    """Returns the candidates whose componentwise error exceeds `most`, each with this reason.

    Only those that are not componentwise are tried.
    """
    spoiled = (candidate for candidate in rules.all if not candidate.is_componentwise)
    keys = list(dict.fromkeys(map(key_of_candidate, spoiled)))
    results = errors_of([(key.problem, rules.primitives[key]) for key in keys], bench)
    return {
        key: f"its componentwise error is {why or f'{error:.1e}'}, expected at most {most:.1e}"
        for key, (error, why) in zip(keys, results, strict=True)
        if error > most
    }
