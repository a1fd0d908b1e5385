# SPDX-License-Identifier: BSD-3-Clause
"""The part of a store that holds for one device, as tuning reads and appends it."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterable, Mapping

import torch

from torchalgo import _C
from torchalgo.costs import Cost, Key
from torchalgo.db.environment import Environment
from torchalgo.db.row import Row
from torchalgo.db.store import CostStore
from torchalgo.plan import GuardVerdict


class DeviceCosts:
    """The costs of a store that hold for one device, as tuning reads and appends them."""

    def __init__(self, store: CostStore, environment: Environment) -> None:
        self._store = store
        self._environment = environment
        self._provenance = (
            f"torchalgo {_C.version}, torch {torch.__version__}, Python {platform.python_version()}"
            f", {sys.platform} {platform.release()}"
        )

    @staticmethod
    def of(store: CostStore, device: _C.Device | None = None, cold_bytes: int = 0) -> DeviceCosts:
        """Of this machine's `device` (None: the CPU), for samples with so many bytes read in
        between."""
        return DeviceCosts(store, Environment.of(device, cold_bytes))

    def for_energy(self, meter: str) -> DeviceCosts:
        """Energies beside these times, as `meter` counts them."""
        return DeviceCosts(self._store, self._environment.for_energy(meter))

    def read(self, keys: Iterable[Key] | None = None) -> dict[Key, Cost]:
        """The costs of `keys`, or all, that hold here; anything else is a miss."""
        here = self._environment
        if keys is None:
            rows = self._store.read(here.texts())
            wanted = {row.key for row in rows.values()}
        else:
            wanted = set(keys)
            environments = {here.text_of(key.primitive) for key in wanted}
            rows = self._store.read(environments, {key.problem for key in wanted})
        return {
            row.key: row.cost
            for row in rows.values()
            if row.key in wanted
            and row.environment == here.text_of(row.primitive)
            and row.version == here.version_of(row.primitive)
        }

    def append(self, costs: Mapping[Key, Cost]) -> bool:
        """Keeps costs in one transaction; True: they are on disk."""
        rows = [self._row(key, cost) for key, cost in costs.items()]
        return self._store.append([row for row in rows if row is not None])

    def read_verdict(self, plan: str) -> GuardVerdict | None:
        """What the guard found for a plan (plan_key's text) here before."""
        text = self._store.verdict(plan, self._environment.everything)
        try:
            return None if text is None else GuardVerdict.from_json(text)
        except _C.Error:
            return None

    def keep_verdict(self, plan: str, verdict: GuardVerdict) -> None:
        self._store.keep_verdict(plan, self._environment.everything, verdict.to_json())

    def read_record(self, key: str) -> str | None:
        """What keep_record left here for `key`; it is text that anybody may have written."""
        return self._store.verdict(key, self._environment.everything)

    def keep_record(self, key: str, text: str) -> None:
        """Keeps a text beside the verdicts; `key` must say whose it is."""
        self._store.keep_verdict(key, self._environment.everything, text)

    def _row(self, key: Key, cost: Cost) -> Row | None:
        """None: no algorithm here has this name."""
        version = self._environment.version_of(key.primitive)
        if version is None:
            return None
        samples = cost.samples
        return Row(
            environment=self._environment.text_of(key.primitive),
            **key._asdict(),
            version=version,
            ticks=cost.ticks,
            noise_ticks=cost.noise_ticks,
            samples=samples.n,
            median_ticks=samples.median_ticks,
            p10_ticks=samples.p10_ticks,
            p90_ticks=samples.p90_ticks,
            workspace_bytes=cost.workspace_bytes,
            rel_error=cost.rel_error,
            provenance=self._provenance,
            measured_at=max(0, int(time.time())),
        )
