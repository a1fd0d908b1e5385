# SPDX-License-Identifier: BSD-3-Clause
"""A file of costs: JSON lines that later runs read and append to."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from torchalgo import _C
from torchalgo.overrides import matches_name

SCHEMA = 1


class Key(NamedTuple):
    """Problem, primitive and layouts: what a cost belongs to."""

    problem: str
    primitive: str
    src: str
    dst: str


def key_of(problem: str, primitive: _C.Primitive) -> Key:
    return Key(problem, primitive.name, primitive.src, primitive.dst)


def native_key(key: Key) -> _C.CostKey:
    return _C.CostKey(*key)


@dataclass(frozen=True)
class Cost:
    """ticks: 1/1024 ns; noise_ticks: half the width of its 95 % interval, 0 if unknown."""

    ticks: int
    noise_ticks: int = 0


def environment(device: _C.Device | None = None) -> dict[str, str]:
    """What costs depend on beside the algorithm: a cost of another environment is a miss."""
    versions = {"torch": torch.__version__, "torchalgo": _C.version}
    if device is None or device.kind == "cpu":
        cpu = _C.cpu_device()
        return {**versions, "cpu": cpu.name, "isa": cpu.isa, "threads": str(cpu.threads)}
    driver, runtime = _C.cuda_versions() if device.index >= 0 else (0, 0)
    return {
        **versions,
        "gpu": device.name,
        "isa": device.isa,
        "cudnn": str(torch.backends.cudnn.version()),
        "cuda": str(runtime),
        "driver": str(driver),
    }


class CostFile:
    """Costs on disk. A line that cannot be read, or was measured elsewhere, is a miss; a file that
    cannot be written warns once: the file never fails a run."""

    def __init__(self, path: str | Path, device: _C.Device | None = None) -> None:
        self._path = Path(path)
        self._environment = {k: v for k, v in environment(device).items() if k != "torchalgo"}
        self._versions = dict(_C.algorithms())
        self._can_write = True

    def read(self) -> dict[Key, Cost]:
        """The costs that hold here; the last line of a key counts."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as problem:
            warnings.warn(
                f"torchalgo: cannot read costs from {self._path}: {problem}", stacklevel=2
            )
            return {}
        costs: dict[Key, Cost] = {}
        for line in lines:
            try:
                self._read_line(json.loads(line), costs)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # cut off by a crash, or foreign
        return costs

    def _read_line(self, record: dict[str, object], costs: dict[Key, Cost]) -> None:
        key = Key(*(str(record[name]) for name in Key._fields))
        here = record["environment"] == self._environment
        if record["schema"] == SCHEMA and here and record["version"] == self._version(key):
            ticks, noise = int(str(record["ticks"])), int(str(record["noise_ticks"]))
            if ticks >= 0:
                costs[key] = Cost(ticks, noise)

    def append(self, costs: Mapping[Key, Cost]) -> None:
        if not self._can_write:
            return
        text = "".join(json.dumps(self._record(key, cost)) + "\n" for key, cost in costs.items())
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as problem:
            self._can_write = False
            warnings.warn(f"torchalgo: cannot keep costs in {self._path}: {problem}", stacklevel=2)

    def _record(self, key: Key, cost: Cost) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            **key._asdict(),
            "version": self._version(key),
            "ticks": cost.ticks,
            "noise_ticks": cost.noise_ticks,
            "environment": self._environment,
        }

    def _version(self, key: Key) -> int | None:
        rows = [row for row in self._versions if matches_name(key.primitive, row)]
        return self._versions[max(rows, key=len)] if rows else None
