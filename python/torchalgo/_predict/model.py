# SPDX-License-Identifier: BSD-3-Clause
"""Gradient-boosted trees that learn costs of problems from the measured costs of other problems.

One model for all primitives predicts the logarithm of a candidate's cost divided by its lower bound
(bounds.py). The bound covers the arithmetic, the bytes and the machine's rates, which helps with
problems of new sizes. The trees learn how far each algorithm is from its bound. Half of the trees
have leaves that are linear in the features. They continue a trend beyond the largest problem in the
data.

If the data never has a step (SiLU, for example) fused to the primitive, the trees would predict
that it is free. In this case the prediction assumes that the fusion saves nothing. It is at least
the cost without the step, plus the cost of the activation alone times UNSEEN_FUSION.

benchmarks/bench_replay.py tests the predictions on networks that were left out of the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchalgo import _C, Error
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import Key, key_of
from torchalgo._predict.features import (
    Features,
    activation_alone,
    features_of,
    without_activation,
)

LEAST_COSTS = 300  # fewer costs are no better than the bounds
LEAST_PROBLEMS = 40
UNSEEN_FUSION = 1.25
MOST_RATIO = 1e5  # highest ratio of a cost to its bound; measured ratios were below a tenth of it

SETTINGS: Mapping[str, Any] = {
    "num_iterations": 300,
    "objective": "l2",
    "learning_rate": 0.06,
    "num_leaves": 31,
    "feature_fraction": 0.6,
    # Learning from the same costs again gives the same model, whatever the number of threads.
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
QUICK: Mapping[str, Any] = {"num_iterations": 150, "learning_rate": 0.1}
# The mean of the two is more accurate than each: linear leaves follow trends, constant ones stay in
# the range of the data.
LEAVES: Sequence[Mapping[str, Any]] = (
    {"seed": 0, "min_data_in_leaf": 10, "linear_tree": True, "linear_lambda": 1.0},
    {"seed": 1, "min_data_in_leaf": 5},
)


class CostModel:
    """A model that predicts costs in ticks of 1/1024 ns.

    `costs` and `problems` are the numbers of costs and problems that it learned from.
    """

    def __init__(
        self,
        trees: Sequence[Any],
        known: Mapping[Key, int],
        seen: Iterable[Features],
        codes: Mapping[str, int],
        peaks: Peaks,
    ) -> None:
        self.costs, self.problems = len(known), len({key.problem for key in known})
        self._trees, self._known, self._codes, self._peaks = trees, dict(known), codes, peaks
        self._seen = {(f.category, f.activation) for f in seen}

    def predict(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Returns the cost of each key in ticks.

        A key that the model learned from has its measured cost. Other keys have the trees'
        prediction, which is at least their lower bound.

        Raises: torchalgo.Error if a key's problem is no problem.
        """
        wanted = sorted(set(keys))
        unseen = {
            key: self._parts(key)
            for key in wanted
            if key not in self._known and self._is_unseen_fusion(key)
        }
        parts = [part for core, alone in unseen.values() for part in (core, *alone)]
        ticks = self._by_trees(list(dict.fromkeys([*wanted, *parts])))
        for key, (core, alone) in unseen.items():
            least = min((ticks[k] for k in alone), default=0)
            ticks[key] = max(ticks[key], round(ticks[core] + UNSEEN_FUSION * least))
        return {key: self._known.get(key, ticks[key]) for key in wanted}

    def _by_trees(self, keys: list[Key]) -> dict[Key, int]:
        if not keys:
            return {}
        features = [features_of(key, self._peaks) for key in keys]
        rows = _rows(features, self._codes)
        logs = sum(t.predict(rows, num_threads=1) for t in self._trees) / len(self._trees)
        return {
            key: math.ceil(f.floor_ticks * math.exp(min(max(log, 0.0), math.log(MOST_RATIO))))
            for key, f, log in zip(keys, features, map(float, logs), strict=True)
        }

    def _is_unseen_fusion(self, key: Key) -> bool:
        if without_activation(key.problem) == key.problem:
            return False
        features = features_of(key, self._peaks)
        return (features.category, features.activation) not in self._seen

    def _parts(self, key: Key) -> tuple[Key, list[Key]]:
        """Returns the same primitive without the activation, and primitives for the activation.

        The latter compute the activation alone, in the layout of the result.
        """
        core = key._replace(problem=without_activation(key.problem))
        problem = activation_alone(key.problem)
        if problem is None:
            return core, []
        offered = _C.offers_of(problem, coarse_types=True)[0]
        return core, [key_of(problem, p) for p in offered if p.src == p.dst == key.dst]


def can_learn(costs: Mapping[Key, int]) -> bool:
    """Returns whether there are enough costs to learn from."""
    return len(costs) >= LEAST_COSTS and len({key.problem for key in costs}) >= LEAST_PROBLEMS


def learn(costs: Mapping[Key, int], peaks: Peaks, is_quick: bool = False) -> CostModel:
    """Learns a model from measured costs, in ticks, of one machine with these peaks: see can_learn.

    The same costs give the same model, in any order. If `is_quick`, learning takes a quarter of the
    time.

    Raises: torchalgo.Error if LightGBM is not installed.
    Source: Friedman 2001, Ann. Statist. 29(5), pp. 1189-1232, doi:10.1214/aos/1013203451; LightGBM:
        Ke et al. 2017, NeurIPS 30, pp. 3146-3154.
    """
    lightgbm = import_lightgbm()
    known = {key: features_of(key, peaks) for key in sorted(costs)}
    names = sorted({f.category for f in known.values()})
    codes = {name: code for code, name in enumerate(names)}
    rows = _rows(list(known.values()), codes)
    ratios = [math.log(max(1, costs[key]) / f.floor_ticks) for key, f in known.items()]
    trees = []
    for leaves in LEAVES[: 1 if is_quick else None]:
        settings = {**SETTINGS, **leaves, **(QUICK if is_quick else {})}
        data = lightgbm.Dataset(
            rows, label=ratios, categorical_feature=[rows.shape[1] - 1], params=settings
        )
        trees.append(lightgbm.train(settings, data))
    return CostModel(trees, costs, known.values(), codes, peaks)


def is_installed() -> bool:
    """Returns whether LightGBM can be imported."""
    try:
        import_lightgbm()
    except Error:
        return False
    return True


def import_lightgbm() -> Any:
    """Returns the module lightgbm.

    Raises torchalgo.Error, with the fix, if it cannot be imported.
    """
    try:
        import lightgbm
    except (ImportError, OSError) as problem:
        raise Error(
            f"TA3202 predict: LightGBM is missing ({str(problem).splitlines()[0]}): pip install"
            " lightgbm"
        ) from None
    return lightgbm


def _rows(features: list[Features], codes: Mapping[str, int]) -> Any:
    """Returns the trees' input: one row per candidate with its numbers and its category's code.

    The code is -1 for an unknown category.
    """
    import numpy

    return numpy.array([[*f.numbers, codes.get(f.category, -1)] for f in features], float)
