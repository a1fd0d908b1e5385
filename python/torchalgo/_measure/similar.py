# SPDX-License-Identifier: BSD-3-Clause
"""Predicted costs from those of the same primitive on similar problems of the same model.

A dozen costs are enough, where the trees of _predict need hundreds. A primitive that takes three
times its bound on one 3x3 convolution takes about three times its bound on the next one.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping

from torchalgo import _C
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import TICKS_PER_NS, Key

NEIGHBOURS = 3
OTHER_EPILOGUE = 0.5  # distance of problems with other fused steps; a size twice as large: 0.7


@functools.lru_cache(maxsize=1 << 14)
def kind_of(problem: str) -> str:
    """Returns the kind of a problem. The same primitives are fast for problems of one kind.

    The kind is the operation. For a convolution it is also the filter, stride, dilation, kind of
    groups, and whether the channels fill a block of 16.
    """
    core = problem.partition("+")[0]
    kind = re.sub(r"(?<=[nchwktg])\d+", "", re.sub(r"pad[\dx]+", "", core))
    sizes = re.search(r"c(\d+)h.*_g(\d+)$", core)
    if sizes is None:
        return kind
    channels, groups = map(int, sizes.groups())
    if groups == 1:
        return kind + ("few" if channels < 16 else "")
    return kind + ("depthwise" if channels == groups else "grouped")


class SimilarCosts:
    """A model that predicts costs in ticks of 1/1024 ns from similar problems.

    `costs` and `problems` are the numbers of costs and problems that it uses.
    """

    def __init__(self, costs: Mapping[Key, int], peaks: Peaks) -> None:
        self._floor = functools.partial(_roofline_ticks, peaks)
        self._known = dict(costs)
        self.costs, self.problems = len(costs), len({key.problem for key in costs})
        self.kinds = {kind_of(key.problem) for key in costs}
        self._ratios: dict[tuple[str, str, str, str], list[tuple[str, float]]] = {}
        for key, ticks in sorted(costs.items()):
            ratio = math.log(max(ticks, 1) / self._floor(key))
            self._ratios.setdefault(_group(key), []).append((key.problem, ratio))

    def predict(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Returns the costs of `keys` in ticks; leaves out keys without a similar cost.

        A known key has its known cost. Another key has a weighted mean of the ratios of the nearest
        problems to their bounds, times its own bound.
        """
        found = {}
        for key in keys:
            near = sorted(
                (_distance(key.problem, problem), ratio)
                for problem, ratio in self._ratios.get(_group(key), ())
            )[:NEIGHBOURS]
            if key in self._known:
                found[key] = self._known[key]
            elif near:
                weights = [1 / (0.1 + distance) for distance, _ in near]
                mean = sum(w * ratio for w, (_, ratio) in zip(weights, near, strict=True))
                found[key] = math.ceil(self._floor(key) * math.exp(mean / sum(weights)))
        return found


@functools.lru_cache(maxsize=1 << 14)
def _roofline_ticks(peaks: Peaks, key: Key) -> int:
    primitive = _C.Primitive(key.primitive, key.src, key.dst)
    return max(1, int(TICKS_PER_NS * peaks.roofline_ns(key.problem, primitive)))


def _group(key: Key) -> tuple[str, str, str, str]:
    return kind_of(key.problem), key.primitive, key.src, key.dst


def _distance(problem: str, other: str) -> float:
    """Returns the distance of two problems of a kind: the sum of |log(size / other size)|.

    Adds OTHER_EPILOGUE if their fused steps differ.
    """
    # Padding has two numbers, or four. It is compared where both have two.
    cores = [p.partition("+")[0] for p in (problem, other)]
    if any(re.search(r"pad\d+x\d+x", core) for core in cores):
        cores = [re.sub(r"pad[\dx]+", "", core) for core in cores]
    a, b = (re.findall(r"\d+", core) for core in cores)
    sizes = sum(abs(math.log((int(x) or 1) / (int(y) or 1))) for x, y in zip(a, b, strict=False))
    return sizes + (problem.partition("+")[2] != other.partition("+")[2]) * OTHER_EPILOGUE
