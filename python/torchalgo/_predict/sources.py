# SPDX-License-Identifier: BSD-3-Clause
"""What there is to learn from: the rows of a database that hold for a device."""

from __future__ import annotations

import math

from torchalgo import _C
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import Key
from torchalgo._predict.model import CostModel, can_learn, import_lightgbm, is_installed, learn

MOST_GUIDE_BYTES = 12 << 20  # of the database: some 30,000 rows
MOST_GUIDE_COSTS = 5000


def costs_to_learn(store: CostStore, device: _C.Device | None, cold_bytes: int) -> dict[Key, int]:
    """The costs of the store, in ticks, that hold for a device (None: the CPU) with its threads.

    Those of models of all sizes: where weights lie changes a cost far less than another problem
    does. Of one candidate's costs that of the model's own size counts.
    """
    sizes = (_C.LARGE_CACHE_BYTES + 1, _C.LARGE_CACHE_BYTES, 0, cold_bytes)  # the last one wins
    costs: dict[Key, int] = {}
    for size in sizes:
        rows = DeviceCosts.of(store, device, size).read()
        costs.update({key: cost.estimate_ticks for key, cost in rows.items()})
    return costs


def learn_from_store(
    store: CostStore, device: _C.Device | None, cold_bytes: int, peaks: Peaks | None
) -> CostModel:
    """The model of costs that mode="predict" plans with.

    Raises: torchalgo.Error if the store has too few costs that hold here, if nothing bounds costs
        on this device (peaks is None), or if LightGBM is not installed; with what to do.
    """
    if peaks is None:
        raise _C.Error(
            'optimize: mode="predict" is for models on the CPU, whose highest rates are probed;'
            f' for {device.name if device else "this device"} use mode="tune"'
        )
    import_lightgbm()
    costs = costs_to_learn(store, device, cold_bytes)
    if not can_learn(costs):
        elsewhere = len(store.rows()) - len(costs)
        raise _C.Error(
            f'optimize: mode="predict" learns from the database {store.path}, which has'
            f" {len(costs)} costs of {len({key.problem for key in costs})} problems for this CPU,"
            f" number of threads and versions ({max(0, elsewhere)} rows are of others): too few."
            " Tune one or two models here first (torchalgo.optimize(model, x)), or join rows of an"
            " equal machine (torchalgo db import)"
        )
    return learn(costs, peaks)


def guide_from_store(
    store: CostStore, device: _C.Device | None, cold_bytes: int, peaks: Peaks | None
) -> CostModel | None:
    """A smaller model, learned within a second, of what a budget left unmeasured; None where the
    store has too few costs or so many that reading them takes longer, or where there is no
    LightGBM."""
    if peaks is None or not is_installed() or store.path is None or not store.path.exists():
        return None
    if store.path.stat().st_size > MOST_GUIDE_BYTES:
        return None
    costs = costs_to_learn(store, device, cold_bytes)
    if not can_learn(costs):
        return None
    every = math.ceil(len(costs) / MOST_GUIDE_COSTS)
    return learn({key: costs[key] for key in sorted(costs)[::every]}, peaks, is_quick=True)
