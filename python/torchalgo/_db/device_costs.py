# SPDX-License-Identifier: BSD-3-Clause
"""The view of a store for one device, as tuning reads and extends it."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from torchalgo import _C
from torchalgo._db.environment import Environment
from torchalgo._db.row import Check, E, Entry, PeakRates, Refusal, Row, Verdict
from torchalgo._db.store import CostStore
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import Cost, Key, Passed, engine_of
from torchalgo._ir.failures import MOST_OF_ONE, Failure, ended_too_often, hung_as
from torchalgo._ir.plan import LAYOUTS, GuardVerdict

MOST_REASON = 500  # most characters of a reason

# The version of the comparison with f64 (check_primitives in csrc/profiler/check.cpp). Raise it if
# the comparison finds more mistakes: candidates that passed an older version are then checked
# again.
GATE = 3  # 2: some samples have NaN; 3: some have inputs with a large mean


class DeviceCosts:
    """The costs of a store that are valid for one device."""

    def __init__(self, store: CostStore, environment: Environment) -> None:
        self._store = store
        self._environment = environment
        self._provenance = (
            f"torchalgo {_C.version}, torch {torch.__version__}, Python {platform.python_version()}"
            f", {sys.platform} {platform.release()}"
        )

    @staticmethod
    def of(store: CostStore, device: _C.Device | None = None, cold_bytes: int = 0) -> DeviceCosts:
        """Returns the costs of this machine's `device` (None is the CPU).

        `cold_bytes` is the number of bytes that are read between two samples.
        """
        return DeviceCosts(store, Environment.of(device, cold_bytes))

    def for_energy(self, meter: str) -> DeviceCosts:
        """Returns the energies that `meter` counted, in the same store."""
        return DeviceCosts(self._store, self._environment.for_energy(meter))

    def read(self, keys: Iterable[Key] | None = None) -> dict[Key, Cost]:
        """Returns the costs of `keys` that are valid here; all valid costs if `keys` is None."""
        return {row.key: row.cost for row in self._entries_of(Row, keys)}

    def append(self, costs: Mapping[Key, Cost]) -> bool:
        """Stores costs in one transaction, without disturbed ones.

        Returns True if they are on disk.
        """
        return self._append(
            Row,
            {
                key: {
                    "ticks": cost.ticks, "noise_ticks": cost.noise_ticks,
                    "samples": cost.samples.n, "median_ticks": cost.samples.median_ticks,
                    "p10_ticks": cost.samples.p10_ticks, "p90_ticks": cost.samples.p90_ticks,
                    "workspace_bytes": cost.workspace_bytes, "rel_error": None,
                }
                for key, cost in costs.items()
                if not cost.is_disturbed
            },
        )  # fmt: skip

    def forget_older(self, keys: Iterable[Key]) -> int:
        """Drops the entries of the problems of `keys` that this store did not write.

        Returns the number of dropped entries.
        """
        return self._store.forget_older(self._environment.texts(), {key.problem for key in keys})

    # ---- checks --------------------------------------------------------------------------------

    def read_checks(self, keys: Iterable[Key]) -> dict[Key, Passed]:
        """Returns the comparisons with f64 that `keys` passed here, in version GATE."""
        found = self._entries_of(Check, keys)
        return {check.key: check.passed for check in found if check.gate == GATE}

    def append_checks(self, checks: Mapping[Key, Passed]) -> bool:
        """Stores passed comparisons in one transaction. Returns True if they are on disk."""
        return self._append(
            Check,
            {
                key: {
                    "gate": GATE, "rel_error": float(passed.rel_error),
                    "bound": float(passed.bound),
                }
                for key, passed in checks.items()
            },
        )  # fmt: skip

    # ---- failures ------------------------------------------------------------------------------

    def read_failures(self, keys: Iterable[Key]) -> dict[Key, Failure]:
        """Returns the failures of candidates among `keys`, which cannot be chosen here and now.

        Includes candidates of a primitive that ended its process, or hung, on MOST_OF_ONE problems,
        and those whose engine hung on the same problem in another layout or with other knobs.
        """
        refusals = [
            refusal
            for refusal in self._store.entries(Refusal, self._environment.texts())
            if self._holds(refusal) and refusal.holds_at(time.time())
        ]
        endings: dict[str, dict[str, str]] = {}  # by primitive and problem: the reason
        for refusal in refusals:
            if refusal.kind in ("ended", "hung"):
                endings.setdefault(refusal.primitive, {})[refusal.problem] = refusal.reason
        hung = {(engine_of(r.primitive), r.problem): r for r in refusals if r.kind == "hung"}
        by_key = {refusal.key: refusal.failure for refusal in refusals}
        failures: dict[Key, Failure] = {}
        for key in keys:
            reasons = list(endings.get(key.primitive, {}).values())
            if key in by_key:
                failures[key] = by_key[key]
            elif (twin := hung.get((engine_of(key.primitive), key.problem))) is not None:
                failures[key] = Failure(hung_as(twin.primitive, twin.reason), "hung")
            elif len(reasons) >= MOST_OF_ONE:
                failures[key] = Failure(ended_too_often(reasons), "ended")
        return failures

    def append_failures(self, failures: Mapping[Key, Failure]) -> bool:
        """Stores failures in one transaction. Returns True if they are on disk."""
        return self._append(
            Refusal,
            {
                key: {
                    "kind": failure.kind, "reason": _in_print(failure.reason),
                    "bound": None if failure.bound is None else float(failure.bound),
                }
                for key, failure in failures.items()
            },
        )  # fmt: skip

    def forget_failures(self, keys: Iterable[Key], *, checked: bool) -> None:
        """Removes the failures of candidates that later ran without failing.

        Removes wrong results only if `checked`: the candidates then passed a check as well.
        """
        wanted = set(keys)
        if not wanted:
            return
        found = self._store.entries(Refusal, self._environment.texts(), has_older=True)
        self._store.forget(
            refusal
            for refusal in found
            if refusal.key in wanted
            and self._holds(refusal)
            and (checked or refusal.kind != "wrong")
        )

    # ---- verdicts ------------------------------------------------------------------------------

    def read_verdict(self, plan: str) -> GuardVerdict | None:
        """Returns the guard's stored verdict on a plan here, with its day; None if there is none.

        `plan` is a text of verdict_key.
        """
        text = self.read_record(plan)
        try:
            found = None if text is None else GuardVerdict.from_json(text)
        except _C.Error:
            return None
        return found if found is not None and found.timed_on else None

    def keep_verdict(self, plan: str, verdict: GuardVerdict) -> None:
        """Stores a verdict with today's date, unless other programs disturbed it."""
        if verdict.is_disturbed:
            return
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        self.keep_record(plan, dataclasses.replace(verdict, timed_on=today).to_json())

    def read_record(self, key: str) -> str | None:
        """Returns the text that keep_record stored here for `key`; None if there is none.

        Do not trust the text: others may have written it.
        """
        return self._store.text(Verdict, self._environment.everything, key)

    def keep_record(self, key: str, text: str) -> None:
        """Stores a text beside the verdicts.

        `key` is "owner:..." and names the owner: the keys of verdicts have no colon.
        """
        self._store.keep_text(Verdict, self._environment.everything, key, text)

    # ---- peaks ---------------------------------------------------------------------------------

    def read_peaks(self) -> Peaks | None:
        """Returns the highest rates that were ever probed here; None if there are none."""
        text = self._store.text(PeakRates, self._environment.hardware, "cpu")
        return None if text is None else Peaks.from_json(text)

    def keep_peaks(self, peaks: Peaks) -> None:
        self._store.keep_text(PeakRates, self._environment.hardware, "cpu", peaks.to_json())

    def _entries_of(self, kind: type[E], keys: Iterable[Key] | None) -> list[E]:
        """Returns the entries of `keys` that are valid here, or all of them if `keys` is None."""
        here = self._environment
        if keys is None:
            found = self._store.entries(kind, here.texts())
            return list(filter(self._holds, found))
        wanted = set(keys)
        environments = {here.text_of(key.primitive) for key in wanted}
        found = self._store.entries(kind, environments, {key.problem for key in wanted})
        return [entry for entry in found if entry.key in wanted and self._holds(entry)]

    def _holds(self, entry: Entry) -> bool:
        here = self._environment
        return (
            entry.environment == here.text_of(entry.primitive)
            and entry.version == here.version_of(entry.primitive)
            # Another torchalgo may have layouts that this one lacks.
            and {entry.src, entry.dst} <= {*LAYOUTS}
        )

    def _append(self, kind: type[Entry], values: Mapping[Key, Mapping[str, Any]]) -> bool:
        """Stores entries of a kind with these values, if an algorithm here has the key's name."""
        entries = []
        for key, own in values.items():
            version = self._environment.version_of(key.primitive)
            if version is not None:
                common: dict[str, Any] = {
                    "environment": self._environment.text_of(key.primitive), "version": version,
                    "provenance": self._provenance, kind.TIME: max(0, int(time.time())),
                }  # fmt: skip
                entries.append(kind(**key._asdict(), **common, **own))
        return self._store.append(entries)


def _in_print(reason: str) -> str:
    """Returns a reason as the database stores it: one line without the user's home directory."""
    home, line = os.path.expanduser("~"), " ".join(reason.split())
    line = line.replace(home, "~") if len(home) > 1 else line
    return "".join(c if c.isprintable() else "?" for c in line)[:MOST_REASON]
