# SPDX-License-Identifier: BSD-3-Clause
"""Learns to predict costs from the rows of a database that are valid for a device."""

from __future__ import annotations

import math

from torchalgo import _C
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import Key
from torchalgo._measure.knowledge import Predictor

MOST_GUIDE_BYTES = 12 << 20  # size of a database with about 30,000 rows
MOST_GUIDE_COSTS = 5000


def costs_to_learn(store: CostStore, device: _C.Device | None, cold_bytes: int) -> dict[Key, int]:
    """Returns the costs of the store, in ticks, that are valid for a device with its threads.

    A device of None is the CPU. Costs from models of all sizes are used: cold weights change a cost
    far less than another problem does. If a candidate has several costs, the one for the model's
    own size is used.
    """
    sizes = (_C.LARGE_CACHE_BYTES + 1, _C.LARGE_CACHE_BYTES, 0, cold_bytes)  # the last one wins
    costs: dict[Key, int] = {}
    for size in sizes:
        rows = DeviceCosts.of(store, device, size).read()
        costs.update({key: cost.estimate_ticks for key, cost in rows.items()})
    return costs


def learn_from_store(
    store: CostStore, device: _C.Device | None, cold_bytes: int, peaks: Peaks | None
) -> Predictor:
    """Learns the model with which mode="predict" plans.

    Raises: torchalgo.Error, with a way to fix it, if the store has too few valid costs. The same
        error is raised if nothing can be probed on this device, as on a GPU, or if LightGBM is not
        installed.
    """
    if peaks is None or not peaks.is_probed:
        raise _C.Error(
            'TA3203 optimize: mode="predict" works on CPUs only; for'
            f' {device.name if device else "this device"} use mode="tune"'
        )
    from torchalgo._predict.model import can_learn, import_lightgbm, learn

    import_lightgbm()
    costs = costs_to_learn(store, device, cold_bytes)
    if not can_learn(costs):
        elsewhere = len(store.rows()) - len(costs)
        raise _C.Error(
            f'TA3201 optimize: mode="predict" learns from the database {store.path}, which has too'
            f" few costs: {len(costs)} of {len({key.problem for key in costs})} problems for this"
            f" CPU, number of threads and versions ({max(0, elsewhere)} rows are of others). Tune"
            " one or two models here first (torchalgo.optimize(model, x)), or add rows of an equal"
            " machine (torchalgo db import)"
        )
    return learn(costs, peaks)


def guide_from_store(
    store: CostStore, device: _C.Device | None, cold_bytes: int, peaks: Peaks | None
) -> Predictor | None:
    """Learns a smaller model, within a second, for candidates that a time budget left unmeasured.

    Returns None if the store has too few costs, or is too large to be read in time. It also returns
    None on a GPU, or if LightGBM is not installed.
    """
    if peaks is None or not peaks.is_probed:
        return None
    from torchalgo._predict.model import can_learn, is_installed, learn

    if not is_installed() or store.path is None or not store.path.exists():
        return None
    if store.path.stat().st_size > MOST_GUIDE_BYTES:
        return None
    costs = costs_to_learn(store, device, cold_bytes)
    if not can_learn(costs):
        return None
    every = math.ceil(len(costs) / MOST_GUIDE_COSTS)
    return learn({key: costs[key] for key in sorted(costs)[::every]}, peaks, is_quick=True)
